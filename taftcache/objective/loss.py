"""What a loss must offer to be minimised."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from taftcache.errors import SolveError


class Loss(Protocol):
    """A convex function ℓ(z, y) of a row's logits z [n,K] and its target y.

    y is the class [n] (int64) or the value [n] or [n,K] (floating), as in the rows.
    """

    quadratic: ClassVar[bool]
    """Whether D = ∂²ℓ/∂z² is diagonal, does not depend on z, and weighs all classes alike but for the row's own.

    It may be True only then, because the solvers for such losses rely on it. For any other D, constant or not, it is
    False.
    """

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


def column(y: Tensor) -> Tensor:
    """Classes y [n] as an index [n,1]; SolveError for the values of a regression."""
    if y.is_floating_point():
        raise SolveError(
            "the loss is of classes and cannot take floating labels",
            got=f"values {list(y.shape)}",
            do="give classes as integers; of values SquaredError",
        )
    return y[:, None]


def check_quadratic(loss: Loss, target: Tensor, classes: int) -> None:
    """Raise SolveError if a loss that calls itself ``quadratic`` has any other D.

    Args:
        target: y of one row, [1] or [1,K].
        classes: K.
    """
    unit = torch.eye(classes, dtype=torch.float64)
    y = target.expand(classes, *target.shape[1:])
    at_zero, elsewhere = (loss.hessian(z, y, unit) for z in (torch.zeros_like(unit), 1 + unit.cumsum(1)))
    weight = at_zero.diagonal()
    others = weight if target.is_floating_point() else weight[torch.arange(classes) != target.item()]
    alike = torch.cat([others, others[:1]]).diff().abs().max() <= 1e-9 * weight.abs().max() if len(others) else True
    if not (torch.allclose(at_zero, elsewhere, 1e-9, 0) and torch.equal(at_zero, weight.diag()) and alike):
        raise SolveError(
            f"{type(loss).__name__} calls itself quadratic, and its second derivative is not what that promises",
            got="one that depends on z, is not diagonal, or differs between the classes that are not the row's",
            do="set quadratic = False: Newton's method solves it",
        )
