"""Which components a store's compositions are made of, which have the same numbers, and which those of one that was
forgotten. No torch here, for looking must start fast."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from taftcache.cache.format import ledger
from taftcache.cache.format.fault import intact
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.component_file import numbers_digest
from taftcache.model.meta import key_parts
from taftcache.names import AGAIN, BEFORE, EXACT, HEAD, NUMBERS, by_receipts, component_of, shard_of, typed


def imported(store: FeatureStore) -> list[str]:
    """Names of the components that came from another store."""
    return [name for name, ref in store.objects().items() if ref.meta.get("imported")]


def subtracted(store: FeatureStore) -> list[str]:
    """Names of shards that a request to forget left out of the composition: trained again only by name."""
    return list(store.manifest.plan.get("subtracted", []))


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


def recorded_members(name: str, meta: Mapping[str, Any]) -> Collection[str]:
    """Names of the components that the composition ``name`` was made of, as its ``meta`` says."""
    if name != EXACT:
        return dict[str, str](meta.get("members", {}))
    start = key_parts(meta.get("key")).get("start")
    return start if isinstance(start, dict) else ()


def numbers_of(store: FeatureStore, names: Iterable[str]) -> dict[str, str]:
    """The digest of each component's numbers, by name; without those that are damaged, for verify to report."""

    def numbers(name: str) -> str:
        return numbers_digest(store.read_object(name))

    found = {name: intact(partial(numbers, name)) for name in names}
    return {name: own for name, own in found.items() if own is not None}


def twins(store: FeatureStore, names: Collection[str]) -> list[str]:
    """Imported components that are none of ``names``, but have the numbers of one of them."""
    own = {*numbers_of(store, names).values()}
    return [name for name, each in numbers_of(store, imported(store)).items() if each in own and name not in names]


class ForgottenNumbers(NamedTuple):
    """What is known here of a component's numbers that a request took away.

    receipts: those that say so, as far as the ledger can be read. itself: whether the component was forgotten, and not
    only rows that it was trained on.
    """

    receipts: list[int]
    itself: bool


def forgotten_numbers(store: FeatureStore) -> Callable[[str], ForgottenNumbers | None]:
    """Tells, by the digest of a component's numbers, whether it was forgotten, or what it was trained on; None if
    neither was. The ledger is read once."""

    def by_hash() -> tuple[bytes, list[dict[str, Any]]]:
        return ledger.read_key(store.root, store.manifest), store.ledger()

    key, entries = (intact(by_hash) if store.manifest.tombstone_key else None) or (b"", [])

    def known(numbers: str) -> ForgottenNumbers | None:
        text = NUMBERS + numbers
        own, itself = ledger.tombstone(text, key) if key else "", store.is_forgotten(text)
        fields = (BEFORE, "ids") if itself else (BEFORE,)  # "ids" may be long
        lists = ((entry["seq"], entry.get(each)) for entry in entries for each in fields)
        receipts = [seq for seq, each in lists if isinstance(each, list) and own in each]
        return ForgottenNumbers(receipts, itself) if receipts or itself else None

    return known


MADE_AGAIN = "a component or model of this store that was made again or destroyed for what was forgotten here"

RETURNED = "made with a component that was forgotten in its store, and imported again since"


def again_note(store: FeatureStore, name: str, receipts: Iterable[int]) -> str:
    """What is said of a component that ``receipts`` have forgotten here, and that was imported again. It is none of the
    store's to refuse: its owner may have let it in again, under whatever name."""
    return (
        f"{name}: this very component was forgotten here {by_receipts(receipts)}, and compositions take it in again; "
        f"if it is not to come back: taftcache forget {typed(store.path)} --component {shard_of(name)}"
    )


def own_note(store: FeatureStore, name: str, receipts: Iterable[int]) -> str:
    """What is said of an imported component that is an old one of the store's own."""
    return (
        f"{name}: its numbers are those of {MADE_AGAIN} {by_receipts(receipts)}, and compositions take them in again; "
        f"audit reports it: taftcache forget {typed(store.path)} --component {shard_of(name)}"
    )


def again_notes(store: FeatureStore, names: Iterable[str]) -> list[str]:
    """The same of those of the components that say of themselves that they came again: none is read."""
    since = {name: store.objects()[name].meta.get(AGAIN) for name in names if name in store.objects()}
    return [again_note(store, name, [at] if at else []) for name, at in since.items() if isinstance(at, int)]


class Withdrawn(NamedTuple):
    """Imported components with numbers that a request took from here, and the receipts that say so.

    stayed: of a forgotten component, which were there then under another name. again: which were taken in again since.
    own: of a component or model of the store's own that was made again or destroyed, because its rows left.
    """

    stayed: dict[str, list[int]]
    again: dict[str, list[int]]
    own: dict[str, list[int]]


def withdrawn(store: FeatureStore) -> Withdrawn:
    """See ``Withdrawn``."""
    found = Withdrawn({}, {}, {})
    if not (store.manifest.tombstones or store.tombstone_file.more_than(())):  # else all would be read
        return found
    forgotten = forgotten_numbers(store)
    for name, numbers in numbers_of(store, imported(store)).items():
        if (gone := forgotten(numbers)) is not None:
            since = store.objects()[name].meta.get(AGAIN)
            known = isinstance(since, int) and since >= max(gone.receipts, default=0)
            (found.own if not gone.itself else found.again if known else found.stayed)[name] = gone.receipts
    return found
