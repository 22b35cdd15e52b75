"""Write how cost grows, and what many rows would take, from what ``benchmarks/growth.py`` measured.

python tools/make_growth.py

The reports are what the benchmark printed with ``--json``: docs/results/growth-every-block.json of the head that
``init`` chooses, growth.json of the last block, and growth-million.json of a million rows. The tables go to
docs/benchmarks.md, the plan to docs/cluster.md, between their marks.
"""

from __future__ import annotations

from typing import Any

import marked

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
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, title in STAGES.items():
        cells = [f"{one[name]['seconds']:,.1f} s, {one[name]['memory'] / 2**30:.1f} GiB" for one in sizes]
        lines.append(f"| {title} | {' | '.join(cells)} | {found['exponents'].get(name, '')} |")
    for title, name, key in PASSES:
        lines.append(f"| passes, {title} | {' | '.join(str(one[name][key]) for one in sizes)} | |")
    if all("exact_ridge" in one for one in sizes):
        ridges = " | ".join(f"{one['exact_ridge']:.1e}" for one in sizes)
        lines.append(f"| λ of the exact model | {ridges} | |")
    stored = " | ".join(f"{one['bytes'] / 1e6:,.0f} MB" for one in sizes)
    return [*lines, f"| the store | {stored} | |"]


def one_size(found: dict[str, Any]) -> str:
    """A line a stage of one store."""
    (one,) = found["sizes"]
    lines = ["| | processor | largest memory |", "|---|---|---|"]
    for name, title in STAGES.items():
        seconds = one[name]["seconds"]
        took = f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
        lines.append(f"| {title} | {took} | {one[name]['memory'] / 2**30:.1f} GiB |")
    passes = ", ".join(f"{title} {one[name][key]}" for title, name, key in PASSES)
    stored = f"{asked(one['rows']):,} rows, {one['bytes'] / 1e6:,.0f} MB. Passes: {passes}."
    return "\n".join([*lines, "", f"{stored} {how(one)}"])


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
    rows = asked(size["rows"])
    head = ["", "a row", *(f"{n:,} rows" for n in PLANNED)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in ("extract", "train", "forget"):
        each = (size[name]["seconds"] - size["start"]["seconds"]) / rows
        lines.append(f"| {STAGES[name]} | {1e3 * each:,.1f} ms | {' | '.join(hours(each * n) for n in PLANNED)} |")
    stored = size["bytes"] / (rows + size["held_out"])
    lines.append(f"| the store | {stored / 1e3:,.1f} kB | {' | '.join(amount(stored * n) for n in PLANNED)} |")
    return "\n".join(lines)


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


def main() -> None:
    """Write both pages."""
    head, block = (marked.report([], name) for name in ("growth-every-block.json", "growth.json"))
    marked.put("docs/benchmarks.md", "growth-every-block", tables(head))
    marked.put("docs/benchmarks.md", "growth", tables(block))
    marked.put("docs/benchmarks.md", "million", one_size(marked.report([], "growth-million.json")["rows"]))
    marked.put("docs/cluster.md", "plan", plans(head, block))


if __name__ == "__main__":
    main()
