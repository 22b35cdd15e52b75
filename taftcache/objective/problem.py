"""What is minimised: mean loss over the cached rows plus a ridge on the change of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from taftcache.objective.cotangent import (
    Given,
    GradientUnderSigns,
    HessianUnderSigns,
    LossGradient,
    LossHessian,
    moved,
    random_signs,
)
from taftcache.objective.loss import Loss
from taftcache.objective.objective import Objective
from taftcache.objective.weights import RowWeights
from taftcache.tangent.operator import RowSum, TangentOperator


@dataclass(frozen=True)
class Problem:
    """F(Δw) = 1/N Σ_n ω_n ℓ(f_w(x_n) + J(x_n) Δw, y_n) + λ/2 ‖Δw‖².

    The loss is a mean, so λ means the same when rows are removed. With a quadratic ℓ, F is a
    quadratic with Hessian H = 1/N JᵀDJ + λI and, for λ > 0, exactly one minimiser.

    Args:
        operator: J over the rows.
        loss: ℓ.
        ridge: λ.
        weights: ω; ones by default.
        jvp_only: leave f_w(x_n) out, as differentially private training does.
        point: logits [N,K] at which the curvature of a non-quadratic loss is taken (``at``).
    """

    operator: TangentOperator
    loss: Loss
    ridge: float
    weights: RowWeights | None = None
    jvp_only: bool = False
    point: Tensor | None = None

    @classmethod
    def of(cls, objective: Objective, operator: TangentOperator) -> Problem:
        """The problem that an objective poses over an operator's rows; a ball is left to the solver."""
        return cls(operator, objective.loss, objective.ridge, objective.weights, objective.jvp_only)

    @property
    def zero(self) -> Tensor:
        """Δw = 0 [P] in float64."""
        return torch.zeros(self.operator.layout.size, dtype=torch.float64, device=self.operator.device)

    def evaluate(self, delta: Tensor) -> tuple[float, Tensor]:
        """F(Δw), and ∇F(Δw) [P] in the operator's precision, in one pass."""
        return self.evaluate_beside(delta)[:2]

    def evaluate_beside(self, delta: Tensor, *beside: RowSum) -> tuple[float, Tensor, list[Tensor]]:
        """The same, and other sums over the rows, which are prepared once for all."""
        return self._evaluated(delta, beside, LossGradient(keep=False, **self._terms))

    def evaluate_logits(self, delta: Tensor, *beside: RowSum) -> tuple[float, Tensor, list[Tensor], Tensor, Tensor]:
        """The same, with the logits z [N,K] and the labels of all rows."""
        gradients = LossGradient(keep=True, **self._terms)
        value, gradient, found = self._evaluated(delta, beside, gradients)
        _, z, labels = zip(*gradients.notes, strict=True)
        return value, gradient, found, torch.cat(z), torch.cat(labels)

    def _evaluated(
        self, delta: Tensor, beside: Sequence[RowSum], gradients: LossGradient
    ) -> tuple[float, Tensor, list[Tensor]]:
        operator = self.operator
        delta = delta.to(operator.device, operator.dtype)
        # At Δw = 0 the logits are the base point's own, which saves half of the pass.
        own = RowSum(delta if delta.any() else None, gradients, self.ridge * delta)
        gradient, *found = operator.sums(own, *beside)
        value = 0.0
        for losses, _, _ in gradients.notes:
            value += float(losses)
        return value / operator.rows + 0.5 * self.ridge * (delta @ delta).item(), gradient, found

    def gradient_at_zero(self) -> RowSum:
        """∇F(0), for ``evaluate_beside``."""
        return RowSum(None, LossGradient(keep=False, **self._terms))

    def hessian(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """(1/N JᵀDJ + λI) v in the operator's precision, in one pass; written to ``out`` if that is given.

        For large P, fresh memory for the result costs as much as the product. D is that at Δw = 0 unless
        ``at`` moved it.
        """
        return self.operator.sums(self._product(vector, out))[0]

    def gradients_under_signs(self, delta: Tensor, seeds: Iterable[int]) -> list[Tensor]:
        """∇F(Δw) with the terms of its sums under random signs [P], for each of the seeds, in one pass.

        Its terms cancel only by chance, so times the unit of rounding it has the size of the rounding error in ∇F(Δw),
        where terms do cancel. For a loss that is not quadratic, call it on the problem that ``at`` returns.
        """
        return self.operator.sums(*(self._gradient_under_signs(delta, seed) for seed in seeds))

    def hessian_and_gradients_under_signs(self, delta: Tensor, seeds: Iterable[int]) -> tuple[Tensor, list[Tensor]]:
        """``hessian`` times Δw, and ``gradients_under_signs`` there, in one pass."""
        signed = [self._gradient_under_signs(delta, seed) for seed in seeds]
        product, *found = self.operator.sums(self._product(delta), *signed)
        return product, found

    def hessian_under_signs(self, vector: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """``hessian``, and the same with the terms of its sum over the rows under random signs, in one pass."""
        vector = vector.to(self.operator.device, self.operator.dtype)
        signs = HessianUnderSigns(seed=seed, point=self.point, **self._terms)
        product, signed = self.operator.sums(self._product(vector), RowSum(vector, signs))
        return product, signed

    def _product(self, vector: Tensor, out: Tensor | None = None) -> RowSum:
        vector = vector.to(self.operator.device, self.operator.dtype)
        product = LossHessian(point=self.point, **self._terms)
        return RowSum(vector, product, torch.mul(vector, self.ridge, out=out))

    def _gradient_under_signs(self, delta: Tensor, seed: int) -> RowSum:
        delta = delta.to(self.operator.device, self.operator.dtype)
        delta = delta * random_signs(delta, seed)
        return RowSum(delta, GradientUnderSigns(seed=seed, point=self.point, **self._terms), self.ridge * delta)

    def at(self, delta: Tensor) -> tuple[float, Tensor, Problem]:
        """F, ∇F and the problem whose Hessian is the one at Δw, in one pass; holds N·K logits."""
        value, gradient, _, z, _ = self.evaluate_logits(delta)
        return value, gradient, replace(self, point=z)

    def forward(self, vector: Tensor) -> Tensor:
        """J v [N,K] for v [P], in half a pass."""
        return torch.cat(list(self.operator.matvec(vector)))

    def adjoint(self, vector: Tensor) -> Tensor:
        """Jᵀ v [P] for v [N,K], in half a pass."""
        return self.operator.accumulate(None, Given(values=vector))

    def logits(self, base: Tensor, change: Tensor | None) -> Tensor:
        """z [n,K] of rows with base logits f_w and tangent J Δw (None for Δw = 0)."""
        return moved(base, change, self.jvp_only)

    def root(self, base: Tensor, labels: Tensor, start: int, v: Tensor) -> Tensor:
        """√ω R v [n,K]: with g = Jᵀ of it, E[g gᵀ] over random signs v is JᵀDJ of these rows.

        Args:
            base, labels: of a block. start: its first row. v: [n,K].
        """
        z = self.logits(base, None) if self.point is None else self.point[start : start + len(base)]
        rooted = self.loss.root(z, labels, v)
        return rooted if self.weights is None else rooted * self.weights.at(labels, start, v).sqrt()

    def diagonal(self, labels: Tensor, like: Tensor, start: int = 0) -> Tensor:
        """ωD/N [n,K] of a quadratic loss for the labels of rows from ``start`` on, in the precision of ``like``."""
        ones = like.new_ones(len(labels), self.operator.classes)
        diagonal = self.loss.hessian(ones, labels, ones) / self.operator.rows
        return diagonal if self.weights is None else diagonal * self.weights.at(labels, start, ones)

    @property
    def _terms(self) -> dict[str, Any]:
        return {"loss": self.loss, "weights": self.weights, "rows": self.operator.rows, "jvp_only": self.jvp_only}
