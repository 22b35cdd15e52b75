"""Rows that hold the very same cached bytes, by a hash of each. Labels have no part in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.progress import Progress

HASH = 16  # bytes: two different rows of 2³² have the same one with a chance of 2⁻⁶⁴


@dataclass(frozen=True, kw_only=True)
class Hashes:
    """A hash of the cached bytes of each row of a ``table``: ``hashes`` [n] where ``read`` [n]; the others lie in
    shards that are ``damaged`` and cannot be compared."""

    table: RowTable
    hashes: NDArray[Any]
    read: NDArray[np.bool_]
    damaged: list[str]

    @classmethod
    def of(cls, store: FeatureStore, progress: Progress) -> Hashes:
        """Reads the store once; holds 16 bytes a row."""
        table = RowTable.of(store)
        hashes, read = np.zeros(len(table), f"V{HASH}"), np.zeros(len(table), bool)
        damaged = dict[str, None]()
        with progress.task("copies", len(table)) as task:
            for rows, shard, there in table.steps():
                try:
                    tokens = np.ascontiguousarray(table.reader.tokens(shard.name, there))
                except StoreError:
                    damaged[shard.name] = None
                else:
                    hashes[rows] = [blake3(row.tobytes()).digest(length=HASH) for row in tokens]
                    read[rows] = True
                task.advance(rows.stop - rows.start)
        return cls(table=table, hashes=hashes, read=read, damaged=list(damaged))

    def ids_like(self, these: NDArray[np.bool_], among: NDArray[np.bool_]) -> list[str]:
        """Ids of the rows ``among`` [n] all that hold the bytes of one of ``these`` [n]."""
        sought = {one.tobytes() for one in self.hashes[these & self.read]}
        return [self.table.ids[k] for k in np.flatnonzero(among & self.read) if self.hashes[k].tobytes() in sought]


def copies_of(store: FeatureStore, samples: Collection[str], progress: Progress) -> tuple[list[str], list[str]]:
    """Ids of the other rows, held-out ones too, with the bytes of one of ``samples``; and the damaged shards."""
    named = set(samples)
    if not any(store.holds(sample) for sample in named):
        return [], []
    found = Hashes.of(store, progress)
    these = np.array([i in named for i in found.table.ids], bool)
    return found.ids_like(these, ~these), found.damaged


def leaked(store: FeatureStore, progress: Progress) -> list[str]:
    """Ids of held-out rows with the bytes of a training row."""
    found = Hashes.of(store, progress)
    held = found.table.held_out
    return found.ids_like(~held, held)
