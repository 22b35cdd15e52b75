"""What forgetting one sample would change, solved on the side when the page asks: nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from taftcache.cache.read.shard import Shard
from taftcache.errors import StoreError, TaftcacheError
from taftcache.names import component_of
from taftcache.stages.progress import Silent
from taftcache.view.atlas import Atlas
from taftcache.view.late import importing

if TYPE_CHECKING:
    from taftcache.stages.look.leaving import RowLeftOut


class SideSolves:
    """Leave-one-out solves on request, one at a time, each in a thread; asked again, it says how far it is."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._alone = Lock()
        self._answers: dict[str, dict[str, Any]] = {}
        self._busy = ""

    def ask(self, sample: str) -> dict[str, Any]:
        """``{"state": "working" | "busy" | "done" | "failed", …}``; begins the solve when none runs.

        Raises:
            UnknownSample: no row of that id. StoreError: it is held out; its shard has no component or a private one.
        """
        atlas = self._atlas
        k = atlas.table.find(sample)
        shard = atlas.table.shards[atlas.table.shard[k]]
        own = component_of(shard.name)
        if shard.role == "held-out":
            raise StoreError(f"{sample} has no part in any component: it is held out", got=sample)
        if own not in atlas.scorer().models:
            raise StoreError(f"there is no {own} to solve without {sample}", got=sample, do="taftcache train")
        if atlas.scorer().is_private(own):
            raise StoreError(
                f"{own} was trained privately, so a solve without a row would be compared with noise",
                got=sample,
                do="its promise bounds what it holds of any sample",
            )
        with self._alone:
            if sample in self._answers:
                return self._answers[sample]
            if self._busy:
                return {"state": "busy", "sample": self._busy}
            self._busy = sample
            self._answers[sample] = {"state": "working", "passes": 0}
        Thread(target=self._solve, args=(sample, shard, int(atlas.table.row[k])), daemon=True).start()
        return self._answers[sample]

    def _solve(self, sample: str, shard: Shard, row: int) -> None:
        try:
            left = without_row(self._atlas, shard, row, lambda n: self._answers[sample].update(passes=n))
            answer = {"state": "done", **asdict(left)}
        except (TaftcacheError, ArithmeticError, MemoryError, RuntimeError) as error:
            answer = {"state": "failed", "error": str(error).splitlines()[0]}
        with self._alone:
            self._answers[sample] = answer
            self._busy = ""


def without_row(atlas: Atlas, shard: Shard, row: int, report: Callable[[int], None] | None = None) -> RowLeftOut:
    """Solve the shard's component without one of its rows; ``report`` hears the passes taken so far."""
    with importing:
        from taftcache.stages.look.leaving import ModelParts, leave_out

    parts = ModelParts(atlas.store, component_of(shard.name), _Passes(report or (lambda passes: None)))
    return leave_out(atlas.scorer(), parts, shard, row, atlas.held_out)


class _Passes(Silent):
    """A progress that counts the passes of one solve."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report, self._passes = report, 0

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[_Passes]:
        """See ``Progress``."""
        yield self

    def advance(self, steps: int = 1) -> None:
        """See ``Task``."""
        self._passes += steps
        self._report(self._passes)
