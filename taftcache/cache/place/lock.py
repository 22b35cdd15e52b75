"""The lock that lets one process at a time write to a store."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import NamedTuple, Self

from taftcache.cache.place.folder import Folder, write_all
from taftcache.errors import StoreLocked

LOCK = "lock"
EVERY = 0.1  # seconds between two tries
LOOK = 0.02  # seconds that are waited in any case: who only looks whether the lock is held has it for less


class _Patience(NamedTuple):
    """How many seconds a lock is waited for, and what is told, once, that it is."""

    seconds: float = 0.0
    say: Callable[[str], object] = str


_AT_ONCE = _Patience()
_patience: ContextVar[_Patience] = ContextVar("patience", default=_AT_ONCE)


@contextmanager
def waiting(seconds: float, say: Callable[[str], object]) -> Iterator[None]:
    """While this lasts, a lock that another process holds is waited for; ``say`` is told what for, once a lock."""
    token = _patience.set(_Patience(seconds, say))
    try:
        yield
    finally:
        _patience.reset(token)


class WriterLock:
    """The lock file of a store's staging folder, held until `close`; the holder's process number stands in it.

    StoreLocked when another process holds it, and did not let it go in the time that ``waiting`` allows. A context
    manager.
    """

    def __init__(self, staging: Folder) -> None:
        self._staging = staging
        self._descriptor = _locked(staging)
        with suppress(OSError):  # the number only helps who waits; a full disk must not keep anyone from erasing
            os.ftruncate(self._descriptor, 0)
            write_all(self._descriptor, f"{os.getpid()}\n".encode())
        # a store that a notebook has dropped, and not closed, must not lock the next one out
        self._let_go = weakref.finalize(self, _let_go, self._descriptor, os.getpid())

    @property
    def held(self) -> bool:
        """Whether the lock file is still the one that was locked."""
        return self._staging.has_lock(LOCK, self._descriptor)

    def close(self) -> None:
        """Let the lock go."""
        self._let_go()
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _let_go(descriptor: int, holder: int) -> None:
    if os.getpid() == holder:  # the number in it is not for a fork to take away
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _locked(staging: Folder) -> int:
    """The lock's descriptor. Nothing is held while it is waited for, so who waits can be killed."""
    patience, said = _patience.get(), False
    until = time.monotonic() + max(patience.seconds, LOOK)
    while True:
        try:
            return staging.lock(LOCK)
        except StoreLocked as error:
            if not time.monotonic() < until:
                raise
            if not said and patience.seconds:
                patience.say(f"{error.fault}; waiting for up to {patience.seconds:g} s")
            said = True
        time.sleep(min(EVERY, max(patience.seconds, LOOK)))
