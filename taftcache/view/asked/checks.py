"""Lists of what may be wrong with the data, made by the stages when the page asks; kept in memory alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from taftcache.stages.progress import Progress
from taftcache.view.asked.aside import Aside
from taftcache.view.atlas import Atlas
from taftcache.view.late import importing
from taftcache.view.payload import packed

# The most entries of a list; the worst stand first.
LISTED = 5000


class Checks:
    """Lists by name (``suspects``, ``duplicates``, ``outliers``); the answers are those of ``Aside``."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas, self._aside = atlas, Aside(atlas)
        self._makers = {"suspects": _suspects, "duplicates": _duplicates, "outliers": _outliers}

    def ask(self, name: str) -> dict[str, Any]:
        """A list, in ``found``.

        Raises:
            ValueError: no such list.
        """
        if name not in self._makers:
            raise ValueError(name)
        make = self._makers[name]
        return self._aside.ask(name, lambda progress: {"found": make(self._atlas, progress)})


def _suspects(atlas: Atlas, progress: Progress) -> dict[str, Any]:
    with importing:
        from taftcache.stages.look.suspects import suspects

    report, classes = suspects(atlas.store, top=LISTED, progress=progress), atlas.store.classes
    return {
        "method": report.method,
        "rows": report.rows,
        "disagreeing": report.disagreeing,
        "notes": report.notes,
        "row": _rows(atlas, [s.sample for s in report.suspects]),
        "says": packed(np.array([classes.index(s.says) for s in report.suspects], np.int32)),
        "margin": packed(np.array([s.margin for s in report.suspects], np.float32)),
    }


def _duplicates(atlas: Atlas, progress: Progress) -> dict[str, Any]:
    with importing:
        from taftcache.stages.look.duplicates import duplicates

    report = duplicates(atlas.store, top=LISTED, progress=progress)
    pairs = [*report.leaks, *report.pairs]
    return {
        "threshold": report.threshold,
        "rows": report.rows,
        "leaks_found": report.leaks_found,
        "pairs_found": report.pairs_found,
        "leaks": len(report.leaks),
        "notes": report.notes,
        "first": _rows(atlas, [pair.samples[0] for pair in pairs]),
        "second": _rows(atlas, [pair.samples[1] for pair in pairs]),
        "similarity": packed(np.array([pair.similarity for pair in pairs], np.float32)),
    }


def _outliers(atlas: Atlas, progress: Progress) -> dict[str, Any]:
    with importing:
        from taftcache.stages.look.outliers import outliers

    report = outliers(atlas.store, top=LISTED, progress=progress)
    return {
        "neighbour": report.neighbour,
        "rows": report.rows,
        "notes": report.notes,
        "row": _rows(atlas, [o.sample for o in report.outliers]),
        "times": packed(np.array([o.times for o in report.outliers], np.float32)),
        "distance": packed(np.array([o.distance for o in report.outliers], np.float32)),
    }


def _rows(atlas: Atlas, samples: list[str]) -> dict[str, str]:
    """Rows of the atlas's table by id."""
    return packed(np.array([atlas.table.find(sample) for sample in samples], np.int32))
