"""One closed-form layer on all tokens: its value, J and Jᵀ, with parameters by their timm names.

``value`` returns the output and what J and Jᵀ need of the base point; ``tangent`` and ``adjoint`` are linear in
what they are given. Weights, directions and gradients are mappings of names to tensors, and a name that is missing
is frozen: a zero that is never formed. An incoming tangent may be None, which is a zero too. No layer writes to a
tensor that it is given, and what it returns belongs to it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from torch import Tensor

from taftcache.tangent.factors import Direct, Factor
from taftcache.tangent.parameters import Layout

Named = Mapping[str, Tensor]
Saved = Any
"""What a layer keeps of the base point; None if it needs nothing."""


class Taker(Protocol):
    """What takes the parameters' gradients on the way back."""

    def __contains__(self, name: str) -> bool:
        """Whether the gradient of this parameter is wanted."""
        ...

    def take(self, layer: Primitive, w: Named, saved: Saved, g: Tensor) -> None:
        """``g`` is the gradient at the output of ``layer``."""
        ...


class Primitive(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that computes its own parameters' gradients and is not made of other layers."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its parameters."""
        return ()

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """The output for x, and what the other methods need."""
        raise NotImplementedError

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """Tangent of the output for the tangent ``dx`` of the input and ``dw`` of the parameters."""
        raise NotImplementedError

    def input_adjoint(self, w: Named, saved: Saved, g: Tensor) -> Tensor:
        """Gradient at the input, for ``g`` at the output."""
        raise NotImplementedError

    def contract(self, w: Named, saved: Saved, g: Tensor, out: Named) -> None:
        """Add the parameters' gradients, summed over rows and tokens, to ``out`` in place."""

    def factors(self, w: Named, saved: Saved, g: Tensor, where: Layout) -> tuple[list[Factor], list[Direct]]:
        """Each row's gradients of the parameters in ``where``."""
        return [], []

    def adjoint(self, w: Named, saved: Saved, g: Tensor, taker: Taker, need_input: bool) -> Tensor | None:
        """Hand the parameters' gradients to ``taker``; returns the gradient at the input if it is needed."""
        if any(name in taker for name in self.names):
            taker.take(self, w, saved, g)
        return self.input_adjoint(w, saved, g) if need_input else None


class Layer(Protocol):
    """A link of a chain."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]: ...

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None: ...

    def adjoint(self, w: Named, saved: Saved, g: Tensor, taker: Taker, need_input: bool) -> Tensor | None: ...


class Sum:
    """Gradients summed over the rows, into a mapping of names to tensors."""

    def __init__(self, out: Named) -> None:
        self.out = out

    def __contains__(self, name: str) -> bool:
        return name in self.out

    def take(self, layer: Primitive, w: Named, saved: Saved, g: Tensor) -> None:
        """Add this layer's gradients."""
        layer.contract(w, saved, g, self.out)


class PerRow:
    """Gradients of the rows one by one, in factored form."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.matrices: list[Factor] = []
        self.direct: list[Direct] = []

    def __contains__(self, name: str) -> bool:
        return name in self.layout

    def take(self, layer: Primitive, w: Named, saved: Saved, g: Tensor) -> None:
        """Append this layer's gradients."""
        matrices, direct = layer.factors(w, saved, g, self.layout)
        self.matrices += matrices
        self.direct += direct


def chain_value(layers: Iterable[Layer], w: Named, x: Tensor) -> tuple[Tensor, list[Saved]]:
    """The layers one after the other."""
    kept = []
    for layer in layers:
        x, saved = layer.value(w, x)
        kept.append(saved)
    return x, kept


def chain_tangent(
    layers: Iterable[Layer], w: Named, kept: Sequence[Saved], dx: Tensor | None, dw: Named
) -> Tensor | None:
    """Tangent of ``chain_value``."""
    for layer, saved in zip(layers, kept, strict=True):
        dx = layer.tangent(w, saved, dx, dw)
    return dx


def chain_adjoint(
    layers: Sequence[Layer], w: Named, kept: Sequence[Saved], g: Tensor, taker: Taker, need_input: bool
) -> Tensor | None:
    """Adjoint of ``chain_value``; goes no further back than the first layer that has a wanted parameter."""
    wanted = [any(name in taker for name in layer.names) for layer in layers]
    lowest = 0 if need_input else wanted.index(True) if True in wanted else len(layers)
    for k in reversed(range(lowest, len(layers))):
        back = layers[k].adjoint(w, kept[k], g, taker, need_input or k > lowest)
        if back is not None:
            g = back
    return g if need_input else None
