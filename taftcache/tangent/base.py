"""The base point w: what the tangent model is expanded around.

All components of a store share one base, made from the backbone's weights and a seed, never from data. Its digest is
written into every component, and components of different bases refuse to compose, because a mean of expansions around
different points means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod, sqrt

import blake3
import msgspec
import torch
from torch import Tensor, nn

from taftcache.errors import BackboneError, IdentityError
from taftcache.tangent.class_row.tail import ClassRowTail
from taftcache.tangent.config import TailConfig
from taftcache.tangent.feature import FeatureTail
from taftcache.tangent.functional import FunctionalTail
from taftcache.tangent.layers.tail import LayersTail
from taftcache.tangent.parameters import Layout
from taftcache.tangent.selection import ROWS, select, values
from taftcache.tangent.spec import Init, TangentSpec, Train
from taftcache.tangent.tail import Tail


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Base:
    """The base point: its tensors by timm name, and which of them may be trained.

    module: the tail's own code, for the functional path.
    """

    config: TailConfig
    state: dict[str, Tensor]
    spec: TangentSpec
    module: nn.Module | None = None

    @classmethod
    def of(cls, config: TailConfig, tensors: Mapping[str, Tensor], spec: TangentSpec) -> Base:
        """The base of tensors in any order, including the class token if it was reset; KeyError if one is missing."""
        token = [config.token_name] if config.token_name in tensors else []
        names = [*token, *config.parameters, *config.buffers, *config.head_names]
        return cls(config, {name: tensors[name] for name in names}, spec)

    @cached_property
    def tail(self) -> Tail:
        """f, J and Jᵀ at this point."""
        if self.config.rows == "feature" or self.config.path == "feature":
            return FeatureTail(self.config)
        if self.config.path == "layers":
            return LayersTail(self.config)
        if self.config.path == "functional":
            assert self.module is not None
            return FunctionalTail(self.config, self.module)
        return ClassRowTail(self.config)

    @property
    def layout(self) -> Layout:
        """Every parameter of the tail, in forward order."""
        fixed = set(self.config.buffers)
        return Layout({name: tuple(tensor.shape) for name, tensor in self.state.items() if name not in fixed})

    @property
    def head_layout(self) -> Layout:
        """The head alone."""
        return self.trained("head")

    def trained(self, train: Train) -> Layout:
        """The parameters that ``train`` selects, as a layout.

        Raises:
            RecipeError: a glob that matches nothing, or parameters for which the cached rows do not suffice.
        """
        return self.named(select(self.config, self.spec, train))

    def named(self, names: Iterable[str]) -> Layout:
        """A layout of some of the tail's parameters (or value parts of them), in the tail's order.

        Raises:
            KeyError: a name that the tail does not have.
        """
        whole = self.layout.shapes
        packed = {name: whole[name.replace(".v.", ".qkv.")] for name in values(self.config)}
        parts = {name: (shape[0] // 3, *shape[1:]) for name, shape in packed.items()}
        return Layout(parts | whole).named(names)

    def moved(self, layout: Layout, delta: Tensor) -> dict[str, Tensor]:
        """The tensors of w + Δw, for Δw [P] over ``layout``; those that do not move are ``state``'s own.

        Raises:
            KeyError: Δw ranges over parts of a packed matrix, which have no tensor of their own.
        """
        return self.state | {n: self.state[n] + change.to(self.state[n]) for n, change in layout.views(delta).items()}

    @property
    def digest(self) -> str:
        """BLAKE3 over the description and every tensor (name, shape, little-endian float32 bytes)."""
        described = self.config.as_dict() | {"why": ""}
        return state_digest(self.state, msgspec.json.encode(described, order="sorted"))

    def has_digest(self, digest: str) -> bool:
        """Whether ``digest`` is this point's for any kind of rows that a store may cache: components of every kind are
        expanded around it. Each kind takes a hash of every tensor, so the kind in use is tried first."""
        if digest == self.digest:
            return True
        reduced = self.reduction_digest()
        configs = ((rows, "" if rows == "tokens" or self.config.path == "feature" else reduced) for rows in ROWS)
        return any(
            replace(self, config=msgspec.structs.replace(self.config, rows=rows, reduced_by=by)).digest == digest
            for rows, by in configs
        )

    def reduction_digest(self) -> str:
        """BLAKE3 over what turns tokens into smaller rows: every tensor of the tail but the head."""
        return state_digest({n: t for n, t in self.state.items() if n not in self.config.head_names})

    def unreduced(self) -> Base:
        """The same base point for a tail that begins at its whole input, whatever part of that a store caches."""
        return Base(
            msgspec.structs.replace(self.config, rows="tokens", reduced_by=""), self.state, self.spec, self.module
        )

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Base:
        """The same base in another precision or on another device."""
        moved = {
            name: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)
            for name, tensor in self.state.items()
        }
        return Base(self.config, moved, self.spec, self.module)


def state_digest(state: Mapping[str, Tensor], prefix: bytes = b"") -> str:
    """BLAKE3 over tensors in the order of their names, float32 little-endian."""
    hasher = blake3.blake3(prefix)
    for name in sorted(state):
        tensor = state[name].detach().cpu().to(torch.float32).contiguous()
        hasher.update(f"\0{name}\0{tuple(tensor.shape)}\0".encode())
        hasher.update(tensor.numpy().astype("<f4", copy=False).tobytes())
    return hasher.hexdigest()


def make_base(
    tail_state: Mapping[str, Tensor],
    config: TailConfig,
    classes: int,
    spec: TangentSpec | None = None,
    module: nn.Module | None = None,
) -> Base:
    """Build the base point from a cut's tail.

    Args:
        tail_state: tensors by timm name (a head there is ignored: the new head always comes from the seed, because it
            has other classes).
        config: the cut's description.
        classes: K of the new head.
        spec: the switches.
        module: the tail's own code, which only the functional path needs, to run it.

    Raises:
        BackboneError: a tensor of the tail is missing, or it has no class token to reset.
        IdentityError: the cached rows were reduced around another base point.
    """
    spec = spec or TangentSpec()
    config = msgspec.structs.replace(config, classes=classes)
    names = [*config.parameters, *config.buffers]
    if missing := [n for n in names if n not in tail_state]:
        raise BackboneError("tensors of the tail are missing from its state", got=", ".join(missing[:4]))
    state = {n: tail_state[n].detach().clone() for n in names}
    state = {n: t.to(torch.float32) if t.is_floating_point() else t for n, t in state.items()}
    weight, bias = config.head_names
    generator = torch.Generator().manual_seed(spec.seed)
    state[weight] = _draw(
        torch.empty(classes, config.width, dtype=torch.float32, device="cpu"), config.width, spec.init, generator
    )
    state[bias] = _draw(torch.empty(classes, dtype=torch.float32, device="cpu"), config.width, spec.init, generator)
    if spec.reset_block and config.blocks:
        for name in config.parameters:
            if name.startswith(f"{config.blocks[-1]}."):
                state[name] = _reset(name, config, state, spec)
    if spec.reset_norm:
        for name in config.final_norms:
            state[name] = _reset(name, config, state, spec)
    if spec.class_token == "reset":
        if not config.class_token:
            raise BackboneError(
                "no class token to reset at the tail's input",
                got=f"a tail that begins at {config.start}" if config.start else "a tail of the head alone",
                do='leave tangent.class_token at "keep"',
            )
        token = torch.empty(1, 1, config.shape[-1], dtype=torch.float32, device="cpu")
        token.normal_(0.0, 1e-6, generator=_stream(spec.seed, config.token_name))
        state = {config.token_name: token, **state}
    base = Base(config, state, spec, module)
    if config.reduced_by and base.reduction_digest() != config.reduced_by:
        raise IdentityError(
            "the cached rows were reduced around another base point",
            got=f"rows: {config.rows} of {config.reduced_by[:16]}, the settings make {base.reduction_digest()[:16]}",
            do='put the [tangent] section back, or extract with store.cache = "tokens", which serves every base point',
        )
    return base


def _draw(tensor: Tensor, fan_in: int, init: Init, generator: torch.Generator) -> Tensor:
    if init == "zero":
        return tensor.zero_()
    if init == "torch":
        bound = 1 / sqrt(fan_in)
        return tensor.uniform_(-bound, bound, generator=generator)
    if tensor.ndim == 1:
        return tensor.zero_()
    return torch.nn.init.trunc_normal_(tensor, std=0.02, a=-0.04, b=0.04, generator=generator)


def _reset(name: str, config: TailConfig, state: Mapping[str, Tensor], spec: TangentSpec) -> Tensor:
    tensor = state[name]
    if name in config.norms:
        return torch.ones_like(tensor) if name.endswith("weight") else torch.zeros_like(tensor)
    weight = tensor if tensor.ndim > 1 else state.get(name.removesuffix("bias") + "weight")
    if weight is None or weight.ndim < 2:
        # LayerScale and its like: a freshly initialised one would switch the branch off, so the trained value is kept.
        return tensor
    return _draw(torch.empty_like(tensor), prod(weight.shape[1:]), spec.init, _stream(spec.seed, name))


def _stream(seed: int, name: str) -> torch.Generator:
    """A tensor's own random numbers, which depend neither on the number of classes nor on what else is drawn."""
    return torch.Generator().manual_seed(int.from_bytes(blake3.blake3(f"{seed}/{name}".encode()).digest(7), "little"))
