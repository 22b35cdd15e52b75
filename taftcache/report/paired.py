"""How two models differ, judged by the rows that they share: for one model each, or over several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from taftcache.errors import FormatError

LEVEL = 0.95  # of every interval
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
Verdict = Literal["holds", "within noise", "contradicted"]


class RowVerdict(NamedTuple):
    """By how much the first of two models is more accurate, the 95 % interval of that, and the verdict.

    groups: how many groups of rows they were judged by; None where no two rows share one. One group gives no interval:
    it is then from −1 to 1.
    """

    ahead: float
    interval: tuple[float, float]
    verdict: Literal["ahead", "within noise", "behind"]
    groups: int | None = None


def row_verdict(ours: NDArray[np.bool_], theirs: NDArray[np.bool_], groups: RowGroups | None = None) -> RowVerdict:
    """The verdict on two models, from which of the same rows [n] each of them gets right.

    Only rows that one of the two gets right and the other does not make a difference. Where rows share ``groups``, the
    variance is the larger of the rows' own and that of ``RowGroups.judged``, with its quantile. Then the interval holds
    the truth in 92 or more of 100 draws, but in 88 where groups differ much, and one of fewer than ten has most rows.
    """
    ahead = ours.astype(np.float64) - theirs
    middle, variance = row_difference(ahead)
    half = NORMAL * sqrt(variance)
    if groups is not None:
        by_groups, quantile = groups.judged(ahead)
        half = quantile * sqrt(max(variance, by_groups))
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return RowVerdict(
        float(ahead.mean()),
        (low, high),
        "ahead" if low > 0 else "behind" if high < 0 else "within noise",
        groups and groups.count,
    )


@final
@dataclass(frozen=True)
class RowGroups:
    """Which rows belong together.

    number: of the group of each row [n]. sizes: how many rows each group has [k].
    """

    number: NDArray[np.intp]
    sizes: NDArray[np.intp]

    @classmethod
    def of(cls, names: Sequence[str] | NDArray[Any] | None) -> RowGroups | None:
        """The groups of rows by their ``names`` [n]; None where no two rows share one: each is judged by itself."""
        if names is None:
            return None
        _, number, sizes = np.unique(np.asarray(names), return_inverse=True, return_counts=True)
        return None if len(sizes) == len(number) else cls(number, sizes)

    @property
    def count(self) -> int:
        """k."""
        return len(self.sizes)

    def take(self, rows: NDArray[Any]) -> RowGroups | None:
        """The groups of some of the rows, by their places or a mask."""
        return RowGroups.of(self.number[rows])

    def quantiles(self) -> NDArray[np.float64]:
        """Student's quantiles for 2, 3, … k groups [k − 1]."""
        return _quantiles(np.arange(1, self.count))

    def judged(self, values: NDArray[np.floating]) -> tuple[float, float]:
        """The variance of the mean of ``values`` [n] over groups that were drawn as wholes, and Student's quantile for
        it; of one group it is infinite.

        The variance is the jackknife's: each of the k groups leaves once, and v = (k − 1)/k Σ (mean without it −
        mean)². A group of m rows, whose values less the mean add up to S, moves it by S/(n − m). Of groups of one size
        that is the sandwich of Liang and Zeger (1986) with its usual correction, k/(k − 1) Σ S²/n². Where sizes
        differ, that is too small: a large group pulls the mean, and with it its own S, towards itself, which leaving it
        out undoes (CV3 of MacKinnon, Nielsen and Webb, 2023). The quantile has k − 1 degrees of freedom (Cameron and
        Miller, 2015, VI), for few groups tell little of how groups differ.
        """
        k = self.count
        if k == 1:
            return inf, inf
        moved = np.bincount(self.number, values - values.mean()) / (len(values) - self.sizes)
        return (k - 1) / k * float(np.square(moved).sum()), _quantile(k - 1)


def row_difference(ahead: NDArray[np.floating]) -> tuple[float, float]:
    """Middle and variance of a mean difference, to which row n contributes ``ahead`` [n] in [−1, 1].

    For rows that models get right or wrong this is Agresti and Min (2005): half a row is added to each of the four
    outcomes for two models, so that models that never differ on a few rows are not said to be the same.
    """
    rows = len(ahead) + 2
    middle = float(ahead.sum()) / rows
    return middle, ((float(np.square(ahead).sum()) + 1) / rows - middle**2) / rows


@dataclass(frozen=True, kw_only=True)
class Paired:
    """By how many points of accuracy one model is ahead of another, and a 95 % interval of that.

    verdict: of the claim that it is ahead. "holds": the interval lies above zero; "contradicted": below it.
    """

    ahead: float
    interval: tuple[float, float]
    verdict: Verdict

    def text(self) -> str:
        """The difference and its interval."""
        return f"{self.ahead:+.1f} ({self.interval[0]:+.1f} to {self.interval[1]:+.1f})"


def paired(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> Paired:
    """By how much ``ours`` [s,n] is ahead of ``theirs`` [s,n], shares right in [0, 1], in the mean over seeds and rows.

    Other rows and other seeds (of the split and the base point) could have been drawn, so the variance is that of a
    mean over two crossed groups: V = V_rows + V_seeds − V_both, and no less than V_rows. V_rows is that of the rows'
    means over the seeds (``row_difference``), V_seeds that of the seeds' means over the rows, and V_both what is left
    once row and seed are known, which both of the others include. Each part has Student's quantile for its own degrees
    of freedom, n − 1 for the rows and s − 1 for what the seeds add (Banerjee, 1961): three seeds say little about
    others; one says nothing, and then V is V_rows. With three, the interval holds the truth in 95 to 97 of 100 draws if
    rows decide, and in 91 if only seeds do.

    Raises:
        FormatError: the two have different rows or seeds.
    """
    if ours.shape != theirs.shape:
        raise FormatError(
            "two lines of a report were measured on other rows or seeds",
            got=f"seeds and rows {ours.shape} and {theirs.shape}",
            do="make both reports again, with the same seeds, from one store",
        )
    apart = np.asarray(ours - theirs, np.float64)
    s, n = apart.shape
    middle, by_rows = row_difference(apart.mean(0))
    by_seeds = 0.0
    if s > 1:
        rest = apart - apart.mean(0) - apart.mean(1, keepdims=True) + apart.mean()
        both = float(np.square(rest).sum()) / max(1, (s - 1) * (n - 1)) / (s * n)
        by_seeds = max(0.0, float(apart.mean(1).var(ddof=1)) / s - both)
    parts = ((by_rows, n - 1), (by_seeds, s - 1))
    half = sqrt(sum(part * _quantile(max(1, freedom)) ** 2 for part, freedom in parts))
    low, high = 100 * max(-1.0, middle - half), 100 * min(1.0, middle + half)
    return Paired(
        ahead=100 * float(apart.mean()),
        interval=(low, high),
        verdict="holds" if low > 0 else "contradicted" if high < 0 else "within noise",
    )


@cache
def _quantile(freedom: int) -> float:
    return float(_quantiles(np.array(freedom)))


def _quantiles(freedom: NDArray[np.intp]) -> NDArray[np.float64]:
    """Student's two-sided quantiles at ``LEVEL``, for each number of degrees of freedom."""
    from scipy.stats import t

    return np.asarray(t.ppf((1 + LEVEL) / 2, freedom))
