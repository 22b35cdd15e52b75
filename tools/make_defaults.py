"""Write what a run gives without a switch from what ``benchmarks/defaults.py`` measured.

python tools/make_defaults.py [REPORT.json]

The report is what the benchmark printed with ``--json``, docs/results/defaults.json where none is named. The table goes
to docs/benchmarks.md, between its marks.
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


def interval(values: Sequence[float]) -> str:
    """An accuracy in percent with its interval."""
    value, low, high = (100 * each for each in values)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def signed(values: Sequence[float]) -> str:
    """A difference in points with its interval."""
    ahead, low, high = (f"{100 * each:+.1f}".replace("-", "−") for each in values)
    return f"{ahead} ({low} to {high})"


def main(files: Sequence[str]) -> None:
    """Write the page."""
    marked.put("docs/benchmarks.md", "defaults", table(marked.report(files, "defaults.json")))


if __name__ == "__main__":
    main(sys.argv[1:])
