"""TAFT as the paper trains it: Adam on Δw over shuffled batches, any number of settings in one pass over the rows.

Settings that share a base point read the same batches in the same order, and what J needs of a row does not depend on
Δw: it is computed once for all of them, and once for all epochs where it fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taftcache.baselines.adam import Adam, Schedule
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
    source: RowSource,
    runs: Sequence[Run],
    schedule: Schedule,
    *,
    train: Train = "full",
    seed: int = 0,
    memory: int = 2 << 30,
    told: Callable[[int], None] | None = None,
) -> list[Tensor]:
    """Δw [P] of each run after the schedule, in float64; computed in float32.

    Args:
        source: its rows are held in memory.
        schedule: epochs and batch; the rate is each run's.
        seed: of the order of the rows, which all runs share.
        memory: bytes that the base point's state of all rows may take; it is made anew for every batch beyond that.
        told: called after each epoch with its number from 1.

    Raises:
        SolveError: no rows, or a Δw that is not finite.
    """
    blocks = list(source.blocks(4096))
    if not blocks:
        raise SolveError("training needs at least one row", got="a source without rows")
    tokens = np.concatenate([np.asarray(block.tokens) for block in blocks])
    labels = torch.from_numpy(np.concatenate([np.asarray(block.labels) for block in blocks]).astype(np.int64))
    operator = TangentOperator(base, [source], trained=base.trained(train))
    batches = _Batches(operator, tokens, memory)
    steps = [Adam(torch.zeros(operator.layout.size)) for _ in runs]
    gradient = torch.zeros(operator.layout.size)
    out = operator.tail.bind(operator.layout.views(gradient))
    directions = [operator.direction(adam.value) for adam in steps]  # views: they move with the vectors
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(schedule.epochs):
        for few in torch.randperm(len(labels), generator=generator).split(schedule.batch):
            state, y = batches.state(few), labels[few]
            for run, adam, direction in zip(runs, steps, directions, strict=True):
                z = state.logits + operator.tail.tangent(operator.weights, state, direction)
                torch.mul(adam.value, run.ridge, out=gradient)
                operator.tail.adjoint(operator.weights, state, run.loss.gradient(z, y) / len(few), out)
                adam.step(gradient, Schedule(run.rate, schedule.epochs).rate_at(epoch))
                if run.radius is not None:
                    norm = adam.value.norm().item()
                    if norm > run.radius:
                        adam.value.mul_(run.radius / norm)
        if told is not None:
            told(epoch + 1)
    for run, adam in zip(runs, steps, strict=True):
        if not torch.isfinite(adam.value).all():
            raise SolveError("Δw is finite", got=f"rate {run.rate:g}", do="lower the learning rate")
    return [adam.value.double() for adam in steps]


class _Batches:
    """The base point's state on any rows: picked from that of all rows where it can be kept."""

    def __init__(self, operator: TangentOperator, tokens: np.ndarray, memory: int) -> None:
        self._operator, self._tokens, tail = operator, tokens, operator.tail
        one = operator.prepare(tokens[:1])
        size = sum(tensor.numel() * tensor.element_size() for tensor in tail.tensors(one))
        fits = size * len(tokens) <= memory and tail.select(one, torch.arange(1)) is not None
        self._whole = operator.prepare(tokens) if fits else None

    def state(self, rows: Tensor) -> Any:
        """Of the rows at these places."""
        if self._whole is None:
            return self._operator.prepare(self._tokens[rows.numpy()])
        return self._operator.tail.select(self._whole, rows)
