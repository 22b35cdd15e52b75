"""Directions of a solve in the space of the rows, each orthogonal in F's metric to those that are kept."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-10  # fraction of a direction's square; a smaller remainder is only rounding


class Basis:
    """Directions z and their products K̃z [N·K], orthonormal in F's metric (K̃z)·(K̃z') + λ z·K̃z' for one λ.

    Beyond ``size`` the oldest are overwritten. Solves that look for λ (``span.Span``) or whose metric follows the point
    (``span_newton``) have bases of their own, which also keep the directions' inner products.
    """

    def __init__(self, size: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self._z = torch.empty(size, length, dtype=dtype, device=device)
        self._y = torch.empty_like(self._z)
        self._count = 0

    @property
    def last(self) -> tuple[Tensor, Tensor]:
        """The newest direction and its product [N·K]."""
        at = (self._count - 1) % len(self._z)
        return self._z[at], self._y[at]

    @property
    def known(self) -> tuple[Tensor, Tensor]:
        """All directions and their products [k,N·K]."""
        count = min(self._count, len(self._z))
        return self._z[:count], self._y[:count]

    def add(self, direction: Tensor, product: Tensor, ridge: float) -> bool:
        """Orthogonalise and keep a direction; False if nothing but rounding is left of it."""
        z, y = direction.reshape(-1), product.reshape(-1)
        before = _square(z, y, ridge)
        known = min(self._count, len(self._z))
        for _ in range(2):  # twice, because the first projection leaves its own rounding
            along = self._y[:known] @ y + ridge * (self._z[:known] @ y)
            z = z - along @ self._z[:known]
            y = y - along @ self._y[:known]
        after = _square(z, y, ridge)
        if not after > TINY * before:
            return False
        at = self._count % len(self._z)
        self._z[at], self._y[at] = z / after**0.5, y / after**0.5
        self._count += 1
        return True


def _square(z: Tensor, y: Tensor, ridge: float) -> float:
    y = y.double()
    return (y @ y + ridge * (z.double() @ y)).item()
