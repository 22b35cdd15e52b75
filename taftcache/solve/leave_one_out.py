"""What each training row has changed: leave-one-out for a quadratic problem, for all rows at once.

Without row n the loss is a mean over N − 1 rows. Times (N−1)/N, that objective is F without the row's term and with the
ridge λ' = λ(N−1)/N, the same for every n. So let Δw' be the optimum and A the Hessian of F with λ'. With
J̃_n = √(D_n/N) J_n and the scaled residual ρ_n = √(D_n/N) (f(x_n; Δw') − target),

    Δw₋ₙ = Δw' + A⁻¹ J̃_nᵀ (I − J̃_n A⁻¹ J̃_nᵀ)⁻¹ ρ_n

and a prediction j·Δw, j = J_k(x), moves by (J̃_n v)ᵀ (I − J̃_n A⁻¹ J̃_nᵀ)⁻¹ ρ_n + j·(Δw' − Δw) with v = A⁻¹ j:
one solve and one pass serve all rows, if the K×K leverages J̃_n A⁻¹ J̃_nᵀ are known. They are, exactly, for the head
alone and where the kernel of the rows fits. In the space of the rows they are estimated by the kernel taken apart by
classes, and J̃v = (J̃J̃ᵀ + λ'I)⁻¹J̃j is solved for. Elsewhere they are left out, which gives the first-order influence
function. ``RowInfluence.method`` says which it was.

With the kernel G = J̃J̃ᵀ, M = (G + λ'I)⁻¹ and the scaled residuals t at Δw = 0, Δw' = −J̃ᵀMt, ρ = λ'Mt, J̃v = MJ̃j and
I − J̃_n A⁻¹ J̃_nᵀ = λ'M_nn. So Δw' need not be solved for: what a solve leaves of ρ would be divided by λ'.
How far Δw itself moves (``moves``) follows from the same. With s_n = M_nn⁻¹ (Mt)_n,

    Δw₋ₙ − Δw = J̃ᵀ(M E_n s_n + c)    with c = (G + λI)⁻¹t − Mt, the same for all rows,

so that ‖Δw₋ₙ − Δw‖² = s_nᵀ (MGM)_nn s_n + 2 s_nᵀ (MGc)_n + cᵀGc, in which MG = I − λ'M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.directions import conjugate_solution
from taftcache.solve.head.at_ridge import HeadAt
from taftcache.solve.head.choice import head_of, is_closed
from taftcache.solve.head.terms import flat, whole
from taftcache.solve.inverses.class_kernel import ClassKernel, kernel_product
from taftcache.solve.inverses.dual import DualInverse, kernel, kernel_inverse_fits
from taftcache.solve.inverses.inverse import approximate_inverse
from taftcache.solve.minimise import minimise, through_rows
from taftcache.solve.settings import GOAL, Arithmetic, Goal
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSource

InfluenceMethod = Literal["closed form", "estimated leverages", "first order"]
METHODS: tuple[InfluenceMethod, ...] = get_args(InfluenceMethod)  # most exact first
CLOSED, ESTIMATED, FIRST_ORDER = METHODS
FIRST_ORDER_TOLERANCE = 1e-4  # far below the error of leaving out the leverages
IN_ROWS = 1e-6  # tolerance of the solve in the space of the rows, far below the error of estimated leverages


@dataclass(frozen=True)
class RowInfluence:
    """How each row moved one direction: ``change`` [N] is j·(Δw₋ₙ − Δw), what taking row n out adds to j·Δw.

    ``method`` is one of ``METHODS``: "closed form" is exact up to ``residual``, the relative residual of its solve.
    ``passes`` counts those over the rows, without those that make an approximate inverse.
    """

    change: Tensor
    method: InfluenceMethod
    residual: float
    passes: int


def leave_one_out(
    base: Base,
    sources: Sequence[RowSource],
    objective: Objective,
    direction: Tensor,
    *,
    delta: Tensor,
    goal: Goal = GOAL,
    memory: int = 2 << 30,
) -> RowInfluence:
    """Influence of every row of ``sources`` on ``direction``·Δw, for the optimum ``delta`` over all of them.

    Args:
        base: the expansion point.
        sources: the rows, in the order of the answer.
        objective: with a rescaled square loss and a ridge; neither weights nor a ball.
        direction: j [P].
        delta: Δw [P], from which a solve for Δw' begins.
        goal: of that solve, where there is no closed form.
        memory: bytes in which prepared rows stay between passes.

    Raises:
        SolveError: another objective, or fewer than two rows.
    """
    loss = objective.loss
    if not isinstance(loss, RSL) or objective != Objective(loss=loss, ridge=objective.ridge, train=objective.train):
        raise SolveError(
            "a row's influence needs the rescaled square loss with a ridge, and nothing else", got=objective
        )
    trained = base.trained(objective.train)
    operator = TangentOperator(base, sources, trained=trained, dtype=torch.float64, memory=memory)
    N = operator.rows
    if N < 2:
        raise SolveError("leaving a row out needs another beside it", got=f"rows: {N}", do="name another model")
    shrunk = replace(objective, ridge=objective.ridge * (N - 1) / N)
    problem = Problem(operator, loss, shrunk.ridge)
    if is_closed(problem):
        return _by_head(problem, direction, delta)
    if kernel_inverse_fits(problem):
        return _by_kernel(problem, direction, delta)
    moved = minimise(base, sources, shrunk, start=delta, goal=goal, arithmetic=Arithmetic(precision="float64"))
    root, rho = _residuals(problem, moved.value)
    image, solved, method, left = _without_each(problem, direction, root, rho, goal)
    shift = (direction @ (moved.value - delta)).item()
    change = (image * solved).sum(1) + shift
    return RowInfluence(change, method, left, moved.stats.passes + operator.passes)


def _residuals(problem: Problem, delta: Tensor) -> tuple[Tensor, Tensor]:
    """√(D/N) and ρ [N,K] at Δw [P], in one pass."""
    operator, N = problem.operator, problem.operator.rows
    roots, residuals = [], []
    direction = operator.direction(delta)
    for state, labels in operator.blocks():
        root = problem.diagonal(labels, state.logits).sqrt()
        roots.append(root)
        residuals.append(problem.loss.gradient(state.logits + operator.tangent(state, direction), labels) / (N * root))
    return torch.cat(roots), torch.cat(residuals)


def _by_head(problem: Problem, direction: Tensor, delta: Tensor) -> RowInfluence:
    """From the head's own inverses, for the classes in which ``direction`` is not zero."""
    full = whole(problem, direction)
    asked = full.any(1).nonzero()[:, 0].tolist()
    at = head_of(problem).at(problem.ridge, asked)
    v = flat(problem, at.inverse(full))
    along = torch.cat([image[:, asked] for image in problem.operator.matvec(v)])
    change = (along * _steps(problem, at, asked)).sum(1) + direction @ (flat(problem, at.weights) - delta)
    return RowInfluence(change, CLOSED, _left_of(problem, direction, v), problem.operator.passes)


def _steps(problem: Problem, at: HeadAt, asked: Sequence[int] | slice = slice(None)) -> Tensor:
    """(D/N)(z − target)/(1 − h) for each row and each class asked for [N,A]: 1/N of a quadratic loss's gradient at the
    logits with the row left out."""
    parts = [problem.loss.gradient(z, labels)[:, asked] for z, labels in at.left_out_logits()]
    return torch.cat(parts) / problem.operator.rows


def _by_kernel(problem: Problem, direction: Tensor, delta: Tensor) -> RowInfluence:
    """From the exact kernel, so without a solve's tolerance."""
    inverse = DualInverse(problem)
    root, t = _residuals(problem, problem.zero)
    sought = root * problem.forward(direction)
    image, dual = inverse.solve(sought), inverse.solve(t)  # MJ̃j, Mt
    change = (image * torch.linalg.solve(inverse.own(), dual)).sum(1) - (sought * dual).sum() - direction @ delta
    left = 0.0
    for found, of in ((image, sought), (dual, t)):
        off = kernel_product(problem, root, found) + problem.ridge * found - of
        left = max(left, (off.norm() / of.norm().clamp_min(1e-300)).item())
    return RowInfluence(change, CLOSED, left, problem.operator.passes)


def _without_each(
    problem: Problem, direction: Tensor, root: Tensor, rho: Tensor, goal: Goal
) -> tuple[Tensor, Tensor, InfluenceMethod, float]:
    """J̃A⁻¹j and (I − J̃_n A⁻¹ J̃_nᵀ)⁻¹ρ_n for every row [N,K], the method by which the leverages in it are known, and
    the relative residual of the one solve."""
    if through_rows(problem):
        by_rows = _ByRows(problem, root)
        image, left = _image_by_rows(problem, by_rows, direction, goal)
        return image, by_rows.kernel.within(rho) / problem.ridge, ESTIMATED, left
    v = conjugate_solution(
        problem.hessian, approximate_inverse(problem), direction,
        tolerance=max(goal.tolerance, FIRST_ORDER_TOLERANCE), steps=goal.max_passes,
    )  # fmt: skip
    return root * problem.forward(v), rho, FIRST_ORDER, _left_of(problem, direction, v)


def _left_of(problem: Problem, direction: Tensor, v: Tensor) -> float:
    """The relative residual of v = A⁻¹j [P]."""
    return float(((problem.hessian(v) - direction).norm() / direction.norm().clamp_min(1e-300)).item())


def _image_by_rows(problem: Problem, inverse: _ByRows, direction: Tensor, goal: Goal) -> tuple[Tensor, float]:
    """J̃A⁻¹j = (J̃J̃ᵀ + λ'I)⁻¹J̃j [N,K] by conjugate gradients in the space of the rows, and its relative residual."""
    sought = inverse.root * problem.forward(direction)
    found = conjugate_solution(inverse.product, inverse, sought.reshape(-1), tolerance=IN_ROWS, steps=goal.max_passes)
    left = (inverse.product(found) - sought.reshape(-1)).norm() / sought.norm().clamp_min(1e-300)
    return found.view_as(sought), left.item()


class _ByRows:
    """J̃J̃ᵀ + λ'I on vectors [N·K], and its approximate inverse, by the kernel taken apart by classes."""

    def __init__(self, problem: Problem, root: Tensor) -> None:
        self._problem, self.root, self.kernel = problem, root, ClassKernel(problem, root)

    def product(self, vector: Tensor) -> Tensor:
        """(J̃J̃ᵀ + λ'I) a."""
        a = vector.view_as(self.root)
        return (kernel_product(self._problem, self.root, a) + self._problem.ridge * a).reshape(-1)

    def apply(self, vector: Tensor) -> Tensor:
        """About (J̃J̃ᵀ + λ'I)⁻¹ r."""
        return self.kernel.apply(vector.view_as(self.root))[0].reshape(-1).to(vector)


def moves(problem: Problem) -> Tensor | None:
    """‖Δw₋ₙ − Δw‖ [N]: how far the optimum moves without each row in turn, exactly; None where it has no closed form.

    Args:
        problem: in float64, without weights, over the rows that Δw was solved from.
    """
    if not problem.loss.quadratic:
        return None
    if is_closed(problem):
        return _head_moves(problem)
    if not kernel_inverse_fits(problem):
        return None
    N, matrix = problem.operator.rows, kernel(problem)
    whole = DualInverse(problem, matrix.clone())
    inverse = DualInverse(replace(problem, ridge=problem.ridge * (N - 1) / N), matrix)
    _, t = _residuals(problem, problem.zero)
    # c = M·shift is (G + λI)⁻¹t − Mt, computed without the cancellation.
    return inverse.moves(torch.arange(N), inverse.solve(t), -problem.ridge / N * whole.solve(t))


def _head_moves(problem: Problem) -> Tensor:
    """‖Δw₋ₙ − Δw‖ [N] for a head: with y = A⁻¹x̃ a class's weights move by c + y (ωD/N)(z − target)/(1 − h), where
    c = W' − W = (λ − λ')A⁻¹W."""
    N, heads = problem.operator.rows, head_of(problem)
    weights = heads.at(problem.ridge).weights
    if N == 1:  # without it Δw is zero
        return torch.stack([weights.norm()])
    at = heads.at(problem.ridge * (N - 1) / N)
    shift = at.inverse(weights) * (problem.ridge / N)
    step = _steps(problem, at)
    along = problem.forward(flat(problem, at.inverse(shift)))  # yᵀc [N,K]
    squares = shift.square().sum() + (step.square() * at.squares() + 2 * step * along).sum(1)
    return squares.clamp_min(0).sqrt()
