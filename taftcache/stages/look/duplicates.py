"""Rows that are nearly the same: within the training or held-out rows, and across them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.stages.look.inspection import private_notes
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.vectors import all_vectors, describe_vectors
from taftcache.stages.progress import Progress, Silent

THRESHOLD = 0.99
BLOCK = 2048  # rows: two blocks of them have 16 MiB of cosines
FLOOR = 1e-3  # of the rows' typical length


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two rows and their ``similarity``: ids, classes, shards, and roles ("train" or "held-out")."""

    samples: tuple[str, str]
    similarity: float
    labels: tuple[str, str]
    shards: tuple[str, str]
    roles: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class DuplicatesReport:
    """Pairs of rows whose cosine reaches ``threshold``, the largest first.

    leaks, pairs: of a training row with a held-out one, and of rows of one role; leaks_found, pairs_found: how many
    there are, listed or not. vectors: what of a row is compared. rows: how many rows were. notes: what the promise of
    private models does not cover of all this.
    """

    store: Path
    root_digest: str
    threshold: float
    vectors: str
    rows: int
    leaks_found: int
    pairs_found: int
    leaks: list[Pair]
    pairs: list[Pair]
    notes: list[str] = field(default_factory=list)


def duplicates(
    store: FeatureStore, top: int = 20, threshold: float = THRESHOLD, progress: Progress | None = None
) -> DuplicatesReport:
    """Compare every row with every other by the cosine of their vectors, from the mean of all.

    Takes time in N²; holds the vectors of all rows in float32 (4·N·d bytes) and the cosines of two blocks of rows.

    Args:
        store: an open store.
        top: how many pairs to list, of each kind.
        threshold: the least cosine of a pair, above 0 and at most 1.
        progress: shown the reading, and the blocks.

    Raises:
        RecipeError: a threshold out of range.
    """
    if not 0 < threshold <= 1:
        raise RecipeError("the threshold is no cosine above 0", got=f"{threshold:g}", do=f"{THRESHOLD}")
    progress, table = progress or Silent(), RowTable.of(store)
    unit = _directions(all_vectors(store, table, progress))
    kinds = (_Best(top), _Best(top))
    held = table.held_out
    # of equal rows the cosine is 1 up to rounding
    for first, second, cosine in _reaching(unit, threshold - 4 * np.finfo(np.float32).eps, progress):
        across = held[first] != held[second]
        for kind, chosen in zip(kinds, (across, ~across), strict=True):
            kind.add(first[chosen], second[chosen], cosine[chosen])
    leaks, pairs = ([_pair(store, table, *found) for found in kind.listed()] for kind in kinds)
    return DuplicatesReport(
        store=store.path,
        root_digest=store.root_digest,
        threshold=threshold,
        vectors=describe_vectors(store),
        rows=len(table),
        leaks_found=kinds[0].count,
        pairs_found=kinds[1].count,
        leaks=leaks,
        pairs=pairs,
        notes=private_notes(store),
    )


def _directions(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unit vectors [n,d+1] of vectors [n,d] from their mean.

    What all rows have in common says nothing of two of them, and would put every cosine near 1. One more coordinate,
    ``FLOOR`` everywhere, gives a row at the mean a direction, which it shares with its copies.
    """
    if not len(vectors):
        return vectors
    moved = vectors - vectors.mean(0, dtype=np.float64).astype(np.float32)
    lengths = np.linalg.norm(moved, axis=1)
    floor = FLOOR * float(np.sqrt(np.square(lengths, dtype=np.float64).mean())) or 1.0
    unit = np.concatenate([moved, np.full((len(moved), 1), floor, np.float32)], 1)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return unit


def _reaching(
    unit: NDArray[np.float32], threshold: float, progress: Progress
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]:
    """Rows (first < second) whose cosine reaches the threshold, and the cosine, for every pair of blocks."""
    starts = range(0, len(unit), BLOCK)
    with progress.task("duplicates", len(starts) * (len(starts) + 1) // 2) as task:
        for i in starts:
            for j in range(i, len(unit), BLOCK):
                cosine = unit[i : i + BLOCK] @ unit[j : j + BLOCK].T
                first, second = np.nonzero(cosine >= threshold)
                if i == j:
                    first, second = first[first < second], second[first < second]
                yield first + i, second + j, np.minimum(cosine[first, second], 1)
                task.advance()


class _Best:
    """The pairs of largest cosine among all that were added, ``top`` of them, and how many there were."""

    def __init__(self, top: int) -> None:
        self._top, self.count = top, 0
        self._first = self._second = np.empty(0, np.int64)
        self._cosine = np.empty(0, np.float32)

    def add(self, first: NDArray[np.int64], second: NDArray[np.int64], cosine: NDArray[np.float32]) -> None:
        self.count += len(first)
        first, second = np.concatenate([self._first, first]), np.concatenate([self._second, second])
        cosine = np.concatenate([self._cosine, cosine])
        kept = np.lexsort((second, first, -cosine))[: self._top]
        self._first, self._second, self._cosine = first[kept], second[kept], cosine[kept]

    def listed(self) -> Iterator[tuple[int, int, float]]:
        yield from zip(self._first.tolist(), self._second.tolist(), self._cosine.tolist(), strict=True)


def _pair(store: FeatureStore, table: RowTable, first: int, second: int, cosine: float) -> Pair:
    shards = [table.shards[table.shard[n]] for n in (first, second)]
    return Pair(
        samples=(table.ids[first], table.ids[second]),
        similarity=cosine,
        labels=(store.classes[table.label[first]], store.classes[table.label[second]]),
        shards=(shards[0].name, shards[1].name),
        roles=(shards[0].role, shards[1].role),
    )
