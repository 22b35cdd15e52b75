"""Which components and models were made from other rows, members or settings than a store has now."""

from __future__ import annotations

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.meta import ComponentMeta, key_parts
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, is_component, shard_of
from taftcache.stages.completeness import subtracted, untrained
from taftcache.stages.train.compositions import current_key, recorded_members
from taftcache.stages.train.record import promised
from taftcache.stages.train.settings import Settings

OUTDATED = "not made from the rows and settings that the store has now"


def key_of(store: FeatureStore, settings: Settings, name: str) -> str | None:
    """The key that the component or model ``name`` would have if it were made now; None if it has no key.

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
    """Names of the store's outdated components and models; if ``model`` is given, of that one at most."""
    # A sum with an outdated part is outdated, too, and so is one that lacks a shard.
    sums = {MEAN, WEIGHTED} if stale_parts(store, settings) else set()
    there = [name for name in store.objects() if model in (None, name)]
    return [name for name in there if name in sums or _is_outdated(store, settings, name)]


def outdated_notes(store: FeatureStore, settings: Settings, model: str | None = None) -> list[str]:
    """A note that names what ``outdated`` finds; empty if that is nothing."""
    old = outdated(store, settings, model)
    if not old:
        return []
    trains = stale_parts(store, settings) or not set(old) <= {MEAN, WEIGHTED, EXACT}
    verb = f"train{train_options(store, settings)}" if trains else "compose"
    return [f"{OUTDATED}: {', '.join(old)}; next: taftcache {verb}"]


def differs_by_rows(meta: ComponentMeta, key: str) -> bool:
    """Whether a component was made with the settings of ``key``, so that only its rows can differ."""
    of_rows = ("rows", "start")  # where the exact model's solve starts follows from the rows
    before, now = ({k: v for k, v in key_parts(text).items() if k not in of_rows} for text in (meta.key, key))
    return before == now


def _is_outdated(store: FeatureStore, settings: Settings, name: str) -> bool:
    """Whether ``name`` is outdated. A private component never is: its noise is not drawn anew for other settings."""
    meta = store.manifest.objects[name].meta
    if PRIVATE in meta and is_component(name):
        return False
    try:
        return key_of(store, settings, name) not in (None, meta.get("key"))
    except StoreError:  # ``taftcache audit`` reports that
        return False


def _composed_key(store: FeatureStore, name: str, settings: Settings) -> str:
    """The key of a composition of the same members as they are now; components imported since are not among them."""
    objects = store.objects()
    members = recorded_members(name, objects[name].meta)
    now = {member: objects[member].digest for member in members if member in objects}
    return current_key(store, settings, name, now)


def stale_parts(store: FeatureStore, settings: Settings) -> list[str]:
    """Components of the shards in compositions that are missing, or were made from other rows or settings than the
    store has now. Private ones do not count: their noise is not drawn anew for other settings."""
    objects, out = store.objects(), {*subtracted(store), *untrained(store)}
    metas = {s: objects[name].meta if (name := component_of(s.name)) in objects else {} for s in store.shards}
    kept = {shard: meta for shard, meta in metas.items() if shard.name not in out and PRIVATE not in meta}
    try:
        return [component_of(s.name) for s, m in kept.items() if settings.key([s], settings.train) != m.get("key")]
    except StoreError:  # a teacher is gone or lacks a row, which ``taftcache audit`` reports
        return []


def train_options(store: FeatureStore, settings: Settings) -> str:
    """The options with which ``taftcache train`` renews what is outdated or missing, beside private components: it
    refuses to replace those, so the options name the others. Shards without a component are trained privately, too."""
    if not (under := promised(store)) or not (stale := stale_parts(store, settings)):
        return ""
    there = store.objects()
    plain = [name for name in stale if name in there and shard_of(name) not in under]
    shards = "".join(f" --shard {shard_of(name)}" for name in plain or stale)
    return shards if plain else f" --private{shards}"
