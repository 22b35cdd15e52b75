"""Every loss against autograd, and what weights and switches make of a problem."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor

from taftcache import TangentClassifier
from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.loss import Loss, check_quadratic
from taftcache.objective.named import NAMES, class_weights, named_loss
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import LARGEST, RSL
from taftcache.objective.squared_error import SquaredError
from taftcache.objective.weights import RowWeights, balanced
from taftcache.recipe_sections import ObjectiveSpec
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Goal
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.solve.problems import K, N, case, labels, make_problem, tokens

CLASSES = torch.tensor([0, 1, 2, 2, 0, 1])
VALUES = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
CASES: list[tuple[Loss, Tensor]] = [
    (RSL(alpha=0.3, kappa=4.0), CLASSES),
    (CrossEntropy(), CLASSES),
    (SquaredError(), VALUES),
]
every_case = pytest.mark.parametrize(("loss", "y"), CASES, ids=lambda x: type(x).__name__)


def drawn() -> Tensor:
    return 3 * torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@every_case
def test_derivatives_are_autograds(loss, y):
    z = drawn()
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.value(leaf, y).sum(), leaf)
    assert torch.allclose(loss.gradient(z, y), gradient, rtol=1e-12, atol=1e-14)
    whole = torch.autograd.functional.hessian(lambda at: loss.value(at, y).sum(), z).reshape(18, 18)
    v = drawn().flip(0)
    assert torch.allclose(loss.hessian(z, y, v).reshape(-1), whole @ v.reshape(-1), rtol=1e-11, atol=1e-13)
    R = torch.stack([loss.root(z, y, unit.view(6, 3)).reshape(-1) for unit in torch.eye(18, dtype=z.dtype)], 1)
    assert torch.allclose(R @ R.T, whole, rtol=1e-11, atol=1e-13)


def test_every_loss_that_has_a_name_is_among_the_cases_and_in_every_list():
    assert {type(named_loss(name)) for name in NAMES} <= {type(loss) for loss, _ in CASES}
    of_estimator = get_type_hints(TangentClassifier.__init__)["loss"]
    assert NAMES == get_args(get_type_hints(ObjectiveSpec)["loss"]) == get_args(of_estimator)[1:]


def test_values_are_torchs():
    z = drawn()
    assert torch.allclose(
        CrossEntropy().value(z, CLASSES), torch.nn.functional.cross_entropy(z, CLASSES, reduction="none")
    )
    assert torch.allclose(SquaredError().value(z, VALUES).mean(), torch.nn.functional.mse_loss(z, VALUES))
    assert SquaredError().value(z[:, :1], VALUES[:, 0]).shape == (6,)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), True, "much"])
@pytest.mark.parametrize("name", ["alpha", "kappa"])
def test_the_rescaled_square_loss_weighs_and_pulls_by_numbers_above_zero(name, wrong):
    with pytest.raises(SolveError, match=f"{name} of the rescaled square loss is not above 0\n  got: .*\n  try: "):
        named_loss("rsl", **{name: wrong})


@pytest.mark.parametrize("name", ["alpha", "kappa"])
def test_the_rescaled_square_loss_takes_what_float32_holds(name):
    loss, z, y = RSL(alpha=LARGEST, kappa=LARGEST), torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    assert loss.value(z, y).isfinite()
    assert loss.gradient(z, y).square().isfinite().all()
    with pytest.raises(SolveError, match=f"{name} of the rescaled square loss is above"):
        named_loss("rsl", **{name: 2 * LARGEST})


def weighted(loss: Loss, weights: RowWeights | None = None, jvp_only: bool = False) -> Problem:
    return replace(make_problem(loss=loss, ridge=0.03), weights=weights, jvp_only=jvp_only)


BY_CLASS = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
BY_SAMPLE = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("loss", [RSL(alpha=0.3, kappa=4.0), CrossEntropy()], ids=["rsl", "ce"])
@pytest.mark.parametrize("jvp_only", [False, True])
def test_weighted_objective_is_written_out(monkeypatch, loss, jvp_only):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    problem = weighted(loss, RowWeights(BY_CLASS, BY_SAMPLE), jvp_only)
    delta = 0.1 * torch.randn(problem.operator.layout.size, dtype=torch.float64)
    z = problem.forward(delta)
    if not jvp_only:
        z = z + torch.cat([state.logits for state, _ in problem.operator.blocks()])
    y = torch.from_numpy(labels())
    expected = (BY_CLASS[y] * BY_SAMPLE * loss.value(z, y)).mean() + 0.015 * (delta @ delta)
    value, gradient, local = problem.at(delta)
    assert value == pytest.approx(expected.item(), rel=1e-12)
    v = torch.randn_like(delta)
    step = 1e-6
    slope = (problem.evaluate(delta + step * v)[0] - problem.evaluate(delta - step * v)[0]) / (2 * step)
    assert slope == pytest.approx((gradient @ v).item(), rel=1e-5)
    bent = problem.evaluate(delta + step * v)[1] - problem.evaluate(delta - step * v)[1]
    assert torch.allclose(local.hessian(v), bent / (2 * step), rtol=1e-4, atol=1e-6)


def test_weight_two_is_the_row_twice():
    twice = make_problem(ridge=0.03)
    (source,) = twice.operator.sources
    ones = torch.ones(N, dtype=torch.float64)
    ones[5] = 2
    single = replace(twice, weights=RowWeights(by_sample=ones))
    double = Problem(
        TangentOperator(
            case().base, [ArrayRows(tokens(), labels()), ArrayRows(tokens()[5:6], labels()[5:6])], dtype=torch.float64
        ),
        twice.loss,
        0.03,
    )
    zero = torch.zeros(twice.operator.layout.size)
    assert source.rows == N
    assert single.evaluate(zero)[0] * N == pytest.approx(double.evaluate(zero)[0] * (N + 1), rel=1e-12)


def test_rows_bring_values_for_a_regression():
    values = np.random.default_rng(0).normal(size=(N, K))
    operator = TangentOperator(case().base, [ArrayRows(tokens(), values)], dtype=torch.float64)
    problem = Problem(operator, SquaredError(), 0.1)
    f0 = torch.cat([state.logits for state, _ in operator.blocks()])
    expected = (f0 - torch.from_numpy(values)).square().mean()
    assert problem.evaluate(torch.zeros(operator.layout.size))[0] == pytest.approx(expected.item(), rel=1e-12)


def test_balanced_weights_let_classes_count_alike():
    y = torch.tensor([0, 0, 0, 1, 3])
    weights = balanced(y, 4)
    assert weights[2] == 0
    sums = [weights[k] * (y == k).sum() for k in (0, 1, 3)]
    assert torch.allclose(torch.stack(sums), torch.full((3,), 5 / 3, dtype=torch.float64))
    assert class_weights("none", y, 4) is None
    assert torch.equal(class_weights("balanced", y, 4).by_class, weights)
    assert class_weights([1, 2, 3, 4], y, 4).by_class.tolist() == [1, 2, 3, 4]


def test_what_is_refused():
    for values in ([-1.0, 1.0], [float("nan")]):
        with pytest.raises(SolveError, match="not negative"):
            RowWeights(by_class=torch.tensor(values))
    with pytest.raises(SolveError, match="class_weights has 3 values"):
        RowWeights(by_class=torch.ones(3)).check(N, K)
    with pytest.raises(SolveError, match="weights has 3 values"):
        RowWeights(by_sample=torch.ones(3)).check(N, K)
    with pytest.raises(SolveError, match="hinge"):
        named_loss("hinge")
    with pytest.raises(SolveError, match="no loss is called"):
        named_loss(["rsl"])  # as a search gives it whose grid has a list too many
    with pytest.raises(SolveError, match="class weights"):
        class_weights("even", CLASSES, 3)


class Coupled:
    """ℓ(z, y) = ½ (z − e_y)ᵀA(z − e_y) of some A that does not depend on z."""

    def __init__(self, matrix: Tensor, quadratic: bool) -> None:
        self.matrix, self.quadratic = matrix.double(), quadratic

    def value(self, z: Tensor, y: Tensor) -> Tensor:
        left = self._left(z, y)
        return 0.5 * ((left @ self.matrix.to(z)) * left).sum(1)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return self._left(z, y) @ self.matrix.to(z)

    def hessian(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return v @ self.matrix.to(v)

    def root(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return v @ torch.linalg.cholesky(self.matrix).T.to(v)

    def _left(self, z: Tensor, y: Tensor) -> Tensor:
        return z.scatter_add(1, y[:, None], torch.full_like(z[:, :1], -1.0))


OTHER = {
    "coupled": 0.1 * torch.eye(K) + 0.9 * torch.ones(K, K),
    "uneven": torch.diag(torch.arange(1.0, K + 1)),
}


@pytest.mark.law("A loss whose second derivative is not what the solvers of squares take it for is refused, or right")
@pytest.mark.parametrize("matrix", OTHER.values(), ids=OTHER)
@pytest.mark.parametrize("train", ["full", "head"])
def test_any_constant_curvature_is_refused_as_quadratic_and_solved_as_not(matrix, train):
    sources = [ArrayRows(tokens(), labels())]
    wrong, right = (Objective(loss=Coupled(matrix, q), ridge=1e-2, train=train) for q in (True, False))
    with pytest.raises(SolveError, match="calls itself quadratic"):
        minimise(case().base, sources, wrong)
    found = minimise(case().base, sources, right, goal=Goal(tolerance=1e-8))
    assert found.converged
    operator = TangentOperator(case().base, sources, trained=case().base.trained(train), dtype=torch.float64)
    units = torch.eye(operator.layout.size, dtype=torch.float64)
    J = torch.stack([torch.cat(list(operator.matvec(unit))).reshape(-1) for unit in units], 1)
    base = torch.cat([state.logits for state, _ in operator.blocks()])
    D = torch.block_diag(*[matrix.double()] * N)
    pulled = J.T @ right.loss.gradient(base, torch.from_numpy(labels())).reshape(-1) / N
    optimum = -torch.linalg.solve(J.T @ D @ J / N + 1e-2 * units, pulled)
    distance = (found.value - optimum).norm().item()
    assert distance <= found.certificate.distance * (1 + 1e-6)
    assert distance <= 1e-4 * optimum.norm().item()


@pytest.mark.parametrize(("loss", "y"), [one for one in CASES if one[0].quadratic], ids=lambda x: type(x).__name__)
def test_what_calls_itself_quadratic_is(loss, y):
    check_quadratic(loss, y[:1], 3)


@pytest.mark.parametrize(("loss", "looks"), [(RSL(), 1), (CrossEntropy(), 0)], ids=["square", "cross-entropy"])
def test_a_row_is_read_ahead_of_a_solve_for_a_quadratic_loss_alone(loss, looks):
    sizes = []

    class Watched(ArrayRows):
        def blocks(self, size, start=0):
            sizes.append(size)
            return super().blocks(size, start)

    minimise(case().base, [Watched(tokens(), labels())], Objective(loss=loss, ridge=1e-2, train="head"))
    assert sizes.count(1) == looks
    assert len(sizes) > looks
