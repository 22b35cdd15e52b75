"""One class: its rows in every shard."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError
from taftcache.stages.look.inside.shards import NAMED
from taftcache.stages.look.row_table import no_class
from taftcache.stages.report import Report


@dataclass(frozen=True, kw_only=True)
class ClassInShard:
    """A class in one shard.

    name: the shard's. rows: how many of the class. share: of the shard's rows.
    """

    name: str
    role: str
    rows: int
    share: float


@dataclass(frozen=True, kw_only=True)
class ClassReport(Report):
    """One class.

    rows: its training rows. held_out_rows: its held-out rows. share: its share of all training rows. shards: every
    shard, also where it has no rows. first_samples: a few ids.
    """

    store: Path
    label: str
    rows: int
    held_out_rows: int
    share: float
    shards: list[ClassInShard]
    first_samples: list[str]


@at_its_place()
def inspect_class(store: Place, label: str) -> ClassReport:
    """One class: its rows in every shard; StoreError, for an unknown class, names similar ones."""
    assert isinstance(store, FeatureStore)
    k = class_index(store, label)
    shards: list[ClassInShard] = []
    first: list[str] = []
    for ref in store.manifest.shards:
        shard = store.shard(ref.name)
        rows = shard.statistics["rows_per_class"].get(k, 0)
        shards.append(ClassInShard(name=ref.name, role=ref.role, rows=rows, share=rows / shard.rows))
        if rows and len(first) < NAMED and ref.role == "train":
            first += [shard.sample_ids[row] for row in (shard.labels == k).nonzero()[0][: NAMED - len(first)]]
    rows = sum(s.rows for s in shards if s.role == "train")
    total = sum(ref.rows for ref in store.manifest.shards if ref.role == "train")
    return ClassReport(
        store=store.path,
        label=label,
        rows=rows,
        held_out_rows=sum(s.rows for s in shards if s.role != "train"),
        share=rows / max(total, 1),
        shards=shards,
        first_samples=first,
    )


def class_index(store: FeatureStore, label: str) -> int:
    """The index of a class; ArgumentError if it is not a text, StoreError if there is no such class."""
    if not isinstance(label, str):
        raise ArgumentError(
            "a class must be named by its name, a text",
            got=f"{label!r}, of type {type(label).__name__}",
            do=f"{str(label)!r}" if str(label) in store.classes else "one of the store's classes",
        )
    if label not in store.classes:
        raise no_class(store, label)
    return store.classes.index(label)
