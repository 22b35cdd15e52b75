"""What tasks are given besides their rows: plain values, which scheduler and workers read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taftcache.cache.format.digest import canonical, digest


@dataclass(frozen=True, kw_only=True)
class RowJob:
    """What a worker loads once: ``recipe`` and ``classes`` make the frozen layers, ``identity`` proves them. The
    ``known`` ids say how many digits numbers of rows have."""

    recipe: dict[str, Any]
    classes: list[str]
    identity: dict[str, Any]
    known: list[str]
    threads: int

    @property
    def key(self) -> str:
        """Equal for jobs with the same model and images."""
        return digest(canonical([self.recipe, self.classes, self.identity, self.known]))


@dataclass(frozen=True, kw_only=True)
class SolveJob:
    """What a worker solves from: the ``store``'s address, a recipe's values, and the digest of the base point."""

    store: str
    recipe: dict[str, Any]
    base: str
    threads: int


@dataclass(frozen=True, kw_only=True)
class PassJob:
    """What a worker computes passes with: the solve, names of what is trained, dtype, bytes for each shard's rows.

    shards: how many a worker keeps at most. repeated: whether rows are made ready for many passes.
    """

    solve: SolveJob
    trained: tuple[str, ...]
    dtype: str
    memory: int
    shards: int
    repeated: bool
