"""report.md, report.json and the plots beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from taftcache.report.plots import bars, curves, profile
from taftcache.teaching.recipe import TransferRecipe
from taftcache.teaching.students.checkpoint import write_bytes

Row = dict[str, Any]
CURVES = {
    "noise features": "noise",
    "labelled images of a class": "per_class",
    "times the first teacher is given": "repeat",
}


def page(
    folder: Path,
    recipe: TransferRecipe,
    tables: Mapping[str, list[Row]],
    conclusions: Sequence[str],
    notes: Sequence[str],
    energies: Mapping[str, Sequence[float]],
) -> list[Path]:
    """Write the report; the plots' files."""
    plots = []
    if tables.get("energy"):
        shares = {row["teacher"]: 100 * row["share of energy"] for row in tables["energy"]}
        plots.append(bars(folder / "energy-by-teacher.svg", "Energy by teacher", "per cent of the energy", shares))
        plots.append(profile(folder / "energy-by-feature.svg", "Energy by feature", "per cent", energies))
    for title, key in CURVES.items():
        rows = tables.get(title, [])
        if len({row[key] for row in rows}) > 1:
            lines: dict[str, list[tuple[float, float]]] = {}
            for row in rows:
                lines.setdefault(row["prior"], []).append((float(row[key]), 100 * row["accuracy"]))
            file = folder / f"{key.replace('_', '-')}.svg"
            plots.append(curves(file, f"Accuracy and {title}", title, "accuracy, per cent", lines))
    text = [f"# Transfer: {recipe.name}", ""]
    for title, rows in tables.items():
        if rows:
            text += [f"## {title[0].upper()}{title[1:]}", "", *table(rows), ""]
    text += ["## What this says", "", *(f"- {line}" for line in conclusions), ""] if conclusions else []
    text += ["## Notes", "", *(f"- {line}" for line in notes), ""] if notes else []
    for plot in plots:
        text += [f"![{plot.stem.replace('-', ' ')}]({plot.name})", ""]
    write_bytes(folder / "report.md", "\n".join(text).encode())
    held = {
        "recipe": msgspec.to_builtins(recipe),
        "tables": tables,
        "conclusions": list(conclusions),
        "notes": list(notes),
    }
    write_bytes(folder / "report.json", json.dumps(held, indent=1, ensure_ascii=False).encode())
    return plots


def table(rows: Sequence[Row]) -> list[str]:
    """Rows of equal meaning as a table in Markdown; accuracies and shares in per cent."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(cell(key, row.get(key)) for key in columns) + " |" for row in rows]


def cell(column: str, value: Any) -> str:
    """One entry as text."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {100 * x:.1f}" for name, x in value.items())
    if isinstance(value, int):
        return f"{value:,}" if column == "parameters" else str(value)
    if isinstance(value, float):
        if column in ("accuracy", "deviation") or "energy" in column:
            return f"{100 * value:.2f} %"
        return f"{value:.3g}"
    return str(value)
