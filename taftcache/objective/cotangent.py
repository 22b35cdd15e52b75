"""What Jᵀ is applied to, block by block: the gradient of the loss, its Hessian times a change, and the like.

Each is an object that holds all it needs, so that it can answer for a part of the rows in another process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from taftcache.objective.loss import Loss
from taftcache.objective.weights import RowWeights


@dataclass(kw_only=True)
class Cotangent(ABC):
    """A ``tangent.operator.CotangentRule`` that knows which rows a block holds.

    Args:
        start: number of the first row of the next block.

    Attributes:
        notes: one for each block so far, from classes that take any.
    """

    start: int = 0
    notes: list[tuple[Tensor | float, Tensor | None, Tensor]] = field(default_factory=list)

    def __call__(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """[b,K] for the base logits [b,K], their tangent [b,K] or None, and the labels of the next block."""
        answer = self.answer(logits, change, labels)
        self.start += len(labels)
        return answer

    def part(self, start: int, rows: int) -> Self:
        """The same for only ``rows`` rows from ``start`` on, with notes of its own."""
        return replace(self, start=start, notes=[])

    def __getstate__(self) -> dict[str, Any]:
        return {name: _sent(value) for name, value in self.__dict__.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: _received(value) for name, value in state.items()})

    @abstractmethod
    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """The [b,K] that ``__call__`` returns for the block that begins at ``start``."""


@dataclass(kw_only=True)
class _OfLoss(Cotangent):
    """A cotangent made from a loss, the rows' weights, and the mean over ``rows``."""

    loss: Loss
    weights: RowWeights | None
    rows: int
    jvp_only: bool

    def _mean(self, terms: Tensor, labels: Tensor) -> Tensor:
        if self.weights is not None:
            terms = terms * self.weights.at(labels, self.start, terms)
        return terms.div_(self.rows)


@dataclass(kw_only=True)
class LossGradient(_OfLoss):
    """ω ∂ℓ/∂z / N; its notes are Σ ωℓ of each block, its logits if ``keep`` is set (else None), and its labels."""

    keep: bool

    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """At f_w + J Δw."""
        z = moved(logits, change, self.jvp_only)
        losses, gradient = self.loss.value(z.double(), labels), self.loss.gradient(z, labels)
        if self.weights is not None:
            losses = losses * self.weights.at(labels, self.start, losses)[:, 0]
        # A tensor, because making it a number would wait for the device at every block.
        self.notes.append((losses.sum(), z if self.keep else None, labels))
        return self._mean(gradient, labels)


@dataclass(kw_only=True)
class _AtPoint(_OfLoss):
    """With D at Δw = 0, or at given logits: ``point`` [n,K] holds those of the rows from ``first`` on."""

    point: Tensor | None
    first: int = 0

    def _logits(self, logits: Tensor) -> Tensor:
        if self.point is None:
            return moved(logits, None, self.jvp_only)
        return self.point[self.start - self.first :][: len(logits)].to(logits)

    def part(self, start: int, rows: int) -> Self:
        """With the point for those rows alone."""
        part = super().part(start, rows)
        if self.point is not None:
            part.point, part.first = self.point[start - self.first :][:rows].clone(), start
        return part


@dataclass(kw_only=True)
class LossHessian(_AtPoint):
    """ωD J v / N."""

    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """For the tangent of v."""
        assert change is not None
        return self._mean(self.loss.hessian(self._logits(logits), labels, change), labels)


@dataclass(kw_only=True)
class HessianUnderSigns(LossHessian):
    """The same under random signs."""

    seed: int

    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """For the tangent of v."""
        product = super().answer(logits, change, labels)
        return product.mul_(_block_signs(product, self.seed, self.start))


@dataclass(kw_only=True)
class GradientUnderSigns(_AtPoint):
    """The terms of the gradient under random signs, plus those of the Hessian's product with Δw under signs.

    For a loss that is not quadratic, the terms are those at the point. Errors in z enter through D. What may cancel
    within ∂ℓ (for cross-entropy, p − 1 may cancel completely) is bounded by ∂ℓ at equal logits.
    """

    seed: int

    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """For the tangent of Δw under signs."""
        assert change is not None
        z = self._logits(logits)
        signs = _block_signs(z, self.seed, self.start)
        terms = self.loss.gradient(z, labels)
        if self.point is not None:
            terms = terms.abs() + self.loss.gradient(torch.zeros_like(z), labels).abs()
            change = change + signs.roll(1, 0) * z
        return self._mean(signs * terms + self.loss.hessian(z, labels, change), labels)


@dataclass(kw_only=True)
class Given(Cotangent):
    """The given ``values`` [N,K] themselves."""

    values: Tensor
    first: int = 0

    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """The values of the block's rows."""
        return self.values[self.start - self.first :][: len(labels)].to(logits)

    def part(self, start: int, rows: int) -> Self:
        """With those rows' values alone."""
        part = super().part(start, rows)
        part.values, part.first = self.values[start - self.first :][:rows].clone(), start
        return part


def moved(base: Tensor, change: Tensor | None, jvp_only: bool) -> Tensor:
    """z [n,K] of rows with base logits f_w and tangent J Δw (None for Δw = 0); without f_w if ``jvp_only``."""
    if jvp_only:
        return torch.zeros_like(base) if change is None else change
    return base if change is None else base + change


def _block_signs(like: Tensor, seed: int, start: int) -> Tensor:
    """±1 in the shape of ``like``: a block's signs depend on the seed, below 16, and on where the block begins."""
    return random_signs(like, (start << 4) + seed)  # the generator takes only the last 32 bits of a seed


def random_signs(like: Tensor, seed: int | torch.Generator) -> Tensor:
    """±1 in the shape of ``like``, determined by the seed or by a generator's state."""
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    return (torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8) * 2 - 1).to(like)


def unit(like: Tensor, k: int) -> Tensor:
    """e_k for each row [n,K]."""
    found = torch.zeros_like(like)
    found[:, k] = 1
    return found


def _sent(value: Any) -> Any:
    """Tensors as arrays, because torch itself sends them as pickles, which nobody should load."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    if isinstance(value, RowWeights):
        return RowWeights, _sent(value.by_class), _sent(value.by_sample)
    return value


def _received(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    if isinstance(value, tuple) and value and value[0] is RowWeights:
        return RowWeights(*map(_received, value[1:]))
    return value
