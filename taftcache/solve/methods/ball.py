"""Any problem in a ball ‖Δw‖ ≤ R: solves at a few ridges find the one that puts the minimiser on the surface.

A quadratic problem beyond the head is solved by ``span`` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.proof import binds, check_finite, constrained_gap, multiplier, reached
from taftcache.solve.settings import Goal
from taftcache.solve.solution import Solution, Status
from taftcache.solve_stats import SolveStats

COARSE = 1e-1  # tolerance of the first solves
STEP = 10.0  # by which the ridge changes at most from one solve to the next
# Fraction of the target that counts while λ + ν exceeds the problem's λ and Δw is inside the ball: there a small
# gradient only means that the search is passing through, and F can still be many times its least value.
INSIDE = 0.1
NEAR = 0.9  # fraction of R from which on Δw is put on the surface
PATIENCE = 4  # solves without progress after which rounding is taken to have stopped it

Solve = Callable[[float, Goal, Solution | None], Solution]
"""The minimiser without a ball at another λ, to a goal, from the last solution."""


@dataclass(frozen=True)
class _Held:
    """A feasible Δw with F, ∇F and what is left of the optimality condition."""

    value: Tensor
    objective: float
    gradient: Tensor
    left: float


def solve_in_ball(solve: Solve, exact: Problem, radius: float, goal: Goal) -> Solution:
    """Minimise F over ‖Δw‖ ≤ R by solving without the ball at λ + ν.

    ‖Δw(s)‖ falls as s = λ + ν grows, and 1/‖Δw(s)‖ is nearly a line in s (the secular equation; Moré and Sorensen
    1983). So secants meet 1/R after a few solves; each goes on from the last and is only as accurate as its distance
    from the surface deserves. At the first s, Δw is certainly inside, and the first change follows the chord to s = 0,
    which stays on that side. What counts is the float64 condition ∇F + νΔw = 0 for the Δw put on the surface.

    Args:
        solve: without the ball.
        exact: the problem in float64, with its own λ, which may be zero.
        radius: R.
        goal: its tolerance is on the condition's left side, relative to ‖∇F(0)‖.

    Raises:
        SolveError: a gradient that is not finite.
    """
    best = _held(exact, exact.zero, radius)
    at_zero, scale, passes, solves = best.gradient, best.gradient.norm().item(), 1, 0
    check_finite(at_zero, f"F = {best.objective}")
    least = target = goal.tolerance * scale
    ridge, accuracy = max(exact.ridge, scale / radius), COARSE  # ‖Δw(s)‖ ≤ ‖∇F(0)‖/s
    found: Solution | None = None
    seen: list[tuple[float, float]] = [(0.0, 0.0)]
    status, idle = Status.converged, 0
    try:
        while best.left > least:
            if passes + 5 > goal.max_passes:
                status = Status.max_passes
                break
            found = solve(ridge, replace(goal, tolerance=accuracy, max_passes=goal.max_passes - passes - 1), found)
            norm = max(found.value.norm().item(), 1e-300)
            outside = norm > radius or (ridge > exact.ridge and norm > NEAR * radius)
            held = _held(exact, found.value * (radius / norm) if outside else found.value, radius)
            least = target if outside or ridge == exact.ridge else INSIDE * target
            passes, solves = passes + found.stats.passes + 1, solves + 1
            idle = 0 if held.left < 0.9 * best.left else idle + 1
            best = held if held.objective <= best.objective else best
            if found.status is Status.interrupted or idle == PATIENCE:
                status = Status.interrupted if found.status is Status.interrupted else Status.stalled
                break
            seen = [seen[-1], (ridge, 1 / norm)]
            away = abs(norm / radius - 1) if ridge > exact.ridge or norm > radius else 0.0
            ridge = _next(seen, radius, exact.ridge)
            # Below what the ridge and its change add to the gradient; otherwise the last Δw would pass for the next.
            enough = min(ridge, abs(ridge - seen[-1][0])) * norm / scale if ridge > exact.ridge else accuracy
            accuracy = min(max(0.2 * least / scale, min(0.5 * accuracy, 0.1 * away)), 0.1 * enough)
    except KeyboardInterrupt:
        status = Status.interrupted
    taken = SolveStats(solver="secular equation", passes=passes, solves=solves)
    stats = at_ball(taken, best.gradient, best.value, radius)
    return reached(exact, best.value, best.objective, (at_zero, best.gradient), status, stats, left=best.left)


def at_ball(stats: SolveStats, gradient: Tensor, value: Tensor, radius: float) -> SolveStats:
    """The ``stats`` of a solution Δw [P] in a ball, with ‖Δw‖, R, and ν, which is 0 if the ball does not bind."""
    nu = multiplier(gradient, value) if binds(value, radius) else 0.0
    return msgspec.structs.replace(stats, norm=value.norm().item(), radius=radius, multiplier=nu)


def _held(exact: Problem, value: Tensor, radius: float) -> _Held:
    objective, gradient = exact.evaluate(value)
    return _Held(value, objective, gradient, constrained_gap(exact.ridge, gradient, value, radius)[1])


def _next(seen: list[tuple[float, float]], radius: float, least: float) -> float:
    """Where the line through the last two (s, 1/‖Δw(s)‖) meets 1/R, not below ``least``."""
    (before, low), (now, high) = seen
    slope = (high - low) / (now - before) if now != before else 0.0
    new = now + (1 / radius - high) / slope if slope > 0 else now * high * radius
    return max(least, min(max(new, now / STEP), now * STEP))
