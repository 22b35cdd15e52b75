"""One commit: what is staged goes to its places, then the root manifest is swapped."""

from __future__ import annotations

from collections.abc import Iterable

from taftcache.cache.format.layout import manifest_file
from taftcache.cache.format.manifest import FILE, Manifest
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.home import Home


def commit(
    root: Home, desk: Folder, new: Manifest, groups: Iterable[tuple[str, str]], files: Iterable[tuple[str, str]]
) -> None:
    """Place ``groups`` and ``files`` (staged, place), then make ``new`` the root manifest: the one step that counts.

    StoreWriteError, before anything is placed, for a manifest that no reader would take.
    """
    raw = new.encode()
    for staged, place in groups:
        root.place(desk, manifest_file(staged), manifest_file(place))
        root.place(desk, staged, place)
    for staged, place in files:
        root.place(desk, staged, place)
    root.swap(FILE, raw)
