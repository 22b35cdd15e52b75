"""Projected gradient over a ball or none, plain as in the paper or accelerated with restarts; for any convex loss."""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.proof import constrained_gap
from taftcache.solve.settings import GOAL, Goal, OnPass
from taftcache.solve.solution import Certificate, Solution, Status


def project(value: Tensor, radius: float | None) -> Tensor:
    """The nearest point with ‖Δw‖ ≤ R."""
    norm = value.norm().item()
    return value if radius is None or norm <= radius else value * (radius / norm)


def projected_gradient(
    exact: Problem,
    goal: Goal = GOAL,
    *,
    radius: float | None = None,
    accelerate: bool = True,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
) -> Solution:
    """Minimise F over ‖Δw‖ ≤ R by Δw ← Π(v − ∇F(v)/L), one pass a step.

    L grows by backtracking and shrinks slowly, so that it follows the curvature. Accelerated, v runs ahead of Δw
    (Beck and Teboulle 2009) and starts anew whenever the step points uphill (O'Donoghue and Candès 2015).

    Args:
        exact: in float64.
        radius: R; none for no ball.
        accelerate: False for the plain method.
        goal: its tolerance is on what is left of the optimality condition, relative to ‖∇F(0)‖; a pass is an
            evaluation of F and ∇F.
        start: Δw to begin from.
        on_pass: called after each step.

    Raises:
        SolveError: a gradient that is not finite.
    """
    operator = exact.operator
    zero = torch.zeros(operator.layout.size, dtype=torch.float64, device=operator.device)
    x = zero if start is None else project(start.to(zero), radius)
    objective, at_zero = exact.evaluate(zero)
    gradient, passes, scale = at_zero, 1, at_zero.norm().item()
    if not torch.isfinite(gradient).all():
        raise SolveError("the gradient is not finite", got=f"F = {objective}")
    if start is not None:
        objective, gradient = exact.evaluate(x)
        passes += 1
    status, lipschitz, momentum = Status.converged, 1.0, 1.0
    best = _State(x, objective, gradient)
    ahead, value_ahead, gradient_ahead = x, objective, gradient
    try:
        while _left(exact, best, radius)[1] > goal.tolerance * scale:
            if passes + 2 > goal.max_passes:
                status = Status.max_passes
                break
            while True:
                new = project(ahead - gradient_ahead / lipschitz, radius)
                step = new - ahead
                new_value, new_gradient = exact.evaluate(new)
                passes += 1
                model = value_ahead + (gradient_ahead @ step).item() + 0.5 * lipschitz * (step @ step).item()
                curved = ((new_gradient - gradient_ahead) @ step).item() <= lipschitz * (step @ step).item()
                if new_value <= model or curved or passes >= goal.max_passes:
                    break
                lipschitz *= 2
            uphill = (gradient_ahead @ (new - best.value)).item() > 0
            last = best.value
            if new_value <= best.objective:
                best = _State(new, new_value, new_gradient)
            if on_pass is not None:
                on_pass(passes, _left(exact, best, radius)[1] / scale)
            if not accelerate or uphill or new_value > best.objective:
                momentum, lipschitz = 1.0, lipschitz * (0.9 if not accelerate else 1.0)
                ahead, value_ahead, gradient_ahead = best.value, best.objective, best.gradient
                if uphill and accelerate:
                    continue
            else:
                following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
                ahead = best.value + (momentum - 1) / following * (best.value - last)
                momentum, lipschitz = following, 0.95 * lipschitz
                if momentum > 2 or not torch.equal(ahead, best.value):
                    value_ahead, gradient_ahead = exact.evaluate(ahead)
                    passes += 1
    except KeyboardInterrupt:
        status = Status.interrupted
    gap, left = _left(exact, best, radius)
    certificate = Certificate(
        left,
        scale,
        exact.ridge,
        best.objective,
        operator.rows,
        quadratic=exact.loss.quadratic,
        constrained=None if radius is None else gap,
    )
    name = "accelerated projected gradient" if accelerate else "projected gradient"
    stats = {"solver": name, "passes": passes, "radius": radius}
    return Solution(best.value, status, certificate, stats, (at_zero, best.gradient))


class _State:
    def __init__(self, value: Tensor, objective: float, gradient: Tensor) -> None:
        self.value, self.objective, self.gradient = value, objective, gradient


def _left(exact: Problem, at: _State, radius: float | None) -> tuple[float, float]:
    if radius is None:
        norm = at.gradient.norm().item()
        return norm**2 / (2 * exact.ridge), norm
    return constrained_gap(exact.ridge, at.gradient, at.value, radius)
