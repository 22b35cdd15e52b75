"""How many held-out rows are right as shards are subtracted: the numbers that the page draws, made when it asks."""

from __future__ import annotations

from typing import Any

from taftcache.names import shard_of
from taftcache.view import payload
from taftcache.view.asked.aside import Aside, Tell
from taftcache.view.atlas import Atlas


class Compositions:
    """The answers are those of ``Aside``; while it is worked on, ``done`` of ``total`` compositions."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas, self._aside = atlas, Aside(atlas, done=0, total=0)

    def ask(self) -> dict[str, Any]:
        """See ``rows_right``."""
        return self._aside.ask("", lambda tell: rows_right(self._atlas, tell))


def rows_right(atlas: Atlas, tell: Tell | None = None) -> dict[str, list[int]]:
    """Held-out rows that the mean of the components gets right: ``fewer`` [S], without the last k of S shards, k from
    0 to S − 1; ``without`` [S], without each single shard, empty if there is only one.

    Raises:
        StoreError: the held-out rows are not scored (yet).
    """
    kept = payload.scored(atlas)
    names = [shard_of(name) for name in kept.components]
    fewer = [names[len(names) - k :] for k in range(len(names))]
    outs = fewer + [[name] for name in names if len(names) > 1]
    right = []
    for out in outs:
        right.append(int((kept.predictions(out) == kept.labels).sum()))
        if tell is not None:
            tell(done=len(right), total=len(outs))
    return {"fewer": right[: len(names)], "without": right[len(names) :]}
