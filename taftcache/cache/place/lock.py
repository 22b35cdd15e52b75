"""The lock that lets one process at a time write to a store."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from numbers import Real
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

from taftcache.cache.place.folder import Folder, write_all
from taftcache.errors import ArgumentError, StoreError, StoreLocked

LOCK = "lock"
EVERY = 0.1  # seconds between two tries
LOOK = 0.02  # seconds to wait in any case: a process that only checks whether the lock is held has it for less


class _Patience(NamedTuple):
    """How many seconds to wait for a lock, and what to call, once, when a wait begins."""

    seconds: float = 0.0
    say: Callable[[str], object] = str


_AT_ONCE = _Patience()
_holders = dict[tuple[int, int], tuple[int, int]]()  # (device, inode) of each lock file held -> (process, thread)
_patience: ContextVar[_Patience] = ContextVar("patience", default=_AT_ONCE)


@contextmanager
def waiting(seconds: float, say: Callable[[str], object] = str) -> Iterator[None]:
    """Inside this block, wait up to ``seconds`` for a store that another process or thread writes to, instead of
    raising StoreLocked at once: ``with waiting(60): forget("stores/quickstart", ids)``.

    It holds for the calls of this thread or asyncio task, and of what runs in a copy of its context, as
    ``asyncio.to_thread`` does; other threads need a block of their own. ``say`` is called with a sentence, once for
    each store that is waited for. No wait can help where the calling thread itself has the store open for writing:
    StoreLocked is raised at once.

    Raises:
        ArgumentError: not a number of at least 0.
    """
    if not (isinstance(seconds, Real) and seconds >= 0):
        raise ArgumentError("seconds must be a number of at least 0", got=repr(seconds), do="waiting(60)")
    token = _patience.set(_Patience(seconds, say))
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that another context closes: there is nothing to set back there
            _patience.reset(token)


class WriterLock:
    """The lock file of a store's staging folder, held until `close`; the holder's process number stands in it.

    StoreLocked when another process holds it, and did not let it go in the time that ``waiting`` allows. A context
    manager.
    """

    _descriptor = -1
    _file: os.stat_result | None = None

    def __init__(self, staging: Folder) -> None:
        self._staging, self._holder = staging, os.getpid()
        self._descriptor = _locked(staging)
        try:
            self._file = os.fstat(self._descriptor)
            _holders[_key(self._file)] = _self()
            with suppress(OSError):  # the number only helps those who wait; a full disk must not stop an erasure
                os.ftruncate(self._descriptor, 0)
                write_all(self._descriptor, f"{self._holder}\n".encode())
        except BaseException:  # an interrupt, whose traceback would keep this object alive
            self.close()
            raise

    @property
    def held(self) -> bool:
        """Whether the lock file is still the one that was locked."""
        return self._staging.has_lock(LOCK, self._descriptor)

    def close(self) -> None:
        """Let the lock go."""
        descriptor = self._descriptor
        own = descriptor >= 0 and _is(descriptor, self._file)
        try:
            if own and os.getpid() == self._holder:  # a fork must not remove the number
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)  # forks that live on hold it no longer
        finally:
            self._descriptor = -1
            if own:
                if self._file is not None:
                    _holders.pop(_key(self._file), None)
                os.close(descriptor)

    def __del__(self) -> None:
        # A store that a notebook dropped without closing it must not lock the next one out. When the process ends, its
        # threads may still write: then the system releases the lock after them. A fork leaves it alone.
        if not sys.is_finalizing() and os.getpid() == self._holder:
            self.close()

    def __reduce__(self) -> NoReturn:
        raise not_copied(self._staging.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def not_copied(path: Path) -> StoreError:
    """The error for a store open for writing that is copied or pickled: there is only one writer."""
    return StoreError(
        f"{path} cannot be copied or sent to another process while it is open for writing",
        do="send its path, or a store that is open for reading",
    )


def _self() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()  # a fork's first thread may have the number of the one that forked


def _key(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def _is(descriptor: int, file: os.stat_result | None) -> bool:
    """Whether a descriptor still is that file's: its number may have been closed, and given to another file."""
    try:
        return file is None or os.path.samestat(os.fstat(descriptor), file)
    except OSError:
        return False


def _locked(staging: Folder) -> int:
    """The lock's descriptor. Nothing is held while waiting, so a waiting process can be killed."""
    patience, said = _patience.get(), False
    until = time.monotonic() + max(patience.seconds, LOOK)
    while True:
        try:
            return staging.lock(LOCK)
        except StoreLocked as error:
            file = staging.stat(LOCK)
            mine = file is not None and _holders.get(_key(file)) == _self()
            if mine or not time.monotonic() < until:
                raise
            if not said and patience.seconds:
                patience.say(f"{error.fault}; waiting for up to {patience.seconds:g} s")
            said = True
        time.sleep(min(EVERY, max(patience.seconds, LOOK)))
