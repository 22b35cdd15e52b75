"""What Jᵀ is applied to, block by block: the gradient of the loss, its Hessian times a change, and the like.

Each is a value that holds all it needs, so that it can answer for a part of the rows in another process.
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
        notes: one for each block so far, of those that note anything.
    """

    start: int = 0
    notes: list[tuple[Tensor | float, Tensor | None, Tensor]] = field(default_factory=list)

    def __call__(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """[b,K] for the base logits [b,K], their tangent [b,K] or None, and the labels of the next block."""
        answer = self.answer(logits, change, labels)
        self.start += len(labels)
        return answer

    def part(self, start: int, rows: int) -> Self:
        """The same for ``rows`` rows from ``start`` on alone, with notes of its own."""
        return replace(self, start=start, notes=[])

    def __getstate__(self) -> dict[str, Any]:
        return {name: _sent(value) for name, value in self.__dict__.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: _received(value) for name, value in state.items()})

    @abstractmethod
    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """What is returned for the block that begins at ``start``."""


@dataclass(kw_only=True)
class _OfLoss(Cotangent):
    """What is made of a loss, its rows' weights, and the mean over ``rows``."""

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
    """ω ∂ℓ/∂z / N; notes Σ ωℓ of each block, its labels, and with ``keep`` its logits."""

    keep: bool

    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """At f_w + J Δw."""
        z = moved(logits, change, self.jvp_only)
        losses, gradient = self.loss.value(z.double(), labels), self.loss.gradient(z, labels)
        if self.weights is not None:
            losses = losses * self.weights.at(labels, self.start, losses)[:, 0]
        # A number would wait for the device at every block.
        self.notes.append((losses.sum(), z if self.keep else None, labels))
        return self._mean(gradient, labels)


@dataclass(kw_only=True)
class _AtPoint(_OfLoss):
    """With D at Δw = 0, or at logits: ``point`` [n,K] has those of the rows from ``first`` on."""

    point: Tensor | None
    first: int = 0

    def _logits(self, logits: Tensor) -> Tensor:
        if self.point is None:
            return moved(logits, None, self.jvp_only)
        return self.point[self.start - self.first :][: len(logits)].to(logits)

    def part(self, start: int, rows: int) -> Self:
        """With the point of those rows alone."""
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
    """The terms of the gradient under random signs, and of the Hessian's product that moves it.

    Of a loss that is not quadratic they are those at the point. Errors in z enter through D; what may cancel within ∂ℓ
    is bounded by ∂ℓ at equal logits (of cross-entropy, p − 1 may cancel completely).
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
    """``values`` [N,K] themselves."""

    values: Tensor
    first: int = 0

    def answer(self, logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        """The rows of the block."""
        return self.values[self.start - self.first :][: len(labels)].to(logits)

    def part(self, start: int, rows: int) -> Self:
        """With those rows' values alone."""
        part = super().part(start, rows)
        part.values, part.first = self.values[start - self.first :][:rows].clone(), start
        return part


def moved(base: Tensor, change: Tensor | None, jvp_only: bool) -> Tensor:
    """z [n,K] of rows with base logits f_w and tangent J Δw (None for Δw = 0); without f_w where ``jvp_only``."""
    if jvp_only:
        return torch.zeros_like(base) if change is None else change
    return base if change is None else base + change


def _block_signs(like: Tensor, seed: int, start: int) -> Tensor:
    """±1 in the shape of ``like``: those of a block depend on the seed, below 16, and on where it begins."""
    return random_signs(like, (start << 4) + seed)  # of a seed the generator takes the last 32 bits alone


def random_signs(like: Tensor, seed: int | torch.Generator) -> Tensor:
    """±1 in the shape of ``like``, a function of the seed or of where a generator stands."""
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    return (torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8) * 2 - 1).to(like)


def unit(like: Tensor, k: int) -> Tensor:
    """e_k for each row [n,K]."""
    found = torch.zeros_like(like)
    found[:, k] = 1
    return found


def _sent(value: Any) -> Any:
    """Tensors as arrays: torch's own way through a wire is a file of the kind that nobody should load."""
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
