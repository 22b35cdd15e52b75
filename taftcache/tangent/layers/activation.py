"""Pointwise functions, and gates: the product of two halves, one of which goes through such a function."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from taftcache.tangent.layers.layer import Named, Primitive, Saved
from taftcache.tangent.rules import gelu, gelu_derivative

Kind = Literal["gelu", "gelu_tanh", "silu", "quick_gelu", "relu", "sigmoid"]


class Activation(Primitive, frozen=True, kw_only=True, tag="activation"):
    """y = f(z)."""

    kind: Kind

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """f(x), of the same shape; keeps f'(x), which costs more to compute than to read."""
        return function(self.kind, x), derivative(self.kind, x)

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """f'(x)⊙δx."""
        return None if dx is None else dx * saved

    def input_adjoint(self, w: Named, saved: Saved, g: Tensor) -> Tensor:
        """f'(x)⊙g."""
        at_input: Tensor = g * saved
        return at_input


class Gate(Primitive, frozen=True, kw_only=True, tag="gate"):
    """y = f(a)⊙b for the two halves of the input: [a|b], or [b|a] if the gate comes last."""

    kind: Kind
    last: bool = False

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """[...,2m] to [...,m]; keeps ∂y/∂[a|b], in the order of the input."""
        first, second = x.chunk(2, -1)
        a, b = (second, first) if self.last else (first, second)
        f = function(self.kind, a)
        partial = torch.empty_like(x)
        at_first, at_second = partial.chunk(2, -1)
        at_a, at_b = (at_second, at_first) if self.last else (at_first, at_second)
        torch.mul(derivative(self.kind, a), b, out=at_a)
        at_b.copy_(f)
        return f * b, partial

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """∂y/∂a⊙δa + ∂y/∂b⊙δb."""
        if dx is None:
            return None
        (p, q), (d, e) = saved.chunk(2, -1), dx.chunk(2, -1)
        return torch.addcmul(p * d, q, e)

    def input_adjoint(self, w: Named, saved: Saved, g: Tensor) -> Tensor:
        """∂y/∂[a|b]⊙g, for both halves."""
        at_input: Tensor = (saved.unflatten(-1, (2, -1)) * g[..., None, :]).flatten(-2)
        return at_input


def function(kind: Kind, x: Tensor) -> Tensor:
    """f(x)."""
    if kind in ("gelu", "gelu_tanh"):
        return gelu(x, "exact" if kind == "gelu" else "tanh")
    if kind == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    if kind == "silu":
        return F.silu(x)
    return F.relu(x) if kind == "relu" else torch.sigmoid(x)


def derivative(kind: Kind, x: Tensor) -> Tensor:
    """f'(x), with 0 for ReLU at 0."""
    if kind in ("gelu", "gelu_tanh"):
        return gelu_derivative(x, "exact" if kind == "gelu" else "tanh")
    if kind == "relu":
        return (x > 0).to(x.dtype)
    rate = 1.702 if kind == "quick_gelu" else 1.0
    sigma = torch.sigmoid(rate * x)
    if kind == "sigmoid":
        return sigma * (1 - sigma)
    return torch.addcmul(sigma, rate * x * sigma, 1 - sigma)
