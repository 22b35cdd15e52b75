"""Multi-class cross-entropy, convex and not quadratic."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from taftcache.objective.loss import column


class CrossEntropy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """ℓ(z, y) = log Σ_i exp z_i − z_y, with p = softmax(z), ∂ℓ/∂z = p − e_y and D = diag p − ppᵀ."""

    quadratic: ClassVar[bool] = False

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ of each row [n] for logits z [n,K] and classes y [n]."""
        return torch.logsumexp(z, 1) - z.gather(1, column(y))[:, 0]

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂z [n,K]."""
        return torch.softmax(z, 1).scatter_add(1, column(y), torch.full_like(z[:, :1], -1))

    def hessian(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """D v = p⊙v − p (p·v) [n,K]."""
        p = torch.softmax(z, 1)
        pv = p * v
        return pv - p * pv.sum(1, keepdim=True)

    def root(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """√p⊙v − p (√p·v) [n,K], whose map R has R Rᵀ = D."""
        p = torch.softmax(z, 1)
        half = p.sqrt() * v
        return half - p * half.sum(1, keepdim=True)
