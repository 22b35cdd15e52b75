"""A folder tree below one root: no link followed, writes made durable, failures typed."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from taftcache.cache.place.durable import make_durable
from taftcache.cache.place.failure import AVOID, FULL, GOES_ON, INTACT, cannot, too_large
from taftcache.errors import FormatError, StoreError, StoreLocked, StoreNotFound, StoreWriteError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that someone planted must fail, not hang
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# populated at once: a page fault for each page would cost as much as the digest
_MAPPED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)

PRIVATE = 0o600
"""The mode of a file that only its owner may read."""


class Folder:
    """Files below ``path``, addressed by relative names (``a/b/c``): a home for stores, and where they are staged.

    The root may be reached through a link (that is the caller's choice); nothing below it may be one. Reads raise
    ``OSError`` as the system does (FormatError for a link or anything that is no plain file); writes raise
    StoreWriteError.
    """

    stable = True
    """A view stays what it was when its digest was checked: files are immutable while they are named."""
    locked = True
    """The writer's lock keeps every other writer out."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.opened = Path(path), ""
        self.whole = str(path)
        with suppress(FileNotFoundError):  # the current folder was deleted
            self.whole = os.path.abspath(path)  # it may be another one later
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # open shards share the folder and may outlive the store that opened it
        self._let_go = weakref.finalize(self, os.close, self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy, or another process, opens it anew: this one's descriptor is its own
        return _opened, (self.whole,), {"opened": self.opened}

    def close(self) -> None:
        """Let go of the root; further use raises OSError."""
        self._let_go()
        self._fd = -1

    def open(self, name: str) -> tuple[int, int]:
        """A read descriptor of the plain file ``name`` (the caller closes it), and its size in bytes."""
        with self._parent(name) as (parent, leaf), _no_links(name):
            fd = os.open(leaf, _FILE, dir_fd=parent)
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            raise _link(name)
        return fd, info.st_size

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of ``name``; FormatError, before anything is allocated, when there are more than ``limit``."""
        fd, size = self.open(name)
        try:
            if size > limit:
                raise too_large(name, size, limit)
            parts = []
            while size > 0 and (part := os.read(fd, size)):
                parts.append(part)
                size -= len(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def view(self, name: str, size: int) -> tuple[int, Any]:
        """How many bytes ``name`` has, and a read-only map of them, or a copy if the file system maps nothing (None
        when they are not ``size``)."""
        fd, found = self.open(name)
        try:
            if found != size or not size:  # an empty file cannot be mapped
                return found, b"" if found == size else None
            return found, mmap.mmap(fd, size, flags=_MAPPED, prot=mmap.PROT_READ)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return found, self.read(name, size)  # some FUSE file systems map nothing
        finally:
            os.close(fd)

    def size(self, name: str) -> int:
        """Bytes of the file ``name``, or of all plain files below the folder; 0 where there is nothing, or a link."""
        return sum(info.st_size for info in self._below(name))

    def sizes(self, name: str) -> dict[str, int]:
        """The bytes of every plain file below the folder ``name``, by its name from the root; no file is opened."""
        found: dict[str, int] = {}
        with suppress(FileNotFoundError), self._folder(name) as fd, os.scandir(fd) as entries:
            for entry in entries:
                full = f"{name}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    found |= self.sizes(full)
                elif entry.is_file(follow_symlinks=False):
                    found[full] = entry.stat(follow_symlinks=False).st_size
        return found

    def changed(self, name: str) -> float:
        """When the file ``name``, or the newest below it, was written: seconds since 1970; 0 if there is none."""
        return max((info.st_mtime for info in self._below(name)), default=0.0)

    def entries(self, name: str = "") -> list[tuple[str, bool]]:
        """(name, is a real folder) of what lies in the folder ``name``, sorted; nothing where there is none."""
        try:
            with self._folder(name) as fd, os.scandir(fd) as found:
                return sorted((e.name, e.is_dir(follow_symlinks=False)) for e in found)
        except FileNotFoundError:
            return []

    def walk(self, name: str = "") -> Iterator[str]:
        """Every entry below ``name`` that is not a real folder, as names from the root, sorted."""
        for leaf, is_folder in self.entries(name):
            full = f"{name}/{leaf}" if name else leaf
            if is_folder:
                yield from self.walk(full)
            else:
                yield full

    def exists(self, name: str) -> bool:
        """Whether anything of that name is there, a dangling link included."""
        return self.stat(name) is not None

    def make(self, name: str) -> None:
        """Create the folder ``name`` with its parents, durably."""
        made = ""
        for part in parts_of(name):
            made, parent = (f"{made}/{part}" if made else part), made
            with writing(self.path, made), self._folder(parent) as fd:
                try:
                    os.mkdir(part, dir_fd=fd)
                except FileExistsError:
                    continue
                make_durable(fd)

    def write(self, name: str, data: Any, *, mode: int | None = None) -> None:
        """Create or overwrite the file ``name`` and fsync it; its folder is the caller's to ``sync``.

        With a ``mode``, its permissions are exactly that before the first byte is in it, if the file system has
        permissions, and it is a new file: one that was there may belong to another user, or be open in his process.
        """
        if mode is not None:
            with writing(self.path, name), self._parent(name) as (parent, leaf), suppress(FileNotFoundError):
                os.unlink(leaf, dir_fd=parent)
        flags, made = (os.O_TRUNC, 0o666) if mode is None else (os.O_EXCL, PRIVATE)
        with self._durable(name, flags, made) as fd:
            if mode is not None and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                with suppress(PermissionError):  # from a file system without modes
                    os.fchmod(fd, mode)
            write_all(fd, data)

    def truncate(self, name: str, size: int) -> None:
        """Cut the file ``name`` to ``size`` bytes, durably."""
        with self._durable(name, 0) as fd:
            os.ftruncate(fd, size)

    def append(self, name: str, data: bytes) -> None:
        """Add ``data`` to the end of ``name``, durably."""
        with self._durable(name, os.O_APPEND) as fd:
            write_all(fd, data)

    def swap(self, name: str, data: bytes, *, mode: int | None = None) -> None:
        """Replace the file ``name`` atomically and durably: a reader finds the old bytes or the new ones. ``mode`` as
        for `write`."""
        with self._removed_if_unwritten(partial := f"{name}.partial"):
            self.write(partial, data, mode=mode)
        self.move(partial, name)

    def put(self, name: str, data: Any, *, mode: int | None = None) -> None:
        """Write the file in ``staging`` and move it to ``name`` once it is durable; ``mode`` as for `write`."""
        staged = f"staging/put-{threading.get_ident()}"
        self.make("staging")
        with self._removed_if_unwritten(staged):
            self.write(staged, data, mode=mode)
        self.place(self, staged, name)

    def is_folder(self, name: str) -> bool:
        """Whether ``name`` is a real folder."""
        info = self.stat(name)
        return info is not None and stat.S_ISDIR(info.st_mode)

    def place(self, staging: Folder, staged: str, name: str) -> None:
        """Move the durable file or folder ``staged`` of ``staging`` to ``name``, durably."""
        if staging is not self:
            raise ValueError("a folder's work is staged in itself: a rename does not cross file systems")
        if "/" in name:
            self.make(name.rpartition("/")[0])
        kinds = [stat.S_IFMT(info.st_mode) if info else 0 for info in (self.stat(staged), self.stat(name))]
        if kinds != [stat.S_IFDIR, stat.S_IFDIR]:
            if stat.S_IFDIR in kinds:
                self.remove(name)  # damage: a file in a folder's place, or a folder in a file's
            self.move(staged, name)
            return
        # The same bytes are there already, or were before they were damaged: move file by file, so that a reader of the
        # present commit always finds each of them.
        for file in list(self.walk(staged)):
            target = f"{name}/{file.removeprefix(f'{staged}/')}"
            self.make(target.rpartition("/")[0])
            self.move(file, target)
        self.remove(staged)

    def sync(self, name: str = "") -> None:
        """Make the entries of the folder ``name`` durable."""
        with writing(self.path, name or "."), self._folder(name) as fd:
            make_durable(fd)

    def move(self, source: str, target: str) -> None:
        """Rename, replacing a file of the target's name, and make both folders durable."""
        with writing(self.path, target), self._parent(source) as (a, old), self._parent(target) as (b, new):
            os.replace(old, new, src_dir_fd=a, dst_dir_fd=b)
            make_durable(b)
            make_durable(a)

    def remove(self, name: str) -> None:
        """Delete the file, link or folder tree ``name`` durably; nothing happens where there is none."""
        with writing(self.path, name):
            try:
                with self._parent(name) as (parent, leaf):
                    if stat.S_ISDIR(os.stat(leaf, dir_fd=parent, follow_symlinks=False).st_mode):
                        shutil.rmtree(leaf, dir_fd=parent)
                    else:
                        os.unlink(leaf, dir_fd=parent)
                    make_durable(parent)
            except FileNotFoundError:
                return

    def lock(self, name: str) -> int:
        """Lock the file ``name`` exclusively; returns a descriptor, closing which releases it. StoreLocked if held."""
        while True:
            fd = -1
            try:
                with writing(self.path, name):
                    fd = self._create(name, 0)
                    self._lock(name, fd)
                    if self.has_lock(name, fd):
                        return fd
            except BaseException:  # an interrupt, too: a lost descriptor would hold the lock until the process ends
                if fd >= 0:
                    os.close(fd)
                raise
            os.close(fd)  # the file was removed or replaced before it was locked: others would lock another

    def is_locked(self, name: str) -> bool:
        """Whether another process holds the lock file ``name``; the check itself keeps others out for a moment."""
        try:
            fd, _ = self.open(name)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def has_lock(self, name: str, fd: int) -> bool:
        """Whether the lock file ``name`` still is the one that is open, and locked, as ``fd``."""
        there = self.stat(name)
        return there is not None and os.path.samestat(there, os.fstat(fd))

    def _lock(self, name: str, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = ""
            with suppress(OSError):  # a lock on SMB also keeps others from reading
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise cannot("lock", f"{self.path}/{name}", error) from error
            if holder == str(os.getpid()):
                who = "this process has it open for writing"
                do = "close that FeatureStore first (its close(), or a with block, which a notebook's cell can run "
                do += "again); wait, if another thread has it (taftcache.waiting(SECONDS)); or open"
            else:
                who = f"process {holder} writes to it" if holder else "another process writes to it"
                do = "wait for that process (taftcache --wait SECONDS; in Python taftcache.waiting(SECONDS)), or open"
            raise StoreLocked(f"cannot write to {self.path}: {who}", do=f"{do} the store for reading") from None

    def stat(self, name: str) -> os.stat_result | None:
        """The status of ``name``, of a link itself; None where there is nothing."""
        try:
            with self._parent(name) as (parent, leaf):
                return os.stat(leaf, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _below(self, name: str) -> list[os.stat_result]:
        """The status of the plain file ``name``, or of all plain files below that folder."""
        files = self.walk(name) if self.is_folder(name) else [name]
        found = (self.stat(file) for file in files)
        return [info for info in found if info is not None and stat.S_ISREG(info.st_mode)]

    def _create(self, name: str, flags: int, mode: int = 0o666) -> int:
        with self._parent(name) as (parent, leaf), _no_links(name):
            flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                return os.open(leaf, flags, mode, dir_fd=parent)
            except FileExistsError:
                raise StoreWriteError(
                    f"cannot write to {self.path}: another process has just made the file that is to be new",
                    got=name,
                    do="run the same command again; the last commit is intact",
                ) from None

    @contextmanager
    def _durable(self, name: str, flags: int, mode: int = 0o666) -> Iterator[int]:
        """A descriptor for changing the file ``name``; the changes are durable once this ends."""
        with writing(self.path, name):
            fd = self._create(name, flags, mode)
            try:
                yield fd
                make_durable(fd)
            finally:
                os.close(fd)

    @contextmanager
    def _removed_if_unwritten(self, name: str) -> Iterator[None]:
        """Remove the file ``name`` if the system refuses its write inside: it would take space of a full disk."""
        try:
            yield
        except StoreWriteError as error:
            if isinstance(error.__cause__, OSError):  # else it is another process's
                with suppress(OSError, StoreError):
                    self.remove(name)
            raise

    @contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        fd = os.open(".", _DIRECTORY, dir_fd=self._fd)
        try:
            for part in parts_of(name) if name else ():
                with _no_links(name):
                    fd, parent = os.open(part, _DIRECTORY, dir_fd=fd), fd
                os.close(parent)
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        *folder, leaf = parts_of(name)
        with self._folder("/".join(folder)) as fd:
            yield fd, leaf


def _opened(path: str) -> Folder:
    """The folder at ``path``; StoreNotFound if there is none."""
    try:
        return Folder(path)
    except OSError as error:
        raise cannot("open", path, error, StoreNotFound) from None


def write_all(fd: int, data: Any) -> None:
    """Write the whole buffer, however few bytes the system takes at a time."""
    rest = memoryview(data).cast("B")
    while len(rest):
        rest = rest[os.write(fd, rest) :]


def parts_of(name: str) -> list[str]:
    """The parts of a relative name; FormatError if it does not stay below the store."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise FormatError(f"the name {name!r} does not stay below the store", do=AVOID)
    return parts


def _link(name: str) -> FormatError:
    return FormatError(
        f"{name} is not a plain file or folder: links are not followed", do="put the file or folder itself there"
    )


@contextmanager
def _no_links(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise _link(name) from None
        raise


@contextmanager
def writing(place: Path, name: str | None = None) -> Iterator[None]:
    """An OSError inside becomes StoreWriteError: ``name`` could not be written in the folder ``place``."""
    try:
        yield
    except OSError as error:
        kept = error.errno in FULL and name is not None and name.startswith("staging/shard-")  # a ShardWriter's
        raise cannot("write to", place, error, StoreWriteError, got=name, then=GOES_ON if kept else INTACT) from error
