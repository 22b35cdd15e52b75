"""Where a store is damaged, and how."""

from __future__ import annotations

from dataclasses import dataclass

from taftcache.cache.place.failure import cause
from taftcache.errors import IntegrityError, StoreError


@dataclass(frozen=True, slots=True)
class Fault:
    """One damaged object: its ``shard``, ``array`` and ``chunk`` where it has them, its ``file`` below the store."""

    shard: str | None
    array: str | None
    chunk: int | None
    file: str
    problem: str

    def __str__(self) -> str:
        where = [f"shard {self.shard}"] if self.shard is not None else []
        where += [f"array {self.array}"] if self.array is not None else []
        where += [f"chunk {self.chunk}"] if self.chunk is not None else []
        where += [f"file {self.file}"]
        return f"{', '.join(where)}: {self.problem}"

    def error(self) -> IntegrityError:
        """The error that a read of this object ends in."""
        if self.shard is not None:
            cure = "Mend it (taftcache verify STORE --repair), or restore the file from a copy."
        else:
            cure = "Restore the file from a copy."
        return IntegrityError(f"{_DAMAGED}{self}", do=cure)


_DAMAGED = "the store is damaged: "


def problem_of(error: StoreError) -> str:
    """What an error that was met in a store says of it, in one line."""
    return error.fault.removeprefix(_DAMAGED) + (f" ({error.got})" if error.got is not None else "")


def unreadable(error: OSError) -> str:
    """The problem of a file that the system could not read."""
    return "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read: {cause(error)}"
