"""How a solve ended: its value, a status that says what to do, and figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from torch import Tensor


class Status(Enum):
    """Each value is a sentence for the user."""

    converged = "The gradient, recomputed in float64 from the cached rows, is below the tolerance."
    max_passes = "The pass limit was reached before the tolerance; raise solver.max_passes or solver.tolerance."
    stalled = 'Rounding stopped the progress above the tolerance; set solver.precision = "float64" or raise the ridge.'
    interrupted = "The solve was interrupted; this is the best iterate so far."


@dataclass(frozen=True)
class Certificate:
    """What a float64 gradient recomputed from the rows proves, F being λ-strongly convex.

        ‖Δw − Δw*‖ ≤ ‖∇F‖/λ        F − F* ≤ ‖∇F‖²/(2λ)

    ``gradient_at_zero`` gives the scale: the same norm at the base point.
    """

    gradient: float
    gradient_at_zero: float
    ridge: float
    objective: float
    rows: int

    @property
    def relative_gradient(self) -> float:
        """‖∇F(Δw)‖ / ‖∇F(0)‖."""
        return self.gradient / self.gradient_at_zero if self.gradient_at_zero else 0.0

    @property
    def distance(self) -> float:
        """Upper bound on ‖Δw − Δw*‖."""
        return self.gradient / self.ridge

    @property
    def gap(self) -> float:
        """Upper bound on F(Δw) − F*."""
        return self.gradient**2 / (2 * self.ridge)

    def as_dict(self) -> dict[str, float | int]:
        """For JSON, bounds included."""
        return {
            **asdict(self),
            "relative_gradient": self.relative_gradient,
            "distance_bound": self.distance,
            "gap_bound": self.gap,
        }


@dataclass(frozen=True)
class Solution:
    """Δw [P] in float64, how the solve ended, its certificate and figures."""

    value: Tensor
    status: Status
    certificate: Certificate
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        """Whether the certificate meets the tolerance asked for."""
        return self.status is Status.converged
