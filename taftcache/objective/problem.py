"""What is minimised: mean loss over the cached rows plus a ridge on the change of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taftcache.objective.rsl import RSL
from taftcache.tangent.operator import TangentOperator


@dataclass(frozen=True)
class Problem:
    """F(Δw) = 1/N Σ_n ℓ(f_w(x_n) + J(x_n) Δw, y_n) + λ/2 ‖Δw‖².

    The loss is a mean, so λ means the same when rows are removed. With a quadratic ℓ, F is a
    quadratic with Hessian 1/N JᵀDJ + λI and exactly one minimiser.
    """

    operator: TangentOperator
    loss: RSL
    ridge: float

    def evaluate(self, delta: Tensor) -> tuple[float, Tensor]:
        """F(Δw) and ∇F(Δw) [P] in float64, in one pass."""
        value = torch.zeros((), dtype=torch.float64)

        def respond(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            z = logits if change is None else logits + change
            value.add_(self.loss.value(z.double(), labels).sum().cpu())
            return self.loss.gradient(z, labels)

        gradient = self.operator.accumulate(delta, respond).div_(self.operator.rows)
        delta = delta.to(gradient)
        total = value.item() / self.operator.rows + 0.5 * self.ridge * (delta @ delta).item()
        return total, gradient.add_(delta, alpha=self.ridge)

    def hessian(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """(1/N JᵀDJ + λI) v in float64, in one pass; written to ``out`` where one is given."""

        def respond(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            assert change is not None
            return (self.loss.curvature(logits, labels) * change).div_(self.operator.rows)

        product = self.operator.accumulate(vector, respond, out)
        return product.add_(vector.to(product), alpha=self.ridge)
