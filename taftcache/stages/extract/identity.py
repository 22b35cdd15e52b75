"""Whether a recipe asks for what a store was made from, and its data gives the samples the classes that they have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from taftcache.backbone.files import file_digest, weights_file
from taftcache.backbone.sources.base import Labelled
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import IdentityError
from taftcache.names import counted
from taftcache.recipe import Recipe, recipe_values
from taftcache.tangent.config import TailConfig
from taftcache.tangent.selection import select
from taftcache.tangent.spec import TAIL


def check_words(store: FeatureStore, recipe: Recipe, but: Collection[str] = ()) -> None:
    """IdentityError unless the recipe asks, in all settings ``but`` these, for what the store was made from.

    A recipe may skip images that do not decode where the store's stopped at them: of those that it has, none was such.
    """
    recorded = recorded_recipe(store)  # a store of others may record anything
    ours, theirs = _request(recipe_values(recorded)), _request(recipe_values(recipe))
    if recorded.data.unreadable == "stop":
        but = {*but, "data.unreadable"}
    _refuse(
        [
            f"{k}: the store has {ours.get(k)!r}, the recipe {theirs.get(k)!r}"
            for k in sorted(ours | theirs)
            if ours.get(k) != theirs.get(k) and k not in but
        ]
    )


def elsewhere(store: FeatureStore, recipe: Recipe, keys: Collection[str]) -> frozenset[str]:
    """Settings of [data] by their ``keys``, and ``test`` where both the store and the recipe have one, or neither."""
    tested = bool(recorded_recipe(store).data.test) == bool(recipe.data.test)
    return frozenset(f"data.{key}" for key in {*keys, "test"} if tested or key != "test")


def check_request(store: FeatureStore, recipe: Recipe, but: Collection[str] = ()) -> None:
    """`check_words`, and that the file of weights is the one that made the features; in milliseconds."""
    check_words(store, recipe, but)
    if "imported" in store.identity:
        _refuse([f"data: the store's rows were imported from {store.identity['imported']['file']}"])
    if "converted" in store.identity:
        _refuse([f"store.dtype: the store's rows were extracted in {store.identity['converted']['from']}"])
    file = weights_file(recipe.backbone)
    stored = store.identity["backbone"]["file_digest"]
    if file is not None and stored != file_digest(file):
        _refuse([f"backbone weights: the store's have the digest {stored}, {file} has {file_digest(file)}"])


def check_tail(store: FeatureStore, recipe: Recipe) -> None:
    """RecipeError unless the rows suffice for what the recipe trains."""
    if TAIL in store.objects():
        select(TailConfig.from_dict(store.objects()[TAIL].meta), recipe.tangent)


def classes_of(*sources: Labelled | None) -> dict[str, str]:
    """The class of every sample of some sources, by id."""
    return {item.id: source.classes[item.label] for source in sources if source is not None for item in source.items}


def other_classes(store: FeatureStore, given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Rows of a class that is not the one ``given`` for their ids: id -> (the store's, the given one)."""
    shards = [store.shard(ref.name) for ref in store.manifest.shards]
    there = ((i, store.classes[k]) for shard in shards for i, k in zip(shard.sample_ids, shard.labels, strict=True))
    return {i: (own, given[i]) for i, own in there if given.get(i, own) != own}


def other_classes_note(found: Mapping[str, tuple[str, str]]) -> list[str]:
    """A note on what `other_classes` found; none where it found nothing."""
    if not found:
        return []
    first = min(found)
    own, given = found[first]
    return [
        f"{counted(len(found), 'row')} of another class than the data says now (first: {first}, {own!r} in the store, "
        f"{given!r} in the data); taftcache append --relabel takes corrected labels in"
    ]


def _refuse(different: list[str]) -> None:
    if different:
        raise IdentityError(
            "the store was made with other settings, data or weights than the recipe asks for",
            got="; ".join(different[:6]),
            do="give this recipe its own folder with --set store.path=…, or put the old settings back",
        )


def _request(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide the cached bytes, flat."""
    sections = {"data", "backbone", "preprocess", "store"}
    flat = {f"{s}.{k}": v for s in sections for k, v in msgspec.to_builtins(values[s]).items()}
    return {k: v for k, v in flat.items() if k != "store.path"}
