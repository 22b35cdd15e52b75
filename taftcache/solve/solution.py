"""How a solve ended: its value, a status that says what to do, and figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from math import inf, sqrt
from sys import float_info
from typing import Literal

from torch import Tensor

from taftcache.solve_stats import SolveStats


class Status(Enum):
    """How a solve ended. Keep and compare the ``name``, which stays. The ``value`` is a sentence for the user, who
    knows its words from a recipe, an estimator or ``Goal``; later releases may say it better.
    """

    converged = "The gradient, recomputed in float64 from the rows, is below the tolerance."
    max_passes = "The pass limit was reached before the tolerance; raise max_passes or tolerance."
    stalled = (
        "Rounding, or a loss whose second derivative jumps, stopped the progress above the tolerance; "
        'raise tolerance or ridge, or, against rounding, solve in precision "float64".'
    )
    undecided = (
        "Rounding stopped the progress before the certified distance decided of a removal; "
        'raise ridge, or solve in precision "float64".'
    )
    turns_ended = "The last turn between Δw and the teachers' map ended above the tolerance; raise tolerance."
    interrupted = "The solve was interrupted; this is the best iterate so far."


@dataclass(frozen=True)
class Certificate:
    """What a float64 gradient recomputed from the rows proves, because F is λ-strongly convex.

        ‖Δw − Δw*‖ ≤ ‖∇F‖/λ        F − F* ≤ ‖∇F‖²/(2λ)

    For a quadratic F, more can be known. With ‖v‖_H² = vᵀHv, F − F* = ½‖Δw − Δw*‖_H², so an upper bound ``energy`` on
    that norm gives ‖Δw − Δw*‖ ≤ energy/√λ and F − F* ≤ energy²/2. ‖∇F‖/√λ is one; a solver in the space of the rows has
    the norm ‖ρ‖ of its dual residual (``residual``); ``bracket`` finds a closer one in a few passes. With ρ, ‖Δw −
    Δw*‖² = ρᵀK̃(K̃ + λI)⁻²ρ, and x/(x + λ)² ≤ 1/(4λ), so that ‖ρ‖/(2√λ) bounds the distance too.

    If no term of F can be negative, F − F* ≤ F(Δw), which is close where a solve has ended far from its optimum.

    Args:
        gradient: ‖∇F(Δw)‖.
        gradient_at_zero: the same at the base point, for scale.
        ridge: λ.
        objective: F(Δw).
        objective_at_most: F(Δw) with an allowance for what rounding did to its sum, if no term of F can be negative.
        rows: N.
        residual: bound on ‖Δw − Δw*‖_H from a dual residual, if there is one.
        tightened: bound on ‖Δw − Δw*‖_H from ``bracket``, if it ran.
        rounding: allowance for the norm of the error in ∇F, if it was estimated; the bounds add it.
        quadratic: whether F is.
        constrained: bound on F − F* for a problem with a ball, where ∇F does not vanish.
    """

    gradient: float
    gradient_at_zero: float
    ridge: float
    objective: float
    rows: int
    residual: float | None = None
    tightened: float | None = None
    rounding: float = 0.0
    quadratic: bool = True
    constrained: float | None = None
    objective_at_most: float | None = None

    @property
    def relative_gradient(self) -> float:
        """‖∇F(Δw)‖ / ‖∇F(0)‖."""
        return self.gradient / self.gradient_at_zero if self.gradient_at_zero else 0.0

    @property
    def energy(self) -> float:
        """Upper bound on ‖Δw − Δw*‖_H for a quadratic F; for any F, √(2 (F − F*)) is below it."""
        if self.constrained is not None:
            return sqrt(2 * self.constrained)
        if self.ridge == 0:
            return inf
        allowed = self.rounding / sqrt(self.ridge)
        residual = inf if self.residual is None else self.residual + allowed
        tightened = inf if self.tightened is None else self.tightened
        # The computed F is exact for logits that rounding has moved, and so for a gradient that is off by e, ‖e‖ ≤
        # rounding: F − F* ≤ F(Δw) + ‖e‖‖Δw − Δw*‖ ≤ F(Δw) + ‖e‖√(2(F − F*)/λ).
        whole = inf if self.objective_at_most is None else sqrt(2 * self.objective_at_most) + 2 * allowed
        return min(self.gradient / sqrt(self.ridge) + allowed, residual, tightened, whole)

    @property
    def distance(self) -> float:
        """Upper bound on ‖Δw − Δw*‖; infinite without a ridge."""
        if self.ridge == 0:
            return inf
        by_energy = self.energy / sqrt(self.ridge)
        if self.residual is None:
            return by_energy
        return min(by_energy, self.residual / (2 * sqrt(self.ridge)) + self.rounding / self.ridge)

    @property
    def gap(self) -> float:
        """Upper bound on F(Δw) − F*."""
        return self.energy**2 / 2

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON, bounds included; infinity becomes the largest number, because JSON has none."""
        return {
            **asdict(self),
            "relative_gradient": self.relative_gradient,
            "energy_bound": min(self.energy, float_info.max),
            "distance_bound": min(self.distance, float_info.max),
            "gap_bound": min(self.gap, float_info.max),
        }


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class Solution:
    """Δw [P] in float64, how the solve ended, its certificate and figures.

    ``gradients`` are ∇F(0) and ∇F(Δw) [P] in float64, if the solver kept them for a proof; ``dual`` is α [N,K] with Δw
    = Jᵀα, if it worked in the space of the rows.
    """

    value: Tensor
    status: Status
    certificate: Certificate
    stats: SolveStats = field(default_factory=SolveStats)
    gradients: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    dual: Tensor | None = field(default=None, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the certificate meets the tolerance asked for."""
        return self.status is Status.converged


Interrupted = Literal["raise", "keep"]
"""What becomes of a solve that Ctrl-C ends: KeyboardInterrupt, or its best iterate, whose status says so."""


def unless_interrupted(solution: Solution, interrupted: Interrupted = "raise") -> Solution:
    """The solution; raises KeyboardInterrupt if Ctrl-C ended its solve and an unfinished one was not asked for."""
    if interrupted == "raise" and solution.status is Status.interrupted:
        raise KeyboardInterrupt
    return solution
