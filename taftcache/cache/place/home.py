"""Where a store's committed files lie: the one seam between a folder and a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from taftcache.cache.place.folder import Folder


class Home(Protocol):
    """Files by relative names (``a/b/c``), immutable once placed, and one of them that is swapped.

    Reads raise ``OSError`` (``FileNotFoundError`` for what is not there) and FormatError; writes raise StoreWriteError.
    Work in progress lies in a staging `Folder`, which is the home itself where the home is a folder.
    """

    path: Path
    opened: str
    """The digest of the root manifest's bytes when it was last read or swapped through this; "" before."""

    @property
    def stable(self) -> bool:
        """Whether a view keeps the bytes that were checked. If not, every view is fetched and checked again."""
        ...

    @property
    def locked(self) -> bool:
        """Whether the lock in the staging folder keeps other writers out: if so, what nothing names may be removed."""
        ...

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of ``name``; FormatError, before anything is allocated, when there are more than ``limit``."""
        ...

    def view(self, name: str, size: int) -> tuple[int, Any]:
        """How many bytes ``name`` has, and a buffer of them (None when they are not ``size``)."""
        ...

    def size(self, name: str) -> int:
        """Bytes of the file ``name``, or of all files below it."""
        ...

    def sizes(self, name: str) -> dict[str, int]:
        """The bytes of every file below the folder ``name``, by its name from the root; no file is opened."""
        ...

    def changed(self, name: str) -> float:
        """When the file ``name``, or the newest below it, was written: seconds since 1970."""
        ...

    def entries(self, name: str = "") -> list[tuple[str, bool]]:
        """(name, is a folder) of what lies in the folder ``name``, sorted."""
        ...

    def walk(self, name: str = "") -> Iterator[str]:
        """Every file below ``name``, as names from the root, sorted."""
        ...

    def exists(self, name: str) -> bool:
        """Whether anything of that name is there."""
        ...

    def put(self, name: str, data: Any, *, mode: int | None = None) -> None:
        """Write ``data`` to ``name``, as a whole and durably, with the permissions ``mode`` if given."""
        ...

    def place(self, staging: Folder, staged: str, name: str) -> None:
        """Bring the file or folder ``staged`` of the staging folder to ``name``, durably."""
        ...

    def swap(self, name: str, data: bytes) -> None:
        """Replace the file ``name`` as a whole and durably."""
        ...

    def remove(self, name: str) -> None:
        """Delete the file or folder tree ``name``; nothing happens where there is none."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...
