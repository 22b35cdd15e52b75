"""What a comparison's figures say of the paper's claims, each with the figures that it was read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

Line = dict[str, Any]


def findings(reports: dict[str, Sequence[Line]]) -> list[str]:
    """One sentence a claim, for the reports that are there; what the paper found stands in brackets."""
    found: list[str] = []
    for name, read in READERS.items():
        if name in reports:
            found += read(reports[name])
    return [*found, *_presets(reports)]


def _table1(lines: Sequence[Line]) -> Iterator[str]:
    at = {(line["method"], line["preset"]): line for line in lines}
    for (method, preset), line in at.items():
        if method.startswith("TAFT-") and ("FC", preset) in at:
            yield _claim(f"{method} above FC ({preset})", line, at["FC", preset], "84.3 against 81.6")


def _table2(lines: Sequence[Line]) -> Iterator[str]:
    soups = {line["shards"]: line for line in lines if line["method"] == "Soup"}
    papers = {10: "81.3 against 72.2", 25: "78.5 against 65.5", 50: "75.7 against 62.2"}
    for line in lines:
        shards = line["shards"]
        if line["method"] == "TAFT" and shards in soups:
            yield _claim(
                f"composed TAFT above soup at {shards} shards ({line['preset']})", line, soups[shards],
                papers.get(shards, ""),
            )  # fmt: skip


def _figure1a(lines: Sequence[Line]) -> Iterator[str]:
    shards = max(line["shards"] for line in lines)
    for preset in dict.fromkeys(line["preset"] for line in lines):
        mine = {
            line["removed"]: line["accuracy"] for line in lines if (line["shards"], line["preset"]) == (shards, preset)
        }
        half = min(mine, key=lambda k: abs(k - shards / 2))
        yield (
            f"{half} of {shards} shards dropped ({preset}): {mine[half]:.1f} after {mine[0]:.1f},"
            f" {mine[half] - mine[0]:+.1f} [−4.0]."
        )


def _figure1b(lines: Sequence[Line]) -> Iterator[str]:
    for preset in dict.fromkeys(line["preset"] for line in lines if line["method"] == "TAFT"):
        for shards in sorted({line["shards"] for line in lines}):
            here = [line for line in lines if line["shards"] == shards]
            ours = {
                line["removed"]: line["accuracy"]
                for line in here
                if (line["method"], line["preset"]) == ("TAFT", preset)
            }
            theirs = {line["removed"]: line["accuracy"] for line in here if line["method"] == "SISA"}
            gaps = [ours[k] - theirs[k] for k in ours if k in theirs]
            if gaps:
                yield (
                    f"TAFT − SISA at {shards} shards ({preset}): {mean(gaps):+.1f} on average over the shards removed,"
                    f" from {min(gaps):+.1f} to {max(gaps):+.1f} [+11.0 on average, above everywhere]."
                )


def _figure1c(lines: Sequence[Line]) -> Iterator[str]:
    shards = max(line["shards"] for line in lines)
    for line in lines:
        if line["shards"] == shards and line["forgotten"] > 0:
            kept = next(
                at for at in lines
                if (at["shards"], at["preset"], at["forgotten"]) == (shards, line["preset"], 0.0)
            )  # fmt: skip
            yield (
                f"{100 * line['forgotten']:.0f} % forgotten, {shards} shards solved again ({line['preset']}):"
                f" {line['accuracy']:.1f} after {kept['accuracy']:.1f}; from scratch {line['from_scratch']:.1f}, in"
                f" {line['times_faster']:.0f} times the processor time of one shard [50 times; −6.2 at 50 %]."
            )


def _figure2a(lines: Sequence[Line]) -> Iterator[str]:
    for preset in dict.fromkeys(line["preset"] for line in lines):
        at = {line["method"]: line for line in lines if line["preset"] == preset}
        for other, paper in (("CE", "+1.5 on average"), ("MSE", "+9.0 on average")):
            yield _claim(f"RSL at least {other} ({preset})", at["RSL"], at[other], paper)


def _switch(low: str, high: str, paper: str) -> Any:
    def read(lines: Sequence[Line]) -> Iterator[str]:
        for preset in dict.fromkeys(line["preset"] for line in lines):
            at = {line["method"]: line for line in lines if line["preset"] == preset}
            if low in at and high in at:
                change = at[high]["accuracy"] - at[low]["accuracy"]
                both = f"{_value(at[high])} against {_value(at[low])}"
                yield f"{high} against {low} ({preset}): {both}, {change:+.1f} [{paper}]."

    return read


def _presets(reports: dict[str, Sequence[Line]]) -> list[str]:
    """Whether "exact" is at least "paper" wherever both have a figure, by how much, and at which cost."""
    cells, seconds, worse = 0, {"paper": 0.0, "exact": 0.0}, []
    for name, lines in reports.items():
        if name == "table3":
            continue
        keys = [k for k in ("method", "shards", "removed", "forgotten", "radius") if any(k in line for line in lines)]
        at = {(line["preset"], *(line.get(k) for k in keys)): line for line in lines}
        for (preset, *rest), line in at.items():
            if preset == "exact" and ("paper", *rest) in at:
                cells += 1
                other = at[("paper", *rest)]
                for which, one in (("exact", line), ("paper", other)):
                    seconds[which] += one.get("seconds", 0.0)
                if line["accuracy"] < other["accuracy"]:
                    worse.append((line["accuracy"] - other["accuracy"], name, rest, line, other))
    if not cells:
        return []
    said = [f"The exact preset is at least the paper's in {cells - len(worse)} of {cells} cells."]
    if seconds["paper"]:
        times = seconds["exact"] / seconds["paper"]
        said.append(f"Its models of one seed, without choosing, took {times:.2f} times the paper's processor time.")
    for gap, name, rest, line, other in sorted(worse, key=lambda found: found[0])[:8]:
        where = ", ".join(str(part) for part in rest if part is not None)
        within = "within" if -gap <= max(line["std"], other["std"]) else "beyond"
        said.append(f"Below it: {name}, {where}: {_value(line)} against {_value(other)}, {within} one deviation.")
    return said


def _claim(what: str, line: Line, other: Line, paper: str) -> str:
    gap = line["accuracy"] - other["accuracy"]
    verdict = "holds" if gap >= 0 else "does not hold"
    beside = f" [{paper}]" if paper else ""
    return f"{what}: {verdict}, {_value(line)} against {_value(other)}, {gap:+.1f}{beside}."


def _value(line: Line) -> str:
    return f"{line['accuracy']:.1f} ± {line['std']:.1f}"


READERS = {
    "table1": _table1,
    "table2": _table2,
    "figure1a": _figure1a,
    "figure1b": _figure1b,
    "figure1c": _figure1c,
    "figure2a": _figure2a,
    "figure2b": _switch("PT=T", "PT=F", "+1.5 on average, −0 near ImageNet"),
    "figure2c": _switch("CLS=F", "CLS=T", "+0.8 Aircraft, +3.1 Cars"),
}
