"""What outlives a store: its tombstones, in a file beside its folder, so that an old copy put back is noticed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.place.address import is_bucket
from taftcache.cache.place.folder import Folder
from taftcache.errors import FormatError, StoreError

FORMAT = "taftcache-forgotten"
MAX_BYTES = 1 << 30


class _Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tombstones under one key (hex)."""

    key: str
    tombstones: list[str]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str = FORMAT
    version: int = 1
    pages: list[_Page] = []


class Book:
    """``<store>.forgotten``: the keyed hashes of what a store at this place has forgotten, and their keys.

    A copy of the store from before a request has neither the tombstones nor the receipt: nothing in it could tell.
    The book lies outside, so that restoring the folder leaves it as it is. A store in a bucket has none.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        whole = None if is_bucket(store) else Path(os.path.abspath(store))
        self.file = None if whole is None else whole.with_name(f"{whole.name}.forgotten")
        pages = [] if self.file is None else _read(self.file).pages
        self._pages = {bytes.fromhex(page.key): frozenset(page.tombstones) for page in pages}

    @property
    def key(self) -> bytes:
        """The newest key; empty when nothing was ever forgotten here."""
        return list(self._pages)[-1] if self._pages else b""

    @property
    def newest(self) -> frozenset[str]:
        """The tombstones under the newest key."""
        return self._pages.get(self.key, frozenset())

    def holds(self, name: str) -> bool:
        """Whether ``name`` was forgotten here, under the newest key."""
        return bool(self._pages) and ledger.tombstone(name, self.key) in self.newest

    def more_than(self, known: Iterable[str]) -> bool:
        """Whether anything was forgotten here that ``known`` tombstones do not say."""
        return not frozenset().union(*self._pages.values()) <= frozenset(known)

    def match(self, ids: Iterable[str], known: Iterable[str]) -> list[str]:
        """Those of ``ids`` that were forgotten here, by tombstones that are not in ``known``."""
        known = frozenset(known)
        news = {key: stones - known for key, stones in self._pages.items()}
        news = {key: stones for key, stones in news.items() if stones}
        return (
            [i for i in ids if any(ledger.tombstone(i, key) in stones for key, stones in news.items())] if news else []
        )

    def add(self, key: bytes, tombstones: Iterable[str], without: Iterable[str] = ()) -> None:
        """Remember ``tombstones`` under ``key``, and no longer those ``without``; writes only what changes."""
        before = self._pages.get(key, frozenset())
        after = (before - frozenset(without)) | frozenset(tombstones)
        if before != after:
            self._pages[key] = after
            self._write()

    def tear(self, key_digest: str) -> None:
        """Destroy the key of that digest and all that is remembered under it."""
        pages = {key: stones for key, stones in self._pages.items() if digest(key) != key_digest}
        if pages != self._pages:
            self._pages = pages
            self._write()

    def covers(self, key: bytes, tombstones: Iterable[str]) -> bool:
        """Whether all of ``tombstones`` are remembered."""
        return self._pages.get(key, frozenset()) >= frozenset(tombstones)

    def _write(self) -> None:
        if self.file is None:
            return
        folder = Folder(self.file.parent)
        try:
            pages = [_Page(key.hex(), sorted(stones)) for key, stones in self._pages.items()]
            partial = f"{self.file.name}.partial"
            folder.write(partial, canonical(_File(pages=pages)))
            folder.move(partial, self.file.name)
        finally:
            folder.close()


def _read(file: Path) -> _File:
    try:
        folder = Folder(file.parent)
    except OSError:
        return _File()
    try:
        raw = folder.read(file.name, MAX_BYTES)
        found = msgspec.json.decode(raw, type=_File)
    except FileNotFoundError:
        return _File()
    except OSError as error:
        raise StoreError("The book of forgotten ids can be read.", got=f"{file}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        found, wrong = _File(format=""), str(error)
    else:
        wrong = f"format {found.format!r}, version {found.version}"
    finally:
        folder.close()
    if (found.format, found.version) != (FORMAT, 1) or not all(_is_key(page.key) for page in found.pages):
        raise FormatError(
            f"The file beside a store that ends in .forgotten has the format {FORMAT!r}, version 1.",
            got=f"{file}: {wrong}",
            do="Restore it from a copy: without it, an old copy of the store brings forgotten rows back unseen.",
        )
    return found


def _is_key(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == ledger.KEY_BYTES
    except ValueError:
        return False
