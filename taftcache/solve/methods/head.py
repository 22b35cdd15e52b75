"""The head alone under a quadratic loss, solved in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.head.choice import head_of
from taftcache.solve.head.terms import common_diagonal, extended, flat, whole
from taftcache.solve.inverses.dual import square_of_sum
from taftcache.solve.methods.decisive import SAMPLE, typical
from taftcache.solve.proof import looked_at
from taftcache.solve.solution import Solution
from taftcache.solve_stats import SolveStats

CLOSED_FORM = "closed form"


def solve_head(problem: Problem, tolerance: float = 1e-6) -> Solution:
    """Minimise a quadratic F with diagonal D over the head's weight and bias.

    With x̃ = [feature; 1], class k's normal matrix is 1/N Σ_n ω_n D_nk x̃x̃ᵀ + λI. One Cholesky serves all classes if they
    have the same D (RSL with α = 1, squared error); otherwise there is one for each class, or the common one changed by
    each class's own rows (``ByMoments``). Few rows are solved for in their own space (``ByRows``).
    Costs 2 + ⌈K/group⌉ passes; 2 if there are few rows.

    Args:
        problem: in float64, over a layout that holds the head's weight and bias only.
        tolerance: what the recomputed gradient must meet to be called converged, relative to Δw = 0.

    Raises:
        SolveError: a λ below what rounding takes from the normal matrix.
    """
    operator = problem.operator
    before = operator.passes  # from solves under another λ
    at = head_of(problem).at(problem.ridge, last=True)
    value = flat(problem, at.weights)
    places = torch.arange(n := min(SAMPLE, operator.rows)) * operator.rows // max(1, n)  # spread evenly
    sample = _sample(problem, value, places)
    moves = _row_moves(sample, *at.common(places, sample.x))
    stats = SolveStats(solver=CLOSED_FORM, passes=operator.passes - before, row_moves=moves)
    return looked_at(problem, value, tolerance, stats)


class _Sample(NamedTuple):
    """Some rows [m] at Δw."""

    x: Tensor  # [m,d+1]
    diagonal: Tensor  # [m,K] ωD/N
    common: Tensor  # [m,1] ωD/N of the classes that are not the row's own
    terms: Tensor  # [m,K] ω ∂ℓ/∂z / N


def _sample(problem: Problem, value: Tensor, places: Tensor) -> _Sample:
    """The rows at some ``places`` with their terms at Δw = ``value`` [P], in one pass."""
    operator, start, parts, W = problem.operator, 0, [], whole(problem, value)
    for state, labels in operator.blocks():
        mine = places[(places >= start) & (places < start + len(labels))].to(labels.device) - start
        x = extended(state.feature[mine])
        z = problem.logits(state.logits[mine].double(), x @ W.T)
        diagonal = problem.diagonal(labels, z, start)[mine]
        terms = problem.loss.gradient(z, labels[mine]) / operator.rows
        if problem.weights is not None:
            terms = terms * problem.weights.at(labels, start, z)[mine]
        parts.append(_Sample(x, diagonal, common_diagonal(diagonal, labels[mine]), terms))
        start += len(labels)
    return _Sample(*map(torch.cat, zip(*parts, strict=True)))


def _row_moves(sample: _Sample, away: Tensor, shift: Tensor) -> float | None:
    """How far Δw moves if a typical row leaves; None if none of the sampled rows moves it.

    ``leave_one_out.moves`` computes this exactly for each row. Here the matrix A that all classes have in common stands
    for each class's own, except for the row's own part in its class's matrix. With α = √K this makes a class's part
    move up to a fifth too far, and up to 1.6 times as far for rows that have duplicates. The mean is then over one row
    less: besides its term t the row takes λw/N with it, and w moves by A₋⁻¹(x̃t + λw/N), A₋ = A − D x̃x̃ᵀ.

    Args:
        away: A⁻¹x̃ [d+1,m].
        shift: A⁻¹λW/N [d+1,K].
    """
    left = (1 - sample.common * (sample.x * away.T).sum(1)[:, None]).clamp_min(1e-12)
    along = (sample.terms + sample.common * (sample.x @ shift)) / left
    squares = (along * away.norm(dim=0)[:, None]).square() + shift.square().sum(0)
    moves = square_of_sum(squares.sum(1), (along * (away.T @ shift)).sum(1)).sqrt()
    return typical(moves[(sample.diagonal > 0).any(1)]) or None
