"""Which samples become which shard: one plan for what is extracted, appended and imported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taftcache.backbone.sources.base import Source
from taftcache.cache.format.plan import assign, held_out, in_order, next_name, shard_of
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, RecipeError
from taftcache.names import COMPONENTS, HELD_OUT, counted
from taftcache.recipe import Recipe

ROWS, PER_CLASS, SHARDS = 100, 3, 10  # the fewest rows in a shard, and of one class in it; the most shards


@dataclass(frozen=True, kw_only=True)
class PlannedShard:
    """A shard that is to be written.

    ids: of its samples, in the order of its rows. from_test: whether they are from the data's source for testing.
    """

    name: str
    ids: list[str]
    from_test: bool = False

    @property
    def role(self) -> str:
        """The role "train", or "held-out" for the one shard that is kept for testing."""
        return HELD_OUT if self.name == HELD_OUT else "train"


def shards_for(rows: int, classes: int) -> int:
    """How many shards so many training rows are split into where nobody says it."""
    return max(1, min(SHARDS, rows // max(ROWS, PER_CLASS * classes)))


def split(recipe: Recipe, ids: Sequence[str], test: Sequence[str] | None) -> tuple[list[str], PlannedShard | None]:
    """The ids to train on, in their given order, and the held-out shard: of ``test`` if it is given, else of a
    fraction of ``ids``; None if nothing is held out."""
    seed = recipe.store.seed
    if test is not None:
        return list(ids), PlannedShard(name=HELD_OUT, ids=in_order(test, seed), from_test=True)
    kept = held_out(ids, recipe.data.held_out, seed, recipe.data.group_of)
    training = [i for i in ids if i not in kept]
    return training, PlannedShard(name=HELD_OUT, ids=in_order(sorted(kept), seed)) if kept else None


def plan_shards(recipe: Recipe, ids: Sequence[str], test: Sequence[str] | None = None) -> dict[str, PlannedShard]:
    """The shards of a new store by name; ``ids``, and ``test`` of samples that are for testing only, as for ``split``.

    Raises:
        DataError: an id twice, or fewer samples than shards, or so many held out.
    """
    spec = recipe.store
    training, tested = split(recipe, ids, test)
    if test is None and len(training) < spec.shards <= len(ids):
        raise DataError(
            f"too few to train on: data.held_out leaves {counted(len(training), 'sample')}"
            f" for {counted(spec.shards, 'shard')}",
            got=f"held_out = {recipe.data.held_out} of {counted(len(ids), 'sample')}",
            do="hold out a smaller fraction" + (", or use fewer shards" if spec.shards > 1 else ""),
        )
    parts = assign(training, spec.plan, spec.shards, spec.seed, recipe.data.group_of)
    planned = {name: PlannedShard(name=name, ids=part) for name, part in parts.items()}
    return planned if tested is None else planned | {HELD_OUT: tested}


def plan_more(
    store: FeatureStore,
    recipe: Recipe,
    ids: Sequence[str],
    test: Sequence[str] | None,
    *,
    mended: Mapping[str, str],
    new_shard: bool,
) -> list[PlannedShard]:
    """The shards that new samples of a store go to, in the order of names; ``ids`` and ``test`` as for ``split``.

    Args:
        mended: id -> shard, of samples that were skipped, and go to the shard that left them out.
        new_shard: whether all training samples go to one more shard.

    Raises:
        RecipeError: a balanced plan has no place for further training samples.
    """
    spec, places = recipe.store, defaultdict[str, list[str]](list)
    training, tested = split(recipe, ids, test)
    if training and new_shard:
        taken = {name.removeprefix(COMPONENTS) for name in store.objects(COMPONENTS)}  # imported ones, too
        places[next_name([shard.name for shard in store.shards], taken)] = training
    elif training and spec.plan != "hash":
        raise RecipeError(
            "cannot append to the shards of a balanced plan: one more sample would move others to other shards",
            got=f"{counted(len(training), 'new sample')} for a store with plan = {spec.plan!r}",
            do="put them into a shard of their own: --new-shard, or new_shard=True",
        )
    else:
        for i in training:
            places[shard_of(recipe.data.group_of(i), spec.shards, spec.seed)].append(i)
    if tested is not None and tested.ids:
        places[tested.name] += tested.ids
    for i, name in mended.items():
        places[name].append(i)
    return [
        PlannedShard(name=name, ids=in_order(some, spec.seed), from_test=test is not None and name == HELD_OUT)
        for name, some in sorted(places.items())
    ]


def plan_images(recipe: Recipe, source: Source, test: Source | None) -> dict[str, PlannedShard]:
    """The plan of the recipe's own images.

    Raises:
        DataError: a fraction is to be held out, but the images are so few that none falls into it.
    """
    ids = [item.id for item in source.items]
    planned = plan_shards(recipe, ids, None if test is None else [item.id for item in test.items])
    if recipe.data.held_out > 0 and HELD_OUT not in planned:
        raise DataError(
            f"data.held_out = {recipe.data.held_out} of {counted(len(ids), 'image')} holds out none",
            got=counted(len(ids), "image"),
            do="hold out a larger fraction, or none: --set data.held_out=0",
        )
    return planned
