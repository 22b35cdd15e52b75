"""Extraction by workers: spans of a source's items go out, their rows come back in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from taftcache.backbone.engine import ImageBatch, Work
from taftcache.backbone.extract import default_batch, make_engine
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.identity import differences
from taftcache.errors import ClusterError, DataError, IdentityError, UnreadableImage
from taftcache.recipe import Recipe, parse_recipe
from taftcache.remote.connection import Connection
from taftcache.remote.jobs import RowJob
from taftcache.remote.resident import resident
from taftcache.remote.task import portable, processor
from taftcache.stages.extract.frozen import load_frozen, made_from
from taftcache.tangent.device import full_float32

_GPU_BATCHES = 4  # of one task: decoding one batch overlaps with the pass of the one before
# A task costs Dask some 25 ms of a processor, so that small rows go a few batches at a time.
_TASK_BYTES = 4 << 20
_MOST_BATCHES = 8


@dataclass(frozen=True)
class RowBatch:
    """A ``ImageBatch`` on its way: tokens [n,t,d] of the images ``indexes``, and those that did not decode."""

    indexes: list[int]
    tokens: np.ndarray
    unreadable: list[tuple[int, UnreadableImage]]
    stopped: UnreadableImage | None
    decode_seconds: float
    forward_seconds: float


class RemoteRows:
    """An engine for each source, whose batches are computed by a cluster's workers."""

    def __init__(self, cluster: Connection, recipe: Recipe, classes: Sequence[str], identity: dict[str, Any]) -> None:
        self._cluster = cluster
        self._job = RowJob(recipe=portable(recipe), classes=list(classes), identity=identity)
        self.batch, self.processor, self._span = cluster.call(prepare, self._job, cluster.threads)

    def engine(self, source: Source, held_out: bool, stop: bool) -> RemoteEngine:
        """Batches of ``source``, which is the second that the recipe opens where ``held_out``."""

        def call(span: Sequence[int]) -> tuple[Any, ...]:
            ids = [source.items[k].id for k in span]
            return (self._job, self.processor, held_out, list(map(int, span)), ids, stop, self._cluster.threads)

        return RemoteEngine(self._cluster, call, self._span)


class RemoteEngine:
    """An ``Engine`` whose batches come from workers."""

    def __init__(self, cluster: Connection, call: Callable[[Sequence[int]], tuple[Any, ...]], span: int) -> None:
        self._cluster, self._call, self._span = cluster, call, span
        self._results: Generator[tuple[int, list[RowBatch]]] | None = None

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]:
        """In order; as many spans are under way as the cluster takes."""
        spans = (order[k : k + self._span] for k in range(0, len(order), self._span))
        self._results = self._cluster.results(compute, map(self._call, spans))
        for _, made in self._results:
            for one in made:
                yield ImageBatch(
                    indexes=one.indexes,
                    unreadable=one.unreadable,
                    stopped=one.stopped,
                    tokens=partial(np.asarray, one.tokens),
                    decode_seconds=one.decode_seconds,
                    forward_seconds=one.forward_seconds,
                )
                if one.stopped is not None:
                    return

    def close(self) -> None:
        """Cancel what is under way."""
        if self._results is not None:
            self._results.close()


@dataclass(frozen=True)
class _Loaded:
    model: tuple[Reduction, Preprocess]
    sources: tuple[Source, Source | None]
    recipe: Recipe
    batch: int
    processor: str


def prepare(job: RowJob, threads: int) -> tuple[int, str, int]:
    """On a worker: rows of a forward pass, the processor, and rows of a task."""
    loaded = _loaded(job)
    frozen = loaded.model[0]
    if frozen.device.type != "cpu":
        return loaded.batch, loaded.processor, loaded.batch * _GPU_BATCHES
    size = loaded.batch * prod(frozen.tokens_shape) * np.dtype(frozen.computed).itemsize
    batches = min(max(1, _TASK_BYTES // size), _MOST_BATCHES)
    return loaded.batch, loaded.processor, loaded.batch * threads * batches


def compute(
    job: RowJob, alike: str, held_out: bool, span: list[int], ids: list[str], stop: bool, threads: int
) -> list[RowBatch]:
    """On a worker: the rows of ``span``, items with these ``ids``."""
    loaded = _loaded(job)
    if loaded.processor != alike:
        raise ClusterError(
            "workers with different processors cannot fill one store: they round differently",
            got=f"a worker with {loaded.processor} beside {alike}",
            do="start workers on one kind of machine, or set the recipe's device",
        )
    source = loaded.sources[held_out]
    if source is None or [source.items[k].id for k in span if k < len(source.items)] != ids:
        raise DataError(
            "a worker sees other images than the driver",
            got=f"others in the place of {ids[0]!r} and the next {len(ids) - 1}",
            do="put the same files at the recipe's path on every host",
        )
    (frozen, transform), recipe = loaded.model, loaded.recipe
    work = Work(frozen, transform, source, loaded.batch, frozen.computed)
    on_cpu = frozen.device.type == "cpu"
    engine = make_engine(work, threads if on_cpu else recipe.extract.workers or None, stop)
    try:
        with full_float32(frozen.device):
            return [
                RowBatch(
                    done.indexes,
                    done.tokens(),
                    done.unreadable,
                    done.stopped,
                    done.decode_seconds,
                    done.forward_seconds,
                )
                for done in engine.batches(span)
            ]
    finally:
        engine.close()


def _loaded(job: RowJob) -> _Loaded:
    def load() -> _Loaded:
        recipe = parse_recipe(job.recipe)
        frozen, transform = model = load_frozen(recipe, job.classes)
        if different := sorted(differences("", job.identity, made_from(recipe, frozen, transform))):
            raise IdentityError(
                "a worker loads another model than the driver",
                got="; ".join(different[:6]),
                do="put the same weights at the recipe's path on every host, and install the same libraries",
            )
        return _Loaded(model, open_source(recipe.data), recipe, default_batch(frozen.cut), processor(frozen.device))

    return resident("frozen layers", job.key, load, most=1)
