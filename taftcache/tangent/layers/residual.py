"""What surrounds the layers: the residual connection, a trained class token, pooling."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
from torch import Tensor

from taftcache.tangent.factors import Direct, Factor
from taftcache.tangent.layers.activation import Activation, Gate
from taftcache.tangent.layers.attention import Attend
from taftcache.tangent.layers.layer import Named, Primitive, Saved, Taker, chain_adjoint, chain_tangent, chain_value
from taftcache.tangent.layers.linear import Linear
from taftcache.tangent.layers.norm import Norm
from taftcache.tangent.parameters import Layout


class Residual(msgspec.Struct, frozen=True, kw_only=True, tag="residual"):
    """y = x + f(x) for a chain f.

    first: f returns only token 0, and y is that row [n,1,d].
    """

    layers: tuple[Norm | Linear | Attend | Activation | Gate, ...]
    first: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters of the chain."""
        return tuple(name for layer in self.layers for name in layer.names)

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """x [n,t,d] to the same shape, or to [n,1,d]; keeps what the chain keeps."""
        y, kept = chain_value(self.layers, w, x)
        return y + (x[:, :1] if self.first else x), kept

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """δx + δf."""
        dy = chain_tangent(self.layers, w, saved, dx, dw)
        if dx is None or dy is None:
            return dy
        return dy.add_(dx[:, :1] if self.first else dx)

    def adjoint(self, w: Named, saved: Saved, g: Tensor, taker: Taker, need_input: bool) -> Tensor | None:
        """g + fᵀ g."""
        gx = chain_adjoint(self.layers, w, saved, g, taker, need_input)
        if gx is None:
            return None
        gx[:, : g.shape[1]] += g
        return gx


class ClassToken(Primitive, frozen=True, kw_only=True):
    """A trained class token, shared by all rows, in place of token 0; without a tensor of that name, no change."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The token [1,1,d]."""
        return (self.name,)

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """x [n,t,d] with its row 0 replaced; keeps the shape."""
        if self.name in w:
            x = torch.cat([w[self.name].expand(x.shape[0], 1, -1), x[:, 1:]], 1)
        return x, x.shape

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """Only row 0 moves, with the token: the input comes from the cache."""
        if self.name not in dw:
            return dx
        dx = dw[self.name].new_zeros(saved)
        dx[:, 0] = dw[self.name].view(-1)
        return dx

    def input_adjoint(self, w: Named, saved: Saved, g: Tensor) -> Tensor:
        """No gradient reaches the row that was replaced."""
        if self.name not in w:
            return g
        return torch.cat([torch.zeros_like(g[:, :1]), g[:, 1:]], 1)

    def contract(self, w: Named, saved: Saved, g: Tensor, out: Named) -> None:
        """The sum of the rows' gradients."""
        out[self.name].view(-1).add_(g[:, 0].sum(0))

    def factors(self, w: Named, saved: Saved, g: Tensor, where: Layout) -> tuple[list[Factor], list[Direct]]:
        """Row 0 itself."""
        return [], [Direct(where.slices[self.name], g[:, 0])]


class Pool(Primitive, frozen=True, kw_only=True, tag="pool"):
    """Tokens [n,t,d] to one row [n,d]: token 0, or the mean of the tokens from ``skip`` on."""

    kind: Literal["token", "avg"]
    skip: int = 0

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """Keeps t."""
        return (x[:, 0] if self.kind == "token" else x[:, self.skip :].mean(1)), x.shape[1]

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """The same for δx."""
        return None if dx is None else self.value(w, dx)[0]

    def input_adjoint(self, w: Named, saved: Saved, g: Tensor) -> Tensor:
        """g at token 0, or an equal share of it at each token of the mean."""
        gx = g.new_zeros(len(g), saved, g.shape[1])
        if self.kind == "token":
            gx[:, 0] = g
        else:
            gx[:, self.skip :] = g[:, None] / (saved - self.skip)
        return gx
