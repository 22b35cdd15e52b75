"""Images that have moved since a finished store was made from them."""

from __future__ import annotations

import numpy as np

from taftcache.cache.format import encoding
from taftcache.cache.store import FeatureStore
from taftcache.consent import KINDS, SECTION, names, recorded_recipe
from taftcache.errors import IdentityError
from taftcache.names import counted
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.extract.reextraction import Reextraction
from taftcache.stages.progress import Progress

LIES_AT = ("train", "test", "root")  # of [data]: where the images lie
AGAIN = 8  # rows that are made again, or one of each shard if there are more shards
ALIKE = 0.01  # a part of the row's norm: another processor's rounding is far below it, another image's row far above


def is_moved(store: FeatureStore, recipe: Recipe) -> bool:
    """Whether the recipe names another place for the images than the store's record does."""
    recorded = recorded_recipe(store).data
    return any(getattr(recorded, key) != getattr(recipe.data, key) for key in LIES_AT)


def follow(store: FeatureStore, recipe: Recipe, progress: Progress) -> str:
    """Check that the images are those of the store, and record where they lie now; returns a note on that.

    Every row must have an image of its class there, and a few rows of each shard are made again.

    Raises:
        IdentityError: they are other images.
    """
    own = [f"{SECTION[kind]}.{key}" for kind in KINDS for key in names(recipe, kind)]
    made = Reextraction(store, recipe, progress, own)
    made.check_identity()
    shards = store.every_shard
    labels = made.labels([i for shard in shards for i in shard.sample_ids])
    each, again = -(-AGAIN // len(shards)), 0
    for shard in shards:
        for i, label in zip(shard.sample_ids, shard.labels, strict=True):
            if i not in labels:
                raise _others(recipe, f"{i!r} is not there, or of none of the store's classes")
            if (found := labels[i]) != label:
                was, now = store.classes[label], store.classes[found]
                corrected = "if labels were corrected, taftcache append --relabel with this recipe first"
                raise _others(recipe, f"{i!r} is of the class {now!r}, in the store of {was!r}", corrected)
        rows = np.unique(np.linspace(0, shard.rows - 1, each).astype(int))
        ids = [shard.sample_ids[k] for k in rows]
        there = shard.tokens(rows).astype(np.float64)
        apart = np.linalg.norm(encoding.as_read(made.rows(shard.name, ids), shard.stored_as) - there, axis=(1, 2))
        if (other := apart > ALIKE * np.linalg.norm(there, axis=(1, 2))).any():
            raise _others(recipe, f"{ids[int(other.argmax())]!r} gives another row than the store's")
        again += len(rows)
    recorded, data = store.manifest.recipe, recipe_values(recipe)["data"]
    with store.transaction() as change:
        change.update(recipe=recorded | {"data": recorded["data"] | {key: data[key] for key in LIES_AT}})
    return f"the images lie at {recipe.data.train} now: {counted(again, 'row')} made again from there are the store's"


def _others(recipe: Recipe, got: str, otherwise: str = "put the old place back") -> IdentityError:
    return IdentityError(
        f"the images at {recipe.data.train} are not those that the store was made from",
        got=got,
        do=f"give this recipe its own folder with --set store.path=…, or {otherwise}",
    )
