"""What forgetting samples would change, solved on the side when the page asks: nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from taftcache.cache.format.digest import digest
from taftcache.cache.read.shard import Shard
from taftcache.errors import StoreError
from taftcache.names import component_of
from taftcache.stages.progress import Progress
from taftcache.view.asked.aside import Aside, Job
from taftcache.view.atlas import Atlas
from taftcache.view.late import importing
from taftcache.view.wording import gain_text

if TYPE_CHECKING:
    from taftcache.stages.look.leaving import OnHeldOut, RowLeftOut, RowsLeftOut


class SideSolves:
    """Solves without samples on request, one at a time; the answers are those of ``Aside``."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._aside = Aside(atlas)

    def ask(self, sample: str) -> dict[str, Any]:
        """Leave one sample out.

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
        row = int(atlas.table.row[k])
        return self._ask(sample, lambda progress: _said(without_row(atlas, shard, row, progress), atlas))

    def ask_many(self, rows: Sequence[int]) -> dict[str, Any]:
        """Leave rows of the table out together."""
        # an id has no control character, so no sample has this key
        key = "\n" + digest(",".join(map(str, rows)).encode())
        return self._ask(key, lambda progress: _said(without_rows(self._atlas, rows, progress), self._atlas))

    def _ask(self, key: str, job: Job) -> dict[str, Any]:
        """The answer; if busy, ``with`` is the id of the sample at work, or "" for several samples."""
        answer = self._aside.ask(key, job)
        return {**answer, "with": answer["with"].partition("\n")[0]} if answer["state"] == "busy" else answer


def _said(found: OnHeldOut, atlas: Atlas) -> dict[str, Any]:
    """A record for the page, with what became of the accuracy in words."""
    gain = "" if found.gain is None else gain_text(*found.gain)
    by_rows = gain and atlas.held_out is not None and atlas.held_out.unsearched
    return {**asdict(found), "gain": f"{gain} (by rows, not by groups)" if by_rows else gain}


def without_row(atlas: Atlas, shard: Shard, row: int, progress: Progress) -> RowLeftOut:
    """Solve the shard's component without one of its rows; a step of ``progress`` is a pass."""
    with importing:
        from taftcache.stages.look.leaving import leave_out

    return leave_out(atlas.store, atlas.scorer(), shard, row, atlas.held_out, progress)


def without_rows(atlas: Atlas, rows: Sequence[int], progress: Progress) -> RowsLeftOut:
    """Solve the shards' components without rows of the table; a step of ``progress`` is a pass."""
    with importing:
        from taftcache.stages.look.leaving import leave_rows_out

    table = atlas.table
    leaving: dict[str, list[int]] = {}
    for k in rows:
        leaving.setdefault(table.shards[table.shard[k]].name, []).append(int(table.row[k]))
    return leave_rows_out(atlas.store, atlas.scorer(), leaving, atlas.held_out, progress)
