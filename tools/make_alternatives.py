"""Write the tables of taftcache beside a probe, LoRA and fine-tuning from what ``benchmarks/alternatives.py`` measured.

python tools/make_alternatives.py [REPORT.json …]

The reports are those that the benchmark printed with ``--json``, docs/results/alternatives-*.json by default; of a data
set that is in two the later one counts. The whole goes to docs/benchmarks.md and the short form to README.md, between
their marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marked

METHODS = {
    "probe": "linear probe (scikit-learn)",
    "lora": "LoRA (peft), rank 8 on qkv",
    "last block": "fine-tuning of the last block",
    "all": "fine-tuning of all of it",
    "taftcache": "taftcache, exact model",
}
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
            parts = of["seconds"]
            cells = [METHODS[method], accuracy(of), against(of)]
            cells += [both(parts[part]) for part in ("prepare", "choose", "train")] + [both(of["shard"])]
            text.append(f"| {' | '.join([*cells, both(of['sample'])])} |")
        text += ["", *(f"- {line}" for line in remarks(found)), ""]
    return "\n".join(text).strip()


def short(data: dict[str, Any]) -> str:
    """One table: every data set's accuracy, and what it costs on the first of them."""
    first = next(iter(data))
    head = ["", *(f"{TITLES[name]}, %" for name in data), "train", "retrain one shard", "forget one sample"]
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for method, title in METHODS.items():
        there = [found["methods"].get(method) for found in data.values()]
        if any(there):
            cells = [
                "taftcache" if method == "taftcache" else title,
                *("" if of is None else f"{accuracy(of, True)}{said(of)}" for of in there),
            ]
            costs = data[first]["methods"].get(method)
            cells += ["", "", ""] if costs is None else [seconds(total(costs)), *again(costs)]
            text.append(f"| {' | '.join(cells)} |")
    text += [
        "",
        "Each method was trained once; ± is a 95 % interval over held-out images. 'Ahead' and 'behind' are relative to"
        f" taftcache, on the same images. Times are for {TITLES[first]}, {threads(data[first])}, and include choosing"
        " settings and the pass through the frozen layers. The others have a single model, which is trained again"
        " without the shard or sample; taftcache's row is its model of all rows, and for a shard its component."
        " [How, and all figures](docs/benchmarks.md#beside-a-probe-lora-and-fine-tuning).",
    ]
    return "\n".join(text)


def cores(found: dict[str, Any]) -> str:
    """On how many threads it ran, and of which processor where the report says it."""
    machines = sorted({of["machine"] for of in found["methods"].values() if "machine" in of})
    return " of ".join([threads(found), *machines])


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
    words = {"ahead": "behind", "behind": "ahead", "within noise": "within noise"}
    return f" ({words[of['taftcache_against_it']['verdict']]})"


def total(of: dict[str, Any]) -> float:
    """Seconds of the clock, from images to the model."""
    return float(sum(part["clock"] for part in of["seconds"].values()))


def again(of: dict[str, Any]) -> list[str]:
    """Seconds of a shard's retraining, and of a sample's removal."""
    return [seconds(of[what]["clock"]) for what in ("shard", "sample")]


def both(part: dict[str, float]) -> str:
    """Seconds of the clock, and of the processor."""
    return f"{seconds(part['clock'])} ({seconds(part['processor'])})" if part["clock"] else ""


def seconds(value: float) -> str:
    """Two digits of what is short; whole seconds of what takes longer."""
    return f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"


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
            lines.append(f"{METHODS[method]}: {of['epochs']} epochs, rate {chosen['rate']:g} of {tried}{end}{how}.")
        elif "C" in chosen:
            lines.append(f"{METHODS[method]}: C = {chosen['C']:g}.")
        else:
            zero = both(of["sample_retrain"])
            lines.append(f"{METHODS[method]}: a sample out by `--mode retrain`, all models from zero: {zero}.")
    return lines


def main(files: Sequence[str]) -> None:
    """Write both pages."""
    data = read(files or sorted((marked.ROOT / "docs" / "results").glob("alternatives-*.json")))
    marked.put("docs/benchmarks.md", "alternatives", full(data))
    marked.put("README.md", "alternatives", short(data))


def read(files: Sequence[str | Path]) -> dict[str, Any]:
    """What was measured by data set; of one that is in two files, the later one's."""
    data: dict[str, Any] = {}
    for file in files:
        data |= json.loads(Path(file).read_text(encoding="utf-8"))["data"]
    return data


if __name__ == "__main__":
    main(sys.argv[1:])
