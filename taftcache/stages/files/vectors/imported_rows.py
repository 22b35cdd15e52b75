"""Rows that someone else made: check them before a store is begun, write them, and compare them with the store's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.forward.extract import RowCounts, Sink
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.group import to_stored
from taftcache.errors import DataError, StoreError
from taftcache.names import counted, in_quotes
from taftcache.stages.extract.plan import PlannedShard
from taftcache.stages.files.vectors.given import Vectors
from taftcache.stages.progress import Progress
from taftcache.stages.scaling import Scaling, scaled

ROUNDED = 0.1  # part of the vectors' spread that rounding may take without a note: a hundredth of their variance
TINY = 1e-3  # root mean square distance from the mean, below which the least λ that is tried may be too large
_ROWS_AT_ONCE = 64


class ImportedRows:
    """Rows to train on and held-out rows, as they are stored; a ``RowOrigin`` for ``fill``.

    test: the held-out rows; None if they are among ``features``. scaling: of vectors; None for rows that are not
    vectors.
    """

    def __init__(self, features: Vectors, test: Vectors | None, scaling: Scaling | None, verb: str = "import") -> None:
        self.verb = verb
        self._parts = {False: features, True: features if test is None else test}
        self._place = {own: {i: k for k, i in enumerate(part.ids)} for own, part in self._parts.items()}
        self._scaling = scaling
        self.tokens_shape = features.tokens_shape

    def classes(self, shard: PlannedShard) -> Sequence[str]:
        """See ``RowOrigin``."""
        return self._parts[shard.from_test].classes

    def labels(self, shard: PlannedShard) -> dict[str, int]:
        """See ``RowOrigin``."""
        part = self._parts[shard.from_test]
        return dict(zip(part.ids, part.labels.tolist(), strict=True))

    def run(self, shard: PlannedShard, sink: Sink, on_rows: Callable[[int], None]) -> RowCounts:
        """Add the shard's rows, a few at a time because a file may be larger than memory."""
        part, place, begin = self._parts[shard.from_test], self._place[shard.from_test], sink.consumed
        for at in range(begin, len(shard.ids), _ROWS_AT_ONCE):
            ids = shard.ids[at : at + _ROWS_AT_ONCE]
            some = [place[i] for i in ids]
            sink.append(self._taken(part, some, ids), ids, part.labels[some].tolist())
            on_rows(len(ids))
        return RowCounts(len(shard.ids) - begin, 0)

    def check(self, dtype: str, progress: Progress) -> list[str]:
        """Check every row before anything is made: a store that was begun would be in the way of a better file.

        Returns:
            Notes on what may cost accuracy: ``dtype`` rounds off what tells vectors apart, or they differ too little.

        Raises:
            DataError: NaN, infinity, or a row that the store's ``dtype`` would make infinite or all zeros.
        """
        spread, rounding = _Spread(), _Spread()
        parts = {id(part): part for part in self._parts.values()}.values()
        with progress.task("check", sum(len(part.ids) for part in parts)) as task:
            for part in parts:
                for at in range(0, len(part.ids), _ROWS_AT_ONCE):
                    ids = part.ids[at : at + _ROWS_AT_ONCE]
                    rows = self._taken(part, range(at, at + len(ids)), ids)
                    stored = to_stored(rows, dtype, part.tokens_shape, ids)
                    _check_kept(rows, stored, ids)
                    if self._scaling is not None:
                        spread.add(rows.astype(np.float64))
                        rounding.add(rows.astype(np.float64) - stored)
                    task.advance(len(ids))
        return self._notes(dtype, spread.root, rounding.root)

    def _notes(self, dtype: str, spread: float, rounding: float) -> list[str]:
        notes, row = [], self._scaling == "row"
        if rounding > ROUNDED * spread:
            cure = "take their mean off" if dtype == "float32" else "--set store.dtype=float32 (or overrides)"
            notes.append(
                f"rounding to {dtype} moves the vectors by {100 * rounding / spread:.0f} % of their distance from their"
                f" mean, which may cost accuracy; {cure}"
            )
        if 0 < spread < TINY:
            cure = "take their mean off and multiply them" if row else "--scaling row, or multiply them"
            notes.append(
                f"the vectors are {spread:.2g} from their mean: every λ that is tried may be too large for them; {cure}"
            )
        return notes

    def check_same(self, store: FeatureStore, shard: PlannedShard) -> None:
        """StoreError if the store's shard has other rows than those given now."""
        part, place, there = self._parts[shard.from_test], self._place[shard.from_test], store.shard(shard.name)
        if there.sample_ids != shard.ids:
            others = sorted(set(shard.ids) ^ set(there.sample_ids))
            _differs(
                store, f"{counted(len(others), 'sample')} of shard {shard.name} in one alone, the first: {others[0]!r}"
            )
        self._compare(store, there, part, place)

    def check_known(self, store: FeatureStore, *, labels: bool) -> None:
        """StoreError if a row has the id of one in the store, but other numbers or, if ``labels``, another class."""
        for own in (False,) if self._parts[True] is self._parts[False] else (False, True):
            for shard in store.every_shard:
                self._compare(store, shard, self._parts[own], self._place[own], labels)

    def _compare(
        self, store: FeatureStore, there: Shard, part: Vectors, place: Mapping[str, int], labels: bool = True
    ) -> None:
        """Compare a shard's rows with those given under the same ids; rows on one side only are passed over."""
        if place.keys().isdisjoint(there.sample_ids):
            return
        for block in there.blocks(_ROWS_AT_ONCE):
            everyone = there.sample_ids[block.start : block.start + len(block.labels)]
            at = [k for k, i in enumerate(everyone) if i in place]
            if not at:
                continue
            ids = [everyone[k] for k in at]
            some = [place[i] for i in ids]
            rows = to_stored(self._taken(part, some, ids), there.stored_as, self.tokens_shape, ids)
            for i, label, own in zip(ids, block.labels[at], part.labels[some], strict=True):
                if labels and store.classes[label] != part.classes[own]:
                    corrected = "append with --relabel (relabel=True), where the label was corrected"
                    was, now = in_quotes(store.classes[label], part.classes[own])
                    _differs(store, f"{i!r} is {was} there and {now} here", corrected)
            if (other := (block.tokens[at] != rows).any((1, 2))).any():
                _differs(store, f"{ids[int(other.argmax())]!r} has other numbers there")

    def _taken(self, part: Vectors, some: Sequence[int], ids: Sequence[str]) -> NDArray[Any]:
        taken = part.take(some)
        return taken if self._scaling is None else scaled(taken, self._scaling, ids)


class _Spread:
    """The root mean square distance of rows, given in blocks, from their mean.

    Sums are of differences from the first row, so that little is lost to rounding if the mean is large.
    """

    def __init__(self) -> None:
        self._rows, self._sum, self._squares = 0, np.zeros(()), 0.0

    def add(self, rows: NDArray[np.float64]) -> None:
        if not self._rows:
            self._first = rows[0]
        rows = rows - self._first
        self._rows, self._sum = self._rows + len(rows), self._sum + rows.sum(0)
        self._squares += float(np.square(rows).sum())

    @property
    def root(self) -> float:
        if not self._rows:
            return 0.0
        mean = self._sum / self._rows
        return float(np.sqrt(max(self._squares / self._rows - float(np.square(mean).sum()), 0.0)))


def _check_kept(rows: NDArray[Any], stored: NDArray[Any], ids: Sequence[str]) -> None:
    lost = rows.any((1, 2)) & ~stored.any((1, 2))
    if lost.any():
        k = int(lost.argmax())
        raise DataError(
            f"a row is lost in {stored.dtype}, which turns it into zeros",
            got=f"{ids[k]!r}: |x| up to {np.abs(rows[k]).max():.3g}",
            do='scaling = "row" (--scaling row), or store.dtype=float32 (--set, or overrides)',
        )


def _differs(store: FeatureStore, got: str, otherwise: str = "import all into a new folder") -> NoReturn:
    raise StoreError(
        f"{store.path} holds other rows than those given",
        got=got,
        do=f"give new rows ids of their own (--ids, or ids=…), or {otherwise}",
    )
