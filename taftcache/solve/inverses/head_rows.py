"""The head of a quadratic loss in the space of its rows, if there are no more rows than numbers in each; and the choice
between that space and the one of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import below_rounding, cholesky
from taftcache.solve.inverses.head_moments import common_diagonal, extended, flat, matrices, refuse_not_finite
from taftcache.solve.inverses.head_path import HeadNormals, HeadPath, OnRows, Unseen

COLUMNS = 512  # of the rows' products that are made at once: half of the rest mirrors the other half
NO_WEIGHT = 1e-30, 1e-290  # stand for 0, relative to the largest weight and absolute, so that 1/D stays finite


def rows_are_few(problem: Problem) -> bool:
    """Whether there are no more rows than numbers x̃ [d+1] that a head reads of each: their products are cheaper."""
    return problem.operator.rows <= problem.operator.base.config.width + 1


def every_head(problem: Problem, least: float) -> HeadPath | HeadRows:
    """The head at every λ from ``least`` on, for a problem that ``has_path``: by one eigendecomposition if it serves
    all classes. If each has its own D, by one for each class; or, with few rows, by a Cholesky factor of their products
    for each λ, provided that rounding leaves enough of it."""
    count, _ = matrices(problem)
    if rows_are_few(problem) and count > 1:
        rows = HeadRows(problem)
        if rows.serves(least):
            return rows
    return HeadPath(problem)


def left_out_heads(problem: Problem) -> HeadRows | HeadNormals:
    """The head at any λ, and exactly what each row decides of it, for a problem that ``is_closed``."""
    return (HeadRows if rows_are_few(problem) else HeadNormals)(problem)


class HeadRows:
    """The head at any λ from the products of the rows with each other, and its exact leave-one-out errors.

    With X [N,d+1] the rows x̃ = [feature; 1], W = βᵀX with β [N,K]. With D_nk the curvature, times the row's weight, and
    t_nk = −∂ℓ/∂z / D what is missing from the base point's logits to those of least loss,

        (XXᵀ + S_k) β_k = t_k        S_k = diag(λN / D_nk)

    S_k differs from a common S only in class k's own rows, so (XXᵀ + S)⁻¹ serves all classes, by Woodbury's identity in
    the size of a class. A row that is left out, with the same λN, is off its target by −β_nk / [(XXᵀ + S_k)⁻¹]_nn.
    Costs one pass, and about N³ operations for each λ.

    Args:
        problem: in float64, of a quadratic loss over the head alone; its own λ has no part in it.

    Raises:
        SolveError: features or logits that are not finite; by its methods, a λ below what rounding takes.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        operator, parts, start = problem.operator, [], 0
        wide = operator.base.config.width + 1
        self.rows = torch.empty(operator.rows, wide, dtype=torch.float64, device=operator.device)
        for state, labels in operator.blocks():
            z = problem.logits(state.logits, None).double()
            curvature = problem.loss.hessian(z, labels, torch.ones_like(z))
            away, common = problem.loss.gradient(z, labels) / curvature, common_diagonal(curvature, labels)
            own = common if labels.is_floating_point() else curvature.gather(1, labels[:, None])
            weight = torch.ones_like(own) if problem.weights is None else problem.weights.at(labels, start, z)
            parts.append((labels, z - away, -away, weight * common, weight * own))
            self.rows[start : start + len(labels)] = extended(state.feature)
            start += len(labels)
        self.labels, self.target, self.sought, common, own = map(torch.cat, zip(*parts, strict=True))
        self.products = _products(self.rows)
        refuse_not_finite(problem, self.products.diagonal(), self.sought)
        least = max(NO_WEIGHT[0] * torch.maximum(common, own).max().item(), NO_WEIGHT[1])
        shift, its = (operator.rows / part.clamp_min(least)[:, 0] for part in (common, own))
        self.shift = shift  # S/λ [N]
        classes = [] if self.labels.is_floating_point() else self.labels[its != shift].unique().tolist()
        mine = [torch.nonzero((self.labels == k) & (its != shift))[:, 0] for k in classes]
        # For each class, its rows [m], and (S_k − S)/λ there.
        self.own = [(k, rows, (its - shift)[rows]) for k, rows in zip(classes, mine, strict=True)]

    def serves(self, ridge: float, digits: int = 3) -> bool:
        """Whether rounding leaves so many digits of (XXᵀ + S)⁻¹: a Cholesky factor may exist and be mere rounding."""
        largest = self.products.diagonal().sum()  # and no eigenvalue is larger
        return bool(ridge * self.shift.min() > 10**digits * torch.finfo(torch.float64).eps * largest)

    def at(self, ridge: float, only: Sequence[int] | None = None) -> HeadAtRidge:
        """The head at one λ > 0, for all classes or ``only`` for some."""
        if not self.serves(ridge, digits=0):
            raise below_rounding(ridge, self.products.diagonal().max().item())
        matrix = self.products.clone().mT  # symmetric, and column by column
        matrix.diagonal().add_(ridge * self.shift)
        inverse = torch.cholesky_inverse(cholesky(matrix, ridge, out=matrix))
        del matrix
        own = [each for each in self.own if only is None or each[0] in only]
        inner = []
        for _, rows, more in own:
            part = inverse[rows[:, None], rows]
            part.diagonal().add_(1 / (ridge * more))
            inner.append(torch.linalg.lu_factor(part))
        return HeadAtRidge(self, ridge, inverse, own, inner)

    def delta(self, ridge: float) -> Tensor:
        """W(λ) as Δw [P], near enough to choose by: the first solve of ``HeadAtRidge.solution``."""
        return flat(self.problem, self.at(ridge).duals().T @ self.rows)

    def leave_one_out(self, ridges: Sequence[float]) -> list[Unseen]:
        """As ``HeadPath.leave_one_out``, for classes."""
        return [self._left_out(ridge) for ridge in ridges]

    def _left_out(self, ridge: float) -> Unseen:
        labels, weights = self.labels, self.problem.weights
        ((z, _),) = self.at(ridge).left_out_logits()
        loss, right = self.problem.loss.value(z, labels), (z.argmax(1) == labels).cpu()
        if weights is None:
            return Unseen(ridge, loss.mean().item(), right)
        weight = weights.at(labels, 0, z)[:, 0]
        return Unseen(ridge, (loss * weight).mean().item(), right, weight.cpu())


@dataclass(frozen=True)
class HeadAtRidge:
    """The head at one λ.

    of: the rows.
    ridge: λ.
    common_inverse: (XXᵀ + S)⁻¹ [N,N].
    own: the entries of ``of.own`` for the classes that are asked for. Results for others ignore their own D.
    inner: for each of them, the factors of (S_k − S)⁻¹ + (XXᵀ + S)⁻¹ over its own rows [m,m].
    """

    of: HeadRows
    ridge: float
    common_inverse: Tensor
    own: list[tuple[int, Tensor, Tensor]]
    inner: list[tuple[Tensor, Tensor]]

    def duals(self) -> Tensor:
        """β [N,K]."""
        return self._solved(self.of.sought)

    def solution(self) -> tuple[Tensor, Tensor]:
        """β [N,K] and W [K,d+1]; a second solve restores what rounding took from both.

        If rows are nearly alike, β is large compared with W, and XXᵀβ loses digits that XWᵀ keeps. So the correction of
        β is added to W too, instead of making W anew from β.
        """
        X, sought = self.of.rows, self.of.sought
        beta = self.duals()
        W = X.T @ beta
        left = sought - X @ W - (self.ridge * self.of.shift)[:, None] * beta
        for k, rows, more in self.own:
            left[rows, k] -= self.ridge * more * beta[rows, k]
        step = self._solved(left)
        return beta + step, (W + X.T @ step).T

    def diagonal(self) -> Tensor:
        """[(XXᵀ + S_k)⁻¹]_nn of every row and class [N,K]."""
        found = self.common_inverse.diagonal()[:, None].repeat(1, self.of.sought.shape[1])
        for (k, rows, _), inner in zip(self.own, self.inner, strict=True):
            across = self.common_inverse[rows]  # [m,N]
            found[:, k] -= (across * torch.linalg.lu_solve(*inner, across)).sum(0)
        return found

    @property
    def weights(self) -> Tensor:
        """W(λ) [K,d+1]."""
        return self.solution()[1]

    def inverse(self, full: Tensor) -> Tensor:
        """A⁻¹ of each class's row of ``full`` [K,d+1], A = 1/N Σ D x̃x̃ᵀ + λI = λ(I + XᵀS_k⁻¹X)."""
        X = self.of.rows
        return (full - (X.T @ self._solved(X @ full.T)).T) / self.ridge

    def squares(self) -> Tensor:
        """‖A⁻¹x̃‖² = (N/D)²[G − G S_k G]_nn of each row and class [N,K], G = (XXᵀ + S_k)⁻¹; N² for each of a class's."""
        shifts, found = self._shifts(), self.diagonal()
        away = self.common_inverse.square() @ (self.ridge * shifts)
        for (k, rows, _), inner in zip(self.own, self.inner, strict=True):
            across = self.common_inverse[rows]
            own = torch.addmm(self.common_inverse, across.T, torch.linalg.lu_solve(*inner, across), alpha=-1)
            away[:, k] = own.square_() @ (self.ridge * shifts[:, k])
        return shifts.square() * (found - away).clamp_min_(0)

    def left_out_logits(self, on_rows: OnRows | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """As ``HeadInverse.left_out_logits``, in one block [N,K] of all rows."""
        logits = self.of.target - self.duals() / self.diagonal()
        if on_rows is not None:
            on_rows(len(logits))
        yield logits, self.of.labels

    def _shifts(self) -> Tensor:
        """S_k/λ = N/D [N,K]."""
        found = self.of.shift[:, None].repeat(1, self.of.sought.shape[1])
        for k, rows, more in self.own:
            found[rows, k] += more
        return found

    def common(self, at: Tensor) -> Tensor:
        """(1/N Σ D x̃x̃ᵀ + λI)⁻¹Xᵀa [d+1,m] for a = ``at`` [N,m], with the D that all classes have in common."""
        return self.of.rows.T @ (self.common_inverse @ (self.of.shift[:, None] * at))

    def _solved(self, right: Tensor) -> Tensor:
        """(XXᵀ + S_k)⁻¹ of each class's column of ``right`` [N,K]."""
        found = self.common_inverse @ right
        changed = torch.zeros_like(right)
        for (k, rows, _), inner in zip(self.own, self.inner, strict=True):
            changed[rows, k] = torch.linalg.lu_solve(*inner, found[rows, k, None])[:, 0]
        return found - self.common_inverse @ changed


def _products(rows: Tensor) -> Tensor:
    """XXᵀ [N,N]: what is below the diagonal, and mirrored."""
    found = rows.new_empty(len(rows), len(rows))
    for at in range(0, len(rows), COLUMNS):
        some = slice(at, at + COLUMNS)
        found[at:, some] = rows[at:] @ rows[some].T
        found[some, at + COLUMNS :] = found[at + COLUMNS :, some].T
    return found
