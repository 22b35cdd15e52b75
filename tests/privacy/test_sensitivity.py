"""Coupled runs: with the noise held fixed, two neighbours' sums differ by no more than is declared.

The noise is added after the sum and is the same for both, so the difference is that of the integer sums.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.privacy.accountant import Release
from taftcache.privacy.descent import Descent, clipped_sum
from taftcache.privacy.network import OrdinaryNetwork, TangentNetwork
from taftcache.privacy.noise import discrete_gaussian
from taftcache.privacy.trainer import _noisy_count
from taftcache.tangent.rows import ArrayRows
from tests.privacy import making
from tests.seeded import SeededBits
from tests.tangent.blocks import MODELS, make_case

KINDS = [("narrow-mlp", "keep", "full"), ("plain", "keep", "bitfit"), ("all", "class-token", "full")]
LEAVES = 10  # neighbours of one data set


def strange(rng: np.random.Generator, source: ArrayRows) -> ArrayRows:
    """Some rows made hostile: not a number, infinite, huge, tiny, constant, or another's double."""
    x = source.tokens
    for i in range(source.rows):
        match rng.integers(0, 12):
            case 0:
                x[i] = np.nan
            case 1:
                x[i, rng.integers(0, x.shape[1]), rng.integers(0, x.shape[2])] = rng.choice([np.inf, -np.inf, np.nan])
            case 2:
                x[i] *= 10.0 ** rng.integers(3, 37)
            case 3:
                x[i] *= 10.0 ** -rng.integers(3, 40)
            case 4:
                x[i] = x[i, 0, 0]
            case 5:
                x[i] = x[rng.integers(0, source.rows)]
            case 6:
                x[i, 0] *= 1e30
    return source


def worst(kind: tuple[str, str, str], pairs: int, factor: int, seed: int) -> tuple[int, float]:
    """How many pairs were run, and the largest change of the sum over the declared sensitivity."""
    vit, spec, train = kind
    rng = np.random.default_rng(seed)
    found, largest = 0, 0.0
    while found < pairs:
        n = int(rng.integers(1, 9)) if rng.random() < 0.9 else int(rng.integers(250, 262))
        source = strange(rng, making.rows(n, seed=int(rng.integers(1 << 31)), vit=vit))
        clipping = "clip" if rng.random() < 0.7 else "normalise"
        run = making.descent(clip=10.0 ** rng.integers(-4, 4), multiplier=3.0, factor=factor, clipping=clipping)
        at = int(rng.integers(0, 50))
        whole = making.total(source, run, at, vit=vit, spec=spec, train=train)
        for leaves in rng.permutation(n)[:LEAVES]:
            if factor == 1:
                other = making.take(source, np.arange(n) != leaves)
            else:
                other = ArrayRows(source.tokens.copy(), source.labels.copy())
                new = strange(rng, making.rows(1, seed=int(rng.integers(1 << 31)), vit=vit))
                other.tokens[leaves], other.labels[leaves] = new.tokens[0], new.labels[0]
                order = rng.permutation(n)  # a row that replaces another has another place
                other = making.take(other, order)
            moved = (whole - making.total(other, run, at, vit=vit, spec=spec, train=train)).double().norm().item()
            largest = max(largest, moved * run.grid.unit / run.grid.sensitivity)
            found += 1
    return found, largest


@pytest.mark.law("A row moves a private sum by no more than is declared, whatever the row")
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered")
@pytest.mark.parametrize("factor", [1, 2], ids=["add-remove", "replace-one"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind))
@pytest.mark.parametrize("pairs", [20, pytest.param(1700, marks=[pytest.mark.full, pytest.mark.slow])])
def test_neighbours_differ_by_no_more_than_declared(kind, factor, pairs):
    found, largest = worst(kind, pairs, factor, seed=factor)
    assert found >= pairs
    assert largest <= 1.0
    assert largest > 0.6 / factor  # the bound is met by real rows: the runs would notice one that is too small


@pytest.mark.law("A row moves a private sum by no more than is declared, whatever the row")
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero) encountered")
@pytest.mark.parametrize("kind", ["norm-then-average", "inner-norms", "eva"])
@pytest.mark.parametrize("network", [TangentNetwork, OrdinaryNetwork])
def test_a_row_of_many_tokens_through_two_blocks_moves_the_sum_by_no_more_than_declared(kind, network):
    """There a matrix's gradient is a sum over tokens, which is formed before it is clipped."""
    model, options = MODELS[kind]
    base = make_case(model, options, dtype=torch.float32).base
    layout, largest = base.trained("full"), 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        plain = ArrayRows(rng.normal(0.5, 2, (4, *base.config.shape)).astype(np.float32), rng.integers(0, 4, 4))
        source = plain if seed == 0 else strange(rng, plain)
        run = making.descent(clip=10.0 ** rng.integers(-4, 4), multiplier=3.0)
        at = making.direction(layout.size, seed)

        def total(rows: ArrayRows, run: Descent = run, at: torch.Tensor = at) -> torch.Tensor:
            return clipped_sum(network(base, [rows], layout), CrossEntropy(), at, run)

        whole = total(source)
        for leaves in range(4):
            moved = whole - total(making.take(source, np.arange(4) != leaves))
            largest = max(largest, moved.double().norm().item() * run.grid.unit / run.grid.sensitivity)
    assert 0.6 < largest <= 1.0


def test_with_the_noise_fixed_outputs_differ_by_the_sums():
    source, run = making.rows(5), making.descent()
    less = making.take(source, slice(1, 5))
    noise = [discrete_gaussian(len(making.total(source, run)), run.grid.width, SeededBits(1)) for _ in range(2)]
    outputs = [making.total(rows, run).numpy() + drawn for rows, drawn in zip((source, less), noise, strict=True)]
    moved = np.linalg.norm((outputs[0] - outputs[1]).astype(np.float64)) * run.grid.unit
    assert 0 < moved <= run.grid.sensitivity


@pytest.mark.parametrize("multiplier", [37.0, 3e6])
def test_a_row_moves_the_noisy_count_by_no_more_than_one(multiplier):
    counts = [_noisy_count(n, Release(multiplier), SeededBits(0)) for n in range(40)]
    assert max(after - before for before, after in pairwise(counts)) <= 1 + 1e-8
