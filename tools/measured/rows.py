"""What rows in 8 bits cost, from what ``benchmarks/rows.py`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.report.tables import markdown_table

DATA = {
    "quickstart": "scikit-learn's digits through the bundled ViT",
    "caltech101": "Caltech-101 through DeiT-tiny",
}
KINDS = {
    "tokens": "tokens",
    "attended": "attended (the heads' means)",
    "residual": "residual (the class row)",
    "feature": "feature (the head's input)",
}


def tables(report: dict[str, Any]) -> str:
    """A table a store, and what a pass takes."""
    text = [table(name, found) for name, found in report["stores"].items()]
    return "\n\n".join([*text, marked.measured(report)])


def table(name: str, found: dict[str, Any]) -> str:
    """A line for each kind of rows."""
    title = DATA.get(name, name)
    head = ["cached", "bytes a sample", "float16", "int8", "int8 against float16, on the same rows", "other classes"]
    rows = []
    for kind, one in found["kinds"].items():
        cells = [KINDS[kind], " → ".join(f"{one['bytes'][dtype]:,}" for dtype in ("float16", "int8"))]
        cells += [marked.interval(one["accuracy"][dtype]) for dtype in ("float16", "int8")]
        cells += [f"{marked.signed(one['ahead'])}: {one['verdict']}", f"{one['changed']} of {found['held_out']:,}"]
        rows.append(cells)
    first = f"{title}: {found['rows']:,} rows, {found['held_out']:,} held out."
    return "\n".join([first, "", *markdown_table(head, rows), "", summary(found)])


def summary(found: dict[str, Any]) -> str:
    """The whole store, a pass, and how far the solutions are from each other."""
    wide, narrow = (found["store_bytes"][dtype] for dtype in ("float16", "int8"))
    before, after = (1e3 * found["pass_seconds"][dtype] for dtype in ("float16", "int8"))
    return (
        f"All files of the rows: {wide:,.0f} bytes a sample, {narrow:,.0f} in int8. A pass over 512 rows of tokens: "
        f"{before:,.0f} ms, {after:,.0f} ms in int8. Δw of the tokens' exact model differs by "
        f"{100 * found['kinds']['tokens']['moved']:.0f} % of its length."
    )
