"""Adam on one flat vector (Kingma and Ba 2015), and the schedule that the paper gives its learning rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """The paper's schedule for Adam: the rate falls to a tenth after half of the epochs and again after five sixths."""

    rate: float = 1e-3
    epochs: int = 30
    batch: int = 32

    def rate_at(self, epoch: int) -> float:
        """The learning rate of epoch 0, 1, …: of 30, it falls at 15 and 25."""
        return self.rate * 0.1 ** ((2 * epoch >= self.epochs) + (6 * epoch >= 5 * self.epochs))


class Adam:
    """Adam's moments for the vector ``value`` [P], which every step changes in place."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self._first, self._second, self._buffer = (torch.zeros_like(value) for _ in range(3))
        self._steps = 0

    def step(self, gradient: Tensor, rate: float) -> None:
        """One step with torch's defaults, β = (0.9, 0.999) and ε = 10⁻⁸."""
        self._steps += 1
        self._first.lerp_(gradient, 0.1)
        self._second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        torch.sqrt(self._second, out=self._buffer)
        self._buffer.div_((1 - 0.999**self._steps) ** 0.5).add_(1e-8)
        self.value.addcdiv_(self._first, self._buffer, value=-rate / (1 - 0.9**self._steps))
