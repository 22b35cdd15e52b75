"""Paired differences: one case by hand, and how often the interval holds the truth."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.stats import t as student

from taftcache.errors import FormatError
from taftcache.paper.right import Right
from taftcache.report.accuracy import accuracy_interval
from taftcache.report.paired import RowGroups, paired, row_difference, row_verdict


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


def judged(ours: np.ndarray, theirs: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """The interval of a difference by groups, each left out in turn."""
    d = ours.astype(float) - theirs
    names = sorted(set(groups))
    k, n = len(names), len(d)
    without = [np.mean([x for x, g in zip(d, groups, strict=True) if g != name]) for name in names]
    jackknife = (k - 1) / k * sum((one - d.mean()) ** 2 for one in without)
    rows = ((sum(d**2) + 1) / (n + 2) - (sum(d) / (n + 2)) ** 2) / (n + 2)
    half = student.ppf(0.975, k - 1) * sqrt(max(rows, jackknife))
    return max(-1, sum(d) / (n + 2) - half), min(1, sum(d) / (n + 2) + half)


@pytest.mark.law("Where rows share groups, an interval is the jackknife's over groups; of one size, the sandwich's")
@pytest.mark.parametrize("sizes", [(5, 5), (1, 2, 40), (7,) * 9, tuple(range(1, 30))])
def test_groups_are_left_out_one_by_one(sizes):
    draw, n = np.random.default_rng(1), sum(sizes)
    groups = np.repeat([f"p{k}" for k in range(len(sizes))], sizes)[draw.permutation(n)]
    ours, theirs = (draw.random(n) < share for share in (0.8, 0.6))
    found = row_verdict(ours, theirs, RowGroups.of(groups))
    assert found.interval == pytest.approx(judged(ours, theirs, groups), abs=1e-12)
    assert found.ahead == pytest.approx(ours.mean() - theirs.mean(), abs=1e-15)
    assert found.groups == len(sizes)
    variance, _ = RowGroups.of(groups).judged(d := ours.astype(float) - theirs)
    if len({*sizes}) == 1:  # Liang and Zeger's, with k/(k − 1)
        sums = [(d - d.mean())[groups == name].sum() for name in {*groups}]
        k = len(sizes)
        assert variance == pytest.approx(k / (k - 1) * np.square(sums).sum() / n**2, rel=1e-12)
    p, low, high = ours.mean(), *accuracy_interval(ours, RowGroups.of(groups))
    spread, z = RowGroups.of(groups).judged(ours.astype(float))
    rows = min(n, p * (1 - p) / spread)
    for end in (low, high):  # Wilson's: where |p − end| is z deviations of a share of so many rows
        assert (p - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / rows, rel=1e-9)


def test_rows_of_their_own_groups_are_judged_as_rows():
    draw = np.random.default_rng(2)
    ours, theirs = (draw.random(50) < share for share in (0.8, 0.6))
    assert RowGroups.of(None) is None is RowGroups.of([f"p{k}" for k in range(50)])
    verdict, interval = row_verdict(ours, theirs), accuracy_interval(ours)
    assert verdict.groups is None
    assert RowGroups.of(["p1"] * 25 + [f"q{k}" for k in range(25)]).take(np.arange(24, 50)) is None
    for one in (["p1"] * 50, np.array(["p1"] * 50)):
        group = RowGroups.of(one)
        assert row_verdict(np.ones(50, bool), np.zeros(50, bool), group)[1:] == ((-1, 1), "within noise", 1)
        assert accuracy_interval(np.ones(50, bool), group) == (0, 1)
    pairs = RowGroups.of(np.arange(50) // 2)
    every = accuracy_interval(np.ones(50, bool), pairs)
    z = student.ppf(0.975, 24)
    assert accuracy_interval(np.ones(50, bool))[0] > every[0] == pytest.approx(25 / (25 + z**2)), "all right: 25 groups"
    assert row_verdict(ours, ours, pairs).interval[1] > row_verdict(ours, ours).interval[1] > 0
    assert (verdict.interval, interval) == (row_verdict(ours, theirs, None).interval, accuracy_interval(ours, None))


@pytest.mark.law("By groups, an interval holds the truth about as often as it says, and by their rows far less often")
@pytest.mark.parametrize(
    ("sizes", "least"),
    [
        ((60,) * 3, 0.92),
        ((40,) * 5, 0.92),
        ((20,) * 12, 0.92),
        ((25,) * 40, 0.92),
        ((150, *(3,) * 43), 0.92),
        (tuple(range(1, 60, 3)), 0.92),
        ((100, *(10,) * 5), 0.87),
    ],
)
def test_coverage_by_groups(sizes, least):
    """Differences and accuracies of rows whose group decides in part; over other groups they are 0 and 80 %."""
    draw, rounds = np.random.default_rng(0), 1000
    names = np.repeat(np.arange(len(sizes)), sizes)
    groups, held = RowGroups.of(names), np.zeros((2, 2), int)
    for _ in range(rounds):
        bend = draw.uniform(-0.2, 0.2, len(sizes))[names]
        ours, theirs = (draw.random(len(names)) < 0.8 + way * bend for way in (1, -1))
        for k, by in enumerate((groups, None)):
            for what, truth, (low, high) in (
                (0, 0.0, row_verdict(ours, theirs, by).interval),
                (1, 0.8, accuracy_interval(ours, by)),
            ):
                held[k, what] += low <= truth <= high
    by_groups, by_rows = held / rounds
    assert ((by_groups >= least) & (by_groups <= 0.98)).all()
    assert (by_rows < 0.82).all()


def test_other_rows_or_seeds_are_no_pair():
    with pytest.raises(FormatError, match="other rows or seeds"):
        paired(np.ones((2, 3)), np.ones((3, 3)))
