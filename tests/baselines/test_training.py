"""Adam's trainings against torch's optimiser on autograd's gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from taftcache.baselines.fine_tuning import fine_tune, logits
from taftcache.baselines.schedule import Schedule
from taftcache.baselines.tangent_training import Run, train_tangents
from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.rsl import RSL
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.tangent.vits import SPECS, make_case

SCHEDULE = Schedule(1e-2, 2, 4)
RUNS = [
    Run(RSL(kappa=5.0), 1e-2, 1e-3),
    Run(RSL(kappa=15.0), 1e-3, 0.0, radius=0.05),
    Run(CrossEntropy(), 1e-2, 0.1),
]


def data(spec="keep", n=10):
    case = make_case("plain", spec, n=n)
    return case.base, ArrayRows(case.tokens.numpy(), (np.arange(n) % 4).astype(np.int32))


def autograd(layout, rows, rate, loss_of, radius=None):
    """Δw after torch.optim.Adam in float64 on the same batches, by the paper's schedule."""
    delta = torch.zeros(layout.size, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=rate)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(SCHEDULE.epochs):
        adam.param_groups[0]["lr"] = rate * SCHEDULE.rate_at(epoch) / SCHEDULE.rate
        for few in torch.randperm(rows.rows, generator=generator).split(SCHEDULE.batch):
            adam.zero_grad()
            loss_of(delta, few).backward()
            adam.step()
            if radius is not None and delta.detach().norm() > radius:
                delta.data.mul_(radius / delta.detach().norm())
    return delta.detach()


@pytest.mark.law("Settings that share a pass are what each would be alone, and torch's own Adam makes the same")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_tangents_are_trained_as_torch_would(spec, memory):
    base, rows = data(spec)
    operator = TangentOperator(base, [rows], dtype=torch.float64)
    units = torch.eye(rows.rows * operator.classes, dtype=torch.float64).view(-1, rows.rows, operator.classes)
    J = torch.stack([operator.accumulate(None, lambda z, change, y, r=unit: r) for unit in units])
    J = J.view(rows.rows, operator.classes, -1)
    base_logits = torch.cat([state.logits for state, _ in operator.blocks()])
    labels = torch.from_numpy(rows.labels).long()
    made = train_tangents(base, [rows], RUNS, SCHEDULE, memory=memory)
    for run, found in zip(RUNS, made, strict=True):

        def loss(delta, few, run=run):
            z = base_logits[few] + J[few] @ delta
            return run.loss.value(z, labels[few]).mean() + 0.5 * run.ridge * delta.square().sum()

        expected = autograd(operator.layout, rows, run.rate, loss, run.radius)
        assert (found - expected).norm() < 2e-3 * expected.norm()
        if run.radius is not None:
            assert found.norm() <= run.radius * (1 + 1e-6)
    alone = train_tangents(base, [rows], RUNS[1:2], SCHEDULE, memory=memory)
    assert torch.equal(alone[0], made[1])  # who shares the pass leaves no trace


def test_the_network_is_trained_as_torch_would():
    base, rows = data()
    layout = base.trained("full")
    tokens, labels = torch.from_numpy(rows.tokens), torch.from_numpy(rows.labels).long()
    wide = base.to(torch.float64)

    def loss(delta, few):
        return cross_entropy(logits(wide, layout, delta, tokens[few].double()), labels[few])

    expected = autograd(layout, rows, SCHEDULE.rate, loss)
    found = fine_tune(base, [rows], SCHEDULE)
    assert (found - expected).norm() < 2e-3 * expected.norm()


def test_what_cannot_be_trained_is_said():
    base, rows = data()
    with pytest.raises(SolveError, match="at least one row"):
        train_tangents(base, [ArrayRows(rows.tokens[:0], rows.labels[:0])], RUNS, SCHEDULE)
    with pytest.raises(SolveError, match="finite"):
        train_tangents(base, [rows], [Run(RSL(), float("inf"))], SCHEDULE)
