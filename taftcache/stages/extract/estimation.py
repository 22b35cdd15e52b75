"""Estimate what an extraction would take, before it is started."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taftcache.backbone.forward.extract import default_batch
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Source
from taftcache.cache.format.layout import least_sizes
from taftcache.cache.opening import Place
from taftcache.cache.place.address import as_path
from taftcache.cache.room import check_room, free_bytes, taken_bytes
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.commit import check_free
from taftcache.names import resized_notes
from taftcache.recipe import Recipe, checked_recipe
from taftcache.stages.extract.forgotten import open_images, remembered, without_forgotten
from taftcache.stages.extract.frozen import load_frozen, made_from, run_frozen
from taftcache.stages.extract.moving import notes_on_numbers
from taftcache.stages.extract.plan import group_notes, plan_images
from taftcache.stages.progress import Silent
from taftcache.stages.report import Report

BATCHES = 2  # timed, after one that warms up


@dataclass(frozen=True, kw_only=True)
class EstimateReport(Report):
    """What an extraction would take, measured on a few of the images; nothing was written.

    rows: images, by shard. classes: how many. kept: what of a sample is cached, in words. start: timm's name of the
    module where the tail begins, "" for the head's input. trained: how many numbers of the tail and head move. numbers:
    how many a row has. bytes: what the store's files take on the disk. free_bytes: free space where the store would
    lie, None for a bucket. tried: images that were measured. images_per_second: as measured. seconds: for all images,
    at that rate. preprocess: what becomes of an image before the network sees it, by timm's values or the recipe's.
    notes: on what lies there and is left out, and on weights that do not fit as they are.
    """

    store: Path
    rows: dict[str, int]
    classes: int
    kept: str
    start: str
    trained: int
    numbers: int
    bytes: int
    free_bytes: int | None
    tried: int
    images_per_second: float
    seconds: float
    preprocess: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Counted:
    """A sink that counts rows and keeps none."""

    consumed = 0

    def append(self, tokens: np.ndarray, ids: Any, labels: Any, skipped: Any = ()) -> None:
        """Count the rows."""
        self.consumed += len(ids) + len(skipped)


def estimate(recipe: Recipe, *, forgotten_of: Place | None = None) -> EstimateReport:
    """Run a few batches of the recipe's own images through the frozen layers, and say what all of them would take.

    Args:
        forgotten_of: as for ``extract``.

    Raises:
        DataError, BackboneError, RecipeError, StoreError: as the extraction itself would.
    """
    recipe = checked_recipe(recipe)
    if not FeatureStore.exists(recipe.store_path):
        check_free(recipe.store_path)
    source, test, notes = open_images(recipe.data, recipe.store_path, forgotten_of=forgotten_of)
    beside, unasked = remembered(recipe.store_path, forgotten_of, source, test)
    if not FeatureStore.exists(recipe.store_path):
        unasked += notes_on_numbers(recipe, (source, test), beside, forgotten_of, Silent())
    shards, classes, left = without_forgotten(
        beside, None, recipe.data, plan_images(recipe, source, test), source, test
    )
    left += group_notes(recipe.data, shards.values())
    model = load_frozen(recipe, classes)
    identity, batch = made_from(recipe, *model), default_batch(model[0].cut)
    tried = min(len(source.items), batch * BATCHES)
    _timed(model, recipe, source, min(batch, tried))
    seconds = _timed(model, recipe, source, tried)
    rows = {name: len(shard.ids) for name, shard in shards.items()}
    speed = tried / seconds
    return EstimateReport(
        store=as_path(recipe.store_path),
        rows=rows,
        classes=len(classes),
        kept=model[0].describe(),
        start=model[0].cut.start,
        trained=model[0].trained,
        numbers=math.prod(model[0].tokens_shape),
        bytes=bytes_of(rows.values(), model[0], recipe),
        free_bytes=free_bytes(recipe.store_path),
        tried=tried,
        images_per_second=speed,
        seconds=sum(rows.values()) / speed,
        preprocess=identity["preprocess"],
        notes=[*notes, *unasked, *left, *resized_notes(identity)],
    )


def _timed(model: tuple[Reduction, Preprocess], recipe: Recipe, source: Source, count: int) -> float:
    """Seconds for images spread over the source."""
    order = np.linspace(0, len(source.items) - 1, count).astype(int).tolist()
    begin = time.perf_counter()
    run_frozen(model, recipe, source, order, _Counted(), unreadable=recipe.data.unreadable)
    return max(time.perf_counter() - begin, 1e-9)


def bytes_of(rows: Iterable[int], kept: Reduction, recipe: Recipe) -> int:
    """Bytes that shards with these numbers of rows, and the tail's weights, take on the disk."""
    tail = sum(tensor.numel() * tensor.element_size() for tensor in kept.tail_state().values())
    shards = least_sizes(rows, kept.tokens_shape, recipe.store.dtype, recipe.store.chunk_rows)
    return taken_bytes(recipe.store_path, [tail, *shards])


def check_disk(path: Path, needed: int) -> None:
    """StoreWriteError if fewer than ``needed`` bytes are free at ``path``."""
    less = "name a place on another disk (store.path), or keep less: data.limit, store.dtype, tangent.blocks"
    check_room(path, needed, less)
