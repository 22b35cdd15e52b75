"""LayerNorm and RMSNorm over the last axis, with or without an affine of their own."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from taftcache.tangent.factors import Direct, Factor
from taftcache.tangent.layers.layer import Named, Primitive, Saved
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rules import normalise, normalise_tangent, rms_normalise, rms_normalise_tangent


class Norm(Primitive, frozen=True, kw_only=True, tag="norm"):
    """γ⊙u + β with u = (x − mean x)·r, or x·r if ``kind`` is "rms" (TAFT eq. 10).

    weight, bias: names of γ and β; "" if there is none, or it is folded into the linear map that follows.
    """

    eps: float
    kind: Literal["layer", "rms"] = "layer"
    weight: str = ""
    bias: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(n for n in (self.weight, self.bias) if n)

    def value(self, w: Named, x: Tensor) -> tuple[Tensor, Saved]:
        """x [...,d] to the same shape; keeps u and r."""
        u, r = normalise(x, self.eps) if self.kind == "layer" else rms_normalise(x, self.eps)
        y = u * w[self.weight] if self.weight else u
        return (y + w[self.bias] if self.bias else y), (u, r)

    def tangent(self, w: Named, saved: Saved, dx: Tensor | None, dw: Named) -> Tensor | None:
        """γ⊙δu + δγ⊙u + δβ."""
        u, _ = saved
        total = None
        if dx is not None:
            total = self._symmetric(dx, saved)
            total = total.mul_(w[self.weight]) if self.weight else total
        if self.weight in dw:
            total = u * dw[self.weight] if total is None else total.addcmul_(u, dw[self.weight])
        if self.bias in dw:
            total = dw[self.bias].expand_as(u).clone() if total is None else total.add_(dw[self.bias])
        return total

    def input_adjoint(self, w: Named, saved: Saved, g: Tensor) -> Tensor:
        """The same symmetric map, applied to γ⊙g."""
        return self._symmetric(g * w[self.weight] if self.weight else g, saved)

    def contract(self, w: Named, saved: Saved, g: Tensor, out: Named) -> None:
        """Σ g⊙u and Σ g."""
        axes = tuple(range(g.ndim - 1))
        if self.weight in out:
            out[self.weight].add_((g * saved[0]).sum(axes))
        if self.bias in out:
            out[self.bias].add_(g.sum(axes))

    def factors(self, w: Named, saved: Saved, g: Tensor, where: Layout) -> tuple[list[Factor], list[Direct]]:
        """Σ over everything but the row."""
        axes, direct = tuple(range(1, g.ndim - 1)), []
        for name, rows in ((self.weight, lambda: g * saved[0]), (self.bias, lambda: g)):
            if name in where:
                direct.append(Direct(where.slices[name], rows().sum(axes) if axes else rows()))
        return [], direct

    def _symmetric(self, delta: Tensor, saved: Saved) -> Tensor:
        return (normalise_tangent if self.kind == "layer" else rms_normalise_tangent)(delta, *saved)
