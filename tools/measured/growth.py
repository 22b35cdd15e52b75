"""How cost grows, and what many rows would take, from what ``benchmarks/growth.py`` measured."""

from __future__ import annotations

from typing import Any

import marked

from taftcache.report.tables import markdown_table

STAGES = {
    "extract": "extract",
    "train": "train: ten shards, and the exact model",
    "evaluate": "evaluate",
    "forget": "forget one sample in all models",
    "inspect": "inspect",
    "page": "the page as one file",
}
PASSES = (
    ("a shard", "train", "passes"),
    ("the exact model", "train", "exact_passes"),
    ("the exact model without a sample", "forget", "exact_passes"),
)
PLANNED = (10**6, 10**8)
HOUR = 3600.0


def tables(report: dict[str, Any]) -> str:
    """One table by rows and one by classes: processor seconds and memory of every stage, and its exponent."""
    data = report["data"] if report["data"] == "CIFAR-10" else "generated images of ten classes"
    text = [f"By rows, {data}:", "", *table(report["rows"], "rows"), ""]
    text += ["By classes, 2,000 generated images:", "", *table(report["classes"], "classes"), ""]
    return "\n".join([*text, how(*report["rows"]["sizes"], *report["classes"]["sizes"])])


def table(found: dict[str, Any], by: str) -> list[str]:
    """A line a stage, a column a size."""
    sizes = found["sizes"]
    head = [by, *(f"{asked(one[by]):,}" for one in sizes), "exponent"]
    rows = []
    for name, title in STAGES.items():
        cells = [f"{one[name]['seconds']:,.1f} s, {one[name]['memory'] / 2**30:.1f} GiB" for one in sizes]
        rows.append([title, *cells, str(found["exponents"].get(name, ""))])
    for title, name, key in PASSES:
        rows.append([f"passes, {title}", *(str(one[name][key]) for one in sizes), ""])
    if all("exact_ridge" in one for one in sizes):
        rows.append(["λ of the exact model", *(f"{one['exact_ridge']:.1e}" for one in sizes), ""])
    stored = (f"{one['bytes'] / 1e6:,.0f} MB" for one in sizes)
    return markdown_table(head, [*rows, ["the store", *stored, ""]])


def one_size(report: dict[str, Any]) -> str:
    """A line a stage of one store."""
    (one,) = report["rows"]["sizes"]
    rows = []
    for name, title in STAGES.items():
        seconds = one[name]["seconds"]
        took = f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
        rows.append([title, took, f"{one[name]['memory'] / 2**30:.1f} GiB"])
    passes = ", ".join(f"{title} {one[name][key]}" for title, name, key in PASSES)
    stored = f"{asked(one['rows']):,} rows, {one['bytes'] / 1e6:,.0f} MB. Passes: {passes}."
    return "\n".join([*markdown_table(["", "processor", "largest memory"], rows), "", f"{stored} {how(one)}"])


def how(*sizes: dict[str, Any]) -> str:
    """Where sizes were measured, and to which tolerance: 10⁻³ before reports kept it."""
    ended = f"`solver.tolerance` was {sizes[0].get('tolerance', '1e-3, so that certificates need not decide')}."
    return f"{ended} {marked.measured(*sizes)}"


def asked(count: int) -> int:
    """The size that was asked for: one sample of it has been forgotten."""
    return count + 1 if count % 10 == 9 else count


def plan(report: dict[str, Any]) -> str:
    """Processor hours and bytes of many rows, each stage's cost a row at the largest size taken on."""
    size = report["rows"]["sizes"][-1]
    count = asked(size["rows"])
    rows = []
    for name in ("extract", "train", "forget"):
        each = (size[name]["seconds"] - size["start"]["seconds"]) / count
        rows.append([STAGES[name], f"{1e3 * each:,.1f} ms", *(hours(each * n) for n in PLANNED)])
    stored = size["bytes"] / (count + size["held_out"])
    rows.append(["the store", f"{stored / 1e3:,.1f} kB", *(amount(stored * n) for n in PLANNED)])
    return "\n".join(markdown_table(["", "a row", *(f"{n:,} rows" for n in PLANNED)], rows))


def plans(head: dict[str, Any], block: dict[str, Any]) -> str:
    """The plan of either kind of store."""
    said = {"The head that `init` chooses:": head, "The last block, drawn anew:": block}
    return "\n\n".join(text for title, report in said.items() for text in (title, plan(report)))


def hours(seconds: float) -> str:
    """Processor time."""
    return f"{seconds / HOUR:,.1f} h" if seconds < 100 * HOUR else f"{seconds / HOUR:,.0f} h"


def amount(size: float) -> str:
    """Bytes."""
    return f"{size / 1e9:,.0f} GB" if size < 1e12 else f"{size / 1e12:,.1f} TB"
