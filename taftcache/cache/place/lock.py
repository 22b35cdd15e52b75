"""The lock that lets one process at a time write to a store."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Self

from taftcache.cache.place.folder import Folder, write_all

LOCK = "lock"


class WriterLock:
    """The lock file of a store's staging folder, held until `close`; the holder's process number stands in it.

    StoreLocked when another process holds it. A context manager.
    """

    def __init__(self, staging: Folder) -> None:
        self._staging = staging
        self._descriptor = staging.lock(LOCK)
        with suppress(OSError):  # the number only helps who waits; a full disk must not keep anyone from erasing
            os.ftruncate(self._descriptor, 0)
            write_all(self._descriptor, f"{os.getpid()}\n".encode())

    @property
    def held(self) -> bool:
        """Whether the lock file is still the one that was locked."""
        return self._staging.has_lock(LOCK, self._descriptor)

    def close(self) -> None:
        """Let the lock go."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
