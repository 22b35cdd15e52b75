"""Write the tables of taftcache beside a probe, LoRA and fine-tuning from what ``benchmarks/alternatives.py`` measured.

python tools/make_alternatives.py [REPORT.json …]

The reports are those that the benchmark printed with ``--json``, docs/results/alternatives-*.json by default; what one
lacks of a data set comes from a later one, and is marked as measured apart. The whole goes to docs/benchmarks.md and
the short form to README.md, between their marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import marked

METHODS = {
    "probe": "logistic regression (scikit-learn)",
    "ridge": "ridge (scikit-learn)",
    "every-block ridge": "ridge (scikit-learn) of every block's features",
    "lora": "LoRA (peft), rank 8 on qkv",
    "last block": "fine-tuning of the last block",
    "all": "fine-tuning of all of it",
    "mean": "taftcache, last block, mean of ten shards",
    "taftcache": "taftcache, last block, exact model",
    "every block, mean": "taftcache, head on every block, mean of ten shards",
    "every block": "taftcache, head on every block, exact model",
}
WHOLE = ("taftcache", "every block")  # every model of a store, not one component
READS = {each: f"{METHODS[each]} of the last feature" for each in ("probe", "ridge")}
DRAFTED = "every block"  # what `taftcache init` drafts
BRIEF = (DRAFTED, "taftcache", "every-block ridge", "ridge", "probe", "lora", "all")  # of the short form
QUANTILE = NormalDist().inv_cdf(0.975)
TITLES = {"digits": "digits", "caltech101": "Caltech-101", "cifar10": "CIFAR-10"}


def full(data: dict[str, Any]) -> str:
    """A table for each data set, with all that was measured."""
    text = []
    for name, found in data.items():
        text += [
            f"**{TITLES[name]}**, {found['backbone']}: {found['rows']:,} training rows of {found['classes']} classes,"
            f" {found['held_out']:,} held out; {cores(found)}.",
            "",
            "| | accuracy, % | taftcache against it, points | prepare | choose | train | one shard again"
            " | one sample out |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for method, of in listed(found):
            parts = of.get("seconds", {})
            cells = [title_of(method, found), accuracy(of), against(of)]
            cells += [clock(parts[part]) if part in parts else "" for part in ("prepare", "choose", "train")]
            text.append(f"| {' | '.join([*cells, *again(method, of)])} |")
        text += ["", *(f"- {line}" for line in remarks(found)), ""]
    return "\n".join([*text[:-1], *footnote(data)])


def short(data: dict[str, Any]) -> str:
    """One table of a few methods: every data set's accuracy, and what it costs on the first of them."""
    first = next(iter(data))
    where = {m: [TITLES[name] for name, found in data.items() if m in found.get("apart", {})] for m in BRIEF}
    late = [
        f"{READS.get(method, METHODS[method])} on {' and '.join(titles)}" for method, titles in where.items() if titles
    ]
    head = ["", *(f"{TITLES[name]}, %" for name in data), "train", "forget one sample"]
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for method in BRIEF:
        there = [found["methods"].get(method) for found in data.values()]
        if any(there):
            cells = [READS.get(method, METHODS[method])]
            cells += [
                "" if of is None else f"{accuracy(of, True)}{said(of, found)}"
                for of, found in zip(there, data.values(), strict=True)
            ]
            costs = data[first]["methods"].get(method)
            cells += ["", ""] if costs is None else [total(costs), again(method, costs)[-1]]
            text.append(f"| {' | '.join(cells)} |")
    text += [
        "",
        "Each method was trained once; the exact model is that of all rows. ± is a 95 % interval over held-out images."
        " 'Ahead' and 'behind' are relative to the head on every block, by a 95 % interval that is wider than need be:"
        " it takes the two as judged on different images. Times are"
        f" of one run each, for {TITLES[first]}, {threads(data[first])}{apart(data)}, and include choosing settings and"
        " the pass through the frozen layers. The others forget by training again without the sample. In shards"
        " (SISA) that is cheaper, at a cost in accuracy"
        " ([Figure 1b](docs/results.md#figure-1b-shards-subtracted-against-sisa))."
        + (f" Measured apart: {'; '.join(late)}." if late else "")
        + " [How, means of shards and all figures](docs/benchmarks.md#beside-a-probe-lora-and-fine-tuning).",
    ]
    return "\n".join(text)


def footnote(data: dict[str, Any]) -> list[str]:
    """What the lines of other runs are."""
    lines = []
    if days := {day for found in data.values() for day in found.get("apart", {}).values()}:
        machines = sorted(
            {found["methods"][m].get("machine", "") for found in data.values() for m in found.get("apart", ())}
        )
        where = f"; {' and '.join(machines)}" if all(machines) else ""
        lines += ["", f"¹ Measured apart from the other lines, on the same images ({', '.join(sorted(days))}{where})."]
    if any(found.get("again") for found in data.values()):
        lines += ["", "All times are of one run each. What ran more than once took, in all and to remove a sample:", ""]
        lines += [
            f"- {TITLES[name]}, {METHODS[method]}: {' and '.join(map(total, runs))};"
            f" {' and '.join(again(method, of)[-1] for of in runs)}."
            for name, found in data.items()
            for method, runs in repeated(found)
        ]
    return lines


def repeated(found: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """What ran more than once, and what each run took."""
    return [(method, [found["methods"][method], *runs]) for method, runs in found.get("again", {}).items()]


def apart(data: dict[str, Any]) -> str:
    """By how much the times of what ran more than once differ, at most."""
    times = [[clocks(of) for of in runs] for found in data.values() for _, runs in repeated(found)]
    ratios = [max(each) / min(each) for runs in times for each in zip(*runs, strict=True)]
    return f" (repetitions differed by a factor of up to {max(ratios):.1f})" if ratios else ""


def clocks(of: dict[str, Any]) -> list[float]:
    """Seconds of a training in all, and of a sample's removal by each way."""
    whole = sum(part["clock"] for part in of["seconds"].values())
    return [whole, *(of[part]["clock"] for part in ("sample", "sample_retrain") if part in of)]


def title_of(method: str, found: dict[str, Any]) -> str:
    """As the tables have it."""
    return METHODS[method] + ("¹" if method in found.get("apart", {}) else "")


def cores(found: dict[str, Any]) -> str:
    """On how many threads it ran, and of which processor where all lines of the run have the same."""
    late = found.get("apart", ())
    machines = {of.get("machine") for method, of in found["methods"].items() if method not in late}
    return " of ".join([threads(found), *(each for each in machines if each and len(machines) == 1)])


def threads(found: dict[str, Any]) -> str:
    """On how many threads it ran."""
    counts = sorted({of["threads"] for of in found["methods"].values()})
    return "one thread" if counts == [1] else f"{' or '.join(map(str, counts))} threads"


def listed(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The methods that were measured, in the order of the tables."""
    return [(method, found["methods"][method]) for method in METHODS if method in found["methods"]]


def accuracy(of: dict[str, Any], brief: bool = False) -> str:
    """With its interval, or half of its width."""
    value, low, high = (100 * x for x in of["accuracy"])
    return f"{value:.1f} ± {(high - low) / 2:.1f}" if brief else f"{value:.1f} ({low:.1f} to {high:.1f})"


def against(of: dict[str, Any]) -> str:
    """By how much taftcache is ahead, and what that says."""
    if "taftcache_against_it" not in of:
        return ""
    ahead, low, high = (f"{100 * x:+.1f}".replace("-", "−") for x in of["taftcache_against_it"]["ahead"])
    return f"{ahead} ({low} to {high}): {of['taftcache_against_it']['verdict']}"


def said(of: dict[str, Any], found: dict[str, Any]) -> str:
    """Where a method stands beside the model that `init` drafts, as if other images had judged it: most reports do not
    say which images each had right."""
    drafted = found["methods"].get(DRAFTED)
    if drafted is None or drafted is of:
        return ""
    shares = of["accuracy"][0], drafted["accuracy"][0]
    noise = QUANTILE * sqrt(sum(share * (1 - share) for share in shares) / found["held_out"])
    ahead = shares[0] - shares[1]
    return f" ({'within noise' if abs(ahead) <= noise else 'ahead' if ahead > 0 else 'behind'})"


def total(of: dict[str, Any]) -> str:
    """Seconds of the clock, from images to the model; empty where they were not measured."""
    return marked.seconds(float(sum(part["clock"] for part in of["seconds"].values()))) if "seconds" in of else ""


def again(method: str, of: dict[str, Any]) -> list[str]:
    """Seconds of a shard's retraining, and of a sample's removal."""
    if method in WHOLE:
        return ["as a sample", f"{clock(of['sample'])} by `--mode resolve`, {clock(of['sample_retrain'])} by default"]
    return [clock(of["shard"]), clock(of["sample"])]


def clock(part: dict[str, float]) -> str:
    """Seconds of the clock; nothing where there was nothing to do."""
    return marked.seconds(part["clock"]) if part["clock"] else ""


def remarks(found: dict[str, Any]) -> list[str]:
    """What was chosen, and where a better choice may lie beyond those that were tried."""
    lines = []
    for method, of in listed(found):
        chosen = of["chosen"]
        if "rate" in chosen:
            tried = ", ".join(f"{rate:g}" for rate, _ in chosen["scores"])
            end = "; it lies at an end of them, so that another may be better" if chosen["at_end"] else ""
            how = ", images flipped and shifted" if of["augmented"] else ""
            how += ", products in bfloat16" if of["bfloat16"] else ""
            how += f", the block {'drawn anew' if chosen['fresh'] else 'pre-trained'}" if "fresh" in chosen else ""
            lines.append(f"{METHODS[method]}: {of['epochs']} epochs, rate {chosen['rate']:g} of {tried}{end}{how}.")
        elif "C" in chosen:
            lines.append(f"{METHODS[method]}: C = {chosen['C']:g}.")
        elif "alpha" in chosen:
            lines.append(f"{METHODS[method]}: alpha = {chosen['alpha']:g}.")
    return lines


def main(files: Sequence[str]) -> None:
    """Write both pages."""
    data = read(files or sorted((marked.ROOT / "docs" / "results").glob("alternatives-*.json")))
    marked.put("docs/benchmarks.md", "alternatives", full(data))
    marked.put("README.md", "alternatives", short(data))


def about(found: dict[str, Any]) -> tuple[Any, ...]:
    """What of a data set every report has to share."""
    return tuple(found[key] for key in ("rows", "held_out", "classes", "backbone"))


def read(files: Sequence[str | Path]) -> dict[str, Any]:
    """What was measured by data set; what one file lacks of one, from a later one about the same model."""
    data: dict[str, Any] = {}
    for file in files:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
        for name, found in report["data"].items():
            first = data.setdefault(name, found | {"apart": {}, "again": {}})
            if first["methods"] is found["methods"]:
                continue
            other = found["methods"].get("taftcache", first["methods"]["taftcache"])
            if other["accuracy"] != first["methods"]["taftcache"]["accuracy"] or about(found) != about(first):
                raise SystemExit(f"{file}: its {name}, or its model of it, is not that of the reports before")
            for method, of in found["methods"].items():
                # a report from before this form has fine-tuning of the last block by another way
                if method in first["methods"] and of["chosen"].keys() == first["methods"][method]["chosen"].keys():
                    first["again"].setdefault(method, []).append(of)
            late = {method: of for method, of in found["methods"].items() if method not in first["methods"]}
            first["apart"] |= {method: of.get("date", "no date kept") for method, of in late.items()}
            first["methods"] |= late
    return data


if __name__ == "__main__":
    main(sys.argv[1:])
