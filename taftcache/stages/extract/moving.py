"""Images that lie elsewhere than where a finished store was made from them."""

from __future__ import annotations

import numpy as np

from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.cache.format import encoding
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import IdentityError
from taftcache.names import counted
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.extract.frozen import Collected, load_frozen, made_from, run_frozen, same_rows
from taftcache.stages.progress import Progress

KEYS = ("train", "test", "root")  # of [data]: where the images lie
AGAIN = 8  # rows that are made again, or one of each shard if there are more shards
ALIKE = 0.01  # of a row's norm: another processor's rounding is far below, another image's row far above


def may_move(store: FeatureStore, recipe: Recipe) -> frozenset[str]:
    """The settings that say where images lie; not ``test`` where there is one in the store or the recipe alone."""
    tested = bool(recorded_recipe(store).data.test) == bool(recipe.data.test)
    return frozenset(f"data.{key}" for key in KEYS if tested or key != "test")


def is_moved(store: FeatureStore, recipe: Recipe) -> bool:
    """Whether the recipe names another place for the images than the store's record does."""
    recorded = recorded_recipe(store).data
    return any(getattr(recorded, key) != getattr(recipe.data, key) for key in KEYS)


def follow(store: FeatureStore, recipe: Recipe, progress: Progress) -> str:
    """Record where the images lie now, once they are seen to be the store's; a note that says so.

    Every row must have an image of its class there, and a few rows of each shard are made again.

    Raises:
        IdentityError: they are other images.
    """
    train, test = open_source(recipe.data)
    model = load_frozen(same_rows(store, recipe), store.classes)
    store.check_identity(made_from(recipe, *model))
    shards = [store.shard(ref.name) for ref in store.manifest.shards]
    each, again = -(-AGAIN // len(shards)), 0
    with progress.task("compare with the images", len(shards)) as task:
        for shard in shards:
            source = train if test is None or shard.role == "train" else test
            index = _indexed(source, shard, store.classes, recipe)
            rows = np.unique(np.linspace(0, shard.rows - 1, each).astype(int))
            ids, sink = [shard.sample_ids[k] for k in rows], Collected()
            run_frozen(model, recipe, source, [index[i] for i in ids], sink)
            there = shard.tokens(rows).astype(np.float64)
            made = encoding.as_read(np.concatenate(sink.blocks), shard.stored_as)
            apart = np.linalg.norm(made - there, axis=(1, 2))
            if (other := apart > ALIKE * np.linalg.norm(there, axis=(1, 2))).any():
                raise _others(recipe, f"{ids[int(other.argmax())]!r} gives another row than the store's")
            again += len(rows)
            task.advance()
    recorded, now = store.manifest.recipe, recipe_values(recipe)["data"]
    with store.transaction() as change:
        change.update(recipe=recorded | {"data": recorded["data"] | {key: now[key] for key in KEYS}})
    return f"the images lie at {recipe.data.train} now: {counted(again, 'row')} made again from there are the store's"


def _indexed(source: Source, shard: Shard, classes: list[str], recipe: Recipe) -> dict[str, int]:
    """Where in the source each image is; IdentityError where one of the shard's is missing, or of another class."""
    index = {item.id: k for k, item in enumerate(source.items)}
    for i, label in zip(shard.sample_ids, shard.labels, strict=True):
        if i not in index:
            raise _others(recipe, f"{i!r} is not there")
        if (found := source.classes[source.items[index[i]].label]) != classes[label]:
            raise _others(recipe, f"{i!r} is of the class {found!r}, in the store of {classes[label]!r}")
    return index


def _others(recipe: Recipe, got: str) -> IdentityError:
    return IdentityError(
        f"the images at {recipe.data.train} are not those that the store was made from",
        got=got,
        do="give this recipe its own folder with --set store.path=…, or put the old place back",
    )
