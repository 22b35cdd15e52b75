"""What to say of outdated components and models, and which command makes them anew."""

from __future__ import annotations

from taftcache.cache.store import FeatureStore
from taftcache.model.outdated import OUTDATED, Keys, outdated, stale_parts
from taftcache.names import EXACT, MEAN, WEIGHTED, shard_of
from taftcache.stages.train.promises import promised


def outdated_notes(store: FeatureStore, keys: Keys, model: str | None = None) -> list[str]:
    """A note that names what ``outdated`` finds; empty if that is nothing."""
    old = outdated(store, keys, model)
    if not old:
        return []
    trains = stale_parts(store, keys) or not set(old) <= {MEAN, WEIGHTED, EXACT}
    verb = f"train{train_options(store, keys)}" if trains else "compose"
    return [f"{OUTDATED}: {', '.join(old)}; next: taftcache {verb}"]


def train_options(store: FeatureStore, keys: Keys) -> str:
    """The options with which ``taftcache train`` renews what is outdated or missing, beside private components: it
    refuses to replace those, so the options name the others. Shards without a component are trained privately, too."""
    if not (under := promised(store)) or not (stale := stale_parts(store, keys)):
        return ""
    there = store.objects()
    plain = [name for name in stale if name in there and shard_of(name) not in under]
    shards = "".join(f" --shard {shard_of(name)}" for name in plain or stale)
    return shards if plain else f" --private{shards}"
