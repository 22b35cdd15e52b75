"""How many held-out rows are right as shards are subtracted: the numbers that the page draws, made when it asks."""

from __future__ import annotations

from typing import Any

from taftcache.names import shard_of
from taftcache.stages.progress import Progress
from taftcache.view import payload
from taftcache.view.asked.aside import Aside
from taftcache.view.atlas import Atlas
from taftcache.view.late import importing


class Compositions:
    """The answers are those of ``Aside``."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas, self._aside = atlas, Aside(atlas)

    def ask(self) -> dict[str, Any]:
        """See ``rows_right``."""
        return self._aside.ask("", lambda progress: rows_right(self._atlas, progress))


def rows_right(atlas: Atlas, progress: Progress) -> dict[str, list[Any]]:
    """Held-out rows that the mean of the components gets right: ``fewer`` [S], without the last k of S shards, k from
    0 to S − 1; ``without`` [S], without each single shard, empty if there is only one. Where rows share groups, ``of``
    has as how many rows all are judged (``judged_rows``), in this order; else it is empty.

    Raises:
        StoreError: the held-out rows are not scored (yet).
    """
    with importing:
        from taftcache.report.accuracy import judged_rows

    kept = payload.scored(atlas)
    names, right, of = [shard_of(name) for name in kept.components], list[int](), list[float]()
    outs = taken_out(names)
    with progress.task("compositions", len(outs)) as task:
        for out in outs:
            hits = kept.predictions(out) == kept.labels
            right.append(int(hits.sum()))
            if kept.groups is not None and kept.groups.count > 1:
                of.append(judged_rows(hits, kept.groups)[0])
            task.advance()
    return {"fewer": right[: len(names)], "without": right[len(names) :], "of": of}


def taken_out(names: list[str]) -> list[list[str]]:
    """What the page takes out of the composition of shards by itself: the last k of S, k from 0 to S − 1, and each."""
    return [names[len(names) - k :] for k in range(len(names))] + [[name] for name in names if len(names) > 1]
