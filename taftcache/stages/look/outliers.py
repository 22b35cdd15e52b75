"""Rows that are like no others: they lie far from their neighbours, by the standard of their class."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError, check_counts
from taftcache.names import counted
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.seen import private_notes
from taftcache.stages.look.vectors import mean_vectors
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report

NEIGHBOUR = 10
STEP = 4096  # rows whose neighbours are asked for at once


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A row that lies far from others.

    times: its distance as a multiple of the median one in its class. That of the other training rows of its class, or
    of all training rows if it is the only one. distance: to its k-th nearest training row.
    """

    sample: str
    label: str
    times: float
    distance: float
    shard: str
    role: str


@dataclass(frozen=True, kw_only=True)
class OutliersReport(Report):
    """Rows by their distance to the k-th nearest training row over their class's median, the largest first.

    neighbour: k. rows: how many were compared. outliers: the rows. notes: what the promise of private models does not
    cover.
    """

    store: Path
    root_digest: str
    neighbour: int
    rows: int
    outliers: list[Outlier]
    notes: list[str] = field(default_factory=list)


@at_its_place()
def outliers(store: Place, *, top: int = 20, progress: Progress | bool | None = None) -> OutliersReport:
    """Rank rows by the distance to their k-th nearest training row of any class, relative to the median of their own
    class.

    k is 10, or the number of training rows less one if that is smaller. Up to k − 1 outliers that are alike do not hide
    each other. The means of each sample's cached rows (4·N·d bytes of memory) are compared with those of every training
    row, so time grows with N².

    Args:
        top: how many to list.

    Raises:
        ArgumentError: ``top`` below 1. StoreError: fewer than two training rows.
    """
    assert isinstance(store, FeatureStore)
    check_counts(top=top)
    progress, table = or_silent(progress), RowTable.of(store)
    held = table.held_out
    train = len(table) - int(held.sum())
    if train < 2:
        raise StoreError("a single row has no neighbours", got=counted(train, "training row"), do="append more rows")
    k = min(NEIGHBOUR, train - 1)
    distances = _distances(mean_vectors(table, progress), train, k, progress)
    times = _relative(distances, table.label, ~held)
    listed = []
    for n in np.argsort(-times, kind="stable")[:top].tolist():
        shard = table.shards[table.shard[n]]
        listed.append(
            Outlier(
                sample=table.ids[n],
                label=store.classes[table.label[n]],
                times=float(times[n]),
                distance=float(distances[n]),
                shard=shard.name,
                role=shard.role,
            )
        )
    return OutliersReport(
        store=store.path,
        root_digest=store.root_digest,
        neighbour=k,
        rows=len(table),
        outliers=listed,
        notes=private_notes(store),
    )


def _distances(vectors: NDArray[np.float32], train: int, k: int, progress: Progress) -> NDArray[np.float64]:
    """Euclidean distance of each row [n] to its k-th nearest among the first ``train`` rows, itself left out."""
    search = NearestNeighbors(algorithm="brute").fit(vectors[:train])
    found = np.empty(len(vectors), np.float64)
    with progress.task("outliers", len(vectors)) as task:
        for start in range(0, len(vectors), STEP):
            here = np.arange(start, min(start + STEP, len(vectors)))
            distance, near = search.kneighbors(vectors[here], k + 1)
            # leave out the row itself, or the last neighbour if copies have taken the row's place
            own = near == here[:, None]
            own[~own.any(1), -1] = True
            found[here] = distance[~own].reshape(len(here), k)[:, -1]
            task.advance(len(here))
    return found


def _relative(
    distances: NDArray[np.float64], label: NDArray[np.int32], train: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Distances [n] over the median of their class's other training rows; over that of all training rows if the class
    has no others, or their median is 0.

    The row itself does not count: a row alone in its class would be compared with itself.
    """
    median = float(np.median(distances[train])) or 1.0
    found = distances / median
    order = np.argsort(label, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(label[order])) + 1):  # of one class
        known = rows[train[rows]]
        if not len(known):
            continue
        usual = np.full(len(rows), float(np.median(distances[known])))
        usual[train[rows]] = _medians_of_others(distances[known]) if len(known) > 1 else 0
        compared = usual > 0
        found[rows[compared]] = distances[rows[compared]] / usual[compared]
    return found


def _medians_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each of ``values`` [n], n at least 2, the median of all the others."""
    order = np.argsort(values, kind="stable")
    ordered, place = values[order], np.arange(len(values))
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    # leaving a value out moves those behind it up by one
    medians = (ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2
    found = np.empty_like(values)
    found[order] = medians
    return found
