"""Where a store is damaged, and how."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from taftcache.cache.format.digest import digest
from taftcache.cache.format.naming import DERIVED, FILE, MAX_BYTES
from taftcache.cache.place.failure import AGAIN, cannot, cause
from taftcache.cache.place.home import Home
from taftcache.errors import NETWORK, FormatError, IntegrityError, StoreChanged, StoreError, StoreUnreachable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One damaged object.

    shard, array, chunk: where it is, None where that does not apply. file: its path in the store. problem: what is
    wrong.
    """

    shard: str | None = None
    array: str | None = None
    chunk: int | None = None
    file: str
    problem: str

    @classmethod
    def of(cls, read: Callable[[], object], *, file: str, shard: str | None = None) -> Fault | None:
        """The fault of the object that ``read`` reads, None if it is whole; StoreUnreachable if that is unknown now."""
        try:
            read()
        except StoreUnreachable:
            raise
        except StoreError as error:
            return cls.met(error, file=file, shard=shard)
        return None

    @classmethod
    def met(cls, error: StoreError, *, file: str, shard: str | None = None) -> Fault:
        """The fault of an object whose read raised ``error``, the text of which may name the object's place already."""
        place = str(cls(shard=shard, file=file, problem=""))
        return cls(shard=shard, file=file, problem=problem_of(error).removeprefix(place))

    def __str__(self) -> str:
        where = [f"shard {self.shard}"] if self.shard is not None else []
        where += [f"array {self.array}"] if self.array is not None else []
        where += [f"chunk {self.chunk}"] if self.chunk is not None else []
        where += [f"file {self.file}"]
        return f"{', '.join(where)}: {self.problem}"

    def error(self) -> IntegrityError:
        """The error that a read of this object raises."""
        cure = "restore the file from a copy"
        if self.is_mendable:
            mend = "drop it, to make it again" if self.file.partition("/")[0] in DERIVED else "mend it"
            cure = f"{mend} (taftcache verify STORE --repair), or {cure}"
        return IntegrityError(f"{_DAMAGED}{self}", do=cure)

    @property
    def is_mendable(self) -> bool:
        """Whether a repair may mend the file, or drop it; of others nothing else says what their bytes were."""
        return not self.file.startswith((FILE, "ledger/", "lists/skipped-"))


DAMAGE = (IntegrityError, FormatError)  # what a read of a damaged file raises
_DAMAGED = "the store is damaged: "


def problem_of(error: StoreError) -> str:
    """What ``error`` says is wrong with the store, in one line."""
    return error.fault.removeprefix(_DAMAGED) + (f" ({error.got})" if error.got is not None else "")


def intact(read: Callable[[], T]) -> T | None:
    """What ``read`` returns, None if what it reads is damaged; StoreUnreachable if that is unknown now."""
    try:
        return read()
    except StoreUnreachable:
        raise
    except StoreError:
        return None


def unreadable(root: Home, file: str, error: OSError) -> str:
    """What is wrong with a file that the system could not read.

    Raises:
        StoreUnreachable: the file is there, but this process may not read it, has too many files open, or has closed
        the store's folder; or a network file system does not answer.
        StoreChanged: a commit may have removed the file.
    """
    # NFS may say of a removed file that is open that its handle is stale
    if (isinstance(error, FileNotFoundError) or error.errno == errno.ESTALE) and is_changed(root):
        raise changed(root) from None
    if error.errno in _REFUSED:
        then = AGAIN if error.errno in NETWORK else ""
        raise cannot("read", f"{root.path}/{file}", error, StoreUnreachable, then=then) from error
    return "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read: {cause(error)}"


def read_named(root: Home, file: str, limit: int, wanted: str, by: str, shard: str | None = None) -> bytes:
    """The bytes of a file, at most ``limit``, verified against the digest ``wanted`` that ``by`` ("the chain") names.

    Raises:
        IntegrityError: it is missing, cannot be read, or has another digest. FormatError: it is longer.
        StoreUnreachable, StoreChanged: as in ``unreadable``.
    """
    try:
        raw = root.read(file, limit)
    except OSError as error:
        raise Fault(shard=shard, file=file, problem=unreadable(root, file, error)).error() from None
    if digest(raw) != wanted:
        raise Fault(shard=shard, file=file, problem=f"its bytes do not have the digest that {by} names").error()
    return raw


def is_changed(root: Home) -> bool:
    """Whether another process has committed since the store at ``root`` was opened."""
    try:
        return root.opened not in ("", digest(root.read(FILE, MAX_BYTES)))
    except (OSError, StoreError):
        return False


def changed(root: Home) -> StoreChanged:
    """The error for a reader that has outlived the commit that it opened."""
    return StoreChanged(
        f"cannot read on in {root.path}: it was committed anew",
        do="open it again: what is gone belonged to the commit before",
    )


_REFUSED = {errno.EACCES, errno.EPERM, errno.EBADF, errno.EMFILE, errno.ENFILE, *NETWORK}
