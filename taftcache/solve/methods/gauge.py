"""When a gradient's norm is worth a look, in the space of the rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

CHECK = 32  # looks at an estimate that pass until the norm itself is looked at


class Gauge:
    """Whether ‖J̃ᵀρ‖ is below a goal: K̂ tells that norm up to a factor for free.

    The factor is taken anew whenever the end seems near, and now and then: K̂ is blind to directions that J̃ᵀ takes to
    zero.

    Args:
        norm: ‖J̃ᵀρ‖ of ρ, for half a pass.
    """

    def __init__(self, norm: Callable[[Tensor], float]) -> None:
        self._norm, self._factor, self._looks = norm, 1.0, 0

    def below(self, goal: float, residual: Tensor, about: float) -> bool:
        """Of ρ = ``residual``, whose norm is ``about`` that by K̂."""
        self._looks += 1
        if self._factor * about > goal and self._looks % CHECK:
            return False
        norm = self._norm(residual)
        self._factor = norm / about if about else 1.0
        return norm <= goal
