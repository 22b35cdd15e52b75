"""How two models differ, judged by the rows that they share: for one model each, or over several seeds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taftcache.errors import FormatError

LEVEL = 0.95  # of every interval
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
Verdict = Literal["holds", "within noise", "contradicted"]


class RowVerdict(NamedTuple):
    """By how much the first of two models is more accurate, the 95 % interval of that, and the verdict."""

    ahead: float
    interval: tuple[float, float]
    verdict: Literal["ahead", "within noise", "behind"]


def row_verdict(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> RowVerdict:
    """The verdict on two models, from which of the same rows [n] each of them gets right.

    Only rows that one of the two gets right and the other does not make a difference.
    """
    ahead = ours.astype(np.float64) - theirs
    middle, variance = row_difference(ahead)
    half = NORMAL * sqrt(variance)
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return RowVerdict(
        float(ahead.mean()), (low, high), "ahead" if low > 0 else "behind" if high < 0 else "within noise"
    )


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
    """Student's two-sided quantile at ``LEVEL``."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))
