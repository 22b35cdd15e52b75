"""Where a store is damaged, and how."""

from __future__ import annotations

from dataclasses import dataclass

from taftcache.errors import IntegrityError


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
            cure = f"Extract shard {self.shard} again, or restore the file from a copy."
        else:
            cure = "Restore the file from a copy."
        return IntegrityError("Every object of a store has the digest that its manifest names.", got=str(self), do=cure)
