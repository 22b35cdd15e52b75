"""Bytes that outlast a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

# what a file system says that does not have the call
_UNKNOWN = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY)


def make_durable(fd: int) -> None:
    """Have what was written to the open file, or the entries of the open folder, on the disk; OSError if that fails.

    A file system without an fsync of folders (some network and shared ones) is taken as it is.
    """
    try:
        if (full := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
            fcntl.fcntl(fd, full)  # on macOS, fsync leaves the bytes in the drive's own memory
            return
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNKNOWN or not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise
