"""Whether a timm model ends in a block of which only the class row is ever needed, and that block's constants."""

from __future__ import annotations

from typing import Any, Literal

from timm.layers import Attention, LayerScale, Mlp
from timm.layers import LayerNorm as TimmLayerNorm
from timm.layers.activations import GELU as TimmGELU
from timm.layers.activations import GELUTanh
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

from taftcache.tangent.config import ClassRow


def class_row(model: nn.Module, start: str) -> ClassRow | str:
    """The class row's constants for the tail that begins at ``start``, or why there is no class row, a sentence.

    Types are compared exactly, for a subclass may compute otherwise.
    """
    if why := _in_model(model):
        return why
    assert isinstance(model, VisionTransformer)
    last = f"blocks.{len(model.blocks) - 1}"
    if start != last:
        return "the tail is more than the last block"
    block: Any = model.blocks[-1]
    if why := _in_block(last, block, model.embed_dim):
        return why
    return ClassRow(
        prefix=last,
        width=model.embed_dim,
        heads=block.attn.num_heads,
        eps1=block.norm1.eps,
        eps2=block.norm2.eps,
        eps_final=model.norm.eps,  # type: ignore[arg-type]
        gelu=_gelu(block.mlp.act) or "exact",
    )


def _in_model(model: nn.Module) -> str:
    """What the class row does not cover outside the last block; "" for nothing."""
    if type(model) is not VisionTransformer:
        return f"{type(model).__name__} is not the plain VisionTransformer"
    if not model.has_class_token:
        return "it has no class token"
    if model.global_pool != "token":
        return f"global_pool is {model.global_pool!r}, not 'token'"
    if model.attn_pool is not None:
        return "it pools by attention"
    if why := _in_norm("norm", model.norm):
        return why
    if type(model.fc_norm) is not nn.Identity:
        return f"fc_norm is a {type(model.fc_norm).__name__}, a norm after pooling"
    return ""


def _in_block(at: str, block: Any, width: int) -> str:
    """What the class row does not cover in the last block; "" for nothing."""
    if type(block) is not Block:
        return f"{at} is a {type(block).__name__}, not timm's Block"
    attention, mlp = block.attn, block.mlp
    if why := _in_norm(f"{at}.norm1", block.norm1) or _in_norm(f"{at}.norm2", block.norm2):
        return why
    if type(attention) is not Attention:
        return f"{at}.attn is a {type(attention).__name__}, not timm's Attention"
    for part in ("q_norm", "k_norm", "norm"):
        found = type(getattr(attention, part))
        if found is not nn.Identity:
            return f"{at}.attn.{part} is a {found.__name__} inside attention"
    if getattr(attention, "gate", None) is not None:
        return f"{at}.attn.gate is a gate on the attention's output"
    if attention.num_heads * attention.head_dim != width:
        return f"{at}.attn is {attention.num_heads} x {attention.head_dim} wide, the model {width}"
    for part in ("ls1", "ls2"):
        found = type(getattr(block, part))
        if found not in (LayerScale, nn.Identity):
            return f"{at}.{part} is a {found.__name__}, not a LayerScale"
    if type(mlp) is not Mlp:
        return f"{at}.mlp is a {type(mlp).__name__}, not timm's Mlp"
    if type(mlp.norm) is not nn.Identity:
        return f"{at}.mlp.norm is a {type(mlp.norm).__name__} inside the MLP"
    if _gelu(mlp.act) is None:
        return f"{at}.mlp.act is {type(mlp.act).__name__}, not GELU"
    linears = {"attn.qkv": attention.qkv, "attn.proj": attention.proj, "mlp.fc1": mlp.fc1, "mlp.fc2": mlp.fc2}
    for part, layer in linears.items():
        if type(layer) is not nn.Linear:
            return f"{at}.{part} is a {type(layer).__name__}, not a Linear"
        if layer.bias is None and part != "attn.qkv":
            return f"{at}.{part} has no bias"
    return ""


def _in_norm(at: str, norm: nn.Module) -> str:
    if type(norm) not in (nn.LayerNorm, TimmLayerNorm):
        return f"{at} is a {type(norm).__name__}, not a LayerNorm"
    return f"{at} lacks its weight or bias" if norm.weight is None or norm.bias is None else ""


def _gelu(layer: nn.Module) -> Literal["exact", "tanh"] | None:
    """ "exact", "tanh", or None for any other activation."""
    if type(layer) is nn.GELU:
        return "tanh" if layer.approximate == "tanh" else "exact"
    if type(layer) is TimmGELU:
        return "exact"
    return "tanh" if type(layer) is GELUTanh else None
