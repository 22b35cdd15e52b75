"""The head alone, in closed form: ridge-regularised least squares by a Cholesky factor, for one λ or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.loss import Loss
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky, solved
from taftcache.solve.inverses.dual import square_of_sum
from taftcache.solve.inverses.head_moments import (
    GROUP_BYTES,
    HeadMoments,
    common_diagonal,
    extended,
    few,
    first_diagonal,
    flat,
    groups,
    head_moments,
    own_normals,
    own_rows,
    row_groups,
    whole,
)
from taftcache.solve.inverses.head_rows import HeadRows, rows_are_few
from taftcache.solve.methods.decisive import SAMPLE, typical
from taftcache.solve.proof import looked_at
from taftcache.solve.solution import Solution
from taftcache.solve_stats import SolveStats

CLOSED_FORM = "closed form"


def solve_head(problem: Problem, tolerance: float = 1e-6) -> Solution:
    """Minimise a quadratic F with diagonal D over the head's weight and bias.

    With x̃ = [feature; 1], class k's normal matrix is 1/N Σ_n ω_n D_nk x̃x̃ᵀ + λI. One Cholesky serves all classes if they
    have the same D (RSL with α = 1, squared error); otherwise there is one for each class, or the common one changed by
    each class's own rows (``_solve_updated``). Few rows are solved for in their own space (``HeadRows``).
    Costs 2 + ⌈K/group⌉ passes; 2 if there are few rows.

    Args:
        problem: in float64, over a layout that holds the head's weight and bias only.
        tolerance: what the recomputed gradient must meet to be called converged, relative to Δw = 0.

    Raises:
        SolveError: a λ below what rounding takes from the normal matrix.
    """
    before = problem.operator.passes  # from solves under another λ
    value, moves = (_by_rows if rows_are_few(problem) else _by_moments)(problem)
    stats = SolveStats(solver=CLOSED_FORM, passes=problem.operator.passes - before, row_moves=moves)
    return looked_at(problem, value, tolerance, stats)


def head_bytes(problem: Problem, *, chosen: bool) -> int:
    """About how many bytes ``solve_head`` takes at most at once, in matrices over its rows and over their numbers.

    chosen: whether λ is chosen first by a ``HeadPath``, if there is one. LAPACK takes two more matrices for that.
    """
    operator = problem.operator
    rows, wide, K = operator.rows, operator.base.config.width + 1, operator.classes
    shared = _one_for_all(problem.loss, K)
    by_rows = 0
    if rows_are_few(problem):
        # The rows, their products, an inverse, and its factor or what classes have of their own.
        by_rows = 8 * rows * (wide + (3 if shared else 4) * rows)
        if not (shared and chosen):
            return by_rows
    n = rows if few(rows, wide - 1) else wide
    own = 0 if shared else next(groups(K, n)).stop
    matrices = 1 + own + (2 if chosen and own in (0, K) else 0)
    basis = (3 * wide + rows) * rows if n == rows else 0  # the rows, Q, and R
    return max(by_rows, 8 * (matrices * n * n + basis))


def left_out_bytes(problem: Problem, asked: int) -> int:
    """About how many bytes ``left_out_heads`` takes at most at once if so many classes are ``asked`` for: the common
    moments and their inverse, the rows of a group of classes with what is made of them, and some numbers for each row
    and class; for few rows, as many as ``solve_head``."""
    if rows_are_few(problem):
        return head_bytes(problem, chosen=False)
    rows, n = problem.operator.rows, problem.operator.base.config.width + 1
    of_group = own_numbers(problem.loss, problem.operator.classes, rows, n)
    columns = min(of_group, n + GROUP_BYTES // (8 * n))  # up to one class more
    return 16 * n * (n + columns) + 24 * rows * asked


def own_numbers(loss: Loss, classes: int, rows: int, n: int) -> int:
    """The most columns [n] that the classes' own parts of a head's inverses have together: one for each row, or n for a
    class with n rows or a smaller D of its own; 0 if all classes have the same D."""
    more = _own_curvature(loss, classes)
    return 0 if not more else classes * n if more < 0 else min(rows, classes * n)


def head_products(loss: Loss, width: int, classes: int, rows: int, tried: int) -> float:
    """About how many products of two float64 numbers ``solve_head`` takes besides its passes, with a choice among
    ``tried`` λ before it: sums over the rows, and for each λ factors [n,n]; a decomposition takes as long as 30."""
    n, most = sorted((rows, width + 1))
    own = 1 if _one_for_all(loss, classes) else classes
    sums, factor = n * n * most / 2, n**3 / 6
    each = 3 * factor if rows == n else min(own * factor, factor + n * n * rows / 2)
    decomposed = own == 1 or (rows > n and next(groups(classes, n)).stop == classes)
    choice = sums + (30 * own * factor if decomposed else tried * each) if tried else 0.0
    return sums + each + 3 * n * most * classes * (1 + tried) + choice


def _one_for_all(loss: Loss, classes: int) -> bool:
    """Whether a quadratic loss has the same D for all classes."""
    return not _own_curvature(loss, classes)


def _own_curvature(loss: Loss, classes: int) -> float:
    """How much larger the D of a quadratic loss is for a row's own class than for the others."""
    z = torch.zeros(1, classes, dtype=torch.float64, device="cpu")
    diagonal = loss.hessian(z, torch.zeros(1, dtype=torch.int64, device="cpu"), torch.ones_like(z))
    return (diagonal[0, 0] - diagonal[0, -1]).item()


def quick_heads(problem: Problem, ridges: Sequence[float]) -> Iterator[Tensor] | None:
    """Δw(λ) [P] of ``solve_head`` for one λ after another, from the same products or moments, with the same errors: for
    few rows, or a wide feature and classes of few rows. None otherwise. Serves where there is no ``HeadPath``."""
    if rows_are_few(problem):
        return map(HeadRows(problem).delta, ridges)
    diagonal, common, n = first_diagonal(problem)
    # If the average class has too many rows, some class has; that is known before the moments are summed.
    if not bool((diagonal >= common).all()) or 3 * problem.operator.rows > n * problem.operator.classes:
        return None
    moments = head_moments(problem)
    return _heads(problem, moments, ridges) if _few_of_each(moments) else None


def _by_rows(problem: Problem) -> tuple[Tensor, float | None]:
    """Δw [P] for few rows, and how far it moves if a typical one leaves."""
    at = HeadRows(problem).at(problem.ridge)
    duals, W = at.solution()
    value, places = flat(problem, W), _places(problem)
    alone = torch.zeros(len(duals), len(places), dtype=duals.dtype, device=duals.device)
    alone[places, torch.arange(len(places))] = 1
    shift = at.common(problem.ridge / len(duals) * duals)
    return value, _row_moves(_sample(problem, value, places), at.common(alone), shift)


def _by_moments(problem: Problem) -> tuple[Tensor, float | None]:
    """The same for more rows than numbers in each."""
    moments, ridge = head_moments(problem), problem.ridge
    value = next(_heads(problem, moments, [ridge]))
    # By now its factor has replaced the common matrix, unless each class had a matrix of its own.
    own = not (moments.shared or _few_of_each(moments))
    root = cholesky(moments.normal, ridge, out=moments.normal) if own else moments.normal
    sample = _sample(problem, value, _places(problem))
    shift = solved(root, ridge / problem.operator.rows * whole(problem, value).T)
    return value, _row_moves(sample, solved(root, sample.x.T), shift)


def _heads(problem: Problem, moments: HeadMoments, ridges: Sequence[float]) -> Iterator[Tensor]:
    """Δw(λ) [P] for one λ after another; the last solve overwrites the moments."""
    for ridge in ridges[:-1]:
        yield _head(problem, moments, moments.normal.clone(), ridge)
    yield _head(problem, moments, moments.normal, ridges[-1])


def _head(problem: Problem, moments: HeadMoments, normal: Tensor, ridge: float) -> Tensor:
    """Δw(λ) [P]; ``normal``, the moments' or a copy of it, is written over."""
    normal.diagonal().add_(ridge)
    if moments.shared:
        solution = solved(cholesky(normal, ridge, out=normal), -moments.right.T).T
    elif _few_of_each(moments):
        solution = _solve_updated(problem, moments, cholesky(normal, ridge, out=normal))
    else:
        parts = (_solve_group(problem, moments, k, normal, ridge) for k in groups(*moments.right.shape))
        solution = torch.cat(list(parts))
    return flat(problem, solution)


class _Sample(NamedTuple):
    """Some rows [m] at Δw."""

    x: Tensor  # [m,d+1]
    diagonal: Tensor  # [m,K] ωD/N
    common: Tensor  # [m,1] ωD/N of the classes that are not the row's own
    terms: Tensor  # [m,K] ω ∂ℓ/∂z / N


def _places(problem: Problem) -> Tensor:
    """Where the sampled rows are, spread evenly."""
    rows = problem.operator.rows
    return torch.arange(n := min(SAMPLE, rows)) * rows // max(1, n)


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


def _few_of_each(moments: HeadMoments) -> bool:
    """Whether changing the common matrix [n,n] by each class's rows is cheaper than a matrix for each class."""
    K, n = moments.right.shape
    return moments.above and len(list(groups(K, n))) > 1 and 0 < int(moments.counts.max()) * 3 <= n


def _solve_group(problem: Problem, moments: HeadMoments, classes: slice, common: Tensor, ridge: float) -> Tensor:
    """Rows [len(classes), n] of the solution when each class has its own normal matrix."""
    own = own_normals(problem, range(classes.start, classes.stop), common)
    return solved(cholesky(own, ridge, out=own), -moments.right[classes, :, None])[:, :, 0]


def _solve_updated(problem: Problem, moments: HeadMoments, root: Tensor) -> Tensor:
    """The same for all classes [K,n], by Woodbury's identity from ``root`` [n,n], the Cholesky factor L of C + λI.

    A class's own normal matrix is LLᵀ + UUᵀ with U [n,m] made from its m rows, so that with Y = L⁻¹U its solution is
    −L⁻ᵀ(I − Y(I + YᵀY)⁻¹Yᵀ)L⁻¹b. Classes whose rows take GROUP_BYTES together form a group, which takes one pass.
    """
    turned = torch.linalg.solve_triangular(root, -moments.right.T, upper=False)  # L⁻¹b [n,K]
    held = row_groups(moments.counts, len(root))
    for group in sorted({held[k] for k in moments.counts.nonzero()[:, 0].tolist()}):
        mine: dict[int, list[Tensor]] = {k: [] for k in range(len(held)) if held[k] == group}
        for k, extra, x in own_rows(problem, mine.keys()):
            mine[k].append(extra.sqrt() * x)
        there = [k for k, parts in mine.items() if parts]
        rows = torch.cat([part for k in there for part in mine[k]])
        all_of = torch.linalg.solve_triangular(root, rows.T, upper=False)  # at once: one class has few columns
        for k, Y in zip(there, all_of.split([sum(map(len, mine[k])) for k in there], 1), strict=True):  # [n,m]
            inner = torch.eye(Y.shape[1], dtype=Y.dtype, device=Y.device) + Y.T @ Y
            turned[:, k] -= Y @ torch.cholesky_solve(Y.T @ turned[:, k : k + 1], torch.linalg.cholesky(inner))[:, 0]
    found: Tensor = torch.linalg.solve_triangular(root.T, turned, upper=True)
    return found.T
