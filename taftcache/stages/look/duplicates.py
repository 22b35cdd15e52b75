"""Rows that are nearly the same, or the same to the byte: within the training or held-out rows, and across them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError, StoreError, check_counts
from taftcache.names import counted
from taftcache.stages.look.row_table import RowTable, Top
from taftcache.stages.look.seen import private_notes
from taftcache.stages.look.vectors import mean_vectors
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report

THRESHOLD = 0.95
BLOCK = 2048  # rows: the similarities of two blocks take 16 MiB
HASH = 16  # bytes: the chance that two of 2³² different rows share a hash is below 2⁻⁶⁴
ROUNDING = 1e-5  # error of a similarity in float32, for rows within a few typical lengths of the mean


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two rows.

    samples: their ids. similarity: 1 if the means of their rows are the same. labels: their classes. shards: their
    shards. roles: "train" or "held-out".
    """

    samples: tuple[str, str]
    similarity: float
    labels: tuple[str, str]
    shards: tuple[str, str]
    roles: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class DuplicatesReport(Report):
    """Pairs of rows whose similarity reaches ``threshold``, the largest first.

    threshold: the least similarity that is listed. rows: how many were compared. leaks_found, pairs_found: how many
    leaks and pairs there are, listed or not. leaks: pairs of a training row and a held-out one. pairs: pairs of rows
    with the same role. notes: on rows too far out to compare by, on pairs with two different labels, and on promises
    of privacy. The promise of private models does not cover this list.
    """

    store: Path
    root_digest: str
    threshold: float
    rows: int
    leaks_found: int
    pairs_found: int
    leaks: list[Pair]
    pairs: list[Pair]
    notes: list[str] = field(default_factory=list)


@at_its_place()
def duplicates(
    store: Place, *, top: int = 20, threshold: float = THRESHOLD, progress: Progress | bool | None = None
) -> DuplicatesReport:
    """Compare every row with every other, by the means x of their cached rows.

    Similarity is 1 − ‖x − y‖² / E‖x − y‖², E over two random rows: 1 for the same rows, 0 for rows as far apart as an
    average pair. It is a cosine from the mean of all rows, but with one length for all instead of each row's own, which
    would call rows alike that lie far out on the same side. It takes time in N², and memory for the means (4·N·d bytes)
    and the similarities of two blocks of rows.

    Args:
        top: how many pairs of each kind to list.
        threshold: the least similarity of a pair, above 0 and at most 1.

    Raises:
        ArgumentError: a threshold out of range.
    """
    assert isinstance(store, FeatureStore)
    check_counts(0, top=top)
    if not isinstance(threshold, Real) or not 0 < threshold <= 1:
        raise ArgumentError(
            "the threshold is not a similarity above 0 and at most 1", got=repr(threshold), do=f"{THRESHOLD}"
        )
    progress, table = or_silent(progress), RowTable.of(store)
    scaled = _scaled(mean_vectors(table, progress))
    far = _far_out(scaled, table)
    kinds, unlike = (Top(top), Top(top)), [0, 0]
    held = table.held_out
    for first, second, alike in _reaching(scaled, threshold, progress):
        across = held[first] != held[second]
        differs = table.label[first] != table.label[second]
        for k, chosen in enumerate((across, ~across)):
            kinds[k].add(-alike[chosen], first[chosen], second[chosen])
            unlike[k] += int(differs[chosen].sum())
    leaks, pairs = ([_pair(store, table, first, second, -apart) for apart, first, second in kind] for kind in kinds)
    return DuplicatesReport(
        store=store.path,
        root_digest=store.root_digest,
        threshold=threshold,
        rows=len(table),
        leaks_found=kinds[0].count,
        pairs_found=kinds[1].count,
        leaks=leaks,
        pairs=pairs,
        notes=[*far, *_unlike(*unlike), *private_notes(store)],
    )


def _unlike(leaks: int, pairs: int) -> list[str]:
    """A note on pairs whose two labels differ."""
    found = [counted(n, what) for n, what in ((leaks, "leak"), (pairs, "pair")) if n]
    return found and [f"with two different labels: {', '.join(found)}"]


def _far_out(scaled: NDArray[np.float32], table: RowTable) -> list[str]:
    """A note if some rows lie so far out that, in comparison, half of all pairs look alike."""
    n = len(scaled)
    if n < 2:
        return []
    some = np.linspace(0, n - 1, min(n, BLOCK)).astype(np.int64)
    # pair each row with one half the table away, which is of another class if rows are sorted by class
    squares = np.square(scaled[some] - scaled[(some + n // 2) % n]).sum(1)
    if not 0 < np.median(squares) <= 2 * (1 - THRESHOLD):  # 0: the rows are copies, which rightly look alike
        return []
    farthest = table.ids[int(np.vecdot(scaled, scaled).argmax())]
    return [
        f"rows far out, {farthest} the farthest, make half of all pairs look alike; take them out first: "
        "inspect --outliers"
    ]


def _scaled(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Centre ``vectors`` [n,d] in place and scale them to a mean square length of 1; zeros if all are the same."""
    if not len(vectors):
        return vectors
    vectors -= vectors.mean(0, dtype=np.float64).astype(np.float32)
    length = float(np.sqrt(np.einsum("nd,nd->", vectors, vectors, dtype=np.float64) / len(vectors)))
    vectors /= np.float32(length or 1)
    return vectors


def _reaching(
    scaled: NDArray[np.float32], threshold: float, progress: Progress
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]:
    """For every pair of blocks: the rows (first < second) whose similarity reaches the threshold, and how similar."""
    starts = range(0, len(scaled), BLOCK)
    half = np.vecdot(scaled, scaled) / 2
    with progress.task("duplicates", len(starts) * (len(starts) + 1) // 2) as task:
        for i in starts:
            for j in range(i, len(scaled), BLOCK):
                here, there = slice(i, i + BLOCK), slice(j, j + BLOCK)
                found = scaled[here] @ scaled[there].T
                found += 1 - half[here, None]
                found -= half[there]
                first, second = np.nonzero(found >= threshold - ROUNDING)
                if i == j:
                    first, second = first[first < second], second[first < second]
                yield first + i, second + j, np.minimum(found[first, second], 1)
                task.advance()


def _pair(store: FeatureStore, table: RowTable, first: int, second: int, alike: float) -> Pair:
    shards = [table.shards[table.shard[n]] for n in (first, second)]
    return Pair(
        samples=(table.ids[first], table.ids[second]),
        similarity=alike,
        labels=(store.classes[table.label[first]], store.classes[table.label[second]]),
        shards=(shards[0].name, shards[1].name),
        roles=(shards[0].role, shards[1].role),
    )


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """A hash of each row's cached bytes, 16 bytes a row: ``hashes`` [n], valid where ``read`` [n]. Rows in ``damaged``
    shards cannot be compared."""

    table: RowTable
    hashes: NDArray[Any]
    read: NDArray[np.bool_]
    damaged: list[str]

    @classmethod
    def none(cls, table: RowTable) -> Hashes:
        """Those of a table of which nothing is read yet."""
        n = len(table)
        return cls(table=table, hashes=np.zeros(n, f"V{HASH}"), read=np.zeros(n, bool), damaged=[])

    @classmethod
    def of(cls, store: FeatureStore, progress: Progress) -> Hashes:
        """Reads the store once."""
        table = RowTable.of(store)
        found, damaged = cls.none(table), dict[str, None]()
        with progress.task("copies", len(table)) as task:
            for rows, shard, there in table.steps():
                try:
                    found.add(rows, table.reader.tokens(shard.name, there))
                except StoreError:
                    damaged[shard.name] = None
                task.advance(rows.stop - rows.start)
        found.damaged.extend(damaged)
        return found

    def add(self, rows: slice, tokens: NDArray[Any]) -> None:
        """Take in the ``tokens`` of some rows of the table."""
        self.hashes[rows] = row_hashes(np.ascontiguousarray(tokens))
        self.read[rows] = True

    def leaked(self) -> list[str]:
        """Ids of held-out rows with the same bytes as a training row."""
        held = self.table.held_out
        return self.ids_like(self.chosen(~held), held)

    def chosen(self, these: NDArray[np.bool_]) -> set[bytes]:
        """The hashes of the rows in the mask ``these`` [n]."""
        return {one.tobytes() for one in self.hashes[these & self.read]}

    def ids_like(self, sought: Collection[bytes], among: NDArray[np.bool_]) -> list[str]:
        """Ids of the rows in the mask ``among`` [n] whose hash is one of ``sought``."""
        return [self.table.ids[k] for k in np.flatnonzero(among & self.read) if self.hashes[k].tobytes() in sought]


def copies_of(store: FeatureStore, samples: Collection[str], progress: Progress) -> tuple[list[str], list[str]]:
    """Ids of other rows (held-out and staged ones too) with the same bytes as one of ``samples``; and the damaged
    shards."""
    named, staged, damaged = set(samples), dict[str, bytes](), list[str]()
    for name, ids, tokens in store.staged_tokens() if named else ():
        if tokens is None:
            damaged.append(name)
        else:
            staged.update(zip(ids, row_hashes(tokens), strict=True))
    if not any(store.holds(sample) or sample in staged for sample in named):
        return [], []
    found = Hashes.of(store, progress)
    these = np.array([i in named for i in found.table.ids], bool)
    sought = found.chosen(these) | {staged[i] for i in named if i in staged}
    more = [i for i, own in staged.items() if own in sought and i not in named and not store.holds(i)]
    return [*found.ids_like(sought, ~these), *more], list(dict.fromkeys([*found.damaged, *damaged]))


def row_hashes(tokens: NDArray[Any]) -> list[bytes]:
    return [blake3(row.tobytes()).digest(length=HASH) for row in tokens]
