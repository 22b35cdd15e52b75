"""The same results on a GPU to float32 rounding; runs where torch sees one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taftcache.objective.rsl import RSL
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.solve.problems import minimised
from tests.tangent.vits import SPECS, VITS, make_case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.mark.parametrize("vit", VITS)
@pytest.mark.parametrize("spec", SPECS)
def test_products(vit, spec):
    case = make_case(vit, spec, n=9)
    rows = [ArrayRows(case.tokens.numpy(), np.arange(9) % 4)]
    v = torch.randn(case.base.layout.size, generator=torch.Generator().manual_seed(0))
    here, there = (TangentOperator(case.base, rows, dtype=torch.float64, device=d) for d in ("cpu", "cuda"))
    expected, found = (torch.cat(list(operator.matvec(v))).cpu() for operator in (here, there))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-10)
    back = [operator.accumulate(v, lambda f, change, y: change).cpu() for operator in (here, there)]
    assert torch.allclose(back[1], back[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("train", ["full", "head"])
def test_solutions(train):
    case = make_case("plain", "reset-block", n=40)
    rows = [ArrayRows(case.tokens.numpy(), np.arange(40) % 4)]
    here, there = (minimised(case.base, rows, RSL(), 1e-2, train=train, device=d) for d in ("cpu", "cuda"))
    assert there.converged
    bound = here.certificate.distance + there.certificate.distance
    assert (there.value.cpu() - here.value).norm() <= bound + 1e-6 * here.value.norm()
