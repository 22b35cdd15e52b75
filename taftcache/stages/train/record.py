"""What a store records of stage 2: the settings in force, and which shards are left out of compositions."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.transaction import Transaction
from taftcache.consent import overridden, recorded_recipe, refusal, remember
from taftcache.errors import StoreError, UnknownName
from taftcache.model.component import read_base
from taftcache.model.members import subtracted
from taftcache.recipe import Overrides, Recipe, checked_recipe, parse_recipe, recipe_values
from taftcache.stages.completeness import first_rows, planned_shards
from taftcache.stages.train.checks import check_settings
from taftcache.stages.train.settings import Settings

SECTIONS = ("tangent", "objective", "prior", "solver", "compose", "privacy", "device")
"""What a store's record takes over from the recipe that it is trained with."""


def settings_of(
    store: FeatureStore, recipe: Recipe | None = None, overrides: Overrides = (), command: str = "train"
) -> Settings:
    """The recipe that would be in force (the store's, with stage 2's sections of ``recipe`` and with ``overrides``) and
    its base point.

    Raises:
        IdentityError, RecipeError, BackboneError: it is no recipe (``checked_recipe``), ``command``
        does not use an override, or the store cannot follow it (``check_settings``); and what ``read_base`` raises.
    """
    if recipe is not None:
        recipe = checked_recipe(recipe)
    if overrides:
        recipe = overridden(command, store, overrides, recipe)
    if recipe is not None:
        check_settings(store, recipe)
        recipe = parse_recipe(recorded_values(store, recipe), str(store.path))
    recipe = recipe or recorded_recipe(store)
    return Settings(recipe=recipe, base=read_base(store, recipe.tangent), refusal=refusal(store, "teachers", recipe))


def recorded_values(store: FeatureStore, recipe: Recipe) -> dict[str, Any]:
    """The recipe as the store records it once it was trained with ``recipe``."""
    given = recipe_values(recipe)
    return store.manifest.recipe | {section: given[section] for section in SECTIONS}


def changed_settings(store: FeatureStore, recipe: Recipe) -> dict[str, str]:
    """Stage 2's settings of ``recipe`` that differ from the store's record: "objective.ridge" -> "0.1 → 0.01"."""
    recorded, asked = (
        {f"{section}.{key}": value for section in SECTIONS if section != "device" for key, value in v[section].items()}
        | {"device": v["device"]}
        for v in (recipe_values(recorded_recipe(store)), recipe_values(recipe))
    )
    return {key: f"{recorded[key]!r} → {value!r}" for key, value in asked.items() if recorded[key] != value}


def makes_models(key: str) -> bool:
    """Whether components depend on the setting "section.key"."""
    return key.split(".")[0] in ("tangent", "objective", "prior", "solver") and key != "solver.memory"


def record_recipe(change: Transaction, store: FeatureStore, recipe: Recipe) -> None:
    """Put stage 2's sections of ``recipe`` into the store's record, if they differ from it.

    Call it in the transaction that first writes something made with them, so that a refused command records nothing.
    """
    values = recorded_values(store, recipe)
    if values != store.manifest.recipe:
        if refusal(store, "teachers", recipe) is None:
            remember(store.place, recipe, ["teachers"])
        change.update(recipe=values)


def beside_notes(store: FeatureStore) -> list[str]:
    """A note if the tombstone file beside the store could not be written, or lies on another file system."""
    beside = store.tombstone_file
    if beside.file is None:
        return []
    if beside.is_saved:
        return [
            f"{store.path} is a mount point, and {beside.file}, which knows what was forgotten or spent, lies outside "
            "of it: if that is a container's own layer, it goes with the container; mount the folder above the store"
        ] * os.path.ismount(os.path.realpath(store.place))
    return [
        f"{beside.file} cannot be written, so that an old copy of the store, put back here, would not know what was "
        f"forgotten or spent since: let {beside.file.parent} be written to; the next command that writes to the store "
        "completes it"
    ]


def wanted_shards(store: FeatureStore, shards: Sequence[str] | None) -> list[Shard]:
    """The shards to train: those named, or all that were not subtracted.

    Raises:
        UnknownName: a name that no shard has. StoreError: nothing to train.
    """
    names, out = [shard.name for shard in store.shards], subtracted(store)
    if unknown := sorted(set(shards or []) - set(names)):
        raise UnknownName(
            f"{store.path} has no shard {', '.join(unknown)} to train",
            names=unknown,
            got=", ".join(unknown),
            do=f"one of {', '.join(names)}" if names else first_rows(store),
        )
    wanted = [s for s in store.shards if (s.name not in out if shards is None else s.name in shards)]
    if not wanted:
        raise StoreError(
            f"{store.path} has no shard to train",
            got=f"subtracted: {', '.join(out)}" if out else "no rows to train on",
            do=f"name one that is to be trained again: --shard {out[0]}" if out else first_rows(store),
        )
    return wanted


def plan_with(store: FeatureStore, shards: Collection[str]) -> dict[str, Any]:
    """The store's plan with ``shards`` in compositions again, if they had been left out."""
    out = subtracted(store)
    kept = [name for name in out if name not in shards]
    return store.manifest.plan if kept == out else plan_without(store, subtracted=kept)


def plan_without(store: FeatureStore, *, subtracted: Sequence[str], dropped: int = 0) -> dict[str, Any]:
    """The store's plan with the ``subtracted`` shards left out of compositions, and ``dropped`` groups fewer."""
    plan = {k: v for k, v in store.manifest.plan.items() if k != "subtracted"}
    plan["groups"] = planned_shards(store) - dropped
    return plan | ({"subtracted": list(subtracted)} if subtracted else {})
