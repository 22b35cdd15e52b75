"""All that the page shows of a store, computed once, piece by piece, in the background; kept in memory alone.

Nothing of it is written anywhere: what is derived from a sample is gone with the process, and a store that
forgets a sample has no copies to look for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format.fault import DAMAGE, problem_of
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError, first_line
from taftcache.names import HEAD, component_of, counted, default_model
from taftcache.stages.completeness import first_rows
from taftcache.stages.estimators import HOLDS, lacks_classes
from taftcache.stages.look.duplicates import Hashes
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.vectors import cut_of, first_row_stands, has_tail, sample_vectors
from taftcache.stages.progress import Silent, Task
from taftcache.view.embedding import Axes, in_lengths, neighbour_map, principal_axes, typical_length
from taftcache.view.late import importing

if TYPE_CHECKING:
    from taftcache.stages.look.head_path import PathPoint
    from taftcache.stages.look.scoring import HeldOutLogits, Scorer

# Steps of 256 rows that the principal axes are computed from.
AXES_STEPS = 32
# The stages of the background work, in order.
WORK = ("rows", "held-out predictions", "predictions", "head path", "influence", "neighbours")
NONE = -1


@dataclass
class StageProgress:
    """How far one stage of the work is; ``note`` says why it ended without a result."""

    done: int = 0
    total: int = 0
    note: str = ""
    seconds: float = 0.0


class Atlas:
    """The rows of a store with their places on the map and what the models say of them.

    ``vectors`` [n,d] are the samples' vectors less their mean, in units of the typical length of such a difference, so
    that float16 takes nothing from vectors far from zero, large or small.

    Arrays over the table's rows [n], filled as the work goes on: ``place`` [n,2] along the principal axes (NaN until
    known), ``neighbours`` [n,2] or None, ``norm`` (of the sample's vector), classes ``base``, ``model`` (by the store's
    best, whose name is the atlas's ``model``, None where there is none), ``own`` (by the component of its own shard)
    and ``head``, -1 where unknown, ``margin`` of that model's true class over the best other one, and ``moved``, how
    far its shard's component moves without a training row, exactly; NaN where that has no closed form. ``path`` is the
    head's at every λ, and ``head_ridges`` has the λ of the store's own heads.

    leaked: ids of held-out rows that hold the very bytes of a training row, once all rows are read. damage: what is
    wrong with files that were read so far. What needs none of these is worked out all the same, and the best model is
    then the best of those that can be read. what: what a store without classes is; "" for other stores.

    Use ``start`` for a thread, or ``work`` to wait; ``version`` grows whenever something was added.
    """

    def __init__(self, store: FeatureStore) -> None:
        cut_of(store)  # refused before anything is computed
        self.store, self.model = store, default_model(store.objects())
        self.what = f"The store {HOLDS}" if lacks_classes(store) else ""
        self.damage: list[str] = []
        self.table = RowTable.of(store)
        n = len(self.table)
        if n == 0:
            raise StoreError(f"no rows to look at in {store.path}", got="an empty store", do=first_rows(store))
        self.version = 0
        self.progress = {name: StageProgress() for name in WORK}
        self.vectors: NDArray[np.float16] | None = None
        self._hashes = Hashes.none(self.table)
        self.leaked: list[str] = []
        self._length = 1.0
        self.axes: Axes | None = None
        self.place = np.full((n, 2), np.nan, np.float32)
        self.neighbours: NDArray[np.float32] | None = None
        self.norm = np.full(n, np.nan, np.float32)
        self.classes_by = {name: np.full(n, NONE, np.int32) for name in ("base", "model", "own", "head")}
        self.margin = np.full(n, np.nan, np.float32)
        self.moved = np.full(n, np.nan, np.float32)
        self.held_out: HeldOutLogits | None = None
        self.path: list[PathPoint] = []
        self.head_ridges: dict[str, float] = {}
        self.ready = {name: Event() for name in WORK}
        self._scorer: Scorer | None = None
        self._stop = Event()
        self._alone = Lock()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin the work in a thread of its own."""
        self._thread = Thread(target=self.work, name="taftcache-atlas", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the work at its next step, which may be a minute away."""
        self._stop.set()

    def close(self) -> None:
        """End the work at its next step and wait for that."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    @property
    def closing(self) -> bool:
        """Whether all work on the store should end."""
        return self._stop.is_set()

    def work(self, skip: tuple[str, ...] = (), task: Task | None = None) -> None:
        """Do every stage except those in ``skip``; one that fails says so in its note, and the rest goes on.

        Args:
            task: notes the stage under way, and advances by one for each.
        """
        jobs: tuple[Callable[[StageProgress], None], ...] = (
            self._rows, self._held_out, self._predictions, self._head_path, self._influence, self._neighbours
        )  # fmt: skip
        task = task or Silent()
        for name, job in zip(WORK, jobs, strict=True):
            if not self._stop.is_set() and name not in skip:
                task.note(name)
                begin, progress = time.perf_counter(), self.progress[name]
                try:
                    job(progress)
                except Exception as error:  # whoever waits for a later stage must not wait for ever
                    progress.note = first_line(error)
                    if isinstance(error, DAMAGE):
                        self._add_damage(problem_of(error))
                progress.seconds = time.perf_counter() - begin
            self.ready[name].set()
            self.version += 1
            task.advance()

    def scorer(self) -> Scorer:
        """The store's models, loaded on first use.

        Raises:
            StoreError: the store has no tail to compute with, or no classes.
        """
        with importing:
            from taftcache.stages.look.scoring import Scorer

        with self._alone:
            if self._scorer is None:
                if self.what:
                    raise StoreError(self.what)
                if not has_tail(self.store):
                    raise StoreError(
                        "no predictions without the tail's weights", got=f"{self.store.path} holds features alone"
                    )
                self._scorer = Scorer(self.store, skip_damaged=True)
                self._add_damage(*self._scorer.damaged.values())
                self.model = default_model(self._scorer.models)
            return self._scorer

    def is_whole(self, model: str) -> bool:
        """Whether a model's file is not known to be damaged."""
        return self._scorer is None or model not in self._scorer.damaged

    def _add_damage(self, *found: str) -> None:
        self.damage = list(dict.fromkeys([*self.damage, *found]))

    def _rows(self, progress: StageProgress) -> None:
        """Vectors, norms and places of all rows; axes from rows spread over the store, so that places never move.

        Rows whose files are damaged get none.
        """
        table, width = self.table, cut_of(self.store)["shape"][1]
        vectors = np.zeros((len(table), width), np.float16)
        progress.total = len(table)
        order = table.scattered(AXES_STEPS)
        known = {here.start for here, _, _ in order}
        sample = [(here, self._tokens(shard, rows)) for here, shard, rows in order]
        read = [(here, self._vectors_of(here, tokens)) for here, tokens in sample if tokens is not None]
        if not read:
            raise StoreError("no map: the rows are damaged")
        every = np.concatenate([part for _, part in read])
        self.axes = principal_axes(every)
        self._length = typical_length(every, self.axes.centre)
        for here, part in read:
            self._take(vectors, here, part, progress)
        self.vectors = vectors
        self.version += 1
        for here, shard, rows in table.steps():
            if self._stop.is_set():
                return
            if here.start not in known and (tokens := self._tokens(shard, rows)) is not None:
                self._take(vectors, here, self._vectors_of(here, tokens), progress)
        self.leaked = self._hashes.leaked()
        if progress.done < progress.total:
            progress.note = f"{counted(progress.total - progress.done, 'row')} damaged, or beside such rows"

    def _tokens(self, shard: Shard, rows: slice) -> NDArray[Any] | None:
        """Tokens of rows; None where a file of theirs is damaged."""
        try:
            return self.table.reader.tokens(shard.name, rows)
        except DAMAGE as error:
            self._add_damage(problem_of(error))
            return None

    def _vectors_of(self, here: slice, tokens: NDArray[Any]) -> NDArray[np.float32]:
        self._hashes.add(here, tokens)  # while they are there
        return sample_vectors(tokens, first_row_stands(self.store))

    def _take(
        self, vectors: NDArray[np.float16], here: slice, part: NDArray[np.float32], progress: StageProgress
    ) -> None:
        """Places, norms and vectors of rows; vectors of one number have no second axis."""
        assert self.axes is not None
        progress.done += len(part)
        places = self.axes.project(part)
        self.place[here] = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
        self.norm[here] = np.linalg.norm(part, axis=1)
        vectors[here] = in_lengths(part, self.axes.centre, self._length)

    def _held_out(self, progress: StageProgress) -> None:
        with importing:
            from taftcache.stages.look.scoring import held_out_logits

        shard = self.store.held_out
        if shard is None:
            raise StoreError("no accuracy without held-out rows", got=f"{self.store.path} has none")
        progress.total = shard.rows
        kept = held_out_logits(self.store, self.scorer(), shard, self.table.reader)
        start = self.table.start(self.table.shards.index(shard))
        where = start + kept.rows
        self.classes_by["base"][where] = kept.base.argmax(1)
        for column, name in (("model", self.model), ("head", HEAD)):
            if name is not None and name in kept.others:
                self.classes_by[column][where] = kept.others[name]
        if self.model is not None:
            self.margin[where] = kept.margins[self.model]
        self.held_out = kept
        progress.done = progress.total

    def _predictions(self, progress: StageProgress) -> None:
        """Base, best model and own component on every training row."""
        with importing:
            from taftcache.stages.look.scoring import margins

        table, scorer = self.table, self.scorer()
        others = {"model": self.model} if self.model is not None else {}
        others |= {"head": HEAD} if HEAD in scorer.models else {}
        progress.total = int((~table.held_out).sum())
        for here, shard, rows in table.steps():
            if self._stop.is_set():
                return
            if shard.role == "held-out" or (tokens := self._tokens(shard, rows)) is None:
                continue
            own = component_of(shard.name)
            models = others | ({"own": own} if own in scorer.models else {})
            z, changes = scorer.logits(tokens, list(models.values()))
            self.classes_by["base"][here] = z.argmax(1)
            for column, change in zip(models, changes, strict=True):
                self.classes_by[column][here] = (z + change).argmax(1)
                if column == "model":
                    self.margin[here] = margins(z + change, table.label[here])
            progress.done += len(tokens)

    def _head_path(self, progress: StageProgress) -> None:
        with importing:
            from taftcache.stages.look.head_path import head_path, heads_ridges

        self.head_ridges = heads_ridges(self.store, self.scorer())
        self.path = head_path(self.table, self.scorer(), self._stop)
        progress.done = progress.total = len(self.path)

    def _influence(self, progress: StageProgress) -> None:
        with importing:
            from taftcache.stages.look.leaving import moved_by_each

        table = self.table
        shards = [shard for shard in table.shards if shard.role == "train"]
        progress.total = len(shards)
        for shard, moves in moved_by_each(self.store, self.scorer(), shards):
            if self._stop.is_set():
                return
            if moves is not None:
                start = table.start(table.shards.index(shard))
                self.moved[start : start + shard.rows] = moves
            progress.done += 1

    def _neighbours(self, progress: StageProgress) -> None:
        if self.vectors is None:
            raise StoreError("no neighbours without the rows' vectors", got=self.progress["rows"].note)
        known = np.isfinite(self.place[:, 0])
        progress.total = int(known.sum())
        found = np.full_like(self.place, np.nan)
        found[known] = neighbour_map(self.vectors if known.all() else self.vectors[known])
        self.neighbours = found
        progress.done = progress.total
