"""Rules that the class row shares with any closed-form layer: LayerNorm, GELU, linear maps."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """LayerNorm without its affine: u = (x − mean x)·r and r = 1/√(var x + eps); x [..., d], r [..., 1]."""
    u, _, r = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
    return u, r


def normalise_tangent(delta: Tensor, u: Tensor, r: Tensor) -> Tensor:
    """δu = (δ − mean δ − u·mean(u⊙δ))·r (TAFT eq. 10, with its eps); symmetric, so also the adjoint."""
    # This is LayerNorm's own backward for an input that is already normalised, in one pass over memory.
    ones, zeros = torch.ones_like(r), torch.zeros_like(r)
    backward = torch.ops.aten.native_layer_norm_backward
    delta, _, _ = backward(delta, u, u.shape[-1:], zeros, ones, None, None, [True, False, False])
    return delta.mul_(r)


def rms_normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm without its weight: u = x·r and r = 1/√(mean x² + eps); x [..., d], r [..., 1]."""
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
    return x * r, r


def rms_normalise_tangent(delta: Tensor, u: Tensor, r: Tensor) -> Tensor:
    """δu = (δ − u·mean(u⊙δ))·r; symmetric, so also the adjoint."""
    return torch.addcmul(delta, u, (u * delta).mean(-1, keepdim=True), value=-1).mul_(r)


def gelu_derivative(x: Tensor, kind: Literal["exact", "tanh"]) -> Tensor:
    """GELU'(x): Φ(x) + x φ(x) with φ the normal density (TAFT eq. 12, erratum), or of the tanh form."""
    one = torch.ones((), dtype=x.dtype, device=x.device).expand_as(x)
    derivative: Tensor = torch.ops.aten.gelu_backward(one, x, approximate="none" if kind == "exact" else "tanh")
    return derivative


def gelu(x: Tensor, kind: Literal["exact", "tanh"]) -> Tensor:
    """GELU in the model's own form."""
    return F.gelu(x, approximate="none" if kind == "exact" else "tanh")


def plus(total: Tensor | None, term: Tensor | None) -> Tensor | None:
    """A sum in which None is a zero that was never formed (a frozen parameter costs nothing)."""
    if total is None or term is None:
        return term if total is None else total
    return total + term


def scaled(factor: Tensor | None, x: Tensor | None) -> Tensor | None:
    """factor ⊙ x, with None for a factor of one (no LayerScale) and for a zero x."""
    return x if factor is None or x is None else factor * x


def affine_tangent(
    gamma: Tensor, u: Tensor, du: Tensor | None, dgamma: Tensor | None, dbeta: Tensor | None
) -> Tensor | None:
    """Tangent of γ⊙u + β; any argument may be a None zero."""
    total = None if dbeta is None else dbeta.expand_as(u)
    if dgamma is not None:
        total = dgamma * u if total is None else torch.addcmul(total, u, dgamma)
    if du is not None:
        total = gamma * du if total is None else torch.addcmul(total, du, gamma)
    return total


def linear_tangent(W: Tensor, x: Tensor, dx: Tensor | None, dW: Tensor | None, db: Tensor | None) -> Tensor | None:
    """Tangent of x Wᵀ + b for rows x [n, in]; W [out, in]; any of the last three may be a None zero."""
    total = None if dx is None else dx @ W.T
    if dW is not None:
        total = x @ dW.T if total is None else total.addmm_(x, dW.T)
    if db is None:
        return total
    return db.expand(x.shape[0], -1) if total is None else total.add_(db)


def linear_adjoint(g: Tensor, x: Tensor, gW: Tensor | None, gb: Tensor | None) -> None:
    """Add a linear map's parameter gradients, Σ_n g_n ⊗ x_n and Σ_n g_n, to ``gW`` and ``gb`` in place."""
    if gW is not None:
        gW.addmm_(g.T, x)
    if gb is not None:
        gb += g.sum(0)
