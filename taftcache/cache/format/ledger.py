"""What a store remembers: the hash-chained ledger, and keyed tombstones of forgotten ids."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any
from unicodedata import is_normalized, normalize

import msgspec
from blake3 import blake3

from taftcache.cache.format.digest import SHORT, canonical, digest, too_deep
from taftcache.cache.format.fault import Fault, read_named
from taftcache.cache.format.manifest import LedgerRef, Manifest
from taftcache.cache.place.home import Home
from taftcache.errors import StoreWriteError

KEY_FILE = "tombstones.key"
KEY_BYTES = 32
MAX_ENTRY_BYTES = 4 << 20
MAX_ENTRY_VALUES = 1 << 20
RESERVED = ("seq", "previous")
AFTER = "tombstones_after"
"""The field in which an entry says which tombstones the store has once the entry is written."""
DESTROYED_KEY = "tombstone_key"
"""The field in which an entry that destroys the tombstones' key has its digest, by which the key is known elsewhere."""
ADOPT = "adopt tombstones"
"""The event of entries that the store itself writes: tombstones taken over from an earlier store at the same place."""


RELEASED = "releases"
_CHARGE = ("event", "shards", RELEASED, "uncharged", "delta", "budget", "relation")


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an entry says was released about the rows of shards, and under which budget.

    ``entry`` is the entry's digest, ``chain`` that of the first entry of its ledger, which tells ledgers apart.
    """

    entry: str
    chain: str
    said: dict[str, Any]


def entry_path(seq: int, digest: str) -> str:
    """Where the ledger's entry ``seq`` (from 1) of that digest lies."""
    return f"ledger/{seq:06d}-{digest[:SHORT]}.json"


def encode_entry(entry: dict[str, Any], before: LedgerRef | None) -> tuple[bytes, LedgerRef]:
    """The file of the entry that follows ``before``, and the chain's new end.

    StoreWriteError for an entry that could not be read again.
    """
    seq = before.entries + 1 if before else 1
    raw = canonical({**entry, "seq": seq, "previous": before.head if before else ""})
    if len(raw) > MAX_ENTRY_BYTES or _decoded(raw, seq) is None:
        raise StoreWriteError(
            f"cannot commit, for the ledger could not be read again: its next entry has {len(raw)} bytes",
            got=f"at most {MAX_ENTRY_BYTES} bytes and {MAX_ENTRY_VALUES} values are read",
            do="ask for less at once, for example one class or shard after the other; nothing was changed",
        )
    return raw, LedgerRef(seq, digest(raw))


def read_chain(root: Home, ref: LedgerRef | None, after: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """(file, entry) for the ledger's entries, oldest first, each verified against the one after it. The first ``after``
    entries are left out and not read."""
    chain: list[tuple[str, dict[str, Any]]] = []
    head = ref.head if ref else ""
    for seq in range(ref.entries if ref else 0, after, -1):
        entry = read_entry(root, seq, head)
        chain.append((entry_path(seq, head), entry))
        head = entry["previous"]
    return chain[::-1]


def read_entry(root: Home, seq: int, head: str) -> dict[str, Any]:
    """The entry ``seq`` (from 1), whose digest is ``head``."""
    file = entry_path(seq, head)
    raw = read_named(root, file, MAX_ENTRY_BYTES, head, "the chain")
    entry = _decoded(raw, seq)
    if entry is None:
        raise Fault(file=file, problem="it is no ledger entry of that number").error()
    if canonical(entry) != raw:  # a signature is over the values that were read: the text may say others (a key twice)
        raise Fault(file=file, problem="it is not canonical JSON").error()
    if seq == 1 and entry["previous"]:
        raise Fault(file=file, problem="the ledger's first entry names one before it").error()
    return entry


def charges(root: Home, ref: LedgerRef | None, after: int = 0) -> list[Charge]:
    """What the ledger's entries say was released about rows, oldest first. If no entry after the first ``after`` says
    so, the answer is empty, and the first ones are not read."""
    if after and not any(RELEASED in entry for _, entry in read_chain(root, ref, after)):
        return []
    return charges_in([entry for _, entry in read_chain(root, ref)], ref)


def charges_in(chain: Sequence[dict[str, Any]], ref: LedgerRef | None) -> list[Charge]:
    """Those of all entries of the ledger that ends with ``ref``."""
    every = digests(chain, ref)
    return [
        Charge(own, every[0], {field: entry[field] for field in _CHARGE if field in entry})
        for own, entry in zip(every, chain, strict=True)
        if RELEASED in entry
    ]


def digests(chain: Sequence[dict[str, Any]], ref: LedgerRef | None) -> list[str]:
    """The digest of each entry of the ledger that ends with ``ref``."""
    return [entry["previous"] for entry in chain[1:]] + ([ref.head] if ref else [])


def tombstone(sample_id: str, key: bytes) -> str:
    """The keyed BLAKE3 of a forgotten id: with the key one can ask about an id, without it the id cannot be guessed."""
    return tombstone_bytes(sample_id, key).hex()


def tombstone_bytes(sample_id: str, key: bytes) -> bytes:
    """As `tombstone`, not in hexadecimal: for millions of ids."""
    # A shell may pass a name that is not valid Unicode: no sample has such an id, but asking about it must not fail.
    return blake3(sample_id.encode(errors="surrogatepass"), key=key).digest()


def tombstones_of(names: Iterable[str], key: bytes) -> list[str]:
    """The tombstones of ``names``, sorted; of one that is neither composed (NFC) nor taken apart (NFD), that of its NFC
    form, which `forgotten_form` asks about for each of its forms."""
    whole = (n if is_normalized("NFC", n) or is_normalized("NFD", n) else normalize("NFC", n) for n in names)
    return sorted({tombstone(name, key) for name in whole})


def forgotten_form(name: str, key: bytes, tombstones: Container[str]) -> str | None:
    """The form in which ``name`` was forgotten, by ``tombstones`` under ``key``: as it is, if possible, or composed
    (NFC) or taken apart (NFD); None if none of these was.

    A sample's name keeps its letters, but not their form, on the way through macOS, an archive or a shared folder.
    """
    if tombstone(name, key) in tombstones:
        return name
    if name.isascii():
        return None
    others = {normalize("NFC", name), normalize("NFD", name)} - {name}
    return next((form for form in others if tombstone(form, key) in tombstones), None)


def names_state(said: object, state: str, key: bytes) -> bool:
    """Whether ``said``, by which an entry names a state of the store, means the state with the digest ``state``: it is
    that digest's hash under ``key`` (b"" for none) or, in entries of earlier releases, the digest itself."""
    return said == state or (bool(key) and said == tombstone(state, key))


def commitment(tombstones: Iterable[str]) -> dict[str, Any]:
    """What an entry says of the ``tombstones`` that the store has after it: their number, and the digest of them all,
    sorted, which is also the digest of the list on the disk.

    They are keyed hashes already, so without their key the digest helps nobody to guess an id.
    """
    every = sorted(set(tombstones))
    return {AFTER: {"count": len(every), "digest": digest(bytes.fromhex("".join(every)))}}


def read_key(root: Home, manifest: Manifest) -> bytes:
    """The tombstones' key, verified."""
    key = read_named(root, KEY_FILE, KEY_BYTES, manifest.tombstone_key, "the root manifest")
    if len(key) != KEY_BYTES:
        raise Fault(file=KEY_FILE, problem=f"it has {len(key)} bytes, a key has {KEY_BYTES}").error()
    return key


def unnamed_key(root: Home) -> bytes:
    """A key that no manifest may name yet, from a commit on its way or one that was cut off; b"" if there is none, or
    if a lock keeps other writers out."""
    try:
        key = b"" if root.locked else root.read(KEY_FILE, KEY_BYTES)
    except FileNotFoundError:
        return b""
    return key if len(key) == KEY_BYTES else b""


def _decoded(raw: bytes, seq: int) -> dict[str, Any] | None:
    """The entry ``seq`` of the ledger; None if ``raw`` is not one."""
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > MAX_ENTRY_VALUES:
        return None  # values take far more memory than their text
    try:
        entry = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    before = entry.get("previous")
    good = entry.get("seq") == seq and isinstance(before, str) and len(before) in (0, 64)
    return entry if good and not too_deep(raw) else None
