"""Sums over a head's rows: second moments of x̃ = [feature; 1].

This n×n matrix, n = d+1, is the largest thing that a head's solve holds. Only its lower triangle is summed, in place.
It is stored column by column, so that LAPACK takes it without a copy, and the caller may overwrite it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.head.terms import common_diagonal, extended, refuse_not_finite

# Rows of one class whose products are added at once, and columns of the matrix they are added to at once: 25 rows of
# 4,609 numbers take as long to add as 100 do, mostly to read and write the matrix.
TOGETHER, COLUMNS = 256, 512


@dataclass(frozen=True)
class HeadMoments:
    """Sums over all rows x̃.

    normal: [n,n] 1/N Σ ω D x̃x̃ᵀ, with the D of classes that are not the row's own; its upper triangle is never read.
    right: [K,n] 1/N Σ ω ∂ℓ/∂z x̃ᵀ at Δw = 0.
    shared: whether D is the same for all classes of each row.
    counts: [K] rows of each class.
    above: whether no row's own class has a smaller D than the others.
    """

    normal: Tensor
    right: Tensor
    shared: bool
    counts: Tensor
    above: bool


def head_moments(problem: Problem) -> HeadMoments:
    """The moments, in one pass.

    Raises:
        SolveError: features or logits that are not finite.
    """
    operator = problem.operator
    K, n = operator.classes, operator.base.config.width + 1
    normal = torch.zeros(n, n, dtype=torch.float64, device=operator.device).mT
    right = torch.zeros(K, n, dtype=torch.float64, device=operator.device)
    counts = torch.zeros(K, dtype=torch.int64, device=operator.device)
    shared, above, start = True, True, 0
    for state, labels in operator.blocks():
        x = extended(state.feature)
        z = problem.logits(state.logits, None).double()
        gradient, diagonal = problem.loss.gradient(z, labels), problem.loss.hessian(z, labels, torch.ones_like(z))
        if problem.weights is not None:
            weight = problem.weights.at(labels, start, z)
            gradient, diagonal = gradient * weight, diagonal * weight
        common = common_diagonal(diagonal, labels)
        shared = shared and bool((diagonal == common).all())
        above = above and bool((diagonal >= common).all())
        if not labels.is_floating_point():
            counts += torch.bincount(labels, minlength=K)
        _add_squares(normal, common, x)
        right += gradient.T @ x
        start += len(labels)
    refuse_not_finite(problem, normal.diagonal(), right)
    return HeadMoments(normal.div_(operator.rows), right.div_(operator.rows), shared, counts, above)


def own_normals(problem: Problem, classes: Sequence[int], common: Tensor, ridge: float = 0.0) -> Tensor:
    """Normal matrices [len(classes), n, n], each ``common`` plus λ and what the class's own D adds, in one pass."""
    own = common.mT.repeat(len(classes), 1, 1).mT
    own.diagonal(dim1=1, dim2=2).add_(ridge)
    onto = dict(zip(classes, own, strict=True))
    waiting: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    enough = min(TOGETHER, len(common))  # so that they take no more than the matrices

    def add(k: int) -> None:
        extra, x = (torch.cat(parts) for parts in zip(*waiting.pop(k), strict=True))
        _add_squares(onto[k], extra, x)

    for k, extra, x in own_rows(problem, onto):
        waiting[k].append((extra, x))
        if sum(len(part) for _, part in waiting[k]) >= enough:
            add(k)
    for k in sorted(waiting):
        add(k)
    return own


def own_rows(problem: Problem, classes: Container[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """By block, in one pass: a class, by how much its own ωD/N [m,1] exceeds the others', and its rows x̃ [m,n]."""
    start = 0
    for state, labels in problem.operator.blocks():
        x = extended(state.feature)
        diagonal = problem.diagonal(labels, x, start)
        extra = diagonal.gather(1, labels[:, None]) - common_diagonal(diagonal, labels)
        for k in torch.unique(labels).tolist():
            if k in classes:
                mine = labels == k
                yield k, extra[mine], x[mine]
        start += len(labels)


def _add_squares(onto: Tensor, weight: Tensor, x: Tensor) -> None:
    """Add Σ w x̃x̃ᵀ to the lower triangle [n,n], for w [b,1] and x̃ [b,n]: little more than half the work of all."""
    weighted = weight * x
    for at in range(0, len(onto), COLUMNS):
        columns = slice(at, at + COLUMNS)
        onto[at:, columns].addmm_(x[:, at:].T, weighted[:, columns])
