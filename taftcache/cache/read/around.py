"""Whether a place lies in a store, where nothing may lie but what its manifests name.

A file put among a store's files by hand is no part of the store: a forgotten id would stay in it unseen, and the next
commit may sweep it away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from taftcache.cache.format.manifest import FORMAT
from taftcache.cache.place.address import is_bucket, open_home, spelled
from taftcache.cache.read.contents import manifest_bytes
from taftcache.errors import StoreError, StoreWriteError, check_path

REMEMBERED = ".forgotten"  # the suffix of the file beside a store


def check_outside(place: str | os.PathLike[str]) -> None:
    """StoreWriteError if ``place`` lies in the folder of a store, or below its prefix, or ends in ``.forgotten``;
    RecipeError and StoreWriteError as in ``open_home``, ArgumentError as ``check_path``."""
    check_path("the place to write to", place)
    if os.fspath(place).rstrip("/").endswith(REMEMBERED):
        raise StoreWriteError(
            f"cannot write {spelled(place)}: that is where a store remembers what was forgotten",
            got=f"a name that ends in {REMEMBERED}",
            do="choose another name",
        )
    if is_bucket(place):  # refuse a bad address under its own name, before any bucket is asked
        with open_home(place):
            pass
    for above in _above(place):
        if is_store(above):
            raise StoreWriteError(
                f"cannot write {spelled(place)}: it lies in a store, where nothing but the store's own files may",
                got=f"a store at {above}",
                do="name a place outside of it",
            )


def check_local(place: str | os.PathLike[str]) -> None:
    """`check_outside` for a file or folder that is no store: StoreWriteError also for a place in a bucket."""
    check_path("the place to write to", place)
    if is_bucket(place):  # a folder of that name here would not be what was asked for
        raise StoreWriteError(
            f"cannot write {spelled(place)}: only a store can be written to a bucket",
            do="name a place on this machine, and upload what is written there",
        )
    check_outside(place)


def _above(place: str | os.PathLike[str]) -> Iterator[str]:
    """The folders or prefixes that ``place`` lies in, nearest first."""
    if is_bucket(place):
        bucket, *prefix = os.fspath(place).rstrip("/").removeprefix("s3:").strip("/").split("/")
        yield from reversed([f"s3://{whole}" for whole in accumulate([bucket, *prefix], "{}/{}".format)][:-1])
    else:
        yield from map(str, Path(os.path.realpath(place)).parents)


def is_store(place: str) -> bool:
    """Whether a root manifest lies there, damaged or not; other programs may have a file of that name too."""
    with suppress(OSError, StoreError):
        return f'"{FORMAT}"'.encode() in manifest_bytes(place)
    return False
