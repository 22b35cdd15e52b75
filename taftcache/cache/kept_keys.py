"""Where else the key of a store's tombstones lies: whoever has it there can ask, whatever became of it in the store."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.read.around import REMEMBERED, is_store
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile, read_keys
from taftcache.errors import StoreError, TaftcacheError

State = Literal["none", "present", "destroyed", "unread"]


@dataclass(frozen=True, kw_only=True)
class KeptKey:
    """A place in the folder around a store where its tombstone key lies.

    path: another store, or a file of tombstones. state: whether the store still has the key, or destroyed it; "unread"
    if ``path`` cannot be read, and may have it. keys: digests of those that are there. is_left: whether nothing lies
    any more where the file's store would, no other store here has a key of this one, and the file says nothing that
    this store does not know, as when the store was moved without it.
    """

    path: Path
    state: State
    keys: tuple[str, ...] = ()
    is_store: bool = False
    is_left: bool = False

    def destroy(self) -> None:
        """Destroy the keys in a file that is left; what private trainings released stays in it. StoreError if others
        may have written the file, or it cannot be written."""
        file = TombstoneFile(_place_of(self.path))
        for key in self.keys:
            file.destroy_key(key)


class TombstoneKeys:
    """What tells a store's tombstone keys, and tombstones under them, from those of others.

    A key that the store destroyed is known by its digest in the ledger or, if an earlier release destroyed it, by
    hashes that receipts keep.
    """

    def __init__(self, store: FeatureStore) -> None:
        self.file = store.tombstone_file.file
        beside = store.tombstone_file.beyond(())
        self._store = os.path.realpath(store.place)
        self._present = {store.manifest.tombstone_key, *map(digest, beside)} - {""}
        self._known = set[str]().union(*beside.values())
        self._destroyed, self._commitments = set[str](), set[str]()
        with suppress(StoreError):  # of a damaged list or ledger: an audit says it
            self._known.update(store.manifest.tombstones)
        with suppress(StoreError):
            for entry in store.ledger():
                if isinstance(gone := entry.get(ledger.DESTROYED_KEY), str):
                    self._destroyed.add(gone)
                if isinstance(ids := entry.get("ids"), list):
                    self._known.update(i for i in ids if isinstance(i, str))
                if isinstance(after := entry.get(ledger.AFTER), dict) and after.get("count"):
                    self._commitments.add(str(after.get("digest")))

    def state(self, key: str, tombstones: Collection[str]) -> State:
        """Whether the key with the digest ``key``, with these tombstones under it, is one of the store."""
        if key in self._present:
            return "present"
        is_own = key in self._destroyed or not self._known.isdisjoint(tombstones) or self._is_commitment(tombstones)
        return "destroyed" if key and is_own else "none"

    def beside(self) -> list[KeptKey]:
        """Where else in the folder around the store one of its keys lies, or may. StoreError if that folder cannot be
        listed; of a store in a bucket, nothing is looked for."""
        found = [*self._beside()]
        if any(at.is_store for at in found):  # one of these may have been moved away from its file, and come back to it
            return [replace(at, is_left=False) for at in found]
        return found

    def _beside(self) -> Iterator[KeptKey]:
        if self.file is None:
            return
        try:
            names = sorted(os.listdir(self.file.parent))
        except OSError:
            raise StoreError("cannot list the folder around the store", got=str(self.file.parent)) from None
        for path in (self.file.with_name(name) for name in names):
            there = is_store(os.fspath(path)) and not self._is_own(path)
            if not there and (not _is_remembered(path) or path == self.file or self._is_of_other(path)):
                continue
            try:
                found = [*_in_store(path)] if there else [(digest(k), held) for k, held in read_keys(path).items()]
            except (OSError, TaftcacheError):
                yield KeptKey(path=path, state="unread", is_store=there)
                continue
            own = [(key, held) for key, held in found if self.state(key, held) != "none"]
            if own:
                destroyed = any(self.state(key, held) == "destroyed" for key, held in own)
                yield KeptKey(
                    path=path,
                    state="destroyed" if destroyed else "present",
                    keys=tuple(key for key, _ in own),
                    is_store=there,
                    is_left=not there and self._is_left(path, (held for _, held in own)),
                )

    def _is_left(self, file: Path, under: Iterable[Collection[str]]) -> bool:
        place = _place_of(file)
        is_free = self._is_own(place) or not os.path.lexists(place)
        return is_free and all(self._known.issuperset(held) or self._is_commitment(held) for held in under)

    def _is_commitment(self, tombstones: Collection[str]) -> bool:
        """Whether they are all that the store had after one of its requests."""
        return bool(tombstones) and ledger.commitment(tombstones)[ledger.AFTER]["digest"] in self._commitments

    def _is_own(self, place: Path) -> bool:
        return os.path.realpath(place) == self._store

    def _is_of_other(self, file: Path) -> bool:
        """Whether the file is that of another store, with which it is read."""
        return is_of_store(file) and not self._is_own(_place_of(file))


def is_of_store(file: Path) -> bool:
    """Whether a file of tombstones lies beside a store."""
    return _is_remembered(file) and is_store(os.fspath(_place_of(file)))


def _is_remembered(file: Path) -> bool:
    """Whether a file has the name of one that lies beside a store."""
    return file.name.endswith(REMEMBERED) and file.name.removesuffix(REMEMBERED) not in ("", ".", "..")


def _place_of(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(REMEMBERED))


def _in_store(path: Path) -> Iterator[tuple[str, Collection[str]]]:
    """Digests of a store's keys, also of those beside it, with the tombstones under each."""
    with FeatureStore(path, stale=True) as store:
        yield store.manifest.tombstone_key, frozenset(store.manifest.tombstones)
        for key, held in store.tombstone_file.beyond(()).items():
            yield digest(key), held
