"""The tangent student: a linearised tail whose features should follow from the teachers', solved to a certificate.

    min over Δw, B of   F(Δw) + β/v [ 1/(2N) ‖Φ(Δw) − ΨB‖² + ν/2 ‖B‖² + τ Σ_a ‖B_a‖ ]

Φ(Δw) = Φ₀ + J_φΔw are the head's inputs less their mean at the base point, and v is their mean square there. This form
of adaptive feature transfer is convex in Δw and B together: minimised over B, it draws Φ to the span of few teacher
features, and a feature that does not help has B_a = 0 exactly. F is λ-strongly convex in Δw and the rest βν/v-strongly
in B, so there is one minimising pair, and a subgradient (g, G) certifies

    ‖Δw − Δw*‖ ≤ γ/λ        F − F* ≤ γ²/(2λ)        γ² = ‖g‖² + λ v/(βν) ‖G‖²

Solved by turns: B by ``group_lasso``, Δw by conjugate gradients with the preconditioner of the penalised objective.
Minimising over Δw for the B of an extrapolated point is a gradient step in the Hessian's metric, so Nesterov's
extrapolation with restarts applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from torch import Tensor

from taftcache.errors import RecipeError, SolveError
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.recipe_sections import PriorSpec
from taftcache.solve.methods.conjugate import Lazy, pcg
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import EPSILON, allowance, check_finite, proven_status
from taftcache.solve.settings import ARITHMETIC, GOAL, Arithmetic, Goal, OnPass
from taftcache.solve.solution import Certificate, Interrupted, Solution, Status, unless_interrupted
from taftcache.solve_stats import SolveStats
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSource
from taftcache.teaching.feature_penalty import PenalisedPreconditioner, PenalisedProblem, feature_operator
from taftcache.teaching.lasso import group_lasso, subgradient

INNER = 0.1  # each turn is solved to this share of the gradient that is left
ROUNDS = 200


@dataclass(frozen=True)
class _Point:
    """Δw, the best B for it, and what is left of the subgradient."""

    delta: Tensor
    B: np.ndarray
    objective: float
    gradient: Tensor
    norm: float


@dataclass(frozen=True, kw_only=True)
class Teachers:
    """What a tangent student follows.

    psi: teachers' features [N,p] of the rows in order, centred.
    prior: β, τ and ν.
    slices: teacher → its features, for the figures of a solution.
    """

    psi: Tensor
    prior: PriorSpec
    slices: Mapping[str, slice] = field(default_factory=dict)


class TeacherUse(msgspec.Struct, frozen=True):
    """How much of one teacher a tangent student uses: its features, those with B_a ≠ 0, their share of Σ ‖B_a‖."""

    features: int
    in_use: int
    energy: float


class TaughtStats(SolveStats, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of a tangent student's solve, with those of each teacher by its name."""

    teachers: dict[str, TeacherUse]


def minimise_taught(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    teachers: Teachers,
    *,
    goal: Goal = GOAL,
    arithmetic: Arithmetic = ARITHMETIC,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
    interrupted: Interrupted = "raise",
) -> Solution:
    """Δw of the tangent student, with its certificate; ``stats`` are ``TaughtStats``.

    Everything runs on the CPU. The result depends on nothing but the arguments.

    Args:
        base, sources, objective, goal, arithmetic, start, on_pass, interrupted: as in ``minimise``; the loss must be
            quadratic, without a ball.
        teachers: their features and the prior.

    Raises:
        SolveError: no rows, another number of teachers' rows, or a gradient that is not finite.
        RecipeError: the head alone is trained, or the loss is not quadratic.
    """
    problem = _problem(base, sources, objective, teachers.psi)
    student = _TangentStudent(problem, objective, teachers, arithmetic)
    return unless_interrupted(student.solve(goal, teachers.slices, start, on_pass), interrupted)


def certificate_at(
    delta: Tensor, base: Base, sources: Sequence[RowSource], objective: Objective, teachers: Teachers
) -> Certificate:
    """What float64 proves about any Δw [P] and the B that is best for it; the rows are read four times."""
    problem = _problem(base, sources, objective, teachers.psi)
    student = _TangentStudent(problem, objective, teachers, Arithmetic(precision="float64", memory=0))
    return student.certificate(student.at(delta.double()), student.at(torch.zeros_like(delta.double())).norm)


def _problem(base: Base, sources: Sequence[RowSource], objective: Objective, psi: Tensor) -> Problem:
    """F in float64; first checks that the rows, their teachers' features and the loss fit together."""
    rows = sum(source.rows for source in sources)
    if rows == 0 or len(psi) != rows:
        raise SolveError(f"{rows} rows have teachers' features of {len(psi)} rows, but must have as many, and some")
    if not torch.isfinite(psi).all():
        raise SolveError("the teachers' features are not finite", got="NaN or infinity among them")
    if not objective.loss.quadratic:
        raise RecipeError(
            f"a tangent student with a prior needs a square loss, but the loss is {type(objective.loss).__name__}",
            do='set objective.loss = "rsl" or "mse"',
        )
    operator = TangentOperator(base, sources, trained=base.trained(objective.train), dtype=torch.float64)
    return Problem.of(objective, operator)


class _TangentStudent:
    """The problem's operators and moments.

    Args:
        exact: F in float64, of ``objective``. arithmetic: of the products within a turn.
    """

    def __init__(self, exact: Problem, objective: Objective, teachers: Teachers, arithmetic: Arithmetic) -> None:
        psi, prior = teachers.psi, teachers.prior
        base, sources, layout = exact.operator.base, exact.operator.sources, exact.operator.layout
        N = exact.operator.rows
        zero = torch.zeros(base.config.width, dtype=torch.float64)
        uncentred = feature_operator(base, sources, layout, zero, torch.float64)
        mean = sum((s.logits.sum(0) for s, _ in uncentred.blocks()), zero) / N
        self._feature_map = feature_operator(base, sources, layout, mean, torch.float64)
        dtype, memory = arithmetic.dtype, arithmetic.memory
        operator = TangentOperator(base, sources, trained=layout, dtype=dtype, memory=memory, repeated=True)
        inner = Problem.of(objective, operator)
        self._inner_features = feature_operator(base, sources, layout, mean, dtype)
        self._preconditioner = Lazy(lambda: PenalisedPreconditioner(inner, self._weight))
        self._exact, self._inner, self._psi, self._ridge, self._rows = exact, inner, psi.double(), exact.ridge, N
        start = self._features(torch.zeros(layout.size, dtype=torch.float64))
        v = start.square().sum().item() / N
        if not v > 0:
            raise SolveError("the student's features do not differ between rows at the base point")
        self._C = (self._psi.T @ self._psi / N).numpy()
        correlation = (self._psi.T @ start / N).numpy()
        self._weight, self._shrinkage = prior.beta / v, prior.shrinkage
        # (g, G) is a subgradient: only τΣ‖B_a‖ has kinks, and Δw has no part in it. G is β/v times what ``subgradient``
        # returns, and counts √(λ/(weight·ν)) times as much as g; this is both factors.
        self._exchange = (exact.ridge / (self._weight * self._shrinkage)) ** 0.5 * self._weight
        self._sparsity = prior.sparsity * float(np.linalg.norm(correlation, axis=1).max(initial=0.0))
        self._size = layout.size

    def solve(self, asked: Goal, slices: Mapping[str, slice], start: Tensor | None, on_pass: OnPass | None) -> Solution:
        """Turns until the certificate meets the tolerance."""
        tolerance, max_passes = asked.tolerance, asked.max_passes
        here = self.at(torch.zeros(self._size, dtype=torch.float64))
        scale = here.norm
        if start is not None:
            here = self._at(start.to(here.delta), here.B, 0.0)
        goal, status = tolerance * scale, Status.converged
        extrapolated, momentum, rounds = here, 1.0, 0
        best = here
        try:
            while best.norm > goal:
                if self._passes() >= max_passes:
                    status = Status.max_passes
                    break
                if rounds == ROUNDS:
                    status = Status.turns_ended
                    break
                rounds += 1
                new = self._step(extrapolated, max(INNER * here.norm / scale, 0.2 * tolerance), max_passes)
                moved = new.delta - here.delta
                if (extrapolated.gradient @ moved).item() > 0:  # extrapolation points uphill: restart the momentum here
                    momentum = 1.0
                following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
                ahead = (momentum - 1) / following
                momentum, here = following, new
                if new.norm < best.norm:
                    best = self.at(new.delta) if new.norm <= goal else new
                if on_pass is not None:
                    on_pass(self._passes(), new.norm / scale)
                extrapolated = self._at(new.delta + ahead * moved, new.B, 0.1 * new.norm) if ahead > 0 else new
        except KeyboardInterrupt:
            status = Status.interrupted
        if status is not Status.converged:
            best = self.at(best.delta)  # a turn's B is rough, and an audit finds the best one
        certificate = self.certificate(best, scale)
        status = proven_status(status, certificate, tolerance)
        sizes = np.linalg.norm(best.B, axis=1)
        stats = TaughtStats(
            solver="by turns: pcg, group lasso",
            passes=self._passes(),
            rounds=rounds,
            teachers={
                name: TeacherUse(
                    features=where.stop - where.start,
                    in_use=int((sizes[where] > 0).sum()),
                    energy=float(sizes[where].sum() / max(sizes.sum(), 1e-300)),
                )
                for name, where in slices.items()
            },
        )
        return Solution(best.delta, status, certificate, stats)

    def _step(self, at: _Point, tolerance: float, max_passes: int) -> _Point:
        """The minimiser over Δw for the B of ``at``, with its own B."""
        target = self._psi @ torch.from_numpy(at.B)
        left = max(4, max_passes - self._passes())
        pair = ProblemPair(self._penalised(target, exact=False), self._penalised(target))
        found = pcg(pair, self._preconditioner, Goal(tolerance=tolerance, max_passes=left), start=at.delta)
        return self._at(unless_interrupted(found).value, at.B, INNER * at.norm)

    def _at(self, delta: Tensor, start: np.ndarray | None, gradient: float) -> _Point:
        """Δw with the B that is best for it, and the certificate's γ there, in float64."""
        D = (self._psi.T @ self._features(delta) / self._rows).numpy()
        # G is made small compared with g, because B is cheap.
        floor = 1e-12 * float(np.linalg.norm(D))
        aim = max(0.01 * gradient / self._exchange, floor)
        B = group_lasso(self._C, D, self._shrinkage, self._sparsity, aim, start)
        least = self._exchange * float(np.linalg.norm(subgradient(self._C, D, B, self._shrinkage, self._sparsity)))
        value, g = self._penalised(self._psi @ torch.from_numpy(B)).evaluate(delta)
        check_finite(g, f"F = {value}")
        extra = 0.5 * self._shrinkage * float((B * B).sum()) + self._sparsity * float(np.linalg.norm(B, axis=1).sum())
        return _Point(delta, B, value + self._weight * extra, g, (g.norm().item() ** 2 + least**2) ** 0.5)

    def certificate(self, point: _Point, scale: float) -> Certificate:
        """The certificate of a point, with an allowance for rounding, in six passes; ``scale``: the norm at the base
        point.

        For fixed B the objective is a quadratic, so g gets the usual allowance; G gets 32 units of its terms.
        """
        problem = self._penalised(self._psi @ torch.from_numpy(point.B))
        at_zero, product = problem.evaluate(torch.zeros_like(point.delta))[1], problem.hessian(point.delta)
        own = allowance(point.gradient, at_zero, product, problem.signed_gradient(point.delta, seed=2))
        size = np.linalg.norm
        along = float(self._psi.norm() * self._features(point.delta).norm()) / self._rows
        least = along + (size(self._C) + self._shrinkage) * size(point.B) + self._sparsity * len(point.B) ** 0.5
        rounding = (own**2 + (self._exchange * 32 * EPSILON * float(least)) ** 2) ** 0.5
        return Certificate(
            point.norm, scale, self._ridge, point.objective, self._rows, quadratic=False, rounding=rounding
        )

    def at(self, delta: Tensor) -> _Point:
        """Δw with the B that is best for it, exact to rounding."""
        return self._at(delta, None, 0.0)

    def _penalised(self, target: Tensor, exact: bool = True) -> PenalisedProblem:
        plain, features = (self._exact, self._feature_map) if exact else (self._inner, self._inner_features)
        return PenalisedProblem(**vars(plain), features=features, target=target, weight=self._weight)

    def _features(self, delta: Tensor) -> Tensor:
        """φ − mean at Δw [N,d]."""
        part = delta[: self._feature_map.layout.size]
        direction = self._feature_map.direction(part)
        return torch.cat([s.logits + self._feature_map.tangent(s, direction) for s, _ in self._feature_map.blocks()])

    def _passes(self) -> int:
        operators = (self._exact.operator, self._inner.operator, self._feature_map, self._inner_features)
        return sum(operator.passes for operator in operators)
