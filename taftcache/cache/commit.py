"""One commit: what is staged goes to its places, then the root manifest is swapped."""

from __future__ import annotations

from collections.abc import Iterable

from taftcache.cache.files import Folder
from taftcache.cache.home import Home
from taftcache.cache.layout import manifest_file
from taftcache.cache.manifest import FILE, Manifest


def commit(
    root: Home, desk: Folder, new: Manifest, groups: Iterable[tuple[str, str]], files: Iterable[tuple[str, str]]
) -> None:
    """Place ``groups`` and ``files`` (staged, place), then make ``new`` the root manifest: the one step that counts."""
    for staged, place in groups:
        root.place(desk, manifest_file(staged), manifest_file(place))
        root.place(desk, staged, place)
    for staged, place in files:
        root.place(desk, staged, place)
    root.swap(FILE, new.encode())
