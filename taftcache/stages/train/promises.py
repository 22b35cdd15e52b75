"""Which shards are under a promise of privacy. No torch here, for looking must start fast."""

from __future__ import annotations

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.names import PRIVATE, component_of
from taftcache.privacy.budget import EVENT, PLAN


def with_noise(store: FeatureStore) -> list[str]:
    """Names of the shards whose component was trained privately."""
    there = store.objects()
    names = [(shard.name, there.get(component_of(shard.name))) for shard in store.shards]
    return [name for name, ref in names if ref is not None and PRIVATE in ref.meta]


def promised(store: FeatureStore) -> list[str]:
    """Names of the shards about whose rows something was released privately, whether or not the component still exists.

    An imported store, whose ledger stayed behind at the export, knows of no release: it counts as made elsewhere. If
    something was released but the ledger, which says about which shards, is damaged, these are all shards.
    """
    named = {*with_noise(store)}
    if PLAN in store.manifest.plan or store.tombstone_file.charges:  # else nothing was released
        try:
            entries = store.ledger()
            entries += store.lost_charges(entries)[0]
        except StoreError:
            return [shard.name for shard in store.shards]
        named |= {str(name) for entry in entries if entry.get("event") == EVENT for name in entry["shards"]}
    return [shard.name for shard in store.shards if shard.name in named]
