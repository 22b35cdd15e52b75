"""All rows of a store in one table, in the order that exports, predictions and the page share; and all samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format.manifest import Role
from taftcache.cache.read.nearest import nearest
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import UnknownName, UnknownSample

# Rows of one step over a table: few enough that their tokens fit in memory whatever the backbone.
STEP_ROWS = 256
# A shard keeps its chunks mapped, since a solver reads them again; a single pass releases them after so many bytes.
LET_GO_BYTES = 64 << 20


class Reader:
    """Reads rows of a store's shards, verifies them, and releases their memory as it goes on."""

    def __init__(self, store: FeatureStore) -> None:
        self._refs = {ref.name: ref for ref in store.manifest.shards}
        self._root = store.root
        self._open: Shard | None = None
        self._left = 0

    def tokens(self, name: str, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Tokens [b,t,d] of the shard ``name``, for a slice of its rows or for row numbers."""
        shard = self._open
        if shard is None or shard.name != name or self._left <= 0:
            shard = Shard(self._root, self._refs[name])
            self._open, self._left = shard, LET_GO_BYTES
        tokens = shard.tokens(rows)
        self._left -= tokens.nbytes
        return tokens


def no_class(store: FeatureStore, name: str) -> UnknownName:
    """What to raise for a class that the store does not have."""
    close = nearest(name, store.classes)
    do = f"nearest: {', '.join(close)}" if close else "taftcache inspect lists them"
    return UnknownName(f"{store.path} has no class {name}", got=repr(name), names=[name], do=do)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A sample whose id a store keeps.

    shard: the shard that has it, or would. role: what it is there, a row or none: ``shard`` left a skipped one out, and
    a stopped extraction of ``shard`` has a staged one. label: its class, None if nothing says it.
    """

    sample: str
    shard: str
    role: Literal[Role, "skipped", "staged"]
    label: str | None


def every_sample(store: FeatureStore, shard: str | None = None) -> Iterator[Sample]:
    """All samples that can be forgotten, or those of one shard: rows as in a `RowTable`, then those without one."""
    known = set()
    for part in store.every_shard:
        if shard in (None, part.name):
            known.update(part.sample_ids)
            for i, k in zip(part.sample_ids, part.labels.tolist(), strict=True):
                yield Sample(sample=i, shard=part.name, role=part.role, label=store.classes[k])
    for left in store.manifest.skipped:
        if shard in (None, left.shard):
            known.add(left.id)
            yield Sample(sample=left.id, shard=left.shard, role="skipped", label=folder_of(store, left.id))
    for name, rows in store.staged_rows().items():
        for i, k in rows.items():
            if shard in (None, name) and i not in known:
                label = folder_of(store, i) if k < 0 else store.classes[k]
                yield Sample(sample=i, shard=name, role="staged", label=label)


def folder_of(store: FeatureStore, sample: str) -> str | None:
    """The class that a sample's id names, if each class has a folder; nothing else names that of a skipped sample."""
    data = store.manifest.recipe.get("data", {})
    if data.get("source") != "folder":
        return None
    parts = sample.split("/")  # with a test folder of its own, ids begin with train/ or test/
    return parts[1 if data.get("test") and len(parts) > 1 else 0]


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """Rows of all training shards, shard after shard, then the held-out ones.

    shards: in that order. ids: one for each row [n]. label, shard, row: class index [n], index into ``shards`` [n], row
    number in that shard [n]. reader: reads the features.
    """

    shards: tuple[Shard, ...]
    reader: Reader
    ids: list[str]
    label: NDArray[np.int32]
    shard: NDArray[np.int32]
    row: NDArray[np.int32]

    @classmethod
    def of(cls, store: FeatureStore) -> RowTable:
        """The table of a store; reads its labels and ids, no features."""
        shards = tuple(store.every_shard)
        ids = [i for shard in shards for i in shard.sample_ids]
        empty = [np.empty(0, np.int32)]
        return cls(
            shards=shards,
            reader=Reader(store),
            ids=ids,
            label=np.concatenate([shard.labels for shard in shards] or empty),
            shard=np.concatenate([np.full(shard.rows, k, np.int32) for k, shard in enumerate(shards)] or empty),
            row=np.concatenate([np.arange(shard.rows, dtype=np.int32) for shard in shards] or empty),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Whether each row is held out [n]."""
        return np.array([shard.role == "held-out" for shard in self.shards], bool)[self.shard]

    @cached_property
    def places(self) -> dict[str, int]:
        """Row number in the table, by id."""
        return {name: k for k, name in enumerate(self.ids)}

    def find(self, sample: str) -> int:
        """The row of a sample; UnknownSample when there is none."""
        if sample not in self.places:
            raise UnknownSample(
                f"the store has no sample {sample}",
                got=repr(sample),
                ids=[sample],
                do="taftcache inspect STORE --ids",
            )
        return self.places[sample]

    def start(self, shard: int) -> int:
        """The table's first row of shard number ``shard``."""
        return sum(part.rows for part in self.shards[:shard])

    def steps(self) -> Iterator[tuple[slice, Shard, slice]]:
        """(rows of the table, shard, rows of the shard), in order, at most ``STEP_ROWS`` at a time."""
        at = 0
        for shard in self.shards:
            for k in range(0, shard.rows, STEP_ROWS):
                stop = min(k + STEP_ROWS, shard.rows)
                yield slice(at + k, at + stop), shard, slice(k, stop)
            at += shard.rows

    def scattered(self, steps: int) -> list[tuple[slice, Shard, slice]]:
        """About ``steps`` of the steps, spread evenly over the table."""
        every: list[Any] = list(self.steps())
        count = min(steps, len(every))
        return [every[k] for k in sorted({round(j * (len(every) - 1) / max(count - 1, 1)) for j in range(count)})]


class Top:
    """The ``top`` first of all that was added; ``count`` says how many were."""

    def __init__(self, top: int) -> None:
        self._top, self.count = top, 0
        self._kept: tuple[NDArray[Any], ...] = ()

    def add(self, *columns: NDArray[Any]) -> None:
        """Add n things by some numbers of each, [n] in each column: the smaller number of the first column comes first,
        and where these are equal, that of the next."""
        self.count += len(columns[0])
        every = tuple(map(np.concatenate, zip(self._kept, columns, strict=True))) if self._kept else columns
        first = np.lexsort(every[::-1])[: self._top]
        self._kept = tuple(column[first] for column in every)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The numbers of each of them, in order."""
        return zip(*(column.tolist() for column in self._kept), strict=True)
