"""Extraction by workers: spans of a source's items go out, their rows come back in order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from taftcache.backbone.forward.engine import Engines, ImageBatch
from taftcache.backbone.forward.extract import default_batch
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.identity import differences
from taftcache.errors import DataError, IdentityError
from taftcache.names import counted
from taftcache.recipe import Recipe, parse_recipe
from taftcache.remote.connection import Connection
from taftcache.remote.jobs import RowJob
from taftcache.remote.processes import FEWER
from taftcache.remote.resident import resident
from taftcache.remote.task import check_alike, portable, rounding_of
from taftcache.stages.extract.frozen import load_frozen, made_from
from taftcache.tangent.device import full_float32

_GPU_BATCHES = 4  # in one task: decoding one batch overlaps with the pass of the one before
# A task costs Dask some 25 ms of a processor, so small rows go a few batches at a time.
_TASK_BYTES = 4 << 20
_MOST_BATCHES = 8
_ONE_OF_THEM = f"open each with Pillow, and move away the one that crashes it, if one does; {FEWER}"


class RemoteRows:
    """An engine for each source, whose batches are computed by a cluster's workers."""

    def __init__(
        self,
        cluster: Connection,
        recipe: Recipe,
        classes: Sequence[str],
        identity: dict[str, Any],
        known: Sequence[str],
    ) -> None:
        self._cluster = cluster
        self._job = RowJob(
            recipe=portable(recipe),
            classes=list(classes),
            identity=identity,
            known=list(known),
            threads=cluster.threads,
        )
        self.rounding, self._span = cluster.call(prepare, self._job)

    def engine(self, source: Source, held_out: bool, stop: bool) -> RemoteEngine:
        """An engine for ``source``, which is the second that the recipe opens if ``held_out``."""

        def call(span: Sequence[int]) -> tuple[Any, ...]:
            ids = [source.items[k].id for k in span]
            return (self._job, self.rounding, held_out, list(map(int, span)), ids, stop)

        return RemoteEngine(self._cluster, call, self._span)


class RemoteEngine:
    """An ``Engine`` whose batches come from workers."""

    def __init__(self, cluster: Connection, call: Callable[[Sequence[int]], tuple[Any, ...]], span: int) -> None:
        self._cluster, self._call, self._span = cluster, call, span
        self._results: Generator[tuple[int, list[ImageBatch]]] | None = None

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]:
        """In order; as many spans are under way as the cluster takes."""
        spans = (order[k : k + self._span] for k in range(0, len(order), self._span))

        def images(number: int) -> str:
            # all of them: in this random order, the first and the last would not tell which lie between
            *_, ids, _ = self._call(order[number * self._span : (number + 1) * self._span])
            return f"{counted(len(ids), 'image')}: {', '.join(ids)}"

        self._results = self._cluster.results(compute, map(self._call, spans), what=images, do=_ONE_OF_THEM)
        for _, made in self._results:
            for one in made:
                yield one
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
    rounding: str


def prepare(job: RowJob) -> tuple[str, int]:
    """On a worker: its processor, and how many rows a task should have."""
    loaded = _loaded(job)
    frozen = loaded.model[0]
    if frozen.device.type != "cpu":
        return loaded.rounding, loaded.batch * _GPU_BATCHES
    size = loaded.batch * prod(frozen.tokens_shape) * np.dtype(frozen.computed).itemsize
    batches = min(max(1, _TASK_BYTES // size), _MOST_BATCHES)
    return loaded.rounding, loaded.batch * job.threads * batches


def compute(job: RowJob, alike: str, held_out: bool, span: list[int], ids: list[str], stop: bool) -> list[ImageBatch]:
    """On a worker: the rows of ``span``, items with these ``ids``."""
    loaded = _loaded(job)
    check_alike(loaded.rounding, alike, "fill one store")
    source = loaded.sources[held_out]
    if source is None or [source.items[k].id for k in span if k < len(source.items)] != ids:
        raise DataError(
            "a worker sees other images than the driver",
            got=f"others in the place of {ids[0]!r} and the next {len(ids) - 1}",
            do="put the same files at the recipe's path on every host",
        )
    (frozen, transform), recipe = loaded.model, loaded.recipe
    workers = job.threads if frozen.device.type == "cpu" else recipe.extract.workers or None
    with (
        closing(Engines(frozen, transform, loaded.batch, workers, frozen.computed)) as engines,
        closing(engines.engine(source, held_out, stop)) as engine,
        full_float32(frozen.device),
    ):
        # the engine's own tokens() waits for a device of this process, and cannot travel
        return [replace(done, tokens=partial(np.asarray, done.tokens())) for done in engine.batches(span)]


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
        sources = open_source(recipe.data, {*job.known}.__contains__)
        return _Loaded(model, sources, recipe, default_batch(frozen.cut), rounding_of(frozen.device))

    return resident("frozen layers", job.key, load, most=1)
