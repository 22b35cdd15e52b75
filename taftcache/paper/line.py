"""One line of a table or figure: an accuracy, what it belongs to, and how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, Literal, TypedDict

import msgspec
from numpy.typing import NDArray

from taftcache.paper.right import Right
from taftcache.paper.trial import Fitted

STOPPED = "stopped early"
NOT_RECORDED = "not recorded"
EARLY = (
    f"{STOPPED.capitalize()}: a solve ended above its tolerance. The figure is not the optimum's, and no verdict is"
    " drawn from it. Try a larger solver.max_passes."
)
ASIDE = ("gradient", "tolerance", "converged", "end")  # not in a table, but with the settings
End = Literal["least λ", "largest λ", "least rate", "largest rate"]
END: dict[tuple[str, bool], End] = {
    ("λ", True): "least λ", ("λ", False): "largest λ", ("rate", True): "least rate", ("rate", False): "largest rate",
}  # fmt: skip


class ReportLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accuracy of a report. What a report does not vary or measure is None, and is left out of every file.

    method, preset: the paper's names. depth: in blocks, if it is not the recipe's own. shards, removed: number of
    shards, and of shards removed. forgotten: the part of the rows that was forgotten. radius: R of a ball. epsilon: ε.
    accuracy, std: mean and standard deviation (n − 1) over the seeds, in percent. seconds, passes: processor time and
    passes over all rows that one seed's models took. gradient: the largest ‖∇F‖/‖∇F(0)‖ of their solves. tolerance: the
    limit set for it. converged: whether every solve met it. The accuracy of one that did not is not the optimum's. None
    for what was not solved, and in reports from before this was kept. end: which end of the list of λ or rates was
    chosen, if one was. As ``Tuned`` has it. from_scratch: accuracy in percent of one model over all rows that remain.
    seconds_a_shard, seconds_all_shards, seconds_from_scratch: processor time of a shard's model, of all shards' and of
    that one model. times_faster: the last divided by the first. right: which held-out rows got their own class, by
    seed; in report.json alone. setting: what was chosen, by name.
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
    tolerance: float | None = None
    converged: bool | None = None
    end: End | None = None
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
        """How many times as long one model over all rows takes as all shards' models together."""
        if not self.seconds_all_shards or self.seconds_from_scratch is None:
            return None
        return self.seconds_from_scratch / self.seconds_all_shards

    @property
    def stopped(self) -> bool:
        """Whether a solve ended above its tolerance."""
        return self.converged is False

    def spread(self) -> str:
        """The accuracy as text, marked if it is not the optimum's."""
        return f"{self.accuracy:.1f} ± {self.std:.1f}{f' ({STOPPED})' if self.stopped else ''}"


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of settings on rows set aside.

    method: the paper's name for it. depth: in blocks. shards: how many. chosen: the settings. tried: all settings, each
    with what it reached.
    """

    method: str
    depth: int | str
    shards: int
    chosen: dict[str, Any]
    tried: list[dict[str, Any]]

    @property
    def end(self) -> End | None:
        """The end of the λ or rates tried at which the chosen one lies.

        Of only two λ each is an end, so that says nothing. For two rates, as in the paper, it is still said, because a
        larger one may be better.
        """
        for key, name, least in (("ridge", "λ", 3), ("rate", "rate", 2)):
            tried = {one[key] for one in self.tried if key in one}
            if len(tried) >= least and (chosen := self.chosen.get(key)) in (min(tried), max(tried)):
                return END[name, bool(chosen == min(tried))]
        return None


def at_their_ends(lines: Sequence[ReportLine], choices: Sequence[Tuned]) -> list[ReportLine]:
    """The lines, each with the end at which its setting lies; for every number of shards the same values are tried."""
    return [
        msgspec.structs.replace(line, end=next((one.end for one in choices if one.end and _of(one, line)), None))
        for line in lines
    ]


def _of(choice: Tuned, line: ReportLine) -> bool:
    """Whether the line's models have the chosen settings; a private line's setting holds more than these."""
    if "preset" in line.setting:
        return choice.chosen == line.setting
    return "preset" not in choice.chosen and choice.chosen.items() <= line.setting.items()


class Rows(TypedDict):
    """A line's fields from its seeds."""

    accuracy: float
    std: float
    right: Right


class Nearness(TypedDict):
    """How near to their optima a line's models are."""

    gradient: float | None
    tolerance: float | None
    converged: bool | None


class Cost(Nearness):
    """What a line's models took, and how near to their optima they are."""

    seconds: float
    passes: float


def over_rows(counts: Sequence[NDArray[Any]], of: int = 1) -> Rows:
    """From how many of ``of`` models gave each held-out row its own class [n], one array per seed."""
    right = Right.counted(counts, of)
    values = right.accuracy()
    return {"accuracy": mean(values), "std": stdev(values) if len(values) > 1 else 0.0, "right": right}


def cost(fits: Sequence[Fitted]) -> Cost:
    """The cost of each seed's models; a pass over a shard counts as its part of a pass over all rows."""
    return {
        "seconds": round(mean(sum(f.seconds) for f in fits), 1),
        "passes": round(mean(mean(f.passes) for f in fits), 1),
        **proof(fits),
    }


def proof(fits: Sequence[Fitted]) -> Nearness:
    """How near to their optima each seed's models are, by the worst."""
    said = [f.converged for f in fits if f.converged is not None]
    return {
        "gradient": max((f.gradient for f in fits if f.gradient is not None), default=None),
        "tolerance": min((f.tolerance for f in fits if f.tolerance is not None), default=None),
        "converged": all(said) if said else None,
    }
