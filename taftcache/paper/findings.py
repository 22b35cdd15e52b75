"""What a comparison says about the paper's claims, each with its interval, its verdict and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from typing import Any

import numpy as np

from taftcache.paper.claim import Claim, Said, Subject, at_ends, claimed, compared, why_none
from taftcache.paper.line import ReportLine
from taftcache.paper.uncomposed import EXACT, HEAD, HEADS
from taftcache.report.paired import Paired, paired

Lines = Sequence[ReportLine]
Reports = Mapping[str, Lines]

PARAGON = {10: "84.3 against 81.3", 25: "84.3 against 78.5", 50: "84.3 against 75.7"}  # one TAFT model of all rows
SOUPS = {10: "81.3 against 72.2", 25: "78.5 against 65.5", 50: "75.7 against 62.2"}
DEPTHS = {"1": "84.3 against 85.0", "7": "84.5 against 85.5"}
LOSSES = {"CE": "+1.5 on average", "MSE": "+9.0 on average"}
SWITCHES = {
    "figure2b": ("PT=T", "PT=F", "+1.5 on average, −0 near ImageNet"),
    "figure2c": ("CLS=F", "CLS=T", "+0.8 Aircraft, +3.1 Cars"),
}
BALLS = {1.0: ("RSL", "CE", "+10.0 on average of three"), 10.0: ("CE", "RSL", "+3.5 on average of three")}


def findings(reports: Reports) -> list[Subject]:
    """What the given reports say, subject by subject; a subject that none of them is about is left out.

    A claim holds if the 95 % interval of its difference lies above zero, is contradicted if it lies below zero, and is
    within noise otherwise (``taftcache.report.paired``). Nothing is claimed about a model whose solve stopped early. No
    pair of models is counted twice.
    """
    read = {
        "One exact model, the mean of components, and heads": (_exact,),
        "The tangent model beside fine-tuning and the head": (_depths,),
        "Composed models beside souped networks": (_souped,),
        "One model of all rows beside composed ones": (_one_model,),
        "Shards and rows that leave": (_dropped, _ensemble, _forgotten),
        "The loss": (_losses, _balls),
        "Where training begins": (_switches,),
        "Private training": (_private,),
        "The exact solve beside the paper's training": (_presets,),
    }
    found = [Subject(title, [said for part in parts for said in part(reports)]) for title, parts in read.items()]
    return [subject for subject in found if subject.said]


def _exact(reports: Reports) -> Iterator[Said]:
    """How much accuracy the mean of components loses against the exact model."""
    lines = reports.get("table2", ())
    whole = {line.method: line for line in lines if line.method in (EXACT, HEAD)}
    if len(whole) < 2:
        return
    exact, head = whole[EXACT], whole[HEAD]
    # Compared with the best head there is: by the composed models' loss, or by cross-entropy, as in Table 1.
    others = [line for line in reports.get("table1", ()) if (line.method, line.preset) == ("FC", "exact")]
    best = max([head, *others], key=lambda line: line.accuracy)
    named = "the best exact head of all rows" if others else "the exact head of all rows"
    which = f" ({', '.join(map(_head, [head, *others]))})" if others else ""
    for line in (line for line in lines if (line.method, line.preset) == ("TAFT", "exact")):
        many = f"the mean of {line.shards} components"
        beside = f"{PARAGON[line.shards]} (one TAFT model)" if line.shards in PARAGON else ""
        yield claimed(f"The exact model of all rows above {many}", exact, line, beside, costs=True)
        claim = claimed(f"{many.capitalize()} above {named}", line, best, costs=True)
        yield replace(claim, figures=claim.figures + which)
        for heads in lines:
            if (heads.method, heads.shards) == (HEADS, line.shards):
                yield claimed(f"{many.capitalize()} above the mean of {line.shards} heads", line, heads, costs=True)
    if best is head:  # otherwise Table 1 has that pair
        yield claimed(f"The exact model of all rows above {named}", exact, head, costs=True)
    lines = reports.get("figure1a", ())
    for (shards, k), at in _by_removal(lines).items():
        if shards == _most_shards(lines) and 2 * k in (shards, shards - 1) and EXACT in at and ("TAFT", "exact") in at:
            yield claimed(
                f"{k} of {shards} shards dropped: the exact model of what remains above the mean of what remains",
                at[EXACT], at["TAFT", "exact"],
            )  # fmt: skip
            yield f"{k} of {shards} shards dropped, the exact model: {_fall(at[EXACT], exact)} [−4.0 of the mean]."


def _head(line: ReportLine) -> str:
    """A head's loss and accuracy."""
    return f"{line.setting.get('loss', 'its loss').replace('_', ' ')} {line.accuracy:.1f}"


def _depths(reports: Reports) -> Iterator[Claim]:
    at = {(line.method, line.preset): line for line in reports.get("table1", ())}
    for (method, preset), line in at.items():
        name, _, depth = method.partition("-")
        if name == "TAFT" and (other := at.get((f"NLFT-{depth}", "paper"))):
            yield claimed(f"{method} above {other.method} ({preset})", line, other, DEPTHS.get(depth, ""))
        if name == "TAFT" and (other := at.get(("FC", preset))):
            yield claimed(f"{method} above FC ({preset})", line, other, "84.3 against 81.6" if depth == "1" else "")


def _souped(reports: Reports) -> Iterator[Claim]:
    lines = reports.get("table2", ())
    soups = {line.shards: line for line in lines if line.method == "Soup"}
    for line in (line for line in lines if line.method == "TAFT" and line.shards in soups):
        what = f"composed TAFT of {line.shards} shards above soup ({line.preset})"
        yield claimed(what, line, soups[line.shards], SOUPS.get(line.shards or 1, ""))


def _one_model(reports: Reports) -> Iterator[Claim]:
    """By the paper's preset; the exact model's are the first subject."""
    deep = [line for line in reports.get("table1", ()) if line.method.startswith("TAFT-")]
    one = {line.preset: line for line in deep if line.depth is None and line.preset != "exact"}
    for line in (line for line in reports.get("table2", ()) if line.method == "TAFT" and line.preset in one):
        what = f"one model of all rows above composed TAFT of {line.shards} shards ({line.preset})"
        yield claimed(what, one[line.preset], line, PARAGON.get(line.shards or 1, ""))


def _dropped(reports: Reports) -> Iterator[str]:
    lines = [line for line in reports.get("figure1a", ()) if line.method == "TAFT"]
    for preset in _presets_of(lines):
        shards = _most_shards(lines)
        mine = {line.removed or 0: line for line in lines if (line.shards, line.preset) == (shards, preset)}
        half = min(mine, key=lambda k: abs(k - shards / 2))
        yield f"{half} of {shards} shards dropped ({preset}): {_fall(mine[half], mine[0])} [−4.0]."


def _ensemble(reports: Reports) -> Iterator[Claim]:
    """TAFT against SISA, by the number of shards: on average over the numbers removed, and point by point."""
    at = _by_removal(reports.get("figure1b", ()))
    presets = [key[1] for found in at.values() for key in found if key[0] == "TAFT"]
    for preset in dict.fromkeys(presets):
        for shards in sorted({shards for shards, _ in at}):
            pairs = [
                (found["TAFT", preset], found["SISA", "paper"])
                for (m, _), found in at.items()
                if m == shards and ("TAFT", preset) in found and ("SISA", "paper") in found
            ]
            if not pairs:
                continue
            gaps = [ours.accuracy - theirs.accuracy for ours, theirs in pairs]
            each = [compared(*pair) for pair in pairs]
            ours, theirs = (_average([pair[side] for pair in pairs]) for side in (0, 1))
            mean = paired(ours, theirs) if ours is not None and theirs is not None else None
            both = [line for pair in pairs for line in pair]
            yield Claim(
                what=f"TAFT above SISA on average over the shards removed, {shards} shards ({preset})",
                verdict=mean.verdict if mean else None,
                ahead=mean.text() if mean else f"{sum(gaps) / len(gaps):+.1f}",
                figures=f"from {min(gaps):+.1f} to {max(gaps):+.1f}; {_tally(each)}",
                withheld="" if mean else why_none(*both),
                ends=at_ends(*both),
                paper="+11.0 on average, above everywhere",
            )


def _forgotten(reports: Reports) -> Iterator[str]:
    lines = reports.get("figure1c", ())
    before = {(line.preset, line.shards): line for line in lines if not line.forgotten}
    most = max((line.forgotten or 0 for line in lines), default=0)
    for line in lines:
        if line.shards == _most_shards(lines) and line.forgotten and line.forgotten == most:
            yield (
                f"{100 * line.forgotten:.0f} % of the rows forgotten uniformly ({line.preset}): every shard loses some."
                f" Solving all {line.shards} shards again takes {line.seconds_all_shards or 0:.1f} s, training one"
                f" model from scratch {line.seconds_from_scratch:.1f} s: all shards are"
                f" {line.all_times_faster or 0:.1f} times as fast, one shard alone {line.times_faster:.0f} times"
                " [50 times]. Accuracy:"
                f" {_fall(line, before[line.preset, line.shards])} [−6.2 at 50 %]; from scratch"
                f" {line.from_scratch:.1f}."
            )


def _losses(reports: Reports) -> Iterator[Claim]:
    lines = reports.get("figure2a", ())
    for preset in _presets_of(lines):
        at = {line.method: line for line in lines if line.preset == preset}
        for other, beside in LOSSES.items():
            yield claimed(f"RSL above {other} ({preset})", at["RSL"], at[other], beside)


def _balls(reports: Reports) -> Iterator[Claim]:
    at = {(line.method, line.radius, line.preset): line for line in reports.get("table7", ())}
    for preset in _presets_of(reports.get("table7", ())):
        for radius, (above, below, beside) in BALLS.items():
            if (above, radius, preset) in at and (below, radius, preset) in at:
                what = f"{above} above {below} at R = {radius:g} ({preset})"
                yield claimed(what, at[above, radius, preset], at[below, radius, preset], beside)


def _switches(reports: Reports) -> Iterator[Claim]:
    for name, (low, high, beside) in SWITCHES.items():
        lines = reports.get(name, ())
        for preset in _presets_of(lines):
            at = {line.method: line for line in lines if line.preset == preset}
            if low in at and high in at:
                yield claimed(f"{high} above {low} ({preset})", at[high], at[low], beside)


def _private(reports: Reports) -> Iterator[Said]:
    """One claim for each regime and ε, how many claims have which verdict, and a sentence on the best for each ε.

    Lines without their single rows say nothing.
    """
    lines = [line for line in reports.get("table3", ()) if line.right is not None]
    at = {(line.method, line.epsilon, line.preset): line for line in lines}
    pairs = [
        (line, at[line.method, line.epsilon, "ordinary"])
        for line in lines
        if line.preset == "tangent" and (line.method, line.epsilon, "ordinary") in at
    ]
    found = [
        claimed(f"{ours.method} at ε = {ours.epsilon:g}, tangent above ordinary", ours, theirs)
        for ours, theirs in pairs
    ]
    yield from found
    if found:
        said = Counter(claim.verdict for claim in found)
        yield (
            f"The tangent model above the ordinary network holds in {said['holds']} of {len(found)} regimes and ε, is"
            f" within noise in {said['within noise']} and contradicted in {said['contradicted']}; both start alike, and"
            " the same search chose PT and rate of both."
        )
    for epsilon in dict.fromkeys(line.epsilon for line in lines):
        yield _best([line for line in lines if line.epsilon == epsilon])


def _best(lines: Sequence[ReportLine]) -> str:
    """The best line for one ε, and those that are within noise of it."""
    first, *rest = sorted(lines, key=lambda line: -line.accuracy)
    level = [_name(line) for line in rest if (found := compared(first, line)) and found.verdict == "within noise"]
    beside = f"; within noise of it: {'; '.join(level)}" if level else "; ahead of all others"
    return f"Best at ε = {first.epsilon:g}: {_name(first)}, {first.spread()}{beside if rest else ''}."


def _name(line: ReportLine) -> str:
    """A line's regime and network; the head alone has only one network, which is linear."""
    return line.method if line.method.startswith("head") else f"{line.method} {line.preset}"


@dataclass(frozen=True)
class _Pair:
    where: str
    exact: ReportLine
    paper: ReportLine


def _presets(reports: Reports) -> Iterator[str]:
    """Whether "exact" is above "paper" wherever both have a model, each pair once, and at what cost."""
    pairs: dict[Any, _Pair] = {}
    for name, lines in reports.items():
        at = {(line.preset, *_place(line)): line for line in lines}
        for (preset, *rest), line in at.items():
            other = at.get(("paper", *rest))
            if preset == "exact" and other is not None:
                where = ", ".join([name, *(str(part) for part in rest if part is not None)])
                pairs.setdefault((_model(line), _model(other)), _Pair(where, line, other))
    if not pairs:
        return
    found = [(pair, compared(pair.exact, pair.paper)) for pair in pairs.values()]
    tally = _tally([one for _, one in found])
    yield f"The exact preset above the paper's: {tally}{_chosen_at_ends(list(pairs.values()))}."
    timed = [pair for pair in pairs.values() if pair.exact.seconds and pair.paper.seconds]
    if timed:
        times = sum(pair.exact.seconds or 0 for pair in timed) / sum(pair.paper.seconds or 0 for pair in timed)
        yield (
            f"Without the choice of settings, the exact preset's models of one seed took {times:.2f} times the"
            " processor time of the paper's."
        )
    for pair, one in found:
        if one is not None and one.verdict == "contradicted":
            yield f"Below it: {pair.where}: {pair.exact.spread()} against {pair.paper.spread()}, {one.text()}."


def _chosen_at_ends(pairs: Sequence[_Pair]) -> str:
    """How many pairs rest on a choice at the end of what was tried, and at which ends; empty if none does."""
    both = [[line.end for line in (pair.paper, pair.exact) if line.end] for pair in pairs]
    count = Counter(end for ends in both for end in ends)
    if not count:
        return ""
    which = ", ".join(f"{end} {times}" for end, times in count.most_common())
    return f"; in {sum(map(bool, both))} of them a choice lies at the end of what was tried ({which})"


def _fall(line: ReportLine, before: ReportLine) -> str:
    """An accuracy, the one before it, and the difference with its interval."""
    found = compared(line, before)
    gap = found.text() if found else f"{line.accuracy - before.accuracy:+.1f} ({why_none(line, before)})"
    return f"{line.accuracy:.1f} after {before.accuracy:.1f}, {gap}"


def _tally(found: Sequence[Paired | None]) -> str:
    """How many hold, are within noise or are contradicted, and how many have no verdict."""
    count = Counter(one.verdict for one in found if one)
    without = len(found) - count.total()
    return (
        f"of {len(found)} pairs {count['holds']} hold, {count['within noise']} are within noise,"
        f" {count['contradicted']} are contradicted" + (f", {without} have no verdict" if without else "")
    )


def _average(lines: Lines) -> np.ndarray | None:
    """Shares right [seeds, rows], averaged over lines; None if a line keeps none or stopped early."""
    shares = [line.right.shares() for line in lines if line.right is not None and not line.stopped]
    return np.mean(shares, axis=0) if len(shares) == len(lines) else None


def _by_removal(lines: Lines) -> dict[tuple[int, int], dict[Any, ReportLine]]:
    """(shards, shards gone) → lines by method and preset, or by method alone if solved anew."""
    found: dict[tuple[int, int], dict[Any, ReportLine]] = {}
    for line in lines:
        key = line.method if line.method in (EXACT, HEAD) else (line.method, line.preset)
        found.setdefault((line.shards or 1, line.removed or 0), {})[key] = line
    return found


def _place(line: ReportLine) -> tuple[str | float | None, ...]:
    return line.method, line.shards, line.removed, line.forgotten, line.radius


def _model(line: ReportLine) -> tuple[Any, ...]:
    """What decides a line's models, whatever a report calls them, because tables and figures share many models."""
    setting = dumps(line.setting, sort_keys=True)
    return line.depth, line.shards or 1, line.removed or 0, line.forgotten or 0.0, line.radius, setting


def _most_shards(lines: Lines) -> int:
    return max((line.shards or 1 for line in lines), default=1)


def _presets_of(lines: Lines) -> list[str]:
    return list(dict.fromkeys(line.preset for line in lines))
