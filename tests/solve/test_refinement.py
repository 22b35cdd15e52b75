"""What every iterative solver does with a limit on passes, and with an interruption in any of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.loss import Loss
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.inverses.inverse import ShiftedInverse
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.methods.ball import solve_in_ball
from taftcache.solve.methods.conjugate import Lazy, pcg
from taftcache.solve.methods.coordinates import Duals, Parameters
from taftcache.solve.methods.newton import newton
from taftcache.solve.methods.row_space import RowSpace
from taftcache.solve.methods.span import SpanSolver
from taftcache.solve.pair import ProblemPair
from taftcache.solve.settings import Goal
from taftcache.solve.solution import Solution, Status
from tests.solve.problems import Passes, make_problem

SQUARE = RSL(alpha=1.0, kappa=5.0)
RADIUS = 1.0
START = 0.01


def conjugate(goal: Goal) -> Solution:
    both = pair(SQUARE)
    return pcg(both, Lazy(lambda: KroneckerPreconditioner(both.inner)), goal, start=begin(both.exact))


def in_row_space(goal: Goal) -> Solution:
    space = RowSpace(pair(SQUARE), goal.max_passes)
    return space.solution(space.run(goal.tolerance))


def in_span_of_rows(goal: Goal) -> Solution:
    return next(SpanSolver(Duals(pair(SQUARE)), goal).solve([RADIUS]))


def in_span_of_parameters(goal: Goal) -> Solution:
    both, shifted = pair(SQUARE), ShiftedInverse()
    return next(SpanSolver(Parameters(both, lambda ridge: shifted.at(both.inner)), goal).solve([RADIUS]))


def by_newton(goal: Goal) -> Solution:
    both = pair(CrossEntropy())
    return newton(both, goal, start=begin(both.exact))


def in_one_ball(goal: Goal) -> Solution:
    both = pair(CrossEntropy())

    def solve(ridge: float, goal: Goal, last: Solution | None) -> Solution:
        return newton(both.at(ridge), goal, start=None if last is None else last.value)

    return solve_in_ball(solve, both.exact, RADIUS, goal)


def pair(loss: Loss) -> ProblemPair:
    return ProblemPair(*(make_problem(loss=loss, ridge=1e-3, dtype=dtype) for dtype in (torch.float32, torch.float64)))


def begin(problem: Problem) -> Tensor:
    return torch.full((problem.operator.layout.size,), START, dtype=torch.float64)


SOLVERS: dict[str, Callable[[Goal], Solution]] = {
    solver.__name__: solver
    for solver in (
        conjugate, in_row_space, in_span_of_rows, in_span_of_parameters, by_newton, in_one_ball,
    )
}  # fmt: skip
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
# Beyond the first passes, where each differs, every sixteenth one stands for its neighbours in the short form.
every_pass = pytest.mark.parametrize(
    "step", [pytest.param(16, id="short"), pytest.param(1, id="long", marks=pytest.mark.full)]
)


def some(first: int, end: int, step: int) -> list[int]:
    return [*range(first, min(first + 10, end)), *range(first + 10, end, step)]


@pytest.mark.law("A limit on passes is kept, and said to be what ended the solve")
@every_solver
@every_pass
def test_a_limit_is_kept_whatever_it_is(solver, step):
    whole = solver(Goal(tolerance=1e-5, max_passes=2000))
    assert whole.converged
    for limit in some(4, min(whole.stats.passes, 70), step):
        cut = solver(Goal(tolerance=1e-5, max_passes=limit))
        assert cut.stats.passes <= limit, limit
        assert cut.status is Status.max_passes or cut.converged, limit


@pytest.mark.law("An interrupted solve raises KeyboardInterrupt, or is kept as asked, marked, and solved again")
@every_solver
@every_pass
def test_an_interruption_in_any_pass_keeps_the_solve(solver, step, monkeypatch):
    begun = Passes(monkeypatch)
    objectives: list[float] = []
    for at in some(2, 60, step):  # before the first pass there is nothing to keep
        begun.interrupt(at)
        found = solver(Goal(tolerance=1e-5, max_passes=400))
        if begun.count < at:  # it ended before
            break
        assert found.status is Status.interrupted, at
        objectives.append(found.certificate.objective)
    assert len(objectives) > 5
    assert max(objectives) < 1.05 * objectives[0]  # a start may be worse than zero
    assert min(objectives) < 0.9 * objectives[0]
