"""Whether a disk has room for files that are yet to be written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from taftcache.cache.place.address import is_bucket
from taftcache.errors import StoreWriteError
from taftcache.names import readable_size

LARGEST_BLOCK = 1 << 16  # some network file systems name megabytes, which a small file does not take


def free_bytes(path: str | os.PathLike[str]) -> int | None:
    """Free bytes on the disk where ``path`` is, or will be; None in a bucket."""
    return None if is_bucket(path) else shutil.disk_usage(_nearest(path)).free


def taken_bytes(path: str | os.PathLike[str], sizes: Iterable[int]) -> int:
    """Bytes that files of these ``sizes`` take on the disk where ``path`` is, which gives each of them whole blocks."""
    block = 1 if is_bucket(path) else min(os.statvfs(_nearest(path)).f_frsize, LARGEST_BLOCK)
    return sum(-(-size // block) * block for size in sizes)


def check_room(
    path: str | os.PathLike[str],
    needed: int,
    do: str = "name a place on another disk, or free some space on that one",
) -> None:
    """StoreWriteError, with the advice ``do``, if fewer than ``needed`` bytes are free at ``path``."""
    free = free_bytes(path)
    if free is not None and free < needed:
        raise StoreWriteError(
            f"cannot write to {os.fspath(path)}: the disk has too little space for the store",
            got=f"{readable_size(needed)} needed, {readable_size(free)} free",
            do=do,
        )


def _nearest(path: str | os.PathLike[str]) -> Path:
    whole = Path(path).absolute()
    return next(place for place in (whole, *whole.parents) if place.is_dir())
