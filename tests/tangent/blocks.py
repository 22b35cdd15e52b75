"""Small random transformers of many kinds, cut before their last blocks, and timm's own modules as their oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from timm.layers import GluMlp, LayerNorm, RmsNorm, SwiGLU, SwiGLUPacked
from timm.models.eva import Eva
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torch.func import functional_call

from taftcache.backbone.cut.describe import DescribedTail, describe
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TangentSpec

WIDTH = 12
SIZE: dict[str, Any] = {"img_size": 8, "patch_size": 4, "embed_dim": WIDTH, "num_classes": 5, "num_heads": 3}

MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "plain": (VisionTransformer, {}),
    "average": (VisionTransformer, {"global_pool": "avg", "reg_tokens": 1}),
    "average-all": (VisionTransformer, {"global_pool": "avg", "pool_include_prefix": True, "class_token": False}),
    "norm-then-average": (VisionTransformer, {"global_pool": "avg", "fc_norm": False, "init_values": 0.3}),
    "token-fc-norm": (VisionTransformer, {"fc_norm": True}),
    "qk-norm": (VisionTransformer, {"qk_norm": True, "reg_tokens": 2, "init_values": 0.5}),
    "qk-rms": (VisionTransformer, {"qk_norm": True, "norm_layer": RmsNorm, "global_pool": "avg", "qkv_bias": False}),
    "inner-norms": (VisionTransformer, {"scale_attn_norm": True, "scale_mlp_norm": True}),
    "rms": (VisionTransformer, {"norm_layer": RmsNorm}),
    "no-affine": (VisionTransformer, {"norm_layer": partial(LayerNorm, affine=False)}),
    "no-biases": (VisionTransformer, {"qkv_bias": False, "proj_bias": False}),
    "swiglu": (VisionTransformer, {"mlp_layer": SwiGLU, "act_layer": "silu"}),
    "swiglu-packed": (VisionTransformer, {"mlp_layer": SwiGLUPacked, "act_layer": "silu", "init_values": 0.2}),
    "glu": (VisionTransformer, {"mlp_layer": GluMlp, "act_layer": "gelu_tanh"}),
    "quick-gelu": (VisionTransformer, {"act_layer": "quick_gelu"}),
    "relu": (VisionTransformer, {"act_layer": "relu"}),
    "tanh-gelu": (VisionTransformer, {"act_layer": "gelu_tanh"}),
    "post-norm": (VisionTransformer, {"block_fn": ResPostBlock, "init_values": 0.4}),
    "eva": (Eva, {"init_values": 0.3, "use_rot_pos_emb": True, "scale_mlp": True, "swiglu_mlp": True}),
    "eva-unfused": (Eva, {"qkv_fused": False, "use_rot_pos_emb": True, "scale_attn_inner": True}),
    "eva-average": (Eva, {"global_pool": "avg", "use_rot_pos_emb": True, "num_reg_tokens": 1, "swiglu_mlp": True}),
    "dinov3": (Eva, {"rope_type": "dinov3", "use_rot_pos_emb": True, "rope_rotate_half": True, "qkv_bias": False}),
    "rope-mixed": (Eva, {"rope_type": "mixed", "use_rot_pos_emb": True, "attn_type": "rope", "qk_norm": True}),
}


@dataclass
class Case:
    """A base point, its tokens, and timm's own end of the model as a function of named parameters."""

    base: Base
    tokens: Tensor
    on: Callable[[dict[str, Tensor], Tensor], Tensor]
    """Logits at the named parameters, on any tokens."""

    def forward(self, named: dict[str, Tensor]) -> Tensor:
        """Logits [n,K] at the named parameters, on the case's own tokens."""
        return self.on(named, self.tokens)


class _End(nn.Module):
    """The end of a model, under its own names."""

    def __init__(self, model: Any, first: int) -> None:
        super().__init__()
        self.model, self.first = model, first

    def forward(self, tokens: Tensor) -> Tensor:
        model: Any = self.model
        tables = None
        if getattr(model, "rope", None) is not None:
            tables = model.rope.get_embed()
        for k in range(self.first, len(model.blocks)):
            extra = {} if tables is None else {"rope": tables[k] if model.rope_mixed else tables}
            tokens = model.blocks[k](tokens, **extra)
        return model.forward_head(model.norm(tokens))


def make_model(kind: type, options: dict[str, Any], depth: int = 2, seed: int = 0, dtype=torch.float64) -> nn.Module:
    """A random model; weights are drawn wide, so that no term is negligible."""
    torch.manual_seed(seed)
    model = kind(**(SIZE | {"depth": depth} | options)).to(dtype).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    for module in model.modules():
        if isinstance(getattr(module, "fused_attn", None), bool):
            module.fused_attn = False
    return model


def make_case(
    kind: type,
    options: dict[str, Any],
    *,
    depth: int = 2,
    blocks: int = 2,
    n: int = 3,
    token: bool = False,
    classes: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """A model cut before its last ``blocks`` blocks, as layers; ``token``: with a class token of its own."""
    model: Any = make_model(kind, options, depth, seed, dtype)
    model.reset_classifier(classes)
    model.to(dtype)
    first = depth - blocks
    found = describe(model, blocks)
    assert isinstance(found, DescribedTail), found
    names = tuple(f"blocks.{k}" for k in range(first, depth))
    inside = (*(f"{name}." for name in names), "norm.", "fc_norm.")
    state = {n: t for n, t in model.state_dict().items() if n.startswith(inside)}
    config = TailConfig(
        path="layers",
        start=names[0],
        blocks=names,
        shape=(4 + model.num_prefix_tokens, WIDTH),
        class_token=model.cls_token is not None,
        width=WIDTH,
        classes=classes,
        parameters=tuple(state),
        norms=tuple(name for name in state if "norm" in name),
        buffers=tuple(found.buffers),
        layers=found.layers,
        end=found.end,
    )
    config = TailConfig.from_dict(msgspec.json.decode(msgspec.json.encode(config.as_dict())))
    spec = TangentSpec(seed=1, class_token="reset" if token else "keep", blocks=blocks)
    base = make_base(state | found.buffers, config, classes, spec).to(dtype)
    for name, table in found.buffers.items():  # a base is float32 at first, the oracle's table is not
        base.state[name] = table.to(dtype)
    tokens = torch.randn(n, *config.shape, dtype=dtype) * 2 + 0.5
    end = _End(model, first)

    def on(named: dict[str, Tensor], rows: Tensor) -> Tensor:
        named = {name: tensor for name, tensor in named.items() if name not in found.buffers}
        if config.token_name in named:
            rows = torch.cat([named.pop(config.token_name).expand(len(rows), 1, -1), rows[:, 1:]], 1)
        return functional_call(end, {f"model.{name}": tensor for name, tensor in named.items()}, (rows,))

    return Case(base, tokens, on)
