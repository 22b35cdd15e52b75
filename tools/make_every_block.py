"""Write what a head on every block's feature reaches from what ``benchmarks/every_block.py`` measured.

python tools/make_every_block.py [REPORT.json]

The report is what the benchmark printed with ``--json``, docs/results/every-block.json where none is named. The table
goes to docs/benchmarks.md, the sentence on it to README.md, between their marks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import marked
from make_defaults import PROBE, interval, signed

from taftcache.report.tables import markdown_table

DATA = {
    "digits": "digits, bundled ViT",
    "caltech101": "Caltech-101, DeiT-tiny",
    "caltech101-bundled": "Caltech-101, bundled ViT",
    "cifar10": "CIFAR-10, DeiT-tiny",
}
KINDS = {"last": "last block's tangent", "every": "head on every block"}


def table(report: dict[str, Any]) -> str:
    """Two lines a data set, and what the second is ahead by."""
    head = ["data", "model", "of all rows", "mean of components", "linear probe", "bytes a sample"]
    rows = []
    for name, found in report["data"].items():
        for kind, title in KINDS.items():
            one = found[kind]
            cells = [interval(one["accuracy"][model]) for model in ("models/exact", "models/mean", PROBE)]
            size = f"{one['bytes_per_sample']:,.0f}"
            rows.append([f"{DATA[name]}: {one['rows']:,} rows, {one['held_out']:,} held out", title, *cells, size])
        both = [found["every_against_last"][model] for model in ("models/exact", "models/mean")]
        rows.append(["", "difference, on the same rows", *(ahead(one) for one in both), "", ""])
    return "\n".join([*markdown_table(head, rows), "", marked.measured(report)])


def ahead(both: dict[str, Any]) -> str:
    """By how many points, and what that says."""
    return f"{signed([both['ahead'], *both['interval']])}: {both['verdict']}"


def sentence(report: dict[str, Any]) -> str:
    """Both kinds of model in words."""
    parts = []
    for name, found in report["data"].items():
        every, last = (100 * found[kind]["accuracy"]["models/exact"][0] for kind in ("every", "last"))
        verdict = found["every_against_last"]["models/exact"]["verdict"]
        data, _, network = DATA[name].partition(", ")
        through = f" through the {network}" if "bundled" in network and name != "digits" else ""
        parts.append(f"{every:.1f} % against {last:.1f} on {data}{through} ({verdict})")
    less = min(f["last"]["bytes_per_sample"] / f["every"]["bytes_per_sample"] for f in report["data"].values())
    said = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return (
        "What `init` chooses is a [head that reads every block](docs/guide.md#a-head-that-reads-every-block). Beside "
        f"the tangent of the last block it has {said}, from a cache at most 1/{int(less)} as large: "
        "[figures](docs/benchmarks.md#a-head-that-reads-every-block)."
    )


def main(files: Sequence[str]) -> None:
    """Write both pages."""
    report = marked.report(files, "every-block.json")
    marked.put("docs/benchmarks.md", "every-block", table(report))
    marked.put("README.md", "every-block", sentence(report))


if __name__ == "__main__":
    main(sys.argv[1:])
