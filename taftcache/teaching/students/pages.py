"""A student's report: report.md, report.json and their plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taftcache.report.markdown import bullets, picture, section
from taftcache.report.plots import Point, curves, dots
from taftcache.report.tables import columns_of, markdown_table
from taftcache.report.write import write_bytes, write_json
from taftcache.teaching.recipe import TeachingRecipe

Row = dict[str, Any]
Tables = Mapping[str, list[Row]]
CURVES = {
    "noise features": "noise",
    "labelled images of a class": "per_class",
    "times the first teacher is given": "repeat",
}
"""Title of a curve's table -> what changes along it, by its key in the recipe's [report]."""
ENERGY = ("energy-by-teacher.svg", "energy-by-feature.svg")
CURVE_FILES = {key: f"{key.replace('_', '-')}.svg" for key in CURVES.values()}
FILES = ("report.md", "report.json", *ENERGY, *CURVE_FILES.values())
"""All that ``write_page`` replaces or removes."""


def write_page(
    folder: Path,
    recipe: TeachingRecipe,
    counts: Mapping[str, int],
    tables: Tables,
    conclusions: Sequence[str],
    notes: Sequence[str],
    energies: Mapping[str, Sequence[float]],
) -> list[Path]:
    """Write the report and return the plots' files. Plots of an earlier report that this one lacks are removed.

    Args:
        counts: of images and classes. tables: by title, rows of plain values. energies: for each teacher, the energy of
            each of its features, in per cent.
    """
    plots = [*_energy_plots(folder, tables, energies), *_curve_plots(folder, tables)]
    said = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    text = [f"# Teaching: {recipe.name}", "", f"Images: {said}.", ""]
    for title, rows in tables.items():
        if rows:
            text += section(f"{title[0].upper()}{title[1:]}", table(rows))
    text += section("What this says", bullets(conclusions)) if conclusions else []
    text += section("Notes", bullets(notes)) if notes else []
    for plot in plots:
        text += picture(plot.stem.replace("-", " "), plot.name)
    write_bytes(folder / "report.md", "\n".join(text).encode())
    for name in (*ENERGY, *CURVE_FILES.values()):
        if folder / name not in plots:
            (folder / name).unlink(missing_ok=True)
    told = {"recipe": recipe, "rows": counts, "tables": tables, "conclusions": conclusions, "notes": notes}
    write_json(folder / "report.json", told)
    return plots


def _energy_plots(folder: Path, tables: Tables, energies: Mapping[str, Sequence[float]]) -> list[Path]:
    if not tables.get("energy"):
        return []
    shares = {row["teacher"]: (100 * row["share of energy"], 0.0) for row in tables["energy"]}
    ranked = {
        name: [(float(rank), value, 0.0) for rank, value in enumerate(sorted(values, reverse=True), 1)]
        for name, values in energies.items()
    }
    return [
        dots(folder / ENERGY[0], "per cent of the energy", shares, least=0),
        curves(folder / ENERGY[1], "feature, by rank in its teacher", "per cent of the energy", ranked),
    ]


def _curve_plots(folder: Path, tables: Tables) -> list[Path]:
    """One plot for each curve with more than one point."""
    plots = []
    for title, key in CURVES.items():
        rows = tables.get(title, [])
        if len({row[key] for row in rows}) > 1:
            lines: dict[str, list[Point]] = {}
            for row in rows:
                point = (float(row[key]), 100 * row["accuracy"], 100 * (row["deviation"] or 0.0))
                lines.setdefault(row["prior"], []).append(point)
            plots.append(curves(folder / CURVE_FILES[key], title, "accuracy, per cent", lines))
    return plots


def table(rows: Sequence[Row]) -> list[str]:
    """Rows with the same columns as a table in Markdown; accuracies and shares in per cent."""
    columns = columns_of(rows)
    return markdown_table(columns, ([cell(key, row.get(key)) for key in columns] for row in rows))


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
