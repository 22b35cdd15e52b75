"""The way back: the root manifest before the last commit, kept if that commit only added to it."""

from __future__ import annotations

import os
from contextlib import suppress

from taftcache.cache.format.digest import check_root
from taftcache.cache.format.fault import intact
from taftcache.cache.format.ledger import KEY_FILE, read_key
from taftcache.cache.format.manifest import FILE, MAX_BYTES, PREVIOUS, Manifest
from taftcache.cache.place.address import open_home
from taftcache.cache.place.failure import cannot
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.home import Home
from taftcache.cache.place.lock import WriterLock
from taftcache.cache.read.contents import no_store, read_manifest
from taftcache.cache.write.sweep import sweep
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import IntegrityError, StoreError, StoreNotFound
from taftcache.names import counted


def adds_only(old: Manifest, new: Manifest) -> bool:
    """Whether ``new`` names all that ``old`` does, and remembers the same: no more erasures, receipts or releases."""
    remembered = [(m.ledger, m.tombstones, m.tombstone_key, m.classes) for m in (old, new)]
    return remembered[0] == remembered[1] and old.files() <= new.files()


def keep(root: Home, old: Manifest, new: Manifest) -> None:
    """Before ``new`` takes the place of ``old``: keep ``old`` if a way back is allowed, else remove what was kept.

    Durable on return. In a bucket nothing is kept, because another writer may erase at the same time.
    """
    if root.locked and adds_only(old, new):
        root.swap(PREVIOUS, root.read(FILE, MAX_BYTES))
    else:
        forget(root)


def forget(root: Home) -> None:
    """Remove the way back, durably."""
    if root.locked and root.exists(PREVIOUS):
        root.remove(PREVIOUS)


def unlawful(root: Home, named: Manifest) -> list[str]:
    """The file of the way back if it is not a valid one: it equals ``named``, or no commit to ``named`` left it."""
    if not root.locked or not root.exists(PREVIOUS):
        return []
    kept = _read(root)
    return [] if kept is not None and kept.digest != named.digest and adds_only(kept, named) else [PREVIOUS]


def go_back(path: str | os.PathLike[str], expect: str | None = None) -> tuple[str, str]:
    """Make the manifest that was kept the root manifest of the store at ``path``, and remove what only the present one
    names; the root digests before ("" where the present manifest cannot be read) and after.

    StoreError, and nothing changed, where there is no way back: none was kept, a file that it names is missing, or
    something was forgotten or released since. IntegrityError, and nothing changed, where it leads to another root
    digest than ``expect``, of which it is the beginning.
    """
    check_root(expect)
    try:
        homes = open_home(path)
    except OSError as error:
        raise cannot("open", path, error, StoreNotFound) from None
    with homes as (root, staging):
        if not root.exists(FILE) and not root.exists(PREVIOUS):
            raise no_store(root)
        with WriterLock(staging):
            return _go_back(root, staging, TombstoneFile(path), expect)


def _go_back(root: Home, staging: Folder, beside: TombstoneFile, expect: str | None) -> tuple[str, str]:
    present, kept = intact(lambda: read_manifest(root)), _read(root)
    if kept is None or (present is not None and kept.digest == present.digest):
        raise _none("no root manifest from before the last commit is kept")
    if missing := sorted(path for path in kept.files() if not root.exists(path)):
        raise _none(
            f"{counted(len(missing), 'file')} missing that the root manifest before names, {missing[0]} the first"
        )
    if not (_remembers_all(root, kept, beside) if present is None else adds_only(kept, present)):
        raise _none("something was forgotten, or written to the ledger, since the root manifest before")
    if expect is not None and not kept.digest.startswith(expect):
        raise IntegrityError(
            "cannot go back: the root manifest before the last commit is not the one that was expected",
            got=f"root digest {kept.digest}, expected {expect}; nothing was changed",
            do="--root names the digest that is gone back to, not the present one; leave it out to go back to any",
        )
    root.swap(FILE, root.read(PREVIOUS, MAX_BYTES))
    forget(root)
    sweep(root, staging, kept, kept)
    return present.digest if present else "", kept.digest


def _read(root: Home) -> Manifest | None:
    """The manifest that was kept; None where there is none, or none that can be read."""
    with suppress(OSError):
        return intact(lambda: Manifest.decode(root.read(PREVIOUS, MAX_BYTES), root))
    return None


def _remembers_all(root: Home, kept: Manifest, beside: TombstoneFile) -> bool:
    """Whether ``kept`` knows all that the files around it remember; for when the present manifest cannot be read."""
    entries = kept.ledger.entries if kept.ledger else 0
    later = [name for name, _ in root.entries("ledger") if name >= f"{entries + 1:06d}"]

    def remembers() -> bool:
        whole = not root.exists(KEY_FILE) if not kept.tombstone_key else bool(read_key(root, kept))
        return whole and not later and not beside.more_than(kept.tombstones)

    return bool(intact(remembers))


def _none(fault: str) -> StoreError:
    return StoreError(
        f"cannot go back: {fault}",
        got="nothing was changed",
        do="restore the store from a copy; a way back is kept by commits that only add to a store",
    )
