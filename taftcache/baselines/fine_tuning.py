"""NLFT: ordinary, non-linear fine-tuning of the same parameters on the same cached rows (the paper's NLFT-1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from taftcache.baselines.schedule import Schedule
from taftcache.errors import SolveError
from taftcache.tangent.base import Base
from taftcache.tangent.operator import BLOCK_ROWS
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import RowSource
from taftcache.tangent.spec import Train


def fine_tune(
    base: Base,
    sources: Sequence[RowSource],
    schedule: Schedule,
    *,
    train: Train = "full",
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The change of the weights [P] after cross-entropy training of f_{w+Δw} itself, in float32.

    Args:
        sources: their rows are held in memory.
        seed: for the order of the rows.
        device: where the network runs; the rows stay in host memory.

    Raises:
        SolveError: no rows, or a loss that is not finite.
    """
    blocks = [block for source in sources for block in source.blocks(BLOCK_ROWS)]
    if not blocks:
        raise SolveError("no rows to train on: fine-tuning needs at least one row", got="sources without rows")
    tokens = torch.from_numpy(np.concatenate([block.tokens for block in blocks]))
    labels = torch.from_numpy(np.concatenate([block.labels for block in blocks]).astype(np.int64))
    base = base.to(torch.float32, device)
    layout, tail = base.trained(train), base.tail
    start = layout.flatten(base.state, torch.float32)
    value, gradient = start.clone(), torch.zeros_like(start)
    adam = schedule.adam(value, gradient)
    weights = tail.bind({**base.state, **layout.views(value)})  # views: the network moves with the vector
    out = tail.bind(layout.views(gradient))
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(schedule.epochs):
        total, adam.param_groups[0]["lr"] = 0.0, schedule.rate_at(epoch)
        for few in torch.split(torch.randperm(len(labels), generator=generator), schedule.batch):
            own = labels[few].to(device)
            # The network's gradient at w + Δw is Jᵀ there: the closed form costs a fraction of autograd's graph.
            state = tail.value(weights, tokens[few].to(device).float())
            chances = torch.log_softmax(state.logits, 1)
            total -= chances.gather(1, own[:, None]).sum().item()
            cotangent = chances.exp_().scatter_add_(1, own[:, None], torch.full((len(few), 1), -1.0, device=device))
            gradient.zero_()
            tail.adjoint(weights, state, cotangent.div_(len(few)), out)
            adam.step()
        if not np.isfinite(total):
            raise SolveError("the loss is not finite", got=f"epoch {epoch + 1}: {total}", do="lower the learning rate")
    return (value - start).double()


def logits(base: Base, layout: Layout, delta: Tensor, rows: Tensor) -> Tensor:
    """f_{w+Δw}(x) [n,K]: the network itself with other weights (``Base.moved``), not its expansion."""
    tail = base.tail
    found: Tensor = tail.value(tail.bind(base.moved(layout, delta)), rows.to(delta.dtype)).logits
    return found


@torch.no_grad()
def predict(base: Base, layout: Layout, delta: Tensor, rows: RowSource, device: torch.device | str = "cpu") -> Tensor:
    """Logits [N,K] of all ``rows``, in float32 on ``device``."""
    base, delta = base.to(torch.float32, device), delta.to(device, torch.float32)
    blocks = (torch.from_numpy(np.array(block.tokens)).to(device) for block in rows.blocks(BLOCK_ROWS))
    return torch.cat([logits(base, layout, delta, tokens) for tokens in blocks])
