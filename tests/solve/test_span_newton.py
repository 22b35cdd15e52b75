"""Newton's method over the span of the gradients so far."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
import torch

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.weights import RowWeights
from taftcache.solve.methods import span_newton
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.methods.span_newton import SpanNewton
from taftcache.solve.pair import ProblemPair
from taftcache.solve.settings import Goal
from taftcache.solve.solution import Status
from taftcache.tangent.rows import RowSubset
from tests.solve.problems import K, N, make_problem, rows

WEIGHTS = RowWeights(torch.arange(1.0, K + 1), torch.linspace(0, 2, N))


def pair(ridge: float = 1e-3, weights: RowWeights | None = None) -> ProblemPair:
    exact = replace(make_problem(loss=CrossEntropy(), ridge=ridge), weights=weights)
    inner = replace(exact, operator=make_problem(dtype=torch.float32).operator)
    return ProblemPair(inner, exact)


def left_over(problem, value: torch.Tensor) -> float:
    """‖∇F‖ relative to that at zero."""
    return (problem.evaluate(value)[1].norm() / problem.evaluate(torch.zeros_like(value))[1].norm()).item()


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["even", "weighted"])
def test_it_ends_where_the_gradient_does(weights):
    both = pair(weights=weights)
    found = SpanNewton(both).solve(Goal(tolerance=1e-7))
    assert found.converged
    assert left_over(both.exact, found.value) <= 1e-7
    assert found.certificate.gradient == pytest.approx(both.exact.evaluate(found.value)[1].norm().item(), rel=1e-4)


def test_a_few_directions_do(monkeypatch):
    """The oldest are given up, and what is left is still minimised over."""
    monkeypatch.setattr(span_newton, "DIRECTIONS", 5)
    both = pair()
    found = SpanNewton(both).solve(Goal(tolerance=1e-6))
    assert found.converged
    assert left_over(both.exact, found.value) <= 1e-6


def test_another_ridge_goes_on_over_the_same_directions():
    both = pair(1e-2)
    alone = SpanNewton(both.at(8e-3)).solve(Goal())
    span = SpanNewton(both)
    first = span.solve(Goal())
    second = span.under(8e-3).solve(Goal())
    assert first.converged
    assert second.converged
    assert left_over(both.at(8e-3).exact, second.value) <= 1e-6
    assert second.stats.passes <= 0.8 * alone.stats.passes
    assert (second.value - alone.value).norm() <= second.certificate.distance + alone.certificate.distance


def test_under_another_ridge_what_is_left_may_lie_in_the_span():
    """As it does of a solve to 10⁻⁷ and more: the second ended where the first had, and was called stalled."""
    span = SpanNewton(pair(1e-2))
    assert span.solve(Goal(tolerance=1e-8)).converged
    for ridge in (1e-3, 1.0, 1e-2):
        found = span.under(ridge).solve(Goal(tolerance=1e-7))
        assert found.converged
        assert left_over(pair(ridge).exact, found.value) <= 1e-7


@pytest.mark.parametrize("ridge", [1e-2, 1e-5])
@pytest.mark.parametrize("gone", [(), (7,), (3, 20, 21)])
def test_it_goes_on_from_the_dual_vectors_of_the_rows_that_stay(ridge, gone):
    """At the smaller λ what stays is, without them, farther from the optimum than zero is."""
    old = SpanNewton(pair(ridge)).solve(Goal(tolerance=1e-7))
    stays = torch.ones(N, dtype=torch.bool)
    stays[list(gone)] = False
    left = RowSubset(rows(), torch.nonzero(stays)[:, 0].numpy())
    both = ProblemPair(*(replace(of, operator=of.operator.over([left])) for of in pair(ridge)))
    cold = SpanNewton(both).solve(Goal(tolerance=1e-6))
    enough = 0.1 * (cold.value - old.value).norm().item() if gone else old.certificate.distance
    warm = SpanNewton(both).restart(Restart(rows(), old.value, old.dual, stays, lambda moved: enough), 1000)
    assert warm.converged
    assert warm.certificate.distance <= enough
    assert (warm.value - cold.value).norm() <= warm.certificate.distance + cold.certificate.distance
    assert warm.certificate.gradient == pytest.approx(both.exact.evaluate(warm.value)[1].norm().item(), rel=1e-6)
    assert warm.stats.passes < (0.8 if ridge == 1e-2 or not gone else 1.1) * cold.stats.passes


def test_it_begins_with_what_the_rows_that_left_carried():
    """Or its gradient would be that of Jᵀα, several times as large as at zero: 371 rows of digits were lost there."""
    old = SpanNewton(pair(1e-2)).solve(Goal(tolerance=1e-7))
    stays = torch.arange(N) != 7
    left = [RowSubset(rows(), torch.nonzero(stays)[:, 0].numpy())]
    both = ProblemPair(*(replace(of, operator=of.operator.over(left)) for of in pair(1e-2)))
    begun = SpanNewton(both).restart(Restart(rows(), old.value, old.dual, stays, lambda moved: inf), 1000)
    assert left_over(both.exact, begun.value) < 0.1 * left_over(both.exact, both.exact.adjoint(old.dual[stays]))


@pytest.mark.parametrize("most", range(6, 12))
def test_it_goes_on_for_no_more_passes_than_it_may(most):
    old = SpanNewton(pair(1e-2)).solve(Goal(tolerance=1e-7))
    stays = torch.arange(N) != 7
    left = [RowSubset(rows(), torch.nonzero(stays)[:, 0].numpy())]
    both = ProblemPair(*(replace(of, operator=of.operator.over(left)) for of in pair(1e-2)))
    begun = SpanNewton(both).restart(Restart(rows(), old.value, old.dual, stays, lambda moved: 0.0), most)
    assert begun.stats.passes <= most


@pytest.mark.parametrize("times", [-30, -100])
def test_it_comes_back_from_where_the_loss_is_all_but_flat(times):
    """Newton's step is thousands of times too long there: 40 rows that lost half of them were called stalled."""
    both = pair(1e-5)
    old = SpanNewton(both).solve(Goal(tolerance=1e-7))
    stays, enough = torch.ones(N, dtype=torch.bool), 1e-3 * old.value.norm().item()
    found = SpanNewton(both).restart(Restart(rows(), old.value, times * old.dual, stays, lambda moved: enough), 1000)
    assert found.converged
    assert (found.value - old.value).norm() <= found.certificate.distance + old.certificate.distance


def test_near_is_near():
    both = pair(1e-2)
    span = SpanNewton(both)
    assert left_over(both.exact, span.near(1e-3, 50)) < 2e-3
    assert left_over(both.exact, SpanNewton(both).near(1e-3, 3)) > 1e-2  # three steps, and no more


def test_where_rounding_stops_it_float64_goes_on(monkeypatch):
    product = span_newton.kernel_product

    def rounded(problem, scale, vector):
        found = product(problem, scale, vector)
        return found if found.dtype == torch.float64 else found.bfloat16().float()

    monkeypatch.setattr(span_newton, "kernel_product", rounded)
    both = pair(1e-4)
    found = SpanNewton(both).solve(Goal(tolerance=1e-9))
    assert found.converged
    assert left_over(both.exact, found.value) <= 1e-9


def test_an_interrupt_leaves_the_best_so_far():
    both = pair()

    def stop(passes: int, residual: float) -> None:
        if passes == 12:
            raise KeyboardInterrupt

    found = SpanNewton(both, stop).solve(Goal())
    assert found.status is Status.interrupted
    assert left_over(both.exact, found.value) < 0.5


@pytest.mark.parametrize("limit", [1, 4, 5, 9, 20])
def test_it_keeps_to_its_passes(limit):
    found = SpanNewton(pair()).solve(Goal(tolerance=1e-12, max_passes=limit))
    assert found.status is Status.max_passes
    assert found.stats.passes <= limit


class SquaredHinge:
    """½ mean_k max(0, 1 − s_k z_k)², one class against the rest: D jumps where a margin is reached."""

    quadratic = False

    def value(self, z, y):
        return (self._short(z, y) ** 2).mean(1) / 2

    def gradient(self, z, y):
        return -self._sign(z, y) * self._short(z, y) / z.shape[1]

    def hessian(self, z, y, v):
        return (self._short(z, y) > 0) * v / z.shape[1]

    def root(self, z, y, v):
        return (self._short(z, y) > 0) * v / z.shape[1] ** 0.5

    def _sign(self, z, y):
        return (-torch.ones_like(z)).scatter_(1, y[:, None], 1.0)

    def _short(self, z, y):
        return (1 - self._sign(z, y) * z).clamp(min=0)


def test_where_the_second_derivative_jumps_a_solve_may_end_early_and_says_why():
    """No precision helps there, and the message blamed rounding alone."""
    problem = make_problem(loss=SquaredHinge(), ridge=1e-6)
    found = SpanNewton(ProblemPair(problem, problem)).solve(Goal())
    assert found.status is Status.stalled
    assert "a loss whose second derivative jumps" in found.status.value
    assert found.certificate.relative_gradient == pytest.approx(left_over(problem, found.value), rel=1e-4)
