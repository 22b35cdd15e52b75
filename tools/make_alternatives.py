"""Write the tables of taftcache beside a probe, LoRA and fine-tuning from what ``benchmarks/alternatives.py`` measured.

python tools/make_alternatives.py [REPORT.json …]

The reports are those that the benchmark printed with ``--json``, docs/results/alternatives-*.json by default; what one
lacks of a data set comes from a later one, and is marked as measured apart. What reports from before its present form
lack comes from others that are kept: the mean's accuracy from defaults.json, and fine-tuning from a block that is drawn
anew from the paper's Table 1. The whole goes to docs/benchmarks.md and the short form to README.md, between their
marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marked
import msgspec

from taftcache.paper.claim import compared
from taftcache.paper.line import ReportLine

METHODS = {
    "probe": "linear probe (scikit-learn)",
    "lora": "LoRA (peft), rank 8 on qkv",
    "last block": "fine-tuning of the last block",
    "all": "fine-tuning of all of it",
    "mean": "taftcache, last block, mean of ten shards",
    "taftcache": "taftcache, last block, exact model",
    "every block, mean": "taftcache, head on every block, mean of ten shards",
    "every block": "taftcache, head on every block, exact model",
}
WHOLE = ("taftcache", "every block")  # every model of a store, not one component
READS = {"probe": "linear probe (scikit-learn) of the last feature"}
BRIEF = ("probe", "lora", "all", "taftcache", "every block")  # of the short form
ANEW = "fine-tuning of the last block, drawn anew¹"
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
            if method == "last block" and "anew" in found:
                took = marked.seconds(found["anew"]["seconds"])
                cells = [ANEW, deviating(found["anew"]), found["anew"]["against"], "", "", *[took] * 3]
                text.append(f"| {' | '.join(cells)} |")
        text += ["", *(f"- {line}" for line in remarks(found)), ""]
    return "\n".join([*text[:-1], *footnote(data)])


def short(data: dict[str, Any]) -> str:
    """One table of a few methods: every data set's accuracy, and what it costs on the first of them."""
    first = next(iter(data))
    late = [METHODS[method] for method in BRIEF if method in data[first].get("apart", {})]
    head = ["", *(f"{TITLES[name]}, %" for name in data), "train", "forget one sample"]
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for method in BRIEF:
        there = [found["methods"].get(method) for found in data.values()]
        if any(there):
            cells = [READS.get(method, METHODS[method])]
            cells += ["" if of is None else f"{accuracy(of, True)}{said(of)}" for of in there]
            costs = data[first]["methods"].get(method)
            cells += ["", ""] if costs is None else [total(costs), again(method, costs)[-1]]
            text.append(f"| {' | '.join(cells)} |")
    text += [
        "",
        "Each method was trained once; the exact model is that of all rows. ± is a 95 % interval over held-out images."
        " 'Ahead' and 'behind' are relative to taftcache's exact model of the last block, on the same images. Times are"
        f" of one run each, for {TITLES[first]}, {threads(data[first])}{apart(data)}, and include choosing settings and"
        " the pass through the frozen layers. The others forget by training again without the sample. In shards"
        " (SISA) that is cheaper, at a cost in accuracy"
        " ([Figure 1b](docs/results.md#figure-1b-shards-subtracted-against-sisa))."
        + "".join(f" Measured apart: {title}." for title in late)
        + " [How, means of shards and all figures](docs/benchmarks.md#beside-a-probe-lora-and-fine-tuning).",
    ]
    return "\n".join(text)


def footnote(data: dict[str, Any]) -> list[str]:
    """What the lines of other runs are."""
    lines = []
    if any("anew" in found for found in data.values()):
        lines += [
            "",
            "¹ Measured apart, with the paper's schedule: NLFT-1 of Table 1, which trains on the class row alone, at"
            " one of only two rates. Mean and deviation of three seeds, and processor seconds of one training, without"
            " the choice of its settings. The points are those of that table's TAFT-1, exact, on the same rows and"
            " seeds." + "".join(settled(name, found) for name, found in data.items()),
        ]
    if days := {day for found in data.values() for day in found.get("apart", {}).values()}:
        machines = sorted(
            {found["methods"][m].get("machine", "") for found in data.values() for m in found.get("apart", ())}
        )
        where = f"; {' and '.join(machines)}" if all(machines) else ""
        lines += ["", f"² Measured apart from the other lines, on the same images ({', '.join(sorted(days))}{where})."]
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


def settled(name: str, found: dict[str, Any]) -> str:
    """Whether a line of Table 1 has a class token of its own, which no other here has."""
    fresh = found.get("anew", {}).get("setting", {}).get("CLS") == "T"
    return f" On {TITLES[name]} it also chose a class token drawn anew." if fresh else ""


def title_of(method: str, found: dict[str, Any]) -> str:
    """As the tables have it."""
    kept = method == "last block" and "fresh" not in found["methods"][method]["chosen"]
    return METHODS[method] + (", as pre-trained" if kept else "") + ("²" if method in found.get("apart", {}) else "")


def deviating(line: dict[str, Any]) -> str:
    """An accuracy over seeds."""
    return f"{line['accuracy']:.1f} ± {line['std']:.1f}"


def cores(found: dict[str, Any]) -> str:
    """On how many threads it ran, and of which processor where all lines have the same."""
    machines = {of.get("machine") for of in found["methods"].values()}
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


def said(of: dict[str, Any]) -> str:
    """The verdict alone, from where the other method stands."""
    if "taftcache_against_it" not in of:
        return ""
    return f" ({marked.OPPOSITE[of['taftcache_against_it']['verdict']]})"


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
    return lines


def main(files: Sequence[str]) -> None:
    """Write both pages."""
    data = read(files or sorted((marked.ROOT / "docs" / "results").glob("alternatives-*.json")))
    marked.put("docs/benchmarks.md", "alternatives", full(data))
    marked.put("README.md", "alternatives", short(data))


def read(files: Sequence[str | Path]) -> dict[str, Any]:
    """What was measured by data set; what one file lacks of one, from a later one about the same model."""
    data: dict[str, Any] = {}
    for file in files:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
        for name, found in report["data"].items():
            first = data.setdefault(name, found | {"apart": {}, "again": {}})
            if first["methods"] is found["methods"]:
                continue
            if first["methods"]["taftcache"]["accuracy"] != found["methods"]["taftcache"]["accuracy"]:
                raise SystemExit(f"{file}: its model of {name} is not that of the reports before")
            for method, of in found["methods"].items():
                if method in first["methods"]:
                    first["again"].setdefault(method, []).append(of)
            late = {method: of for method, of in found["methods"].items() if method not in first["methods"]}
            first["apart"] |= {method: of.get("date", "no date kept") for method, of in late.items()}
            first["methods"] |= late
    for name, found in data.items():
        methods = found["methods"]
        if "mean" not in methods and (mean := default_mean(name, methods.get("taftcache"))):
            methods["mean"] = mean
        if "fresh" not in methods.get("last block", {}).get("chosen", {"fresh": True}) and (line := anew(name, found)):
            found["anew"] = line
    return data


def default_mean(name: str, ours: dict[str, Any] | None) -> dict[str, Any] | None:
    """The mean of the components of a run by the same recipe, whose exact model is this one's."""
    kept = marked.kept("defaults.json")["recipes"].get(name)
    if kept is None or ours is None or kept["accuracy"]["models/exact"][0] != ours["accuracy"][0]:
        return None
    alone = {"shard": ours["shard"], "sample": ours["shard"]}
    return {"accuracy": kept["accuracy"]["models/mean"], "chosen": {}, "threads": ours["threads"], **alone}


def anew(name: str, found: dict[str, Any]) -> dict[str, Any] | None:
    """NLFT-1 of Table 1 on the same rows through the same network."""
    file = marked.ROOT / "docs" / "results" / name / "table1.json"
    if not file.is_file():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    about = ("backbone", "rows", "held_out", "classes")
    if any(kept[key] != found[key] for key in about):
        return None
    lines = {(line["method"], line["preset"]): line for line in kept["reports"][0]["lines"]}
    line = lines["NLFT-1", "paper"]
    return {**line, "against": beside(lines.get(("TAFT-1", "exact")), line)}


def beside(ours: dict[str, Any] | None, theirs: dict[str, Any]) -> str:
    """By how much one line of Table 1 is ahead of another; nothing where it was not kept which rows they get right."""
    both = ours and compared(*(msgspec.convert(line, ReportLine) for line in (ours, theirs)))
    if not both:
        return ""
    verdict = {"holds": "ahead", "contradicted": "behind"}.get(both.verdict, both.verdict)
    return f"{marked.signed([each / 100 for each in (both.ahead, *both.interval)])}: {verdict}"


if __name__ == "__main__":
    main(sys.argv[1:])
