"""Which components and models were made from other rows, members or settings than a store has now."""

from __future__ import annotations

import json

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.meta import ComponentMeta
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, is_component, shard_of
from taftcache.stages.completeness import subtracted
from taftcache.stages.train.compositions import current_key
from taftcache.stages.train.record import promised
from taftcache.stages.train.settings import Settings

OUTDATED = "not made from the rows and settings that the store has now"


def key_of(store: FeatureStore, settings: Settings, name: str) -> str | None:
    """The key that the component or model ``name`` would have if it were made now; None of what has none.

    Raises:
        StoreError: a teacher of its prior is gone, or lacks a row.
    """
    if name in (MEAN, WEIGHTED, EXACT):
        return _composed_key(store, name, settings)
    if name == HEAD:
        return settings.key(store.shards, "head")
    if not is_component(name) or not store.has_shard(shard_of(name)):
        return None
    shard = store.shard(shard_of(name))
    return settings.key([shard], settings.train) if shard.role == "train" else None


def outdated(store: FeatureStore, settings: Settings, model: str | None = None) -> list[str]:
    """Names of those of the store, or ``model`` where it is one."""
    # A sum of what is outdated is, too, and so is one that lacks a shard.
    sums = {MEAN, WEIGHTED} if stale_parts(store, settings) else set()
    there = [name for name in store.objects() if model in (None, name)]
    return [name for name in there if name in sums or _is_outdated(store, settings, name)]


def outdated_notes(store: FeatureStore, settings: Settings, model: str | None = None) -> list[str]:
    """A note that names those of the store, or ``model`` where it is one; none where nothing is outdated."""
    old = outdated(store, settings, model)
    if not old:
        return []
    trains = stale_parts(store, settings) or not set(old) <= {MEAN, WEIGHTED, EXACT}
    verb = f"train{train_options(store, settings)}" if trains else "compose"
    return [f"{OUTDATED}: {', '.join(old)}; next: taftcache {verb}"]


def differs_by_rows(meta: ComponentMeta, key: str) -> bool:
    """Whether a component would be made of other rows now, but with the settings that it was made with."""
    try:
        before, now = json.loads(meta.key or ""), json.loads(key)
        of_rows = ("rows", "start")  # where the exact model's solve starts follows from the rows
        return {k: v for k, v in before.items() if k not in of_rows} == {
            k: v for k, v in now.items() if k not in of_rows
        }
    except (AttributeError, ValueError):
        return False


def _is_outdated(store: FeatureStore, settings: Settings, name: str) -> bool:
    """What was trained privately is not: its noise is not drawn anew for other settings."""
    meta = store.manifest.objects[name].meta
    if PRIVATE in meta and is_component(name):
        return False
    try:
        return key_of(store, settings, name) not in (None, meta.get("key"))
    except StoreError:  # for ``taftcache audit`` to say
        return False


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


def stale_parts(store: FeatureStore, settings: Settings) -> list[str]:
    """Components of the shards that compositions are made of that are missing, or were made from other rows or settings
    than the store has now. Those that were trained privately are not: their noise is not drawn anew for others."""
    objects, out = store.objects(), subtracted(store)
    metas = {s: objects[name].meta if (name := component_of(s.name)) in objects else {} for s in store.shards}
    kept = {shard: meta for shard, meta in metas.items() if shard.name not in out and PRIVATE not in meta}
    try:
        return [component_of(s.name) for s, m in kept.items() if settings.key([s], settings.train) != m.get("key")]
    except StoreError:  # a teacher is gone or lacks a row, for ``taftcache audit`` to say
        return []


def train_options(store: FeatureStore, settings: Settings) -> str:
    """What ``taftcache train`` needs to renew what is outdated or missing, beside private components: it refuses to
    replace those, so it names the others; a shard that has none yet is to be trained privately, too."""
    if not (under := promised(store)) or not (stale := stale_parts(store, settings)):
        return ""
    there = store.objects()
    plain = [name for name in stale if name in there and shard_of(name) not in under]
    shards = "".join(f" --shard {shard_of(name)}" for name in plain or stale)
    return shards if plain else f" --private{shards}"
