"""The head alone: ridge-regularised least squares, solved in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.solution import Certificate, Solution, Status

# Bytes that the normal matrices of one group of classes may take when α ≠ 1 gives each class its own.
GROUP_BYTES = 512 << 20


def solve_head(problem: Problem, tolerance: float = 1e-6) -> Solution:
    """Minimise F over the head's weight and bias.

    With x̃ = [feature; 1], class k's normal matrix is (2/K)/N (Σ x̃x̃ᵀ + (α − 1) Σ_{y=k} x̃x̃ᵀ) + λI:
    one Cholesky for all classes when α = 1, one a class otherwise. Costs 1 + ⌈K/group⌉ passes.

    Args:
        problem: in float64, over a layout that holds the head's weight and bias only.
        tolerance: what the recomputed gradient must meet to be called converged, relative to Δw = 0.
    """
    operator, loss = problem.operator, problem.loss
    weight, bias = operator.base.config.head_names
    K, size = operator.classes, operator.layout.shapes[weight][1] + 1
    N = operator.rows
    total = torch.zeros(size, size, dtype=torch.float64, device=operator.device)
    right = torch.zeros(K, size, dtype=torch.float64, device=operator.device)
    for state, labels in operator.blocks():
        x = torch.cat([state.feature, torch.ones_like(state.feature[:, :1])], 1).double()
        total += x.T @ x
        right -= loss.gradient(state.logits, labels).double().T @ x
    if not (torch.isfinite(total).all() and torch.isfinite(right).all()):
        raise SolveError(
            "the head's features and logits must be finite", got=f"{N} rows with NaN or infinity among them"
        )
    total *= 2 / (K * N)
    right /= N
    ridge = problem.ridge * torch.eye(size, dtype=torch.float64, device=operator.device)
    if loss.alpha == 1:
        solution = torch.cholesky_solve(right.T, torch.linalg.cholesky(total + ridge)).T
    else:
        solution = torch.cat([_solve_group(problem, group, total + ridge, right) for group in _groups(K, size)])
    value = operator.layout.flatten({weight: solution[:, :-1], bias: solution[:, -1]})
    objective, gradient = problem.evaluate(value)
    scale = problem.evaluate(torch.zeros_like(value))[1].norm().item()
    certificate = Certificate(gradient.norm().item(), scale, problem.ridge, objective, N)
    status = Status.converged if certificate.gradient <= tolerance * scale else Status.stalled
    return Solution(value, status, certificate, {"solver": "closed form", "passes": operator.passes})


def _groups(K: int, size: int) -> list[range]:
    step = max(1, GROUP_BYTES // (8 * size * size))
    return [range(k, min(K, k + step)) for k in range(0, K, step)]


def _solve_group(problem: Problem, classes: range, common: Tensor, right: Tensor) -> Tensor:
    """Rows [len(classes), d+1] of the solution when each class has its own normal matrix."""
    operator = problem.operator
    own = common.repeat(len(classes), 1, 1)
    weight = (problem.loss.alpha - 1) * 2 / (operator.classes * operator.rows)
    for state, labels in operator.blocks():
        x = torch.cat([state.feature, torch.ones_like(state.feature[:, :1])], 1).double()
        for k in torch.unique(labels).tolist():
            if k in classes:
                mine = x[labels == k]
                own[k - classes.start] += weight * (mine.T @ mine)
    return torch.cholesky_solve(right[classes.start : classes.stop, :, None], torch.linalg.cholesky(own))[:, :, 0]
