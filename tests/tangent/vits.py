"""Small random ViTs and the oracle they are held against: torch.func on timm's own modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch
from torch import Tensor
from torch.func import functional_call

from taftcache.tangent.base import Base, make_base
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TangentSpec

VITS: dict[str, dict] = {
    "plain": {},
    "no-qkv-bias": {"qkv_bias": False},
    "layerscale": {"init_values": 0.3},
    "registers": {"reg_tokens": 3},
    "one-head": {"num_heads": 1},
    "narrow-mlp": {"mlp_ratio": 0.5},
    "tanh-gelu": {"act_layer": "gelu_tanh"},
    "all": {"qkv_bias": False, "init_values": 0.3, "reg_tokens": 2},
}
SPECS: dict[str, TangentSpec] = {
    "keep": TangentSpec(seed=1, init="torch"),
    "class-token": TangentSpec(seed=1, class_token="reset", init="torch"),
    "reset-block": TangentSpec(seed=1, reset_block=True, init="torch"),
}


@dataclass
class Case:
    """A base point, its block inputs and timm's own tail as a function of named parameters."""

    base: Base
    tokens: Tensor
    forward: Callable[[dict[str, Tensor]], Tensor]
    """Logits [n,K] of timm's modules at the named parameters."""


def make_case(vit: str, spec: str, n: int = 5, classes: int = 4, seed: int = 0, dtype=torch.float64) -> Case:
    """A random two-block ViT cut at its last block; weights are drawn wide, so that no term is negligible."""
    torch.manual_seed(seed)
    options = {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 7}
    model = timm.create_model("vit_tiny_patch16_224", **{**options, **VITS[vit]}).to(dtype).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    block = model.blocks[-1]
    block.attn.fused_attn = False
    tail = {
        name: tensor for name, tensor in model.state_dict().items() if name.startswith(("blocks.1.", "norm.", "head."))
    }
    names = tuple(name for name in tail if not name.startswith("head."))
    config = TailConfig(
        path="class row",
        start="blocks.1",
        blocks=("blocks.1",),
        shape=(16 + model.num_prefix_tokens, 12),
        class_token=True,
        width=12,
        classes=7,
        parameters=names,
        norms=tuple(name for name in names if "norm" in name),
        end=ClassRow(
            prefix="blocks.1",
            width=12,
            heads=block.attn.num_heads,
            eps1=block.norm1.eps,
            eps2=block.norm2.eps,
            eps_final=model.norm.eps,
            gelu="tanh" if vit == "tanh-gelu" else "exact",
        ),
    )
    base = make_base(tail, config, classes, SPECS[spec]).to(dtype)
    tokens = torch.randn(n, config.shape[0], 12, dtype=dtype) * 2 + 0.5
    model.reset_classifier(classes)

    def forward(named: dict[str, Tensor]) -> Tensor:
        inner = {name.removeprefix("blocks.1."): value for name, value in named.items() if name.startswith("blocks.1.")}
        rows = tokens
        if "cls_token" in inner:
            rows = torch.cat([inner.pop("cls_token").expand(n, 1, -1), rows[:, 1:]], 1)
        rows = functional_call(block, inner, (rows,))
        rows = functional_call(model.norm, {k[5:]: v for k, v in named.items() if k.startswith("norm.")}, (rows,))
        return functional_call(model.head, {k[5:]: v for k, v in named.items() if k.startswith("head.")}, (rows[:, 0],))

    return Case(base, tokens, forward)
