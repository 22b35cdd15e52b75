"""The ball ‖Δw‖ ≤ R for quadratic losses: the ridge that puts the minimiser on its surface."""

from __future__ import annotations

from dataclasses import replace

import torch

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.krylov import KrylovPath
from taftcache.solve.proof import constrained_gap
from taftcache.solve.settings import GOAL, Goal, OnPass
from taftcache.solve.solution import Certificate, Solution, Status


def solve_in_ball(
    problem: Problem,
    exact: Problem,
    radius: float,
    goal: Goal = GOAL,
    *,
    on_pass: OnPass | None = None,
) -> Solution:
    """Minimise a quadratic F over ‖Δw‖ ≤ R from one Lanczos run.

    Over a Krylov space F is a small quadratic, and the ridge λ + ν at which its minimiser has the norm R is the root
    of a scalar function (the secular equation), found to rounding at no further pass. The run is lengthened until the
    float64 condition ∇F + νΔw = 0 holds to the tolerance.

    Args:
        problem: products of the run.
        exact: the same problem in float64.
        radius: R.
        goal: its tolerance is on the condition's left side, relative to ‖∇F(0)‖.
        on_pass: called after each product.
    """
    operator = exact.operator
    zero = torch.zeros(operator.layout.size, dtype=torch.float64, device=operator.device)
    objective, at_zero = exact.evaluate(zero)
    gradient, scale, passes = at_zero, at_zero.norm().item(), 1
    value, status = zero, Status.converged
    gap, left = constrained_gap(exact.ridge, gradient, zero, radius)
    unregularised = replace(problem, ridge=0.0)
    path = KrylovPath(unregularised, gradient)
    target = goal.tolerance * scale
    try:
        while left > target:
            if passes + 2 > goal.max_passes:
                status = Status.max_passes
                break
            steps = min(max(8, path.passes // 2), goal.max_passes - passes - 1)
            for _ in range(steps):
                if not path.step():
                    break
                passes += 1
                shift = path.shift_for(radius, exact.ridge)
                if on_pass is not None:
                    on_pass(passes, path.residual(shift) / scale)
                if path.residual(shift) <= 0.3 * target:
                    break
            candidate = path.solution(path.shift_for(radius, exact.ridge))
            candidate *= min(1.0, radius / max(candidate.norm().item(), 1e-300))
            new_objective, new_gradient = exact.evaluate(candidate)
            passes += 1
            new_gap, new_left = constrained_gap(exact.ridge, new_gradient, candidate, radius)
            stuck = new_left > 0.5 * left and path.exhausted
            if new_objective <= objective:
                value, objective, gradient, gap, left = candidate, new_objective, new_gradient, new_gap, new_left
            if stuck or (path.exhausted and left > target):
                status = Status.stalled
                break
    except KeyboardInterrupt:
        status = Status.interrupted
    certificate = Certificate(left, scale, exact.ridge, objective, operator.rows, constrained=gap)
    stats = {"solver": "krylov path", "passes": passes, "norm": value.norm().item(), "radius": radius}
    return Solution(value, status, certificate, stats, (at_zero, gradient))
