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
        """F(Δw), and ∇F(Δw) [P] in the operator's precision, in one pass."""
        operator = self.operator
        delta = delta.to(operator.device, operator.dtype)
        value = torch.zeros((), dtype=torch.float64)

        def respond(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            z = logits if change is None else logits + change
            value.add_(self.loss.value(z.double(), labels).sum().cpu())
            return self.loss.gradient(z, labels).div_(operator.rows)

        gradient = operator.accumulate(delta, respond, self.ridge * delta)
        return value.item() / operator.rows + 0.5 * self.ridge * (delta @ delta).item(), gradient

    def hessian(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """(1/N JᵀDJ + λI) v in the operator's precision, in one pass; written to ``out`` where one is given.

        For large P, fresh memory for the result costs as much as the product.
        """
        operator = self.operator

        def respond(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            assert change is not None
            return self.loss.curvature(logits, labels).mul_(change).div_(operator.rows)

        vector = vector.to(operator.device, operator.dtype)
        return operator.accumulate(vector, respond, torch.mul(vector, self.ridge, out=out))
