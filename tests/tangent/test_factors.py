"""The factored per-row gradients against J itself, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.inverses.dual import kernel
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.tangent.vits import SPECS, VITS, make_case

every_case = pytest.mark.parametrize(("vit", "spec"), [(v, s) for v in VITS for s in SPECS])


def operator_of(vit: str, spec: str, n: int = 4) -> TangentOperator:
    case = make_case(vit, spec, n=n)
    return TangentOperator(case.base, [ArrayRows(case.tokens.numpy(), np.arange(n) % 4)], dtype=torch.float64)


def dense(operator: TangentOperator) -> torch.Tensor:
    """J [K,n,P], one adjoint for each entry of the logits."""
    n, K = operator.rows, operator.classes
    J = torch.empty(K, n, operator.layout.size, dtype=torch.float64)
    for k in range(K):
        for i in range(n):
            unit = torch.zeros(n, K, dtype=torch.float64)
            unit[i, k] = 1
            J[k, i] = operator.accumulate(None, lambda logits, change, labels, unit=unit: unit)
    return J


@every_case
def test_factors_are_the_rows_of_the_jacobian(vit, spec):
    operator = operator_of(vit, spec)
    J = dense(operator)
    ((state, _),) = operator.blocks()
    for k in range(operator.classes):
        unit = torch.zeros_like(state.logits)
        unit[:, k] = 1
        rebuilt = torch.zeros_like(J[k])
        matrices, direct = operator.factors(state, unit)
        for m in matrices:
            rebuilt[:, m.weight] = (m.out[..., None] * m.into[:, :, None, :]).flatten(1)
            if m.bias is not None:
                rebuilt[:, m.bias] = m.out.flatten(1)
        for part in direct:
            rebuilt[:, part.where] = part.rows
        assert torch.allclose(rebuilt, J[k], rtol=1e-11, atol=1e-12)


@every_case
def test_kernel_is_the_gram_matrix_of_the_rows(vit, spec):
    operator = operator_of(vit, spec)
    J = dense(operator).flatten(0, 1)
    assert torch.allclose(kernel(Problem(operator, RSL(), 1.0)), J @ J.T, rtol=1e-11, atol=1e-11)
