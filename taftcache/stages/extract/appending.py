"""New samples into a store that is there: other shards keep their files, rows that are there are not run again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format.plan import in_order, next_name, shard_of
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError
from taftcache.recipe import Recipe
from taftcache.stages.extract.extraction import (
    ImageRows,
    check_words,
    forgotten_items,
    is_complete,
    load_frozen,
    made_from,
)
from taftcache.stages.extract.filling import OldRows, RowCounts, fill
from taftcache.stages.extract.plan import PlannedShard, split
from taftcache.stages.extract.reextraction import same_rows
from taftcache.stages.progress import Progress, Silent


@dataclass(frozen=True, kw_only=True)
class AppendReport:
    """``added``: shard -> new rows in it; ``untouched`` shards kept their files; ``known`` images were there before.

    ``images`` were run through the model, ``skipped`` of them did not decode.
    """

    store: Path
    root_before: str
    root_digest: str
    added: dict[str, int] = field(default_factory=dict)
    untouched: list[str] = field(default_factory=list)
    known: int = 0
    images: int = 0
    skipped: int = 0
    seconds: float = 0.0


def append(recipe: Recipe, progress: Progress | None = None, *, new_shard: bool = False) -> AppendReport:
    """Extract the images of the recipe's data that its store does not hold yet.

    By default each goes where the plan puts it, and the store ends with the bytes of one made from all images at once.
    A shard that gets rows is written anew, the rows that it had are copied, and each shard is a commit of its own: a
    killed run goes on where it was. Forgotten samples stay out. Images that the plan holds out go to the held-out
    shard in either form.

    Args:
        recipe: asks for what the store was made with; its ``data`` may name another place with further images.
        new_shard: put all new training samples into one further shard, so that the others keep their files and their
            components. The only form for a balanced plan, in which one more sample would move others.

    Raises:
        IdentityError: other weights, preprocessing, dtype or library versions than the store's.
        DataError: a class that the store does not have. StoreError: an extraction that is not finished.
    """
    progress = progress or Silent()
    begin = time.perf_counter()
    with FeatureStore(recipe.store_path, mode="a") as store:
        before = store.root_digest
        if "imported" in store.identity:
            raise StoreError(
                f"cannot append images to {store.path}: its rows were imported",
                do="import all rows into a new store",
            )
        check_words(store, recipe, but=("data",))
        if not is_complete(store):
            raise StoreError(
                f"cannot append to {store.path}: its extraction is not finished",
                got=f"{len(store.manifest.shards)} of {store.manifest.plan['groups']} shards",
                do="taftcache extract first",
            )
        source, test = open_source(recipe.data)
        shards, known = _new_samples(store, recipe, source, test, new_shard)
        names = [ref.name for ref in store.manifest.shards]
        counts: list[RowCounts] = []
        if shards:
            model = load_frozen(same_rows(store, recipe), store.classes)
            store.check_identity(made_from(recipe, *model))
            origin = ImageRows(recipe=recipe, model=model, source=source, test=test, verb="append")
            counts = [_grow(store, recipe, shard, origin, progress) for shard in shards]
        added = {shard.name: len(shard.ids) for shard in shards}
        return AppendReport(
            store=store.path,
            root_before=before,
            root_digest=store.root_digest,
            added=added,
            untouched=[name for name in names if name not in added],
            known=known,
            images=sum(count.rows for count in counts),
            skipped=sum(count.skipped for count in counts),
            seconds=time.perf_counter() - begin,
        )


def _new_samples(
    store: FeatureStore, recipe: Recipe, source: Source, test: Source | None, new_shard: bool
) -> tuple[list[PlannedShard], int]:
    """The samples that the store does not know, by the shard that they go to; and how many it knows already."""
    spec = recipe.store
    known = {i for ref in store.manifest.shards for i in store.shard(ref.name).sample_ids}
    known |= {skipped.id for skipped in store.manifest.skipped}

    def unknown(origin: Source) -> list[str]:
        out = known | forgotten_items(store.is_forgotten, origin)
        return [item.id for item in origin.items if item.id not in out]

    fresh = unknown(source), None if test is None else unknown(test)
    training, tested = split(recipe, *fresh)
    places: dict[str, list[str]] = {}
    if training and new_shard:
        places[next_name([shard.name for shard in store.shards])] = training
    elif training and spec.plan != "hash":
        raise RecipeError(
            "cannot append to the shards of a balanced plan: one more sample would move others to other shards",
            got=f"{len(training)} new samples for a store with plan = {spec.plan!r}",
            do="put them into a shard of their own: --new-shard",
        )
    else:
        for i in training:
            places.setdefault(shard_of(i, spec.shards, spec.seed), []).append(i)
    shards = [PlannedShard(name=name, ids=in_order(ids, spec.seed)) for name, ids in places.items()]
    if tested is not None and tested.ids:
        shards.append(tested)
    items = len(source.items) + (len(test.items) if test is not None else 0)
    return sorted(shards, key=lambda shard: shard.name), items - sum(len(ids) for ids in fresh if ids is not None)


def _grow(store: FeatureStore, recipe: Recipe, shard: PlannedShard, origin: ImageRows, progress: Progress) -> RowCounts:
    """Write a shard with new samples among its old ones, or a further one."""
    plan = store.manifest.plan
    if not store.has_shard(shard.name):
        return fill(store, recipe, shard, origin, progress, plan=plan | {"groups": plan["groups"] + 1})
    old = OldRows(store, shard.name)
    if old.shard.tokens_shape != origin.tokens_shape:
        raise StoreError(
            f"the rows of shard {shard.name} have another shape than the new ones",
            got=f"{list(old.shard.tokens_shape)}, new: {list(origin.tokens_shape)}",
        )
    return fill(store, recipe, shard, origin, progress, old=old)
