"""The head at every λ from one eigendecomposition, or one for each class, with exact leave-one-out errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.head.at_ridge import Unseen
from taftcache.solve.head.by_rows import ByRows
from taftcache.solve.head.moments import head_moments, own_normals
from taftcache.solve.head.terms import Seen, extended, seen
from taftcache.tangent.operator import TangentOperator

NEARLY = 1e-12  # stands for 0 in 1 − h


class PathByRows:
    """The head at every λ, if there are no more rows than numbers in each.

    With s = D^½, scaled so that S = λs⁻² in ``ByRows``, and sXXᵀs = VΛVᵀ, the inverse is (XXᵀ + S)⁻¹ = sV(Λ + λ)⁻¹Vᵀs.
    If each class has its own D (α ≠ 1), it has its own s, V and Λ too.

    Args:
        of: the rows; their products are written over, so nothing else can be asked of them afterwards.
    """

    def __init__(self, of: ByRows) -> None:
        self._of = of
        shifts = of.shifts() if of.own else of.shift[:, None]
        self._scale = shifts.rsqrt().T  # s [C,N]: C is 1 for all classes, or K
        products = of.products.repeat(len(self._scale), 1, 1) if of.own else of.products[None]
        products.mul_(self._scale[:, :, None]).mul_(self._scale[:, None])
        self._values, self._vectors = decomposed(products.mT)  # with strides [n²,1,n], or eigh would copy it
        self._right = _turn(of.sought.T * self._scale, self._vectors)

    def weights(self, ridge: float) -> Tensor:
        """W(λ) [K,d+1], the bias last."""
        return self._duals(ridge) @ self._of.rows

    def leave_one_out(self, ridges: Sequence[float]) -> list[Unseen]:
        """As ``EveryHead.leave_one_out``."""
        inverses = torch.stack([1 / (self._values + ridge) for ridge in ridges], 1)  # [C,L,n]
        found = []
        for ridge, each in zip(ridges, self._diagonals(inverses), strict=True):
            found.append(self._of.unseen(ridge, self._of.target - (self._duals(ridge) / each).T))
        return found

    def leave_groups_out(self, ridges: Sequence[float], groups: Sequence[Tensor]) -> list[Unseen]:
        """As ``leave_one_out``, by the head solved without the row's group g, off by −[(XXᵀ + S)⁻¹]_gg⁻¹β_g."""
        found = []
        for ridge in ridges:
            left = self._duals(ridge) / self._scale
            for rows in groups:
                V = self._vectors[:, rows]
                inside = (V / (self._values + ridge)[:, None]) @ V.mT
                left[:, rows] = _solved(inside, left[:, rows]) / self._scale[:, rows]
            found.append(self._of.unseen(ridge, self._of.target - left.T))
        return found

    def _diagonals(self, inverses: Tensor) -> Tensor:
        """The diagonals of (XXᵀ + S)⁻¹ [L,C,N] from (Λ + λ)⁻¹ [C,L,n]."""
        found = [S @ V.square().T for V, S in zip(self._vectors, inverses, strict=True)]
        return torch.stack(found, 1) * self._scale.square()

    def _duals(self, ridge: float) -> Tensor:
        """β [K,N]."""
        return self._scale * _turn(self._right / (self._values + ridge), self._vectors.mT)


class PathByMoments:
    """The head at every λ, for any number of rows.

    With Σ = 1/N Σ ω_n D_n x̃x̃ᵀ = VSVᵀ and R = 1/N Σ ω_n ∂ℓ_n x̃ᵀ at Δw = 0, the head is W(λ) = −R V (S + λ)⁻¹Vᵀ. Leaving
    row n out while λ keeps its meaning as the weight beside the sum over N rows,

        r_n^(−n) = r_n / (1 − h_n)        h_n = (ω_n D_n/N) x̃_nᵀ(Σ + λI)⁻¹x̃_n

    is the residual of its own prediction, without a solve. If each class has its own D (α ≠ 1), it has its own Σ, V and
    h too: one decomposition for each class, from one more pass. Costs one pass, and one each time the rows are looked
    at.

    Args:
        problem: one that is closed, with room for the decompositions; its own λ has no part in it.

    Raises:
        SolveError: features or logits that are not finite.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        moments = head_moments(problem)
        normal = moments.normal.mT[None].mT  # with strides [n²,1,n], or eigh would copy it
        if not moments.shared:
            normal = own_normals(problem, range(problem.operator.classes), moments.normal)
        self._values, self._vectors = decomposed(normal)  # [C,n] and [C,n,n]: C is 1 for all classes, or K
        self._right = _turn(moments.right, self._vectors)

    def weights(self, ridge: float) -> Tensor:
        """W(λ) [K,d+1], the bias last."""
        return -_turn(self._right / (self._values + ridge), self._vectors.mT)

    def leave_one_out(self, ridges: Sequence[float]) -> list[Unseen]:
        """As ``EveryHead.leave_one_out``, in one pass."""
        losses = torch.zeros(len(ridges), dtype=torch.float64, device=self._values.device)
        right, weights, omega, start = [], [], self._problem.weights, 0
        for labels, curvature, residual, target in self._left_out(ridges):
            loss = 0.5 * (curvature[:, None] * residual.square()).sum(2)  # ℓ = ½ Σ D (z − target)²
            if omega is not None:
                weights.append(omega.at(labels, start, loss)[:, 0].cpu())
                loss *= weights[-1].to(loss)[:, None]
            losses += loss.sum(0)
            start += len(labels)
            if not labels.is_floating_point():
                right.append((residual.add_(target[:, None]).argmax(2) == labels[:, None]).cpu())
        each = torch.cat(right).T if right else [None] * len(ridges)
        mean, weight = (losses / self._problem.operator.rows).tolist(), torch.cat(weights) if weights else None
        return [Unseen(*found, weight) for found in zip(ridges, mean, each, strict=True)]

    def leave_groups_out(self, ridges: Sequence[float], groups: Sequence[Tensor]) -> list[Unseen]:
        """As ``leave_one_out``, by the head solved without the row's group g: r_g is divided by I − H_gg, with H_gg =
        X_g(Σ + λI)⁻¹X_gᵀ times ωD/N, or if a group has more rows than numbers by Woodbury's identity, with Σ − Σ_g. In
        one pass, whose rows stay in memory."""
        rows = Seen(*map(torch.cat, zip(*seen(self._problem), strict=True)))
        changes = [rows.x @ self.weights(ridge).T + rows.away for ridge in ridges]  # [N,K] each
        for places in groups:
            turned = rows.x[places] @ self._vectors  # [C,m,n]
            own = turned * rows.weight[places, : len(turned)].T[:, :, None]
            for ridge, change in zip(ridges, changes, strict=True):
                values, r = self._values + ridge, change[places].T
                if len(places) <= len(values.T):
                    left = -(turned / values[:, None]) @ own.mT
                    left.diagonal(dim1=1, dim2=2).add_(1 + NEARLY)
                    change[places] = _solved(left, r).T
                else:
                    slope = _turn(r, own)
                    change[places] = (
                        r + _turn(_solved(torch.diag_embed(values) - own.mT @ turned, slope), turned.mT)
                    ).T
        return unseen_rows(self._problem, rows, ridges, changes)

    def _left_out(self, ridges: Sequence[float]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Labels [b], D [b,K], by how much predictions made without the row are off [b,L,K], and targets [b,K]."""
        heads = torch.cat([self.weights(ridge) for ridge in ridges]).T  # [n,L·K]
        inverses = torch.stack([1 / (self._values + ridge) for ridge in ridges], 1)  # [C,L,n]
        for x, labels, curvature, weight, target, away in seen(self._problem):
            own = [(x @ V).square_() @ S.T for V, S in zip(self._vectors, inverses, strict=True)]  # x̃ᵀ(Σ + λI)⁻¹x̃ [b,L]
            # If one row alone decides a direction, h is 1 up to rounding; without rounding, λ > 0 keeps it below.
            held = 1 / (1 - weight[:, None, : len(own)] * torch.stack(own, 2)).clamp_min(NEARLY)
            change = (x @ heads).view(len(labels), len(ridges), -1)
            yield labels, curvature, change.add_(away[:, None]).mul_(held), target


def unseen_rows(problem: Problem, rows: Seen, ridges: Sequence[float], changes: Sequence[Tensor]) -> list[Unseen]:
    """The errors at each λ of predictions that are off by ``changes`` [N,K] each, which are written over."""
    omega, found = problem.weights, []
    weights = None if omega is None else omega.at(rows.labels, 0, rows.target)[:, 0]
    for ridge, change in zip(ridges, changes, strict=True):
        loss = 0.5 * (rows.curvature * change.square()).sum(1) * (1 if weights is None else weights)
        values = rows.labels.is_floating_point()
        right = None if values else (change.add_(rows.target).argmax(1) == rows.labels).cpu()
        found.append(Unseen(ridge, loss.mean().item(), right, None if weights is None else weights.cpu()))
    return found


def correct(problem: Problem, heads: Tensor, operator: TangentOperator) -> Tensor:
    """How many of an operator's rows each W of ``heads`` [L,K,d+1] gives their own class [L], in one pass over them."""
    L, W = len(heads), heads.flatten(0, 1).T  # [d+1,L·K]
    count = torch.zeros(L, dtype=torch.int64, device=heads.device)
    for state, labels in operator.blocks():
        change = (extended(state.feature) @ W).view(len(labels), L, -1)
        base = problem.logits(state.logits, None).double()
        count += (change.add_(base[:, None]).argmax(2) == labels[:, None]).sum(0)
    return count


def decomposed(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [C,n], none below 0, and eigenvectors [C,n,n] in the memory of the ``matrices``."""
    values, vectors = torch.linalg.eigh(matrices, out=(matrices.new_empty(matrices.shape[:2]), matrices))
    return values.clamp_min_(0), vectors


def _solved(matrices: Tensor, right: Tensor) -> Tensor:
    """The inverse of each class's matrix of [C,m,m], times its row of ``right`` [K,m]."""
    columns = right.reshape(len(matrices), -1, right.shape[1]).mT
    found: Tensor = torch.linalg.solve(matrices, columns)
    return found.mT.reshape(right.shape)


def _turn(rows: Tensor, by: Tensor) -> Tensor:
    """rows [K,n], each times its class's matrix of ``by`` [C,n,n]."""
    if len(by) == 1:
        return rows @ by[0]
    return torch.bmm(rows[:, None], by)[:, 0]
