"""Which samples become which shard: one plan for what is extracted, appended and imported."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from taftcache.backbone.sources.base import Source
from taftcache.backbone.spec import DataSpec
from taftcache.cache.format.plan import assign, held_out, in_order, next_name, shard_of
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import DataError, RecipeError
from taftcache.names import COMPONENTS, GROUP, HELD_OUT, counted, first_few
from taftcache.recipe import Recipe

# The fewest rows in a shard, of one class in it, and groups in it; the most shards.
ROWS, PER_CLASS, GROUPS, SHARDS = 100, 3, 10, 10
FEW = 10  # fewer held-out groups give an interval of an accuracy that may be over 60 points wide
BY_IDS = "the store holds rows out by their ids"  # why a column of splits is not used


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


def shards_for(rows: int, classes: int, groups: int) -> int:
    """How many shards so many training rows, of so many ``groups``, are split into where nobody says it."""
    return max(1, min(SHARDS, rows // max(ROWS, PER_CLASS * classes), groups // GROUPS))


def groups_of(data: DataSpec, ids: Iterable[str]) -> set[str]:
    """The groups that samples are of; without ``data.group`` each is one."""
    return {data.group_of(i) for i in ids}


def forgotten_group(data: DataSpec, forgotten: Callable[[str], bool]) -> Callable[[str], str | None]:
    """What says of a sample which group it is of, if that was ``forgotten`` as a whole, else None."""

    @cache
    def is_forgotten(group: str) -> bool:
        return forgotten(GROUP + group)

    def of(sample: str) -> str | None:
        group = None if data.group is None else data.group_of(sample)
        return group if group is not None and is_forgotten(group) else None

    return of


def _alone_notes(alone: Sequence[str]) -> list[str]:
    """A note on samples that ``data.group`` puts into no group."""
    if not alone:
        return []
    return [f"data.group matches no part of {counted(len(alone), 'id')}, each a group of its own: {first_few(alone)}"]


def group_notes(data: DataSpec, shards: Iterable[PlannedShard]) -> list[str]:
    """Notes on the groups in the plan of a new store; none without ``data.group``.

    RecipeError if it puts no sample into a group.
    """
    if data.group is None:
        return []
    parts = [(shard, shard.ids) for shard in shards]
    ids = [i for _, some in parts for i in some]
    alone = [i for i in ids if data.group_of(i) == i]
    if ids and len(alone) == len(ids):
        raise RecipeError(
            f"data.group matches a part of none of {counted(len(ids), 'id')}"
            if not any(map(data.in_id, ids))
            else "data.group matches every id as a whole, so that no two samples share a group",
            got=f"data.group = {data.group!r}; the first id: {min(ids)!r}",
            do="write a regular expression for what the ids of a group share, or leave it out",
        )
    trained, tested = (
        Counter(data.group_of(i) for shard, some in parts if (shard.name == HELD_OUT) == held for i in some)
        for held in (False, True)
    )
    said = f"{counted(len(ids), 'sample')} of {counted(len(trained | tested), 'group')} (data.group)"
    if tested:
        said += f", {len(tested)} of them held out; the largest of these has {max(tested.values())} of "
        said += counted(tested.total(), "sample")
    return [said, *_alone_notes(alone), *_few_held_out_notes(len(tested)), *_both_sides_notes({*trained} & {*tested})]


def _few_held_out_notes(groups: int) -> list[str]:
    """A note on so few held-out groups that an accuracy on them says little."""
    if not 0 < groups < FEW:
        return []
    means = "there will be no interval of an accuracy" if groups == 1 else "intervals of accuracies will be wide"
    return [f"{counted(groups, 'held-out group')} (data.group) can say little of others: {means}"]


def more_group_notes(data: DataSpec, store: FeatureStore, shards: Sequence[PlannedShard]) -> list[str]:
    """Notes on the groups of samples that a store gets, or has just got; none without ``data.group``."""
    if data.group is None:
        return []
    ids = [i for shard in shards for i in shard.ids]
    places: dict[str, set[str]] = {group: set() for group in groups_of(data, ids)}
    there = ((shard.name, shard.sample_ids) for shard in (store.every_shard if ids else []))
    for name, some in chain(((shard.name, shard.ids) for shard in shards), there):
        for group in groups_of(data, some) & places.keys():
            places[group].add(name)
    parted = sorted(group for group, names in places.items() if len(names - {HELD_OUT}) > 1)
    note = (
        f"{counted(len(parted), 'group')} of the new samples have rows in other shards, too, so that forgetting all of "
        f"one trains each of these anew: {first_few(parted)}"
    )
    both = {group for group, names in places.items() if HELD_OUT in names and len(names) > 1}
    alone = [i for i in ids if data.group_of(i) == i]
    return [*_alone_notes(alone), *([note] if parted else []), *_both_sides_notes(both)]


def _both_sides_notes(groups: set[str]) -> list[str]:
    """A note on the ``groups`` with test samples and training samples."""
    if not groups:
        return []
    return [
        f"{counted(len(groups), 'group')} of the test samples have training samples, too, so that accuracy on them "
        f"says little of new groups: {first_few(sorted(groups))}"
    ]


def holds_out_by_ids(store: FeatureStore) -> bool:
    """Whether the plan holds rows out by their ids: no store records it, but it shows in which rows are held out."""
    recipe, held = recorded_recipe(store), store.held_out.sample_ids if store.held_out else []
    fraction, ids = recipe.data.held_out, [*held, *store.sample_ids()]
    return fraction > 0 and held_out(ids, fraction, recipe.store.seed, recipe.data.group_of) == {*held}


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
