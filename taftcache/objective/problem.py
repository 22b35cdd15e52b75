"""What is minimised: mean loss over the cached rows plus a ridge on the change of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from taftcache.objective.loss import Loss
from taftcache.objective.weights import RowWeights
from taftcache.tangent.operator import Respond, TangentOperator


@dataclass(frozen=True)
class Problem:
    """F(Δw) = 1/N Σ_n ω_n ℓ(f_w(x_n) + J(x_n) Δw, y_n) + λ/2 ‖Δw‖².

    The loss is a mean, so λ means the same when rows are removed. With a quadratic ℓ, F is a
    quadratic with Hessian H = 1/N JᵀDJ + λI and, for λ > 0, exactly one minimiser.

    Args:
        operator: J over the rows.
        loss: ℓ.
        ridge: λ.
        weights: ω; ones by default.
        jvp_only: leave f_w(x_n) out, as differentially private training does.
        point: logits, block by block, at which a loss that is not quadratic bends (``at``).
    """

    operator: TangentOperator
    loss: Loss
    ridge: float
    weights: RowWeights | None = None
    jvp_only: bool = False
    point: tuple[Tensor, ...] | None = None

    def evaluate(self, delta: Tensor, seen: Callable[[Tensor, Tensor], object] | None = None) -> tuple[float, Tensor]:
        """F(Δw), and ∇F(Δw) [P] in the operator's precision, in one pass.

        Args:
            delta: Δw [P].
            seen: given the logits [b,K] and labels of every block in turn.
        """
        operator = self.operator
        delta = delta.to(operator.device, operator.dtype)
        value = torch.zeros((), dtype=torch.float64)

        def respond(logits: Tensor, change: Tensor, labels: Tensor, start: int) -> Tensor:
            z = self.logits(logits, change)
            if seen is not None:
                seen(z, labels)
            losses, gradient = self.loss.value(z.double(), labels), self.loss.gradient(z, labels)
            if self.weights is not None:
                losses = losses * self.weights.at(labels, start, losses)[:, 0]
                gradient = gradient * self.weights.at(labels, start, z)
            value.add_(losses.sum().cpu())
            return gradient.div_(operator.rows)

        gradient = operator.accumulate(delta, _counted(respond), self.ridge * delta)
        return value.item() / operator.rows + 0.5 * self.ridge * (delta @ delta).item(), gradient

    def hessian(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """(1/N JᵀDJ + λI) v in the operator's precision, in one pass; written to ``out`` where one is given.

        For large P, fresh memory for the result costs as much as the product. D is that of Δw = 0 unless
        ``at`` moved it.
        """
        operator = self.operator
        points = iter(self.point or ())

        def respond(logits: Tensor, change: Tensor, labels: Tensor, start: int) -> Tensor:
            z = next(points, None)
            bent = self.loss.bend(self.logits(logits, None) if z is None else z, labels, change)
            if self.weights is not None:
                bent = bent * self.weights.at(labels, start, bent)
            return bent.div_(operator.rows)

        vector = vector.to(operator.device, operator.dtype)
        return operator.accumulate(vector, _counted(respond), torch.mul(vector, self.ridge, out=out))

    def scattered(self, delta: Tensor, seed: int) -> Tensor:
        """∇F(Δw) of a quadratic F with the terms of its sums under random signs [P], in one pass.

        Nothing cancels in it but by chance: times the unit of rounding it has the size of what rounding puts wrong
        in ∇F(Δw), where terms do cancel.
        """
        operator = self.operator
        generator = torch.Generator().manual_seed(seed)

        def signs(like: Tensor) -> Tensor:
            return (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1).to(like)

        def respond(logits: Tensor, change: Tensor, labels: Tensor, start: int) -> Tensor:
            z = self.logits(logits, None)
            total = signs(z) * self.loss.gradient(z, labels) + self.loss.bend(z, labels, change)
            if self.weights is not None:
                total = total * self.weights.at(labels, start, total)
            return total.div_(operator.rows)

        delta = delta.to(operator.device, operator.dtype)
        delta = delta * signs(delta)
        return operator.accumulate(delta, _counted(respond), self.ridge * delta)

    def at(self, delta: Tensor) -> tuple[float, Tensor, Problem]:
        """F, ∇F and the problem whose Hessian is that of Δw, in one pass; holds N·K logits."""
        kept: list[Tensor] = []
        value, gradient = self.evaluate(delta, lambda z, labels: kept.append(z))
        return value, gradient, replace(self, point=tuple(kept))

    def logits(self, base: Tensor, change: Tensor | None) -> Tensor:
        """z [n,K] of rows with base logits f_w and tangent J Δw (None for Δw = 0)."""
        if self.jvp_only:
            return torch.zeros_like(base) if change is None else change
        return base if change is None else base + change

    def root(self, base: Tensor, labels: Tensor, start: int, v: Tensor) -> Tensor:
        """√ω R v [n,K], so that E over signs v of (Jᵀ·)(Jᵀ·)ᵀ is JᵀDJ of these rows.

        Args:
            base, labels: of a block. start: its first row. v: [n,K].
        """
        z = self.logits(base, None) if self.point is None else self._point(start, len(base))
        rooted = self.loss.root(z, labels, v)
        return rooted if self.weights is None else rooted * self.weights.at(labels, start, v).sqrt()

    def diagonal(self, labels: Tensor, like: Tensor) -> Tensor:
        """ωD/N [N,K] of a loss whose D is diagonal, for the labels of all rows; in the precision of ``like``."""
        ones = like.new_ones(len(labels), self.operator.classes)
        diagonal = self.loss.bend(ones, labels, ones) / self.operator.rows
        return diagonal if self.weights is None else diagonal * self.weights.at(labels, 0, ones)

    def _point(self, start: int, count: int) -> Tensor:
        assert self.point is not None
        at = 0
        for z in self.point:
            if at == start:
                return z[:count]
            at += len(z)
        raise ValueError(f"no block begins at row {start}")


def _counted(respond: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> Respond:
    """A response that is also told the first row of its block."""
    start = 0

    def inner(logits: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
        nonlocal start
        assert change is not None
        start += len(labels)
        return respond(logits, change, labels, start - len(labels))

    return inner
