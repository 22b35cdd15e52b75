"""The base point w: what the tangent model is expanded around.

All components of a store share one base, made from the backbone's weights and a seed and
never from data; its digest is written into every component, and components of different
bases refuse to compose (a mean of expansions around different points means nothing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import blake3
import torch
from torch import Tensor

from taftcache.errors import BackboneError
from taftcache.tangent.class_row_tail import ClassRowTail
from taftcache.tangent.config import TailConfig
from taftcache.tangent.parameters import Layout
from taftcache.tangent.spec import Init, TangentSpec
from taftcache.tangent.tail import Tail


@dataclass(frozen=True)
class Base:
    """The base point: its tensors by timm name, and the layout of what may be trained."""

    config: TailConfig
    state: dict[str, Tensor]
    spec: TangentSpec

    @cached_property
    def tail(self) -> Tail:
        """f, J and Jᵀ at this point."""
        return ClassRowTail(self.config)

    @property
    def layout(self) -> Layout:
        """Every parameter of the tail, in the block's own order."""
        return Layout({name: tuple(tensor.shape) for name, tensor in self.state.items()})

    @property
    def head_layout(self) -> Layout:
        """The head alone."""
        return Layout({n: tuple(t.shape) for n, t in self.state.items() if n.startswith("head.")})

    @property
    def digest(self) -> str:
        """BLAKE3 over the constants and every tensor (name, shape, little-endian float32 bytes)."""
        hasher = blake3.blake3(json.dumps(vars(self.config), sort_keys=True).encode())
        for name in sorted(self.state):
            tensor = self.state[name].detach().cpu().to(torch.float32).contiguous()
            hasher.update(f"\0{name}\0{tuple(tensor.shape)}\0".encode())
            hasher.update(tensor.numpy().astype("<f4", copy=False).tobytes())
        return hasher.hexdigest()

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Base:
        """The same base in another precision or on another device."""
        moved = {name: tensor.to(device=device, dtype=dtype) for name, tensor in self.state.items()}
        return Base(self.config, moved, self.spec)


def make_base(
    tail_state: Mapping[str, Tensor], tail_config: Mapping[str, object], classes: int, spec: TangentSpec | None = None
) -> Base:
    """Build the base point from a cut's tail.

    Args:
        tail_state: float32 tensors by timm name (last block and final norm; a head there is ignored:
            the new head always comes from the seed, for it has other classes).
        tail_config: the cut's JSON description.
        classes: K of the new head.
        spec: the switches.

    Raises:
        BackboneError: a tensor of the last block or final norm is missing.
    """
    spec = spec or TangentSpec()
    config = TailConfig.from_dict(tail_config, classes)
    names = [n for n in parameter_names(config, tail_state) if not n.startswith("head.")]
    missing = [n for n in names if n not in tail_state]
    if missing:
        raise BackboneError("the tail must hold every tensor of the last block and the final norm", got=missing)
    generator = torch.Generator().manual_seed(spec.seed)
    state = {name: tail_state[name].detach().to(torch.float32).clone() for name in names}
    d = config.width
    state["head.weight"] = _draw(torch.empty(classes, d), d, spec.init, generator)
    state["head.bias"] = _draw(torch.empty(classes), d, spec.init, generator)
    if spec.reset_block:
        for name in names:
            if name.startswith(config.prefix):
                state[name] = _reset(name, state, spec.init, generator)
    if spec.class_token == "reset":
        token = torch.empty(1, 1, d).normal_(0.0, 1e-6, generator=generator)
        state = {f"{config.prefix}.cls_token": token, **state}
    return Base(config, state, spec)


def parameter_names(config: TailConfig, present: Mapping[str, object]) -> list[str]:
    """timm's names of the tail's parameters in forward order; optional ones only when ``present``."""
    p = config.prefix
    optional = {f"{p}.attn.qkv.bias", f"{p}.ls1.gamma", f"{p}.ls2.gamma"}
    names = [
        *(f"{p}.{n}" for n in ("norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.qkv.bias")),
        *(f"{p}.{n}" for n in ("attn.proj.weight", "attn.proj.bias", "ls1.gamma", "norm2.weight", "norm2.bias")),
        *(f"{p}.{n}" for n in ("mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias", "ls2.gamma")),
        *("norm.weight", "norm.bias", "head.weight", "head.bias"),
    ]
    return [name for name in names if name not in optional or name in present]


def _draw(tensor: Tensor, fan_in: int, init: Init, generator: torch.Generator) -> Tensor:
    if init == "torch":
        bound = 1 / sqrt(fan_in)
        return tensor.uniform_(-bound, bound, generator=generator)
    if tensor.ndim == 1:
        return tensor.zero_()
    return torch.nn.init.trunc_normal_(tensor, std=0.02, a=-0.04, b=0.04, generator=generator)


def _reset(name: str, state: Mapping[str, Tensor], init: Init, generator: torch.Generator) -> Tensor:
    tensor = state[name]
    if ".norm" in name:
        return torch.ones_like(tensor) if name.endswith("weight") else torch.zeros_like(tensor)
    if ".ls" in name:  # a freshly initialised LayerScale would close the branch: its trained value is kept
        return tensor
    fan_in = state[name.replace(".bias", ".weight")].shape[1]
    return _draw(torch.empty_like(tensor), fan_in, init, generator)
