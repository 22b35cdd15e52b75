"""What a certificate says about single predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.tail import row_norms


def proven_labels(operator: TangentOperator, delta: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    """Predicted classes [N], and whether the certificate shows each to be the exact optimum's [N].

    Class y is proven if z_y − z_k > ‖J_y(x) − J_k(x)‖·‖Δw − Δw*‖ for every other k, where J_y − J_k is the gradient of
    z_y − z_k. Costs K half passes; of a head alone one, for all its gradients of a row are equally long.

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
        every = (torch.full_like(label, k) for k in range(operator.classes))
        for k in [_second(z, label)] if operator.head_alone else every:
            contrast = _unit(z, label) - _unit(z, k)
            margin = (contrast * z).sum(1)
            reach = row_norms(operator.tail, operator.layout, operator.weights, state, contrast) * distance
            sure &= (margin > reach) | (label == k)
        predicted.append(label)
        proven.append(sure)
    return torch.cat(predicted), torch.cat(proven)


def _second(z: Tensor, first: Tensor) -> Tensor:
    """The classes [b] with the largest logits beside the ``first``; of one class itself."""
    return z.scatter(1, first[:, None], -torch.inf).argmax(1)


def _unit(z: Tensor, k: Tensor) -> Tensor:
    """[b,K] with a 1 at each row's class k [b]."""
    return torch.zeros_like(z).scatter_(1, k[:, None], 1)
