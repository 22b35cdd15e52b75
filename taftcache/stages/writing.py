"""Write a file or folder outside a store: it appears whole, or not at all and with the reason in one line."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from taftcache.cache.format.digest import digest
from taftcache.cache.place.durable import make_durable
from taftcache.cache.place.failure import cannot
from taftcache.errors import StoreLocked, StoreWriteError
from taftcache.names import is_from_macos

if TYPE_CHECKING:
    from taftcache.cache.place.lock import WriterLock

LATE = 24 * 3600
REPLACE = "replace an earlier one (--force; in Python force=True)"
_NUMBER = re.compile(rb"\d{0,20}\n?")
_EXCHANGE = 2  # of renameat2 on Linux, and of renamex_np on macOS


@contextmanager
def whole(place: Path, *, folder: bool = False, again: bool | bytes = False) -> Iterator[Path]:
    """A name beside ``place`` to write to: what is written there becomes ``place`` when the context ends without error.

    A run that fails removes its work. A killed run leaves it under that other name, in nobody's way; the next run that
    writes to ``place`` removes it. The arguments are those of ``writable``, which is called first.

    Raises:
        StoreWriteError: as for ``writable``, or the disk refused a write.
    """
    writable(place, folder=folder, again=again)
    _sweep(place)
    partial = _partial(place)
    try:
        partial.parent.mkdir(parents=folder, exist_ok=True)
        yield partial
        _publish(partial, place, again=bool(again))
    except OSError as error:
        raise cannot("write", place, error) from error
    except Exception as error:
        # safetensors has an error of its own for a write that the disk refuses
        if found := re.search(r"I/O error.*\(os error (\d+)\)", str(error)):
            raise cannot("write", place, OSError(int(found[1]), str(error))) from error
        raise
    finally:
        _remove(partial)


def writable(place: Path, *, folder: bool = False, again: bool | bytes = False) -> None:
    """Raise unless ``place`` can be written: to be called before long work whose result would have nowhere to go.

    Args:
        place: a file to be made; its folder must exist.
        folder: ``place`` is to be a folder, which may exist already if it is empty (what macOS puts into a folder is
            removed later); those above it are made.
        again: ``place`` may exist already; it is replaced, whole and in one step, or continued. Bytes: only a file
            that begins with them, or is empty.

    Raises:
        StoreWriteError: something is there already; no folder, permission or space; a store, or a place within one; a
            bucket's address.
    """
    from taftcache.cache.read.around import check_local, is_store

    check_local(place)
    if folder and is_store(str(place)):
        raise StoreWriteError(
            f"cannot write to {place}: it is a store, which may hold only its own files",
            do="name a place outside of it",
        )
    try:
        with suppress(FileNotFoundError):
            os.lstat(_partial(place))  # refuses names that are too long
        there = os.path.lexists(place)
        if there and isinstance(again, bytes) and not place.is_dir() and not _begins(place, again):
            raise StoreWriteError(
                f"cannot write {place}: what is there was not written by this command",
                got=f"a file of {os.stat(place).st_size:,} bytes" if place.is_file() else "not a plain file",
                do="name another file, or delete it first",
            )
        if folder and there and not again and os.path.ismount(place):
            raise StoreWriteError(
                f"cannot write {place}: it is a mount point, and no other folder can take its place",
                do=f"name a folder inside it: {place / 'made'}",
            )
        named = place.name != ""  # the current folder, or the root
        if there and not (place.is_dir() == folder and (again or (folder and named and _is_empty(place)))):
            raise StoreWriteError(
                f"cannot write {place}: it exists already",
                do=f"name a new or empty folder, or delete this one first if it is an earlier export; if it is a saved "
                f"model, {REPLACE}"
                if folder
                else "name a file that is not there yet" + (f", or {REPLACE}" if place.is_file() else ""),
            )
        above = place if folder and again else place.parent  # what is written beside takes the place of what is there
        while folder and not above.exists():
            above = above.parent
        with tempfile.TemporaryFile(dir=above) as probe:  # without a name: a killed run leaves nothing
            probe.write(bytes(4096))
    except OSError as error:
        raise cannot("write", place, error) from None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one process at a time writes to a ``folder`` that further runs continue. It is made, with those above it,
    and is gone again afterwards if nothing was written.

    Raises:
        StoreLocked: another process writes to it, and did not end in the time that ``taftcache.waiting`` allows.
        StoreWriteError: it cannot be made or written to, or has a file ``lock`` of something else.
    """
    from taftcache.cache.place.lock import LOCK

    made, file = not folder.exists(), folder / LOCK
    try:
        with _lock(folder):
            try:
                yield
            finally:
                _remove(file)
    finally:
        if made:
            with suppress(OSError):  # something was written
                folder.rmdir()


def _lock(folder: Path) -> WriterLock:
    """The lock of a folder, which is made; it is held until it is closed. Errors as of ``alone``."""
    from taftcache.cache.place.folder import Folder
    from taftcache.cache.place.lock import LOCK, WriterLock

    file = folder / LOCK
    try:
        if os.path.lexists(file):  # of a process that was killed, it has that one's number
            check_replaced(folder, [LOCK], own=file.is_file() and bool(_NUMBER.fullmatch(_start(file))))
        folder.mkdir(parents=True, exist_ok=True)
        return WriterLock(Folder(folder))
    except StoreLocked as error:
        error.do = "wait (taftcache --wait SECONDS; in Python taftcache.waiting(SECONDS)), or name another folder"
        raise
    except OSError as error:
        raise cannot("write", folder, error) from error


def check_replaced(folder: Path, names: Iterable[str], *, own: bool) -> None:
    """StoreWriteError if ``folder`` has files with names that a command writes there, and they are not its ``own``."""
    if not own and (there := sorted(name for name in names if os.path.lexists(folder / name))):
        raise StoreWriteError(
            f"cannot write to {folder}: what is there, and would be replaced, was not written by this command",
            got=", ".join(there),
            do="name another folder, or move these files elsewhere first",
        )


def reserve(place: Path, size: int) -> None:
    """OSError unless the disk takes a file of ``size`` bytes at ``place``, which is gone again afterwards.

    For writers that do not survive a full disk: HDF5 ends the process where it cannot flush what it holds.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with place.open("xb") as probe:
        try:
            os.posix_fallocate(probe.fileno(), 0, size)
        finally:
            place.unlink()


def _is_empty(folder: Path) -> bool:
    """Whether nothing lies there but files of macOS."""
    return all(is_from_macos(file.name) and not file.is_dir() for file in folder.iterdir())


def _start(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(32)


def _begins(place: Path, mark: bytes) -> bool:
    """Whether a plain file begins with ``mark``, or has nothing in it."""
    if not place.is_file():  # to open a pipe would wait for a writer
        return False
    with place.open("rb") as stream:
        return stream.read(len(mark)) in (mark, b"")


def _partial(place: Path) -> Path:
    # as text: "." and "/" have no name
    return Path(f"{place}.{os.getpid()}-{threading.get_ident()}-{_host()}.partial")


def _host() -> str:
    """Which machine or container this is, whose numbers of processes others do not know."""
    return digest(platform.node().encode())[:8]


def _publish(partial: Path, place: Path, *, again: bool) -> None:
    """Sync ``partial`` to the disk, and only then rename it to ``place``; ``again`` if a folder there is replaced."""
    within = [partial, *partial.rglob("*")] if partial.is_dir() else [partial]
    for file in within:
        _sync(file)
    if partial.is_dir() and place.is_dir() and _is_empty(place):
        for file in place.iterdir():
            if is_from_macos(file.name):  # another may have come just now
                file.unlink(missing_ok=True)
    try:
        if again and partial.is_dir() and place.is_dir():
            _exchange(partial, place)  # what was there goes with what is left of this run's work
        else:
            os.replace(partial, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise StoreWriteError(
            f"cannot write {place}: another program has put files there meanwhile", do="name another folder"
        ) from None
    _sync(place.parent)


def _exchange(one: Path, other: Path) -> None:
    """Give two folders each other's names in one step; StoreWriteError where the system has no such step."""
    names = [os.fsencode(one), os.fsencode(other)]
    libc, here = ctypes.CDLL(None, use_errno=True), -100  # AT_FDCWD: names are relative to the current folder
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(here, names[0], here, names[1], _EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, _EXCHANGE)
    else:
        failed = 1
        ctypes.set_errno(errno.ENOSYS)
    if failed and ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise StoreWriteError(
            f"cannot replace {other}: its file system cannot exchange two folders in one step",
            do="delete it first, or name a new folder",
        )
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _sync(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        make_durable(fd)
    finally:
        os.close(fd)


def _sweep(place: Path) -> None:
    """Remove what killed runs left beside ``place``; those of other machines after ``LATE`` seconds."""
    with suppress(OSError):
        for file in place.parent.iterdir():
            found = re.fullmatch(rf"{re.escape(place.name)}\.(\d+)(?:-\d+)?(?:-([0-9a-f]{{8}}))?\.partial.*", file.name)
            if found is None:
                continue
            elsewhere = found[2] not in (None, _host())
            if time.time() - _changed(file) > LATE if elsewhere else not _runs(int(found[1])):
                _remove(file)


def _changed(place: Path) -> float:
    """When a file was last written to, or any in a folder; now, if it is just removed."""
    try:
        return max(file.lstat().st_mtime for file in (place, *place.rglob("*")))
    except OSError:
        return time.time()


def _runs(process: int) -> bool:
    """Whether a process with that number is running."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _remove(file: Path) -> None:
    """Remove a file or folder; errors of the disk are ignored."""
    with suppress(OSError):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)
