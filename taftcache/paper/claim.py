"""A claim about two models of a comparison: its verdict, its interval, and the figures behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from taftcache.paper.line import NOT_RECORDED, ReportLine
from taftcache.report.paired import Paired, Verdict, paired


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim that one model is above another.

    what: the claim in words. verdict: None if there is none; ``withheld`` then says why. ahead: the difference in
    points, with its interval if there is a verdict. figures: of both models. costs: what both took. ends: which of them
    was trained at an end of what was tried for it. paper: the paper's figures.
    """

    what: str
    verdict: Verdict | None
    ahead: str
    figures: str
    withheld: str = ""
    costs: str = ""
    ends: str = ""
    paper: str = ""

    @property
    def text(self) -> str:
        """One sentence."""
        parts = (self.verdict or self.withheld, self.ahead, self.figures, self.costs, self.ends)
        said = ", ".join(part for part in parts if part)
        return f"{self.what}: {said}{f' [{self.paper}]' if self.paper else ''}."


Said = Claim | str
NOT_PAIRED = "rows not comparable"


class Subject(NamedTuple):
    """Claims about one thing, and other sentences about it."""

    title: str
    said: list[Said]


def claimed(what: str, line: ReportLine, other: ReportLine, paper: str = "", *, costs: bool = False) -> Claim:
    """The claim that ``line`` is above ``other``; with ``costs``, also the seconds that both took."""
    found = compared(line, other)
    return Claim(
        what=what,
        verdict=found.verdict if found else None,
        ahead=found.text() if found else f"{line.accuracy - other.accuracy:+.1f}",
        figures=f"{line.spread()} against {other.spread()}",
        withheld="" if found else why_none(line, other),
        costs=" against ".join(f"{each.seconds or 0:.1f} s" for each in (line, other)) if costs else "",
        ends=at_ends(line, other),
        paper=paper,
    )


def at_ends(*lines: ReportLine) -> str:
    """Which lines were trained at an end of what was tried, and at which."""
    alike = len({line.method for line in lines}) == 1
    names = [f"{line.method} {line.preset}" if alike else line.method for line in lines]
    return "; ".join(dict.fromkeys(f"{name}: {line.end}" for name, line in zip(names, lines, strict=True) if line.end))


def why_none(*lines: ReportLine) -> str:
    """Why there is no verdict about some lines."""
    above = [f"{line.method} stopped at {reached(line)}" for line in lines if line.stopped]
    return f"withheld: {'; '.join(dict.fromkeys(above))}" if above else NOT_PAIRED


def reached(line: ReportLine) -> str:
    """How near to their optimum a line's models are, and how near was asked for."""
    asked = NOT_RECORDED if line.tolerance is None else f"{line.tolerance:g}"
    return f"‖∇F‖ {line.gradient or 0:.1e} ‖∇F(0)‖, tolerance {asked}"


def compared(ours: ReportLine, theirs: ReportLine) -> Paired | None:
    """The paired difference; None if a line has no single rows, has other rows or seeds, or stopped early."""
    if ours.right is None or theirs.right is None or ours.stopped or theirs.stopped:
        return None
    mine, other = ours.right.shares(), theirs.right.shares()
    return paired(mine, other) if mine.shape == other.shape else None
