"""What a head's closed forms read of a row, and Δw as a matrix W."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem


class Seen(NamedTuple):
    """Some rows as a head sees them at Δw = 0."""

    x: Tensor  # [b,d+1] x̃
    labels: Tensor  # [b]
    curvature: Tensor  # [b,K] D
    weight: Tensor  # [b,K] ωD/N
    target: Tensor  # [b,K] the logits of least loss
    away: Tensor  # [b,K] from them to the base point's


def seen(problem: Problem) -> Iterator[Seen]:
    """All rows, in one pass."""
    start = 0
    for state, labels in problem.operator.blocks():
        base = problem.logits(state.logits, None).double()
        curvature = problem.loss.hessian(base, labels, torch.ones_like(base))
        weight, away = curvature / problem.operator.rows, problem.loss.gradient(base, labels) / curvature
        if problem.weights is not None:
            weight = weight * problem.weights.at(labels, start, base)
        yield Seen(extended(state.feature), labels, curvature, weight, base - away, away)
        start += len(labels)


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
