"""Which components a store's compositions are made of. No torch here, for looking must start fast."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from taftcache.cache.format import ledger
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.meta import key_parts
from taftcache.names import EXACT, HEAD, component_of


def imported(store: FeatureStore) -> list[str]:
    """Names of the components that came from another store."""
    return [name for name, ref in store.objects().items() if ref.meta.get("imported")]


def subtracted(store: FeatureStore) -> list[str]:
    """Names of shards that a request to forget left out of the composition: trained again only by name."""
    return list(store.manifest.plan.get("subtracted", []))


def untrained(store: FeatureStore) -> dict[str, int]:
    """Shards that compositions do not wait for, with their rows: nothing was ever trained on any shard, and there are
    imported components to compose.

    Whatever tells that there was a component (another shard's, a head, a sum with it, a receipt, a private release)
    makes it one that is missing: a composition without it would pass for one of everything. Damage that hides this
    counts as telling it.
    """
    there, parts = store.objects(), {component_of(ref.name) for ref in store.manifest.shards}
    if not imported(store) or HEAD in there or not parts.isdisjoint(there):
        return {}
    try:
        entries = store.ledger()
    except StoreError:
        return {}
    summed = chain.from_iterable(ref.meta.get("coefficients", ()) for ref in there.values())
    destroyed = chain.from_iterable(entry.get("destroyed", ()) for entry in entries)
    if any(ledger.RELEASED in entry for entry in entries) or not parts.isdisjoint(chain(summed, destroyed)):
        return {}
    return {ref.name: ref.rows for ref in store.manifest.shards if ref.role == "train"}


def recorded_members(name: str, meta: Mapping[str, Any]) -> Collection[str]:
    """Names of the components that the composition ``name`` was made of, as its ``meta`` says."""
    if name != EXACT:
        return dict[str, str](meta.get("members", {}))
    start = key_parts(meta.get("key")).get("start")
    return start if isinstance(start, dict) else ()
