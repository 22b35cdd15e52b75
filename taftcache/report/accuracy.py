"""Accuracies of one model, or of two on the same rows, and their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from taftcache.report.paired import NORMAL, RowGroups, row_verdict


def judged_rows(right: NDArray[np.bool_], groups: RowGroups | None) -> tuple[float, float]:
    """Of how many rows an accuracy p is judged, from which rows [n] were right, and with which quantile.

    Where rows share ``groups``: as many rows as would have the variance v of ``RowGroups.judged``, p (1 − p)/v, but n
    at most, with its quantile, as Korn and Graubard (1998) for exact intervals, and Franco and others (2019) for
    Wilson's. They take n if all are right or wrong, when nothing tells how alike the rows of a group are; here it is
    as many as there are groups. None, where all are of one group.
    """
    n, p = float(len(right)), float(right.mean())
    if groups is None:
        return n, NORMAL
    variance, quantile = groups.judged(right.astype(np.float64))
    if p in (0, 1):
        return float(groups.count), quantile
    return (p * (1 - p) / variance if n * variance > p * (1 - p) else n), quantile


def accuracy_interval(right: NDArray[np.bool_], groups: RowGroups | None = None) -> tuple[float, float]:
    """Wilson's interval of an accuracy at ``LEVEL``, from which rows [n] were right; where rows share ``groups``, of as
    many as ``judged_rows`` says. Of one group: from 0 to 1."""
    if groups is not None and groups.count == 1:
        return 0.0, 1.0
    n, z = judged_rows(right, groups)
    k = float(right.sum()) * (n / len(right))
    middle = (2 * k + z**2) / (2 * (n + z**2))
    half = z / (2 * (n + z**2)) * sqrt(4 * k * (n - k) / n + z**2)
    return (middle - half if k else 0.0), (middle + half if k < n else 1.0)


def balanced(hit: NDArray[np.bool_], labels: NDArray[np.int32]) -> float:
    """The mean over the classes that rows with ``labels`` [n] have of the share of their rows that are right, by
    ``hit`` [n]."""
    of = np.bincount(labels)
    return float((np.bincount(labels, hit)[of > 0] / of[of > 0]).mean())


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Two models on ``rows`` rows.

    changed: rows that get another class; interval: of their share, at 95 % (Wilson's). right: by the first and by the
    second. gain: by how much the second is more accurate, with ``gain_interval``, ``verdict`` and ``groups`` as from
    ``paired.row_verdict``.
    """

    rows: int
    changed: int
    interval: tuple[float, float]
    right: tuple[int, int]
    gain: float
    gain_interval: tuple[float, float]
    verdict: str
    groups: int | None


def changes_of(
    labels: NDArray[np.int32],
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    groups: RowGroups | None = None,
) -> Changes | None:
    """Compare two models by the classes [n] that they give to rows with ``labels`` [n], of these ``groups``; None
    without rows."""
    if not len(labels):
        return None
    other, hits = before != after, (before == labels, after == labels)
    gain, interval, verdict, judged_by = row_verdict(hits[1], hits[0], groups)
    return Changes(
        rows=len(labels),
        changed=int(other.sum()),
        interval=accuracy_interval(other, groups),
        right=(int(hits[0].sum()), int(hits[1].sum())),
        gain=gain,
        gain_interval=interval,
        verdict=verdict,
        groups=judged_by,
    )
