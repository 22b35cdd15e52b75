"""The one verb: minimise the objective over rows, by the method that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from math import inf, prod
from typing import Literal, get_args

import msgspec
import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.loss import Loss, check_quadratic
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.solve.directions import Inverse
from taftcache.solve.inverses.class_kernel import class_kernel_fits
from taftcache.solve.inverses.dual import PARTS, DualInverse, kernel, kernel_inverse_fits
from taftcache.solve.inverses.inverse import ShiftedInverse, approximate_inverse
from taftcache.solve.methods.ball import solve_in_ball
from taftcache.solve.methods.conjugate import Lazy, pcg
from taftcache.solve.methods.coordinates import Coordinates, Duals, Parameters
from taftcache.solve.methods.decisive import decisive_pcg
from taftcache.solve.methods.head import solve_head
from taftcache.solve.methods.newton import newton
from taftcache.solve.methods.row_space import Restart, RowSpace
from taftcache.solve.methods.span import SpanSolver
from taftcache.solve.methods.span_newton import SpanNewton, span_fits
from taftcache.solve.pair import ProblemPair, pose
from taftcache.solve.proof import bracket, looked_at, or_zero, prove
from taftcache.solve.settings import ARITHMETIC, DECISIVE, GOAL, Arithmetic, Goal, OnPass, in_full_float32
from taftcache.solve.solution import Interrupted, Solution, Status, unless_interrupted
from taftcache.solve_stats import SolveStats
from taftcache.tangent.base import Base
from taftcache.tangent.device import full_float32
from taftcache.tangent.operator import first_target
from taftcache.tangent.rows import RowSource

Method = Literal["auto", "conjugate"]
# N·K at which the exact kernel's Cholesky costs about as much as the space of the rows; at three times that, ten times.
DIRECT = 2048
BRACKET_PASSES = 6


def through_rows(problem: Problem) -> bool:
    """Whether a quadratic problem, from zero, is solved in the space of its rows: where that fits and costs less."""
    few = problem.operator.rows * problem.operator.classes <= DIRECT
    return class_kernel_fits(problem) and not (few and kernel_inverse_fits(problem))


@in_full_float32
def minimise(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    *,
    method: Method = "auto",
    goal: Goal = GOAL,
    arithmetic: Arithmetic = ARITHMETIC,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
    interrupted: Interrupted = "raise",
) -> Solution:
    """The change Δw of the base's weights that minimises mean loss + ridge over all rows of ``sources``.

    A quadratic loss over the head alone is solved in closed form. Any other parameters are solved by conjugate
    gradients: with the exact inverse Hessian if the kernel of all rows and classes is cheap to factorise, in the space
    of the rows if what is kept of each row fits in memory, under the inverse of a sample's curvature if it does not,
    otherwise with a Kronecker-factored preconditioner made from the same rows, or with a probed diagonal if a tail has
    no factored gradients. Cross-entropy is solved by Newton's method, over the span of all gradients so far if they fit
    in memory. A ball is solved in the span of all directions so far or, for cross-entropy and the head alone, by the
    ridge that puts the solution on its surface. The certificate is a float64 gradient recomputed from the rows. The
    result depends only on the arguments.

    Args:
        base: the expansion point.
        sources: the rows, read in the order given.
        objective: loss, ridge, which parameters move, weights, ball.
        method: "conjugate" without the row space or a span of gradients.
        goal: tolerance, or a distance that decides about removals, and a limit on passes.
        arithmetic: precision, memory and device of the products.
        start: Δw [P] to begin from, zero by default; a closed form and the methods for balls ignore it.
        on_pass: called after each pass.
        interrupted: whether a solve that Ctrl-C ends raises KeyboardInterrupt, or returns its best iterate.

    Raises:
        SolveError: no rows, blocks other than ``RowSource`` promises, rows, labels, weights or a start that do not fit,
            neither ridge nor radius, a gradient that is not finite, a loss that says it is ``quadratic`` but is not, or
            a ``decisive`` goal for a problem in which a row's removal is not estimated.
    """
    _check_goal(goal, objective, method)
    problems = _Problems(base, sources, objective, arithmetic)
    exact, radius = problems.exact, objective.radius
    if start is not None and start.shape != (exact.operator.layout.size,):
        raise SolveError(
            f"the start does not fit the {exact.operator.layout.size} parameters that are trained",
            got=f"shape {tuple(start.shape)}",
        )
    if radius is None:
        found, inverse = _without_ball(problems, method, goal, start, on_pass)
        found = unless_interrupted(found, interrupted)
        # A decisive solve aims at a distance and has checked it itself: no tolerance applies.
        moves = found.stats.row_moves if goal.decisive else None
        tolerance = goal.tolerance if moves is None else inf
        passes = 0 if inverse is None else goal.proof_passes
        proven = or_zero(prove(found, exact, tolerance, inverse=inverse, passes=passes), exact, goal.tolerance)
        loose = moves is not None and proven.converged and proven.certificate.distance > DECISIVE * moves
        return replace(proven, status=Status.undecided) if loose else proven

    return next(_in_balls(problems, method, [radius], goal, on_pass, interrupted))


@in_full_float32
def resume(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    restart: Restart,
    *,
    goal: Goal = GOAL,
    arithmetic: Arithmetic = ARITHMETIC,
    on_pass: OnPass | None = None,
    interrupted: Interrupted = "raise",
) -> Solution:
    """Go on from the dual vectors of an earlier solve, some of whose rows may have left, to a certified distance.

    Args:
        base, sources, objective, arithmetic, on_pass, interrupted: as in ``minimise``.
        restart: where to start, and how near to the optimum to get.
        goal: only its limits on passes count, not its tolerance.

    Raises:
        SolveError: as in ``minimise``, or the problem is not solved in the space of its rows.
    """
    problems = _Problems(base, sources, objective, arithmetic)
    exact = problems.exact
    of_head = exact.operator.head_alone
    fits = not of_head and through_rows(exact) if exact.loss.quadratic else span_fits(exact, of_head=True)
    if objective.radius is not None or not fits:
        raise SolveError(
            "cannot resume from dual vectors: this solve does not go through the space of the rows",
            got="a problem solved elsewhere",
        )
    if not exact.loss.quadratic:
        found = SpanNewton(problems.pair(), on_pass).restart(restart, goal.max_passes)
        return prove(unless_interrupted(found, interrupted), exact, inf)
    pair, inverse = _inverse(problems, by_rows=True)
    space = RowSpace(pair, goal.max_passes, on_pass)
    found = unless_interrupted(space.solution(space.restart(restart)), interrupted)
    return prove(found, exact, inf, inverse=inverse, passes=goal.proof_passes)


def minimise_in_balls(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    radii: Sequence[float],
    *,
    goal: Goal = GOAL,
    arithmetic: Arithmetic = ARITHMETIC,
    on_pass: OnPass | None = None,
) -> Iterator[Solution]:
    """Yield what `minimise` finds within each radius, one after the other; Ctrl-C raises KeyboardInterrupt.

    For a quadratic loss beyond the head, each solve begins in the span of all directions that those before it took,
    so that all radii together cost few more passes than the last alone.

    Args:
        base, sources, arithmetic, on_pass: as in ``minimise``.
        objective: its own radius is ignored.
        radii: R > 0, increasing.
        goal: for each radius.

    Raises:
        SolveError: radii that do not increase from above 0, and as in ``minimise``.
    """
    if not radii or radii[0] <= 0 or any(b <= a for a, b in pairwise(radii)):
        raise SolveError("the radii do not increase from above 0", got=f"{list(radii)}", do="sort them, each once")
    replace(objective, radius=radii[-1]).check()
    problems = _Problems(base, sources, replace(objective, radius=radii[0]), arithmetic)
    found = _in_balls(problems, "auto", radii, goal, on_pass)
    for _ in radii:
        with full_float32(arithmetic.device):  # not around the yield: there the caller's settings apply
            solution = next(found)
        yield solution


@in_full_float32
def certify(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    value: Tensor,
    *,
    method: Method = "auto",
    goal: Goal = GOAL,
    arithmetic: Arithmetic = ARITHMETIC,
    dual: Tensor | None = None,
) -> Solution:
    """Certify any Δw as `minimise` would: in float64, from the rows.

    Costs four passes and, for a quadratic F over more than the head, those that ``goal`` allows for a closer bound.

    Args:
        base, sources, objective, goal, arithmetic: as in ``minimise``.
        value: Δw [P].
        method: the one that found it, as in ``minimise``.
        dual: α [N,K] with Δw = Jᵀα, if known: then the dual residual counts. Where ``minimise`` would have had one and
            none is given, a few more passes bound ‖Δw − Δw*‖_H from both sides; ``stats.energy_at_least`` is the lower
            bound.
    """
    problems = _Problems(base, sources, objective, arithmetic)
    exact, radius = problems.exact, objective.radius
    value = value.to(exact.operator.device, torch.float64)
    head = exact.operator.head_alone
    if radius is not None or head or not objective.loss.quadratic:
        return prove(looked_at(exact, value, goal.tolerance, SolveStats()), exact, goal.tolerance, radius=radius)
    by_rows = method == "auto" and through_rows(exact)
    if dual is not None:
        space = RowSpace(ProblemPair(exact, exact), goal.max_passes)
        space.look(value, dual)
        solution = space.solution(Status.stalled)
    else:
        solution = looked_at(exact, value, goal.tolerance, SolveStats())
    inverse = _inverse(problems, by_rows)[1]
    if dual is not None or not by_rows:
        return prove(solution, exact, goal.tolerance, inverse=inverse, passes=goal.proof_passes)
    proven = prove(solution, exact, goal.tolerance)
    certificate, passes = proven.certificate, max(BRACKET_PASSES, goal.proof_passes)
    assert solution.gradients is not None
    least, most = bracket(exact, solution.gradients[1], inverse, passes, certificate.rounding)
    stats = msgspec.structs.replace(proven.stats.with_proof(passes), energy_at_least=least)
    return replace(proven, certificate=replace(certificate, tightened=most), stats=stats)


class _Problems:
    """The same problem in float64, for gradients and the proof, and in the precision of the inner products.

    Args:
        base, sources, objective, arithmetic: as in ``minimise``.
    """

    def __init__(self, base: Base, sources: Sequence[RowSource], objective: Objective, arithmetic: Arithmetic) -> None:
        if not isinstance(sources, Sequence):
            raise SolveError("the rows must be a list of sources", got=f"a {type(sources).__name__}", do="[shard]")
        rows = sum(source.rows for source in sources)
        if rows == 0:
            raise SolveError("no rows to solve over: a solve needs at least one row", got="sources without rows")
        objective.check()
        if objective.loss.quadratic:
            check_quadratic(objective.loss, first_target(sources, base.config.classes), base.config.classes)
        # Bytes in float64: the tokens and half as much for everything else; for the head alone, its input and logits.
        config, head = base.config, base.trained(objective.train) == base.head_layout
        row = 8 * (config.width + config.classes) if head else 12 * prod(config.shape)
        # If the rows are few, what float64 prepares once serves both the gradients and the proof.
        whole = rows * row if rows * row <= arithmetic.memory // 4 else 0
        how = replace(arithmetic, memory=whole)
        self.exact = pose(base, sources, objective, how, torch.float64)
        self._asked = base, sources, objective, replace(how, memory=arithmetic.memory - whole)
        self._dtype = how.dtype
        self._inner: dict[torch.dtype, Problem] = {}
        if objective.weights is not None:
            objective.weights.check(self.exact.operator.rows, self.exact.operator.classes)

    def pair(self, dtype: torch.dtype | None = None) -> ProblemPair:
        """With inner products in ``dtype`` (by default the one asked for), which prepare rows in the memory left."""
        dtype = dtype or self._dtype
        if dtype not in self._inner:
            self._inner[dtype] = pose(*self._asked, dtype)
        return ProblemPair(replace(self._inner[dtype], ridge=self.exact.ridge), self.exact)

    def at(self, ridge: float) -> _Problems:
        """The same rows under another λ."""
        other = copy(self)
        other.exact = replace(self.exact, ridge=ridge)
        return other


def has_estimate(loss: Loss, radius: float | None, method: Method) -> bool:
    """Whether a solve estimates what removing a row moves: then a ``decisive`` goal follows from it."""
    return radius is None and (loss.quadratic or method == "auto")


def _check_goal(goal: Goal, objective: Objective, method: Method) -> None:
    """Raise SolveError for anything but an objective, a goal and a known method, and for a ``decisive`` goal where no
    removal is estimated."""
    if not isinstance(objective, Objective):
        raise SolveError(
            "the objective must be an Objective", got=repr(objective), do="Objective(loss=RSL(), ridge=1e-2)"
        )
    if not isinstance(goal, Goal):
        raise SolveError("goal must be a Goal", got=repr(goal), do="Goal(tolerance=1e-6)")
    if method not in get_args(Method):
        raise SolveError(
            f"no method is called {method!r}", got=repr(method), do=f"one of {', '.join(get_args(Method))}"
        )
    if goal.decisive and not has_estimate(objective.loss, objective.radius, method):
        raise _not_estimated(f"{objective.loss}, radius {objective.radius}, method {method!r}")


def _not_estimated(got: str) -> SolveError:
    return SolveError(
        "what removing a row moves is not estimated for this problem, so no goal follows from it",
        got=got,
        do='a tolerance, or no ball and method "auto"',
    )


def _without_ball(
    problems: _Problems,
    method: Method,
    goal: Goal,
    start: Tensor | None,
    on_pass: OnPass | None,
) -> tuple[Solution, Lazy | None]:
    """The minimiser by the method that fits, not proven yet, and an approximate H⁻¹ if a closer proof can use it."""
    exact = problems.exact
    if method == "auto" and start is None and span_fits(exact, of_head=goal.decides):
        return SpanNewton(problems.pair(), on_pass).solve(goal), None
    if not exact.loss.quadratic:
        if goal.decisive:
            numbers = f"{exact.operator.rows} rows and {exact.operator.classes} classes"
            raise _not_estimated(f"{exact.loss}, {numbers}" + ("" if start is None else ", and a start"))
        return newton(problems.pair(), goal, start=start, on_pass=on_pass), None
    if exact.operator.head_alone:
        return solve_head(exact, goal.tolerance), None
    by_rows = method == "auto" and start is None and through_rows(exact)
    pair, inverse = _inverse(problems, by_rows)
    if not by_rows:
        return _conjugate(goal)(pair, inverse, goal, start=start, on_pass=on_pass), inverse
    space = RowSpace(pair, goal.max_passes, on_pass)
    if goal.decisive:
        status = space.decide()
    else:
        status = (space.run_and_decide if goal.until_decisive else space.run)(goal.tolerance)
    solution = space.solution(status)
    if solution.status is Status.stalled:  # even in float64: the kernels differ so much that K̂ knows only the largest
        solution = _continued(solution, pair, inverse, goal, on_pass)
    return solution, inverse


def _in_balls(
    problems: _Problems,
    method: Method,
    radii: Sequence[float],
    goal: Goal,
    on_pass: OnPass | None,
    interrupted: Interrupted = "raise",
) -> Iterator[Solution]:
    """Proven solutions within increasing ``radii``."""
    exact, goal = problems.exact, replace(goal, until_decisive=False)  # no removal is estimated in a ball
    found: Iterator[Solution]

    def solve(ridge: float, goal: Goal, last: Solution | None) -> Solution:
        start = None if last is None else last.value
        return _without_ball(problems.at(ridge), method, goal, start, on_pass)[0]

    if method == "auto" and span_fits(exact):
        span = SpanNewton(problems.pair(), on_pass)
        found = (solve_in_ball(lambda at, to, _: span.under(at).solve(to), exact, radius, goal) for radius in radii)
    elif exact.loss.quadratic and not exact.operator.head_alone:
        found = SpanSolver(_coordinates(problems, method), goal, on_pass).solve(radii)
    else:
        found = (solve_in_ball(solve, exact, radius, goal) for radius in radii)
    for radius, solution in zip(radii, found, strict=True):
        proven = prove(unless_interrupted(solution, interrupted), exact, goal.tolerance, radius=radius)
        yield or_zero(proven, exact, goal.tolerance, radius)


def _coordinates(problems: _Problems, method: Method) -> Coordinates:
    """The coordinates of iterates in a ball, chosen as without one."""
    if method == "auto" and through_rows(problems.exact):
        return Duals(problems.pair())
    pair, small = _pair(problems, by_rows=False)
    shifted, matrix = ShiftedInverse(), kernel(pair.inner) if small else None

    def inverse(ridge: float) -> Inverse:
        at = replace(pair.inner, ridge=ridge)
        return shifted.at(at) if matrix is None else DualInverse(at, matrix.clone())

    return Parameters(pair, inverse)


def _inverse(problems: _Problems, by_rows: bool) -> tuple[ProblemPair, Lazy]:
    """The problem, and an approximate H⁻¹ that is made when it is first needed."""
    pair, small = _pair(problems, by_rows)
    return pair, Lazy(lambda: DualInverse(pair.inner) if small else approximate_inverse(pair.inner))


def _pair(problems: _Problems, by_rows: bool) -> tuple[ProblemPair, bool]:
    """The problem, and whether its kernel is small enough for an exact inverse; if so, all of it is in float64."""
    small = not by_rows and kernel_inverse_fits(problems.exact, PARTS)
    return problems.pair(torch.float64 if small else None), small


def _conjugate(goal: Goal) -> Callable[..., Solution]:
    """Conjugate gradients to ``goal``."""
    return decisive_pcg if goal.decides else pcg


def _continued(solution: Solution, pair: ProblemPair, inverse: Lazy, goal: Goal, on_pass: OnPass | None) -> Solution:
    """Conjugate gradients from where the row space ended."""
    before = solution.stats.passes
    rest = replace(goal, max_passes=max(3, goal.max_passes - before))
    shown = None if on_pass is None else lambda done, residual: on_pass(before + done, residual)
    further = _conjugate(goal)(pair, inverse, rest, start=solution.value, on_pass=shown)
    stats = msgspec.structs.replace(further.stats, solver="row space, pcg", passes=before + further.stats.passes)
    return replace(further, stats=stats)
