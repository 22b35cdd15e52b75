"""Check that a recipe asks for what a store was made from."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from taftcache.backbone.files import file_digest, weights_file, weights_kind
from taftcache.cache.store import FeatureStore
from taftcache.consent import check_weights_there, recorded_recipe
from taftcache.errors import IdentityError
from taftcache.names import imported_from, typed
from taftcache.recipe import Recipe, recipe_values
from taftcache.tangent.config import TailConfig
from taftcache.tangent.selection import select
from taftcache.tangent.spec import TAIL


def check_words(store: FeatureStore, recipe: Recipe, but: Collection[str] = ()) -> None:
    """IdentityError unless the recipe asks, in all settings ``but`` these, for what the store was made from.

    A recipe may skip images that do not decode even if the store's stops at them: all that the store has did decode.
    Of weights at another place, the file's digest decides, and not its name.
    """
    recorded = recorded_recipe(store)  # a store from elsewhere may record anything
    ours, theirs = _request(recipe_values(recorded)), _request(recipe_values(recipe))
    if recorded.data.unreadable == "stop":
        but = {*but, "data.unreadable"}
    other = []
    if are_weights_elsewhere(store, recipe):
        but, other = {*but, "backbone.weights"}, _other_file(store, recipe)
    words = [
        f"{k}: the store has {ours.get(k)!r}, the recipe {theirs.get(k)!r}"
        for k in sorted(ours | theirs)
        if ours.get(k) != theirs.get(k) and k not in but
    ]
    _refuse(store, [*other, *words])


def are_weights_elsewhere(store: FeatureStore, recipe: Recipe) -> bool:
    """Whether the recipe names another file than the store's record does, or another folder, for weights of the same
    form; BackboneError if nothing is there."""
    stored = store.identity.get("backbone", {}).get("weights")
    if stored not in ("file", "folder") or recipe.backbone.weights == recorded_recipe(store).backbone.weights:
        return False  # what only the store names is not looked for
    check_weights_there(store, recipe)
    return bool(weights_kind(recipe.backbone) == stored)


def elsewhere(store: FeatureStore, recipe: Recipe, keys: Collection[str]) -> frozenset[str]:
    """The [data] settings with these ``keys``; and ``test`` if the store and the recipe both have one, or neither."""
    tested = bool(recorded_recipe(store).data.test) == bool(recipe.data.test)
    return frozenset(f"data.{key}" for key in {*keys, "test"} if tested or key != "test")


def check_request(store: FeatureStore, recipe: Recipe, but: Collection[str] = ()) -> None:
    """`check_words`, and check that the file of weights is the one that made the features; takes milliseconds."""
    if "imported" in store.identity:
        raise IdentityError(
            f"the rows of {store.path} were imported, and no images are to be extracted into it",
            got=f"imported from {imported_from(store.identity)}",
            do=f"taftcache train {typed(store.path)} goes on with it, and taftcache append {typed(store.path)} FILE "
            "takes in more rows; for images, name another store.path",
        )
    check_words(store, recipe, but)
    if "converted" in store.identity:
        _refuse(store, [f"store.dtype: the store's rows were extracted in {store.identity['converted']['from']}"])
    if not are_weights_elsewhere(store, recipe):  # else their digest has been compared
        _refuse(store, _other_file(store, recipe))


def check_tail(store: FeatureStore, recipe: Recipe) -> None:
    """RecipeError unless the rows suffice for what the recipe trains."""
    if TAIL in store.objects():
        select(TailConfig.from_dict(store.objects()[TAIL].meta), recipe.tangent)


def _other_file(store: FeatureStore, recipe: Recipe) -> list[str]:
    """What to say of a file of weights that is not the one that made the features; nothing if it is."""
    check_weights_there(store, recipe)
    file = weights_file(recipe.backbone)
    stored = store.identity["backbone"]["file_digest"]
    if file is None or (found := file_digest(file)) == stored:
        return []
    return [f"backbone weights: the store's have the digest {stored}, {file} has {found}"]


def _refuse(store: FeatureStore, different: list[str]) -> None:
    if different:
        raise IdentityError(
            "the store was made with other settings, data or weights than the recipe asks for",
            got="; ".join(different[:6]),
            do="another backbone, data or preprocessing needs the images and a store of its own: taftcache extract "
            f"RECIPE --set store.path=NEW --forgotten-of {typed(store.path)}; or put the old settings back",
        )


def _request(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide the cached bytes, flat."""
    sections = {"data", "backbone", "preprocess", "store"}
    flat = {f"{s}.{k}": v for s in sections for k, v in msgspec.to_builtins(values[s]).items()}
    return {k: v for k, v in flat.items() if k != "store.path"}
