"""What a head's closed forms read of a row, and Δw as a matrix W."""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem


def extended(feature: Tensor) -> Tensor:
    """x̃ = [feature; 1] [b,d+1], in float64."""
    return torch.cat([feature, torch.ones_like(feature[:, :1])], 1).double()


def common_diagonal(diagonal: Tensor, labels: Tensor) -> Tensor:
    """ωD [b,1] of the classes that are not the row's own; in no other class do our losses have another curvature."""
    if diagonal.shape[1] == 1 or labels.is_floating_point():
        return diagonal[:, :1]
    return torch.where(labels[:, None] == 0, diagonal[:, 1:2], diagonal[:, :1])


def flat(problem: Problem, W: Tensor) -> Tensor:
    """Δw [P] of W [K,d+1], the bias last."""
    weight, bias = problem.operator.base.config.head_names
    return problem.operator.layout.flatten({weight: W[:, :-1], bias: W[:, -1]})


def whole(problem: Problem, delta: Tensor) -> Tensor:
    """W [K,d+1], the bias last, of Δw [P]: the inverse of ``flat``."""
    weight, bias = (problem.operator.layout.views(delta)[name] for name in problem.operator.base.config.head_names)
    return torch.cat([weight, bias[:, None]], 1)


def refuse_not_finite(problem: Problem, squares: Tensor, of_loss: Tensor) -> None:
    """Raise SolveError unless the rows' sums of squares, and what the loss adds to them, are all finite."""
    if not (torch.isfinite(squares).all() and torch.isfinite(of_loss).all()):
        raise SolveError(
            "the head's features or logits are not finite",
            got=f"{problem.operator.rows} rows with NaN or infinity among them",
            do="look for extreme numbers in the rows",
        )
