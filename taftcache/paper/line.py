"""One line of a table or figure: an accuracy, what it is of, and what made it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, Literal, TypedDict

import msgspec
from numpy.typing import NDArray

from taftcache.paper.right import Right
from taftcache.paper.trial import Fitted


class ReportLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accuracy of a report. What a report does not vary or measure is None, and is left out of every file.

    method, preset: by the paper's names. depth: in blocks, where it is not the recipe's own.
    shards, removed, forgotten, radius, epsilon: what the report varies; a number of shards, shards gone, the part of
        the rows that was forgotten, R of a ball, ε.
    accuracy, std: mean and standard deviation (n − 1) over the seeds, in percent.
    seconds, passes: processor time and passes over all rows that one seed's models took. gradient: the largest
        ‖∇F‖/‖∇F(0)‖ of their solves.
    from_scratch: accuracy in percent of one model over all rows that remain. seconds_a_shard, seconds_all_shards,
        seconds_from_scratch: processor time of a shard's model, of all shards' and of that one model.
        times_faster: the last by the first.
    right: which held-out rows got their own class, by seed; in report.json alone.
    setting: what was chosen, by name.
    """

    method: str
    preset: str
    depth: int | str | None = None
    shards: int | None = None
    removed: int | None = None
    forgotten: float | None = None
    radius: float | None = None
    epsilon: float | None = None
    accuracy: float
    std: float
    seconds: float | None = None
    passes: float | None = None
    gradient: float | None = None
    from_scratch: float | None = None
    seconds_a_shard: float | None = None
    seconds_all_shards: float | None = None
    seconds_from_scratch: float | None = None
    times_faster: float | None = None
    right: Right | None = None
    setting: dict[str, Any] = {}

    def figures(self) -> dict[str, Any]:
        """What the line has, by name, without the setting and the single rows."""
        held = msgspec.structs.asdict(self)
        return {name: value for name, value in held.items() if value is not None and name not in ("setting", "right")}

    @property
    def all_times_faster(self) -> float | None:
        """How many times as long one model over all rows takes as all shards' together."""
        if not self.seconds_all_shards or self.seconds_from_scratch is None:
            return None
        return self.seconds_from_scratch / self.seconds_all_shards

    def spread(self) -> str:
        """The accuracy as text."""
        return f"{self.accuracy:.1f} ± {self.std:.1f}"


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of settings on rows set aside: what was chosen, and all that was tried with what it reached."""

    method: str
    depth: int | str
    shards: int
    chosen: dict[str, Any]
    tried: list[dict[str, Any]]

    @property
    def end(self) -> Literal["least", "largest"] | None:
        """The end of the λ tried at which the chosen one lies; of two λ both are an end, which says nothing."""
        tried = {one["ridge"] for one in self.tried if "ridge" in one}
        if len(tried) < 3 or (ridge := self.chosen.get("ridge")) not in (min(tried), max(tried)):
            return None
        return "least" if ridge == min(tried) else "largest"


class Rows(TypedDict):
    """What a line has of its seeds."""

    accuracy: float
    std: float
    right: Right


class Cost(TypedDict):
    """What a line's models took."""

    seconds: float
    passes: float
    gradient: float | None


def over_rows(counts: Sequence[NDArray[Any]], of: int = 1) -> Rows:
    """From how many of ``of`` models gave each held-out row its own class [n], one array a seed."""
    right = Right.counted(counts, of)
    values = right.accuracy()
    return {"accuracy": mean(values), "std": stdev(values) if len(values) > 1 else 0.0, "right": right}


def cost(fits: Sequence[Fitted]) -> Cost:
    """Of the models of each seed; a pass over a shard is its part of a pass over all rows."""
    return {
        "seconds": round(mean(sum(f.seconds) for f in fits), 1),
        "passes": round(mean(mean(f.passes) for f in fits), 1),
        "gradient": max((f.gradient for f in fits if f.gradient is not None), default=None),
    }
