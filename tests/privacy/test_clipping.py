"""Clipped sums: those of gradients formed one by one, in integers that nothing but the rows decides."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from taftcache.errors import BackboneError, SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.privacy.alone import check_alone
from taftcache.privacy.clipping import ClippedSum, disjoint
from taftcache.privacy.grid import Grid
from taftcache.privacy.noise import SystemBits
from taftcache.privacy.spec import PrivacySpec
from taftcache.tangent.factors import Direct, RankOne, TokenSum
from tests.privacy.making import base, dense, descent, network, rows, take, total

KINDS = [
    ("narrow-mlp", "keep", "full"),
    ("plain", "keep", "bitfit"),
    ("layerscale", "keep", "layernorm"),
    ("all", "class-token", "full"),
    ("no-qkv-bias", "reset-block", "full"),
    ("registers", "keep", "head"),
]


@pytest.mark.parametrize(("vit", "spec", "train"), KINDS)
@pytest.mark.parametrize("clip", [0.5, 30.0, 1e4])
@pytest.mark.parametrize("clipping", ["clip", "normalise"])
def test_is_the_sum_of_gradients_clipped_one_by_one(vit, spec, train, clip, clipping):
    source = rows(9, vit=vit)
    run = descent(clip, clipping=clipping)
    found = total(source, run, vit=vit, spec=spec, train=train, dtype=torch.float64).double() * run.grid.unit
    expected = dense(source, run, vit=vit, spec=spec, train=train)
    assert (found - expected).norm() <= 1e-4 * expected.norm() + 1e-6 * clip


@pytest.mark.law("A private sum has the same bits in any order, cut and number of threads")
@pytest.mark.parametrize("train", ["full", "head"])
def test_order_and_cuts_into_sources_change_no_bit(train):
    source, run = rows(300), descent()
    once = total(source, run, train=train)
    order = np.random.default_rng(1).permutation(300)
    assert torch.equal(once, total(take(source, order), run, train=train))
    apart = total(take(source, slice(0, 7)), run, train=train) + total(take(source, slice(7, 300)), run, train=train)
    assert torch.equal(once, apart)


@pytest.mark.law("A private sum has the same bits in any order, cut and number of threads")
def test_threads_change_no_bit():
    source, run = rows(300), descent()
    once = total(source, run)
    torch.set_num_threads(2)
    try:
        assert torch.equal(once, total(source, run))
    finally:
        torch.set_num_threads(1)


def test_no_rows_give_a_sum_of_zeros():
    assert total(rows(0), descent()).eq(0).all()


def test_gradients_that_are_sums_over_tokens():
    rng = torch.Generator().manual_seed(0)
    out, into = torch.randn(5, 3, 4, generator=rng), torch.randn(5, 3, 6, generator=rng)
    run = descent(clip=2.0)
    sums = ClippedSum(28, run.grid)
    norms = sums.add([TokenSum(slice(0, 24), slice(24, 28), out, into)], [], torch.tensor([True] * 4 + [False]))
    g = torch.cat([(out.double().mT @ into.double()).flatten(1), out.double().sum(1)], 1)
    assert torch.allclose(norms, g.norm(dim=1))
    expected = (g * (2.0 / g.norm(dim=1)).clamp(max=1.0)[:, None])[:4].sum(0)
    assert torch.allclose(sums.total().double() * run.grid.unit, expected, atol=1e-8)


def test_pieces_that_share_a_parameter_are_refused():
    x = torch.ones(2, 1, 3)
    piece = RankOne(slice(0, 9), None, x, x)
    with pytest.raises(BackboneError, match="two pieces"):
        disjoint([piece], [Direct(slice(8, 10), torch.ones(2, 2))])


@pytest.mark.parametrize("multiplier", [1e-12, 1e4])
def test_noise_that_the_grid_cannot_hold_is_refused(multiplier):
    with pytest.raises(SolveError, match="outside"):
        _ = Grid(1.0, 1.0, multiplier).width


def test_the_grid_is_fine_and_its_noise_as_wide_as_declared():
    for clip, factor, z in [(1.0, 1, 26.4), (0.01, 2, 0.7), (300.0, 1, 4.2)]:
        grid = Grid(clip, factor * clip, z)
        assert grid.unit * 2**grid.width == pytest.approx(z * factor * clip)
        assert 2**39 <= clip / grid.unit <= 2**40
    assert SystemBits.private


def test_a_clip_norm_that_float64_has_no_digits_for_is_refused():
    """So near to zero, the unit is rounded, and a clipped row may be longer than the noise is wide for."""
    grids = [Grid(k * 1e-311, k * 1e-311, 3.0) for k in range(1, 10)]
    assert max(grid.clip / grid.unit * 3.0 / 2**grid.width for grid in grids) > 1.01
    with pytest.raises(msgspec.ValidationError, match="1e-100"):
        msgspec.convert({"clip": 1e-311}, PrivacySpec)


@pytest.mark.law("Private training is refused where a row's numbers depend on its place among others")
@pytest.mark.parametrize("leak", [0.0, 1e-6])
def test_a_machine_on_which_rows_touch_each_other_is_refused(monkeypatch, leak):
    net = network(rows(3))
    prepared = type(net.operator).prepare

    def touched(self, tokens):
        """As a kernel that rounds the first rows of a block in another way."""
        state = prepared(self, tokens)
        state.logits[:3] *= 1 + leak
        return state

    monkeypatch.setattr(type(net.operator), "prepare", touched)
    if leak:
        with pytest.raises(SolveError, match="place in a block"):
            check_alone(base(), net, CrossEntropy())
    else:
        check_alone(base(), net, CrossEntropy())
