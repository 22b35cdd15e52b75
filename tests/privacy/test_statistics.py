"""Sufficient statistics of the head: the sums they are, how far one row moves them, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taftcache.privacy.clipping import ClippedSum
from taftcache.privacy.grid import Grid
from taftcache.privacy.statistics import feature_norm, least_squares, statistics_sum
from taftcache.tangent.factors import RankOne
from tests.privacy.making import K, base, network, rows, take
from tests.privacy.test_sensitivity import strange

GRID = Grid(1.0, 1.0, 3.0)


def sums(source, norm, share=0.5):
    """A·√a and B·√(1 − a) in units, one after the other."""
    total, d, classes = statistics_sum(network(source, train="head"), GRID, norm, share)
    return total.total(), d, classes


def dense(source, norm, share):
    """The same in float64, row by row."""
    operator = network(source, train="head", dtype=torch.float64).operator
    x = torch.cat([state.feature for state, _ in operator.blocks()])[: source.rows] / norm
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1.0)
    y = torch.nn.functional.one_hot(torch.from_numpy(source.labels), K).double()
    return torch.cat([(share**0.5 * (x.T @ x)).reshape(-1), ((1 - share) ** 0.5 * (y.T @ x)).reshape(-1)])


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("part", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("n", [40, 300])  # less than a block, which is filled up, and more
def test_are_the_sums_of_outer_products(n, share, part):
    source, norm = rows(n), part * feature_norm(base())
    found, d, classes = sums(source, norm, share)
    expected = dense(source, norm, share)
    assert (d, classes, len(found)) == (base().config.width, K, len(expected))
    assert (found.double() * GRID.unit - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.law("A row moves a private sum by no more than is declared, whatever the row")
@pytest.mark.parametrize("seed", range(16))
def test_a_row_moves_them_by_no_more_than_is_declared(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 30)) if seed < 12 else 257
    norm = feature_norm(base()) * 10.0 ** rng.integers(-3, 2)
    source = strange(rng, rows(n, seed=seed)) if seed % 2 else rows(n, seed=seed)
    whole, *_ = sums(source, norm)
    for gone in rng.permutation(n)[:30]:
        other, *_ = sums(take(source, np.arange(n) != gone), norm)
        moved = (whole - other).double().norm().item() * GRID.unit
        assert moved <= GRID.sensitivity


def test_factors_that_share_memory_are_left_as_they_are():
    """They did share it, and the second sum was of rows that the first had scaled up by a power of two."""
    x = torch.randn(20, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
    before, total = x.clone(), ClippedSum(60, GRID)
    total.add(
        [RankOne(slice(0, 36), None, x, x), RankOne(slice(36, 60), None, x[..., :4], x)], [], torch.ones(20).bool()
    )
    assert torch.equal(x, before)
    expected = torch.cat([(x[:, 0].T @ x[:, 0]).reshape(-1), (x[:, 0, :4].T @ x[:, 0]).reshape(-1)])
    assert (total.total().double() * GRID.unit - expected).norm() <= 1e-4 * expected.norm()


def test_least_squares_is_the_ridge_solution():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 6, dtype=torch.float64, generator=generator)
    y = torch.nn.functional.one_hot(torch.arange(50) % K, K).double()
    found = least_squares(x.T @ x, y.T @ x, 0.3)
    expected = torch.linalg.solve(x.T @ x + 0.3 * torch.eye(6, dtype=torch.float64), x.T @ y).T
    assert torch.allclose(found, expected, atol=1e-12)
    # eigenvalues that noise made negative count as none
    assert torch.allclose(least_squares(-x.T @ x, y.T @ x, 0.3), y.T @ x / 0.3)
