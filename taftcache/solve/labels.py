"""What a certificate says about single predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.objective.cotangent import unit
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.tail import row_norms


def proven_labels(operator: TangentOperator, delta: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    """Predicted classes [N], and whether the certificate shows each to be the exact optimum's [N].

    Class y is proven if z_y − z_k > ‖J_y(x) − J_k(x)‖·‖Δw − Δw*‖ for every other k, where J_y − J_k is the gradient of
    z_y − z_k. Costs K half passes.

    Args:
        operator: over the rows asked about, in float64, with the layout of ``delta``.
        delta: Δw [P].
        distance: the certified bound on ‖Δw − Δw*‖.
    """
    predicted, proven = [], []
    direction = operator.direction(delta)
    for state, _ in operator.blocks():
        z = state.logits + operator.tangent(state, direction)
        label = z.argmax(1)
        sure = torch.ones_like(label, dtype=torch.bool)
        for k in range(operator.classes):
            contrast = torch.zeros_like(z).scatter_(1, label[:, None], 1) - unit(z, k)
            margin = (contrast * z).sum(1)
            reach = row_norms(operator.tail, operator.layout, operator.weights, state, contrast) * distance
            sure &= (margin > reach) | (label == k)
        predicted.append(label)
        proven.append(sure)
    return torch.cat(predicted), torch.cat(proven)
