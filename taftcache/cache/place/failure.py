"""Why the system refused to read or write: the cause in words, and advice that fits it."""

from __future__ import annotations

import errno

from taftcache.errors import NETWORK, FormatError, StoreError, StoreLocked, StoreWriteError

AGAIN = ", then run the same command again"
_INTACT = "; the last commit is intact"
INTACT = f"{AGAIN}{_INTACT}"
GOES_ON = f"{AGAIN}, which goes on from what staging/ keeps (taftcache gc STORE --unfinished removes it){_INTACT}"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
AVOID = "do not use this store"
_IN_THE_WAY = "a file, or a link that leads nowhere, is where a folder must be", "name a folder, or move that away"
_CLOSE = "close what has it open (taftcache view, say)"
_CAUSES = {
    errno.ENOSPC: ("no space left on the disk", "free some space on that disk"),
    errno.EDQUOT: ("the disk quota is full", "free some space of the quota, or ask for more"),
    errno.EACCES: ("permission denied", "get permission for that place (chmod, chown), or name another one"),
    errno.EPERM: ("permission denied", "get permission for that place (chmod, chown), or name another one"),
    errno.EROFS: ("the file system is read-only", "mount it for writing, or name a place on another file system"),
    errno.ENOENT: ("no such folder or bucket", "correct the path, or make what is missing"),
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: ("a folder is where a file must be", "name a file, or move that folder away"),
    errno.EBUSY: ("another program has it open, or it is a mount point", f"{_CLOSE}; of a mount, name a folder in it"),
    errno.ENOTEMPTY: ("another program has a file in it open", _CLOSE),  # NFS then removes the file when it is closed
    errno.EIO: ("the disk reports an I/O error", "check the disk"),
    errno.EBADF: ("its folder or file was closed in this process", "open it again"),
    errno.EMFILE: ("too many files are open", "allow more open files (ulimit -n)"),
    errno.ENFILE: ("too many files are open", "close other programs"),
    errno.EFBIG: ("the file is too large", "allow larger files (ulimit -f), or name a place on another file system"),
    errno.ENAMETOOLONG: ("the name is too long", "name a place with a shorter path"),
    errno.ELOOP: ("too many links lead on to each other", "name the folder itself"),
    **dict.fromkeys(NETWORK, ("the network file system does not answer", "look at the network and at the mount")),
    errno.ESTALE: ("the network file system has lost the file", "look whether it is still mounted"),
}


def cause(error: OSError) -> str:
    """What went wrong, in lower case, without the file's name."""
    text = error.strerror or str(error) or type(error).__name__
    return _CAUSES[error.errno][0] if error.errno in _CAUSES else text[:1].lower() + text[1:]


def advice(error: OSError) -> str:
    """What to do about it."""
    return _CAUSES[error.errno][1] if error.errno in _CAUSES else "look at the disk and at the path"


def cannot(
    what: str,
    place: object,
    error: OSError,
    kind: type[StoreError] = StoreWriteError,
    *,
    got: str | None = None,
    then: str = "",
) -> StoreError:
    """The error ``cannot <what> <place>: <cause>``, with advice for that cause, and ``then`` after the advice."""
    return kind(f"cannot {what} {place}: {cause(error)}", got=got, do=f"{advice(error)}{then}")


def forestalled(place: object) -> StoreLocked:
    """The error for the slower of two writers of a store in a bucket."""
    return StoreLocked(
        f"cannot commit to {place}: another writer has committed meanwhile",
        got="its commit stands, this one is undone",
        do="run the same command again",
    )


def too_large(name: str, size: int, limit: int) -> FormatError:
    """The error for a file of more bytes than are read."""
    return FormatError(f"{name} has {size} bytes, and at most {limit} are read", do=AVOID)
