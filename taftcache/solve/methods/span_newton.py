"""Newton's method over the span of the gradients so far, for losses that are not quadratic: while some numbers of every
row fit in memory.

Δw = Jᵀα, with α [N,K], has the logits z = f_w + JJᵀα, and ∇F = −Jᵀρ with ρ = −(∂ℓ/N + λα). The gradient at a point is
thus ρ as a direction in α, and JJᵀρ, one pass, is all that it ever needs: F, its slope and its curvature along any sum
of known directions follow from the logits alone. Each step takes in the gradient and minimises F over all that are
kept (Narkiss and Zibulevsky 2005). Newton's method with conjugate gradients inside forgets its directions at every
point instead, and pays for them again.

How far taking out a row moves the optimum is found over the same directions. Without row n the mean is over N − 1, and
to first order the optimum moves by Jᵀx with

    (WJJᵀ + λI) x = (N t_n − Σ_m t_m)/(N − 1)        t = ω∂ℓ/N

where W = ωD/(N − 1) is without row n. Over the span that takes no pass, and gives too little rather than too much; if
row n stays in W, it is known for all rows at once. That orders the rows, and a few are picked from those that move
little to those that move much. What the span misses of their x is added to it, and the least of their moves stands for
a typical row's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.class_kernel import LARGEST_LOGITS, kernel_product
from taftcache.solve.methods.basis import TINY
from taftcache.solve.methods.decisive import SHARE, further
from taftcache.solve.methods.newton import ARMIJO
from taftcache.solve.methods.refinement import REDUCTION, refine
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import check_finite, reached
from taftcache.solve.settings import Goal, OnPass
from taftcache.solve.solution import Solution, Status
from taftcache.solve_stats import SolveStats
from taftcache.tangent.rows import RowSubset

DIRECTIONS = 64  # that F is minimised over; beyond that the oldest is given up
RENEWED = 0.02  # relative fall of F after which the curvature of all directions is taken anew
SEEN = 1e-5  # relative gradient at which the estimate of a row's move is within a fifth of its limit
OUT = 8  # rows that are taken out, for a pass each
MADE_UP = 0.1  # what Newton's step may leave of what a removal takes from the rows that stay, as a fraction
ROUNDED = 1e-6  # ``least`` for what the span misses of a removed row, which rows like it all but cancel
NOTHING = 1e-6  # of ‖Δw‖/N: what is left if the two terms of a removal cancel


def span_fits(problem: Problem, *, of_head: bool = False) -> bool:
    """Whether a problem is one for this solver: not quadratic, and the directions that are kept fit in memory. The head
    alone, whose passes cost next to nothing, qualifies only if ``of_head``."""
    operator = problem.operator
    beyond_head = of_head or not operator.head_alone
    return not problem.loss.quadratic and beyond_head and operator.rows * operator.classes <= LARGEST_LOGITS


class SpanPoint(NamedTuple):
    """Δw = Jᵀα [P], α = ``dual`` [N,K], with z − f_w = ``change`` [N,K], F and ∇F [P], in float64."""

    value: Tensor
    dual: Tensor
    change: Tensor
    objective: float
    gradient: Tensor


class SpanNewton:
    """Solves one problem under any λ, first from Δw = 0; each solve also uses all directions of those before it.

    Args:
        pair: the problem.
        on_pass: called after each pass.

    Raises:
        SolveError: a gradient that is not finite.
    """

    def __init__(self, pair: ProblemPair, on_pass: OnPass | None = None) -> None:
        self._pair, self._on_pass = pair, on_pass
        exact, operator = pair.exact, pair.exact.operator
        zero = exact.zero
        objective, gradient, _, self._base, self._labels = exact.evaluate_logits(zero)
        check_finite(gradient, f"F = {objective}")
        ones = torch.ones_like(self._base[:, :1])
        self._weight = ones if exact.weights is None else exact.weights.at(self._labels, 0, ones)
        self._weight = self._weight / operator.rows
        self._at_zero, self._norm_at_zero = gradient, gradient.norm().item()
        self.passes, self.rounds, self._told = 1, 0, 0
        nothing = torch.zeros_like(self._base)
        self.point = SpanPoint(zero, nothing, nothing, objective, gradient)
        self._dual, self._change, self._objective = nothing, nothing, objective
        self._span = _Span(DIRECTIONS, self._base.to(pair.inner.operator.dtype))

    def solve(self, goal: Goal) -> Solution:
        """Solve to ‖∇F‖ ≤ tolerance·‖∇F(0)‖ in float64, or for as long as passes and rounding allow; if ``goal`` says
        so, until the certificate is decisive, instead of the tolerance or beyond it."""
        last = self._told + goal.max_passes
        wanted = goal.tolerance * self._norm_at_zero
        status = self._until(lambda: SEEN * self._norm_at_zero if goal.decisive else wanted, last)
        if status is not Status.converged or not goal.decides:
            return self._solution(status)
        if not goal.decisive:
            last = self._told + further(self.passes - self._told, goal.max_passes)
        try:
            moves = self._row_moves(last)
        except KeyboardInterrupt:
            return self._solution(Status.interrupted)
        if moves:
            wanted = SHARE * moves * self._pair.exact.ridge
        ended = self._until(lambda: wanted, last)
        if goal.decisive or ended is Status.interrupted:
            status = ended
        return self._solution(status, moves or None)

    def restart(self, at: Restart, max_passes: int) -> Solution:
        """From the dual vectors of the rows that stay, until the certified distance ‖∇F‖/λ is ``at.distance``."""
        last = self._told + max_passes
        dual, stays = at.dual.to(self._base), at.stays.to(self._base.device)
        self._dual = dual[stays]
        try:
            if not stays.all():
                self._make_up(RowSubset(at.before, torch.nonzero(~stays)[:, 0].numpy(force=True)), dual[~stays], last)
            self._stand(self.arrive())
        except KeyboardInterrupt:
            return self._solution(Status.interrupted)
        ridge = self._pair.exact.ridge
        return self._solution(self._until(lambda: ridge * at.enough(self.point.value), last))

    def _solution(self, status: Status, row_moves: float | None = None) -> Solution:
        at, gradients = self.point, (self._at_zero, self.point.gradient)
        passes = self.passes - self._told
        stats = SolveStats(solver="span newton", passes=passes, rounds=self.rounds, row_moves=row_moves)
        self._told = self.passes
        return reached(self._pair.exact, at.value, at.objective, gradients, status, stats, dual=at.dual)

    def under(self, ridge: float) -> SpanNewton:
        """The same solver, to go on under another λ."""
        value, dual, change, objective, gradient = self.point
        more = ridge - self._pair.exact.ridge
        self._pair = self._pair.at(ridge)
        self.point = SpanPoint(
            value, dual, change, objective + more / 2 * (value @ value).item(), gradient + more * value
        )
        self._objective = self._value(self._dual, self._change)
        self._span.stale()
        return self

    def near(self, tolerance: float, most: int) -> Tensor:
        """Δw [P] after at most ``most`` more steps, or once the products have ‖∇F‖ ≤ tolerance·‖∇F(0)‖: near the
        minimiser, but not a proven solution."""
        for _ in range(most):
            if not self._step(tolerance * self._norm_at_zero):
                break
        self.passes += 1
        return self._pair.inner.adjoint(self._dual.to(self._span.dtype)).to(self._dual)

    def _until(self, wanted: Callable[[], float], last: int) -> Status:
        """Rounds to ‖∇F‖ ≤ ``wanted()``, for passes up to the ``last``; with products in float64 once those in float32
        lead no further."""

        def propose(wanted: float, left: float) -> None:
            self.rounds += 1
            self._stand(self.point)
            least = max(0.5 * wanted, REDUCTION * left)
            while self.passes + 3 <= last and self._step(least):
                pass

        def rounds() -> Status:
            # At least one product, and two passes in float64.
            return refine(self, lambda at: at.gradient.norm().item(), wanted, propose, max_passes=last, least=3)

        status = rounds()
        if status is Status.stalled and self._pair.inner.operator.dtype != self._pair.exact.operator.dtype:
            self._pair = ProblemPair(self._pair.exact, self._pair.exact)
            self._span = _Span(DIRECTIONS, self._base)
            status = rounds()
        return status

    def _row_moves(self, last: int) -> float:
        """About how far Δw* moves, too little rather than too much, if a row leaves that moves it farther than a tenth
        of the rows do; 0 if that is nothing. Takes some passes, up to the ``last``."""
        self._stand(self.point)
        exact, dtype, N = self._pair.exact, self._span.dtype, len(self._base)
        counted = torch.nonzero(self._weight[:, 0] > 0)[:, 0]
        if len(counted) < 2:
            return 0.0
        weight = self._weight * (N / (N - 1))
        terms = weight * exact.loss.gradient(self._base + self._change, self._labels)
        curved = self._curved(weight.to(dtype))
        self._span.renew(curved, 0.0)
        order = counted[self._span.lengths(self._span.solve(self._span.slopes(terms)))[counted].argsort(stable=True)]
        many = min(OUT, len(order))
        out = order[(2 * torch.arange(many, device=order.device) + 1) * len(order) // (2 * many)]
        missed = []
        for n, along in zip(out, self._without(out, weight, terms), strict=True):
            b, y = (part.view_as(terms) for part in self._span.sum(along))
            without = self._curved(weight.to(dtype).index_fill(0, n, 0))
            left = terms / -N
            left[n] += terms[n]
            missed.append(left.to(dtype) - without(b.view(-1), y.view(-1)).view_as(b))
        for residual in missed[: max(0, last - self.passes)]:
            self._span.add(residual.view(-1), self._through(residual)[0].view(-1), curved, 0.0, ROUNDED)
        moves = self._span.lengths(self._without(out, weight, terms)).min().item()
        self._span.stale()
        return moves if moves > NOTHING * self.point.value.norm().item() / N else 0.0

    def _without(self, rows: Tensor, weight: Tensor, terms: Tensor) -> Tensor:
        """x along the span [n,k] if one of the ``rows`` [n] leaves alone, for each of them; ``weight`` is ω/(N − 1)
        [N,1], ``terms`` are N t/(N − 1) [N,K]."""
        loss, z = self._pair.exact.loss, self._base + self._change
        slopes, found = self._span.slopes(terms), []
        for n in rows.tolist():
            at = slice(n, n + 1)
            y = self._span.at(n, z.shape[1])
            each = z[at].repeat(len(y), 1), self._labels[at].repeat(len(y))
            found.append(self._span.solve(slopes[n], y @ (weight[n] * loss.hessian(*each, y)).T))
        return torch.stack(found)

    def _make_up(self, gone: RowSubset, carried: Tensor, last: int) -> None:
        """Give the rows that stay what the ``gone`` ones ``carried`` in their α, by Newton's step at the logits that
        there were with them: without them, the logits are far off if λ is small."""
        exact, alone = self._pair.exact, self._dual
        of_gone = replace(exact, operator=exact.operator.over([gone])).adjoint(carried)
        lost, kept = (exact.forward(value) for value in (of_gone, exact.adjoint(alone)))
        self.passes += 2
        self._change = kept + lost
        weight = self._weight.to(self._span.dtype)
        short = self._curved(weight)(torch.zeros_like(lost).view(-1), lost.to(weight).view(-1)).view_as(lost)
        first = None
        for dual, change, left in self._linear(self._residual().to(weight) + short, weight, last - 3):
            self._dual, self._change = alone + dual, kept + change
            first = first or left
            if left <= MADE_UP * first:
                break

    def _linear(self, target: Tensor, weight: Tensor, last: int) -> Iterator[tuple[Tensor, Tensor, float]]:
        """x and JJᵀx [N,K] with (WJJᵀ + λI) x = ``target``, nearer with each pass, and ‖Jᵀr‖ for the residual r before
        it. W is taken at the logits at the start, with ω/N = ``weight``."""
        curved = self._curved(weight)
        self._span.stale()
        dual, change = torch.zeros_like(target), torch.zeros_like(target)
        try:
            while self.passes < last:
                residual = target - curved(dual.view(-1), change.view(-1)).view_as(target)
                product, left = self._through(residual)
                new = self._span.add(residual.view(-1), product.view(-1), curved, 0.0)
                dual, change = (part.view_as(target) for part in self._span.newton(target.view(-1))[:2])
                yield dual, change, left
                if not new:
                    break
        finally:
            self._span.stale()

    def _stand(self, at: SpanPoint) -> None:
        self.point, self._dual, self._change, self._objective = at, at.dual, at.change, at.objective

    def arrive(self) -> SpanPoint:
        """Where the steps so far lead, from the rows."""
        exact = self._pair.exact
        value = exact.adjoint(self._dual)
        objective, gradient, _, z, _ = exact.evaluate_logits(value)
        check_finite(gradient, f"F = {objective}")
        self.passes += 2
        return SpanPoint(value, self._dual, z - self._base, objective, gradient)

    def _step(self, least: float) -> bool:
        """Add the gradient to the directions and go to F's minimum over all of them; False if the gradient's norm was
        at most ``least``, or F falls no further."""
        dtype = self._span.dtype
        residual = self._residual().to(dtype)
        product, norm = self._through(residual)
        if self._on_pass is not None:
            self._on_pass(self.passes, norm / self._norm_at_zero)
        if norm <= least:
            return False
        before, curved = self._objective, self._curved(self._weight.to(dtype))
        # Under another λ, the gradient at the point where a solve has ended is λα again, which lies in the span.
        new = self._span.add(residual.view(-1), product.view(-1), curved, self._objective)
        fell = self._descend(residual)
        if fell:  # once more, because the gradient at the new point is not what the step predicted
            self._descend(self._residual().to(dtype))
        return fell and (new or self._objective < before - 1e-12 * abs(before))

    def _through(self, residual: Tensor) -> tuple[Tensor, float]:
        """JJᵀρ [N,K] and ‖Jᵀρ‖, in one pass."""
        product = kernel_product(self._pair.inner, torch.ones_like(residual[:1, :1]), residual)
        self.passes += 1
        return product, sqrt(max(0.0, (residual.double() * product.double()).sum().item()))

    def _curved(self, weight: Tensor) -> Curved:
        """F's curvature at the point to which the steps so far lead, with ω/N = ``weight`` [N,1]."""
        loss, ridge = self._pair.exact.loss, self._pair.exact.ridge
        z = (self._base + self._change).to(weight)

        def curved(b: Tensor, y: Tensor) -> Tensor:
            metric = weight * loss.hessian(z, self._labels, y.view_as(z))
            return metric.view(-1).add_(b, alpha=ridge)

        return curved

    def _descend(self, residual: Tensor) -> bool:
        """A Newton step over all directions from ρ, halved until F falls as promised; whether it did."""
        dual, change, slope = self._span.newton(residual.view(-1))
        dual, change = (part.view_as(self._dual).to(self._dual) for part in (dual, change))
        blur = 1e-15 * abs(self._objective)  # close to the optimum F no longer resolves the fall
        size = 1.0
        # Where F is nearly flat, Newton's step is thousands of times too long: it promises a fall by more than F.
        while size > 1e-3 or size * slope > 1e-3 * abs(self._objective):
            there = self._dual + size * dual, self._change + size * change
            value = self._value(*there)
            if value <= self._objective - ARMIJO * size * slope + blur:
                self._dual, self._change, self._objective = *there, value
                return True
            size /= 2
        return False

    def _residual(self) -> Tensor:
        """ρ [N,K]."""
        exact = self._pair.exact
        slope = self._weight * exact.loss.gradient(self._base + self._change, self._labels)
        return -(slope + exact.ridge * self._dual)

    def _value(self, dual: Tensor, change: Tensor) -> float:
        """F, from α and what it does to the logits."""
        exact = self._pair.exact
        losses = self._weight[:, 0] * exact.loss.value(self._base + change, self._labels)
        return float(losses.sum() + 0.5 * exact.ridge * (dual * change).sum())


Curved = Callable[[Tensor, Tensor], Tensor]
"""ωD y/N + λb for a direction b [N·K] with y = JJᵀb; its product with another y is F's curvature along both."""


class _Span:
    """Directions b and their y = JJᵀb, [k,N·K], with F's curvature along each pair: close to the identity, because each
    is made orthogonal to the others at the point where it is added."""

    def __init__(self, size: int, like: Tensor) -> None:
        self.dtype = like.dtype
        self._b = torch.zeros(size, like.numel(), dtype=like.dtype, device=like.device)
        self._y = torch.zeros_like(self._b)
        self._curvature = torch.eye(size, dtype=torch.float64, device=like.device)
        self._count, self._known_at = 0, inf

    def stale(self) -> None:
        """F has changed: take its curvature anew before the next use."""
        self._known_at = inf

    def add(self, b: Tensor, y: Tensor, curved: Curved, objective: float, least: float = TINY) -> bool:
        """Keep a direction, and its curvature at the point where F is ``objective``; False if nothing but rounding is
        left of it, that is at most ``least`` of its square."""
        if not abs(self._known_at - objective) <= RENEWED * abs(objective):
            self.renew(curved, objective)
        at = self._count % len(self._b)
        self._put(at, torch.zeros_like(b), torch.zeros_like(y), torch.zeros_like(self._curvature[at]))
        before = torch.dot(y, curved(b, y)).item()
        for _ in range(2):  # twice, because the first projection leaves its own rounding
            along = self.solve((self._y @ curved(b, y)).double()).to(b)
            b, y = b - along @ self._b, y - along @ self._y
        metric = curved(b, y)
        after = torch.dot(y, metric).item()
        if not after > least * before:
            return False
        length = sqrt(after)
        self._put(at, b / length, y / length, (self._y @ metric).double() / length)
        self._count += 1
        return True

    def newton(self, residual: Tensor) -> tuple[Tensor, Tensor, float]:
        """From ρ, the step over all directions, in α and in the logits [N·K], and how steeply F falls along it."""
        slope = (self._y @ residual).double()
        step = self.solve(slope)
        return *self.sum(step), (step @ slope).item()

    def sum(self, along: Tensor) -> tuple[Tensor, Tensor]:
        """Σ cᵢbᵢ and Σ cᵢyᵢ [N·K] for c = ``along`` [k]."""
        along = along.to(self._b)
        return along @ self._b, along @ self._y

    def slopes(self, terms: Tensor) -> Tensor:
        """Slopes along the directions [N,k] of each row's part of ``terms`` [N,K], less their mean over the rows."""
        own = [(y.view_as(terms).double() * terms).sum(1) for y in self._y]
        slopes = torch.stack(own, 1)
        return slopes - slopes.mean(0)

    def at(self, row: int, classes: int) -> Tensor:
        """The part of each y that belongs to a row [k,K]."""
        return self._y.view(len(self._y), -1, classes)[:, row].double()

    def lengths(self, along: Tensor) -> Tensor:
        """‖Jᵀx‖ [n] of each x = Σ cᵢbᵢ, for the rows c of ``along`` [n,k]."""
        inner = (self._b @ self._y.T).double()
        return ((along @ inner) * along).sum(1).clamp_min(0).sqrt()

    def _put(self, at: int, b: Tensor, y: Tensor, curvature: Tensor) -> None:
        """Put a direction of unit length in place ``at``, with its ``curvature`` along the others [k]."""
        self._b[at], self._y[at] = b, y
        self._curvature[at], self._curvature[:, at] = curvature, curvature
        self._curvature[at, at] = 1

    def renew(self, curved: Curved, objective: float) -> None:
        """Take the curvature anew, at the point where F is ``objective``."""
        known = min(self._count, len(self._b))
        for at in range(known):
            self._curvature[at, :known] = (self._y[:known] @ curved(self._b[at], self._y[at])).double()
        self._curvature.copy_(0.5 * (self._curvature + self._curvature.T))
        self._known_at = objective

    def solve(self, right: Tensor, less: Tensor | float = 0.0) -> Tensor:
        """``right`` [..,k] times the inverse of the curvature minus ``less`` [k,k], without what may be rounding."""
        values, vectors = torch.linalg.eigh(self._curvature - less)
        seen = values > 8 * torch.finfo(self.dtype).eps * values[-1]
        solved: Tensor = ((right @ vectors[:, seen]) / values[seen]) @ vectors[:, seen].T
        return solved
