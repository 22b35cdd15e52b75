"""Two models on the same rows: which labels differ, by how much, and what that says of the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taftcache.stages.look.evaluation import accuracy_interval
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.scoring import Scorer, margins
from taftcache.stages.paired import row_verdict

BASE = "base"


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one model says of rows: ``classes`` [n], and ``margins`` [n] of their own class, see ``margins``."""

    classes: NDArray[np.int32]
    margins: NDArray[np.float32]


def said_of(scorer: Scorer, table: RowTable, model: str, report: Callable[[int], None]) -> Said:
    """What a model of the scorer's store, or ``BASE``, says of every row of its table, in one pass; ``report`` hears
    how many rows are done."""
    names = [] if model == BASE else [model]
    classes, ahead = np.empty(len(table), np.int32), np.empty(len(table), np.float32)
    for here, shard, rows in table.steps():
        z, changes = scorer.logits(table.reader.tokens(shard.name, rows), names)
        logits = z + changes[0] if names else z
        classes[here], ahead[here] = logits.argmax(1), margins(logits, table.label[here])
        report(here.stop)
    return Said(classes=classes, margins=ahead)


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Two models on ``rows`` rows.

    changed: rows that get another class; interval: of their share, at 95 % (Wilson's). right: by the first and by the
    second. gain: by how much the second is the more accurate, with ``gain_interval`` and ``verdict`` as
    ``paired.row_verdict`` has them.
    """

    rows: int
    changed: int
    interval: tuple[float, float]
    right: tuple[int, int]
    gain: float
    gain_interval: tuple[float, float]
    verdict: str


def changes_of(labels: NDArray[np.int32], before: NDArray[np.int32], after: NDArray[np.int32]) -> Changes | None:
    """What two models' classes [n] of rows with ``labels`` [n] say of the two; None for no rows."""
    if not len(labels):
        return None
    other, hits = before != after, (before == labels, after == labels)
    gain, interval, verdict = row_verdict(hits[1], hits[0])
    return Changes(
        rows=len(labels),
        changed=int(other.sum()),
        interval=accuracy_interval(other),
        right=(int(hits[0].sum()), int(hits[1].sum())),
        gain=gain,
        gain_interval=interval,
        verdict=verdict,
    )
