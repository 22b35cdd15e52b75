"""The regularisation path of the head alone: its norm and accuracy at every λ, from one eigendecomposition."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import NamedTuple

import torch

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import SolveError
from taftcache.model.meta import meta_of
from taftcache.names import EXACT, HEAD
from taftcache.objective.problem import Problem
from taftcache.solve.head.choice import path_of
from taftcache.solve.head.path import correct
from taftcache.stages.look.row_table import Reader, RowTable
from taftcache.stages.look.scoring import Scorer
from taftcache.tangent.rows import ArrayBlock

# λ from 1e-8 to 1e2, four a decade.
GRID = tuple(10 ** (k / 4) for k in range(-32, 9))


class PathPoint(NamedTuple):
    """One λ: ‖Δw‖ of the head that minimises F over all shards, and its accuracy on training and held-out rows."""

    ridge: float
    norm: float
    train: float
    held_out: float | None


def head_path(table: RowTable, scorer: Scorer, stop: Event) -> list[PathPoint]:
    """The head at every λ of ``GRID``, in two passes over the features; empty if ``stop`` was set meanwhile.

    Raises:
        SolveError: class weights, a ball or jvp_only; a loss that is not a square one, or too many classes for memory
        with α ≠ 1.
    """
    if not scorer.plain:
        raise SolveError(
            "the head has no path from one decomposition with class weights, a ball or jvp_only", got=f"{scorer.loss}"
        )
    train, held = (
        scorer.head_over([_ReadOnce(table.reader, shard, stop) for shard in table.shards if shard.role == role])
        for role in ("train", "held-out")
    )
    try:
        problem = Problem(train, scorer.loss, 1.0)
        path = path_of(problem)
        heads = torch.stack([path.weights(ridge) for ridge in GRID])
        norms = heads.flatten(1).norm(dim=1).tolist()
        right, right_held = (correct(problem, heads, each).tolist() for each in (train, held))
    except _Stopped:
        return []
    return [
        PathPoint(ridge=ridge, norm=norm, train=some / train.rows, held_out=more / held.rows if held.rows else None)
        for ridge, norm, some, more in zip(GRID, norms, right, right_held, strict=True)
    ]


def heads_ridges(store: FeatureStore, scorer: Scorer) -> dict[str, float]:
    """λ of the store's head of all rows, by its name: a model of all rows may be one; without it, of the components
    that are heads. Empty where no head was solved."""
    heads = [name for name in scorer.models if scorer.layouts[name] == scorer.base.head_layout]
    proven = {name: meta_of(store.objects()[name].meta).certificate for name in heads}
    ridges = {name: proof.ridge for name, proof in proven.items() if proof is not None}
    whole = [name for name in (HEAD, EXACT) if name in ridges][:1]
    return {name: ridges[name] for name in whole or ridges}


class _Stopped(Exception):
    """``stop`` was set."""


class _ReadOnce:
    """A shard's rows, whose memory is released as reading goes on; raises _Stopped once ``stop`` is set."""

    def __init__(self, reader: Reader, shard: Shard, stop: Event) -> None:
        self._reader, self._shard, self._stop = reader, shard, stop

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._shard.rows

    def blocks(self, size: int, start: int = 0) -> Iterator[ArrayBlock]:
        """Blocks of ``size`` rows."""
        for k in range(start, self.rows, size):
            if self._stop.is_set():
                raise _Stopped
            here = slice(k, min(k + size, self.rows))
            yield ArrayBlock(self._reader.tokens(self._shard.name, here), self._shard.labels[here])
