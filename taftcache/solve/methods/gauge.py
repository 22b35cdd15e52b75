"""When it is worth computing a gradient's norm, in the space of the rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

CHECK = 32  # estimates after which the norm itself is computed in any case


class Gauge:
    """Whether ‖J̃ᵀρ‖ is below a goal: K̂ tells that norm up to a factor for free.

    The factor is measured anew whenever the end seems near, and every now and then, because K̂ does not know which
    directions J̃ᵀ takes to zero.

    Args:
        norm: computes ‖J̃ᵀρ‖ from ρ, for half a pass.
    """

    def __init__(self, norm: Callable[[Tensor], float]) -> None:
        self._norm, self._factor, self._looks = norm, 1.0, 0

    def below(self, goal: float, residual: Tensor, about: float) -> bool:
        """Whether ‖J̃ᵀρ‖ ≤ ``goal`` for ρ = ``residual``, where K̂ estimates that norm as ``about``."""
        self._looks += 1
        if self._factor * about > goal and self._looks % CHECK:
            return False
        norm = self._norm(residual)
        self._factor = norm / about if about else 1.0
        return norm <= goal
