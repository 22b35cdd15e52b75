"""The head alone, in closed form: ridge-regularised least squares by a Cholesky factor, for one λ or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky, solved
from taftcache.solve.inverses.dual import square_of_sum
from taftcache.solve.inverses.head_moments import (
    FewRows,
    HeadMoments,
    common_diagonal,
    extended,
    few,
    first_diagonal,
    flat,
    groups,
    head_moments,
    in_full,
    own_normals,
    own_rows,
    row_groups,
)
from taftcache.solve.methods.decisive import SAMPLE, typical
from taftcache.solve.proof import looked_at
from taftcache.solve.solution import Solution
from taftcache.solve_stats import SolveStats


def solve_head(problem: Problem, tolerance: float = 1e-6) -> Solution:
    """Minimise a quadratic F with diagonal D over the head's weight and bias.

    With x̃ = [feature; 1], class k's normal matrix is 1/N Σ_n ω_n D_nk x̃x̃ᵀ + λI: one Cholesky for all classes when D is
    the same for all of them (RSL with α = 1, squared error), one a class otherwise, or what the class's own rows change
    in the one of all (``_solve_updated``). Rows that are few beside their width are written in a basis of their own
    first (``HeadMoments``). Costs 2 + ⌈K/group⌉ passes, and one for that.

    Args:
        problem: in float64, over a layout that holds the head's weight and bias only.
        tolerance: what the recomputed gradient must meet to be called converged, relative to Δw = 0.

    Raises:
        SolveError: a λ below what rounding takes from the normal matrix.
    """
    before = problem.operator.passes  # of solves under another λ
    moments, ridge = head_moments(problem), problem.ridge
    value = next(_heads(problem, moments, [ridge]))
    # The common matrix is a factor by now, but where each class had one of its own.
    own = not (moments.shared or _few_of_each(moments))
    root = cholesky(moments.normal, ridge, out=moments.normal) if own else moments.normal
    moves = _row_moves(problem, moments.basis, root, value)
    stats = SolveStats(solver="closed form", passes=problem.operator.passes - before, row_moves=moves)
    return looked_at(problem, value, tolerance, stats)


def head_bytes(problem: Problem, *, chosen: bool) -> int:
    """About how many bytes ``solve_head`` takes at most at once: matrices [n,n], and the basis of few rows.

    chosen: whether λ is chosen first by a ``HeadPath``, where there is one. LAPACK takes two matrices more for it.
    """
    operator = problem.operator
    rows, wide, K = operator.rows, operator.base.config.width + 1, operator.classes
    n = rows if few(rows, wide - 1) else wide
    z = torch.zeros(1, K, dtype=torch.float64, device="cpu")
    diagonal = problem.loss.hessian(z, torch.zeros(1, dtype=torch.int64, device="cpu"), torch.ones_like(z))
    together = next(groups(K, n)).stop
    own = 0 if bool((diagonal == diagonal[:, :1]).all()) else together
    matrices = 1 + own + (2 if chosen and own in (0, K) else 0)
    basis = (3 * wide + rows) * rows if n == rows else 0  # the rows, Q, and R
    return 8 * (matrices * n * n + basis)


def quick_heads(problem: Problem, ridges: Sequence[float]) -> Iterator[Tensor] | None:
    """Δw(λ) [P] of ``solve_head`` for one λ after another, from the same moments, where there is no ``HeadPath`` but a
    wide feature, and classes of few rows; None elsewhere. The errors are the same."""
    operator = problem.operator
    diagonal, common, n = first_diagonal(problem)
    # Where the mean class has too many rows, one has: that is known before moments are taken.
    if not bool((diagonal >= common).all()) or 3 * operator.rows > n * operator.classes:
        return None
    moments = head_moments(problem)
    return _heads(problem, moments, ridges) if _few_of_each(moments) else None


def _heads(problem: Problem, moments: HeadMoments, ridges: Sequence[float]) -> Iterator[Tensor]:
    """Δw(λ) [P] for one λ after another; the last is solved in the moments' own place."""
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
    return flat(problem, in_full(solution, moments.basis))


def _row_moves(problem: Problem, basis: FewRows | None, root: Tensor, value: Tensor) -> float | None:
    """How far Δw [P] moves if a typical row leaves, by some of the rows in one pass; None where none of them does.

    ``HeadPath.moves`` is that of each row. Here ``root`` [n,n], the Cholesky factor of the matrix A that all classes
    have in common, stands for every class's, but for the row's own part of its class's. With α = √K that takes rows to
    move a class's part up to a fifth too far, and up to 1.6 times as far where others are their equals. The rest is a
    mean over one less: with its term t a row takes λw/N, and w moves by A₋⁻¹(x̃t + λw/N), A₋ = A − D x̃x̃ᵀ.
    """
    operator, start, found = problem.operator, 0, list[Tensor]()
    weight, bias = (operator.layout.views(value)[name] for name in operator.base.config.head_names)
    full = torch.cat([weight, bias[:, None]], 1)
    shift = solved(root, problem.ridge / operator.rows * (full if basis is None else full @ basis.vectors).T)  # [n,K]
    places = torch.arange(n := min(SAMPLE, operator.rows)) * operator.rows // max(1, n)
    for state, labels in operator.blocks():
        mine = places[(places >= start) & (places < start + len(labels))].to(labels.device) - start
        x = extended(state.feature, basis, start)[mine]
        z = problem.logits(state.logits[mine].double(), extended(state.feature)[mine] @ full.T)
        diagonal = problem.diagonal(labels, z, start)[mine]
        terms = problem.loss.gradient(z, labels[mine]) / operator.rows
        if problem.weights is not None:
            terms = terms * problem.weights.at(labels, start, z)[mine]
        away, least = solved(root, x.T), common_diagonal(diagonal, labels[mine])  # A⁻¹x̃ [n,m]
        left = (1 - least * (x * away.T).sum(1)[:, None]).clamp_min(1e-12)
        along = (terms + least * (x @ shift)) / left
        squares = (along * away.norm(dim=0)[:, None]).square() + shift.square().sum(0)
        moves = square_of_sum(squares.sum(1), (along * (away.T @ shift)).sum(1)).sqrt()
        found.append(moves[(diagonal > 0).any(1)])
        start += len(labels)
    return typical(torch.cat(found)) or None


def _few_of_each(moments: HeadMoments) -> bool:
    """Whether the rows of each class are cheaper as a change of the common matrix [n,n] than a matrix each is."""
    K, n = moments.right.shape
    return moments.above and len(list(groups(K, n))) > 1 and 0 < int(moments.counts.max()) * 3 <= n


def _solve_group(problem: Problem, moments: HeadMoments, classes: slice, common: Tensor, ridge: float) -> Tensor:
    """Rows [len(classes), n] of the solution when each class has its own normal matrix."""
    own = own_normals(problem, classes, common, moments.basis)
    return solved(cholesky(own, ridge, out=own), -moments.right[classes, :, None])[:, :, 0]


def _solve_updated(problem: Problem, moments: HeadMoments, root: Tensor) -> Tensor:
    """The same for all classes [K,n], by Woodbury's identity from ``root`` [n,n], the Cholesky factor L of C + λI.

    A class's own normal matrix is LLᵀ + UUᵀ with U [n,m] of its m rows, so that with Y = L⁻¹U its solution is
    −L⁻ᵀ(I − Y(I + YᵀY)⁻¹Yᵀ)L⁻¹b. The classes whose rows take GROUP_BYTES together are one group, and one pass.
    """
    turned = torch.linalg.solve_triangular(root, -moments.right.T, upper=False)  # L⁻¹b [n,K]
    held = row_groups(moments.counts, len(root))
    for group in sorted({held[k] for k in moments.counts.nonzero()[:, 0].tolist()}):
        mine: dict[int, list[Tensor]] = {k: [] for k in range(len(held)) if held[k] == group}
        for k, extra, x in own_rows(problem, mine.keys(), moments.basis):
            mine[k].append(extra.sqrt() * x)
        there = [k for k, parts in mine.items() if parts]
        rows = torch.cat([part for k in there for part in mine[k]])
        all_of = torch.linalg.solve_triangular(root, rows.T, upper=False)  # at once: a class alone has few columns
        for k, Y in zip(there, all_of.split([sum(map(len, mine[k])) for k in there], 1), strict=True):  # [n,m]
            inner = torch.eye(Y.shape[1], dtype=Y.dtype, device=Y.device) + Y.T @ Y
            turned[:, k] -= Y @ torch.cholesky_solve(Y.T @ turned[:, k : k + 1], torch.linalg.cholesky(inner))[:, 0]
    found: Tensor = torch.linalg.solve_triangular(root.T, turned, upper=True)
    return found.T
