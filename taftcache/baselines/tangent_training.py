"""TAFT as the paper trains it: Adam on Δw over shuffled batches, any number of settings in one pass over the rows.

Settings that share a base point read the same batches in the same order, and what J needs of a row does not depend on
Δw: it is computed once for all of them, and once for all epochs where it fits in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taftcache.baselines.schedule import Schedule
from taftcache.errors import SolveError
from taftcache.objective.loss import Loss
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSource
from taftcache.tangent.spec import Train


@dataclass(frozen=True)
class Run:
    """One setting: ℓ, the learning rate, λ (0 for no decay), and R of the ball that every step ends in."""

    loss: Loss
    rate: float
    ridge: float = 0.0
    radius: float | None = None


def train_tangents(
    base: Base,
    sources: Sequence[RowSource],
    runs: Sequence[Run],
    schedule: Schedule,
    *,
    train: Train = "full",
    seed: int = 0,
    memory: int = 2 << 30,
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """Δw [P] of each run after the schedule, in float64; computed in float32.

    Args:
        base: the expansion point.
        sources: their rows are held in memory.
        runs: one for each setting.
        schedule: epochs and batch; each run has its own rate.
        train: which parameters move.
        seed: for the order of the rows, which all runs share.
        memory: bytes that the base point's state of all rows may take; beyond that it is made anew for every batch.
        device: where products run.

    Raises:
        SolveError: no rows, or a Δw that is not finite.
    """
    blocks = [block for source in sources for block in source.blocks(4096)]
    if not blocks:
        raise SolveError("no rows to train on: training needs at least one row", got="sources without rows")
    tokens = np.concatenate([np.asarray(block.tokens) for block in blocks])
    labels = torch.from_numpy(np.concatenate([np.asarray(block.labels) for block in blocks]))
    labels = (labels if labels.is_floating_point() else labels.long()).to(device)
    operator = TangentOperator(base, sources, trained=base.trained(train), device=device)
    batches = _Batches(operator, tokens, memory)
    descents = [_Descent(run, replace(schedule, rate=run.rate), operator) for run in runs]
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(schedule.epochs):
        for few in torch.split(torch.randperm(len(labels), generator=generator), schedule.batch):
            state = batches.state(few)
            for descent in descents:
                descent.step(state, labels[few.to(device)], epoch)
    for descent in descents:
        if not torch.isfinite(descent.value).all():
            raise SolveError(
                "Δw is not finite",
                got=f"rate {descent.run.rate:g}, λ = {descent.run.ridge:g}",
                do="lower the learning rate, or the decay (compare.decay) where it is near or above one over the rate",
            )
    return [descent.value.double() for descent in descents]


class _Descent:
    """One run: Δw [P] with Adam's moments, and the buffer that each batch's gradient is summed in."""

    def __init__(self, run: Run, schedule: Schedule, operator: TangentOperator) -> None:
        self.run, self._schedule, self._operator = run, schedule, operator
        self.value = torch.zeros(operator.layout.size, device=operator.device)
        self._gradient = torch.zeros_like(self.value)
        self._adam = schedule.adam(self.value, self._gradient)
        self._out = operator.tail.bind(operator.layout.views(self._gradient))
        self._direction = operator.direction(self.value)  # views: they move with the vector

    def step(self, state: Any, labels: Tensor, epoch: int) -> None:
        """One of Adam's steps on rows [b], prepared as ``state``."""
        run, operator = self.run, self._operator
        z = state.logits + operator.tangent(state, self._direction)
        torch.mul(self.value, run.ridge, out=self._gradient)
        operator.adjoint(state, run.loss.gradient(z, labels) / len(labels), self._out)
        self._adam.param_groups[0]["lr"] = self._schedule.rate_at(epoch)
        self._adam.step()
        if run.radius is not None:
            norm = self.value.norm().item()
            if norm > run.radius:
                self.value.mul_(run.radius / norm)


class _Batches:
    """The base point's state on any rows: picked from that of all rows if this can be kept."""

    def __init__(self, operator: TangentOperator, tokens: np.ndarray, memory: int) -> None:
        self._operator, self._tokens, tail = operator, tokens, operator.tail
        one = operator.prepare(tokens[:1])
        size = sum(tensor.numel() * tensor.element_size() for tensor in tail.tensors(one))
        fits = size * len(tokens) <= memory and tail.select(one, torch.arange(1, device=operator.device)) is not None
        self._whole = operator.prepare(tokens) if fits else None

    def state(self, rows: Tensor) -> Any:
        """The state of the rows at these places."""
        if self._whole is None:
            return self._operator.prepare(self._tokens[rows.numpy()])
        return self._operator.tail.select(self._whole, rows.to(self._operator.device))
