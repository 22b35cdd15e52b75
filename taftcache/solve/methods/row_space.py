"""Solving in the space of the rows: for quadratic problems, while some numbers of every row fit in memory.

The minimiser is Δw* = J̃ᵀa* with (J̃J̃ᵀ + λI) a* = b, where J̃ = √(D/N) J has N·K rows, fewer than P or a few times as
many. The iterates are Δw = J̃ᵀa too, but each minimises F itself over the directions so far (not the dual function,
whose best a gives a poor Δw until close to the end): with z = (K̂ + τI)⁻¹ρ and ρ = b − J̃Δw − λa, directions are made
orthogonal in F's own metric, (z, z') = (K̃z)·(K̃z') + λ z·K̃z'. One product K̃z is one pass.

ρ bounds what is left. For Δw = J̃ᵀa,

    F(Δw) − F* = ½ ρᵀK̃(K̃ + λI)⁻¹ρ ≤ ½‖ρ‖²

which is the duality gap: a bound that does not divide by λ. A round ends at Δw = J̃ᵀa + e, where e is the float32 error
of the round's J̃ᵀa. Float64 finds e and the gradient in the same pass: ∇F = λe − J̃ᵀρ, so that

    ‖Δw − Δw*‖_H ≤ ‖ρ‖ + √λ‖e‖        ‖Δw − Δw*‖ ≤ ‖ρ‖/(2√λ) + ‖e‖

The next round begins at J̃ᵀa itself, with ρ + J̃e.

A solve can go on from the dual vectors of an earlier one, even if rows have left since. The dual vectors of the others
then lack what those rows carried, and a fraction of themselves, because the mean is over fewer rows
(``ClassKernel.without``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.cotangent import Given
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.body_kernel import class_metric, kernels
from taftcache.solve.inverses.class_kernel import ClassKernel, kernel_product
from taftcache.solve.inverses.landmarks import LANDMARKS
from taftcache.solve.methods.basis import Basis
from taftcache.solve.methods.decisive import SHARE, further, sample_rows, typical
from taftcache.solve.methods.gauge import CHECK, Gauge
from taftcache.solve.methods.refinement import REDUCTION, refine
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import check_finite, reached
from taftcache.solve.settings import OnPass
from taftcache.solve.solution import Solution, Status
from taftcache.solve_stats import SolveStats
from taftcache.tangent.operator import RowSum
from taftcache.tangent.rows import RowSource, RowSubset

DIRECTIONS = 64  # that new ones are made orthogonal to; beyond that the oldest are given up

Enough = Callable[[Tensor, float], bool]
"""Whether a round may end, from ρ [N,K] and about ‖J̃ᵀρ‖²; asked after each direction."""


@dataclass(frozen=True)
class Restart:
    """Where a solve in the space of the rows goes on from, and how near it has to get.

    Args:
        before: the rows of the earlier solve.
        value: its Δw [P].
        dual: its α [N',K], Δw = Jᵀα.
        stays: which of those rows are, in order, those of the new problem [N'] bool.
        distance: the certified distance that is enough, given how far Δw has moved.
    """

    before: Sequence[RowSource]
    value: Tensor
    dual: Tensor
    stays: Tensor
    distance: Callable[[float], float]

    def enough(self, value: Tensor) -> float:
        """The certified distance that is enough at Δw = ``value`` [P]."""
        return self.distance((value.to(self.value) - self.value).norm().item())


class RowPoint(NamedTuple):
    """Δw = J̃ᵀa + e [P], a = ``dual`` [N,K], with F, ρ [N,K], ∇F [P] and e = ``apart`` [P] there in float64.

    Without e the point is rough: it has the products' precision, an unknown e from their rounding, and ∇F only if that
    was asked for.
    """

    value: Tensor
    dual: Tensor
    objective: float
    residual: Tensor
    gradient: Tensor | None = None
    apart: Tensor | None = None

    @property
    def rough(self) -> bool:
        """Whether float64 has not seen it."""
        return self.apart is None

    @property
    def slope(self) -> float:
        """‖∇F‖."""
        assert self.gradient is not None
        return float(self.gradient.norm().item())


class RowSpace:
    """J̃, b and what was solved so far, as dual vectors [N,K] in float64.

    ``history`` pairs passes with F then: recomputed where a round begins and ends, by recurrence in between.

    Args:
        pair: the problem.
        max_passes: limit on passes, those that build the preconditioner included.
        on_pass: called after each pass.
    """

    def __init__(self, pair: ProblemPair, max_passes: int, on_pass: OnPass | None = None) -> None:
        (self.inner, self.exact), self.max_passes, self._on_pass = pair, max_passes, on_pass
        self.passes = self.rounds = 0
        self._at_zero: Tensor | None = None
        self.kernel: ClassKernel | None = None
        self.history: list[tuple[int, float]] = []

    def begin(self) -> None:
        """Start at Δw = 0, for one pass, unless there is a point already."""
        if self.history:
            return
        value = self.exact.zero
        objective, gradient, self.scale, short, _ = fitted(self.inner, value)
        self.passes += 1
        self.point = RowPoint(value, torch.zeros_like(short), objective, short, gradient.to(value))
        self.gradient_at_zero = self.point.slope
        self.history = [(self.passes, self.point.objective)]
        self._correction = torch.zeros_like(self.point.dual)

    def run(self, tolerance: float) -> Status:
        """Iterate until ‖∇F‖ ≤ tolerance·‖∇F(0)‖ in float64, or for as long as passes and rounding allow."""
        self.begin()
        goal = tolerance * self.gradient_at_zero
        return self._rounds(lambda at: at.slope, lambda: goal, self._gradient_below)

    def run_and_decide(self, tolerance: float) -> Status:
        """``run``, then ``decide`` from there for some more passes (``further``); a converged solve stays converged."""
        status = self.run(tolerance)
        if status is Status.converged:
            self.max_passes = further(self.passes, self.max_passes)
            status = Status.interrupted if self.decide() is Status.interrupted else status
        return status

    def decide(self) -> Status:
        """Iterate until the certified distance ‖ρ‖/(2√λ) is ``SHARE`` of how far a typical row moves Δw, or for as long
        as passes and rounding allow."""
        self.begin()
        try:
            self._gather()
        except KeyboardInterrupt:
            return Status.interrupted

        def near(_: float, before: float) -> Enough:
            def enough(residual: Tensor, _: float) -> bool:
                goal = max(0.9 * SHARE * self.row_moves(), REDUCTION * before)
                return self._bound(residual) <= goal

            return enough

        return self._rounds(self._distance, lambda: SHARE * self.row_moves(), near)

    def row_moves(self) -> float:
        """How far taking out a typical row would move Δw*, by the dual vectors as they stand and K̂.

        If K̂ knows the rows by landmarks, it takes whatever those miss of a row for that row's own, though it shares
        some of this with other rows. The estimate falls with a power of the number of landmarks; the power follows from
        a second estimate with a quarter of them.
        """
        assert self.kernel is not None
        moves, *by_fewer = map(typical, self.kernel.moves(self._dual()))
        if not by_fewer or not moves:
            return moves
        power = log(max(1.0, by_fewer[0] / moves)) / -log(self.kernel.fewer) if self.kernel.fewer < 1 else 0.0
        return float(moves * (LANDMARKS / max(LANDMARKS, len(self.scale))) ** power)

    def look(self, value: Tensor, dual: Tensor) -> None:
        """Move to a Δw [P] and its dual vectors α [N,K], with F, ∇F and ρ there; one pass besides ``begin``'s."""
        self.begin()
        self.point = self._at(value, self._from_dual(dual))

    def restart(self, at: Restart) -> Status:
        """Go on from other dual vectors until the certified distance ‖ρ‖/(2√λ) is ``at.distance``, or for as long as
        passes and rounding allow."""
        device = self.exact.operator.device
        at = replace(at, dual=at.dual.to(device, torch.float64), stays=at.stays.to(device))
        left = not at.stays.all()
        try:
            self._gather(at if left else None)
            assert self.kernel is not None
            start = self._from_dual(at.dual[at.stays])
            if left:
                start += self.kernel.without(start)
            if start.any():  # if rows have left, a round follows in any case and ends in float64
                self._stand(start, rough=left)
            else:
                self.begin()
        except KeyboardInterrupt:
            self.begin()
            return Status.interrupted

        def near(*_: float) -> Enough:
            moved, least = self._moved(at), REDUCTION * self._bound(self.point.residual)
            return lambda residual, _: self._bound(residual) <= max(0.9 * at.distance(moved(residual)), least)

        def far(point: RowPoint) -> float:
            return inf if point.rough else self._distance(point)

        return self._rounds(far, lambda: at.enough(self.point.value), near)

    def _stand(self, start: Tensor, *, rough: bool) -> None:
        """Move to a = ``start`` [N,K]: one pass in the products' precision if ``rough``, two in float64 if not."""
        if rough:
            assert self.kernel is not None
            problem, operator = self.inner, self.inner.operator
            value = problem.adjoint(self.scale * start)
            delta = operator.direction(value)
            seen = [(state.logits, operator.tangent(state, delta), labels) for state, labels in operator.blocks()]
            base, change, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
            short, at_zero = (
                row_residual(problem, problem.logits(base, step).to(start), labels)[1] for step in (change, None)
            )
            check_finite(short, "logits of where the solve goes on from")
            value, ridge = value.to(start), self.exact.ridge
            objective = 0.5 * (short.square().sum() + ridge * value.square().sum()).item()
            self.point = RowPoint(value, start, objective, short - ridge * start)
            self.gradient_at_zero = sqrt(self.kernel.apply(at_zero)[1])
            self.passes += 1
        else:
            self.point = self._seen(start)
        self.history = [(self.passes, self.point.objective)]
        self._correction = torch.zeros_like(start)

    def _moved(self, at: Restart) -> Callable[[Tensor], float]:
        """How far Δw is from ``at.value`` within a round, from its ρ and without a pass.

        The round adds J̃ᵀc to Δw, and K̃c is what ρ has lost minus λc. The inner product of J̃ᵀc with the move before it
        needs J̃ times both ends of that move. At the old end, the rows' own optimality λα = −(ωD/N)(z − target) gives
        it. That is wrong if the old solve was loose, ω has changed ("balanced") or λ is down to rounding. A round then
        ends early or late, but the point that it leads to is measured (``Restart.enough``).
        """
        begun, ridge = self.point, self.exact.ridge
        base = begun.value if begun.apart is None else begun.value - begun.apart
        square = (base - at.value.to(base)).square().sum().item()
        before = self._from_dual(at.dual[at.stays]) * (len(at.stays) / self.exact.operator.rows)
        across = ridge * (before - begun.dual) - begun.residual

        def moved(residual: Tensor) -> float:
            added = self._correction.to(across)
            gained = begun.residual - residual.to(across) - ridge * added
            return sqrt(max(0.0, square + (added * (2 * across + gained)).sum().item()))

        return moved

    def _from_dual(self, dual: Tensor) -> Tensor:
        """a [N,K] from α."""
        return torch.where(self.scale > 0, dual.to(self.scale) / self.scale, 0)

    def _gather(self, at: Restart | None = None) -> None:
        """Make the preconditioner in the products' current precision, for a pass or two; it knows rows that left."""
        inner, operator = self.inner, self.inner.operator
        if self.kernel is not None and self.kernel.dtype == operator.dtype:
            return
        problems, carried = [inner], None
        if at is not None:
            gone = RowSubset(at.before, torch.nonzero(~at.stays)[:, 0].numpy(force=True))
            problems.append(replace(inner, operator=operator.over([gone])))
            carried = at.dual[~at.stays]
        found = kernels(problems, class_metric(inner))
        if not self.history:
            labels = found.labels[: operator.rows]
            like = torch.empty(0, dtype=torch.float64, device=labels.device)
            self.scale = self.exact.diagonal(labels, like).sqrt()
        sampled = sample_rows(self.scale).to(self.scale.device)
        self.kernel = ClassKernel(inner, self.scale.to(operator.dtype), found, sampled=sampled, carried=carried)
        self.passes += self.kernel.passes

    def _rounds(
        self,
        far: Callable[[RowPoint], float],
        wanted: Callable[[], float],
        near: Callable[[float, float], Enough],
    ) -> Status:
        """Rounds until ``far`` of the point is at most ``wanted()``. If rounding stops them, they go on under the
        larger shift of ``ClassKernel.steady``, and then with products in float64.

        Args:
            far, wanted: as in ``refine``.
            near: given the goal and ``far`` before a round, what ends it.
        """

        def propose(goal: float, before: float) -> None:
            self._gather()
            self.rounds += 1
            self._correction = torch.zeros_like(self.point.residual, dtype=self.inner.operator.dtype)
            self._round(self._correction, near(goal, before))

        def rounds() -> Status:
            # One product at least, a look at where it leads, and one pass to recompute F; two for the preconditioner.
            least = 4 if self.kernel is not None else 6
            return refine(self, far, wanted, propose, max_passes=self.max_passes, least=least)

        status, kernel = rounds(), self.kernel
        if status is Status.stalled and kernel is not None:
            before = kernel.passes
            if kernel.steady():
                self.passes += kernel.passes - before
                status = rounds()
        if status is Status.stalled and self.inner.operator.dtype != self.exact.operator.dtype:
            self.inner = self.exact
            status = rounds()
        return status

    def arrive(self) -> RowPoint:
        """Where the correction leads."""
        point = self._at(self.current(), self._dual())
        self.passes += 1
        self.history.append((self.passes, point.objective))
        self._correction = torch.zeros_like(point.dual)
        return point

    def current(self) -> Tensor:
        """Δw [P] as it stands within a round; half a pass that is not counted."""
        value, apart = self.point.value, self.point.apart
        gained = self.inner.adjoint(self.scale * self._correction.to(self.scale)).to(value)
        return gained + (value if apart is None else value - apart)

    def _dual(self) -> Tensor:
        """a [N,K] as it stands within a round."""
        return self.point.dual + self._correction.to(self.point.dual)

    def _bound(self, residual: Tensor) -> float:
        """‖ρ‖/(2√λ), which is the certified distance of J̃ᵀa at ρ = ``residual``."""
        return float(residual.norm().item() / (2 * sqrt(self.exact.ridge)))

    def _distance(self, at: RowPoint) -> float:
        """The certified distance."""
        return self._bound(at.residual) + (0.0 if at.apart is None else at.apart.norm().item())

    def solution(self, status: Status) -> Solution:
        """What was reached, with its certificate."""
        if self.point.rough:
            self.point = self._seen(self.point.dual)
        at = self.point
        assert self._at_zero is not None
        assert at.gradient is not None
        solver = "row space" if self.inner is not self.exact else "row space, float64"
        moves = None if self.kernel is None else self.row_moves()  # a receipt with another λ decides by it
        stats = SolveStats(solver=solver, passes=self.passes, rounds=self.rounds, row_moves=moves)
        gradients, dual = (self._at_zero, at.gradient), self.scale * at.dual
        residual = 2 * sqrt(self.exact.ridge) * self._distance(at)
        return reached(self.exact, at.value, at.objective, gradients, status, stats, residual=residual, dual=dual)

    def _seen(self, dual: Tensor) -> RowPoint:
        """The point at a = ``dual`` [N,K] in float64, for two passes."""
        self.passes += 1
        return self._at(self.exact.adjoint(self.scale * dual), dual)

    def _at(self, value: Tensor, dual: Tensor) -> RowPoint:
        """F, ∇F and ρ = −√(ωD/N)(z − target) − λa at Δw ≈ J̃ᵀa with logits z, in one float64 pass."""
        self.passes += 1
        beside = [RowSum(None, Given(values=self.scale * dual))]
        if self._at_zero is None:
            beside.append(self.exact.gradient_at_zero())
        objective, gradient, _, short, (pulled, *at_zero) = fitted(self.exact, value, *beside)
        if at_zero:
            self._at_zero, self.gradient_at_zero = at_zero[0], at_zero[0].norm().item()
        return RowPoint(value, dual, objective, short - self.exact.ridge * dual, gradient.to(value), value - pulled)

    def _gradient_below(self, goal: float, before: float) -> Enough:
        """Whether ‖∇F‖ = ‖J̃ᵀρ‖ is below ``goal``, or as far below ``before`` as float32 carries.

        Each time the norm itself is computed costs half a pass, counted as one.
        """
        goal, gauge = max(0.5 * goal, REDUCTION * before), Gauge(self._gradient_norm)
        return lambda residual, energy: gauge.below(goal, residual, energy**0.5)

    def _gradient_norm(self, residual: Tensor) -> float:
        """‖J̃ᵀρ‖."""
        self.passes += 1
        return float(self.inner.adjoint(self.scale.to(residual) * residual).norm().item())

    def _round(self, correction: Tensor, enough: Enough) -> None:
        """Add to ``correction`` in place until it is ``enough``."""
        assert self.kernel is not None
        ridge, scale = self.inner.ridge, self.scale.to(correction)
        residual = self.point.residual.to(correction)
        if self.point.apart is not None and self.point.apart.any():
            residual += scale * self.inner.forward(self.point.apart)
        # Directions of an earlier round carry its rounding: orthogonal to them, the new residual would not fall.
        basis = Basis(DIRECTIONS, residual.numel(), residual.dtype, residual.device)
        steps = 0
        least, since = inf, 0
        while self.passes + 3 < self.max_passes:
            direction, energy = self.kernel.apply(residual)
            if enough(residual, energy):
                return
            if energy < 0.9 * least:
                least, since = energy, steps
            elif steps - since > CHECK:  # rounding has eaten the directions
                return
            steps += 1
            product = kernel_product(self.inner, scale, direction)
            self.passes += 1
            if not basis.add(direction, product, ridge):
                return
            z, y = basis.last
            step = torch.dot(y.double(), residual.reshape(-1).double()).item()
            correction.view(-1).add_(z, alpha=step)
            residual.view(-1).sub_(y + ridge * z, alpha=step)
            # The direction has unit length in F's metric, so F has fallen by half the square of the step.
            self.history.append((self.passes, self.history[-1][1] - 0.5 * step * step))
            if self._on_pass is not None:  # if Δw = 0 is the optimum itself, a solve may have begun elsewhere
                self._on_pass(self.passes, energy**0.5 / self.gradient_at_zero if self.gradient_at_zero else inf)


def fitted(problem: Problem, value: Tensor, *beside: RowSum) -> tuple[float, Tensor, Tensor, Tensor, list[Tensor]]:
    """F, ∇F [P], ``row_residual`` of the logits [N,K] at Δw = ``value``, and the sums ``beside`` them, in one pass.

    What ``row_residual`` gives has the precision and device of ``value``, whatever the problem's.
    """
    objective, gradient, found, z, labels = problem.evaluate_logits(value, *beside)
    check_finite(gradient, f"F = {objective}")
    return objective, gradient, *row_residual(problem, z.to(value), labels.to(value.device)), found


def row_residual(problem: Problem, z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """√(ωD/N) [N,K], and b − J̃Δw = −√(ωD/N)(z − target) [N,K], at the logits z of all rows."""
    scale = problem.diagonal(labels, z).sqrt()
    from_target = problem.loss.gradient(z, labels) / problem.loss.hessian(z, labels, torch.ones_like(z))
    return scale, -scale * from_target
