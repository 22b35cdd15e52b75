"""Write what a run gives without a switch from what ``benchmarks/defaults.py`` measured.

python tools/make_defaults.py [REPORT.json]

The report is what the benchmark printed with ``--json``, docs/results/defaults.json where none is named. The table goes
to docs/benchmarks.md, the sentence about the probe to README.md, between their marks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import marked

DATA = {
    "quickstart": "`quickstart`: digits, bundled ViT",
    "init caltech101": "`init`: Caltech-101, DeiT-tiny",
    "caltech101": "`caltech101`: Caltech-101, DeiT-tiny",
}
SHORT = {
    "quickstart": "The demo reaches {} on digits",
    "init caltech101": "what `init` writes for Caltech-101 reaches {} through DeiT-tiny",
}
PROBE = "linear probe (scikit-learn)"
SOLVED = {"components/000": "shard", "models/head": "head", "models/exact": "all rows"}
MODELS = {
    "models/exact": "model of all rows (the default)",
    "models/mean": "mean of the components",
    "models/head": "exact head of all rows",
    PROBE: "linear probe",
}


def table(report: dict[str, Any]) -> str:
    """A column a data set."""
    found = report["recipes"]
    heads = [f"{DATA[n]}, {r['rows']:,} rows, {r['held_out']:,} held out" for n, r in found.items()]
    lines = [["", *heads], ["---"] * (len(heads) + 1)]
    for model, title in MODELS.items():
        scores = [r["accuracy"].get(model) for r in found.values()]
        lines.append([title, *("" if one is None else interval(one) for one in scores)])
    against = [f"{signed(r['ahead_of_probe'])}: {r['verdict']}" for r in found.values()]
    lines.append(["default against probe, on the same rows", *against])
    proven = [f"{100 * r['labels_proven']['models/exact']:.1f} %" for r in found.values()]
    lines.append(["labels provably those of a full retrain", *proven])
    for mode in ("retrain", "resolve"):
        spent = [r["forget"][mode]["models"] for r in found.values()]
        cells = [", ".join(f"{SOLVED[name]} {one['passes']}" for name, one in models.items()) for models in spent]
        lines.append([f"passes of a removal, `{mode}`", *cells])
    text = [*(f"| {' | '.join(line)} |" for line in lines), "", f"{receipts(found)} {marked.measured(report)}"]
    return "\n".join(text)


def receipts(found: dict[str, Any]) -> str:
    """How many of the removals' certificates decide."""
    all_of = [one["decisive"] for r in found.values() for f in r["forget"].values() for one in f["models"].values()]
    said = "All" if all(all_of) else f"{sum(all_of)} of {len(all_of)}"
    return (
        f"{said} certificates of these removals decide: the certified distance is below a tenth of what the removal"
        " moved."
    )


def sentence(report: dict[str, Any]) -> str:
    """The defaults beside the probe, in words."""
    parts: list[str] = []
    for name, found in report["recipes"].items():
        if name not in SHORT:
            continue
        ours, theirs = (100 * found["accuracy"][model][0] for model in ("models/exact", PROBE))
        low, high = (f"{100 * each:+.1f}".replace("-", "−") for each in found["ahead_of_probe"][1:])
        says = found["verdict"] + ("" if found["verdict"] == "within noise" else f", {low} to {high} points")
        probe = "probe of the same features" if parts else "linear probe"
        parts.append(f"{SHORT[name].format(f'{ours:.1f} %')} ({probe} {theirs:.1f}; {says})")
    figures = "[figures](docs/benchmarks.md#what-a-run-gives-without-a-switch)"
    return f"{'; '.join(parts)}: {figures}."


def interval(values: Sequence[float]) -> str:
    """An accuracy in percent with its interval."""
    value, low, high = (100 * each for each in values)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def signed(values: Sequence[float]) -> str:
    """A difference in points with its interval."""
    ahead, low, high = (f"{100 * each:+.1f}".replace("-", "−") for each in values)
    return f"{ahead} ({low} to {high})"


def main(files: Sequence[str]) -> None:
    """Write both pages."""
    report = marked.report(files, "defaults.json")
    marked.put("docs/benchmarks.md", "defaults", table(report))
    marked.put("README.md", "defaults", sentence(report))


if __name__ == "__main__":
    main(sys.argv[1:])
