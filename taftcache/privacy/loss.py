"""Losses that private training minimises: anything with a gradient by the logits."""

from __future__ import annotations

from typing import Protocol

import msgspec
import torch
from torch import Tensor


class Loss(Protocol):
    """ℓ(z, y) of each row."""

    def gradient(self, z: Tensor, labels: Tensor) -> Tensor:
        """∂ℓ/∂z [n,K] for logits z [n,K] and labels [n]."""
        ...


class CrossEntropy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ℓ(z, y) = log Σ_k exp z_k − z_y."""

    def gradient(self, z: Tensor, labels: Tensor) -> Tensor:
        """softmax(z) − e_y [n,K]."""
        p = torch.softmax(z, 1)
        return p.scatter_add(1, labels[:, None], torch.full_like(z[:, :1], -1.0))
