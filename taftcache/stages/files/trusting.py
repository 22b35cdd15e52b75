"""Whether a store may open what its record names on this machine; see ``taftcache.consent``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taftcache.backbone.files import local_folder
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.place.address import as_path
from taftcache.cache.store import FeatureStore
from taftcache.consent import KINDS, SECTION, names, recorded_recipe, remember, take_back
from taftcache.recipe import Recipe
from taftcache.stages.report import Report


@dataclass(frozen=True, kw_only=True)
class TrustReport(Report):
    """What a store names and may open from now on.

    named: places and names by the recipe's key ("data.train"). removed: whether this was allowed until now, and is no
    longer. notes: which of them are relative, and where they lead from the folder that this command ran in.
    """

    store: Path
    named: dict[str, Any]
    removed: bool = False
    notes: list[str] = field(default_factory=list)


@at_its_place()
def trust(store: Place) -> TrustReport:
    """Allow a store to open the images, weights and teachers that its record names; use it for stores whose maker you
    know.

    It holds for this user, for the store at this place, and for these very names.
    """
    assert isinstance(store, FeatureStore)
    recipe = recorded_recipe(store)
    remember(store.place, recipe, must=True)
    named = {f"{SECTION[kind]}.{key}": value for kind in KINDS for key, value in names(recipe, kind).items()}
    return TrustReport(store=store.path, named=named, notes=_relative_notes(recipe, named))


def distrust(store: Path | str) -> TrustReport:
    """Revoke what `trust`, or making a store here, allowed the store at ``store``, which need not exist any more.

    Raises:
        StoreWriteError: the list of what is allowed cannot be written.
    """
    named = take_back(store)
    return TrustReport(store=as_path(store), named=named, removed=True)


def _relative_notes(recipe: Recipe, named: dict[str, Any]) -> list[str]:
    """A note if a place is relative: what is allowed is its name, so that it leads elsewhere from another folder."""
    are_names = {f"data.{key}" for key in {"train", "test"} - set(recipe.data.places)}
    here = list[str]()
    for key, value in named.items():
        for place in value if isinstance(value, list) else [value]:
            path = local_folder(str(place)) or str(place)
            is_name = key in are_names or place == "pretrained" or (key == "backbone.model" and path == place)
            if not (is_name or path.startswith(("~", "$", "s3:")) or os.path.isabs(path)):
                here.append(f"{key} is {os.path.abspath(path)}")
    if not here:
        return []
    return [f"relative to the folder that a command runs in, so another file elsewhere; from here {', '.join(here)}"]
