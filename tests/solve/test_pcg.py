"""Conjugate gradients against a dense solve, and whether status and certificate tell the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.inverses.dual import DualInverse
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.methods.conjugate import pcg
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import looked_at, prove
from taftcache.solve.settings import Goal
from taftcache.solve.solution import Certificate, Solution, Status
from taftcache.solve_stats import SolveStats
from tests.solve.problems import Dense, case, dense, make_problem

LOSS = RSL(alpha=1.0, kappa=5.0)
DTYPES = [torch.float32, torch.float64]


class Identity:
    """Plain conjugate gradients."""

    def __init__(self, problem: Problem) -> None:
        pass

    def apply(self, vector: Tensor) -> Tensor:
        return vector


PRECONDITIONERS = {"none": Identity, "kronecker": KroneckerPreconditioner, "dual": DualInverse}


def solve(problem: Problem, exact: Problem, preconditioner: str = "kronecker", **options) -> Solution:
    made = PRECONDITIONERS[preconditioner](exact if preconditioner == "dual" else problem)
    goal = Goal(**{name: options.pop(name) for name in ("tolerance", "max_passes") if name in options})
    return pcg(ProblemPair(problem, exact), made, goal, **options)


def claims_hold(solution: Solution, whole: Dense, ridge: float, tolerance: float) -> None:
    """Every claim of a solution, checked on the dense problem."""
    c, gradient = solution.certificate, whole.gradient(solution.value).norm().item()
    rounding = 1e-11 * whole.g.norm().item()
    assert c.gradient == pytest.approx(gradient, rel=1e-6, abs=rounding)
    assert c.gradient_at_zero == pytest.approx(whole.g.norm().item(), rel=1e-9)
    assert c.objective == pytest.approx(whole.value(solution.value), rel=1e-9)
    assert solution.converged == (solution.status is Status.converged)
    if solution.status is not Status.interrupted:
        assert solution.converged == (c.relative_gradient <= tolerance)
    if solution.converged:
        assert gradient <= tolerance * whole.g.norm().item() + rounding
    optimum = whole.solution
    slack = 1e-12 * whole.largest / ridge
    assert (solution.value - optimum).norm().item() <= c.distance * (1 + 1e-6) + slack * optimum.norm().item()
    assert whole.value(solution.value) - whole.value(optimum) <= c.gap * (1 + 1e-6) + 1e-10 * whole.constant


WIDE = [("all", "class-token"), ("plain", "reset-block")]
QUICK = {
    ("all", "class-token", "kronecker", torch.float64),
    ("plain", "reset-block", "kronecker", torch.float32),
    ("narrow-mlp", "keep", "kronecker", torch.float64),
    ("narrow-mlp", "keep", "none", torch.float64),
    ("narrow-mlp", "keep", "dual", torch.float32),
}
KINDS = [(*kind, p, d) for kind in [("narrow-mlp", "keep"), *WIDE] for p in PRECONDITIONERS for d in DTYPES]


@pytest.mark.parametrize(
    ("vit", "spec", "preconditioner", "dtype"),
    [k if k in QUICK else pytest.param(*k, marks=pytest.mark.full) for k in KINDS],
)
def test_solution_is_the_dense_one(vit, spec, preconditioner, dtype):
    problem, exact = make_problem(vit, spec, loss=LOSS, dtype=dtype), make_problem(vit, spec, loss=LOSS)
    whole = dense(vit, spec, loss=LOSS, ridge=1e-2)
    solution = solve(problem, exact, preconditioner, tolerance=1e-10, max_passes=3000)
    assert solution.converged, solution
    assert (solution.value - whole.solution).norm() <= 1e-6 * whole.solution.norm()
    assert solution.value.dtype == torch.float64


@pytest.mark.law("A certificate's bounds are true; a wrong product never passes for convergence")
@pytest.mark.parametrize("examples", [5, pytest.param(200, marks=pytest.mark.full)])
def test_every_claim_is_true(examples):
    settings(max_examples=examples, deadline=None)(given(**CLAIMS)(claim))()


CLAIMS: dict[str, Any] = {
    "ridge": st.floats(-6, 0).map(lambda e: 10**e),
    "alpha": st.sampled_from([0.3, 1.0, 4.0]),
    "kappa": st.sampled_from([0.5, 1.0, 15.0]),
    "tolerance": st.sampled_from([1e-2, 1e-5]),
    "max_passes": st.integers(1, 60),
    "dtype": st.sampled_from(DTYPES),
    "preconditioner": st.sampled_from(sorted(PRECONDITIONERS)),
}


def claim(ridge, alpha, kappa, tolerance, max_passes, dtype, preconditioner):
    loss = RSL(alpha=alpha, kappa=kappa)
    problem, exact = (make_problem(loss=loss, ridge=ridge, dtype=d) for d in (dtype, torch.float64))
    solution = solve(problem, exact, preconditioner, tolerance=tolerance, max_passes=max_passes)
    claims_hold(solution, dense(loss=loss, ridge=ridge), ridge, tolerance)
    assert solution.stats.passes <= max_passes
    assert solution.certificate.objective <= exact.evaluate(torch.zeros_like(solution.value))[0] * (1 + 1e-12)


def test_bounds_are_reached_where_no_row_looks():
    """The softmax cancels the key bias: along it F is the ridge alone, and both bounds are equalities."""
    ridge, t = 1e-3, 0.7
    problem, whole = make_problem(loss=LOSS, ridge=ridge), dense(loss=LOSS, ridge=ridge)
    unseen = torch.zeros_like(whole.g)
    where = case().base.layout.slices["blocks.1.attn.qkv.bias"]
    unseen[where.start + 12] = t
    at = whole.solution + unseen
    value, gradient = problem.evaluate(at)
    c = Certificate(gradient.norm().item(), whole.g.norm().item(), ridge, value, problem.operator.rows)
    assert c.distance == pytest.approx(t, rel=1e-6)
    assert c.gap == pytest.approx(value - whole.value(whole.solution), rel=1e-4)
    assert c.as_dict()["distance_bound"] == c.distance
    assert c.as_dict()["gap_bound"] == c.gap


@dataclass(frozen=True)
class Sabotaged(Problem):
    """A Hessian that is wrong by a factor, or rounded to so many bits."""

    factor: float = 1.0
    bits: int | None = None

    def hessian(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        right = super().hessian(vector, out).mul_(self.factor)
        if self.bits is None:
            return right
        unit = right.abs().max() / 2**self.bits
        return (right / unit).round() * unit


WRONG = [(0.5, None), (0.1, None), (1.0, 2)]


@pytest.mark.law("A certificate's bounds are true; a wrong product never passes for convergence")
@pytest.mark.parametrize(
    ("factor", "bits"),
    [(-1.0, None), (3.0, None), (1.0, 5)] + [pytest.param(*k, marks=pytest.mark.full) for k in WRONG],
)
@pytest.mark.parametrize("max_passes", [7, 300])
def test_wrong_products_never_pass_for_convergence(factor, bits, max_passes):
    exact = make_problem(loss=LOSS)
    wrong = Sabotaged(exact.operator, exact.loss, exact.ridge, factor=factor, bits=bits)
    solution = solve(wrong, exact, tolerance=1e-8, max_passes=max_passes)
    assert solution.status in (Status.stalled, Status.max_passes)
    worse = solution.certificate.objective > exact.evaluate(torch.zeros_like(solution.value))[0] * (1 + 1e-9)
    assert not worse or solution.certificate.relative_gradient < 1
    claims_hold(solution, dense(loss=LOSS, ridge=1e-2), 1e-2, 1e-8)


def test_slightly_wrong_products_are_corrected():
    exact = make_problem(loss=LOSS)
    wrong = Sabotaged(exact.operator, exact.loss, exact.ridge, factor=1.01)
    solution = solve(wrong, exact, tolerance=1e-8)
    assert solution.converged
    claims_hold(solution, dense(loss=LOSS, ridge=1e-2), 1e-2, 1e-8)


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.full), 3, pytest.param(12, marks=pytest.mark.full)])
def test_interruption_keeps_the_best_iterate(at):
    problem, exact = make_problem(loss=LOSS, dtype=torch.float32), make_problem(loss=LOSS)

    def interrupt(passes: int, residual: float) -> None:
        if passes > at:
            raise KeyboardInterrupt

    solution = solve(problem, exact, tolerance=1e-10, on_pass=interrupt)
    assert solution.status is Status.interrupted
    claims_hold(solution, dense(loss=LOSS, ridge=1e-2), 1e-2, 1e-10)
    assert solution.certificate.objective < exact.evaluate(torch.zeros_like(solution.value))[0]
    further = solve(problem, exact, tolerance=1e-10, on_pass=None, start=solution.value)
    assert further.converged


def test_every_pass_is_reported():
    seen: list[tuple[int, float]] = []
    problem = make_problem(loss=LOSS)
    solution = solve(problem, problem, tolerance=1e-6, on_pass=lambda *step: seen.append(step))
    assert [passes for passes, _ in seen] == sorted({passes for passes, _ in seen})
    assert seen[-1][0] <= solution.stats.passes <= seen[-1][0] + solution.stats.rounds


def test_convergence_by_less_than_rounding_is_taken_back():
    problem, value = make_problem(), dense(loss=LOSS, ridge=1e-2).solution
    tolerance = looked_at(problem, value, 1.0, SolveStats()).certificate.relative_gradient * (1 + 1e-9)
    found = looked_at(problem, value, tolerance, SolveStats())
    assert found.converged
    assert prove(found, problem, tolerance).status is Status.stalled
    assert prove(found, problem, 1e-9).converged


def test_what_two_ways_of_computing_a_gradient_differ_by_is_allowed_for():
    problem, value = make_problem(), dense(loss=LOSS, ridge=1e-2).solution
    found = looked_at(problem, value, 1.0, SolveStats())
    at_zero, gradient = found.gradients
    wrong = gradient + 1e-9 * at_zero.norm() * torch.ones_like(gradient)
    proven = prove(replace(found, gradients=(at_zero, wrong)), problem, 1.0)
    assert proven.certificate.rounding >= (wrong - gradient).norm()


def test_gradients_that_are_rounding_alone_are_those_of_an_optimum():
    """No gradient is below a part of nothing: without this, a base point that is the optimum would never be."""
    problem = make_problem(loss=LOSS)
    found = looked_at(problem, torch.zeros(problem.operator.layout.size, dtype=torch.float64), 1e-9, SolveStats())
    nothing = 1e-20 * found.gradients[0]
    figures = replace(found.certificate, gradient=nothing.norm().item(), gradient_at_zero=nothing.norm().item())
    assert not prove(found, problem, 1e-9).converged
    assert prove(replace(found, certificate=figures, gradients=(nothing, nothing)), problem, 1e-9).converged


def test_start_at_the_optimum_takes_two_passes():
    problem = make_problem(loss=LOSS)
    solution = solve(problem, problem, tolerance=1e-8)
    again = solve(problem, problem, tolerance=1e-8, start=solution.value)
    assert again.converged
    assert again.stats.passes <= 2
    assert torch.equal(again.value, solution.value)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_gradient_that_is_not_finite_is_refused(poison):
    problem = make_problem(loss=LOSS)
    good = KroneckerPreconditioner(problem)
    problem.operator.sources[0].tokens[3, 2, 1] = poison
    fresh = make_problem(loss=LOSS)
    fresh.operator.sources[:] = problem.operator.sources
    with pytest.raises(SolveError, match="finite"):
        pcg(ProblemPair(fresh, fresh), good)
