"""The discrete Gaussian: exact, fresh, whole numbers of full width, and a width that is off by 1 % is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from taftcache.errors import SolveError
from taftcache.privacy import noise
from taftcache.privacy.noise import SystemBits, bernoulli, discrete_gaussian
from tests.privacy.checks import width_is_right
from tests.seeded import SeededBits


def fits(drawn: np.ndarray, b: int) -> float:
    """The p-value of a chi-squared test against the definition, over cells of one eighth of σ."""
    sigma = 1 << b
    support = np.arange(-9 * sigma, 9 * sigma + 1)
    weight = np.exp(-((support / sigma) ** 2) / 2)
    edges = np.arange(-3 * sigma, 3 * sigma + 1, sigma // 8)
    cell = np.searchsorted(edges, support, side="right")
    expected = np.bincount(cell, weight / weight.sum(), len(edges) + 1) * len(drawn)
    seen = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(edges) + 1)
    return stats.chisquare(seen, expected).pvalue


@pytest.mark.law("Private noise has its law, exactly")
@pytest.mark.parametrize("b", [8, 12])
def test_is_the_definition(b):
    assert fits(discrete_gaussian(400_000, b, SeededBits(b)), b) > 1e-4


def test_each_integer_comes_as_often_as_the_definition_says():
    drawn = discrete_gaussian(1_000_000, 8, SeededBits(3))
    near = drawn[np.abs(drawn) <= 8] + 8
    weight = np.exp(-((np.arange(-8, 9) / 256) ** 2) / 2)
    assert stats.chisquare(np.bincount(near, minlength=17), weight / weight.sum() * len(near)).pvalue > 1e-4


@pytest.mark.law("Private noise has its law, exactly")
@pytest.mark.parametrize(
    ("margin", "size"),
    [(0.9, 1_500), *(pytest.param(margin, 30_000, marks=pytest.mark.full) for margin in (0.2, 0.9))],
)
def test_the_exact_path_draws_the_same(monkeypatch, margin, size):
    """With a margin this wide, decimal arithmetic decides many or nearly all of the comparisons."""
    monkeypatch.setattr(noise, "MARGIN", margin)
    assert fits(discrete_gaussian(size, 9, SeededBits(4)), 9) > 1e-4


def test_boundaries_of_k_are_decided_with_more_bits():
    """Prefixes on a boundary of k's cumulative weights become either side of it, in proportion."""
    width = 13
    end = int(noise._cumulative(0) * 2**width)
    bits = SeededBits(5)
    share = np.mean([noise._step(end, width, bits) == 0 for _ in range(4000)])
    assert share == pytest.approx(float(noise._cumulative(0) * 2**width) - end, abs=0.04)


def test_two_draws_of_the_system_differ_and_seeds_repeat():
    assert not np.array_equal(discrete_gaussian(100, 40, SystemBits()), discrete_gaussian(100, 40, SystemBits()))
    again = [discrete_gaussian(100, 40, SeededBits(1)) for _ in range(2)]
    assert np.array_equal(*again)
    assert not SeededBits(1).private
    assert SystemBits().private


def test_all_bits_are_noise():
    """Even the last ones, of which a float would have lost some."""
    drawn = discrete_gaussian(200_000, 44, SystemBits())
    for bit in range(0, 44, 4):
        assert abs(((drawn >> bit) & 1).mean() - 0.5) < 0.006


def test_a_width_off_by_one_percent_is_noticed():
    """With a power above 0.99 and as few false alarms: all draws of three seeds, each way."""
    found = [discrete_gaussian(400_000, 40, SeededBits(seed)) for seed in range(3)]
    for drawn in found:
        assert width_is_right(drawn, 2.0**40)
        for factor in (0.99, 1.01):
            assert not width_is_right(drawn * factor, 2.0**40)
    # The statistic is normal with deviation √(2/n) around σ²: both errors at 1 % lie 4.4 deviations from the threshold.
    assert 2 * stats.norm.sf((0.02 - 0.01) / np.sqrt(2 / 400_000)) < 0.01


def alike(one: np.ndarray, other: np.ndarray, b: int) -> float:
    """The p-value of a chi-squared test that both are drawn from one law, over cells of one eighth of σ."""
    edges = np.arange(-3 << b, (3 << b) + 1, 1 << (b - 3))
    counts = [
        np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=len(edges) + 1) for drawn in (one, other)
    ]
    return float(stats.chi2_contingency(np.array(counts)).pvalue)


def test_opendp_draws_from_the_same_law():
    """An implementation that shares no line with this one, nor its way of sampling (Canonne, Kamath and Steinke)."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    theirs = np.array(dp.m.make_gaussian(*space, scale=256.0)([0] * 30_000))
    ours = discrete_gaussian(300_000, 8, SystemBits())
    assert alike(ours, theirs, 8) > 1e-6  # neither has a seed: one false alarm in a million runs
    near = [np.bincount(drawn[np.abs(drawn) <= 8] + 8, minlength=17) for drawn in (ours, theirs)]
    assert stats.chi2_contingency(np.array(near)).pvalue > 1e-6
    for wrong in (np.round(ours * 1.06), ours + 24, np.abs(ours)):
        assert alike(wrong.astype(np.int64), theirs, 8) < 1e-6


@pytest.mark.parametrize("b", [7, 51])
def test_widths_out_of_range_are_refused(b):
    with pytest.raises(SolveError, match="2\\^b"):
        discrete_gaussian(1, b, SystemBits())


def test_bernoulli_has_its_rate_and_takes_no_other():
    chosen = bernoulli(1_000_000, 0.125, SeededBits(0))
    assert abs(chosen.mean() - 0.125) < 5 * np.sqrt(0.125 * 0.875 / 1e6)
    assert not bernoulli(1000, 0.0, SystemBits()).any()
    assert bernoulli(1000, 1.0, SystemBits()).all()
    with pytest.raises(SolveError, match="multiple"):
        bernoulli(1, 0.1, SystemBits())
