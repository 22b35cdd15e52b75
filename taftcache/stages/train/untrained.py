"""Shards that nothing was ever trained on, beside imported components; no torch here, for looking must start fast."""

from __future__ import annotations

from itertools import chain

from taftcache.cache.format import ledger
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.names import HEAD, component_of, typed
from taftcache.stages.completeness import imported


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


def untrained_notes(store: FeatureStore) -> list[str]:
    """A note on shards that were never trained, and how to have them in a model; else none."""
    if not (rows := untrained(store)):
        return []
    return [
        f"never trained, and so left out of compositions of what was imported: {', '.join(rows)} "
        f"(rows: {sum(rows.values())}); to have them in: taftcache train {typed(store.path)}"
    ]
