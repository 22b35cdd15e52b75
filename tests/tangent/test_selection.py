"""Which parameters move, and that the least which is cached for them is exact."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from taftcache.backbone.cut.cut import Cut
from taftcache.errors import IdentityError, RecipeError
from taftcache.tangent.base import make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.selection import in_scope, row_shape, select, smallest_rows, trained_names
from taftcache.tangent.spec import TangentSpec
from tests.backbone.families import small_family
from tests.tangent.vits import VITS, make_case

HEAD = ["head.weight", "head.bias"]
P = "blocks.1"


def names(train, vit="layerscale"):
    base = make_case(vit, "keep").base
    return trained_names(base.config, base.layout, train)


def test_named_sets():
    everything = list(make_case("layerscale", "keep").base.state)
    assert names("full") == everything
    assert names("head") == HEAD
    assert names("bitfit") == [n for n in everything if n.endswith("bias") or n in HEAD]
    norms = [f"{m}.{k}" for m in (f"{P}.norm1", f"{P}.norm2", "norm") for k in ("weight", "bias")]
    assert sorted(names("layernorm")) == sorted(norms + HEAD)


def test_a_trained_token_moves_in_every_set_but_the_head():
    base = make_case("plain", "class-token").base
    for train, there in {"full": True, "bitfit": True, "layernorm": True, "head": False}.items():
        assert (f"{P}.cls_token" in base.trained(train)) == there


def test_globs_keep_the_order_of_the_tail():
    assert names(["head.*", "*.mlp.fc?.bias"]) == [f"{P}.mlp.fc1.bias", f"{P}.mlp.fc2.bias", *HEAD]
    assert names([f"{P}.attn.v.*", "head.bias"]) == [f"{P}.attn.v.weight", f"{P}.attn.v.bias", "head.bias"]
    assert names(["*.attn.*"]) == [f"{P}.attn.{n}" for n in ("qkv.weight", "qkv.bias", "proj.weight", "proj.bias")]
    assert names(["*.qkv.weight", "*.attn.v.*"])[:2] == [f"{P}.attn.v.bias", f"{P}.attn.qkv.weight"]


def test_a_head_at_zero_is_for_a_head_alone():
    state = make_base({}, TailConfig.of_vectors(4, 2), 3, TangentSpec(blocks=0, init="zero")).state
    assert not any(tensor.any() for tensor in state.values())
    with pytest.raises(RecipeError, match="passes no gradient"):
        TangentSpec(init="zero")


def test_a_glob_that_matches_nothing_is_refused_with_what_is_near():
    with pytest.raises(RecipeError, match=r"blocks\.1\.mlp\.fc1"):
        names(["blocks.1.mpl.fc1.weight"])


LEAST = {
    "feature": ["head", ["head.bias"]],
    "residual": [["*.mlp.*", "norm.*", "head.*"], ["*.norm2.*"], ["*.ls2.*", "norm.bias"]],
    "attended": [["*.proj.*"], ["*.attn.v.*", "*.mlp.*", "head.*"], ["*.ls1.gamma"]],
    "tokens": ["full", "bitfit", "layernorm", ["*.norm1.bias"], ["*.qkv.weight"]],
}
CASES = [(vit, kind, train) for vit in ("plain", "all", "layerscale") for kind in LEAST for train in LEAST[kind]]


@pytest.mark.law("What is cached less than whole is exact for what it serves, and refused for the rest")
@pytest.mark.parametrize(("vit", "kind", "train"), CASES, ids=str)
def test_the_least_rows_are_exact(vit, kind, train):
    """J, Jᵀ and f of a tail over the smaller rows are those of the tail over all tokens."""
    if isinstance(train, list) and "ls" in str(train) and not VITS[vit].get("init_values"):
        pytest.skip("no LayerScale")
    if isinstance(train, list) and vit == "all":
        train = [glob for glob in train if glob != "*.attn.v.bias"]
    case = make_case(vit, "reset-block")
    base, tokens = case.base, case.tokens
    layout = base.trained(train)
    assert smallest_rows(base.config, layout) == kind
    if kind == "tokens":
        return
    w = base.tail.bind(base.state)
    state = base.tail.value(w, tokens)
    rows = state.feature[:, None] if kind == "feature" else base.tail.reduce(w, tokens, kind)
    assert rows.shape[1:] == row_shape(base.config, kind)
    reduced = msgspec.structs.replace(base.config, rows=kind, reduced_by=base.reduction_digest())
    small = make_base(base.state, reduced, 4, base.spec).to(torch.float64)
    small.state.update(base.state)
    assert small.trained(train) == layout
    labels = np.arange(len(tokens)) % 4
    a, b = (
        TangentOperator(x, [ArrayRows(r.numpy(), labels)], trained=layout, dtype=torch.float64)
        for x, r in ((base, tokens), (small, rows))
    )
    v = torch.randn(layout.size, dtype=torch.float64)
    r = torch.randn(len(tokens), 4, dtype=torch.float64)
    ((whole, _),), ((part, _),) = a.blocks(), b.blocks()
    pairs = [
        (part.logits, whole.logits),
        (next(b.matvec(v)), next(a.matvec(v))),
        (b.accumulate(None, lambda *_: r), a.accumulate(None, lambda *_: r)),
    ]
    for mine, oracle in pairs:
        assert (mine - oracle).norm() <= 1e-12 * oracle.norm()


def test_rows_that_do_not_suffice_are_refused():
    config = msgspec.structs.replace(make_case("plain", "keep").base.config, rows="residual")
    assert select(config, TangentSpec(train=["*.mlp.*"]))
    assert select(config, TangentSpec(train="head")) == HEAD
    with pytest.raises(RecipeError, match=r'store\.cache = "tokens"'):
        select(config, TangentSpec(train="full"))


def test_rows_reduced_by_another_base_are_refused():
    case = make_case("plain", "keep")
    spec = TangentSpec(seed=1, reset_block=True, train="head")
    base = make_base(case.base.state, case.base.config, 4, spec)
    reduced = msgspec.structs.replace(base.config, rows="feature", reduced_by=base.reduction_digest())
    assert make_base(case.base.state, reduced, 4, spec).digest
    assert make_base(case.base.state, reduced, 9, spec).digest  # the head is not among what reduced them
    for other in (TangentSpec(seed=2, reset_block=True), TangentSpec(seed=1)):
        with pytest.raises(IdentityError, match="reduced"):
            make_base(case.base.state, reduced, 4, other)


def test_a_store_may_begin_further_down():
    config = msgspec.structs.replace(
        make_case("plain", "keep").base.config, start="blocks.10", blocks=("blocks.10", "blocks.11")
    )
    available = ["blocks.10.x", "blocks.11.x", "norm.weight", *HEAD]
    assert in_scope(config, available, 2) == in_scope(config, available, "blocks.10") == available
    assert in_scope(config, available, 1) == in_scope(config, available, "blocks.11") == available[1:]
    assert in_scope(config, available, 0) == HEAD
    for blocks in (3, "blocks.9"):
        with pytest.raises(RecipeError, match=r"begins at blocks\.10"):
            in_scope(config, available, blocks)


def test_the_base_is_reset_where_the_switches_say():
    case = make_case("layerscale", "keep")
    before = case.base.state

    def changed(**switches):
        base = make_base(before, case.base.config, 4, TangentSpec(seed=5, **switches))
        return {n for n in before if not torch.equal(base.state[n], before[n].float())} - set(HEAD)

    block = {n for n in before if n.startswith(f"{P}.") and "ls" not in n}
    assert changed() == set()
    assert changed(reset_block=True) == block
    assert changed(reset_norm=True) == {"norm.weight", "norm.bias"}
    assert changed(reset_block=True, reset_norm=True) == block | {"norm.weight", "norm.bias"}


def test_only_the_norm_after_the_last_block_is_reset():
    """Norms between the stages, before blocks and outside of them, were reset as well."""
    cut = Cut(small_family("ConvNeXt"), "stages.2")
    before, config = cut.tail_state(), cut.tail_config()
    for name in config.norms:  # from their first values a reset would not show
        before[name] = before[name] + 1
    base = make_base(before, config, 5, TangentSpec(reset_norm=True), cut.module())
    changed = {name for name in config.parameters if not torch.equal(base.state[name], before[name])}
    assert "stages.3.downsample.0.weight" in config.norms
    assert changed == {"head.norm.weight", "head.norm.bias"}


def test_the_digest_is_the_bases():
    case = make_case("plain", "keep")
    specs = [
        TangentSpec(seed=1),
        TangentSpec(seed=2),
        TangentSpec(seed=1, init="timm"),
        TangentSpec(seed=1, reset_norm=True),
    ]
    digests = [make_base(case.base.state, case.base.config, 4, spec).digest for spec in specs]
    assert len(set(digests)) == len(specs)
    assert (
        make_base(case.base.state, case.base.config, 4, TangentSpec(seed=1, train="head", blocks=0)).digest
        == digests[0]
    )
