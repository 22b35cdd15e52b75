"""The cut of plain ViTs: prefix and tail are the model, bit for bit; what the class row does not cover is named."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock
from torch import nn

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import wrap_model
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.spec import PreprocessSpec
from taftcache.errors import BackboneError
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TangentSpec
from tests.backbone.families import small_family
from tests.backbone.registry import SMALL, VARIANTS, images, small_backbone

variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
FEW = {"plain", "layer_scale", "registers_no_embed_class", "pre_norm", "one_block"}
CASES = {
    name: pytest.param(v, id=name, marks=[] if name in FEW else [pytest.mark.full]) for name, v in VARIANTS.items()
}
few = pytest.mark.parametrize("options", CASES.values())


@pytest.mark.law("Frozen layers, then the tail, are the model, wherever a model of any family is cut")
@variants
def test_prefix_then_replay_is_the_model(options):
    backbone = small_backbone(**options)
    cut, x = Cut(backbone), images(5)
    with torch.no_grad():
        assert torch.equal(cut.replay(cut.prefix(x)), backbone.model(x))


@pytest.mark.parametrize(
    ("name", "small", "last"),
    [
        ("pit_ti_224", {"img_size": 64}, "transformers.2.blocks.3"),
        ("tresnet_m", {}, "body.layer4.2"),
        ("visformer_tiny", {"img_size": 64}, "stage3.3"),
    ],
)
def test_blocks_of_other_names_are_found(name, small, last):
    options = {"num_classes": 0, **small}
    size = PreprocessSpec(input_size=(3, 64, 64)) if name == "tresnet_m" else PreprocessSpec()
    backbone = wrap_model(timm.create_model(name, **options), name, size, model_args=options)
    cut, x = Cut(backbone, 1), images(2, 64)
    assert cut.start == last
    assert torch.allclose(cut.replay(cut.prefix(x)), backbone.model(x), atol=1e-5)


@few
def test_prefix_is_what_a_hook_on_the_last_block_sees(options):
    backbone = small_backbone(**options)
    cut, x, seen = Cut(backbone), images(5), []
    hook = backbone.model.get_submodule(cut.start).register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    with torch.no_grad():
        backbone.model(x)
    hook.remove()
    tokens = cut.prefix(x)
    assert torch.equal(seen[0][0], tokens)
    assert tuple(tokens.shape[1:]) == cut.tokens_shape


# With one block there is none before the cut.
@pytest.mark.parametrize("options", [case for name, case in CASES.items() if name != "one_block"])
def test_prefix_agrees_with_timms_forward_intermediates(options):
    backbone = small_backbone(**options)
    cut, x = Cut(backbone), images(3)
    with torch.no_grad():
        ((spatial, leading),) = backbone.model.forward_intermediates(
            x, indices=[int(cut.start[7:]) - 1], return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )
    assert torch.equal(torch.cat([leading, spatial], 1), cut.prefix(x))


@variants
def test_the_tail_is_described_completely(options):
    """A block built anew from ``tail_config`` alone and loaded with ``tail_state`` computes the same logits."""
    backbone = small_backbone(**options)
    cut, x = Cut(backbone), images(4)
    config, state = cut.tail_config(), cut.tail_state()
    assert TailConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    end = config.end
    assert all(t.dtype == torch.float32 and not t.requires_grad for t in state.values())
    d, p = config.width, end.prefix
    tokens = cut.prefix(x)
    u = nn.functional.layer_norm(tokens, (d,), state[f"{p}.norm1.weight"], state[f"{p}.norm1.bias"], end.eps1)
    qkv = nn.functional.linear(u, state[f"{p}.attn.qkv.weight"], state.get(f"{p}.attn.qkv.bias"))
    q, k, v = qkv.view(4, config.shape[0], 3, end.heads, d // end.heads).permute(2, 0, 3, 1, 4)
    o = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(tokens.shape)
    o = nn.functional.linear(o, state[f"{p}.attn.proj.weight"], state[f"{p}.attn.proj.bias"])
    y = tokens + o * state.get(f"{p}.ls1.gamma", torch.ones(d))
    u = nn.functional.layer_norm(y, (d,), state[f"{p}.norm2.weight"], state[f"{p}.norm2.bias"], end.eps2)
    h = nn.functional.linear(u, state[f"{p}.mlp.fc1.weight"], state[f"{p}.mlp.fc1.bias"])
    h = nn.functional.gelu(h, approximate="tanh" if end.gelu == "tanh" else "none")
    h = nn.functional.linear(h, state[f"{p}.mlp.fc2.weight"], state[f"{p}.mlp.fc2.bias"])
    y = (y + h * state.get(f"{p}.ls2.gamma", torch.ones(d)))[:, 0]
    z = nn.functional.layer_norm(y, (d,), state["norm.weight"], state["norm.bias"], end.eps_final)
    if config.classes:
        z = nn.functional.linear(z, state["head.weight"], state["head.bias"])
    with torch.no_grad():
        torch.testing.assert_close(z, backbone.model(x), rtol=2e-5, atol=2e-5)
    assert config.parameters == tuple(n for n, _ in backbone.model.named_parameters() if n in state and "head" not in n)


def test_tail_state_is_a_copy():
    backbone = small_backbone()
    cut = Cut(backbone)
    before = cut.tail_state()["head.weight"].clone()
    cut.tail_state()["head.weight"].zero_()
    assert torch.equal(cut.tail_state()["head.weight"], before)


def test_rows_depend_on_what_is_before_the_tail_and_on_nothing_else():
    def rows(name: str | None) -> torch.Tensor:
        backbone = small_backbone()
        if name is not None:
            with torch.no_grad():
                backbone.model.get_parameter(name).view(-1)[0] += 1
        cut = Cut(backbone)
        shape = (2, *backbone.data_config["input_size"])
        return cut.prefix(torch.randn(shape, generator=torch.Generator().manual_seed(0)))

    for name in ("head.bias", "norm.weight", "blocks.2.mlp.fc1.weight"):
        assert torch.equal(rows(name), rows(None))
    for name in ("cls_token", "patch_embed.proj.bias", "blocks.1.mlp.fc2.weight"):
        assert not torch.equal(rows(name), rows(None))


NOT_A_CLASS_ROW = {
    "average pooling": ({"global_pool": "avg"}, ""),
    "average pooling without fc_norm": ({"global_pool": "avg", "fc_norm": False}, ""),
    "no class token": ({"class_token": False, "global_pool": "avg"}, ""),
    "largest token": ({"global_pool": "max"}, "global_pool"),
    "attention pooling": ({"global_pool": "map"}, "attention"),
    "fc_norm": ({"fc_norm": True}, ""),
    "no final norm": ({"final_norm": False}, ""),
    "qk-norm": ({"qk_norm": True}, ""),
    "attention norm": ({"scale_attn_norm": True}, ""),
    "mlp norm": ({"scale_mlp_norm": True}, ""),
    "rms norm": ({"norm_layer": "rmsnorm"}, ""),
    "quick gelu": ({"act_layer": "quick_gelu"}, ""),
    "hard sigmoid": ({"act_layer": "hard_sigmoid"}, "Hardsigmoid"),
    "relu": ({"act_layer": "relu"}, ""),
    "no projection bias": ({"proj_bias": False}, ""),
    "post-norm block": ({"block_fn": ResPostBlock}, ""),
    "parallel block": ({"block_fn": ParallelScalingBlock}, "ParallelScalingBlock"),
}


@pytest.mark.law("What no closed form covers is linearised by `torch.func`, and named")
@pytest.mark.parametrize(("options", "named"), NOT_A_CLASS_ROW.values(), ids=NOT_A_CLASS_ROW.keys())
def test_what_the_class_row_does_not_cover_takes_another_path_and_what_no_layer_does_is_named(options, named):
    backbone = small_backbone(**options)
    cut, x = Cut(backbone), images(3)
    config = cut.tail_config()
    assert config.path == ("functional" if named else "layers")
    assert named in config.why
    assert bool(named) == bool(config.why)
    with torch.no_grad():
        torch.testing.assert_close(cut.replay(cut.prefix(x)), backbone.model(x), rtol=1e-5, atol=1e-5)


def test_a_subclass_may_compute_otherwise():
    class Changed(type(small_backbone().model)):
        pass

    assert "Changed" in Cut(wrap_model(Changed(**SMALL), "changed")).tail_config().why


def test_a_gate_in_the_attention_is_named():
    backbone = small_backbone()
    backbone.model.blocks[-1].attn.gate = nn.Linear(48, 48)
    assert "gate" in Cut(backbone).tail_config().why


def test_two_cuts_of_one_model_do_not_meet():
    backbone, x = small_backbone(), images(2)
    first, second = Cut(backbone), Cut(backbone, 2)
    with torch.no_grad():
        assert torch.equal(backbone.model.blocks[1](second.prefix(x)), first.prefix(x))
        assert torch.equal(second.replay(second.prefix(x)), backbone.model(x))


def test_images_of_another_size_are_refused():
    cut = Cut(small_backbone(dynamic_img_size=True))
    with pytest.raises(BackboneError, match="32"):
        cut.prefix(images(2, size=40))
    with pytest.raises(BackboneError):
        cut.prefix(images(2)[0])


def test_a_dynamic_model_takes_the_size_that_preprocessing_says():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, dynamic_img_size=True)
    cut = Cut(wrap_model(model, "small", PreprocessSpec(input_size=(3, 48, 40))))
    assert cut.tokens_shape == (6 * 5 + 1, 48)
    assert torch.isfinite(cut.prefix(torch.randn(1, 3, 48, 40))).all()


def test_a_size_the_patches_do_not_divide_is_refused():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, dynamic_img_size=True)
    with pytest.raises(BackboneError, match="size"):
        Cut(wrap_model(model, "small", PreprocessSpec(input_size=(3, 30, 30))))


def test_maps_are_described_as_the_network_has_them():
    """24 maps of 2 x 2 pixels were called 48 tokens, and nothing named the cut."""
    cut = Cut(small_family("ConvNeXt"), 1)
    channels, down, across = cut.shape
    said = Reduction(cut, 5, TangentSpec()).describe()
    assert said.startswith(f"maps of each sample, {channels} x {down} x {across}: ")
    assert f"cut before {cut.start}" in said
    tokens = Reduction(Cut(small_backbone(depth=2), 2), 5, TangentSpec(blocks=2))
    assert tokens.describe().startswith("tokens of each sample, {} x {}: ".format(*tokens.tokens_shape))
