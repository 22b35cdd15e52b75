"""What a solve is asked for: the loss, the ridge and the rest of F, before any row is read."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from taftcache.errors import SolveError
from taftcache.objective.loss import Loss
from taftcache.objective.weights import RowWeights
from taftcache.tangent.spec import Train

MOST = 1e30  # λ and R, and 1/R: float32 still holds λ and a ball's multiplier, which grows like 1/R, and float64 R²


@dataclass(frozen=True, kw_only=True)
class Objective:
    """F(Δw) = 1/N Σ_n ω_n ℓ(f_w(x_n) + J(x_n) Δw, y_n) + λ/2 ‖Δw‖², to be minimised, within ‖Δw‖ ≤ R if there is a
    ball.

    Args:
        loss: ℓ.
        ridge: λ, 0 only with a ``radius``; ignored where λ is chosen.
        train: which parameters move, as ``TangentSpec.train``.
        weights: ω, for classes and rows; ones by default.
        jvp_only: leave the base model's logits f_w(x_n) out.
        radius: R.
    """

    loss: Loss
    ridge: float = 0.0
    train: Train = "full"
    weights: RowWeights | None = None
    jvp_only: bool = False
    radius: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.loss, str | type):
            raise SolveError("the loss is no object with a value and derivatives", got=repr(self.loss), do="RSL()")

    def check(self) -> None:
        """Raise SolveError if F has no well-defined minimiser, or has numbers that float32 cannot hold."""
        radius = 1.0 if self.radius is None else self.radius
        for name, value, least in (("ridge", self.ridge, 0.0), ("radius", radius, 1 / MOST)):
            if not (isinstance(value, Real) and least <= value <= MOST):
                do = "1e-3, say" if name == "ridge" else "somewhat less than ‖Δw‖ is without it"
                raise SolveError(f"{name} must be a number from {least:g} to {MOST:g}", got=repr(value), do=do)
        if self.ridge == 0 and self.radius is None:
            raise SolveError(
                "a solve needs a ridge above 0, or none and a radius above 0",
                got=f"ridge {self.ridge}, radius {self.radius}",
                do="a small ridge such as 1e-6, or a radius",
            )
