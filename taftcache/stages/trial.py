"""One trial of a comparison: the rows of a store split anew, and every shard's model by each method, from one cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from taftcache.cache import FeatureStore, Shard, assign, held_out
from taftcache.stages.training import loss_of

if TYPE_CHECKING:
    from torch import Tensor

    from taftcache.recipe import Recipe
    from taftcache.tangent.base import Base
    from taftcache.tangent.rows import RowSource

Method = Literal["TAFT", "NLFT"]


@dataclass(frozen=True)
class Setting:
    """What is tuned, the same number of choices for every method: λ or the learning rate, and the paper's PT = F."""

    method: Method
    strength: float  # ridge of TAFT, learning rate of NLFT
    reset_block: bool

    def describe(self) -> dict[str, Any]:
        """For a report."""
        name = "ridge" if self.method == "TAFT" else "rate"
        return {name: self.strength, "reset_block": self.reset_block}


class Chosen:
    """Some rows of a store, by id, in memory as they are stored."""

    def __init__(self, store: FeatureStore, ids: Sequence[str]) -> None:
        places = [store.locate(i) for i in ids]
        self.tokens = np.concatenate([shard.tokens(np.array([row])) for shard, row in places])
        self.labels = np.array([shard.labels[row] for shard, row in places], np.int32)
        self.rows = len(ids)

    def blocks(self, size: int, start: int = 0) -> Iterator[Any]:
        """Blocks of ``size`` rows, views of the arrays."""
        from taftcache.tangent.rows import ArrayRows

        return ArrayRows(self.tokens, self.labels).blocks(size, start)


@dataclass(frozen=True)
class Fitted:
    """Every shard's model: Δw [m,P], logits on the test rows [m,n,K], seconds and passes by shard."""

    deltas: Tensor
    logits: Tensor
    seconds: list[float]
    passes: list[int]


class Trial:
    """``shards`` uniform shards of the training rows for one ``seed``, which the base point's head has too.

    Args:
        validate: hold a fifth of the training rows out as test rows, to choose settings on.
        without: ids that are left out.
    """

    def __init__(
        self,
        store: FeatureStore,
        recipe: Recipe,
        shards: int,
        seed: int,
        *,
        validate: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        self.store, self.recipe, self.seed = store, recipe, seed
        ids = store.sample_ids()
        apart = held_out(ids, 0.2, 10**6 + seed) if validate else set()
        gone = {*apart, *without}
        parts = assign([i for i in ids if i not in apart], "balanced", shards, seed).values()
        self.parts = [[i for i in part if i not in gone] for part in parts]
        self._apart = sorted(apart)

    @cached_property
    def test(self) -> RowSource:
        """The rows that accuracy is measured on."""
        if self._apart:
            return Chosen(self.store, self._apart)
        assert self.store.held_out is not None
        return self.store.held_out

    @cached_property
    def labels(self) -> Tensor:
        """Their classes [n]."""
        import torch

        rows: Shard | Chosen = self.test  # type: ignore[assignment]
        return torch.from_numpy(np.array(rows.labels, np.int64))

    def base(self, setting: Setting) -> Base:
        """The base point of a setting and the trial's seed."""
        from taftcache.component import read_base

        spec = msgspec.structs.replace(self.recipe.tangent, seed=self.seed, reset_block=setting.reset_block)
        return read_base(self.store, spec)

    def fit(self, setting: Setting, parts: Sequence[Sequence[str]] | None = None) -> Fitted:
        """A model for each shard (or for ``parts``)."""
        import torch

        fits = [self._fit(setting, Chosen(self.store, part)) for part in (self.parts if parts is None else parts)]
        deltas, logits, seconds, passes = zip(*fits, strict=True)
        return Fitted(torch.stack(deltas), torch.stack(logits), list(seconds), list(passes))

    def _fit(self, setting: Setting, rows: Chosen) -> tuple[Tensor, Tensor, float, int]:
        import time

        from taftcache.baselines.fine_tuning import Schedule, fine_tune, predict
        from taftcache.solve.minimise import minimise

        recipe, base, train = self.recipe, self.base(setting), self.recipe.tangent.train
        begin = time.perf_counter()
        if setting.method == "NLFT":
            spec = recipe.compare
            delta = fine_tune(
                base, [rows], Schedule(setting.strength, spec.epochs, spec.batch), train=train, seed=self.seed
            )
            seconds = time.perf_counter() - begin
            return delta, predict(base, base.trained(train), delta, self.test), seconds, spec.epochs
        solver = recipe.solver
        solution = minimise(
            base, [rows], loss_of(recipe), setting.strength,
            train=train, tolerance=solver.tolerance, max_passes=solver.max_passes, memory=recipe.memory_bytes,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        return solution.value, self.tangent_logits(base, solution.value), seconds, solution.stats["passes"]

    def tangent_logits(self, base: Base, delta: Tensor) -> Tensor:
        """f_lin(x; Δw) [n,K] of the test rows, in float32."""
        import torch

        from taftcache.tangent.operator import TangentOperator

        operator = TangentOperator(base, [self.test], trained=base.trained(self.recipe.tangent.train))
        direction = operator.direction(delta)
        return torch.cat([state.logits + operator.tangent(state, direction) for state, _ in operator.blocks()])

    def accuracy(self, labels: Tensor) -> float:
        """Top-1 in percent."""
        return 100 * (labels == self.labels).double().mean().item()

    def taft(self, fitted: Fitted, kept: Sequence[int]) -> float:
        """The composed tangent model of some shards: by linearity, the mean of their logits."""
        return self.accuracy(fitted.logits[list(kept)].mean(0).argmax(1))

    def soup(self, setting: Setting, fitted: Fitted, kept: Sequence[int]) -> float:
        """The soup of some shards' fine-tuned networks."""
        from taftcache.baselines.fine_tuning import predict
        from taftcache.baselines.soup import soup

        base = self.base(setting)
        layout = base.trained(self.recipe.tangent.train)
        return self.accuracy(predict(base, layout, soup(list(fitted.deltas[list(kept)])), self.test).argmax(1))

    def sisa(self, fitted: Fitted, kept: Sequence[int], rule: Literal["vote", "mean"] = "vote") -> float:
        """The ensemble of some shards' fine-tuned networks."""
        from taftcache.baselines.sisa import sisa

        return self.accuracy(sisa(fitted.logits[list(kept)], rule))
