"""Every λ of the head, exact leave-one-out, and the choice of a ridge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights
from taftcache.solve.choosing import STEPS, _Part, choose_ridge
from taftcache.solve.head import HeadPath
from taftcache.tangent.operator import TangentOperator
from tests.solve.problems import K, N, case, dense, labels, make_problem, rows

LOSS = RSL(alpha=1.0, kappa=5.0)


@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
def test_one_decomposition_gives_every_head(ridge):
    path = HeadPath(make_problem(loss=LOSS, head=True))
    solution, whole = path.solution(ridge), dense(loss=LOSS, ridge=ridge, head=True)
    assert solution.converged
    assert (solution.value - whole.solution).norm() <= 1e-8 * whole.solution.norm()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [1e-4, 1e-1])
def test_leave_one_out_is_leaving_each_row_out(ridge, weighted):
    """λN stays as it is, so a row less is the ridge a little larger beside the mean."""
    omega = torch.rand(N, dtype=torch.float64) + 0.1 if weighted else None
    problem = make_problem(loss=LOSS, head=True)
    if omega is not None:
        problem = type(problem)(problem.operator, problem.loss, problem.ridge, RowWeights(by_sample=omega))
    (found,) = HeadPath(problem).leave_one_out([ridge])
    losses, correct = [], 0
    for n in range(N):
        weights = torch.ones(N, dtype=torch.float64) if omega is None else omega.clone()
        weights[n] = 0
        without = type(problem)(problem.operator, problem.loss, ridge, RowWeights(by_sample=weights))
        head = HeadPath(without).weights(ridge)
        ((state, y),) = problem.operator.blocks()
        z = state.logits + torch.cat([state.feature, torch.ones(N, 1)], 1) @ head.T
        losses.append(LOSS.value(z, y)[n].item())
        correct += int(z[n].argmax() == y[n])
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-8)
    assert found.accuracy == pytest.approx(correct / N)


@pytest.mark.parametrize("weighted", [False, True])
def test_generalised_cross_validation_is_what_it_says(weighted):
    omega = torch.rand(N, dtype=torch.float64) + 0.1 if weighted else torch.ones(N, dtype=torch.float64)
    problem = replace(make_problem(loss=LOSS, head=True), weights=RowWeights(by_sample=omega))
    ((state, y),) = problem.operator.blocks()
    x = torch.cat([state.feature, torch.ones(N, 1)], 1).double()
    for ridge, found in zip([1e-5, 1e-2, 1.0], HeadPath(problem).generalised([1e-5, 1e-2, 1.0]), strict=True):
        z = state.logits + x @ HeadPath(problem).weights(ridge).T
        whole = (x.T * (2 / K / N * omega)) @ x + ridge * torch.eye(x.shape[1], dtype=torch.float64)
        hat = torch.einsum("ni,ij,nj->n", x, torch.linalg.inv(whole), x) * (2 / K / N * omega)
        assert found == pytest.approx((omega * LOSS.value(z, y)).mean().item() / (1 - hat.mean().item()) ** 2, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_is_that_of_the_whole_curve(seed):
    """Labels from a head and noise: little of it asks for a small λ, much of it for a large one."""
    ridges = np.logspace(-9, 1, 21).tolist()
    problem = make_problem(loss=LOSS, head=True)
    ((state, _),) = problem.operator.blocks()
    random = torch.Generator().manual_seed(seed)
    noise = 10 ** (4 * torch.rand((), generator=random).item() - 2)
    spread = torch.randn(state.feature.shape[1], K, generator=random, dtype=torch.float64)
    logits = state.feature.double() @ spread + noise * torch.randn(N, K, generator=random, dtype=torch.float64)
    labels = logits.argmax(1)
    blocks = lambda: iter([(state, labels)])  # noqa: E731
    problem.operator.blocks = blocks
    path = HeadPath(problem)
    curve = path.leave_one_out(ridges)
    found = path.least(ridges)
    best = min(curve, key=lambda e: e.loss)
    assert best.ridge in [e.ridge for e in found]
    assert len(found) < len(ridges) / 2
    assert all(e.loss == pytest.approx(c.loss, rel=1e-12) for e in found for c in curve if c.ridge == e.ridge)


def test_classes_of_their_own_need_their_own_decomposition():
    with pytest.raises(SolveError, match="share"):
        HeadPath(make_problem(loss=RSL(alpha=2.0, kappa=5.0), head=True))


@pytest.mark.parametrize("sizes", [(N,), (16, 24), (3, 5, 32)])
@pytest.mark.parametrize("size", [4, 7, 100])
@pytest.mark.parametrize("start", [0, 7])
def test_parts_share_the_rows_out(sizes, size, start):
    parts = [_Part(rows(sizes=sizes), 5, held) for held in (True, False)]
    for part in parts:
        got = [block.labels for block in part.blocks(size, start)]
        assert np.array_equal(np.concatenate(got), labels()[part.chosen(N)][start:])
        assert all(len(block) == size for block in got[:-1])
    assert sorted([*parts[0].chosen(N), *parts[1].chosen(N)]) == list(range(N))
    assert [part.rows for part in parts] == [8, 32]


@pytest.mark.parametrize("train", ["head", "full"])
@pytest.mark.parametrize("loss", [LOSS, RSL(alpha=2.0, kappa=5.0), CrossEntropy()], ids=["rsl", "alpha", "ce"])
def test_the_choice_has_the_least_loss_of_its_curve(monkeypatch, train, loss):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    choice = choose_ridge(case().base, rows(), loss, train=train)
    best = min(choice.curve, key=lambda point: point.loss)
    assert choice.ridge == best.ridge or best.loss == next(p.loss for p in choice.curve if p.ridge == choice.ridge)
    assert [p.ridge for p in choice.curve] == sorted(p.ridge for p in choice.curve)
    assert choice.method == ("leave-one-out" if train == "head" and loss is LOSS else "validation")
    assert choice == choose_ridge(case().base, rows(sizes=(16, 24)), loss, train=train, memory=0)
    if loss is LOSS and train == "full":
        assert choice.passes <= STEPS + 9


def test_the_path_validates_what_a_solve_of_the_other_rows_would(monkeypatch):
    """Half the rows, two λ far apart: the losses on the other half are those of dense solutions."""
    monkeypatch.setattr("taftcache.solve.choosing.EVERY", 2)
    monkeypatch.setattr("taftcache.solve.choosing.STEPS", 40)
    ridges = [1e-2, 1.0]
    choice = choose_ridge(case().base, rows(), LOSS, grid=ridges)
    kept, aside = np.arange(0, N, 2), np.arange(1, N, 2)
    from tests.solve.problems import jacobian

    J, f0 = jacobian()
    y = torch.nn.functional.one_hot(torch.from_numpy(labels()), K).double()
    J = J.view(N, K, -1)
    for ridge, point in zip(ridges, choice.curve, strict=True):
        A = J[kept].reshape(-1, J.shape[2])
        H = A.T @ A * (2 / K / len(kept)) + ridge * torch.eye(A.shape[1], dtype=torch.float64)
        x = torch.linalg.solve(H, A.T @ (5 * y - f0)[kept].reshape(-1) * (2 / K / len(kept)))
        z = f0[aside] + J[aside] @ x
        expected = (z - 5 * y[aside]).square().mean()
        assert point.loss == pytest.approx(expected.item(), rel=2e-2)


@pytest.mark.parametrize("grid", [[], [0.0, 1.0]])
def test_grids_that_are_refused(grid):
    with pytest.raises(SolveError, match="grid"):
        choose_ridge(case().base, rows(), LOSS, grid=grid)


def test_operators_are_not_changed_by_parts():
    whole = TangentOperator(case().base, [_Part(rows(), 5, False)], dtype=torch.float64)
    assert sum(len(y) for _, y in whole.blocks()) == whole.rows == 32
