"""Squared error against given values: regression."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from taftcache.errors import SolveError


class SquaredError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """ℓ(z, y) = 1/m Σ_i (z_i − y_i)² for m outputs and values y [n,m], or [n] where m = 1."""

    quadratic: ClassVar[bool] = True

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ of each row [n]."""
        return (z - _values(z, y)).square().mean(1)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂z [n,m]."""
        return (z - _values(z, y)).mul_(2 / z.shape[1])

    def curvature(self, z: Tensor, y: Tensor) -> Tensor:
        """The diagonal D of ∂²ℓ/∂z², 2/m everywhere [n,m]."""
        return torch.full_like(z, 2 / z.shape[1])

    def hessian(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """D v [n,m]."""
        return v * (2 / z.shape[1])

    def root(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """√D v [n,m]."""
        rooted: Tensor = v * (2 / z.shape[1]) ** 0.5
        return rooted


def _values(z: Tensor, y: Tensor) -> Tensor:
    if y.numel() != z.numel():
        raise SolveError(
            "a squared error has other values than the model has outputs",
            got=f"values {list(y.shape)}, outputs {list(z.shape)}",
            do="one value for each output; of classes RSL or CrossEntropy",
        )
    return y.to(z).reshape(z.shape)
