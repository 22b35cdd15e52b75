"""What a loss must offer to be minimised."""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor


class Loss(Protocol):
    """A convex function ℓ(z, y) of a row's logits z [n,K] and its target y.

    y is the class [n] (int64) or the value [n] or [n,K] (floating), as the rows bring it.
    """

    quadratic: ClassVar[bool]
    """Whether ∂²ℓ/∂z² does not depend on z."""

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ of each row [n]."""
        ...

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂z [n,K]."""
        ...

    def hessian(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """D v [n,K] with D = ∂²ℓ/∂z², for v [n,K]."""
        ...

    def root(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """R v [n,K] with R Rᵀ = D."""
        ...
