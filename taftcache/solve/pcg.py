"""Preconditioned conjugate gradients with float64 refinement, for quadratic objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.solution import Certificate, Solution, Status

# The float32 product carries about six digits: an inner run asked for more would chase rounding.
INNER_REDUCTION = 1e-5

Progress = Callable[[int, float], None]
"""Called after every pass with the passes so far and the relative residual."""


class Preconditioner(Protocol):
    """An approximate inverse of the Hessian."""

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v for v [P], symmetric and positive definite."""
        ...


def pcg(
    problem: Problem,
    exact: Problem,
    preconditioner: Preconditioner,
    *,
    tolerance: float = 1e-6,
    max_passes: int = 400,
    start: Tensor | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Solve ∇F(Δw) = 0 to ‖∇F(Δw)‖ ≤ tolerance·‖∇F(0)‖.

    Conjugate gradients on ``problem`` (usually float32) solve for a correction; the residual that
    starts each round, and the certificate that ends the solve, are ``exact``'s float64 gradient,
    recomputed from the rows. The recurrence's own residual never decides the status.

    Args:
        problem: products for the inner iterations.
        exact: the same problem in float64.
        preconditioner: approximate inverse Hessian.
        tolerance: on the float64 gradient, relative to its norm at Δw = 0.
        max_passes: limit on passes over the rows, float64 ones included.
        start: Δw to begin from; zero by default.
        progress: told after each pass.
    """
    size, device = problem.operator.layout.size, problem.operator.device
    zero = torch.zeros(size, dtype=torch.float64, device=device)
    x = zero.clone() if start is None else start.to(zero)
    passes = 0

    def evaluate(at: Tensor) -> tuple[float, Tensor]:
        nonlocal passes
        passes += 1
        objective, gradient = exact.evaluate(at)
        return objective, gradient.to(device)

    def certify(at: Tensor, objective: float, gradient: Tensor, status: Status) -> Solution:
        certificate = Certificate(gradient.norm().item(), scale, problem.ridge, objective, problem.operator.rows)
        return Solution(at, status, certificate, {"passes": passes, "rounds": rounds, "solver": "pcg"})

    rounds = 0
    objective, gradient = evaluate(zero)
    scale = gradient.norm().item()
    if start is not None:
        objective, gradient = evaluate(x)
    goal = tolerance * scale
    status = Status.converged
    try:
        while gradient.norm().item() > goal:
            if passes + 2 > max_passes:
                status = Status.max_passes
                break
            rounds += 1
            before = gradient.norm().item()
            reduction = max(0.5 * goal / before, INNER_REDUCTION)

            def told(count: int, norm: float) -> None:
                if progress is not None:
                    progress(count, norm / scale)

            correction, used = _round(problem, preconditioner, gradient, reduction, max_passes - passes - 1, told, passes)
            passes += used
            candidate = x + correction
            new_objective, new_gradient = evaluate(candidate)
            if not new_gradient.norm().item() < before:
                status = Status.stalled
                break
            x, objective, gradient = candidate, new_objective, new_gradient
            if new_gradient.norm().item() > max(goal, 0.5 * before) and passes < max_passes:
                status = Status.stalled
                break
    except KeyboardInterrupt:
        objective, gradient = evaluate(x)
        status = Status.interrupted
    return certify(x, objective, gradient, status)


def _round(
    problem: Problem,
    preconditioner: Preconditioner,
    gradient: Tensor,
    reduction: float,
    limit: int,
    told: Callable[[int, float], None],
    before: int,
) -> tuple[Tensor, int]:
    """One run of PCG on H p = −∇F to the given reduction of the residual: p and the passes it took."""
    p = torch.zeros_like(gradient)
    r = -gradient
    goal = reduction * r.norm().item()
    y = preconditioner.apply(r)
    d, rho = y, r @ y
    for used in range(1, limit + 1):
        Hd = problem.hessian(d)
        step = rho / (d @ Hd)
        p = p + step * d
        r = r - step * Hd
        norm = r.norm().item()
        told(before + used, norm)
        if norm <= goal:
            return p, used
        y = preconditioner.apply(r)
        rho, previous = r @ y, rho
        d = y + (rho / previous) * d
    return p, limit
