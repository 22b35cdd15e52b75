"""Losses and constraints beyond the ridge: Newton and the ball."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from taftcache import TangentClassifier
from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.objective.squared_error import SquaredError
from taftcache.objective.weights import RowWeights, balanced
from taftcache.solve import labels as labelling
from taftcache.solve.labels import proven_labels
from taftcache.solve.minimise import certify
from taftcache.solve.proof import constrained_gap
from taftcache.solve.solution import Certificate, Solution, Status
from taftcache.tangent.base import make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec
from tests.solve.problems import case, dense, jacobian, labels, make_problem, minimised, rows

LOSS = RSL(alpha=1.0, kappa=5.0)
full = pytest.mark.full
QUICK = [0.02, 0.2, 0.5, 0.7, 0.95]


def solve(loss=LOSS, ridge=1e-2, **options):
    return minimised(case().base, rows(), loss, ridge, **options)


def cross_entropy_optimum(ridge: float, radius: float | None = None) -> tuple[torch.Tensor, float]:
    """By L-BFGS on the dense model in the space of the rows, to rounding; with a ball, by bisection on its ridge."""
    J, f0 = jacobian()
    y = torch.from_numpy(labels())

    def at(total: float) -> torch.Tensor:
        x = torch.zeros(J.shape[1], dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS(
            [x], max_iter=4000, tolerance_grad=1e-12, tolerance_change=0, history_size=50, line_search_fn="strong_wolfe"
        )

        def closure():
            optimiser.zero_grad()
            value = torch.nn.functional.cross_entropy(f0 + (J @ x).view(f0.shape), y) + total / 2 * (x @ x)
            value.backward()
            return value

        optimiser.step(closure)
        return x.detach()

    x = at(ridge)
    if radius is not None and x.norm() > radius:
        low, high = ridge, 10.0
        for _ in range(40):
            middle = (low * high) ** 0.5
            x = at(middle)
            low, high = (middle, high) if x.norm() > radius else (low, middle)
    value = torch.nn.functional.cross_entropy(f0 + (J @ x).view(f0.shape), y) + ridge / 2 * (x @ x)
    return x, value.item()


@pytest.mark.parametrize(("method", "solver"), [("auto", "span newton"), ("conjugate", "newton")])
@pytest.mark.parametrize("ridge", [1e-3, 1e-1])
def test_newton_ends_at_the_optimum(ridge, method, solver):
    solution = solve(CrossEntropy(), ridge, tolerance=1e-8, method=method)
    x, value = cross_entropy_optimum(ridge)
    assert solution.converged
    assert solution.stats.solver == solver
    assert solution.stats.passes <= (60 if method == "auto" else 400)
    assert (solution.value - x).norm() <= 1e-4 * x.norm()
    c = solution.certificate
    assert (solution.value - x).norm().item() <= c.distance + 1e-6 * x.norm().item()
    assert abs(c.objective - value) <= c.gap + 1e-9


@pytest.mark.parametrize("limit", [6, 9])
def test_newton_within_its_passes(limit):
    solution = solve(CrossEntropy(), 1e-3, tolerance=1e-12, max_passes=limit)
    assert solution.status is Status.max_passes
    assert solution.stats.passes - solution.stats.proof_passes <= limit
    assert (
        solution.certificate.objective
        < make_problem(loss=CrossEntropy(), ridge=1e-3).evaluate(torch.zeros_like(solution.value))[0]
    )


def test_newton_where_a_direction_has_no_length_left():
    """Rows of lengths from 10⁻¹³ to 10⁸: the way to the region's edge was divided by zero."""
    x = [[-240564224.0, 137888720.0], [4.5e-08, -4.9e-08], [37.17510223388672, -84.7581787109375],
         [-1.1e-13, -1.4e-12], [-5.8e-13, -3.9e-13]]  # fmt: skip
    asked = TangentClassifier(scaling="none", loss="cross_entropy", ridge=0.00030515198783156804)
    with pytest.warns(ConvergenceWarning):
        assert asked.fit(np.array(x), [0, 1, 1, 1, 1]).solution_.status is Status.stalled


def test_newton_where_rows_can_be_told_apart():
    """Newton's whole step is far too long at first, and without a trust region 200 passes leave a fifth of ∇F."""
    generator = np.random.default_rng(0)
    classes, width, count = 100, 64, 1000
    y = np.arange(count) % classes
    centres = generator.normal(size=(classes, width))
    X = 8 * (centres[y] + 3 * generator.standard_t(3, size=(count, width))) / np.arange(1, width + 1) ** 0.4
    fitted = TangentClassifier(scaling="none", ridge=1e-4, tolerance=1e-2, max_passes=150).fit(X, y)
    assert fitted.solution_.stats.solver == "newton"
    assert fitted.solution_.converged
    assert fitted.score(X, y) == 1


METHODS = ["auto", "conjugate"]


def bare_head(classes: int, width: int):
    """A head of zeros on vectors."""
    spec = TangentSpec(blocks=0, init="zero")
    return make_base({}, TailConfig.of_vectors(width, classes), classes, spec)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_zero_is_the_optimum_where_no_more_than_rounding_says_otherwise(method, seed):
    """Equal rows under balanced weights: steps along what is left of ∇F(0) raised it a hundred million times."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, 30)
    y[:3] = range(3)
    x = np.repeat((100 * random.standard_normal((1, 6))).astype(np.float32), 30, 0)
    weights = RowWeights(by_class=balanced(torch.from_numpy(y), 3))
    at = [ArrayRows(x[:, None], y)]
    solution = minimised(bare_head(3, 6), at, CrossEntropy(), 1e-3, train="head", weights=weights, method=method)
    certificate = solution.certificate
    assert solution.converged
    assert certificate.gradient_at_zero < 1e-12  # of terms of about 100
    assert certificate.gradient <= certificate.rounding
    assert solution.value.norm() <= 2 * certificate.distance


def test_what_is_certified_is_what_was_given():
    """Zero stands in for what a solver gives up on, and never for a Δw whose certificate is asked for."""
    y = np.zeros((12, 1))
    rows_of = [ArrayRows(np.random.default_rng(0).standard_normal((12, 1, 3)).astype(np.float32), y)]
    base, given = bare_head(1, 3), torch.ones(4, dtype=torch.float64)
    found = certify(base, rows_of, Objective(loss=SquaredError(), ridge=1e-2, train="head"), given)
    assert torch.equal(found.value, given)
    assert not found.converged
    assert found.certificate.distance >= given.norm()


@pytest.mark.parametrize("radius", [None, 0.5])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", [LOSS, CrossEntropy()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("train", ["head", "full"])
def test_a_start_where_zero_is_the_optimum(train, loss, method, radius):
    """Nothing counts, so ∇F(0) is zero: what was heard of the progress was divided by it."""
    weights, heard = RowWeights(by_class=torch.zeros(4, dtype=torch.float64)), []
    start = torch.ones(case().base.trained(train).size, dtype=torch.float64)
    solution = solve(
        loss, train=train, weights=weights, method=method, radius=radius, start=start,
        on_pass=lambda passes, left: heard.append(left),
    )  # fmt: skip
    assert solution.converged
    assert not solution.value.any()
    assert heard == []


@pytest.mark.parametrize("radius", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_the_ball_of_a_quadratic_from_one_run(radius, ridge):
    whole = dense(loss=LOSS, ridge=max(ridge, 1e-9))
    solution = solve(ridge=ridge, radius=radius, tolerance=1e-5, max_passes=600)
    x = whole.in_ball(radius)
    assert solution.stats.norm <= radius * (1 + 1e-12)
    gap = whole.value(solution.value) - whole.value(x)
    assert gap <= solution.certificate.gap + 1e-7
    if solution.converged and radius < 100:
        assert (solution.value - x).norm() <= 1e-2 * radius
    assert solution.converged or ridge == 0


@pytest.mark.parametrize("method", METHODS)
def test_the_ball_of_cross_entropy_has_the_optimum(method):
    radius, ridge = 0.5, 1e-2
    solution = solve(CrossEntropy(), ridge, radius=radius, method=method, tolerance=1e-4, max_passes=4000)
    assert solution.converged
    assert solution.value.norm() <= radius * (1 + 1e-12)
    x, best = cross_entropy_optimum(ridge, radius)
    assert -1e-9 <= solution.certificate.objective - best <= solution.certificate.gap + 1e-9
    assert (solution.value - x).norm() <= 0.05 * radius


@pytest.mark.parametrize("loss", [LOSS, CrossEntropy()])
@pytest.mark.parametrize("train", ["full", "head"])
def test_the_smallest_ball_that_is_accepted_is_solved(loss, train):
    solution = solve(loss, ridge=0.0, radius=1e-30, train=train)
    assert solution.converged
    assert solution.value.norm().item() == pytest.approx(1e-30, rel=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_a_gap_allows_for_what_its_gradient_may_be_wrong_by(ridge):
    """Of F = c·w + ridge/2 ‖w‖² the optimum in any ball is known, and an error may hide all of the gradient."""
    generator = torch.Generator().manual_seed(0)
    for radius, inside, kept in [(1.0, 1.0, 0.9), (1.0, 0.0, 0.0), (5.0, 0.7, 0.5), (0.1, 1.0, 1.1)]:
        c, value = torch.randn(2, 7, dtype=torch.float64, generator=generator)
        value *= inside * radius / value.norm()
        best = -c * min(radius / c.norm().item(), 1 / ridge if ridge else inf)
        gap = (c @ value + ridge / 2 * value @ value - c @ best - ridge / 2 * best @ best).item()
        gradient = c + ridge * value
        error = abs(1 - kept) * gradient.norm().item()
        assert constrained_gap(ridge, kept * gradient, value, radius, error)[0] >= gap * (1 - 1e-12)


@pytest.mark.law("A solve in a ball ends within its tolerance at any radius, where the ball binds")
@pytest.mark.parametrize(
    "part", [*QUICK, *(pytest.param(k / 40, marks=full) for k in range(1, 40) if k / 40 not in QUICK)]
)
@pytest.mark.parametrize("ridge", [1e-3, pytest.param(1e-2, marks=full)])
def test_a_ball_of_any_radius_ends_within_the_tolerance(part, ridge):
    """The last λ + ν of the search differ by less than a coarse solve sees, and it must not take one for the other."""
    radius = part * dense(loss=LOSS, ridge=ridge).solution.norm().item()
    found = solve(ridge=ridge, radius=radius)
    assert found.status is Status.converged
    assert found.value.norm() == pytest.approx(radius, rel=1e-6)
    assert found.stats.passes <= 50


def test_a_wide_ball_is_no_ball():
    free, held = solve(tolerance=1e-6), solve(tolerance=1e-6, radius=1e4)
    assert held.converged
    assert (free.value - held.value).norm() <= 1e-3 * free.value.norm()


def test_weights_reach_every_solver():
    weights = RowWeights(by_class=torch.tensor([1.0, 0.0, 2.0, 0.5], dtype=torch.float64))
    one, other = (solve(ridge=1e-1, weights=weights, tolerance=1e-7, method=method).value for method in METHODS)
    assert (other - one).norm() <= 1e-4 * one.norm()
    assert (one - solve(ridge=1e-1, tolerance=1e-7).value).norm() > 1e-2 * one.norm()


def test_jvp_only_does_not_see_the_base_logits():
    solution = solve(ridge=1e-2, jvp_only=True, tolerance=1e-9)
    J, _ = jacobian()
    y = torch.nn.functional.one_hot(torch.from_numpy(labels()), 4).double().reshape(-1)
    H = J.T @ J * (2 / 4 / len(labels())) + 1e-2 * torch.eye(J.shape[1], dtype=torch.float64)
    x = torch.linalg.solve(H, J.T @ y * (5.0 * 2 / 4 / len(labels())))
    assert (solution.value - x).norm() <= 1e-6 * x.norm()


@pytest.mark.law("A label called proven is the exact optimum's")
def test_labels_that_are_proven_are_the_optimums():
    whole = dense(loss=LOSS, ridge=1e-2)
    J, f0 = jacobian()
    exact = (f0 + (J @ whole.solution).view(f0.shape)).argmax(1)
    operator = TangentOperator(case().base, rows(), dtype=torch.float64)
    zero = torch.zeros_like(whole.g)
    at_zero = Certificate(whole.g.norm().item(), whole.g.norm().item(), 1e-2, whole.constant, len(labels()))
    solutions = [Solution(zero, Status.max_passes, at_zero)]
    solutions += [solve(tolerance=tolerance, method="conjugate") for tolerance in (0.3, 1e-2, 1e-9)]
    shares = []
    for solution in solutions:
        predicted, proven = proven_labels(operator, solution.value, solution.certificate.distance)
        assert torch.equal(predicted[proven], exact[proven])
        assert solution.value.norm() > 0 or (predicted != exact).any()  # or there would be nothing to refuse
        shares.append(proven.double().mean().item())
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_labels_of_a_head_are_proven_beside_the_second_class_alone(monkeypatch):
    """Of 3,000 classes it took two minutes, one pass for each."""
    base, asked = case().base, []
    operator = TangentOperator(base, rows(), trained=base.head_layout, dtype=torch.float64)
    norms = labelling.row_norms
    monkeypatch.setattr(labelling, "row_norms", lambda *given: asked.append(given) or norms(*given))
    delta = torch.randn(base.head_layout.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states, direction = [state for state, _ in operator.blocks()], operator.direction(delta)
    z = torch.cat([state.logits + operator.tangent(state, direction) for state in states])
    longest = torch.cat([2**0.5 * (state.feature.square().sum(1) + 1).sqrt() for state in states])
    shares = []
    for distance in (0.0, 0.1, 1e6):
        predicted, proven = proven_labels(operator, delta, distance)
        first, second = z.topk(2).values.T
        assert torch.equal(predicted, z.argmax(1))
        assert torch.equal(proven, first - second > distance * longest)
        shares.append(proven.double().mean())
    assert 1 == shares[0] > shares[1] > shares[2] == 0
    assert len(asked) == 3 * len(states)


@pytest.mark.parametrize("options", [{"ridge": 0.0}, {"radius": 0.0}, {"ridge": -1.0, "radius": 1.0}])
def test_what_is_refused(options):
    with pytest.raises(SolveError):
        solve(**options)
