"""Estimate how long it takes to solve again: passes over a few rows are timed, and the number of passes is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import TaftcacheError
from taftcache.model.meta import ComponentMeta, meta_of
from taftcache.names import HEAD, is_component, shard_of
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.solve.head.choice import largest_class
from taftcache.solve.head.size import HeadSize
from taftcache.solve.inverses.dual import writing_cost
from taftcache.solve.methods.conjugate import BY_PARAMETERS
from taftcache.solve.methods.head import CLOSED_FORM
from taftcache.solve.pair import pose
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.tangent.rows import RowSubset
from taftcache.tangent.spec import Train

SIDE = 512  # of the square matrices whose product is timed
TIMED, WARMING = 256, 8  # rows of the passes that are timed, and of those before them, which load what is loaded once


class _RowCost(NamedTuple):
    """Seconds that a row takes in a pass: one that prepares it, one that finds it prepared in memory, one in float64.

    nbytes: size of the prepared row. product: seconds of one multiplication within a product of float64 matrices.
    classes: K. written: numbers in a gradient that an exact kernel would have to write out, 0 if it would not.
    """

    first: float
    again: float
    exact: float
    nbytes: float
    product: float
    classes: int
    written: int

    def of_solve(self, meta: ComponentMeta, rows: int, memory: int, products: Callable[[int, int], float]) -> float:
        """Seconds of a solve over ``rows`` rows that takes as many passes as the solve described by ``meta``; a closed
        form also takes the ``products`` for so many rows and tried λ."""
        kept = min(1.0, memory / (self.nbytes * rows))  # the other rows are prepared in every pass
        each = kept * self.again + (1 - kept) * self.first
        choice_of = meta.ridge_choice or {}
        chosen: int = choice_of.get("passes", 0)  # as many as over all rows
        seconds = rows * (self.first + (chosen + meta.passes) * each + meta.stats.proof_passes * self.exact)
        if meta.stats.solver == CLOSED_FORM:
            seconds += self.product * products(rows, len(choice_of.get("curve", ())))
        if meta.stats.solver == BY_PARAMETERS and self.written:
            passes, multiplied = writing_cost(rows, self.classes, self.written)
            seconds += passes * rows * self.exact + multiplied * self.product
        return seconds


def expected_seconds(
    store: FeatureStore, solved: Iterable[str], leaving: Mapping[str, int]
) -> tuple[dict[str, float], list[str]]:
    """About how many seconds it takes here to solve each of ``solved`` again, with so many rows ``leaving`` each shard,
    and a note on those for which that is not known.

    A solve is expected to take as many passes as it took before. Solves with teachers are not known: the time of a pass
    does not tell theirs.
    """
    metas = {name: meta_of(store.manifest.objects[name].meta) for name in solved}
    if not metas:
        return {}, []
    seconds: dict[str, float] = {}
    try:
        settings = settings_of(store)
        cost = cache(partial(_row_cost, settings, tuple(store.shards)))
        numbers, classes = settings.base.config.width + 1, len(store.classes)

        def products(shards: Sequence[Shard], rows: int, tried: int) -> float:
            size = HeadSize(settings.loss, rows, numbers, classes)
            return size.products(tried, _left_out(settings, shards, size, tried) if tried else None)

        for name, meta in metas.items():
            mode: Train = "head" if name == HEAD else settings.train
            if not meta.passes or settings.is_taught(mode):
                continue
            shards = [store.shard(shard_of(name))] if is_component(name) else store.shards
            rows = sum(shard.rows - leaving.get(shard.name, 0) for shard in shards)
            seconds[name] = cost(name == HEAD).of_solve(
                meta, rows, settings.arithmetic.memory, partial(products, shards)
            )
    except TaftcacheError as error:  # forgetting would report it, too
        return {}, [f"how long it would take is not known: {error.fault}"]
    unknown = [name for name in metas if name not in seconds]
    return seconds, [f"how long {', '.join(unknown)} would take is not known"] if unknown else []


def _left_out(settings: Settings, shards: Sequence[Shard], size: HeadSize, tried: int) -> float | None:
    """Products of leaving rows, or their groups, out for so many λ; None if a part of the rows validates."""
    groups = settings.groups(shards)
    if groups is None:
        return size.left_out(tried)
    _, counts = np.unique(groups, return_counts=True)
    return size.left_out(tried, counts, largest_class(shards) if size.extra else 0)


def _row_cost(settings: Settings, shards: Sequence[Shard], head: bool) -> _RowCost:
    """What a row costs, timed on the first rows of ``shards``: for the ``head`` alone, or as the settings train."""
    how, most = settings.arithmetic, sum(shard.rows for shard in shards)
    objective = Objective(loss=settings.loss, ridge=1.0, train="head" if head else settings.train)

    def posed(rows: int, dtype: torch.dtype) -> Problem:
        return pose(settings.base, [RowSubset(shards, range(rows))], objective, how, dtype)

    for rows in (min(WARMING, most), min(TIMED, most)):
        inner, exact = posed(rows, how.dtype), posed(rows, torch.float64)
        first, again, wide = (_timed(problem) / rows for problem in (inner, inner, exact))
    tail = inner.operator.tail
    nbytes = sum(t.numel() * t.element_size() for state, _ in inner.operator.blocks() for t in tail.tensors(state))
    square = torch.ones(SIDE, SIDE, dtype=torch.float64, device=how.device)
    product = min(_seconds_of(lambda: (square @ square)[0, 0].item()) for _ in range(2)) / SIDE**3
    operator = exact.operator
    written = 0 if tail.rank_one else operator.layout.size
    return _RowCost(first, again, wide, nbytes / rows, product, operator.classes, written)


def _timed(problem: Problem) -> float:
    """Seconds of one pass."""
    vector = torch.ones(problem.operator.layout.size)
    return _seconds_of(lambda: problem.hessian(vector).sum().item())


def _seconds_of(work: Callable[[], float]) -> float:
    """Seconds of ``work``, which returns a number so that an asynchronous device has to finish."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
