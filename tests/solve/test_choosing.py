"""Every λ of the head, exact leave-one-out, and the choice of a ridge."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights
from taftcache.solve import choosing
from taftcache.solve.choosing import ALONE, GRID, NEAR, STEPS, choose_ridge, ridge_path
from taftcache.solve.head.at_ridge import Unseen
from taftcache.solve.head.choice import every_head, path_of
from taftcache.solve.head.terms import flat
from taftcache.solve.leave_one_out import leave_one_out
from taftcache.solve.settings import Arithmetic
from taftcache.tangent.rows import RowSubset
from tests.solve.problems import K, N, case, dense, labels, make_problem, rows

LOSS = RSL(alpha=1.0, kappa=5.0)


UNEVEN = RSL(alpha=3.0, kappa=5.0)
both_losses = pytest.mark.parametrize("loss", [LOSS, UNEVEN], ids=["even", "uneven"])


@both_losses
@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
def test_decompositions_give_every_head(ridge, loss):
    problem = make_problem(loss=loss, head=True)
    whole = dense(loss=loss, ridge=ridge, head=True).solution
    assert (flat(problem, path_of(problem).weights(ridge)) - whole).norm() <= 1e-8 * whole.norm()


@both_losses
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [1e-4, 1e-1])
def test_leave_one_out_is_leaving_each_row_out(ridge, weighted, loss):
    """λN stays as it is, so a row less is the ridge a little larger beside the mean."""
    omega = torch.rand(N, dtype=torch.float64) + 0.1 if weighted else None
    problem = make_problem(loss=loss, head=True)
    if omega is not None:
        problem = type(problem)(problem.operator, problem.loss, problem.ridge, RowWeights(by_sample=omega))
    (found,) = path_of(problem).leave_one_out([ridge])
    losses, correct = [], 0
    for n in range(N):
        weights = torch.ones(N, dtype=torch.float64) if omega is None else omega.clone()
        weights[n] = 0
        without = type(problem)(problem.operator, problem.loss, ridge, RowWeights(by_sample=weights))
        head = path_of(without).weights(ridge)
        ((state, y),) = problem.operator.blocks()
        z = state.logits + torch.cat([state.feature, torch.ones(N, 1)], 1) @ head.T
        losses.append(loss.value(z, y)[n].item())
        correct += int(z[n].argmax() == y[n])
    counted = np.ones(N) if omega is None else omega.numpy()
    assert found.loss == pytest.approx(np.mean(counted * losses), rel=1e-8)
    assert found.right.sum() == correct
    assert (found.weight is None) == (omega is None)


def test_decompositions_of_many_classes_need_memory(monkeypatch):
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 1000)
    path_of(make_problem(loss=LOSS, head=True))
    with pytest.raises(SolveError, match="its own D"):
        path_of(make_problem(loss=UNEVEN, head=True))
    assert every_head(make_problem(loss=LOSS, head=True), 1e-8) is not None
    assert every_head(make_problem(loss=UNEVEN, head=True), 1e-8) is None
    assert choose_ridge(case().base, rows(), Objective(loss=UNEVEN, train="head")).method == "validation"
    base, direction = case().base, torch.ones(case().base.head_layout.size, dtype=torch.float64)
    objective = Objective(loss=UNEVEN, ridge=1e-2, train="head")
    delta = torch.zeros_like(direction)
    assert leave_one_out(base, rows(), objective, direction, delta=delta).method == "closed form"  # a few at a time


@pytest.mark.parametrize("train", ["head", "full"])
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(LOSS, id="rsl", marks=pytest.mark.full),
        pytest.param(RSL(alpha=2.0, kappa=5.0), id="alpha"),
        pytest.param(CrossEntropy(), id="ce"),
    ],
)
def test_the_choice_has_about_the_least_loss_of_its_curve(monkeypatch, train, loss):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    choice = choose_ridge(case().base, rows(), Objective(loss=loss, train=train))
    least = min(point.loss for point in choice.curve)
    alike = {point.ridge: point.accuracy for point in choice.curve if point.loss <= 1.01 * least}
    assert choice.ridge in alike
    assert all(accuracy < alike[choice.ridge] for ridge, accuracy in alike.items() if ridge > choice.ridge)
    assert [p.ridge for p in choice.curve] == sorted(p.ridge for p in choice.curve)
    assert choice.method == ("leave-one-out" if train == "head" and loss.quadratic else "validation")
    objective, streaming = Objective(loss=loss, train=train), Arithmetic(memory=0)
    assert choice == choose_ridge(case().base, rows(sizes=(16, 24)), objective, arithmetic=streaming)
    if loss is LOSS and train == "full":
        assert choice.passes <= STEPS + 11


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([7.170, 7.175, 7.5, 9.5], 1e-5),  # on digits, which of the first two was less hung on rounding
        ([7.175, 7.170, 7.5, 9.5], 1e-5),
        ([7.5, 7.170, 7.2, 7.3], 1e-4),
        ([7.170, 7.3, 7.5, 9.5], 1e-6),
        ([0.0, 0.0, 1.0, 2.0], 1e-5),
        ([7.171, 7.172, 7.170, 7.173], 1e-4),  # where none stands out, no larger one is as good for it
    ],
)
def test_of_losses_that_differ_by_less_than_a_hundredth_the_largest_ridge_is_taken(losses, chosen):
    tried = [Unseen(10.0 ** (k - 6), loss, torch.tensor([True])) for k, loss in enumerate(losses)]
    assert choosing._best(tried) == pytest.approx(chosen)


@pytest.mark.parametrize(("losses", "chosen"), [([7.170, 7.175, 7.180, 9.5], 1e-5), ([7.170, 7.180, 7.2, 9.5], 1e-6)])
def test_losses_of_values_are_told_apart_by_a_thousandth(losses, chosen):
    tried = [Unseen(10.0 ** (k - 6), loss, None) for k, loss in enumerate(losses)]
    assert choosing._best(tried) == pytest.approx(chosen)


@pytest.mark.parametrize(
    ("right", "chosen"),
    [
        ([90, 88, 86, 99], 1e-4),  # of a hundred rows: 4 are twice their standard error, and no more than that
        ([9000, 8800, 8600, 9900], 1e-6),
        ([9000, 8999, 8600, 9900], 1e-5),
        ([8800, 8800, 9000, 9900], 1e-4),
    ],
)
def test_of_losses_about_as_good_the_accuracy_of_many_rows_decides(right, chosen):
    """Of 50,000 rows the loss said the same of several λ whose accuracies were 1.4 points apart; the last λ's loss is
    worse, whatever its accuracy."""
    rows = torch.arange(100 if right[0] <= 100 else 10_000)
    half = [(rows + k * len(rows) // 3) % len(rows) < many for k, many in enumerate(right)]  # wrong about other rows
    tried = [Unseen(10.0 ** (k - 6), loss, half[k]) for k, loss in enumerate([7.17, 7.175, 7.175, 9.5])]
    assert choosing._best(tried) == pytest.approx(chosen)


@pytest.mark.parametrize("weight", [None, 1.0, 2.0])
def test_accuracies_are_compared_as_rows_weigh(weight):
    """Equal weights decide as none do; rows that weigh next to nothing decide nothing."""
    rows = torch.arange(10_000)
    first, second = rows % 10 < 9, rows % 100 < 86
    every = None if weight is None else torch.full((len(rows),), weight, dtype=torch.float64)
    tried = [Unseen(1e-6, 1.0, first, every), Unseen(1e-3, 1.001, second, every), Unseen(1e-2, 2.0, second, every)]
    assert choosing._best(tried) == 1e-6
    light = torch.where(first & ~second, 1e-9, 1.0).double()
    assert choosing._best([each._replace(weight=light) for each in tried]) == 1e-3
    assert choosing._share(second, every) == pytest.approx(0.86)
    assert choosing._share(second, light) > choosing._share(first, light)


def test_a_head_chooses_by_all_rows_and_a_tail_by_some(monkeypatch):
    """Of 50,000 rows the λ of 4,096 of them, scaled, had 2.5 points less than the λ of all."""
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 1000)
    monkeypatch.setattr("taftcache.solve.choosing.MOST_ROWS", N // 4)
    seen, real = [], choosing.set_aside
    monkeypatch.setattr(
        choosing, "set_aside", lambda *given: seen.append(len(given[4]) + len(given[5])) or real(*given)
    )
    head = choose_ridge(case().base, rows(), Objective(loss=UNEVEN, train="head"))
    choose_ridge(case().base, rows(), Objective(loss=UNEVEN))
    assert seen == [N, N // 4]
    assert head.ridge in [point.ridge for point in head.curve]


def test_under_cross_entropy_each_ridge_of_few_rows_is_near_its_optimum():
    """In float32 the last directions were rounding: 32 rows of three classes had 400 times F(0) at λ = 3e-5."""
    objective = Objective(loss=CrossEntropy())
    deltas = ridge_path(case().base, rows(), objective, GRID)
    for ridge, delta in zip(GRID, deltas, strict=True):
        problem = make_problem(loss=CrossEntropy(), ridge=ridge)
        left, at_zero = (problem.evaluate(at)[1].norm() for at in (delta.double(), torch.zeros_like(delta).double()))
        assert left <= 1.1 * NEAR * at_zero


def test_the_path_validates_what_a_solve_of_the_other_rows_would(monkeypatch):
    """Half the rows, two λ far apart: the losses on the other half are those of dense solutions."""
    monkeypatch.setattr("taftcache.solve.choosing.EVERY", 2)
    monkeypatch.setattr("taftcache.solve.choosing.STEPS", 40)
    ridges = [1e-2, 1.0]
    kept, aside = np.arange(0, N, 2), np.arange(1, N, 2)
    monkeypatch.setattr("taftcache.solve.choosing.order_of", lambda sources: np.concatenate([aside, kept]))
    choice = choose_ridge(case().base, rows(), Objective(loss=LOSS), grid=ridges)
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


def test_many_rows_choose_by_some_of_them_and_keep_the_sum(monkeypatch):
    """λN is what the rows that are drawn choose, wherever they lie."""
    drawn = np.sort(choosing.order_of(rows())[:20])
    some = choose_ridge(case().base, [RowSubset(rows(), drawn)], Objective(loss=LOSS))
    monkeypatch.setattr("taftcache.solve.choosing.MOST_ROWS", 20)
    choice = choose_ridge(case().base, rows(sizes=(16, 24)), Objective(loss=LOSS))
    assert choice.curve == some.curve
    assert choice.ridge * N == pytest.approx(some.ridge * 20)
    assert choice.passes < some.passes
    # The λ of one row less is the same to the last bit: another would make what is solved another problem.
    left = np.delete(np.arange(N), np.setdiff1d(np.arange(N), drawn)[0])
    fewer = choose_ridge(case().base, [RowSubset(rows(), left)], Objective(loss=LOSS))
    assert (fewer.curve, fewer.ridge) == (choice.curve, choice.ridge)


@pytest.mark.law("A row that leaves changes the part of at most one other row in the choice of λ")
def test_the_others_keep_their_part_when_a_row_leaves(monkeypatch):
    parts = []
    monkeypatch.setattr(choosing, "RowSubset", lambda source, index: parts.append(index) or RowSubset(source, index))

    def aside(places):
        """Which rows validate, by their place among all."""
        parts.clear()
        choose_ridge(case().base, [RowSubset(rows(), places)], Objective(loss=LOSS), grid=[1.0])
        kept, held = (places[index] for index in parts)
        assert sorted([*kept, *held]) == places.tolist()
        assert len(held) == len(places) // 5
        return set(held.tolist())

    everyone = np.arange(N)
    whole = aside(everyone)
    for gone in (0, 17, min(whole)):
        assert len(aside(np.delete(everyone, gone)) ^ whole - {gone}) <= 1
    order = choosing.order_of(rows(sizes=(16, 24)))
    assert (order == choosing.order_of(rows())).all()
    assert len(set(np.diff(sorted(whole)).tolist())) > 1  # drawn, and not by place


def test_lesser_ridges_are_left_out_once_the_loss_has_risen(monkeypatch):
    monkeypatch.setattr("taftcache.solve.choosing.class_kernel_fits", lambda problem: False)
    grid = [10.0**k for k in range(-6, 3)]
    choice = choose_ridge(case().base, rows(), Objective(loss=LOSS), grid=grid)
    losses = [point.loss for point in choice.curve]
    assert [point.ridge for point in choice.curve] == grid[len(grid) - len(losses) :]
    assert len(losses) < len(grid)
    assert losses[0] >= losses[1] >= losses[2]
    assert not any(a >= b >= c for a, b, c in zip(losses[1:], losses[2:], losses[3:], strict=False))


def test_a_choice_says_at_which_end_it_lies():
    choices = [choose_ridge(case().base, rows(), Objective(loss=LOSS), grid=g) for g in ([1e-3, 1e-2], [1e3, 1e4])]
    assert [choice.end for choice in choices] == ["largest", "least"]
    assert choose_ridge(case().base, rows(), Objective(loss=LOSS), grid=[1e-2]).end is None


def test_one_row_has_nothing_to_choose_by():
    choice = choose_ridge(case().base, [RowSubset(rows(), [3])], Objective(loss=LOSS))
    assert (choice.ridge, choice.curve, choice.passes) == (ALONE, [], 0)


@pytest.mark.parametrize("grid", [[], [0.0, 1.0]])
def test_grids_that_are_refused(grid):
    with pytest.raises(SolveError, match="grid"):
        choose_ridge(case().base, rows(), Objective(loss=LOSS), grid=grid)
