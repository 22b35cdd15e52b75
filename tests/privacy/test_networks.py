"""The two networks that private training knows: one start, and gradients where the weights are."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.privacy.descent import clipped_sum
from taftcache.privacy.network import OrdinaryNetwork, TangentNetwork, right
from taftcache.privacy.spec import PrivacySpec
from taftcache.privacy.trainer import train_privately, without_head
from tests.privacy.making import base, descent, direction, rows
from tests.seeded import SeededBits

NETWORKS = (TangentNetwork, OrdinaryNetwork)
SPEC = PrivacySpec(epsilon=8.0, steps=3, relation="replace-one", logits="tangent")


@pytest.mark.law("Both networks of a private comparison begin and choose alike, and with the head alone are one model")
def test_both_networks_start_with_the_head_at_zero():
    source, whole = rows(30), base().trained("layernorm")
    start = without_head(base(), whole)
    for kind in NETWORKS:
        for batch in kind(base(), [source], whole).batches(start):
            assert batch.logits.abs().max() < 1e-5
    spec = replace(SPEC, learning_rate=1e-12)
    for kind in NETWORKS:  # the training begins there: after tiny steps it is still there
        delta = train_privately(base(), kind(base(), [source], whole), CrossEntropy(), spec, bits=SeededBits(1)).delta
        assert torch.allclose(delta, start, atol=1e-6, rtol=0)


@pytest.mark.law("Both networks of a private comparison begin and choose alike, and with the head alone are one model")
def test_the_head_alone_is_one_model_whatever_the_network():
    source, tests, head = rows(40), rows(60, seed=1), base().head_layout
    found = [
        train_privately(base(), kind(base(), [source], head), CrossEntropy(), SPEC, bits=SeededBits(2)).delta
        for kind in NETWORKS
    ]
    assert found[0].abs().max() > 0.1
    assert torch.allclose(*found, rtol=1e-4, atol=1e-5)
    labels = [right(kind(base(), [tests], head), delta) for kind, delta in zip(NETWORKS, found, strict=True)]
    assert torch.equal(*labels)
    assert 0 < int(labels[0].sum()) < 60


@pytest.mark.parametrize("train", ["full", "layernorm"])
def test_the_ordinary_network_is_linearised_where_its_weights_are(train):
    source, whole = rows(7), base().trained(train)
    network = OrdinaryNetwork(base(), [source], whole, dtype=torch.float64)
    delta = without_head(base(), whole) + direction(whole.size)
    wide = descent(clip=50.0, multiplier=0.0)
    total = clipped_sum(network, CrossEntropy(), delta, wide) * wide.grid.unit

    named = {name: tensor.clone().requires_grad_() for name, tensor in network.base.moved(whole, delta).items()}
    tail = network.base.tail
    logits = tail.value(tail.bind(named), torch.from_numpy(source.tokens).double()).logits
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(source.labels), reduction="sum").backward()
    views = whole.views(total.double())
    for name, view in views.items():
        assert torch.allclose(view, named[name].grad, rtol=1e-4, atol=1e-4), name
    assert any(view.abs().max() > 1e-3 for name, view in views.items() if name not in base().config.head_names)
    assert torch.equal(right(network, delta), logits.argmax(1) == torch.from_numpy(source.labels))
