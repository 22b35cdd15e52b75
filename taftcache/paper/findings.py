"""What a comparison's figures say of the paper's claims, each with the figures that it was read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean

from taftcache.paper.line import ReportLine
from taftcache.paper.private_findings import private_findings


def findings(reports: Mapping[str, Sequence[ReportLine]]) -> list[str]:
    """One sentence a claim, for the reports that are there; what the paper found stands in brackets."""
    found: list[str] = []
    for name, read in READERS.items():
        if name in reports:
            found += read(reports[name])
    return [*found, *_presets(reports)]


def _table1(lines: Sequence[ReportLine]) -> Iterator[str]:
    at = {(line.method, line.preset): line for line in lines}
    for (method, preset), line in at.items():
        if method.startswith("TAFT-") and ("FC", preset) in at:
            yield _claim(f"{method} above FC ({preset})", line, at["FC", preset], "84.3 against 81.6")


def _table2(lines: Sequence[ReportLine]) -> Iterator[str]:
    soups = {line.shards: line for line in lines if line.method == "Soup"}
    papers = {10: "81.3 against 72.2", 25: "78.5 against 65.5", 50: "75.7 against 62.2"}
    for line in lines:
        if line.method == "TAFT" and line.shards in soups:
            yield _claim(
                f"composed TAFT above soup at {line.shards} shards ({line.preset})", line, soups[line.shards],
                papers.get(line.shards or 1, ""),
            )  # fmt: skip


def _figure1a(lines: Sequence[ReportLine]) -> Iterator[str]:
    shards = _most_shards(lines)
    for preset in _presets_of(lines):
        mine = {line.removed or 0: line.accuracy for line in lines if (line.shards, line.preset) == (shards, preset)}
        half = min(mine, key=lambda k: abs(k - shards / 2))
        yield (
            f"{half} of {shards} shards dropped ({preset}): {mine[half]:.1f} after {mine[0]:.1f},"
            f" {mine[half] - mine[0]:+.1f} [−4.0]."
        )


def _figure1b(lines: Sequence[ReportLine]) -> Iterator[str]:
    for preset in _presets_of([line for line in lines if line.method == "TAFT"]):
        for shards in sorted({line.shards or 1 for line in lines}):
            here = [line for line in lines if line.shards == shards]
            ours = {line.removed: line.accuracy for line in here if (line.method, line.preset) == ("TAFT", preset)}
            theirs = {line.removed: line.accuracy for line in here if line.method == "SISA"}
            gaps = [ours[k] - theirs[k] for k in ours if k in theirs]
            if gaps:
                yield (
                    f"TAFT − SISA at {shards} shards ({preset}): {mean(gaps):+.1f} on average over the shards removed,"
                    f" from {min(gaps):+.1f} to {max(gaps):+.1f} [+11.0 on average, above everywhere]."
                )


def _figure1c(lines: Sequence[ReportLine]) -> Iterator[str]:
    shards = _most_shards(lines)
    before = {line.preset: line for line in lines if line.shards == shards and not line.forgotten}
    for line in lines:
        if line.shards == shards and line.forgotten:
            yield (
                f"{100 * line.forgotten:.0f} % forgotten, {shards} shards solved again ({line.preset}):"
                f" {line.accuracy:.1f} after {before[line.preset].accuracy:.1f}; from scratch {line.from_scratch:.1f},"
                f" in {line.times_faster:.0f} times the processor time of one shard [50 times; −6.2 at 50 %]."
            )


def _figure2a(lines: Sequence[ReportLine]) -> Iterator[str]:
    for preset in _presets_of(lines):
        at = {line.method: line for line in lines if line.preset == preset}
        for other, paper in (("CE", "+1.5 on average"), ("MSE", "+9.0 on average")):
            yield _claim(f"RSL at least {other} ({preset})", at["RSL"], at[other], paper)


def _switch(low: str, high: str, paper: str) -> Callable[[Sequence[ReportLine]], Iterator[str]]:
    def read(lines: Sequence[ReportLine]) -> Iterator[str]:
        for preset in _presets_of(lines):
            at = {line.method: line for line in lines if line.preset == preset}
            if low in at and high in at:
                change = at[high].accuracy - at[low].accuracy
                both = f"{at[high].spread()} against {at[low].spread()}"
                yield f"{high} against {low} ({preset}): {both}, {change:+.1f} [{paper}]."

    return read


def _presets(reports: Mapping[str, Sequence[ReportLine]]) -> list[str]:
    """Whether "exact" is at least "paper" wherever both have a figure, by how much, and at which cost."""
    cells, seconds, worse = 0, {"paper": 0.0, "exact": 0.0}, []
    for name, lines in reports.items():
        if name == "table3":
            continue
        at = {(line.preset, *_place(line)): line for line in lines}
        for (preset, *rest), line in at.items():
            if preset == "exact" and ("paper", *rest) in at:
                cells += 1
                other = at[("paper", *rest)]
                for which, one in (("exact", line), ("paper", other)):
                    seconds[which] += one.seconds or 0.0
                if line.accuracy < other.accuracy:
                    worse.append((line.accuracy - other.accuracy, name, rest, line, other))
    if not cells:
        return []
    found = [f"The exact preset is at least the paper's in {cells - len(worse)} of {cells} cells."]
    if seconds["paper"]:
        times = seconds["exact"] / seconds["paper"]
        found.append(f"Its models of one seed, without choosing, took {times:.2f} times the paper's processor time.")
    for gap, name, rest, line, other in sorted(worse, key=lambda cell: cell[0])[:8]:
        where = ", ".join(str(part) for part in rest if part is not None)
        within = "within" if -gap <= max(line.std, other.std) else "beyond"
        found.append(f"Below it: {name}, {where}: {line.spread()} against {other.spread()}, {within} one deviation.")
    return found


def _claim(what: str, line: ReportLine, other: ReportLine, paper: str) -> str:
    gap = line.accuracy - other.accuracy
    verdict = "holds" if gap >= 0 else "does not hold"
    beside = f" [{paper}]" if paper else ""
    return f"{what}: {verdict}, {line.spread()} against {other.spread()}, {gap:+.1f}{beside}."


def _place(line: ReportLine) -> tuple[str | float | None, ...]:
    return line.method, line.shards, line.removed, line.forgotten, line.radius


def _most_shards(lines: Sequence[ReportLine]) -> int:
    return max(line.shards or 1 for line in lines)


def _presets_of(lines: Sequence[ReportLine]) -> list[str]:
    return list(dict.fromkeys(line.preset for line in lines))


READERS = {
    "table1": _table1,
    "table2": _table2,
    "table3": private_findings,
    "figure1a": _figure1a,
    "figure1b": _figure1b,
    "figure1c": _figure1c,
    "figure2a": _figure2a,
    "figure2b": _switch("PT=T", "PT=F", "+1.5 on average, −0 near ImageNet"),
    "figure2c": _switch("CLS=F", "CLS=T", "+0.8 Aircraft, +3.1 Cars"),
}
