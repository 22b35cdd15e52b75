"""From timm's modules to closed-form layers: the last blocks of a vision transformer as a store describes them.

Types are compared exactly, because a subclass may compute something else. If something has no closed form, the answer
is a sentence that names it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import torch
from timm.layers.activations import GELU as TimmGELU
from timm.layers.activations import GELUTanh, QuickGELU, Sigmoid
from timm.layers.attention import Attention, AttentionRope
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import GluMlp, Mlp, SwiGLU
from timm.layers.norm import LayerNorm as TimmLayerNorm
from timm.layers.norm import LayerNormFp32, RmsNorm, RmsNormFp32
from timm.models.eva import Eva, EvaAttention, EvaBlock
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.layers.activation import Activation, Gate, Kind
from taftcache.tangent.layers.attention import Attend, Rotation
from taftcache.tangent.layers.config import LayerSpec, Readout
from taftcache.tangent.layers.linear import Linear
from taftcache.tangent.layers.norm import Norm
from taftcache.tangent.layers.residual import Pool, Residual

Chain = tuple[Norm | Linear | Attend | Activation | Gate, ...]


class DescribedTail(NamedTuple):
    """A tail as layers."""

    layers: tuple[LayerSpec, ...]
    end: ClassRow | Readout
    buffers: dict[str, Tensor]
    """Tensors that the layers read but nothing trains (tables of rotary embeddings), by names of our own."""
    read: frozenset[str]
    """timm's names for the parameters that the layers read."""


class _Uncovered(Exception):
    """The first thing that has no closed form."""


def describe(model: nn.Module, blocks: int, grid: tuple[int, int] | None = None) -> DescribedTail | str:
    """The last ``blocks`` blocks of ``model``, its pooling and final norm; or why they have no closed form.

    Args:
        model: from timm, in evaluation mode.
        blocks: k, at least 1.
        grid: patches down and across, if they are not the model's own (for an input of another size).
    """
    try:
        return _describe(model, blocks, grid)
    except _Uncovered as why:
        return str(why)


def _describe(model: Any, blocks: int, grid: tuple[int, int] | None) -> DescribedTail:
    if type(model) not in (VisionTransformer, Eva):
        raise _Uncovered(f"the model is a {type(model).__name__}")
    if not 1 <= blocks <= len(model.blocks):
        raise _Uncovered(f"the model has {len(model.blocks)} blocks, not {blocks}")
    end = _readout(model)
    token = any(type(layer) is Pool and layer.kind == "token" for layer in end.layers)
    described: list[Residual] = []
    buffers: dict[str, Tensor] = {}
    for index in range(len(model.blocks) - blocks, len(model.blocks)):
        rotation = None
        if type(model) is Eva and model.rope is not None:
            name = f"rope.{index}" if model.rope_mixed else "rope"
            buffers[name] = _table(model, index, grid)
            rotation = Rotation(table=name, skip=model.num_prefix_tokens)
        last = index == len(model.blocks) - 1
        described += _block(f"blocks.{index}", model.blocks[index], rotation, first=last and token)
    read = frozenset(name for layer in (*described, *end.layers) for name in layer.names)
    row = _class_row(model, f"blocks.{len(model.blocks) - 1}", described[-2:], end)
    if row is not None:
        return DescribedTail(tuple(described[:-2]), row, buffers, read)
    return DescribedTail(tuple(described), end, buffers, read)


def _readout(model: Any) -> Readout:
    """Final norm, pooling and the norm after it, as in ``forward_head``."""
    if model.attn_pool is not None:
        raise _Uncovered("it pools by attention")
    if model.global_pool not in ("token", "avg"):
        raise _Uncovered(f"global_pool is {model.global_pool!r}")
    if type(model.head) not in (nn.Linear, nn.Identity):
        raise _Uncovered(f"head is a {type(model.head).__name__}")
    skip = 0 if getattr(model, "pool_include_prefix", False) else model.num_prefix_tokens
    before, after = _norm("norm", model.norm), _norm("fc_norm", model.fc_norm)
    pool = Pool(kind="token") if model.global_pool == "token" else Pool(kind="avg", skip=skip)
    return Readout(layers=tuple(layer for layer in (before, pool, after) if layer is not None))


def _block(at: str, block: Any, rotation: Rotation | None, first: bool) -> list[Residual]:
    """Both residual branches."""
    if type(block) not in (Block, ResPostBlock, EvaBlock):
        raise _Uncovered(f"{at} is a {type(block).__name__}")
    if type(block) is EvaBlock:
        scales = [f"{at}.gamma_{k}" if getattr(block, f"gamma_{k}") is not None else "" for k in (1, 2)]
    elif type(block) is Block:
        scales = [_scale(f"{at}.{part}", getattr(block, part)) for part in ("ls1", "ls2")]
    else:
        scales = ["", ""]
    norms = [_norm(f"{at}.{part}", getattr(block, part)) for part in ("norm1", "norm2")]
    inner = [_attention(f"{at}.attn", block.attn, rotation, first), _mlp(f"{at}.mlp", block.mlp)]
    branches = []
    for norm, scale, layers in zip(norms, scales, inner, strict=True):
        chain = [*layers[:-1], msgspec.structs.replace(layers[-1], scale=scale)]
        if type(block) is ResPostBlock:
            branches.append((*chain, *([norm] if norm else [])))
        else:
            branches.append((*_folded(norm, chain[0]), *chain[1:]))
    return [Residual(layers=branches[0], first=first), Residual(layers=branches[1])]


def _attention(at: str, attention: Any, rotation: Rotation | None, first: bool) -> Chain:
    if type(attention) not in (Attention, EvaAttention, AttentionRope):
        raise _Uncovered(f"{at} is a {type(attention).__name__}")
    if attention.gate is not None:
        raise _Uncovered(f"{at}.gate is a gate on the attention's output")
    if getattr(attention, "num_kv_groups", 1) != 1:
        raise _Uncovered(f"{at} has fewer keys than queries")
    if rotation is not None:
        rotation = msgspec.structs.replace(
            rotation, skip=attention.num_prefix_tokens, half=getattr(attention, "rotate_half", False)
        )
        if first and rotation.skip == 0:
            raise _Uncovered(f"{at} turns the class token")
    if attention.qkv is not None:
        qkv = _linear(f"{at}.qkv", attention.qkv)
        if type(attention) is EvaAttention and attention.q_bias is not None:
            qkv = Linear(weights=qkv.weights, biases=(f"{at}.q_bias", "", f"{at}.v_bias"))
    else:
        parts = [_linear(f"{at}.{part}", getattr(attention, part)) for part in ("q_proj", "k_proj", "v_proj")]
        biases = tuple(part.biases[0] if part.biases else "" for part in parts)
        qkv = Linear(weights=tuple(part.weights[0] for part in parts), biases=biases if any(biases) else ())
    core = Attend(
        heads=attention.num_heads,
        q_norm=_norm(f"{at}.q_norm", attention.q_norm),
        k_norm=_norm(f"{at}.k_norm", attention.k_norm),
        rotation=rotation,
        first=first,
    )
    inner = _folded(_norm(f"{at}.norm", attention.norm), _linear(f"{at}.proj", attention.proj))
    return (qkv, core, *inner)


def _mlp(at: str, mlp: Any) -> Chain:
    if type(mlp) not in (Mlp, GluMlp, SwiGLU):
        raise _Uncovered(f"{at} is a {type(mlp).__name__}")
    kind = _activation(f"{at}.act", mlp.act)
    middle: Activation | Gate
    if type(mlp) is SwiGLU:
        gate, into = _linear(f"{at}.fc1_g", mlp.fc1_g), _linear(f"{at}.fc1_x", mlp.fc1_x)
        first = Linear(weights=gate.weights + into.weights, biases=gate.biases + into.biases)
        middle = Gate(kind=kind)
    else:
        first = _linear(f"{at}.fc1", mlp.fc1)
        middle = Gate(kind=kind, last=mlp.gate_last) if type(mlp) is GluMlp else Activation(kind=kind)
    return (first, middle, *_folded(_norm(f"{at}.norm", mlp.norm), _linear(f"{at}.fc2", mlp.fc2)))


def _linear(at: str, layer: nn.Module) -> Linear:
    if type(layer) is not nn.Linear:
        raise _Uncovered(f"{at} is a {type(layer).__name__}")
    return Linear(weights=(f"{at}.weight",), biases=() if layer.bias is None else (f"{at}.bias",))


def _norm(at: str, layer: Any) -> Norm | None:
    """A norm; None if ``layer`` is the identity."""
    if type(layer) is nn.Identity:
        return None
    if type(layer) in (nn.LayerNorm, TimmLayerNorm, LayerNormFp32):
        bias = "" if layer.bias is None else f"{at}.bias"
        return Norm(eps=layer.eps, weight="" if layer.weight is None else f"{at}.weight", bias=bias)
    if type(layer) in (RmsNorm, RmsNormFp32):
        return Norm(eps=layer.eps, kind="rms", weight="" if layer.weight is None else f"{at}.weight")
    raise _Uncovered(f"{at} is a {type(layer).__name__}")


def _folded(norm: Norm | None, linear: Any) -> Chain:
    """A norm and the linear map after it, which takes over the norm's affine."""
    if norm is None:
        return (linear,)
    bare = msgspec.structs.replace(norm, weight="", bias="")
    return bare, msgspec.structs.replace(linear, gamma=norm.weight, beta=norm.bias)


def _scale(at: str, layer: nn.Module) -> str:
    if type(layer) not in (LayerScale, nn.Identity):
        raise _Uncovered(f"{at} is a {type(layer).__name__}")
    return f"{at}.gamma" if type(layer) is LayerScale else ""


def _activation(at: str, layer: Any) -> Kind:
    if type(layer) is nn.GELU:
        return "gelu_tanh" if layer.approximate == "tanh" else "gelu"
    kinds: dict[type, Kind] = {
        TimmGELU: "gelu",
        GELUTanh: "gelu_tanh",
        QuickGELU: "quick_gelu",
        nn.SiLU: "silu",
        nn.ReLU: "relu",
        nn.Sigmoid: "sigmoid",
        Sigmoid: "sigmoid",
    }
    if type(layer) not in kinds:
        raise _Uncovered(f"{at} is a {type(layer).__name__}")
    return kinds[type(layer)]


def _table(model: Any, index: int, grid: tuple[int, int] | None) -> Tensor:
    """Sines and cosines of the rotary embedding, as ``forward_features`` hands them to this block."""
    cached = not model.dynamic_img_size and getattr(model.rope, "feat_shape", None) is not None
    with torch.no_grad():
        table: Tensor = (
            model.rope.get_embed() if cached else model.rope.get_embed(shape=grid or model.patch_embed.grid_size)
        )
    return (table[index] if model.rope_mixed else table).detach().clone()


def _class_row(model: Any, at: str, branches: list[Residual], end: Readout) -> ClassRow | None:
    """The class row's own form, if the last block is a plain one; see ``tangent.class_row``."""
    attend, mlp = (branch.layers for branch in branches)
    if len(attend) != 4 or len(mlp) != 4 or len(end.layers) != 2:
        return None
    layers: list[Any] = [*attend, *mlp, *end.layers]
    norm1, qkv, core, proj, norm2, fc1, act, fc2, final, pool = layers
    plain = (
        all(type(norm) is Norm and norm.kind == "layer" for norm in (norm1, norm2, final))
        and type(pool) is Pool
        and pool.kind == "token"
        and type(core) is Attend
        and core == Attend(heads=core.heads, first=True)
        and qkv == _plain(f"{at}.attn.qkv", f"{at}.norm1", bias=bool(qkv.biases))
        and proj == _plain(f"{at}.attn.proj", scale=f"{at}.ls1.gamma" if proj.scale else "")
        and fc1 == _plain(f"{at}.mlp.fc1", f"{at}.norm2")
        and type(act) is Activation
        and act.kind in ("gelu", "gelu_tanh")
        and fc2 == _plain(f"{at}.mlp.fc2", scale=f"{at}.ls2.gamma" if fc2.scale else "")
        and (final.weight, final.bias) == ("norm.weight", "norm.bias")
        and model.blocks[-1].attn.qkv.out_features == 3 * model.embed_dim
    )
    if not plain:
        return None
    return ClassRow(
        prefix=at,
        width=model.embed_dim,
        heads=core.heads,
        eps1=norm1.eps,
        eps2=norm2.eps,
        eps_final=final.eps,
        gelu="exact" if act.kind == "gelu" else "tanh",
    )


def _plain(at: str, norm: str = "", scale: str = "", bias: bool = True) -> Linear:
    """A linear map as it stands in a plain block."""
    gamma, beta = (f"{norm}.weight", f"{norm}.bias") if norm else ("", "")
    biases = (f"{at}.bias",) if bias else ()
    return Linear(weights=(f"{at}.weight",), biases=biases, gamma=gamma, beta=beta, scale=scale)
