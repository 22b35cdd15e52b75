"""What a head on every block's feature reaches, from what ``benchmarks/every_block.py`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.names import EXACT, MEAN
from taftcache.report.tables import markdown_table
from taftcache.stages.look.probe import LOGISTIC, RIDGE

DATA = {
    "digits": "digits, bundled ViT",
    "caltech101": "Caltech-101, DeiT-tiny",
    "caltech101-bundled": "Caltech-101, bundled ViT",
    "cifar10": "CIFAR-10, DeiT-tiny",
}
MODELS = {EXACT: "of all rows", MEAN: "mean of components"}
PROBES = {RIDGE: "ridge (scikit-learn)", LOGISTIC: "logistic regression (scikit-learn)"}
HEAD = "head on every block"


def table(report: dict[str, Any]) -> str:
    """Two lines a data set: the models of all rows with the probes of what the head reads, and the means."""
    head = ["data", "model", HEAD, "last block's tangent", "head against it"]
    head += [title for probe in PROBES.values() for title in (f"{probe} of the same features", "head against it")]
    head.append("bytes a sample, head and tangent")
    rows = []
    for name, found in report["data"].items():
        every, last = found["every"], found["last"]
        about = f"{DATA[name]}: {every['rows']:,} rows, {every['held_out']:,} held out"
        ends = []
        for probe in (every["probes"][kind] for kind in PROBES):
            ends += [marked.interval(probe["accuracy"]), against(probe["exact_against_it"])]
        ends.append(f"{every['bytes_per_sample']:,.0f}, {last['bytes_per_sample']:,.0f}")
        for model, title in MODELS.items():
            ahead = against(found["every_against_last"][model])
            scores = [marked.interval(of["accuracy"][model]) for of in (every, last)]
            first = model == EXACT
            rows.append([about if first else "", title, *scores, ahead, *(ends if first else [""] * len(ends))])
    return "\n".join([*markdown_table(head, rows), "", marked.measured(report)])


def short(report: dict[str, Any], block: dict[str, Any]) -> str:
    """The models of all rows in percent, and what the others' distance from the head says of them; ``block``: the
    tangent's report over seeds."""
    head = ["accuracy, %", f"[{HEAD}](docs/guide.md#a-head-that-reads-every-block)", "tangent of the last block"]
    rows = []
    for name, found in report["data"].items():
        every, last = found["every"], found["last"]
        tangent = f"{percent(last, EXACT)} ({marked.OPPOSITE[found['every_against_last'][EXACT]['verdict']]})"
        probes = [
            f"{100 * probe['accuracy'][0]:.1f} ({marked.OPPOSITE[probe['exact_against_it']['verdict']]})"
            for probe in (every["probes"][kind] for kind in PROBES)
        ]
        rows.append([DATA[name], percent(every, EXACT), tangent, *probes])
    less = min(f["last"]["bytes_per_sample"] / f["every"]["bytes_per_sample"] for f in report["data"].values())
    both = {name: found["every_against_last"][EXACT] for name, found in report["data"].items()}
    low, nearest = min((of["interval"][0], name) for name, of in both.items() if of["verdict"] == "ahead")
    seeds = sorted(run["last_block"] for run in block["runs"])
    text = (
        "In brackets: behind the head or within noise of it, by the 95 % interval of the difference on the same"
        f" held-out rows, for one seed of the tangent's new block. One lead is borderline: the interval of"
        f" {DATA[nearest]} begins at {100 * low:+.2f} points. On {DATA['caltech101']} the tangent has {seeds[0]:.1f} to"
        f" {seeds[-1]:.1f} % over [{len(seeds)} seeds](docs/benchmarks.md#the-last-block-against-the-head)."
        f" The head's cache is at most 1/{int(less)} as large as the tangent's"
        " ([all figures](docs/benchmarks.md#a-head-that-reads-every-block))."
    )
    head += [f"{probe} of the head's features" for probe in PROBES.values()]
    return "\n".join([*markdown_table(head, rows), "", text])


def against(both: dict[str, Any]) -> str:
    """By how much one is ahead of another, and what that says."""
    return f"{marked.signed([both['ahead'], *both['interval']])}: {both['verdict']}"


def percent(found: dict[str, Any], model: str) -> str:
    """An accuracy without its interval."""
    return f"{100 * found['accuracy'][model][0]:.1f}"
