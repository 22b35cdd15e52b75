"""What Table 3 says: the tangent model against the network itself at equal ε, and what is best to train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from taftcache.paper.claim import Said, claimed, compared
from taftcache.paper.line import ReportLine


def private_findings(reports: Mapping[str, Sequence[ReportLine]]) -> Iterator[Said]:
    """One claim a regime and ε, how many of them say what, and a sentence on the best for each ε.

    Lines whose single rows were not kept say nothing.
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
            f" within noise in {said['within noise']} and contradicted in {said['contradicted']}; both start with the"
            " head at zero and chose PT and rate from the same grid."
        )
    for epsilon in dict.fromkeys(line.epsilon for line in lines):
        yield _best([line for line in lines if line.epsilon == epsilon])


def _best(lines: Sequence[ReportLine]) -> str:
    """The best line of one ε, and those that are within noise of it."""
    first, *rest = sorted(lines, key=lambda line: -line.accuracy)
    level = [_name(line) for line in rest if (found := compared(first, line)) and found.verdict == "within noise"]
    beside = f"; within noise of it: {'; '.join(level)}" if level else "; ahead of all others"
    return f"Best at ε = {first.epsilon:g}: {_name(first)}, {first.spread()}{beside if rest else ''}."


def _name(line: ReportLine) -> str:
    """The head has one network, which is linear."""
    return line.method if line.method.startswith("head") else f"{line.method} {line.preset}"
