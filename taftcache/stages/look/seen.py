"""Which rows a store's models saw, and what a report about rows says if a component of theirs is private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from taftcache.cache.format.fault import intact
from taftcache.cache.format.manifest import ObjectRef
from taftcache.cache.store import FeatureStore
from taftcache.consent import groups_here
from taftcache.model.meta import meta_of
from taftcache.names import BUDGET_ALLOWS, PRIVATE, is_component, is_model, shard_of
from taftcache.stages.train.private.records import read_keys

# What a report about rows says if their shard's component is private.
UNCOVERED = "its promise bounds what it holds of any sample, but does not cover what is shown of the row itself"
Saw = Literal["yes", "perhaps"]


def saw(store: FeatureStore, model: str, keys: Mapping[str, str] | None = None) -> dict[str, Saw]:
    """Whether a component or model was trained on the rows that each training shard has now; those that are left out
    have none that it saw.

    "perhaps": the shard was written anew since, because rows came or left or got other labels, or the solve was
    interrupted. A component keeps the digests of its shards and no ids, so nothing says which of the rows it saw. One
    from another store names no shard: it was trained on rows of that store. ``keys``: the store's ``private_keys``, for
    a caller with many models; without them they are read.
    """
    objects, keys = store.objects(), private_keys(store) if keys is None else keys
    said = meta_of(objects[model].meta)
    if said.coefficients is None:
        return _saw_itself(store, objects[model], keys)
    found: dict[str, Saw] = {}
    for member in (name for name, mu in said.coefficients.items() if mu):
        if member in objects and objects[member].digest == (said.members or {}).get(member):
            found |= _saw_itself(store, objects[member], keys)
        elif is_component(member) and store.has_shard(shard_of(member)):  # it was made again since, or is gone
            found[shard_of(member)] = "perhaps"
    return found


def in_groups_of_one(first: FeatureStore, second: FeatureStore, ids: Sequence[str]) -> list[bool]:
    """Whether the group of each sample, by ``groups_here`` of either store, has training rows in one store alone."""
    found = [False] * len(ids)
    for store in (first, second):
        if (groups := groups_here(store, ids)) is not None:
            one, other = ({*(groups_here(store, rows.sample_ids()) or ())} for rows in (first, second))
            apart = one ^ other
            found = [known or group in apart for known, group in zip(found, groups, strict=True)]
    return found


def private_keys(store: FeatureStore) -> dict[str, str]:
    """What the random keys of private components stand for; none where the object that says it is damaged."""
    return intact(lambda: read_keys(store)) or {}


def _saw_itself(store: FeatureStore, ref: ObjectRef, keys: Mapping[str, str]) -> dict[str, Saw]:
    """``saw`` of what is no sum."""
    said = meta_of(ref.meta)
    if PRIVATE in ref.meta:  # what its random key stands for is kept beside it; releases up to 0.1.0 had no such keys
        said = msgspec.structs.replace(said, key=keys.get(said.key or "", said.key))
    then = dict(zip(said.shards or [], said.row_digests, strict=False))
    now = {shard.name: shard.digest for shard in store.manifest.shards}
    return {name: "yes" if then.get(name) == now[name] else "perhaps" for name in said.shards or [] if name in now}


def private_parts(store: FeatureStore) -> list[str]:
    """Names of components and models that make a promise of privacy."""
    return [name for name, ref in store.objects().items() if is_model(name) and PRIVATE in ref.meta]


def kept_notes(store: FeatureStore, model: str | None = None) -> list[str]:
    """A note on private components, or on the one that is named, whose shards came to have other rows or labels since:
    they are not outdated, because noise is not drawn anew unasked."""
    keys = intact(lambda: read_keys(store))
    if keys is None:  # damaged, so that nothing says what they were made from
        return []
    own = {n: ref for n, ref in store.objects().items() if is_component(n) and PRIVATE in ref.meta}
    old = [n for n, ref in own.items() if model in (None, n) and "perhaps" in _saw_itself(store, ref, keys).values()]
    return old and [
        f"private, and made before rows or labels of their shards changed: {', '.join(old)}; kept until "
        f"taftcache train --private, {BUDGET_ALLOWS}"
    ]


def private_notes(store: FeatureStore) -> list[str]:
    """What a report about rows says if the store has private parts; empty otherwise."""
    parts = private_parts(store)
    return [f"{', '.join(parts)} private: {UNCOVERED}"] if parts else []
