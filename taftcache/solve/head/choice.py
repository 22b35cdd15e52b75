"""Which closed form serves a head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.head.at_ridge import EveryHead, Unseen
from taftcache.solve.head.by_moments import ByMoments
from taftcache.solve.head.by_own_rows import PathByOwnRows
from taftcache.solve.head.by_rows import ByRows
from taftcache.solve.head.path import PathByMoments, PathByRows
from taftcache.solve.head.size import HeadSize
from taftcache.tangent.rows import RowSource

BLOCK = 256  # rows whose labels are read at once


def is_closed(problem: Problem) -> bool:
    """Whether there are rows, the head alone is trained on them, and the loss is quadratic."""
    return problem.operator.head_alone and problem.loss.quadratic and problem.operator.rows > 0


def head_of(problem: Problem) -> ByRows | ByMoments:
    """The head at any λ, for a problem that ``is_closed``: from the products of few rows, or from sums over many.

    Raises:
        SolveError: features or logits that are not finite.
    """
    return (ByRows if HeadSize.of(problem).by_rows else ByMoments)(problem)


def path_of(problem: Problem) -> PathByRows | PathByMoments:
    """The head at every λ by one eigendecomposition, or by one for each class if each has its own D.

    Raises:
        SolveError: another problem than one that ``is_closed``, or no room for so many decompositions.
    """
    size = HeadSize.of(problem)
    if not (is_closed(problem) and size.decomposes):
        raise SolveError(
            "a head for every λ needs a square loss over the head alone, and memory where each class has its own D",
            got=f"{problem.loss}, {problem.operator.rows} rows, {problem.operator.classes} classes",
            do="a square loss with alpha = 1, or solve each λ on its own",
        )
    return PathByRows(ByRows(problem)) if size.by_rows else PathByMoments(problem)


def every_head(problem: Problem, least: float) -> EveryHead | None:
    """The head at every λ from ``least`` on, in the cheapest way: by ``path_of``; or, if few rows have a D of their
    own in each class, by a Cholesky factor of their products for each λ, provided that rounding leaves enough of it.
    None if there is no ``path_of``."""
    size = HeadSize.of(problem)
    if not (is_closed(problem) and size.decomposes):
        return None
    if size.by_rows and size.extra:
        rows = ByRows(problem)
        return rows if rows.serves(least) else PathByRows(rows)
    return path_of(problem)


def rows_left_out(problem: Problem, ridges: Sequence[float]) -> list[Unseen] | None:
    """The errors on every row of the head solved without it, at every λ, with the same λN. None if there is no
    ``every_head``, or ``HeadSize.left_out`` says that this is not done."""
    if not is_closed(problem) or HeadSize.of(problem).left_out(len(ridges)) is None:
        return None
    every = every_head(problem, ridges[0])
    return None if every is None else every.leave_one_out(ridges)


def groups_left_out(problem: Problem, ridges: Sequence[float], groups: NDArray[np.uint64]) -> list[Unseen] | None:
    """As ``rows_left_out``, of the head solved without the row's group.

    groups: a number for the group of each row [N].
    """
    if not is_closed(problem):
        return None
    size, (_, counts) = HeadSize.of(problem), np.unique(groups, return_counts=True)
    asked = len(ridges), counts, largest_class(problem.operator.sources) if size.extra else 0
    if size.left_out(*asked) is None:
        return None
    order = torch.from_numpy(np.argsort(groups, kind="stable")).to(problem.operator.device).split(counts.tolist())
    path = PathByOwnRows(problem) if size.by_own_rows(*asked) else path_of(problem)
    return path.leave_groups_out(ridges, order)


def largest_class(sources: Sequence[RowSource]) -> int:
    """How many rows the class with the most has; 0 if rows have values."""
    labels = np.concatenate([part for source in sources for part in _labels(source)])
    return 0 if labels.dtype.kind == "f" else int(np.bincount(labels).max())


def _labels(source: RowSource) -> Iterator[NDArray[Any]]:
    """Its labels, without the rows' numbers if they are kept apart, as in a shard."""
    if (whole := getattr(source, "labels", None)) is not None:
        yield whole
    else:
        yield from (block.labels for block in source.blocks(BLOCK))
