"""How far a Δw is from its problem's optimum: what rounding may have hidden, and closer bounds for a few passes.

For a quadratic F and any p, with q = −g − Hp recomputed in float64,

    ‖Δw − Δw*‖_H² = gᵀH⁻¹g = −gᵀp + pᵀq + qᵀH⁻¹q

is an identity: no orthogonality of a Krylov basis enters, so rounding in the iterations that found p cannot make the
bound false. The last term is at most ‖q‖²/λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite, sqrt

import msgspec
import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.loss import Loss
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.objective.squared_error import SquaredError
from taftcache.solve.directions import Inverse, conjugate_directions
from taftcache.solve.solution import Certificate, Solution, Status
from taftcache.solve_stats import SolveStats

EPSILON = 2.3e-16
NONNEGATIVE: tuple[type[Loss], ...] = (RSL, SquaredError, CrossEntropy)  # losses without a negative value
FEW_TERMS, DRAWS = 64, 8  # N·K or P/K up to which there are few terms, and how many draws of signs those get


def prove(
    solution: Solution,
    problem: Problem,
    tolerance: float,
    *,
    radius: float | None = None,
    inverse: Inverse | None = None,
    passes: int = 0,
) -> Solution:
    """The solution with an allowance for rounding in its bounds, and with closer bounds for ``passes`` more products.

    "Converged" is withdrawn where rounding alone may have brought the gradient below the tolerance. It is granted where
    the base point is the optimum as far as float64 can tell: there no gradient is below a fraction of ∇F(0). Costs two
    passes, and then ``passes``.

    Args:
        solution: with ``gradients``.
        problem: the same in float64.
        tolerance: the one asked for.
        radius: R of a ball that Δw is held to.
        inverse: an approximate H⁻¹; see ``bracket``.
        passes: for ``bracket``; only for a quadratic F without a ball.

    Raises:
        SolveError: a gradient that is not finite.
    """
    assert solution.gradients is not None
    at_zero, gradient = solution.gradients
    check_finite(gradient, f"F = {solution.certificate.objective}")
    objective = solution.certificate.objective
    if not problem.loss.quadratic:
        objective, _, problem = problem.at(solution.value)
    error = rounding(problem, solution.value, at_zero, gradient)
    closer = bracket(problem, gradient, inverse, passes, error)[1] if passes else None
    most = objective_at_most(problem, objective)
    certificate = replace(solution.certificate, rounding=error, tightened=closer, objective_at_most=most)
    if radius is not None:
        gap, left = constrained_gap(problem.ridge, gradient, solution.value, radius, error)
        if most is not None:
            gap = min(gap, most + error * (solution.value.norm().item() + radius))
        certificate = replace(certificate, gradient=left, constrained=gap)
    status = proven_status(solution.status, certificate, tolerance)
    return replace(solution, certificate=certificate, status=status, stats=solution.stats.with_proof(2 + passes))


def proven_status(status: Status, certificate: Certificate, tolerance: float) -> Status:
    """How a solve ended, once it is known what rounding may hide; see ``prove``."""
    gradient, at_zero, error = certificate.gradient, certificate.gradient_at_zero, certificate.rounding
    if max(gradient, at_zero) <= error:  # nothing here is more than rounding
        return Status.converged
    return Status.stalled if status is Status.converged and gradient + error > tolerance * at_zero else status


def or_zero(proven: Solution, problem: Problem, tolerance: float, radius: float | None = None) -> Solution:
    """Δw = 0 in place of a solution that did not converge, where it is the optimum as far as float64 can tell.

    That costs four more passes. ``problem``, ``tolerance`` and ``radius`` are as in ``prove``.
    """
    gave_up = proven.status in (Status.stalled, Status.max_passes, Status.undecided)
    if not gave_up or proven.certificate.gradient_at_zero > proven.certificate.rounding:
        return proven
    zero = prove(looked_at(problem, problem.zero, tolerance, proven.stats), problem, tolerance, radius=radius)
    return zero if zero.status is Status.converged else proven


def looked_at(problem: Problem, value: Tensor, tolerance: float, stats: SolveStats) -> Solution:
    """Any Δw [P] as a solution that ``prove`` can take, from its float64 gradient and that of zero.

    Two passes, for which the rows are prepared once.

    Args:
        problem: in float64.
        value: Δw.
        tolerance: relative to the gradient at Δw = 0; up to it the solution is called converged, above it stalled.
        stats: figures of the solve that found it, including its passes.

    Raises:
        SolveError: a gradient that is not finite.
    """
    objective, gradient, (at_zero,) = problem.evaluate_beside(value, problem.gradient_at_zero())
    check_finite(gradient, f"F = {objective}")
    status = Status.converged if gradient.norm().item() <= tolerance * at_zero.norm().item() else Status.stalled
    counted = msgspec.structs.replace(stats, passes=stats.passes + 2)
    return reached(problem, value, objective, (at_zero, gradient), status, counted)


def reached(
    problem: Problem,
    value: Tensor,
    objective: float,
    gradients: tuple[Tensor, Tensor],
    status: Status,
    stats: SolveStats,
    *,
    left: float | None = None,
    residual: float | None = None,
    dual: Tensor | None = None,
) -> Solution:
    """What a solver ends with, before ``prove`` adds what rounding may hide.

    Args:
        problem: in float64.
        value: Δw [P].
        objective: F(Δw).
        gradients: ∇F(0) and ∇F(Δw) [P].
        status: how the solve ended.
        stats: figures, including the passes.
        left: norm of what is left of the optimality condition, if that is not ∇F = 0.
        residual: as in ``Certificate``.
        dual: as in ``Solution``.
    """
    at_zero, gradient = gradients
    certificate = Certificate(
        gradient=gradient.norm().item() if left is None else left,
        gradient_at_zero=at_zero.norm().item(),
        ridge=problem.ridge,
        objective=objective,
        rows=problem.operator.rows,
        residual=residual,
        quadratic=problem.loss.quadratic,
    )
    return Solution(value, status, certificate, stats, gradients, dual)


def check_finite(values: Tensor, got: str) -> None:
    """Raise SolveError if a gradient (or what makes one) or its norm is not finite."""
    if not isfinite(values.norm().item()):
        raise SolveError(
            "the gradient is not finite",
            got=got,
            do="look for extreme numbers in the rows, or lower kappa if the loss is the rescaled square loss",
        )


def objective_at_most(problem: Problem, objective: float) -> float | None:
    """F(Δw) with an allowance for its sum's own rounding; None if a term of F may be negative.

    The allowance is that of ``_added_up``, relative to F, because nothing cancels in it. A logarithm of a sum of
    exponentials is also wrong by some units in the last place of its largest logit.

    Args:
        problem: of a loss that is not quadratic, one that ``Problem.at`` returned.
        objective: F(Δw) in float64 from the rows.
    """
    if type(problem.loss) not in NONNEGATIVE:  # a loss of somebody else's may be anything, one that inherits too
        return None
    operator, most = problem.operator, objective
    if problem.point is not None:
        largest = 1.0 if problem.weights is None else problem.weights.largest
        most += 4 * EPSILON * largest * problem.point.abs().amax(1).mean().item()
    return most * (1 + EPSILON * (64 + 2 * (operator.rows + operator.classes)))


def constrained_gap(
    ridge: float, gradient: Tensor, value: Tensor, radius: float, error: float = 0.0
) -> tuple[float, float]:
    """A bound on F − F* over the ball at a feasible Δw, and the norm of what is left of the optimality condition.

    With ν ≥ 0 the multiplier that fits best and v = ∇F + νΔw, weak duality gives
    F − F* ≤ ‖v‖²/(2(λ + ν)) + ν(R² − ‖Δw‖²)/2; without curvature, ∇F·Δw + R‖∇F‖ is the bound of Frank and Wolfe.

    Args:
        ridge, gradient, value, radius: λ, ∇F [P], Δw [P] and R.
        error: allowance for the norm of the error in ∇F; the bound holds for every ν ≥ 0, so ν needs none.
    """
    square, along, size = (value @ value).item(), (gradient @ value).item(), gradient.norm().item()
    nu = multiplier(gradient, value)
    left = (gradient + nu * value).norm().item()
    unit = 8 * EPSILON  # relative, for the rounding of these scalars themselves
    linear = max(0.0, along) + max(0.0, radius * size + min(0.0, along))
    linear += (error + unit * size) * (radius + square**0.5)
    slack = nu / 2 * (max(0.0, radius**2 - square) + unit * radius**2)
    off = error + unit * (size + nu * square**0.5)
    curved = (left + off) ** 2 / (2 * (ridge + nu)) + slack if ridge + nu > 0 else linear
    if not binds(value, radius):  # its multiplier is zero
        left = size
    return min(linear, curved, (size + off) ** 2 / (2 * ridge) if ridge > 0 else linear), left


def multiplier(gradient: Tensor, value: Tensor) -> float:
    """The ν ≥ 0 with which ∇F [P] is nearest to −νΔw [P]."""
    square = (value @ value).item()
    return max(0.0, -(gradient @ value).item() / square) if square > 0 else 0.0


def binds(value: Tensor, radius: float) -> bool:
    """Whether Δw [P] lies on the surface of the ball of ``radius``."""
    return bool((value @ value).item() >= radius**2 * (1 - 1e-6))


def rounding(problem: Problem, value: Tensor, at_zero: Tensor, gradient: Tensor) -> float:
    """An estimated allowance for float64's error in ∇F(Δw), in two passes.

    For a quadratic F, whose rows are prepared once for both passes, one pass computes the gradient in another way,
    ∇F(0) + H Δw, which rounds differently. The other measures the terms that cancel in it
    (``Problem.gradients_under_signs``). The allowance is eight times the difference in the first and 32 units in the
    last place of the second. Any other F has no second way: ``problem`` is then one that ``Problem.at`` returned, for
    the first pass, because its terms are taken at those logits, and the allowance is larger (`_added_up`). If there are
    few terms, several draws of the signs are taken, because one draw may cancel them: two equal rows of different
    classes were certified to 10⁻²⁰ where the error was 6·10⁻¹⁷, and two columns of 10⁵ that differ by 1 to a
    seven-hundredth of the error.
    """
    operator = problem.operator
    few = operator.rows * operator.classes <= FEW_TERMS or operator.layout.size <= FEW_TERMS * operator.classes
    seeds = range(2, 2 + DRAWS if few else 3)
    if not problem.loss.quadratic:
        signed = _largest(problem.gradients_under_signs(value, seeds))
        return float(64 * EPSILON * gradient.norm().item()) + _added_up(problem, signed)
    product, drawn = problem.hessian_and_gradients_under_signs(value, seeds)
    return allowance(gradient, at_zero, product, _largest(drawn))


def _largest(drawn: Sequence[Tensor]) -> Tensor:
    return max(drawn, key=lambda each: each.norm().item())


def allowance(gradient: Tensor, at_zero: Tensor, product: Tensor, signed: Tensor) -> float:
    """What ``rounding`` allows for a quadratic F, from ∇F(Δw), ∇F(0), H Δw and the gradient under signs [P]."""
    terms = at_zero.norm() + product.norm() + signed.norm()
    return float((8 * (gradient - at_zero - product).norm() + 32 * EPSILON * terms).item())


def _added_up(problem: Problem, signed: Tensor) -> float:
    """An allowance for rounding in a sum over N rows, from the same sum under random signs [P].

    When N terms are added one after the other, each addition may round by half a unit in the last place of the sum, and
    for equal rows always in the same direction. So the allowance is 2N units of the terms' root mean square, which is
    √N times the sum under random signs, and 64 units for each term itself.
    """
    rows = problem.operator.rows
    return float(EPSILON * (64 + 2 * rows) * sqrt(rows) * signed.norm().item())


def bracket(
    problem: Problem, gradient: Tensor, inverse: Inverse | None, passes: int, error: float
) -> tuple[float, float]:
    """A lower and an upper bound on ‖Δw − Δw*‖_H from ∇F(Δw), closer with every pass.

    Args:
        problem: in float64, of a quadratic F with λ > 0.
        gradient: ∇F(Δw) [P], recomputed in float64.
        inverse: an approximate H⁻¹; None for plain conjugate gradients.
        passes: the most products with H; the last one goes to the proof.
        error: allowance for the norm of the error in ``gradient``.
    """
    ridge = problem.ridge
    p = torch.zeros_like(gradient)
    r = -gradient
    for at in islice(conjugate_directions(problem.hessian, inverse, r), passes - 1):
        if not (at.curvature > 0 and at.rho > 0):
            break
        p += at.step * at.vector
        r -= at.step * at.product
    trivial = gradient.norm().item() / sqrt(ridge)
    product, signed = problem.hessian_under_signs(p, seed=3)
    q = -gradient - product
    terms = torch.stack([-(gradient @ p), p @ q, (q @ q) / ridge])
    # q has the rounding of a product with p: it enters through p·q and, divided by λ, through ‖q‖².
    loss = EPSILON * 8 * (gradient.norm() + q.norm()).item() + _added_up(problem, signed)
    slack = p.norm().item() * loss + (2 * q.norm().item() * loss + loss**2) / ridge
    allowance = slack + 8 * EPSILON * terms.abs().sum().item()
    bound = sqrt(max(0.0, terms.sum().item()) + allowance)
    least = sqrt(max(0.0, terms[:2].sum().item() - allowance))  # qᵀH⁻¹q is not below zero
    allowed = error / sqrt(ridge)
    return float(max(0.0, least - allowed)), float(min(trivial, bound) + allowed)
