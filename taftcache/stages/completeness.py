"""Whether a store is all that its plan says, or an extraction was stopped on the way."""

from __future__ import annotations

from taftcache.cache.store import FeatureStore


def planned_shards(store: FeatureStore) -> int:
    """How many shards the store's plan has. One that does not say, of a store that no stage made, has those there."""
    count = store.manifest.plan.get("groups")
    return count if isinstance(count, int) else len(store.manifest.shards)


def is_complete(store: FeatureStore) -> bool:
    """Whether every shard of the store's plan is there."""
    return len(store.manifest.shards) == planned_shards(store)


def making_of(store: FeatureStore) -> str:
    """The command that fills the store: "extract" or "import"."""
    return "import" if "imported" in store.identity else "extract"


def still_missing(store: FeatureStore) -> list[str]:
    """A note where shards of the plan are missing; else none."""
    if is_complete(store):
        return []
    there, planned = len(store.manifest.shards), planned_shards(store)
    return [f"shards here: {there} of {planned}; taftcache {making_of(store)}, run again, makes the others"]
