"""Newton's method in a trust region with inner conjugate gradients, for losses that are not quadratic.

Where rows can be told apart, the curvature of cross-entropy falls as the logits grow: at the start Newton's step asks
for a fall of F many times F itself, and most of the passes that found it would be spent on a model that is wrong there.
Conjugate gradients therefore end where they leave a region ‖p‖_M ≤ R, M the preconditioner, which costs a few passes
while R is small (Steihaug 1983), and R follows how well the last step's fall was foretold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from math import inf, sqrt

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.directions import Inverse, conjugate_directions
from taftcache.solve.inverses.inverse import approximate_inverse
from taftcache.solve.settings import GOAL, Goal, OnPass
from taftcache.solve.solution import Certificate, Solution, Status

GROWTH = 3.0  # of the region after a step whose fall was foretold


def newton(
    problem: Problem,
    exact: Problem,
    goal: Goal = GOAL,
    *,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
) -> Solution:
    """Solve ∇F(Δw) = 0 to ‖∇F‖ ≤ tolerance·‖∇F(0)‖ for a convex loss and λ > 0.

    Each step solves H(Δw) p = −∇F by conjugate gradients under a preconditioner made at Δw, only as
    accurately as the gradient's size deserves (Dembo, Eisenstat and Steihaug 1982) and as far as the trust region goes,
    and is halved until F falls as its gradient promises. Objective and gradient are float64; only the inner products
    run in ``problem``'s precision. Holds N·K logits beside the vectors.

    Args:
        problem: products for the inner iterations.
        exact: the same problem in float64.
        goal: tolerance, and limit on passes.
        start: Δw to begin from; zero by default.
        on_pass: called after each step.

    Raises:
        SolveError: a gradient that is not finite.
    """
    operator, tolerance, max_passes = exact.operator, goal.tolerance, goal.max_passes
    zero = torch.zeros(operator.layout.size, dtype=torch.float64, device=operator.device)
    objective, at_zero, local = exact.at(zero)
    gradient, passes, rounds, scale = at_zero, 1, 0, at_zero.norm().item()
    if not torch.isfinite(gradient).all():
        raise SolveError("the gradient is not finite", got=f"F = {objective}")
    x = zero
    if start is not None:
        x = start.to(zero)
        objective, gradient, local = exact.at(x)
        passes += 1
    status, radius = Status.converged, inf
    try:
        while (norm := gradient.norm().item()) > tolerance * scale:
            if passes + 5 > max_passes:
                status = Status.max_passes
                break
            rounds += 1
            assert local.point is not None
            dtype = problem.operator.dtype
            curved = replace(problem, point=tuple(z.to(dtype) for z in local.point))
            inverse = approximate_inverse(curved)
            passes += 2
            accuracy = max(min(0.1, (norm / scale) ** 0.5), 0.3 * tolerance * scale / norm, 1e-5)
            if rounds == 1:
                # F ≥ 0 falls by F at most; a whole Newton step promises ½∇FᵀM⁻¹∇F.
                newest = (gradient @ inverse.apply(gradient.to(dtype)).to(gradient)).item()
                radius = sqrt(newest) * min(1.0, 2 * objective / newest)
            inner = _inner(curved, inverse, gradient, accuracy, radius, max_passes - passes - 2)
            passes += inner.passes
            direction, falling = inner.direction, (gradient @ inner.direction).item()
            step = 1.0
            while True:
                candidate = x + step * direction
                new_objective, new_gradient, new_local = exact.at(candidate)
                passes += 1
                # Close to the optimum F no longer resolves the fall, but the gradient does.
                falls = new_objective <= objective + 1e-4 * step * falling or (
                    new_gradient.norm().item() < 0.9 * norm and new_objective <= objective + 1e-12 * abs(objective)
                )
                if falls or step < 1e-4 or passes >= max_passes:
                    break
                step /= 2
            if not falls:
                status = Status.max_passes if passes >= max_passes else Status.stalled
                break
            kept = (objective - new_objective) / inner.fall if step == 1 else 0.0
            if kept < 0.25:
                radius = 0.5 * step * inner.length
            elif kept > 0.75 and inner.cut:
                radius = GROWTH * inner.length
            x, objective, gradient, local = candidate, new_objective, new_gradient, new_local
            if on_pass is not None:
                on_pass(passes, gradient.norm().item() / scale)
    except KeyboardInterrupt:
        status = Status.interrupted
    certificate = Certificate(
        gradient.norm().item(), scale, exact.ridge, objective, operator.rows, quadratic=exact.loss.quadratic
    )
    stats = {"solver": "newton", "passes": passes, "rounds": rounds}
    return Solution(x, status, certificate, stats, (at_zero, gradient))


@dataclass(frozen=True)
class _Step:
    """p [P] in float64, its length in M, the fall of F that the quadratic model promises, and what it took.

    cut: whether the region's edge ended it.
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
        step = at.step if at.curvature > 0 else inf
        cut = long + 2 * step * across + step * step * ahead > radius * radius
        if cut:  # to where the way along d leaves the region
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
