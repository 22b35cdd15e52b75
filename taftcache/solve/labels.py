"""What a certificate says of single predictions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from taftcache.solve.solution import Solution
from taftcache.tangent.factors import row_norms
from taftcache.tangent.operator import TangentOperator


def logit_bounds(operator: TangentOperator, solution: Solution) -> Iterator[Tensor]:
    """Upper bounds [b,K] on |f_k(x; Δw) − f_k(x; Δw*)| for every row and class, block by block.

    |J_k(x)(Δw − Δw*)| ≤ ‖J_k(x)‖·‖Δw − Δw*‖. Costs K half passes, of which no gradient is formed.

    Args:
        operator: over the rows asked about, in float64, with the solution's layout.
        solution: with its certificate.
    """
    for state, _ in operator.blocks():
        K = operator.classes
        norms = [row_norms(*operator.factors(state, _unit(state.logits, k))) for k in range(K)]
        yield torch.stack(norms, 1) * solution.certificate.distance


def proven_labels(
    operator: TangentOperator, delta: Tensor, distance: float, jvp_only: bool = False
) -> tuple[Tensor, Tensor]:
    """Predicted classes [N], and whether each is provably what the exact optimum would predict [N].

    Class y stands if z_y − z_k > ‖J_y(x) − J_k(x)‖·‖Δw − Δw*‖ for every other k, the norm being that of the
    difference's own gradient. Costs K half passes.

    Args:
        operator: over the rows asked about, in float64, with the layout of ``delta``.
        delta: Δw [P].
        distance: the certified bound on ‖Δw − Δw*‖.
        jvp_only: whether the problem left the base logits out.
    """
    predicted, proven = [], []
    direction = operator.direction(delta)
    for state, _ in operator.blocks():
        change = operator.tangent(state, direction)
        z = change if jvp_only else state.logits + change
        label = z.argmax(1)
        sure = torch.ones_like(label, dtype=torch.bool)
        for k in range(operator.classes):
            contrast = torch.zeros_like(z).scatter_(1, label[:, None], 1) - _unit(z, k)
            margin = (contrast * z).sum(1)
            reach = row_norms(*operator.factors(state, contrast)) * distance
            sure &= (margin > reach) | (label == k)
        predicted.append(label)
        proven.append(sure)
    return torch.cat(predicted), torch.cat(proven)


def _unit(like: Tensor, k: int) -> Tensor:
    unit = torch.zeros_like(like)
    unit[:, k] = 1
    return unit
