"""What a run gives without a switch, from what ``benchmarks/defaults.py`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.names import EXACT, PROBE
from taftcache.report.tables import markdown_table

DATA = {
    "quickstart": "`quickstart`: digits, bundled ViT",
    "init caltech101": "`init`: Caltech-101, DeiT-tiny",
    "caltech101": "`caltech101`: Caltech-101, DeiT-tiny",
}
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
    lines = []
    for model, title in MODELS.items():
        scores = [r["accuracy"].get(model) for r in found.values()]
        lines.append([title, *("" if one is None else marked.interval(one) for one in scores)])
    against = [f"{marked.signed(r['ahead_of_probe'])}: {r['verdict']}" for r in found.values()]
    lines.append(["default against probe, on the same rows", *against])
    title = "labels certified as the exact optimum's: before a removal, after `retrain`, after `resolve`"
    lines.append([title, *(", ".join(map(proven, (r, *r["forget"].values()))) for r in found.values())])
    for mode in ("retrain", "resolve"):
        spent = [r["forget"][mode]["models"] for r in found.values()]
        cells = [", ".join(f"{SOLVED[name]} {one['passes']}" for name, one in models.items()) for models in spent]
        lines.append([f"passes of a removal, `{mode}`", *cells])
    return "\n".join([*markdown_table(["", *heads], lines), "", f"{receipts(found)} {marked.measured(report)}"])


def proven(of: dict[str, Any]) -> str:
    """The share of the held-out labels that no model within the certified distance of the exact one would change."""
    return f"{100 * of['labels_proven'][EXACT]:.1f} %"


def receipts(found: dict[str, Any]) -> str:
    """How many of the removals' certificates decide."""
    all_of = [one["decisive"] for r in found.values() for f in r["forget"].values() for one in f["models"].values()]
    said = "All" if all(all_of) else f"{sum(all_of)} of {len(all_of)}"
    return (
        f"{said} certificates of these removals decide: the certified distance is below a tenth of how far the"
        " removal moved the model."
    )
