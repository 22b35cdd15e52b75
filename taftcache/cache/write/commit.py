"""Commits: what is staged goes to its place, then the root manifest is swapped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from errno import EEXIST
from pathlib import Path
from threading import get_ident

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.format.fault import is_changed
from taftcache.cache.format.layout import manifest_file
from taftcache.cache.format.manifest import FILE, Manifest
from taftcache.cache.place.address import is_bucket, new_home, open_home
from taftcache.cache.place.failure import AGAIN, cannot, forestalled
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.home import Home
from taftcache.cache.place.lock import LOCK, WriterLock
from taftcache.cache.read.around import check_outside
from taftcache.cache.read.contents import Contents, read_manifest
from taftcache.cache.read.shard import Shard
from taftcache.cache.write import previous
from taftcache.cache.write.sweep import LOST, OWN, TRANSACTION, disown, removed, sweep
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import StoreChanged, StoreError, StoreLocked
from taftcache.names import is_from_macos, typed


class Committer:
    """Changes one store, whose writer lock ``lock`` is held: all commits go through it.

    ``staging`` is the folder in which changes are prepared. ``contents`` is what the last commit holds, and
    ``tombstone_file``, beside the store, is kept in step with it. At most one transaction is open, and one writer for
    each shard; all of them in the thread that opened the store.
    """

    def __init__(
        self, root: Home, staging: Folder, lock: WriterLock, contents: Contents, tombstone_file: TombstoneFile
    ) -> None:
        self.root, self.staging = root, staging
        self.contents, self.tombstone_file = contents, tombstone_file
        self._lock = lock
        self._writers: dict[str, Callable[[], None]] = {}  # shard -> what closes its writer
        self._discard: Callable[[], None] | None = None  # what gives the open transaction up
        self._home = os.getpid(), get_ident()

    @property
    def manifest(self) -> Manifest:
        """The root manifest of the last commit."""
        return self.contents.manifest

    def start_writer(self, name: str, close: Callable[[], None]) -> None:
        """Register a writer of the shard ``name``, open until `end_writer`; ``close`` closes it."""
        self._check_home()
        self._writers[name] = close

    def end_writer(self, name: str) -> None:
        """The writer of that shard has closed."""
        self._writers.pop(name, None)

    def start_transaction(self, discard: Callable[[], None]) -> None:
        """Register a transaction, open until it is published or until `end_transaction`; ``discard`` gives it up."""
        self._check_home()
        self.check_no_transaction("open a second transaction")
        self.staging.remove(TRANSACTION)
        self.staging.make(TRANSACTION)
        self._discard = discard

    def _check_home(self) -> None:
        # The lock keeps other processes out, but neither other threads nor a fork of this process: their changes would
        # be based on a commit that is no longer the last.
        if self._home != (os.getpid(), get_ident()):
            raise StoreError(
                f"{self.root.path} was opened for writing in another "
                + ("thread" if self._home[0] == os.getpid() else "process"),
                do='open it where it is written to: FeatureStore(path, mode="a"), one after the other',
            )

    def end_transaction(self) -> None:
        """The transaction has ended without a commit."""
        self._discard = None
        self.staging.remove(TRANSACTION)

    def check_no_writer(self, what: str) -> None:
        """StoreError while a ShardWriter is open: its rows are in no manifest yet."""
        if self._writers:
            raise StoreError(f"cannot {what} while a shard is written", got=", ".join(sorted(self._writers)), do=_CLOSE)

    def check_no_writer_of(self, name: str) -> None:
        """StoreError while a ShardWriter of that shard is open."""
        if name in self._writers:
            raise StoreError(f"cannot write shard {name}: it has another writer already", do=_CLOSE)

    def check_no_transaction(self, what: str) -> None:
        """StoreError while a transaction is open."""
        if self._discard is not None:
            raise StoreError(f"cannot {what} while a transaction is open", do="commit or discard the transaction first")

    def publish(
        self,
        new: Manifest,
        *,
        groups: Sequence[tuple[str, str]] = (),
        files: Sequence[tuple[str, str]] = (),
        shards: Sequence[Shard] = (),
        destroy_keys: bool = False,
    ) -> None:
        """Put staged ``groups`` and ``files`` (staged, place) in their places, make ``new`` the root manifest, and
        sweep what it replaced. ``shards`` are those of the groups that stay open. With ``destroy_keys`` all
        keys beside the store are destroyed too.

        StoreWriteError, before anything is placed, for a manifest that no reader would take.
        """
        old = self.manifest
        if not self._lock.held:
            # Whoever holds the new lock file works in the same staging folder: nothing there may be touched now.
            raise StoreLocked(
                "the store's lock file was removed while it was held: another process may be writing",
                got=str(self.root.path),
                do="run the same command again once no other process writes to the store; nothing was committed",
            )
        beside = self.tombstone_file.beyond(()) if destroy_keys else {}
        try:
            if destroy_keys:
                # Before the swap: if a kill comes in between, the store still has its key, and the next writer puts it
                # beside the store again; after the swap no key is left. Keys of earlier stores here go as well.
                self.tombstone_file.destroy_keys()
            new = self._place(new, groups, files)
            self.contents.adopt(new, shards)
        except BaseException:
            self._recover(old, beside)
            raise
        self._discard = None
        self.remember(old)
        try:
            sweep(self.root, self.staging, new, old)
        except StoreError as error:  # a refused command changes nothing, but this one was carried out
            error.fault = f"committed, but what the commit replaced is still there: {error.fault}"
            cure = f"{error.do.partition(AGAIN)[0]}; " if error.do else ""
            error.do = f"{cure}do not repeat the command itself: taftcache gc {typed(self.root.path)} removes the rest"
            raise

    def sweep(self) -> list[tuple[str, int]]:
        """Remove what a crash left behind; (path, bytes) of each."""
        found = sweep(self.root, self.staging, self.manifest, self.manifest)
        return found + [removed(self.root, path) for path in previous.unlawful(self.root, self.manifest)]

    def remember(self, old: Manifest) -> None:
        """Bring the file beside the store from ``old`` (the present manifest, if the store was just opened) to the
        present manifest; if that fails, `taftcache audit` reports it."""
        new = self.manifest
        try:
            if self.tombstone_file.file is not None and (old is new or old.ledger != new.ledger):
                known = old.ledger.entries if old is not new and old.ledger else 0
                self.tombstone_file.add_charges(ledger.charges(self.root, new.ledger, known))
                self.tombstone_file.save()
            if old.tombstone_key and old.tombstone_key != new.tombstone_key:
                self.tombstone_file.destroy_key(old.tombstone_key)
            if new.tombstone_key:
                key = ledger.read_key(self.root, new)
                now = new.tombstones if old is new else new.tombstones.beyond(old.tombstones)
                self.tombstone_file.add(key, now)
        except StoreError:
            pass

    def close(self) -> None:
        """Close writers, and give up an open transaction."""
        for close in list(self._writers.values()):
            close()
        if self._discard is not None:
            self._discard()

    def _place(self, new: Manifest, groups: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]]) -> Manifest:
        """Do what `publish` says up to and including the swap; returns the manifest as it was read back."""
        raw, read_back = new.read_back(self.root)
        if not self.root.locked and is_changed(self.root):
            raise forestalled(self.root.path)  # before an upload that would bring back what the other has just removed
        there = self.manifest.files()
        for path, part in new.parts().items():
            if path not in there:
                self.root.put(path, part.data())
        for staged, place in groups:
            self.root.place(self.staging, manifest_file(staged), manifest_file(place))
            self.root.place(self.staging, staged, place)
        for staged, place in files:
            if place == ledger.KEY_FILE and not self.root.locked:  # the one name that another writer may use, too
                self.root.swap(place, self.staging.read(staged, ledger.KEY_BYTES))
            else:
                self.root.place(self.staging, staged, place)
        previous.keep(self.root, self.manifest, new)
        self.root.swap(FILE, raw)  # the one step that counts
        self.root.opened = digest(raw)
        return read_back

    def _recover(self, old: Manifest, beside: Mapping[bytes, frozenset[str]]) -> None:
        """After a failed commit, take up the manifest that is on the disk. If it is the last commit's, free the space
        and restore the keys and tombstones in the file beside the store, which were ``beside``.

        If only the last fsync failed, the new manifest is there, perhaps not durably: then the files of both stay, and
        the next open for writing, which can tell, sweeps. If it is another writer's, what was placed here may have rows
        that the other has forgotten: these go now, or at any opening for writing if this process is killed before.
        """
        self._discard = None
        try:
            found = read_manifest(self.root)
            if found.digest == old.digest:
                for key, hashes in beside.items():
                    self.tombstone_file.consider(key, hashes)
                self.tombstone_file.save()
                sweep(self.root, self.staging, old, old)
            else:
                self.contents.adopt(found)
                self.remember(old)
                if not self.root.locked:
                    disown(self.root, self.staging, found)
        except (OSError, StoreError):
            pass  # the error that brought us here says more


_CLOSE = "commit or close the writer first"


def create(path: str | os.PathLike[str], first: Manifest) -> None:
    """Make an empty store at ``path``, where nothing is yet: its root manifest is ``first``."""
    raw = first.encode()
    check_outside(path)

    def check(root: Home) -> None:
        _check_empty(root)
        TombstoneFile(path).check_owner()

    with new_home(path, "create a store at", check) as (root, staging), WriterLock(staging):
        _check_empty(root)  # again: whoever held the lock may have made a store
        root.swap(FILE, raw)


def check_free(path: str | os.PathLike[str]) -> None:
    """What `create` would refuse ``path`` for, as far as that can be told before anything is made."""
    check_outside(path)
    nearest = next(place for place in (Path(path), *Path(path).parents, Path("/")) if os.path.lexists(place))
    if is_bucket(path) or os.path.isdir(path):
        with open_home(path) as (root, _):
            _check_empty(root)
    elif not nearest.is_dir():
        raise cannot("create a store at", path, FileExistsError(EEXIST, ""))


def _check_empty(root: Home) -> None:
    """StoreError if anything lies there but what a killed creation leaves."""
    try:
        there = [name for name in _entries(root) if name not in (LOCK, f"{FILE}.partial")]
    except OSError as error:
        raise cannot("create a store at", root.path, error) from None
    if there:
        raise _taken(root, there)


def _entries(root: Home) -> list[str]:
    # what macOS or a new file system puts there by itself is in nobody's way
    return [name for name, _ in root.entries() if name != LOST and not is_from_macos(name)]


def check_foreign(root: Home) -> None:
    """StoreError if anything lies there that no store puts there."""
    if there := [name for name in _entries(root) if name not in OWN]:
        raise _taken(root, there)


def _taken(root: Home, there: list[str]) -> StoreError:
    do = "name a folder that is empty, or not there yet"
    if FILE in there:  # commands open such a store: here another process has made it since they looked
        return StoreChanged(
            f"cannot create a store at {root.path}: there is one by now",
            do='open it with mode="a", or name another folder',
        )
    if set(there) <= OWN:
        do = f"name another folder; or, if this was a store, put its {FILE} back"
    return StoreError(
        f"cannot create a store at {root.path}: it is not an empty folder",
        got=f"it holds {', '.join(there[:3])}",
        do=do,
    )
