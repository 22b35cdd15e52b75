"""Preconditioned conjugate gradients with float64 refinement, for quadratic objectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.directions import Inverse, conjugate_directions
from taftcache.solve.methods.refinement import refine
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import check_finite, reached
from taftcache.solve.settings import GOAL, Goal, OnPass
from taftcache.solve.solution import Solution, Status
from taftcache.solve_stats import SolveStats

# A float32 product carries about six digits: an inner run that was asked for more would chase rounding.
INNER_REDUCTION = 1e-5
BY_PARAMETERS = "pcg"


class Lazy:
    """A preconditioner that is made when it is first needed: after the rows have proved finite, or never."""

    def __init__(self, make: Callable[[], Inverse]) -> None:
        self._make = make
        self._made: Inverse | None = None

    @property
    def made(self) -> Inverse:
        """The preconditioner itself."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v."""
        return self.made.apply(vector)


def pcg(
    pair: ProblemPair,
    preconditioner: Inverse,
    goal: Goal = GOAL,
    *,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
) -> Solution:
    """Solve ∇F(Δw) = 0 for a quadratic F to ‖∇F(Δw)‖ ≤ tolerance·‖∇F(0)‖: H p = −∇F, round by round.

    Conjugate gradients on ``pair.inner`` (vectors included) solve for a correction; the residual that starts each
    round, and the certificate that ends the solve, are the gradient of ``pair.exact``, recomputed from the rows. The
    recurrence's own residual never decides the status.

    Args:
        pair: the problem.
        preconditioner: approximate inverse Hessian.
        goal: tolerance, and limit on passes over the rows, float64 ones included.
        start: Δw to begin from; zero by default.
        on_pass: called after each pass.

    Raises:
        SolveError: a gradient that is not finite.
    """
    solve = _Conjugate(pair, preconditioner, goal, on_pass)
    return solve.solution(solve.run(start))


class _Point(NamedTuple):
    """Δw [P] with F and ∇F there in float64."""

    value: Tensor
    objective: float
    gradient: Tensor


class _Conjugate:
    """Where the solve stands, and the passes so far; the arguments are those of ``pcg``."""

    def __init__(self, pair: ProblemPair, preconditioner: Inverse, goal: Goal, on_pass: OnPass | None) -> None:
        (self._inner, self._exact), self._preconditioner = pair, preconditioner
        self._goal, self._on_pass = goal, on_pass
        self.passes = self._rounds = 0
        self.point = self._at(self._exact.zero)
        self._at_zero, self._norm_at_zero = self.point.gradient, self.point.gradient.norm().item()
        self._round: _Round | None = None

    def run(self, start: Tensor | None) -> Status:
        """Rounds until the float64 gradient is small enough, or for as long as passes and rounding allow."""
        if start is not None and self._norm_at_zero:  # else zero is the optimum
            try:
                self.point = self._at(start.to(self.point.value))
            except KeyboardInterrupt:
                return Status.interrupted
        goal, most = self._goal.tolerance * self._norm_at_zero, self._goal.max_passes
        return refine(self, lambda at: at.gradient.norm().item(), lambda: goal, self._propose, max_passes=most, least=2)

    def solution(self, status: Status) -> Solution:
        """What was reached."""
        at = self.point
        stats = SolveStats(solver=BY_PARAMETERS, passes=self.passes, rounds=self._rounds)
        return reached(self._exact, at.value, at.objective, (self._at_zero, at.gradient), status, stats)

    def arrive(self) -> _Point:
        """Where the last run of conjugate gradients leads."""
        assert self._round is not None
        return self._at(self.point.value + self._round.p.to(self.point.value))

    def _at(self, value: Tensor) -> _Point:
        self.passes += 1
        objective, gradient = self._exact.evaluate(value)
        check_finite(gradient, f"F = {objective}")
        return _Point(value, objective, gradient.to(value))

    def _propose(self, goal: float, before: float) -> None:
        """One run of conjugate gradients."""
        self._rounds += 1
        self._round = _Round(self._inner, self._preconditioner, self.point.gradient)
        reduction = max(0.5 * goal / before, INNER_REDUCTION)
        for norm in self._round.iterate(reduction, self._goal.max_passes - self.passes - 1):
            self.passes += 1
            if self._on_pass is not None:
                self._on_pass(self.passes, norm / self._norm_at_zero)


class _Round:
    """One run of preconditioned CG on H p = −∇F in the products' precision; ``p`` is always its latest iterate."""

    def __init__(self, problem: Problem, preconditioner: Inverse, gradient: Tensor) -> None:
        self._problem, self._preconditioner = problem, preconditioner
        self._r = -gradient.to(problem.operator.dtype)
        self.p = torch.zeros_like(self._r)

    def iterate(self, reduction: float, limit: int) -> Iterator[float]:
        """Run until the residual's norm has fallen to ``reduction`` times its first, or for ``limit`` passes; yields it
        after each."""
        r, product = self._r, torch.empty_like(self._r)
        goal = reduction * r.norm().item()
        directions = conjugate_directions(lambda d: self._problem.hessian(d, product), self._preconditioner, r)
        for at in islice(directions, limit):
            if not at.curvature > 0:  # rounding has left nothing of the direction: the products lead no further
                return
            self.p.add_(at.vector, alpha=at.step)
            r.sub_(at.product, alpha=at.step)
            norm = r.norm().item()
            yield norm
            if norm <= goal:
                return
