"""Fill a shard with rows, in the same way wherever they come from: images, a file, or the shard's own older rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.forward.extract import RowCounts, Sink
from taftcache.cache.format.parts import Skipped
from taftcache.cache.format.plan import in_order
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.writer import ShardWriter
from taftcache.recipe import Recipe
from taftcache.stages.completeness import is_complete
from taftcache.stages.extract.classes import check_classes, class_indexes
from taftcache.stages.extract.plan import PlannedShard
from taftcache.stages.progress import Progress

_ROWS_AT_ONCE = 256


class RowOrigin(Protocol):
    """Where new rows come from. ``verb`` names the work in progress bars; ``tokens_shape`` is a row's (t, d)."""

    @property
    def verb(self) -> str: ...

    @property
    def tokens_shape(self) -> tuple[int, int]: ...

    def classes(self, shard: PlannedShard) -> Sequence[str]:
        """The names of the classes; the labels of the shard's samples are indexes into them."""
        ...

    def labels(self, shard: PlannedShard) -> dict[str, int]:
        """The labels by id, at least of the shard's samples."""
        ...

    def run(self, shard: PlannedShard, sink: Sink, on_rows: Callable[[int], None]) -> RowCounts:
        """Put the rows of ``shard.ids`` into ``sink``, from ``sink.consumed`` on; ``on_rows`` is told how many more."""
        ...


def fill(
    store: FeatureStore,
    recipe: Recipe,
    shard: PlannedShard,
    origin: RowOrigin,
    progress: Progress,
    *,
    old: OldRows | None = None,
    plan: dict[str, Any] | None = None,
) -> RowCounts:
    """Write one shard, or the rest of one that a killed run left, and commit it.

    Args:
        old: the rows that the shard has now; the new ones are put among them. None for a new shard.
        plan: the store's plan from this commit on, if a new shard changes it; without rows, that shard is not made.
    """
    everyone = shard.ids if old is None else old.among(shard.ids, recipe.store.seed)
    names, given = origin.classes(shard), origin.labels(shard)
    check_classes(store, (names[given[i]] for i in shard.ids))
    classes = class_indexes(store, names)
    labels = {} if old is None else dict(zip(old.shard.sample_ids, old.shard.labels.tolist(), strict=True))
    with (
        store.writer(
            shard.name,
            shard.role,
            chunk_rows=recipe.store.chunk_rows if old is None else old.chunk_rows(recipe.store.chunk_rows),
            dtype=recipe.store.dtype,
            tokens_shape=origin.tokens_shape,
            candidates=everyone,
            labels=labels | {i: classes[given[i]] for i in shard.ids},
        ) as writer,
        progress.task(f"{origin.verb} {shard.name}", len(shard.ids)) as task,
    ):
        new = _NewRows(writer, classes)
        sink = new if old is None else _MergedRows(new, old, everyone, shard.ids)
        task.advance(sink.consumed)
        counts = origin.run(shard, sink, task.advance)
        sink.finish()
        if plan is not None and not writer.rows:
            writer.discard()
            return RowCounts(0, len(shard.ids))
        writer.commit(plan=plan)
    return counts


def fill_missing(
    store: FeatureStore, recipe: Recipe, shards: Iterable[PlannedShard], origin: RowOrigin, progress: Progress
) -> int:
    """`fill` each of ``shards`` that the store does not have yet; returns the number of rows made. Then the store is
    complete: a shard of the plan that is not among them has lost all of its samples before it was made."""
    made = sum(fill(store, recipe, s, origin, progress).rows for s in shards if not store.has_shard(s.name))
    if not is_complete(store):
        with store.transaction() as change:
            change.update(plan=store.manifest.plan | {"groups": len(store.manifest.shards)})
    return made


class OldRows:
    """What a shard has before ``new`` samples are added: its rows, and samples that it skipped and still leaves out."""

    def __init__(self, store: FeatureStore, name: str, new: Collection[str]) -> None:
        self.shard: Shard = store.shard(name)
        self.skipped = {s.id: s for s in store.manifest.skipped.of(name) if s.id not in new}

    def chunk_rows(self, asked: int | Literal["auto"]) -> int | Literal["auto"]:
        """The shard's own, or what is ``asked`` for if its one chunk is only as large as its rows."""
        return asked if self.shard.chunk_rows == self.shard.rows else self.shard.chunk_rows

    def among(self, new: Sequence[str], seed: int) -> list[str]:
        """All samples of the shard, old and ``new``, in the order of its rows."""
        return in_order([*self.shard.sample_ids, *self.skipped, *new], seed)


class _NewRows:
    """Puts rows into a shard under the store's labels; the writer refuses a row of a class that was forgotten."""

    def __init__(self, writer: ShardWriter, classes: Sequence[int]) -> None:
        self.writer, self._classes = writer, classes

    @property
    def consumed(self) -> int:
        return self.writer.consumed

    def append(
        self, tokens: NDArray[Any], ids: Sequence[str], labels: Sequence[int], skipped: Sequence[Any] = ()
    ) -> None:
        """Rows in order."""
        self.writer.append(tokens, ids, [self._classes[k] for k in labels], skipped)

    def finish(self) -> None:
        """Nothing comes after the last row."""


class _MergedRows:
    """Takes a shard's new rows and puts the old ones between them, in the order of ``everyone``."""

    def __init__(self, rows: _NewRows, old: OldRows, everyone: Sequence[str], new: Sequence[str]) -> None:
        self._rows, self._old, self._everyone, self._new = rows, old, everyone, set(new)
        self._at = rows.consumed  # where a killed run stopped
        done = everyone[: self._at]
        self.consumed = sum(i in self._new for i in done)
        self._row = sum(i not in self._new and i not in old.skipped for i in done)

    def append(
        self, tokens: NDArray[Any], ids: Sequence[str], labels: Sequence[int], skipped: Sequence[Any] = ()
    ) -> None:
        """New rows [b, t, d] and new samples left out, in order."""
        row = {i: k for k, i in enumerate(ids)}
        left_out = {s[0]: Skipped(*s) for s in skipped}
        for _ in range(len(row) + len(left_out)):
            self._copy()
            i = self._everyone[self._at]
            if i in row:
                k = row[i]
                self._rows.append(tokens[k : k + 1], [i], [labels[k]])
            else:
                self._rows.append(tokens[:0], [], [], [left_out[i]])
            self._at, self.consumed = self._at + 1, self.consumed + 1

    def finish(self) -> None:
        """Write the old rows after the last new one."""
        self._copy()

    def _copy(self) -> None:
        """Write old rows up to the next new sample: they are neighbours in the old shard, too."""
        old, everyone = self._old, self._everyone
        while self._at < len(everyone) and everyone[self._at] not in self._new:
            stop = self._at
            while stop < min(self._at + _ROWS_AT_ONCE, len(everyone)) and everyone[stop] not in self._new:
                stop += 1
            some = everyone[self._at : stop]
            rows = [i for i in some if i not in old.skipped]
            tokens: NDArray[Any] = np.empty((0,))
            labels = np.empty(0, np.int32)
            if rows:
                span = slice(self._row, self._row + len(rows))
                tokens, labels = old.shard.tokens(span), old.shard.labels[span]
            self._rows.writer.append(tokens, rows, labels, [old.skipped[i] for i in some if i in old.skipped])
            self._at, self._row = stop, self._row + len(rows)
