"""Whether a store has all shards of its plan, or an extraction or import was stopped on the way."""

from __future__ import annotations

from taftcache.cache.store import FeatureStore


def planned_shards(store: FeatureStore) -> int:
    """How many shards the store's plan has; if it does not say, because no stage made the store, as many as exist."""
    count = store.manifest.plan.get("groups")
    return count if isinstance(count, int) else len(store.manifest.shards)


def is_complete(store: FeatureStore) -> bool:
    """Whether every shard of the store's plan is there."""
    return len(store.manifest.shards) == planned_shards(store)


def making_of(store: FeatureStore) -> str:
    """The command that fills the store: "extract" or "import"."""
    return "import" if "imported" in store.identity else "extract"


def still_missing(store: FeatureStore) -> list[str]:
    """A note if shards of the plan are missing."""
    if is_complete(store):
        return []
    there, planned = len(store.manifest.shards), planned_shards(store)
    return [f"shards here: {there} of {planned}; taftcache {making_of(store)}, run again, makes the others"]
