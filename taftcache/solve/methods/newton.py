"""Newton's method in a trust region with inner conjugate gradients, for losses that are not quadratic.

If the rows are separable, the curvature of cross-entropy falls as the logits grow. At the start Newton's step then
promises a fall many times F itself, and most of the passes that find it would be spent on a model that is wrong there.
So conjugate gradients end where they leave a region ‖p‖_M ≤ R, with M the preconditioner, which takes a few passes
while R is small (Steihaug 1983). R follows how well the model predicted the last step's fall of F.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from math import inf, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.directions import Inverse, conjugate_directions
from taftcache.solve.head.own_basis import own_basis
from taftcache.solve.inverses.inverse import approximate_inverse
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import check_finite, reached
from taftcache.solve.settings import GOAL, Goal, OnPass
from taftcache.solve.solution import Solution, Status
from taftcache.solve_stats import SolveStats

GROWTH = 3.0  # of the region after a step whose fall was predicted well
ARMIJO = 1e-4  # fraction of the fall promised by the slope along a step that F has to reach


def newton(
    pair: ProblemPair,
    goal: Goal = GOAL,
    *,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
) -> Solution:
    """Solve ∇F(Δw) = 0 to ‖∇F‖ ≤ tolerance·‖∇F(0)‖ for a convex loss and λ > 0.

    Each step solves H(Δw) p = −∇F by conjugate gradients under a preconditioner made at Δw, only as
    accurately as the gradient's size deserves (Dembo, Eisenstat and Steihaug 1982) and as far as the trust region goes,
    and is halved until F falls as its gradient promises. Objective and gradient are float64. Only the inner products
    are those of ``pair.inner``, or of an ``OwnBasis`` for a head with fewer rows than columns. Holds N·K logits besides
    the vectors.

    Args:
        pair: the problem.
        goal: tolerance, and limit on passes.
        start: Δw to begin from; zero by default.
        on_pass: called after each step.

    Raises:
        SolveError: a gradient that is not finite.
    """
    solve = _Newton(pair, goal, on_pass)
    return solve.solution(solve.run(start))


class _Point(NamedTuple):
    """Δw [P] with F, ∇F [P] and the problem whose Hessian is the one at Δw, in float64."""

    value: Tensor
    objective: float
    gradient: Tensor
    local: Problem


class _Newton:
    """Where the solve stands, the trust region and the passes so far; the arguments are those of ``newton``."""

    def __init__(self, pair: ProblemPair, goal: Goal, on_pass: OnPass | None) -> None:
        (self._inner, self._exact), self._goal, self._on_pass = pair, goal, on_pass
        self._passes, self._rounds, self._radius = 0, 0, inf
        self._point = self._at(self._exact.zero)
        self._at_zero, self._norm_at_zero = self._point.gradient, self._point.gradient.norm().item()
        check_finite(self._at_zero, f"F = {self._point.objective}")
        self._basis = own_basis(self._exact, self._inner.operator)
        if self._basis is not None:
            self._inner = replace(self._inner, operator=self._basis.operator)

    def run(self, start: Tensor | None) -> Status:
        """Steps until the float64 gradient is small enough, or for as long as passes and rounding allow."""
        try:
            if start is not None and self._norm_at_zero:  # else zero is the optimum
                begin = self._at(start.to(self._at_zero))
                check_finite(begin.gradient, f"F = {begin.objective}")
                self._point = begin
            while self._point.gradient.norm().item() > self._goal.tolerance * self._norm_at_zero:
                if self._passes + 5 > self._goal.max_passes:
                    return Status.max_passes
                inner = self._direction()
                if not self._descend(inner):
                    return Status.max_passes if self._passes >= self._goal.max_passes else Status.stalled
                if self._on_pass is not None:
                    self._on_pass(self._passes, self._point.gradient.norm().item() / self._norm_at_zero)
        except KeyboardInterrupt:
            return Status.interrupted
        return Status.converged

    def solution(self, status: Status) -> Solution:
        """What was reached."""
        stats = SolveStats(solver="newton", passes=self._passes, rounds=self._rounds)
        value, objective, gradient, _ = self._point
        return reached(self._exact, value, objective, (self._at_zero, gradient), status, stats)

    def _at(self, value: Tensor) -> _Point:
        self._passes += 1
        return _Point(value, *self._exact.at(value))

    def _direction(self) -> _Step:
        """Newton's step at Δw, within the trust region."""
        self._rounds += 1
        _, objective, whole, local = self._point
        gradient = whole if self._basis is None else self._basis.inside(whole)
        norm, tolerance, dtype = whole.norm().item(), self._goal.tolerance, self._inner.operator.dtype
        assert local.point is not None
        curved = replace(self._inner, point=local.point.to(dtype))
        inverse = approximate_inverse(curved)
        self._passes += 2
        accuracy = max(min(0.1, (norm / self._norm_at_zero) ** 0.5), 0.3 * tolerance * self._norm_at_zero / norm, 1e-5)
        if self._rounds == 1:
            # F ≥ 0 can fall by F at most; a whole Newton step promises ½∇FᵀM⁻¹∇F.
            newest = (gradient @ inverse.apply(gradient.to(dtype)).to(gradient)).item()
            if newest > 0:  # float32 may have nothing left of a gradient that float64 still has
                self._radius = sqrt(newest) * min(1.0, 2 * objective / newest)
        limit = self._goal.max_passes - self._passes - 2
        inner = _inner(curved, inverse, gradient, accuracy, self._radius, limit)
        self._passes += inner.passes
        if self._basis is None:
            return inner
        return replace(inner, direction=self._basis.step(inner.direction, whole, self._inner.ridge))

    def _descend(self, inner: _Step) -> bool:
        """Go along the step as far as F falls, and set the region by how well that was predicted; whether F fell."""
        value, objective, gradient, _ = self._point
        norm, falling, step = gradient.norm().item(), (gradient @ inner.direction).item(), 1.0
        while True:
            new = self._at(value + step * inner.direction)
            # Close to the optimum F no longer resolves the fall, but the gradient does.
            left, unresolved = new.gradient.norm().item(), 1e-12 * abs(objective)
            promised = new.objective <= objective + ARMIJO * step * falling
            falls = (promised and (left <= norm or new.objective < objective - unresolved)) or (
                left < 0.9 * norm and new.objective <= objective + unresolved
            )
            if falls or step < 1e-4 or self._passes >= self._goal.max_passes:
                break
            step /= 2
        if not falls:
            return False
        kept = (objective - new.objective) / inner.fall if step == 1 and inner.fall > 0 else 0.0
        if kept < 0.25:
            self._radius = 0.5 * step * inner.length
        elif kept > 0.75 and inner.cut:
            self._radius = GROWTH * inner.length
        self._point = new
        return True


@dataclass(frozen=True)
class _Step:
    """p [P] in float64, its length in M, the fall of F that the quadratic model promises, and the passes it took.

    cut: whether it ends at the region's edge.
    """

    direction: Tensor
    length: float
    fall: float
    passes: int
    cut: bool


def _inner(problem: Problem, inverse: Inverse, gradient: Tensor, accuracy: float, radius: float, limit: int) -> _Step:
    """p with ‖H p + ∇F‖ ≤ accuracy·‖∇F‖, or where the way there leaves ‖p‖_M ≤ radius."""
    r = -gradient.to(problem.operator.dtype)
    goal = accuracy * r.norm().item()
    p = torch.zeros_like(r)
    # pᵀMp, pᵀMd and dᵀMd by recurrence: M itself is never applied.
    long, across, ahead = 0.0, 0.0, 0.0
    cut, taken, last = False, 0, 0.0
    for at in islice(conjugate_directions(problem.hessian, inverse, r), max(1, limit)):
        taken += 1
        across = at.ratio * (across + last * ahead)
        ahead = at.rho + at.ratio**2 * ahead
        if not ahead > 0:  # nothing but rounding is left of the direction's length: rows of lengths 10⁻¹³ to 10⁸
            break
        step = at.step if at.curvature > 0 else inf
        cut = long + 2 * step * across + step * step * ahead > radius * radius
        if cut:  # only as far as where d leaves the region
            step = (sqrt(across * across + ahead * (radius * radius - long)) - across) / ahead
        elif step == inf:  # rounding has left nothing of the direction
            break
        p.add_(at.vector, alpha=step)
        r.sub_(at.product, alpha=step)
        long += 2 * step * across + step * step * ahead
        last = step
        if cut or r.norm().item() <= goal:
            break
    direction = p.to(gradient)
    if not direction.any():
        direction = -gradient
    fall = 0.5 * (direction @ (r.to(gradient) - gradient)).item()
    return _Step(direction, sqrt(max(long, 0.0)), fall, taken, cut)
