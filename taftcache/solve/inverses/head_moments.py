"""What a head's closed forms read of the rows: second moments of x̃ = [feature; 1], or of x̃ in a basis of the rows.

This n×n matrix is the largest thing that a head's solve holds. Only its lower triangle is summed, in place. It is
stored column by column, so that LAPACK takes it without a copy, and the caller may overwrite it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem

# Bytes that a group of classes may take, for their normal matrices if each has its own, or for their rows.
GROUP_BYTES = 512 << 20
# Rows of one class whose products are added at once, and columns of the matrix they are added to at once: 25 rows of
# 4,609 numbers take as long to add as 100 do, mostly to read and write the matrix.
TOGETHER, COLUMNS = 256, 512


class FewRows(NamedTuple):
    """What the rows x̃ span, if they are few compared with their width: Q = ``vectors`` [d+1,n], orthonormal, and the
    ``rows`` Qᵀx̃ [N,n] in it."""

    vectors: Tensor
    rows: Tensor


@dataclass(frozen=True)
class HeadMoments:
    """Sums over all rows x̃, with n = d+1 numbers each, or as many as there are rows if these are few.

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


def head_moments(problem: Problem, basis: FewRows | None = None) -> HeadMoments:
    """The moments, in one pass; in a ``basis`` of the rows, if there is one.

    Raises:
        SolveError: features or logits that are not finite.
    """
    operator = problem.operator
    K, n = operator.classes, operator.base.config.width + 1 if basis is None else basis.vectors.shape[1]
    normal = torch.zeros(n, n, dtype=torch.float64, device=operator.device).mT
    right = torch.zeros(K, n, dtype=torch.float64, device=operator.device)
    counts = torch.zeros(K, dtype=torch.int64, device=operator.device)
    shared, above, start = True, True, 0
    for state, labels in operator.blocks():
        x = extended(state.feature, basis, start)
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


def refuse_not_finite(problem: Problem, diagonal: Tensor, of_loss: Tensor) -> None:
    """Raise SolveError unless the sums of squares, and what the loss adds to them, are all finite."""
    if not (torch.isfinite(diagonal).all() and torch.isfinite(of_loss).all()):
        raise SolveError(
            "the head's features or logits are not finite",
            got=f"{problem.operator.rows} rows with NaN or infinity among them",
            do="look for extreme numbers in the rows",
        )


def first_diagonal(problem: Problem) -> tuple[Tensor, Tensor, int]:
    """D [b,K] of the first rows, their ``common_diagonal`` [b,1], and n, all from one block."""
    state, labels = next(iter(problem.operator.blocks()))
    z = state.logits.double()
    diagonal = problem.loss.hessian(z, labels, torch.ones_like(z))
    rows, width = problem.operator.rows, state.feature.shape[1]
    n = rows if few(rows, width) else width + 1
    return diagonal, common_diagonal(diagonal, labels), n


def matrices(problem: Problem) -> tuple[int, int]:
    """How many normal matrices [n,n] a head has, one for all classes or, if D differs, one for each; and n."""
    diagonal, common, n = first_diagonal(problem)
    return (1 if bool((diagonal == common).all()) else problem.operator.classes), n


def few(rows: int, width: int) -> bool:
    """Whether a basis of so many rows costs no more than matrices of the size of a feature [b,width]."""
    return 5 * rows <= 3 * (width + 1)


def span(problem: Problem) -> FewRows | None:
    """What the rows x̃ span, from one pass, if they are few compared with their width.

    The ridge takes everything of W outside that span to zero, so that W = W̃Qᵀ with the W̃ [K,n] for the rows Qᵀx̃.
    """
    blocks = problem.operator.blocks()
    first, _ = next(blocks)
    if not few(problem.operator.rows, first.feature.shape[1]):
        return None
    rows = torch.cat([extended(state.feature) for state in (first, *(state for state, _ in blocks))])
    if not torch.isfinite(rows).all():
        return None
    Q, R = torch.linalg.qr(rows.T)
    return FewRows(Q, R.T)


def in_full(own: Tensor, basis: FewRows | None) -> Tensor:
    """[K,d+1] from [K,n] in a basis."""
    return own if basis is None else own @ basis.vectors.T


def extended(feature: Tensor, basis: FewRows | None = None, start: int = 0) -> Tensor:
    """x̃ [b,d+1]; or [b,n] in the basis of all rows, for the rows from ``start`` on."""
    if basis is not None:
        return basis.rows[start : start + len(feature)]
    return torch.cat([feature, torch.ones_like(feature[:, :1])], 1).double()


def flat(problem: Problem, solution: Tensor) -> Tensor:
    weight, bias = problem.operator.base.config.head_names
    return problem.operator.layout.flatten({weight: solution[:, :-1], bias: solution[:, -1]})


def whole(problem: Problem, delta: Tensor) -> Tensor:
    """W [K,d+1], the bias last, of Δw [P]: the inverse of ``flat``."""
    weight, bias = (problem.operator.layout.views(delta)[name] for name in problem.operator.base.config.head_names)
    return torch.cat([weight, bias[:, None]], 1)


def groups(K: int, size: int) -> Iterator[slice]:
    step = max(1, GROUP_BYTES // (8 * size * size))
    yield from (slice(k, min(K, k + step)) for k in range(0, K, step))


def row_groups(counts: Tensor, n: int) -> list[int]:
    """Each class's group [K], given its rows: those of a group take GROUP_BYTES together, or one class more."""
    found: list[int] = (counts.cumsum(0) * (8 * n) // GROUP_BYTES).tolist()
    return found


def common_diagonal(diagonal: Tensor, labels: Tensor) -> Tensor:
    """ωD [n,1] of the classes that are not the row's own; in no other class do our losses have another curvature."""
    if diagonal.shape[1] == 1 or labels.is_floating_point():
        return diagonal[:, :1]
    return torch.where(labels[:, None] == 0, diagonal[:, 1:2], diagonal[:, :1])


def own_normals(problem: Problem, classes: Sequence[int], common: Tensor, basis: FewRows | None = None) -> Tensor:
    """Normal matrices [len(classes), n, n], each ``common`` plus what the class's own D adds, in one pass."""
    own = common.mT.repeat(len(classes), 1, 1).mT
    onto = dict(zip(classes, own, strict=True))
    waiting: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    enough = min(TOGETHER, len(common))  # so that they take no more than the matrices

    def add(k: int) -> None:
        extra, x = (torch.cat(parts) for parts in zip(*waiting.pop(k), strict=True))
        _add_squares(onto[k], extra, x)

    for k, extra, x in own_rows(problem, onto, basis):
        waiting[k].append((extra, x))
        if sum(len(part) for _, part in waiting[k]) >= enough:
            add(k)
    for k in sorted(waiting):
        add(k)
    return own


def _add_squares(onto: Tensor, weight: Tensor, x: Tensor) -> None:
    """Add Σ w x̃x̃ᵀ to the lower triangle [n,n], for w [b,1] and x̃ [b,n]: little more than half the work of all."""
    weighted = weight * x
    for at in range(0, len(onto), COLUMNS):
        columns = slice(at, at + COLUMNS)
        onto[at:, columns].addmm_(x[:, at:].T, weighted[:, columns])


def own_rows(
    problem: Problem, classes: Container[int], basis: FewRows | None = None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """By block, in one pass: a class, by how much its own ωD/N [m,1] exceeds the others', and its rows x̃ [m,n]."""
    start = 0
    for state, labels in problem.operator.blocks():
        x = extended(state.feature, basis, start)
        diagonal = problem.diagonal(labels, x, start)
        extra = diagonal.gather(1, labels[:, None]) - common_diagonal(diagonal, labels)
        for k in torch.unique(labels).tolist():
            if k in classes:
                mine = labels == k
                yield k, extra[mine], x[mine]
        start += len(labels)
