"""The non-linear baselines: timm's own network with other weights, and its ensemble."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from taftcache.baselines.fine_tuning import Schedule, fine_tune, logits, predict
from taftcache.baselines.sisa import sisa
from taftcache.errors import SolveError
from taftcache.tangent.rows import ArrayRows
from tests.tangent.vits import SPECS, VITS, make_case


@pytest.mark.law("The baselines are timm's network with other weights")
@pytest.mark.parametrize("vit", VITS)
@pytest.mark.parametrize("spec", SPECS)
def test_logits_and_gradients_are_those_of_timms_network(vit, spec):
    case = make_case(vit, spec)
    layout = case.base.trained("full")
    generator = torch.Generator().manual_seed(0)
    start = 0.3 * torch.randn(layout.size, generator=generator, dtype=torch.float64)
    labels = torch.arange(5) % 4

    def gradient(forward) -> tuple[torch.Tensor, torch.Tensor]:
        delta = start.clone().requires_grad_()
        z = forward(delta)
        cross_entropy(z, labels).backward()
        return z.detach(), delta.grad

    def timms(delta):
        moved = {n: case.base.state[n] + c for n, c in layout.views(delta).items()}
        return case.forward({**case.base.state, **moved})

    ours, theirs = gradient(lambda d: logits(case.base, layout, d, case.tokens)), gradient(timms)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_the_tangent_is_its_derivative():
    from taftcache.tangent.operator import TangentOperator

    case = make_case("plain", "keep")
    rows = ArrayRows(case.tokens.numpy(), np.zeros(5, np.int32))
    operator = TangentOperator(case.base, [rows], dtype=torch.float64)
    v = torch.randn(operator.layout.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (change,) = operator.matvec(v)
    h = 1e-5
    ends = [logits(case.base, operator.layout, s * h * v, case.tokens) for s in (1, -1)]
    assert torch.allclose((ends[0] - ends[1]) / (2 * h), change, rtol=1e-6, atol=1e-6)


def test_the_schedule_is_the_papers():
    rates = [Schedule(1e-3).rate_at(epoch) for epoch in range(30)]
    assert rates == pytest.approx([1e-3] * 15 + [1e-4] * 10 + [1e-5] * 5)


def test_fine_tuning_learns_and_repeats():
    case = make_case("plain", "keep", n=40)
    rows = ArrayRows(case.tokens.numpy(), (np.arange(40) % 4).astype(np.int32))
    runs = [fine_tune(case.base, [rows], Schedule(1e-2, 30, 8), seed=3) for _ in range(2)]
    assert torch.equal(*runs)
    layout, labels = case.base.trained("full"), torch.arange(40) % 4
    begin, end = (predict(case.base, layout, delta, rows) for delta in (torch.zeros_like(runs[0]), runs[0]))
    assert cross_entropy(end, labels) < 0.5 * cross_entropy(begin, labels)
    assert (end.argmax(1) == labels).double().mean() > 0.8
    with pytest.raises(SolveError, match="at least one row"):
        fine_tune(case.base, [], Schedule())


def test_votes():
    z = torch.tensor([[[9.0, 0, 0]], [[0, 0.2, 0]], [[0, 0.3, 0.2]]])  # two weak votes for 1 against a sure one for 0
    assert sisa(z).tolist() == [1]
    tie = torch.tensor([[[5.0, 0, 0]], [[0, 0.1, 0]]])
    assert sisa(tie).tolist() == [0]  # the surer of the two
    assert sisa(z[:1]).tolist() == [0]
