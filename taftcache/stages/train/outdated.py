"""Which components and models were made from other rows, members or settings than a store has now."""

from __future__ import annotations

import json

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, is_component
from taftcache.stages.train.composing import current_key
from taftcache.stages.train.settings import Settings


def key_of(store: FeatureStore, settings: Settings, name: str) -> str | None:
    """The key that the component or model ``name`` would have if it were made now; None of what has none.

    Raises:
        StoreError: a teacher of its prior is gone, or lacks a row.
    """
    if name in (MEAN, WEIGHTED, EXACT):
        return _composed_key(store, name, settings)
    if name == HEAD:
        return settings.key(store.shards, "head")
    own = [shard for shard in store.shards if is_component(name) and component_of(shard.name) == name]
    return settings.key(own, settings.train) if own else None


def outdated(store: FeatureStore, settings: Settings) -> list[str]:
    """Their names. What was trained privately is not among them: its noise is not drawn anew for other settings."""
    old = []
    for name, ref in store.objects().items():
        if PRIVATE in ref.meta and is_component(name):
            continue
        try:
            key = key_of(store, settings, name)
        except StoreError:  # for ``taftcache audit`` to say
            continue
        if key is not None and ref.meta.get("key") != key:
            old.append(name)
    return old


def outdated_notes(store: FeatureStore, settings: Settings, model: str | None = None) -> list[str]:
    """A note that names them, or ``model`` alone, where there are any."""
    old = [name for name in outdated(store, settings) if model in (None, name)]
    if not old:
        return []
    verb = "compose" if set(old) <= {MEAN, WEIGHTED, EXACT} else "train"
    return [f"not made from the rows and settings that the store has now: {', '.join(old)}; next: taftcache {verb}"]


def _composed_key(store: FeatureStore, name: str, settings: Settings) -> str:
    """The key of a composition whose members are as they are now; it may have been made before one was imported."""
    objects = store.objects()
    meta = objects[name].meta
    if name == EXACT:
        try:
            members = json.loads(meta["key"])["start"]
        except (KeyError, TypeError, ValueError):
            members = {}
    else:
        members = meta.get("members", {})
    now = {member: objects[member].digest for member in members if member in objects}
    return current_key(store, settings, name, now)
