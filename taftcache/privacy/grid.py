"""The integers on which clipped gradients are summed and noise is added."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from taftcache.errors import SolveError

# A clipped gradient is at most 2^40 units: float64 adds 2^12 rows without rounding, and the sum of 2^22 rows plus its
# noise fits in 64 bits.
CLIP_BITS = 40
MAX_ROWS = 1 << 22


@dataclass(frozen=True)
class Grid:
    """Units of ``unit`` = σ/2^b, in which the noise has width 2^b and a clipped gradient at most 2^40.

    The declared sensitivity Δ is C if a row is added or removed and 2C if one is replaced. A row's part of the sum is
    rounded towards zero, factor by factor, so on the grid too its norm is at most C: rounding adds nothing.

    Args:
        clip: C, the bound on a row's norm.
        sensitivity: Δ.
        multiplier: z = σ/Δ; 0 for no noise.
    """

    clip: float
    sensitivity: float
    multiplier: float

    @property
    def width(self) -> int:
        """b."""
        if self.multiplier == 0:
            return 0
        b = ceil(CLIP_BITS - 1 + log2(self.multiplier * self.sensitivity / self.clip))
        if not 8 <= b <= 50:
            raise SolveError(
                "the noise is outside 2^-31 to 2^11 clip norms",
                got=f"{self.multiplier * self.sensitivity / self.clip:.3g} clip norms",
                do="ask for another epsilon, or for other steps",
            )
        return b

    @property
    def unit(self) -> float:
        """What one unit stands for."""
        if self.multiplier == 0:
            return float(self.clip / 2 ** (CLIP_BITS - 1))
        return float(self.multiplier * self.sensitivity / 2**self.width)
