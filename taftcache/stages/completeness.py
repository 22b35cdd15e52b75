"""Whether a store has all shards of its plan: an extraction may have been stopped, shards may be left out."""

from __future__ import annotations

from collections.abc import Mapping

from taftcache.cache.store import FeatureStore
from taftcache.names import extract_again, typed


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


def making_others(store: FeatureStore) -> str:
    """What makes the shards that are missing."""
    again = f"taftcache {making_of(store)}, run again, makes the others"
    if making_of(store) == "import":
        return again
    return f"{again}; without the file of the recipe: {extract_again(store.path)}"


def still_missing(store: FeatureStore) -> list[str]:
    """A note if shards of the plan are missing."""
    if is_complete(store):
        return []
    there, planned = len(store.manifest.shards), planned_shards(store)
    return [f"shards here: {there} of {planned}; {making_others(store)}"]


def first_rows(store: FeatureStore) -> str:
    """What gives rows to a store that has none to train on."""
    return next(iter(still_missing(store)), "taftcache append takes rows in")


def imported(store: FeatureStore) -> list[str]:
    """Names of the components that came from another store."""
    return [name for name, ref in store.objects().items() if ref.meta.get("imported")]


def subtracted(store: FeatureStore) -> list[str]:
    """Names of shards that a request to forget left out of the composition: trained again only by name."""
    return list(store.manifest.plan.get("subtracted", []))


def subtracted_notes(store: FeatureStore, rows: Mapping[str, int] | None = None) -> list[str]:
    """A note on what was subtracted, and how to have it in a model again; else none.

    ``rows``: shard -> rows, of those to be told of; by default all that are subtracted.
    """
    if rows is None:
        out = subtracted(store)
        rows = {ref.name: ref.rows for ref in store.manifest.shards if ref.name in out}
    if not rows:
        return []
    place, names = typed(store.path), " ".join(f"--shard {name}" for name in rows)
    return [
        f"subtracted, and so left out of models/mean: {', '.join(rows)} (rows: {sum(rows.values())}); "
        f"to have them in it: taftcache train {place} {names}, then taftcache compose {place}"
    ]
