"""Find the samples whose rows are most like those of some images or vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.pictures import called as name_of
from taftcache.backbone.sources.rgb import Picture
from taftcache.cache.format.encoding import as_read, rows_dtype
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.errors import check_counts
from taftcache.names import scaling_of
from taftcache.stages.extract.frozen import Collected, run_frozen
from taftcache.stages.extract.growth.listing import ImageList
from taftcache.stages.files.prediction import files_of, frozen_of, vectors_of
from taftcache.stages.look.row_table import RowTable, Top
from taftcache.stages.look.seen import private_notes
from taftcache.stages.look.vectors import sample_vectors
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.scaling import scaled


@dataclass(frozen=True, kw_only=True)
class Match:
    """A sample that is like an image.

    similarity: 1 if the means of their rows are the same. As ``duplicates`` has it. same: whether its row is the same,
    byte for byte.
    """

    sample: str
    label: str
    shard: str
    role: str
    similarity: float
    same: bool


@dataclass(frozen=True, kw_only=True)
class FindReport(Report):
    """The samples most like each image.

    rows: how many were compared. found: samples for each image, by the image's name, the most similar first. notes: on
    files of other types in a folder, and on promises of privacy. The promise of private models does not cover this
    list.
    """

    store: Path
    root_digest: str
    rows: int
    found: dict[str, list[Match]]
    notes: list[str] = field(default_factory=list)


@at_its_place()
def find(
    store: Place,
    images: Iterable[Picture],
    *,
    top: int = 5,
    consent: Consent | None = None,
    progress: Progress | bool | None = None,
) -> FindReport:
    """Find the samples whose cached rows are most like those of some images: which of the store's samples a picture may
    be.

    An image goes through the frozen layers as in extraction. The original file gives the ``same`` row, with the same
    libraries on a similar processor; a picture that was scaled or saved again gives a similar one. Means of rows are
    compared, in one pass over all rows.

    Args:
        images: as for ``predict``; for a store of vectors, vectors.
        top: how many samples to list for each.
        consent: weights instead of those that the store names, or permission to ask the model hub for them.

    Raises:
        DataError: a folder without images, or no vectors like the store's. UnreadableImage: one that cannot be read.
        BackboneError, IdentityError, UntrustedStore: as for ``TangentModel.load``.
    """
    assert isinstance(store, FeatureStore)
    check_counts(top=top)
    scaling, notes, table = scaling_of(store.identity), list[str](), RowTable.of(store)
    dtype = store.identity["dtype"]
    if scaling is None:
        images, notes = files_of(images)
        names = [name_of(picture, k) for k, picture in enumerate(images)]
        rows = _rows_of(store, images, consent) if images else np.empty((0, 1, 1))
    else:
        parts = [(name(k), row) for name, given in vectors_of(store, images) for k, row in enumerate(given[:])]
        names, vectors = [name for name, _ in parts], np.array([row for _, row in parts])
        rows = (
            scaled(vectors.reshape(len(parts), 1, -1), scaling, names).astype(rows_dtype(dtype)) if parts else vectors
        )
    nearest = [Top(top) for _ in names]
    spread = _compare(table, as_read(rows, dtype), nearest, or_silent(progress)) if names else 0.0
    return FindReport(
        store=store.path,
        root_digest=store.root_digest,
        rows=len(table),
        found={
            name: [_match(store, table, spread, row, apart, not other) for other, apart, row in near]
            for name, near in zip(names, nearest, strict=True)
        },
        notes=[*notes, *private_notes(store)],
    )


def _rows_of(store: FeatureStore, images: list[Picture], consent: Consent | None) -> NDArray[Any]:
    """The rows [n,t,d] that would be cached of the images."""
    recipe, frozen = frozen_of(store, consent)
    sink, source = Collected(), ImageList(images, [0] * len(images), ["an image"])
    run_frozen(frozen, recipe, source, range(len(images)), sink)
    return np.concatenate(sink.blocks)


def _compare(table: RowTable, rows: NDArray[Any], nearest: Sequence[Top], progress: Progress) -> float:
    """Add all rows of the table to those ``nearest`` to each of ``rows`` [q,t,d]; returns E‖x − y‖² over the means of
    two random rows."""
    sought = sample_vectors(rows, first=False).astype(np.float64)
    total, squares = np.zeros(sought.shape[1]), 0.0
    with progress.task("find", len(table)) as task:
        for here, shard, there in table.steps():
            tokens = table.reader.tokens(shard.name, there)
            means = sample_vectors(tokens, first=False).astype(np.float64)
            total += means.sum(0)
            squares += float(np.square(means).sum())
            for near, row, mean in zip(nearest, rows, sought, strict=True):
                other = (tokens != row).any((1, 2))  # those with the same bytes come first
                near.add(other, np.square(means - mean).sum(1), np.arange(here.start, here.stop))
            task.advance(here.stop - here.start)
    n = max(len(table), 1)
    return max(0.0, 2 * (squares / n - float(np.square(total / n).sum())))


def _match(store: FeatureStore, table: RowTable, spread: float, row: int, apart: float, same: bool) -> Match:
    shard = table.shards[table.shard[row]]
    return Match(
        sample=table.ids[row],
        label=store.classes[table.label[row]],
        shard=shard.name,
        role=shard.role,
        similarity=1 - apart / spread if spread else 1.0 - (apart > 0),
        same=same,
    )
