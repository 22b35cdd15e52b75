"""A tangent model's features, and an objective with a quadratic penalty on their distance from a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import msgspec
import torch
from torch import Tensor

from taftcache.errors import RecipeError
from taftcache.objective.cotangent import random_signs
from taftcache.objective.loss import Loss
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import RowSource


def feature_operator(
    base: Base, sources: Sequence[RowSource], trained: Layout, mean: Tensor, dtype: torch.dtype
) -> TangentOperator:
    """The map from Δw to φ − mean, with φ the head's input: the same tail under a head that is the identity.

    Args:
        base: the expansion point of the classifier.
        sources: rows.
        trained: names that Δw ranges over in the classifier; the head is left out here.
        mean: [d], subtracted from every row's φ.
        dtype: of the products.

    Raises:
        RecipeError: only the head is trained, so no feature can move.
    """
    head = set(base.config.head_names)
    names = [name for name in trained if name not in head]
    if not names:
        raise RecipeError(
            "a prior on features needs trained parameters below the head, but tangent.train selects the head alone",
            do='set tangent.train = "full", or leave [prior] out',
        )
    weight, bias = base.config.head_names
    d = base.config.width
    state = {**base.state, weight: torch.eye(d), bias: -mean.to("cpu", torch.float64)}
    seen = replace(base, config=msgspec.structs.replace(base.config, classes=d), state=state)
    return TangentOperator(seen, sources, trained=trained.named(names), dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class PenalisedProblem(Problem):
    """F(Δw) + weight/(2N) Σ_n ‖φ(x_n; Δw) − mean − t_n‖² for fixed targets t, which is quadratic too.

    features: from ``feature_operator``, over the same rows; its parameters are the first of the operator's.
    target: [N,d]. weight: of the penalty.
    """

    features: TangentOperator
    target: Tensor
    weight: float

    def evaluate(self, delta: Tensor) -> tuple[float, Tensor]:
        """F(Δw) with the penalty, and its gradient [P], in two passes."""
        value, gradient = super().evaluate(delta)
        part = delta[: self.features.layout.size]
        squares = torch.zeros((), dtype=torch.float64)
        at = 0

        def respond(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            nonlocal at
            moved = logits if change is None else logits + change
            difference = moved - self.target[at : at + len(moved)].to(moved)
            at += len(moved)
            squares.add_(difference.double().square().sum().cpu())
            return difference.mul_(self.weight / self.operator.rows)

        penalty = self.features.accumulate(part.to(self.features.dtype), respond)
        gradient[: len(part)] += penalty.to(gradient)
        return value + 0.5 * self.weight * squares.item() / self.operator.rows, gradient

    def hessian(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """(H + weight/N J_φᵀJ_φ) v in two passes."""
        product = super().hessian(vector, out)
        scale = self.weight / self.operator.rows

        def respond(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            assert change is not None
            return change.mul(scale)

        part = vector[: self.features.layout.size].to(self.features.dtype)
        product[: len(part)] += self.features.accumulate(part, respond).to(product)
        return product

    def signed_gradient(self, delta: Tensor, seed: int) -> Tensor:
        """The gradient [P] with the terms of its sums under random signs, so that none cancel, in two passes."""
        (signed,) = super().gradients_under_signs(delta, [seed])
        part, at = delta[: self.features.layout.size], 0

        def respond(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            nonlocal at
            terms = logits.abs() + self.target[at : at + len(logits)].to(logits).abs()
            terms = terms if change is None else terms + change.abs()
            at += len(logits)
            return terms.mul_(random_signs(terms, seed + at)).mul_(self.weight / self.operator.rows)

        signed[: len(part)] += self.features.accumulate(part.to(self.features.dtype), respond).to(signed)
        return signed


class PenalisedPreconditioner:
    """Kronecker factors of the penalised Hessian: of loss and penalty for the tail, of the loss alone for the head.

    The loss has curvature in K directions of the feature, the penalty in all d: without the penalty's share, CG would
    need a pass for each direction that only the ridge holds. Both share one Jacobian, under the head [W; I]; its
    curvature is the loss's on the first K outputs and the penalty's weight on the others.

    Args:
        problem: the plain problem; its products' precision is used.
        weight: of the penalty.
    """

    def __init__(self, problem: Problem, weight: float) -> None:
        operator = problem.operator
        base, layout = operator.base, operator.layout
        head, bias = base.config.head_names
        d, K = base.config.width, operator.classes
        eye = torch.eye(d, dtype=operator.dtype)
        state = {
            **base.state,
            head: torch.cat([base.state[head], eye]),
            bias: torch.cat([base.state[bias], torch.zeros(d, dtype=operator.dtype)]),
        }
        both = replace(base, config=msgspec.structs.replace(base.config, classes=K + d), state=state)
        names = [name for name in layout if name not in (head, bias)]
        tail = TangentOperator(both, operator.sources, trained=layout.named(names), dtype=operator.dtype)
        curvature = cast(Loss, _LossAndPenalty(problem.loss, K, weight))
        self._tail = KroneckerPreconditioner(Problem(tail, curvature, problem.ridge))
        self._size = tail.layout.size
        self._head: KroneckerPreconditioner | None = None
        if self._size < layout.size:
            rest = layout.named([name for name in layout if name in (head, bias)])
            moved = TangentOperator(base, operator.sources, trained=rest, dtype=operator.dtype)
            self._head = KroneckerPreconditioner(Problem(moved, problem.loss, problem.ridge))

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v [P]."""
        parts = [self._tail.apply(vector[: self._size])]
        return torch.cat([*parts, self._head.apply(vector[self._size :])] if self._head is not None else parts)


@dataclass(frozen=True)
class _LossAndPenalty:
    """What a preconditioner asks of a loss: its curvature, here the loss's on K outputs, the penalty's on the rest."""

    loss: Loss
    classes: int
    weight: float
    quadratic: ClassVar[bool] = True

    def hessian(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        own = self.loss.hessian(z[:, : self.classes], y, v[:, : self.classes])
        return torch.cat([own, self.weight * v[:, self.classes :]], 1)

    def root(self, z: Tensor, y: Tensor, v: Tensor) -> Tensor:
        own = self.loss.root(z[:, : self.classes], y, v[:, : self.classes])
        return torch.cat([own, self.weight**0.5 * v[:, self.classes :]], 1)
