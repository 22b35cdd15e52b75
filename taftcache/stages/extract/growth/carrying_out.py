"""Carry out the plan of an append: classes, labels, then rows, each shard in a commit of its own."""

from __future__ import annotations

from collections.abc import Callable

from taftcache.backbone.forward.extract import RowCounts
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.recipe import Recipe
from taftcache.stages.completeness import planned_shards
from taftcache.stages.extract.classes import class_indexes
from taftcache.stages.extract.filling import OldRows, RowOrigin, fill
from taftcache.stages.extract.growth.planning import AppendPlan, class_notes
from taftcache.stages.extract.plan import PlannedShard
from taftcache.stages.progress import Progress


def carry_out(
    store: FeatureStore, recipe: Recipe, plan: AppendPlan, origin: Callable[[], RowOrigin], progress: Progress
) -> list[RowCounts]:
    """Add classes, correct labels, and write the rows that ``origin`` makes; it is called only if there are any."""
    rows = origin() if plan.shards else None  # it may refuse, so call it before anything is changed
    if plan.growth.added:
        for note in class_notes(plan):  # now, too: a killed run writes no report, and the next one adds no class
            progress.say(note)
        with store.transaction() as change:
            change.relabel(plan.growth.classes)
            for name in plan.lost:
                change.drop(name)
            if plan.outlived:
                values = store.manifest.recipe
                change.update(recipe={**values, "compose": {**values["compose"], "weights": "rows"}})
    for name, labels in plan.labels.items():
        with store.transaction() as change:
            change.correct(name, dict(zip(labels, class_indexes(store, [*labels.values()]), strict=True)))
    return [] if rows is None else [_grow(store, recipe, shard, rows, progress) for shard in plan.shards]


def _grow(store: FeatureStore, recipe: Recipe, shard: PlannedShard, origin: RowOrigin, progress: Progress) -> RowCounts:
    """Write a shard with new samples among its old ones, or a new shard."""
    if not store.has_shard(shard.name):
        plan = store.manifest.plan | {"groups": planned_shards(store) + 1}
        return fill(store, recipe, shard, origin, progress, plan=plan)
    old = OldRows(store, shard.name, shard.ids)
    if old.shard.tokens_shape != origin.tokens_shape:
        raise StoreError(
            f"the rows of shard {shard.name} have another shape than the new ones",
            got=f"{list(old.shard.tokens_shape)}, new: {list(origin.tokens_shape)}",
        )
    return fill(store, recipe, shard, origin, progress, old=old)
