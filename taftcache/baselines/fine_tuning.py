"""NLFT: ordinary, non-linear fine-tuning of the same parameters on the same cached rows (the paper's NLFT-1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from taftcache.errors import SolveError
from taftcache.tangent.base import Base
from taftcache.tangent.operator import BLOCK_ROWS
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import RowSource
from taftcache.tangent.spec import Train


@dataclass(frozen=True)
class Schedule:
    """Adam as the paper trains: the rate falls to a tenth after half of the epochs and after five sixths of them."""

    rate: float = 1e-3
    epochs: int = 30
    batch: int = 32

    def rate_at(self, epoch: int) -> float:
        """The learning rate of epoch 0, 1, …: of 30, it falls at 15 and 25."""
        return self.rate * 0.1 ** ((2 * epoch >= self.epochs) + (6 * epoch >= 5 * self.epochs))


def fine_tune(
    base: Base,
    sources: Sequence[RowSource],
    schedule: Schedule,
    *,
    train: Train = "full",
    seed: int = 0,
    told: Callable[[int, float], None] | None = None,
) -> Tensor:
    """The change of the weights [P] after cross-entropy training of f_{w+Δw} itself, in float32.

    Args:
        sources: their rows are held in memory.
        seed: of the order of the rows.
        told: called after each epoch with its number from 1 and the mean loss.

    Raises:
        SolveError: no rows, or a loss that is not finite.
    """
    blocks = [block for source in sources for block in source.blocks(BLOCK_ROWS)]
    if not blocks:
        raise SolveError("fine-tuning needs at least one row", got="sources without rows")
    tokens = torch.from_numpy(np.concatenate([block.tokens for block in blocks]))
    labels = torch.from_numpy(np.concatenate([block.labels for block in blocks]).astype(np.int64))
    base = base.to(torch.float32)
    layout = base.trained(train)
    delta = torch.zeros(layout.size, requires_grad=True)
    adam = torch.optim.Adam([delta], lr=schedule.rate)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(schedule.epochs):
        for group in adam.param_groups:
            group["lr"] = schedule.rate_at(epoch)
        total = 0.0
        for few in torch.randperm(len(labels), generator=generator).split(schedule.batch):
            loss = cross_entropy(logits(base, layout, delta, tokens[few]), labels[few])
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item() * len(few)
        if not np.isfinite(total):
            raise SolveError("a loss is finite", got=f"epoch {epoch + 1}: {total}", do="lower the learning rate")
        if told is not None:
            told(epoch + 1, total / len(labels))
    return delta.detach().double()


def logits(base: Base, layout: Layout, delta: Tensor, rows: Tensor) -> Tensor:
    """f_{w+Δw}(x) [n,K]: the network itself with other weights, not its expansion.

    Raises:
        KeyError: Δw ranges over parts of a packed matrix, which have no weight of their own to move.
    """
    moved = {name: base.state[name].to(delta.dtype) + change for name, change in layout.views(delta).items()}
    tail = base.tail
    return tail.value(tail.bind({**base.state, **moved}), rows.to(delta.dtype)).logits


@torch.no_grad()
def predict(base: Base, layout: Layout, delta: Tensor, rows: RowSource) -> Tensor:
    """Logits [N,K] of all ``rows``, in float32."""
    base, delta = base.to(torch.float32), delta.float()
    return torch.cat(
        [logits(base, layout, delta, torch.from_numpy(np.array(b.tokens))) for b in rows.blocks(BLOCK_ROWS)]
    )
