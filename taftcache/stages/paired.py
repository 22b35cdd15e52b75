"""What the rows that two models share say of the difference between the two."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95  # of every interval
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)


class RowVerdict(NamedTuple):
    """By how much the first of two models is the more accurate, the 95 % interval of that, and what it says."""

    ahead: float
    interval: tuple[float, float]
    verdict: Literal["ahead", "within noise", "behind"]


def row_verdict(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> RowVerdict:
    """Two models on the same rows [n], from which rows each of them gets right.

    Only those rows count that one of the two gets right and the other not.
    """
    ahead = ours.astype(np.float64) - theirs
    middle, variance = row_difference(ahead)
    half = NORMAL * sqrt(variance)
    low, high = max(-1.0, middle - half), min(1.0, middle + half)
    return RowVerdict(
        float(ahead.mean()), (low, high), "ahead" if low > 0 else "behind" if high < 0 else "within noise"
    )


def row_difference(ahead: NDArray[np.floating]) -> tuple[float, float]:
    """Middle and variance of a mean difference, of which row n has ``ahead`` [n] in [−1, 1].

    Agresti and Min (2005) for rows on which one of two models is right and the other not: two rows more, of which a
    half goes to each, so that models that never differ on few rows are not said to be the same.
    """
    rows = len(ahead) + 2
    middle = float(ahead.sum()) / rows
    return middle, ((float(np.square(ahead).sum()) + 1) / rows - middle**2) / rows
