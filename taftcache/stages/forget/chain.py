"""Check that the ledger is whole, and that it agrees with the tombstones and with the record beside the store."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from taftcache.cache.format import ledger
from taftcache.cache.kept_keys import TombstoneKeys
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, IntegrityError, StoreError
from taftcache.names import counted, shard_of, short_key, them, typed
from taftcache.privacy.budget import EVENT
from taftcache.stages.forget.finding import Findings
from taftcache.stages.signature import STORE, is_signed, signed_text, store_digest

Entry = Mapping[str, Any]
DESTROYED, FORGOTTEN = "destroy-key", "forget"
OTHER_KEY = "audit with the public key that the entries were signed with, if it is yours"
UNSIGNED = "sign the next request (--sign KEY): its signature covers all entries before it"


class _Said(msgspec.Struct, frozen=True):
    """What an entry says about tombstones."""

    seq: int
    event: str = ""
    ids: list[str] = []
    samples: int = 0
    classes_removed: int = 0
    tombstones_after: dict[str, Any] | None = None


def is_receipt(entry: Entry) -> bool:
    """Whether a ledger entry is the receipt of a request, not that of a private training or the store's own."""
    return entry.get("event") not in (EVENT, ledger.ADOPT)


def entries_of(store: FeatureStore) -> list[dict[str, Any]]:
    """The ledger's entries; none if it is damaged, which `check_ledger` reports."""
    try:
        return store.ledger()
    except StoreError:
        return []


def training_of(entries: Sequence[Entry], name: str) -> Entry | None:
    """The entry of the last private training of the component ``name``, which is the one that made it."""
    every = (e for e in reversed(entries) if e.get("event") == EVENT and e.get("component") == name)
    return next(every, None)


def left_since(entries: Sequence[Entry], name: str) -> int | None:
    """How many samples of its shard have left since the private component ``name`` was trained, by the ledger's
    ``entries``; None if they do not say."""
    if (trained := training_of(entries, name)) is None:
        return None
    later = [e.get("shards") for e in entries if e["seq"] > trained["seq"] and e.get("event") == FORGOTTEN]
    try:
        return sum(rows.get(shard_of(name), 0) for rows in msgspec.convert(later, list[dict[str, int]]))
    except msgspec.ValidationError:
        return None


def check_ledger(store: FeatureStore, public_key: str | None, to: Findings) -> tuple[int, dict[str, int]]:
    """Check the chain, its signatures, dates and tombstones; returns the number of receipts, and that of valid
    signatures by public key.

    Args:
        public_key: as `signature.checked_public_key` returns it; every entry must be signed with this key.
    """
    try:
        entries = store.ledger()
    except StoreError as error:
        to.found("ledger", "ledger/", error.fault)
        return 0, {}
    valid = _signatures(entries, public_key, store_digest(store), to)
    with suppress(IntegrityError, FormatError):  # a damaged list of tombstones: verify has said it
        _ties(entries, store.manifest.tombstones, to)
    _dates(entries, to)
    _copies(entries, to)
    receipts = [entry for entry in entries if is_receipt(entry)]
    if receipts and _has_changed(store, entries[-1].get("content_after")):
        to.notes.append("the store has changed since its last receipt")
    return len(receipts), valid


def _has_changed(store: FeatureStore, after: object) -> bool:
    """Whether the store's content differs from what an entry says it was ``after`` it; False if it says nothing."""
    try:
        key = ledger.read_key(store.root, store.manifest) if store.manifest.tombstone_key else b""
    except (IntegrityError, FormatError):  # `check_beside` says it
        return False
    return after is not None and not ledger.names_state(after, store.manifest.content_digest, key)


def check_beside(store: FeatureStore, to: Findings) -> None:
    """Find rows that an old copy brought back; check that the store and the record beside it know the same."""
    beside = store.tombstone_file
    with suppress(StoreError):  # `check_ledger` reports it
        known = {charge.entry for charge in beside.charges}
        entries = store.ledger()
        there = {charge.entry for charge in ledger.charges_in(entries, store.manifest.ledger)}
        if beside.file is not None and not there <= known:
            to.notes.append(
                f"{beside.file} does not know all private trainings, so that a store made anew here would begin with "
                "a fresh budget; the next command that writes to the store completes it"
            )
        own, others = store.lost_charges(entries)
        if count := len(own) + sum(map(len, others)):
            to.notes.append(
                f"{beside.file} knows of {count} private trainings that the ledger does not have, of a later state or "
                "of another store that was here; what they spent is charged to every further one"
            )
    back = store.returned()
    if back:
        to.found("returned rows", str(store.path), f"{len(back)} of its samples and components forgotten at this place")
    try:
        lost, tombstones = store.lost_tombstones(), frozenset(store.manifest.tombstones)
        key = ledger.read_key(store.root, store.manifest) if tombstones else b""
    except StoreError as error:
        to.found("tombstones", ledger.KEY_FILE, error.fault)
        return
    try:
        beside.check_owner()
    except StoreError as error:
        to.found("tombstones", str(beside.file), error.fault)
    if beside.file is not None and not beside.covers(key, tombstones):
        to.notes.append(
            f"{beside.file} does not know all tombstones, so that an old copy put back here would go "
            "unnoticed; the next command that writes to the store completes it"
        )
    if lost and not back:
        problem = f"it knows {counted(len(lost), 'tombstone')} that the store does not have"
        to.found(
            "tombstones",
            str(beside.file),
            problem,
            f"taftcache audit {typed(store.path)} --replay, which takes them over",
        )


LEFT = (
    "the key of the store's tombstones lies in it, with no store beside it: whoever reads it can ask about forgotten "
    "ids"
)
LEFT_DO = "if the store was moved from there, move the file along with it; else delete it if no store needs it"
KEPT = "the key that this store destroyed: whoever reads it can ask about the ids behind the receipts' hashes"
KEPT_DO = "taftcache forget {store} --destroy-key, which destroys it there, too"
DELETE = "delete it if no other store needs it"


def check_kept_keys(store: FeatureStore, keys: TombstoneKeys, searched: Collection[Path], to: Findings) -> None:
    """Find the key that the store destroyed in files around it; note one that it still has in a file that was left, and
    a destroyed one in another store, where somebody may want it. What lies in a folder of ``searched`` is left out."""
    if keys.file is None or any(keys.file.is_relative_to(os.path.realpath(folder)) for folder in searched):
        return
    try:
        for at in keys.beside():
            if at.state == "unread":
                to.notes.append(f"{at.path} cannot be read here, and may have the key of the store's tombstones")
            elif at.state == "present" and not at.is_store:
                to.notes.append(f"{at.path}: {LEFT}; {LEFT_DO}")
            elif at.state == "destroyed" and at.is_store:
                to.notes.append(f"{at.path} has {KEPT}; taftcache forget {typed(at.path)} --destroy-key")
            elif at.state == "destroyed":
                do = KEPT_DO.format(store=typed(store.path)) if at.is_left else DELETE
                to.found("tombstones", str(at.path), f"it has {KEPT}", do)
    except StoreError as error:
        to.notes.append(f"{error.fault}, {error.got}: whether a file there has the key of tombstones is not known")


def _signatures(entries: Sequence[Entry], public_key: str | None, own: str, to: Findings) -> dict[str, int]:
    """How many signatures are valid, by public key, in a store with that ``own`` digest. An entry without one, or with
    one that does not name its store, is covered by a later valid one, which signs its digest."""
    valid, unsigned, covered, nameless = Counter[str](), list[str](), list[str](), list[str]()
    for entry in entries:
        where = _place(entry)
        if "signature" not in entry:
            unsigned.append(where)
        elif not is_signed(signed_text(entry), str(entry["signature"]), str(entry.get("public_key"))):
            to.found("signature", where, "the signature is not that of the receipt")
        elif public_key is not None and entry["public_key"] != public_key:
            to.found("signature", where, f"signed with another key, {entry['public_key']}", OTHER_KEY)
        elif entry.get(STORE, own) != own:
            to.found("signature", where, "it was signed in another store")
        else:
            valid[bytes.fromhex(entry["public_key"]).hex()] += 1  # one key, however its digits are written
            covered, unsigned = [*covered, *unsigned], []
            nameless = [] if STORE in entry else [*nameless, where]
    if public_key is None:
        if len(valid) > 1:
            keys = ", ".join(f"{short_key(key)} ({counted(n, 'entry')})" for key, n in valid.items())
            to.notes.append(
                f"the ledger is signed with {len(valid)} different keys: {keys}; whoever may write to the store can "
                "sign with a key of his own: audit with yours (--public-key)"
            )
        return valid
    if not entries:
        to.found("signature", "ledger/", "the ledger is empty: nothing is signed with that key", UNSIGNED)
    for where in unsigned:
        to.found("signature", where, "the entry is not signed", UNSIGNED)
    if covered:
        to.notes.append(f"{', '.join(covered)}: not signed, but named by an entry after it that is")
    if nameless:
        to.notes.append(
            f"{', '.join(nameless)}: the signature, of an earlier build, does not say of which store it is; that of "
            "the next signed request covers it"
        )
    return valid


def _ties(entries: Sequence[Entry], tombstones: Collection[str], to: Findings) -> None:
    """Check that the tombstones are those that the ledger's entries leave.

    An entry records how many tombstones there are after it, and their digest. A receipt of an earlier release has only
    the request's ids: their tombstones must be there, and others may be only if such a receipt does not list all that
    its request made.
    """
    there, named, last = set(tombstones), set[str](), None
    unlisted = 0
    for entry in entries:
        try:
            said = msgspec.convert(entry, _Said)
        except msgspec.ValidationError as error:
            to.found("ledger", _place(entry), f"it is no entry that taftcache writes: {error}")
            return
        if said.event == DESTROYED:
            named, unlisted = set(), 0
        if said.event in (DESTROYED, FORGOTTEN) or said.tombstones_after is not None:
            last = said
        if said.event == FORGOTTEN:
            named |= set(said.ids)
            unlisted += said.classes_removed + (0 if said.ids else said.samples)
    if last is None:
        if there:
            to.found(
                "tombstones",
                "manifest.json",
                f"{counted(len(there), 'tombstone')} that no receipt in the ledger names",
            )
        return
    where = _place({"seq": last.seq})
    if last.tombstones_after is not None:
        if ledger.commitment(there)[ledger.AFTER] != last.tombstones_after:
            problem = f"{counted(len(there), 'tombstone')}, not those that {where}, the last entry to change them, left"
            to.found("tombstones", "manifest.json", problem)
        return
    if lost := named - there:
        to.found(
            "tombstones",
            "manifest.json",
            f"{counted(len(lost), 'tombstone')} gone, of those that receipts up to {where} name",
        )
    more = there - named
    if len(more) > unlisted:
        to.found("tombstones", "manifest.json", f"no receipt names {len(more) - unlisted} of its tombstones")
    elif more:
        to.notes.append(
            f"{counted(len(more), 'tombstone')} cannot be tied to a receipt, which earlier releases did not list"
        )


def _dates(entries: Sequence[Entry], to: Findings) -> None:
    """Note an entry that is dated before one that it follows, or after today. It is no finding: a wrong clock breaks no
    promise."""
    newest, at = datetime.min.replace(tzinfo=UTC), ""
    for entry in entries:
        with suppress(TypeError, ValueError, KeyError):
            time = datetime.fromisoformat(entry["time"])
            if time < newest:
                to.notes.append(f"{_place(entry)} is dated before {at}, which it follows: a clock was wrong")
            else:
                newest, at = time, _place(entry)
    if newest > datetime.now(UTC) + timedelta(days=1):
        to.notes.append(f"{at} is dated {newest:%Y-%m-%d}, after today: a clock was or is wrong")


def _copies(entries: Sequence[Entry], to: Findings) -> None:
    """Note each receipt whose request left copies of its rows: a request forgets ids, not all rows with their bytes.

    No receipt says which rows these were, so nobody can tell whether it was them that a later request took.
    """
    last = max((e["seq"] for e in entries if e.get("event") == FORGOTTEN and e.get("samples")), default=0)
    for entry in entries:
        if entry.get("event") == FORGOTTEN and (count := entry.get("copies")):
            rows = f"{counted(count, 'row')} of other ids held the very bytes of what it forgot, and stayed"
            since = f" then; a later request may have taken {them(count)}" if entry["seq"] < last else ""
            to.notes.append(f"{_place(entry)}: {rows}{since}")


def _place(entry: Entry) -> str:
    return f"ledger/{entry['seq']:06d}"
