"""The head alone by its normal matrices: at every λ by an eigendecomposition, with leave-one-out errors; at one λ its
inverse Hessian, and what each row decides of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.solve.inverses.head_moments import (
    FewRows,
    extended,
    flat,
    groups,
    head_moments,
    in_full,
    matrices,
    own_normals,
    span,
)
from taftcache.tangent.operator import TangentOperator


def is_closed(problem: Problem) -> bool:
    """Whether there are rows, the head alone is trained on them, and the loss is quadratic."""
    return problem.operator.head_alone and problem.loss.quadratic and problem.operator.rows > 0


def has_path(problem: Problem) -> bool:
    """Whether ``HeadPath`` serves: the head alone, a quadratic loss, one D for all classes or room for each one's."""
    if not is_closed(problem):
        return False
    return len(list(groups(*matrices(problem)))) == 1


class HeadPath:
    """The head for every λ from one eigendecomposition, its leverages, and its exact leave-one-out errors.

    With Σ = 1/N Σ ω_n D_n x̃x̃ᵀ = VSVᵀ and R = 1/N Σ ω_n ∂ℓ_n x̃ᵀ at Δw = 0, the head is W(λ) = −R V (S + λ)⁻¹Vᵀ. Leaving
    row n out while λ keeps its meaning as the weight beside the sum over N rows,

        r_n^(−n) = r_n / (1 − h_n)        h_n = (ω_n D_n/N) x̃_nᵀ(Σ + λI)⁻¹x̃_n

    is the residual of its own prediction, without a solve. Where each class has its own D (α ≠ 1) it has its own Σ, V
    and h too: a decomposition a class, from one pass more. Costs one pass, one more for each look at the rows, and one
    where rows are few beside their width: then x̃, Σ and V are those of their own basis (``span``), of n numbers.

    Args:
        problem: over the head alone; its own λ has no part in it.

    Raises:
        SolveError: a problem that ``has_path`` denies one.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        if not has_path(problem):
            raise SolveError(
                "a head for every λ needs a square loss over the head alone, and memory where each class has its own D",
                got=f"{problem.loss}, {problem.operator.rows} rows, {problem.operator.classes} classes",
                do="a square loss with alpha = 1, or solve each λ on its own",
            )
        self._basis = span(problem)
        moments = head_moments(problem, self._basis)
        normal = moments.normal.mT[None].mT  # with strides [n²,1,n], for else eigh takes a copy
        if not moments.shared:
            normal = own_normals(problem, slice(0, problem.operator.classes), moments.normal, self._basis)
        values = normal.new_empty(normal.shape[:2])
        # [C,n] and, in the place of what is decomposed, [C,n,n]: one for all classes, or each
        self._values, self._vectors = torch.linalg.eigh(normal, out=(values, normal))
        self._values.clamp_min_(0)
        self._right = _turn(moments.right, self._vectors)

    def weights(self, ridge: float) -> Tensor:
        """W(λ) [K, d+1], the bias last."""
        return in_full(self._own_weights(ridge), self._basis)

    def _own_weights(self, ridge: float) -> Tensor:
        """W(λ) [K,n] for x̃ as they are written here."""
        return -_turn(self._right / (self._values + ridge), self._vectors.mT)

    def heads(self, ridges: Sequence[float]) -> Tensor:
        """W(λ) [L, K, d+1] for every λ."""
        return torch.stack([self.weights(ridge) for ridge in ridges])

    def delta(self, ridge: float) -> Tensor:
        """W(λ) as Δw [P]."""
        return flat(self._problem, self.weights(ridge))

    def correct(self, operator: TangentOperator, ridges: Sequence[float]) -> Tensor:
        """How many of an operator's rows each W(λ) gives their own class [L], in one pass over them."""
        heads = self.heads(ridges).flatten(0, 1).T  # [d+1,L·K]
        count = torch.zeros(len(ridges), dtype=torch.int64, device=heads.device)
        for state, labels in operator.blocks():
            change = (extended(state.feature) @ heads).view(len(labels), len(ridges), -1)
            base = self._problem.logits(state.logits, None).double()
            count += (change.add_(base[:, None]).argmax(2) == labels[:, None]).sum(0)
        return count

    def leave_one_out(self, ridges: Sequence[float]) -> list[Unseen]:
        """Mean loss, and which rows get their own class, of predictions made without the row itself; each row counts as
        it weighs in the problem.

        They are those of λN, which a λ is chosen for: of N − 1 rows alone its λ is N/(N − 1) times as large.
        """
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

    def _left_out(self, ridges: Sequence[float]) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Labels [b], D [b,K or 1], and what predictions made without the row are off by [b,L,K] from targets [b,K]."""
        heads = torch.cat([self._own_weights(ridge) for ridge in ridges]).T  # [n,L·K]
        for x, base, labels, curvature, leverage in self._blocks(ridges):
            # Where a row alone decides a direction, h is 1 up to rounding: λ > 0 keeps it below.
            held = 1 / (1 - leverage).clamp_min(1e-12)
            change = (x @ heads).view(len(labels), len(ridges), -1)
            away = self._problem.loss.gradient(base, labels) / curvature  # from the target
            yield labels, curvature, change.add_(away[:, None]).mul_(held), base - away

    def _blocks(self, ridges: Sequence[float]) -> Iterator[_Block]:
        """The rows with their leverages at every λ, in one pass."""
        inverses = torch.stack([1 / (self._values + ridge) for ridge in ridges], 1)  # [C,L,n]
        return _seen(
            self._problem,
            self._basis,
            lambda x: [(x @ V).square_() @ each.T for V, each in zip(self._vectors, inverses, strict=True)],
        )


def _seen(problem: Problem, basis: FewRows | None, inner: Callable[[Tensor], list[Tensor]]) -> Iterator[_Block]:
    """The rows with their leverages, in one pass: ``inner`` has x̃ᵀA⁻¹x̃ [b,L] of rows x̃ [b,n], a tensor for each class's
    A or one for that of all."""
    start = 0
    for state, labels in problem.operator.blocks():
        x = extended(state.feature, basis, start)
        own = torch.stack(inner(x), 2)  # [b,L,C]
        base = problem.logits(state.logits, None).double()
        curvature = problem.loss.hessian(base, labels, torch.ones_like(base))[:, : own.shape[2]]
        weight = curvature / problem.operator.rows
        if problem.weights is not None:
            weight = weight * problem.weights.at(labels, start, base)
        yield _Block(x, base, labels, curvature, weight[:, None] * own)
        start += len(labels)


class _Block(NamedTuple):
    """Some rows as a head sees them."""

    x: Tensor  # [b,n] x̃
    base: Tensor  # [b,K] the base point's logits
    labels: Tensor  # [b]
    curvature: Tensor  # [b,K] D, or [b,1] where it is the same for all classes
    leverage: Tensor  # [b,L,K] h at every λ, or [b,L,1]


def _turn(rows: Tensor, by: Tensor) -> Tensor:
    """rows [K,n], each times its class's matrix of ``by`` [C,n,n]."""
    if len(by) == 1:
        return rows @ by[0]
    return torch.bmm(rows[:, None], by)[:, 0]


class HeadNormals:
    """The head at any λ by factors of its normal matrices, of a problem that ``has_path``; two passes where each class
    has its own D, else one."""

    def __init__(self, problem: Problem) -> None:
        moments = head_moments(problem)
        self._problem, self._right, self._normal = problem, moments.right, moments.normal[None]
        if not moments.shared:
            self._normal = own_normals(problem, slice(0, problem.operator.classes), moments.normal)

    def at(self, ridge: float) -> HeadInverse:
        """The head at one λ.

        Raises:
            SolveError: λ is below what rounding takes.
        """
        matrix = self._normal.clone()
        matrix.diagonal(dim1=1, dim2=2).add_(ridge)
        inverse = torch.cholesky_inverse(cholesky(matrix, ridge, out=matrix))
        return HeadInverse(self._problem, inverse, -_turn(self._right, inverse))


@dataclass(frozen=True)
class HeadInverse:
    """The head at one λ.

    of: the problem, whose own λ has no part in it.
    inverses: A⁻¹ [K,d+1,d+1] of each class, A = 1/N Σ ω D x̃x̃ᵀ + λI; or [1,d+1,d+1], of all.
    weights: W(λ) [K,d+1].
    """

    of: Problem
    inverses: Tensor
    weights: Tensor

    def inverse(self, full: Tensor) -> Tensor:
        """A⁻¹ of each class's row of ``full`` [K,d+1]."""
        return _turn(full, self.inverses)

    def squares(self) -> Tensor:
        """‖A⁻¹x̃‖² of each row and class [N,K], or [N,1] where all classes have the same; in one pass."""
        rows = (extended(state.feature) for state, _ in self.of.operator.blocks())
        return torch.cat([torch.stack([(x @ A).square().sum(1) for A in self.inverses], 1) for x in rows])

    def left_out_logits(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [b,K] of every row by the head without that row, λN as it is, and labels [b]; in one pass."""
        blocks = _seen(self.of, None, lambda x: [((x @ A) * x).sum(1, keepdim=True) for A in self.inverses])
        for x, base, labels, curvature, leverage in blocks:
            away = self.of.loss.gradient(base, labels) / curvature  # from the target
            yield base - away + (x @ self.weights.T + away) / (1 - leverage[:, 0]).clamp_min(1e-12), labels


class Unseen(NamedTuple):
    """Errors at one λ on rows that did not take part: mean loss, which of them [N] get their own class (None for a
    regression), and what each weighs [N], where not all weigh one."""

    ridge: float
    loss: float
    right: Tensor | None
    weight: Tensor | None = None
