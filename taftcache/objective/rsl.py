"""The rescaled square loss, quadratic in the logits."""

from __future__ import annotations

from math import inf
from numbers import Real
from typing import ClassVar

import msgspec
import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.loss import column

LARGEST = 1e9  # of α and κ: the loss, α κ², and the square of a gradient, (2 α κ)², still fit into float32
_ABOVE = {"alpha": "a number above 0: 1 is the paper's", "kappa": "a number above 0: 15 is usual"}


class RSL(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """ℓ(z, y) = 1/K [ α (z_y − κ)² + Σ_{i≠y} z_i² ] (TAFT, rescaled square loss).

    α weighs the true class, κ is the logit it should have; both must be above 0 and at most 1e9 (else SolveError).
    α = κ = 1 is the mean squared error against one-hot labels; the authors' release has α = 1.
    """

    quadratic: ClassVar[bool] = True

    alpha: float = 1.0
    kappa: float = 15.0

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("kappa", self.kappa)):
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < inf:
                raise SolveError(f"{name} of the rescaled square loss is not above 0", got=repr(value), do=_ABOVE[name])
            if value > LARGEST:
                raise SolveError(
                    f"{name} of the rescaled square loss is above {LARGEST:g}", got=repr(value), do=_ABOVE[name]
                )

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ of each row [n] for logits z [n,K] and classes y [n]."""
        return (0.5 * self.curvature(z, y) * self._distance(z, y) ** 2).sum(1)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂z [n,K]."""
        return self.curvature(z, y) * self._distance(z, y)

    def curvature(self, z: Tensor, y: Tensor) -> Tensor:
        """The diagonal D of ∂²ℓ/∂z² [n,K]; only the shape and precision of ``z`` matter."""
        diagonal = torch.full_like(z, 2 / z.shape[1])
        return diagonal.scatter_(1, column(y), 2 * self.alpha / z.shape[1])

    def hessian(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """D v [n,K]."""
        return self.curvature(z, y).mul_(v)

    def root(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """√D v [n,K]."""
        return self.curvature(z, y).sqrt_().mul_(v)

    def _distance(self, z: Tensor, y: Tensor) -> Tensor:
        return z.scatter_add(1, column(y), torch.full_like(z[:, :1], -self.kappa))
