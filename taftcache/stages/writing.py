"""A file or folder that a command makes for others: there whole, or not at all and with the reason in one line."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taftcache.errors import StoreWriteError

ADVICE = {
    errno.ENOENT: "make the folder that it goes into",
    errno.ENOTDIR: "name a place inside a folder",
    errno.EISDIR: "name a file, not a folder",
    errno.EACCES: "name a folder that you may write to",
    errno.EPERM: "name a folder that you may write to",
    errno.EROFS: "name a folder on a disk that can be written to",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "name a disk that takes files of this size",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextmanager
def whole(place: Path) -> Iterator[None]:
    """What is written to ``place`` in this context is gone again if that fails, where nothing was there before.

    Raises:
        StoreWriteError: the disk refused.
    """
    before = place.exists()
    try:
        yield
    except OSError as error:
        _remove(place, before)
        raise _refused(place, error.errno, str(error)) from error
    except BaseException as error:
        _remove(place, before)
        # safetensors has an error of its own for what the disk refuses
        if found := re.search(r"I/O error.*\(os error (\d+)\)", str(error)):
            raise _refused(place, int(found[1]), str(error)) from error
        raise


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


def _refused(place: Path, number: int | None, text: str) -> StoreWriteError:
    """The error for a number of ``errno``."""
    reason = os.strerror(number).lower() if number else text
    return StoreWriteError(f"cannot write {place}: {reason}", got=text, do=ADVICE.get(number or 0, "look at the disk"))


def _remove(place: Path, before: bool) -> None:
    """Take away what was begun, unless it was there ``before``."""
    if before:
        return
    with suppress(OSError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
