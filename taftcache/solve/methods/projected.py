"""Projected gradient over a ball or none, plain as in the paper or accelerated with restarts; for any convex loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.proof import check_finite, constrained_gap, reached
from taftcache.solve.settings import GOAL, Goal, OnPass
from taftcache.solve.solution import Solution, Status
from taftcache.solve_stats import SolveStats


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
    solve = _Projected(exact, goal, radius, accelerate, on_pass)
    return solve.solution(solve.run(start))


class _State(NamedTuple):
    """Δw [P] with F and ∇F there."""

    value: Tensor
    objective: float
    gradient: Tensor


class _Projected:
    """The best Δw, where the next step begins from, L and the passes so far; arguments as in ``projected_gradient``."""

    def __init__(
        self, exact: Problem, goal: Goal, radius: float | None, accelerate: bool, on_pass: OnPass | None
    ) -> None:
        self._exact, self._goal, self._radius, self._accelerate = exact, goal, radius, accelerate
        self._on_pass = on_pass
        self._passes, self._lipschitz, self._momentum = 0, 1.0, 1.0
        self._best = self._ahead = self._evaluate(exact.zero)
        self._at_zero, self._norm_at_zero = self._best.gradient, self._best.gradient.norm().item()
        check_finite(self._at_zero, f"F = {self._best.objective}")

    def run(self, start: Tensor | None) -> Status:
        """Steps until what is left of the optimality condition is small enough, or the passes are spent."""
        try:
            if start is not None and self._norm_at_zero:  # else zero is the optimum
                self._best = self._ahead = self._evaluate(project(start.to(self._at_zero), self._radius))
                check_finite(self._best.gradient, f"F = {self._best.objective}")
            while self._left() > self._goal.tolerance * self._norm_at_zero:
                if self._passes + 2 > self._goal.max_passes:
                    return Status.max_passes
                self._step()
        except KeyboardInterrupt:
            return Status.interrupted
        return Status.converged

    def solution(self, status: Status) -> Solution:
        """What was reached."""
        best = self._best
        name = "accelerated projected gradient" if self._accelerate else "projected gradient"
        stats = SolveStats(solver=name, passes=self._passes, radius=self._radius)
        gradients = self._at_zero, best.gradient
        return reached(self._exact, best.value, best.objective, gradients, status, stats, left=self._left())

    def _evaluate(self, value: Tensor) -> _State:
        self._passes += 1
        return _State(value, *self._exact.evaluate(value))

    def _step(self) -> None:
        """One step from where v is, and where v goes next."""
        ahead, last, new = self._ahead, self._best, self._tried()
        uphill = (ahead.gradient @ (new.value - last.value)).item() > 0
        if new.objective <= last.objective:
            self._best = new
        if self._on_pass is not None:
            self._on_pass(self._passes, self._left() / self._norm_at_zero)
        best = self._best
        if not self._accelerate or uphill or new.objective > best.objective:
            self._momentum = 1.0
            self._lipschitz *= 0.9 if not self._accelerate else 1.0
            self._ahead = best
            return
        following = (1 + (1 + 4 * self._momentum**2) ** 0.5) / 2
        value = best.value + (self._momentum - 1) / following * (best.value - last.value)
        self._momentum, self._lipschitz = following, 0.95 * self._lipschitz
        if self._momentum > 2 or not torch.equal(value, best.value):
            self._ahead = self._evaluate(value)
        else:
            self._ahead = self._ahead._replace(value=value)

    def _tried(self) -> _State:
        """The step from v under the least of L, 2L, 4L … that bounds the curvature on the way."""
        ahead = self._ahead
        while True:
            new = self._evaluate(project(ahead.value - ahead.gradient / self._lipschitz, self._radius))
            step = new.value - ahead.value
            square = (step @ step).item()
            model = ahead.objective + (ahead.gradient @ step).item() + 0.5 * self._lipschitz * square
            curved = ((new.gradient - ahead.gradient) @ step).item() <= self._lipschitz * square
            if new.objective <= model or curved or self._passes >= self._goal.max_passes:
                return new
            self._lipschitz *= 2

    def _left(self) -> float:
        """The norm of what is left of the optimality condition."""
        best = self._best
        if self._radius is None:
            return float(best.gradient.norm().item())
        return constrained_gap(self._exact.ridge, best.gradient, best.value, self._radius)[1]
