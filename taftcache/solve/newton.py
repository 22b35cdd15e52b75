"""Newton's method with inner conjugate gradients, for losses that are not quadratic."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.inverse import approximate_inverse
from taftcache.solve.pcg import Preconditioner, Progress
from taftcache.solve.solution import Certificate, Solution, Status


def newton(
    problem: Problem,
    exact: Problem,
    *,
    tolerance: float = 1e-6,
    max_passes: int = 400,
    start: Tensor | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Solve ∇F(Δw) = 0 to ‖∇F‖ ≤ tolerance·‖∇F(0)‖ for a convex loss and λ > 0.

    Each step solves H(Δw) p = −∇F by conjugate gradients under a Kronecker preconditioner made at Δw, only as
    accurately as the gradient's size deserves (Dembo, Eisenstat and Steihaug 1982), and is halved until F falls as its
    slope promises. Objective and gradient are float64; only the inner products run in ``problem``'s precision. Holds
    N·K logits beside the vectors.
    """
    operator = exact.operator
    zero = torch.zeros(operator.layout.size, dtype=torch.float64, device=operator.device)
    objective, gradient, local = exact.at(zero)
    passes, rounds, scale = 1, 0, gradient.norm().item()
    if not torch.isfinite(gradient).all():
        raise SolveError("the gradient must be finite", got=f"F = {objective}")
    x = zero
    if start is not None:
        x = start.to(zero)
        objective, gradient, local = exact.at(x)
        passes += 1
    status = Status.converged
    try:
        while (norm := gradient.norm().item()) > tolerance * scale:
            if passes + 5 > max_passes:
                status = Status.max_passes
                break
            rounds += 1
            assert local.point is not None
            dtype = problem.operator.dtype
            bent = replace(problem, point=tuple(z.to(dtype) for z in local.point))
            inverse = approximate_inverse(bent)
            passes += 2
            accuracy = max(min(0.1, (norm / scale) ** 0.5), 0.3 * tolerance * scale / norm, 1e-5)
            direction, used = _inner(bent, inverse, gradient, accuracy, max_passes - passes - 2)
            passes += used
            slope = (gradient @ direction).item()
            step = 1.0
            while True:
                candidate = x + step * direction
                new_objective, new_gradient, new_local = exact.at(candidate)
                passes += 1
                # Close to the optimum F no longer resolves the fall, but the gradient does.
                falls = new_objective <= objective + 1e-4 * step * slope or (
                    new_gradient.norm().item() < 0.9 * norm and new_objective <= objective + 1e-12 * abs(objective)
                )
                if falls or step < 1e-4 or passes >= max_passes:
                    break
                step /= 2
            if not falls:
                status = Status.max_passes if passes >= max_passes else Status.stalled
                break
            x, objective, gradient, local = candidate, new_objective, new_gradient, new_local
            if progress is not None:
                progress(passes, gradient.norm().item() / scale)
    except KeyboardInterrupt:
        status = Status.interrupted
    certificate = Certificate(
        gradient.norm().item(), scale, exact.ridge, objective, operator.rows, quadratic=exact.loss.quadratic
    )
    return Solution(x, status, certificate, {"solver": "newton", "passes": passes, "rounds": rounds})


def _inner(
    problem: Problem, inverse: Preconditioner, gradient: Tensor, accuracy: float, limit: int
) -> tuple[Tensor, int]:
    """p with ‖H p + ∇F‖ ≤ accuracy·‖∇F‖, and the passes it took."""
    r = -gradient.to(problem.operator.dtype)
    goal = accuracy * r.norm().item()
    p = torch.zeros_like(r)
    y = inverse.apply(r)
    d, rho = y.clone(), (r @ y).item()
    for k in range(max(1, limit)):
        Hd = problem.hessian(d)
        bend = (d @ Hd).item()
        if not bend > 0:
            return (p if k else -gradient.to(r)).to(gradient), k + 1
        p.add_(d, alpha=rho / bend)
        r.sub_(Hd, alpha=rho / bend)
        if r.norm().item() <= goal:
            break
        y = inverse.apply(r)
        rho, before = (r @ y).item(), rho
        d.mul_(rho / before).add_(y)
    return p.to(gradient), k + 1
