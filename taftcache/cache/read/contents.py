"""What the present root manifest of a store names: its shards and rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.format.fault import Fault, unreadable
from taftcache.cache.format.manifest import FILE, MAX_BYTES, PREVIOUS, LedgerRef, Manifest, ShardRef
from taftcache.cache.place.address import open_home
from taftcache.cache.place.home import Home
from taftcache.cache.read.nearest import by_ending, in_another_form, nearest
from taftcache.cache.read.shard import Shard
from taftcache.errors import ArgumentError, IntegrityError, StoreNotFound, UnknownName, UnknownSample
from taftcache.names import typed

OF_A_MODEL = ("config.json", "taftcache.json", "estimator.json")
MAKE = "name a store's folder, or make a store first with `taftcache extract`"


class Contents:
    """The ``manifest`` of the last commit, and what it names. A commit through the same open store replaces it.

    Shards are kept: one that a commit leaves as it is stays the same object, with what was verified and mapped.
    """

    def __init__(self, root: Home, manifest: Manifest) -> None:
        self.root, self.manifest = root, manifest
        self._shards: dict[str, Shard] = {}  # by digest
        self._places: dict[str, tuple[str, int]] = {}  # sample id -> (shard, row), of the shards in `_listed`
        self._listed: dict[str, list[str]] = {}  # digest of a shard -> its ids
        self._key = b""  # of the tombstones
        self._chain: tuple[LedgerRef, list[dict[str, Any]]] | None = None

    def adopt(self, manifest: Manifest, written: Sequence[Shard] = ()) -> None:
        """Take over from a commit that made ``manifest`` the root manifest and put the shards ``written`` in place."""
        self.manifest, self._key = manifest, b""
        for shard in written:
            shard.moved_to(self.root, ShardRef.of(shard.name, shard.role, shard.rows, shard.digest).path)
            self._shards[shard.digest] = shard
        named = {ref.digest for ref in manifest.shards}
        self._shards = {digest: shard for digest, shard in self._shards.items() if digest in named}
        for gone in self._listed.keys() - named:
            for sample_id in self._listed.pop(gone):
                self._places.pop(sample_id, None)

    def open(self, ref: ShardRef) -> Shard:
        """The shard that ``ref`` names."""
        if ref.digest not in self._shards:
            self._shards[ref.digest] = Shard(self.root, ref)
        return self._shards[ref.digest]

    def shard(self, name: str) -> Shard:
        """One shard by name, training or held-out; UnknownName says which there are."""
        for ref in self.manifest.shards:
            if ref.name == name:
                return self.open(ref)
        there = ", ".join(ref.name for ref in self.manifest.shards)
        do = f"one of {there:.200}" if there else "taftcache extract"
        raise UnknownName(f"there is no shard {name!r}", names=[str(name)], do=do)

    def has_shard(self, name: str) -> bool:
        """Whether there is a shard of that name."""
        return any(ref.name == name for ref in self.manifest.shards)

    def holds(self, sample_id: str) -> bool:
        """Whether a shard has a row of that id."""
        return sample_id in self._rows()

    def locate(self, sample_id: str) -> tuple[Shard, int]:
        """The shard (held-out included) and the row of a sample; UnknownSample names the nearest ids."""
        if not isinstance(sample_id, str):
            raise ArgumentError(
                "a sample must be named by one id, a text",
                got=f"{sample_id!r}, of type {type(sample_id).__name__}",
                do="one call for each of several ids",
            )
        if not self.holds(sample_id):
            for left_out in self.manifest.skipped:
                if left_out.id == sample_id:
                    raise UnknownSample(
                        f"no row has the id {sample_id!r}, which was skipped when shard {left_out.shard} was made",
                        got=left_out.reason,
                        ids=[sample_id],
                        do=f"taftcache inspect {typed(self.root.path)}, which names what was skipped",
                    )
            if self.is_forgotten(sample_id):
                raise UnknownSample(
                    f"no row has the id {sample_id!r}, which was forgotten",
                    ids=[sample_id],
                    do=f"taftcache receipts {typed(self.root.path)} --sample {typed(sample_id)}, which says when",
                )
            if (same := in_another_form([sample_id], self._rows()).get(sample_id)) is not None:
                raise UnknownSample(
                    f"no row has the id {sample_id!r} as it is written here",
                    got=ascii(sample_id),
                    ids=[sample_id],
                    do=f"{same!a}, which looks the same: take it from a file: "
                    f"taftcache inspect {typed(self.root.path)} --ids > FILE",
                )
            same_end = by_ending([sample_id], self._rows(), self.is_forgotten).get(sample_id, [])
            close = ", ".join(map(repr, same_end[:3] or nearest(sample_id, self._rows())))
            raise UnknownSample(
                f"no row has the id {sample_id!r}",
                ids=[sample_id],
                do=f"did you mean {close}?" if close else f"taftcache inspect {typed(self.root.path)} --ids lists all",
            )
        name, row = self._rows()[sample_id]
        return self.shard(name), row

    def shard_of(self, sample_id: str) -> str | None:
        """The name of the shard that has a row of that id."""
        return self._rows().get(sample_id, (None, 0))[0]

    def is_forgotten(self, sample_id: str) -> bool:
        """Whether a sample of that id, or of its NFC or NFD form, was erased, and not learned again since."""
        if not self.manifest.tombstones or not isinstance(sample_id, str):
            return False
        if not self._key:
            self._key = ledger.read_key(self.root, self.manifest)
        return ledger.forgotten_form(sample_id, self._key, self.manifest.tombstones) is not None

    def ledger(self) -> list[dict[str, Any]]:
        """The ledger's entries, oldest first; read and verified once for each end of the ledger."""
        end = self.manifest.ledger
        if end is None:
            return []
        if self._chain is None or self._chain[0] != end:
            self._chain = end, [entry for _, entry in ledger.read_chain(self.root, end)]
        return [dict(entry) for entry in self._chain[1]]

    def _rows(self) -> dict[str, tuple[str, int]]:
        # Read only what commits have added since: a writer of many shards asks again after each of them.
        if len(self._listed) < len(self.manifest.shards):
            for ref in self.manifest.shards:
                if ref.digest not in self._listed:
                    ids = self.open(ref).sample_ids
                    self._places.update((i, (ref.name, row)) for row, i in enumerate(ids))
                    self._listed[ref.digest] = ids
        return self._places


def no_store(root: Home) -> StoreNotFound:
    """The error for a place without a store."""
    if any(root.exists(name) for name in OF_A_MODEL):
        return StoreNotFound(
            f"no store at {root.path}: it is the folder of one model, an exported one or a student, say",
            do=f"taftcache predict {typed(root.path)} IMAGE, or taftcache export-model {typed(root.path)} NEW --onnx; "
            f"in Python open_model({str(root.path)!r}); what reads rows needs a store",
        )
    rest = f"where a copy was cut off, run the same taftcache copy again; where {FILE} was lost, put it back"
    return StoreNotFound(f"no store at {root.path}: there is no {FILE}", do=rest if root.exists("shards") else MAKE)


def manifest_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the root manifest that is at ``path`` now, unchecked; OSError if there is none."""
    with open_home(path) as (root, _):
        return root.read(FILE, MAX_BYTES)


def read_manifest(root: Home) -> Manifest:
    """The root manifest as it is on the disk now; StoreNotFound where there is none."""
    try:
        raw = root.read(FILE, MAX_BYTES)
    except FileNotFoundError:
        raise no_store(root) from None
    except OSError as error:
        raise Fault(file=FILE, problem=unreadable(root, FILE, error)).error() from None
    root.opened = digest(raw)
    try:
        return Manifest.decode(raw, root)
    except IntegrityError as error:
        if root.exists(PREVIOUS):
            error.do = "restore the file from a copy, or go back to the commit before: taftcache verify STORE --back"
        raise
