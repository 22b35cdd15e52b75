"""Paired differences: one case by hand, and how often the interval holds the truth."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from taftcache.errors import FormatError
from taftcache.paper.right import Right
from taftcache.report.paired import paired, row_difference


def test_by_hand():
    """Two seeds, three rows; the first model has one row more in the second seed."""
    ours = np.array([[1, 1, 0], [1, 1, 1]])
    theirs = np.array([[1, 0, 0], [1, 0, 0]])
    found = paired(ours, theirs)
    assert found.ahead == pytest.approx(50.0)  # (1 + 2) of 6
    # Rows' means 0, 1, ½: middle 1.5/5, variance ((0 + 1 + ¼ + 1)/5 − 0.09)/5.
    rows = (2.25 / 5 - 0.09) / 5
    assert row_difference(np.array([0, 1, 0.5])) == pytest.approx((0.3, rows))
    # Seeds' means ⅓, ⅔: variance 1/18, halved; rest ±(⅙, ⅙, −⅓): Σ squares 2·(1/36 + 1/36 + 1/9) = ⅓, of 2, over 6.
    seeds = 1 / 36 - 1 / 3 / 2 / 6
    assert seeds == pytest.approx(0.0)
    half = 4.302653 * sqrt(rows)  # Student's at 0.975 with n − 1 = 2
    assert 0.3 + half > 1  # more than all rows no model can be ahead on
    assert found.interval == pytest.approx((100 * (0.3 - half), 100), rel=1e-5)
    assert found.verdict == "within noise"


def test_what_seeds_add_has_their_degrees_of_freedom():
    """Rows that all move with the seed: three seeds are three observations."""
    ours = np.concatenate([np.ones((1, 500)), np.ones((1, 500)), np.zeros((1, 500))])
    found = paired(ours, np.zeros((3, 500)))
    middle, rows = row_difference(np.full(500, 2 / 3))
    variance = rows + 1 / 9  # of 1, 1, 0 the variance is ⅓, of their mean a third of that
    assert middle - found.interval[0] / 100 == pytest.approx(4.3 * sqrt(variance), rel=0.01)
    assert found.verdict == "within noise"


@pytest.mark.law("The interval of a difference between two lines holds the truth about as often as it says")
@pytest.mark.parametrize(
    ("spread", "least"),
    [((0.0, 0.3, 0.0), 0.93), ((0.0, 0.3, 0.5), 0.93), ((0.05, 0.3, 0.3), 0.93), ((0.2, 0.1, 0.2), 0.9)],
)
def test_coverage(spread, least):
    """Differences of rounds: a part of the seed, one of the row and one of both, cut into −1, 0, 1."""
    draw, rounds, s, n, truth = np.random.default_rng(0), 400, 3, 200, 0.05
    held = 0
    for _ in range(rounds):
        seeds, rows, both = (
            draw.normal(0, width, shape) for width, shape in zip(spread, ((s, 1), n, (s, n)), strict=True)
        )
        chance = np.clip((1 + truth + seeds + rows + both) / 2, 0, 1)
        ours = draw.random((s, n)) < chance
        low, high = paired(ours.astype(float), 1.0 - ours).interval
        held += low <= 100 * truth <= high
    assert least * rounds <= held <= 0.99 * rounds


@pytest.mark.parametrize("of", [1, 20, 255, 300])
def test_counts_come_back(of):
    counts = [np.random.default_rng(seed).integers(0, of + 1, 50) for seed in range(2)]
    counts[0][0] = of
    right = Right.counted(counts, of)
    assert np.array_equal(right.counts(), np.stack(counts))
    assert right.accuracy() == [100 * (c.sum() / (of * 50)) for c in counts]
    assert right.shares().max() == 1.0
    with pytest.raises(FormatError, match="of other rows"):
        Right(rows=49, of=of, seeds=right.seeds).counts()


def test_other_rows_or_seeds_are_no_pair():
    with pytest.raises(FormatError, match="other rows or seeds"):
        paired(np.ones((2, 3)), np.ones((3, 3)))
