"""Every family of timm's models: cut anywhere, its two halves are the model, and its derivatives the whole model's."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from taftcache.backbone.cut import trace
from taftcache.backbone.cut.architecture import tail_module
from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.cut.remainder import PREFIX, forget_cached
from taftcache.backbone.forward.extract import extract
from taftcache.backbone.model import wrap_model
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.spec import PreprocessSpec
from taftcache.errors import BackboneError
from taftcache.tangent.base import make_base
from tests.backbone.families import table
from tests.backbone.registry import MemorySink, NoiseSource, images, small_backbone

TOLERANCE = 1e-12  # relative, float64
SLOW = {"MaxViT"}  # its grids need large images
# Wherever they are cut, their tails are closed forms, which need no code of timm's.
CLOSED = {"ViT, DeiT", "DeiT III", "DINOv2", "DINOv3", "EVA-02", "ViT with mixed RoPE", "ViT, average pooling"}
# One of each kind of architecture, and of each path; the others are in the full form.
KINDS = {"ViT, DeiT", "DeiT distilled", "DINOv3", "CaiT", "XCiT", "Swin", "TinyViT", "ConvNeXt V2", "ResNet"}


def kinds(*but: str) -> pytest.MarkDecorator:
    """Every family but those of these names; the quick form takes one of each kind."""
    quick = [f.name in KINDS and f.blocks not in (2, 3) for f in table.FAMILIES]
    chosen = [
        pytest.param(f, marks=[] if q else [pytest.mark.full])
        for f, q in zip(table.FAMILIES, quick, strict=True)
        if f.name not in but
    ]
    return pytest.mark.parametrize("family", chosen, ids=lambda f: f"{f.name}-{f.blocks}")


def pictures(family: Any, n: int = 2, seed: int = 3) -> torch.Tensor:
    return images(n, family.size, seed)


@cache
def cut_of(family_index: int) -> Cut:
    family = table.FAMILIES[family_index]
    return Cut(table.small_backbone(family), family.blocks)


def made(family: Any) -> Cut:
    return cut_of(table.FAMILIES.index(family))


@pytest.mark.law("Frozen layers, then the tail, are the model, wherever a model of any family is cut")
@kinds()
def test_prefix_then_rest_is_the_model(family):
    cut, x = made(family), pictures(family)
    with torch.no_grad():
        torch.testing.assert_close(cut.replay(cut.prefix(x)), cut.backbone.model(x), rtol=1e-5, atol=1e-5)


@kinds()
def test_a_trace_on_blank_images_is_one_without_numbers(family, monkeypatch):
    """Small models run as they are; of large ones the shapes alone."""
    model, traced = made(family).backbone.model, []
    for small in (0, 10**20):
        monkeypatch.setattr(trace, "_SMALL", small)
        traced.append(trace.trace(model, family.name, (3, family.size, family.size)))
    assert traced[0].calls
    assert traced[0] == traced[1]


@kinds()
def test_rows_are_what_a_hook_sees_and_what_stores_can_keep(family):
    cut, x, seen = made(family), pictures(family), []
    if not cut.start:
        expected = trace.feature(cut.backbone.model, x)
    else:
        hook = cut.backbone.model.get_submodule(cut.start).register_forward_pre_hook(
            lambda _, args: seen.append(args[0].clone())
        )
        with torch.no_grad():
            cut.backbone.model(x)
        hook.remove()
        (expected,) = seen
    assert torch.equal(cut.prefix(x), expected.reshape(2, *cut.tokens_shape))
    assert tuple(expected.shape[1:]) == cut.shape


@pytest.mark.law("J and Jᵀ of every family are those of `torch.func` on the whole, uncut model")
@kinds()
def test_derivatives_are_torch_funcs_on_the_whole_model(family):
    cut = Cut(table.small_backbone(family), family.blocks)
    errors = table.check(cut, pictures(family))
    assert max(errors.value, errors.tangent, errors.adjoint, errors.identity) <= TOLERANCE


def test_what_is_trained_is_what_j_moves_with_where_all_blocks_are_the_tail():
    """Mixed rotary embeddings have frequencies that are parameters; the tables that are made of them are constants."""
    family = table.Family("mixed RoPE", "vit_small_patch16_rope_mixed_ape_224", "blocks.0", table._VIT)
    cut, x = Cut(table.small_backbone(family), family.blocks), pictures(family)
    config = cut.tail_config()
    base = make_base(cut.tail_state(), config, table.CLASSES)
    assert config.path == "layers"
    assert "rope.freqs" not in base.layout
    whole, tail = table.whole_model(cut, base), base.tail
    w = tail.bind(base.state)
    state = tail.value(w, cut.prefix(x))
    generator = torch.Generator().manual_seed(5)
    with sdpa_kernel(SDPBackend.MATH):
        for name in base.layout:
            v = {name: torch.randn(base.state[name].shape, generator=generator)}
            rest = {n: t for n, t in base.state.items() if n in base.layout and n != name}
            expected = jvp(lambda p, rest=rest: whole(rest | p, x), ({name: base.state[name]},), (v,))[1]
            found = tail.tangent(w, state, tail.bind(v))
            assert expected.norm() > 0, name
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(cut.replay(cut.prefix(x)), cut.backbone.model(x), rtol=1e-5, atol=1e-5)


@kinds()
def test_names_are_timms_and_buffers_are_not_trained(family):
    cut = made(family)
    config, state = cut.tail_config(), cut.tail_state()
    model = cut.backbone.model
    named = dict(model.named_parameters())
    assert set(config.parameters) <= set(named)
    assert set(config.norms) <= set(config.parameters)
    assert not set(config.parameters) & {*config.buffers, *config.head_names}
    assert set(state) == {*config.parameters, *config.buffers, *config.head_names}
    assert all(torch.equal(state[n], named[n]) for n in config.parameters)
    assert type(config).from_dict(config.as_dict()) == config
    assert (config.path == "functional") == bool(config.why)


@pytest.mark.law("Nothing of a sample reaches the head but through its row")
@kinds(*SLOW)
def test_what_is_trained_never_moves_the_rows_and_what_is_not_moves_the_head_through_them_alone(family):
    """By changing the model's tensors in turn: all of the tail's, every fourth of the others."""
    backbone = table.small_backbone(family)
    cut, x = Cut(backbone, family.blocks), pictures(family, 2)
    config = cut.tail_config()
    rows, expected = cut.prefix(x), trace.feature(backbone.model, x)
    heads = (f"{config.head}.", "head_dist.")
    for k, (name, parameter) in enumerate(backbone.model.named_parameters()):
        if name.startswith(heads) or (k % 4 and name not in config.parameters):
            continue
        before = parameter.clone()
        with torch.no_grad():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7))
            same = torch.equal(cut.prefix(x), rows)
            if name in config.parameters:
                assert same, name
            elif same:
                assert torch.equal(trace.feature(backbone.model, x), expected), name
            parameter.copy_(before)


@kinds(*CLOSED)
def test_the_tails_code_can_be_had_without_weights(family):
    cut = made(family)
    identity = {
        "backbone": cut.backbone.config,
        "preprocess": {"input_size": [3, family.size, family.size]},
    }
    config, state = cut.tail_config(), cut.tail_state()
    assert config.path == "functional"
    rebuilt = tail_module(identity, config, state)
    tensors = {f"{PREFIX}{n}": state[n] for n in (*config.parameters, *config.buffers)}
    rows = cut.prefix(pictures(family))
    with torch.no_grad():
        assert torch.equal(functional_call(rebuilt, tensors, (rows,)), functional_call(cut.module(), tensors, (rows,)))
    held = {n for n, p in rebuilt.named_parameters() if p.numel() and not torch.isnan(p).all()}
    assert not held


def test_the_head_alone_has_no_code():
    assert Cut(small_backbone(), 0).module() is None


def test_position_biases_that_timm_keeps_between_evaluations_are_trained_and_of_each_precision():
    family = next(f for f in table.FAMILIES if f.name == "TinyViT")
    backbone, x = table.small_backbone(family), pictures(family)
    with torch.no_grad():
        backbone.model(x)  # timm keeps them now
    cut = Cut(backbone)
    assert f"{cut.start}.attn.attention_biases" in cut.parameters
    base = make_base(cut.tail_state(), cut.tail_config(), table.CLASSES, module=cut.module())
    for dtype in (torch.float32, torch.float64):
        tail, moved = base.tail, base.to(dtype)
        state = tail.value(moved.state, cut.prefix(x).to(dtype))
        out = {name: torch.zeros_like(moved.state[name]) for name in base.layout}
        tail.tangent(moved.state, state, {name: moved.state[name] for name in base.layout})
        tail.adjoint(moved.state, state, torch.ones_like(state.logits), out)
        assert out[f"{cut.start}.attn.attention_biases"].norm() > 0


def test_another_architecture_is_refused():
    cut = Cut(small_backbone(), 2)
    backbone = cut.backbone.config | {"model": "vit_tiny_patch16_224", "model_args": {"img_size": 32}}
    identity = {"backbone": backbone, "preprocess": {"input_size": [3, 32, 32]}}
    with pytest.raises(BackboneError, match=r"differs in blocks\.1"):
        tail_module(identity, cut.tail_config(), cut.tail_state())
    identity["backbone"] = backbone | {"model": "no_such_model"}
    with pytest.raises(BackboneError, match="no_such_model"):
        tail_module(identity, cut.tail_config(), cut.tail_state())


@pytest.mark.parametrize("name", ["resnet10t", "test_efficientnet"])
def test_bytes_depend_on_the_sample_alone_with_batch_norm(name):
    torch.manual_seed(0)
    backbone = wrap_model(timm.create_model(name, num_classes=2), name, PreprocessSpec(input_size=(3, 32, 32)))
    cut, transform, source = Cut(backbone), Preprocess(backbone), NoiseSource(9)
    whole, other = MemorySink(), MemorySink()
    extract(cut, transform, source, range(9), whole, batch=4, workers=2)
    extract(cut, transform, source, [7, 2, 5], other, batch=4, workers=1)
    assert all(whole.rows[id] == row for id, row in other.rows.items())


class _Feature(nn.Module):
    """The head's input of a whole model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images):
        forget_cached(self.model)
        return trace.feature(self.model, images)


@pytest.mark.law("J and Jᵀ of every family are those of `torch.func` on the whole, uncut model")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("efficientvit_m0", "levit_128s") else [pytest.mark.full])
        for name in ("efficientvit_m0", "levit_128s", "shvit_s1", "swiftformer_xs", "efficientformer_l1", "repvit_m0_9")
    ],
)
def test_a_model_whose_head_is_left_away_is_cut_whatever_timm_calls_its_classifier(name):
    torch.manual_seed(0)
    backbone = wrap_model(timm.create_model(name, num_classes=0), name)
    cut, x = Cut(backbone), images(2, 224)
    with torch.no_grad():
        torch.testing.assert_close(cut.replay(cut.prefix(x)), backbone.model(x), rtol=1e-4, atol=1e-4)
    base = make_base(cut.tail_state(), cut.tail_config(), 3, module=cut.module()).to(torch.float64)
    backbone.model.double()
    trained = {n: base.state[n] for n in base.config.parameters}
    v = {n: torch.randn(t.shape, dtype=t.dtype, generator=torch.Generator().manual_seed(4)) for n, t in trained.items()}
    whole = _Feature(backbone.model)
    with sdpa_kernel(SDPBackend.MATH):
        change = jvp(
            lambda p: functional_call(whole, {f"{PREFIX}{n}": t for n, t in p.items()}, (x.double(),)), (trained,), (v,)
        )[1]
    expected = change @ base.state[base.config.head_names[0]].T
    tail, rows = base.tail, cut.prefix(x.double())
    found = tail.tangent(base.state, tail.value(base.state, rows), v)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


# The page.


@pytest.mark.parametrize(
    "names", [{"MobileNet V3"}, pytest.param({"ResNet", "DINOv3", "XCiT"}, marks=pytest.mark.full)], ids=str
)
def test_the_page_says_what_is_so(names):
    """Its rows of some families, made anew; errors by their bound, for rounding differs between machines."""
    text = table.PAGE.read_text(encoding="utf-8")
    chosen = tuple(f for f in table.FAMILIES if f.name in names)
    for line in list(table.rows(chosen))[2:]:
        *said, tangent, adjoint = [cell.strip() for cell in line.strip("|").split("|")]
        there = [row for row in text.splitlines() if row.startswith("| " + " | ".join(said) + " |")]
        assert len(there) == 1, f"out of date: python tools/make_models_table.py: {said}"
        for cell in (tangent, adjoint, *[c.strip() for c in there[0].strip("|").split("|")][-2:]):
            assert float(cell) <= TOLERANCE
    assert all(f"`{f.model}`" in text for f in table.FAMILIES)
    assert text.endswith(f"\n{table.bundled()}"), "out of date: python tools/make_models_table.py"
