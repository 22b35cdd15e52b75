"""A claim about two models of a comparison: its verdict, its interval, and the figures behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from taftcache.paper.line import ReportLine
from taftcache.report.paired import Paired, Verdict, paired


@dataclass(frozen=True, kw_only=True)
class Claim:
    """That one model is above another.

    what: the claim. verdict: None where the two were not measured on the same rows. ahead: the difference in points,
    with its interval where there is one. figures: of both models. costs: what both took. paper: what the paper has.
    """

    what: str
    verdict: Verdict | None
    ahead: str
    figures: str
    costs: str = ""
    paper: str = ""

    @property
    def text(self) -> str:
        """One sentence."""
        said = ", ".join(part for part in (self.verdict or NOT_PAIRED, self.ahead, self.figures, self.costs) if part)
        return f"{self.what}: {said}{f' [{self.paper}]' if self.paper else ''}."


Said = Claim | str
NOT_PAIRED = "rows not comparable"


class Subject(NamedTuple):
    """Claims, and sentences that are none, about one thing."""

    title: str
    said: list[Said]


def claimed(what: str, line: ReportLine, other: ReportLine, paper: str = "", *, costs: bool = False) -> Claim:
    """That ``line`` is above ``other``, and with ``costs`` the seconds that both took."""
    found = compared(line, other)
    return Claim(
        what=what,
        verdict=found.verdict if found else None,
        ahead=found.text() if found else f"{line.accuracy - other.accuracy:+.1f}",
        figures=f"{line.spread()} against {other.spread()}",
        costs=" against ".join(f"{each.seconds or 0:.1f} s" for each in (line, other)) if costs else "",
        paper=paper,
    )


def compared(ours: ReportLine, theirs: ReportLine) -> Paired | None:
    """The paired difference; None where a line does not keep its rows, or has others or other seeds."""
    if ours.right is None or theirs.right is None:
        return None
    mine, other = ours.right.shares(), theirs.right.shares()
    return paired(mine, other) if mine.shape == other.shape else None
