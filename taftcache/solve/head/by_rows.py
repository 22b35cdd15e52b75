"""The head of a quadratic loss in the space of its rows, if there are no more rows than numbers in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.head.at_ridge import OnRows, Unseen
from taftcache.solve.head.terms import common_diagonal, extended, refuse_not_finite
from taftcache.solve.inverses.cholesky import below_rounding, cholesky

COLUMNS = 512  # of the rows' products that are made at once: half of the rest mirrors the other half
NO_WEIGHT = 1e-30, 1e-290  # stand for 0, relative to the largest weight and absolute, so that 1/D stays finite


class ByRows:
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
        self.trace = self.products.diagonal().sum()  # and no eigenvalue is larger
        least = max(NO_WEIGHT[0] * torch.maximum(common, own).max().item(), NO_WEIGHT[1])
        shift, its = (operator.rows / part.clamp_min(least)[:, 0] for part in (common, own))
        self.shift = shift  # S/λ [N]
        classes = [] if self.labels.is_floating_point() else self.labels[its != shift].unique().tolist()
        mine = [torch.nonzero((self.labels == k) & (its != shift))[:, 0] for k in classes]
        # For each class, its rows [m], and (S_k − S)/λ there.
        self.own = [(k, rows, (its - shift)[rows]) for k, rows in zip(classes, mine, strict=True)]

    def serves(self, ridge: float, digits: int = 3) -> bool:
        """Whether rounding leaves so many digits of (XXᵀ + S)⁻¹: a Cholesky factor may exist and be mere rounding."""
        return bool(ridge * self.shift.min() > 10**digits * torch.finfo(torch.float64).eps * self.trace)

    def at(self, ridge: float, only: Sequence[int] | None = None, *, last: bool = False) -> HeadAtRows:
        """The head at one λ > 0, for all classes or ``only`` for some.

        Args:
            last: whether this is all that is asked of these rows: it takes the memory of their products.
        """
        if not self.serves(ridge, digits=0):
            raise below_rounding(ridge, self.products.diagonal().max().item())
        matrix = (self.products if last else self.products.clone()).mT  # symmetric, and column by column
        matrix.diagonal().add_(ridge * self.shift)
        inverse = torch.cholesky_inverse(cholesky(matrix, ridge, out=matrix), out=matrix)
        asked = range(self.sought.shape[1]) if only is None else only
        own = [each for each in self.own if each[0] in asked]
        inner = []
        for _, rows, more in own:
            part = inverse[rows[:, None], rows]
            part.diagonal().add_(1 / (ridge * more))
            inner.append(torch.linalg.lu_factor(part))
        return HeadAtRows(self, ridge, list(asked), inverse, own, inner)

    def near(self, ridges: Sequence[float]) -> Iterator[Tensor]:
        """W(λ) [K,d+1] for one λ after another, near enough to choose by."""
        return map(self.weights, ridges)

    def weights(self, ridge: float) -> Tensor:
        """W(λ) [K,d+1], near enough to choose by: the first solve of ``HeadAtRows.solution``."""
        return self.at(ridge).duals.T @ self.rows

    def leave_one_out(self, ridges: Sequence[float]) -> list[Unseen]:
        """As ``EveryHead.leave_one_out``."""
        return [self.unseen(ridge, next(self.at(ridge).left_out_logits())[0]) for ridge in ridges]

    def unseen(self, ridge: float, z: Tensor) -> Unseen:
        """The errors at one λ of the logits [N,K] that each row has without it."""
        labels, weights = self.labels, self.problem.weights
        loss = self.problem.loss.value(z, labels)
        right = None if labels.is_floating_point() else (z.argmax(1) == labels).cpu()
        if weights is None:
            return Unseen(ridge, loss.mean().item(), right)
        weight = weights.at(labels, 0, z)[:, 0]
        return Unseen(ridge, (loss * weight).mean().item(), right, weight.cpu())

    def shifts(self) -> Tensor:
        """S_k/λ = N/D [N,K]."""
        found = self.shift[:, None].repeat(1, self.sought.shape[1])
        for k, rows, more in self.own:
            found[rows, k] += more
        return found


@dataclass(frozen=True)
class HeadAtRows:
    """The head at one λ.

    of: the rows.
    ridge: λ.
    asked: the classes that are asked for. Results for others ignore their own D.
    common_inverse: (XXᵀ + S)⁻¹ [N,N].
    own: the entries of ``of.own`` for these classes.
    inner: for each of them, the factors of (S_k − S)⁻¹ + (XXᵀ + S)⁻¹ over its own rows [m,m].
    """

    of: ByRows
    ridge: float
    asked: list[int]
    common_inverse: Tensor
    own: list[tuple[int, Tensor, Tensor]]
    inner: list[tuple[Tensor, Tensor]]

    @property
    def duals(self) -> Tensor:
        """β [N,K]."""
        return self._solved(self.of.sought)

    @cached_property
    def solution(self) -> tuple[Tensor, Tensor]:
        """β [N,K] and W [K,d+1]; a second solve restores what rounding took from both.

        If rows are nearly alike, β is large compared with W, and XXᵀβ loses digits that XWᵀ keeps. So the correction of
        β is added to W too, instead of making W anew from β.
        """
        X, beta = self.of.rows, self.duals
        W = X.T @ beta
        step = self._solved(self.of.sought - X @ W - self._shifted(beta))
        return beta + step, (W + X.T @ step).T

    def _shifted(self, beta: Tensor) -> Tensor:
        """S_kβ_k of each class's column of ``beta`` [N,K]."""
        found = (self.ridge * self.of.shift)[:, None] * beta
        for k, rows, more in self.own:
            found[rows, k] += self.ridge * more * beta[rows, k]
        return found

    @property
    def weights(self) -> Tensor:
        """W(λ) [K,d+1]."""
        return self.solution[1]

    def common(self, places: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """As ``HeadAt.common``: C⁻¹Xᵀa is Xᵀ(XXᵀ + S)⁻¹(S/λ)a, and x̃ and λW/N are such sums of rows."""
        duals, _ = self.solution
        alone = torch.zeros(len(duals), len(places), dtype=duals.dtype, device=duals.device)
        alone[places, torch.arange(len(places))] = 1
        columns = torch.cat([alone, self.ridge / len(duals) * duals], 1)
        found = self.of.rows.T @ (self.common_inverse @ (self.of.shift[:, None] * columns))
        return found[:, : len(places)], found[:, len(places) :]

    def inverse(self, full: Tensor) -> Tensor:
        """A⁻¹ of each class's row of ``full`` [K,d+1], A = 1/N Σ D x̃x̃ᵀ + λI = λ(I + XᵀS_k⁻¹X)."""
        return self.along(full)[0]

    def along(self, full: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As ``HeadAt.along``: XA⁻¹f is (S_k/λ)a with a = (XXᵀ + S_k)⁻¹Xf, where X times A⁻¹f = (f − Xᵀa)/λ would
        divide what f and Xᵀa lose to rounding by λ."""
        X = self.of.rows
        a = self._solved(X @ full.T)
        rest = full.T - X.T @ a
        for _ in range(2):
            step = self._solved(X @ rest - self._shifted(a))
            a, rest = a + step, rest - X.T @ step
        return rest.T / self.ridge, self._shifted(a) / self.ridge, self._shifted(step) / self.ridge

    def diagonal(self) -> Tensor:
        """[(XXᵀ + S_k)⁻¹]_nn of every row and class [N,K]."""
        found = self.common_inverse.diagonal()[:, None].repeat(1, self.of.sought.shape[1])
        for (k, rows, _), inner in zip(self.own, self.inner, strict=True):
            across = self.common_inverse[rows]  # [m,N]
            found[:, k] -= (across * torch.linalg.lu_solve(*inner, across)).sum(0)
        return found

    def moved(self, shift: Tensor, step: Tensor) -> Tensor:
        """As ``HeadAt.moved``, some numbers of all rows at once: with A⁻¹x̃_n = (S_k/λ)_n Xᵀ(XXᵀ + S_k)⁻¹e_n, sums of
        squares have no difference of large numbers, as G − G S_k G would be for rows that are alike."""
        X, times = self.of.rows, self.of.shifts() * step
        found = torch.zeros_like(times[:, 0])
        own = {k: (rows, torch.linalg.lu_solve(*inner, self.common_inverse[rows]))
               for (k, rows, _), inner in zip(self.own, self.inner, strict=True)}  # fmt: skip
        for at in range(0, X.shape[1], COLUMNS):
            some = slice(at, at + COLUMNS)
            common = X[:, some].T @ self.common_inverse  # [b,N]
            for k in self.asked:
                mine = common
                if k in own:
                    rows, correction = own[k]
                    mine = torch.addmm(common, common[:, rows], correction, alpha=-1)
                found += (mine * times[:, k]).add_(shift[k, some, None]).square_().sum(0)
        return found

    @property
    def rounding(self) -> float:
        """As ``HeadAt.rounding``: what the products are rounded by, times the largest entry of the inverses."""
        largest = self.diagonal()[:, self.asked].max() * self.of.trace
        return float(torch.finfo(torch.float64).eps * largest)

    def left_out_logits(self, on_rows: OnRows | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """As ``HeadAt.left_out_logits``, in one block [N,K] of all rows."""
        logits = self.of.target - self.duals / self.diagonal()
        if on_rows is not None:
            on_rows(len(logits))
        yield logits, self.of.labels

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
