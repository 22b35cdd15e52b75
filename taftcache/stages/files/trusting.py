"""Whether a store may open what its record names on this machine; see ``taftcache.consent``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.place.address import as_path
from taftcache.cache.store import FeatureStore
from taftcache.consent import KINDS, SECTION, names, recorded_recipe, remember, take_back


@dataclass(frozen=True, kw_only=True)
class TrustReport:
    """What a store names and may open from now on.

    named: places and names by the recipe's key ("data.train"). removed: whether this was allowed until now, and is no
    longer.
    """

    store: Path
    named: dict[str, Any]
    removed: bool = False


@at_its_place()
def trust(store: Place) -> TrustReport:
    """Allow a store to open the images, weights and teachers that its record names; use it for stores whose maker you
    know.

    It holds for this user, for the store at this place, and for these very names.
    """
    assert isinstance(store, FeatureStore)
    recipe = recorded_recipe(store)
    remember(store.path, recipe, must=True)
    named = {f"{SECTION[kind]}.{key}": value for kind in KINDS for key, value in names(recipe, kind).items()}
    return TrustReport(store=store.path, named=named)


def distrust(store: Path | str) -> TrustReport:
    """Revoke what `trust`, or making a store here, allowed the store at ``store``, which need not exist any more.

    Raises:
        StoreWriteError: the list of what is allowed cannot be written.
    """
    named = take_back(store)
    return TrustReport(store=as_path(store), named=named, removed=True)
