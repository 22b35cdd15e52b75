"""Which home an address names: a folder of this machine, or a prefix of a bucket."""

from __future__ import annotations

import os
from pathlib import Path

from taftcache.cache.files import Folder
from taftcache.cache.home import Home
from taftcache.cache.sweep import LOCK
from taftcache.errors import StoreError


def open_home(path: str | os.PathLike[str]) -> tuple[Home, Folder]:
    """The home at ``path``, and the desk on which changes to it are prepared. OSError when there is no such folder."""
    folder = Folder(path)
    return folder, folder


def bring(path: str | os.PathLike[str], first: bytes, file: str) -> None:
    """Make an empty store at ``path``, a place where nothing is yet: its root manifest is ``first``."""
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError("A store can be made there.", got=f"{place}: {error.strerror}") from None
    root, desk = open_home(path)
    try:
        empty(root, (LOCK, f"{file}.partial"))
        lock = desk.lock(LOCK)
        try:
            root.swap(file, first)
        finally:
            os.close(lock)
    finally:
        root.close()
        desk.close()


def empty(root: Home, ignored: tuple[str, ...]) -> None:
    """StoreError unless nothing but ``ignored`` lies there."""
    there = [name for name, _ in root.entries() if name not in ignored]
    if there:
        raise StoreError(
            "A store is made in an empty folder.",
            got=f"{root.path} holds {', '.join(there[:3])}",
            do='Name another folder, or open the store that is there with mode="a".',
        )
