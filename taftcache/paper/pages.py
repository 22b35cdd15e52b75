"""A comparison as files: Markdown with tables like the paper's, CSV with every figure and its setting, SVG plots."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taftcache.paper.comparison import CompareReport, Figures
from taftcache.paper.findings import findings
from taftcache.report.plots import bars, curves
from taftcache.teaching.students.checkpoint import write_bytes

Line = Mapping[str, Any]
# Report → what its table has as columns; what is left makes the rows.
COLUMNS = {
    "table1": ("method",),
    "table2": ("shards", "method"),
    "table3": ("method", "preset"),
    "table7": ("method",),
    "figure2a": ("method",),
    "figure2b": ("method",),
    "figure2c": ("method",),
}
ORDER = ["NLFT-7", "TAFT-7", "NLFT-1", "TAFT-1", "FC", "Soup", "TAFT"]
KEYS = ("preset", "method", "shards", "removed", "forgotten", "radius", "epsilon")


def write_pages(report: CompareReport, folder: Path) -> list[Path]:
    """report.md, report.json, and for each table and figure a CSV file and its plots; the files in that order."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "report.md", folder / "report.json"]
    plots = {made.report: plot(made, folder) for made in report.reports}
    write_bytes(files[0], markdown(report, {k: [p.name for p in v] for k, v in plots.items()}).encode())
    plain = json.dumps(dataclasses.asdict(report), indent=1, ensure_ascii=False, default=str)
    write_bytes(files[1], plain.encode())
    for made in report.reports:
        file = folder / f"{made.report}.csv"
        write_bytes(file, comma_separated(made, report).encode())
        files += [file, *plots[made.report]]
    return files


def markdown(report: CompareReport, plots: Mapping[str, Sequence[str]] | None = None) -> str:
    """The whole report as a page; ``plots`` are files beside it, by report."""
    text = [
        f"# {report.backbone}: {report.rows} training and {report.held_out} held-out rows of {report.classes} classes",
        "",
    ]
    text += [*about(report), ""]
    for made in report.reports:
        text += [f"## {made.title}", "", *section(made), ""]
        text += [f"![{made.title}]({name})\n" for name in (plots or {}).get(made.report, ())]
    said = findings({made.report: made.lines for made in report.reports})
    text += ["## What this says", "", "In brackets: the paper's averages.", "", *(f"- {line}" for line in said), ""]
    return "\n".join(text)


def about(report: CompareReport) -> list[str]:
    """Where and from what the figures were made."""
    spec = report.recipe["compare"]
    stores = ", ".join(f"`{name}` {digest}" for name, digest in report.digests.items())
    libraries = ", ".join(f"{name} {at}" for name, at in report.libraries.items())
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sorted(report.spent.items()))
    return [
        f"Top-1 accuracy in per cent on the held-out rows, mean ± standard deviation over {report.seeds} seeds of the"
        " split and the base point. Settings were chosen on a fifth of the training rows of seed 0.",
        "",
        f"- ran on: {report.machine}; {report.seconds / 60:.1f} minutes; {libraries}",
        f"- stores and their root digests: {stores}",
        f"- preset `paper`: Adam, {spec['epochs']} epochs of batches of {spec['batch']}, the rate from"
        f" {_numbers(spec['rates'])} falling tenfold at a half and five sixths, λ = {spec['decay']:g}",
        f"- preset `exact`: ‖∇F‖ ≤ {report.recipe['solver']['tolerance']:g} ‖∇F(0)‖ in float64 (or"
        f" {report.recipe['solver']['max_passes']} passes), λ from {_numbers(spec['ridges'])} by the loss on rows"
        " set aside, PT and CLS by accuracy there",
        f"- processor time, choosing included: {spent}",
        *([f"- kept from earlier runs, whose minutes do not count: {report.kept} models"] if report.kept else []),
        *(f"- {note}" for note in report.notes),
    ]


def section(made: Figures) -> list[str]:
    """A report's table, and the setting behind each figure."""
    lines = sorted(made.lines, key=_order)
    columns = COLUMNS.get(made.report)
    text = _pivot(lines, columns) if columns else _plain(lines)
    text += ["", "<details><summary>settings</summary>", ""]
    seen: dict[str, None] = {}
    for line in lines:
        where = ", ".join(
            f"{k} {line[k]}" if k not in ("preset", "method") else str(line[k]) for k in KEYS[:3] if k in line
        )
        where += f", R = {line['radius']:g}" if "radius" in line else ""
        cost = f"; {line['seconds']:.1f} s" if "seconds" in line else ""
        proof = f"; ‖∇F‖ ≤ {line['gradient']:.1e} ‖∇F(0)‖" if "gradient" in line else ""
        seen[f"- {where}: {_setting(line.get('setting', {}))}{cost}{proof}"] = None
    return [*text, *seen, "", "</details>"]


def comma_separated(made: Figures, report: CompareReport) -> str:
    """One row a figure: keys, accuracy, cost, setting, and the stores' digests."""
    rows = []
    for line in made.lines:
        flat = {k: v for k, v in line.items() if k != "setting"}
        flat |= {f"setting.{k}": v for k, v in line.get("setting", {}).items()}
        rows.append(flat | {"digests": " ".join(report.digests.values())})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def plot(made: Figures, folder: Path) -> list[Path]:
    """The plots of a figure; none of a table."""
    if made.report in ("figure1a", "figure1b"):
        files = []
        for shards in sorted({line["shards"] for line in made.lines}):
            paths: dict[str, list[tuple[float, float]]] = {}
            for line in sorted(made.lines, key=lambda line: line["method"] != "TAFT"):  # its colours, whoever is beside
                if line["shards"] == shards:
                    paths.setdefault(_name(line), []).append((float(line["removed"]), line["accuracy"]))
            file = folder / f"{made.report}-{shards}.svg"
            files.append(
                curves(
                    file,
                    f"{made.title.partition(':')[0]}, {shards} shards",
                    "shards removed",
                    "accuracy, per cent",
                    paths,
                )
            )
        return files
    if made.report == "figure1c":
        shown: dict[str, list[tuple[float, float]]] = {}
        for line in made.lines:
            at = 100 * line["forgotten"]
            shown.setdefault(f"{line['shards']} shards, {line['preset']}", []).append((at, line["accuracy"]))
            whole = shown.setdefault(f"1 shard, {line['preset']}", [])  # from scratch; a longer name has no room
            if all(x != at for x, _ in whole):
                whole.append((at, line["from_scratch"]))
        return [
            curves(
                folder / f"{made.report}.svg",
                "Figure 1c",
                "per cent of the rows forgotten",
                "accuracy, per cent",
                shown,
            )
        ]
    if made.report.startswith("figure2"):
        methods = list(dict.fromkeys(line["method"] for line in made.lines))
        ordered = sorted(made.lines, key=lambda line: methods.index(line["method"]))
        values = {f"{_name(line)}: {line['accuracy']:.1f}": line["accuracy"] for line in ordered}
        presets = dict(zip(values, (line["preset"] for line in ordered), strict=True))
        title = made.title.partition(":")[0]
        return [bars(folder / f"{made.report}.svg", title, "accuracy, per cent", values, presets)]
    return []


def _pivot(lines: Sequence[Line], columns: Sequence[str]) -> list[str]:
    rest = [k for k in KEYS if k not in columns and any(k in line for line in lines)]
    heads = list(dict.fromkeys(tuple(line.get(k) for k in columns) for line in lines))
    rows: dict[tuple[Any, ...], dict[Any, str]] = {}
    for line in lines:
        at = tuple(line.get(k) for k in rest)
        rows.setdefault(at, {})[tuple(line.get(k) for k in columns)] = _value(line)
    names = [
        ", ".join(f"{v} shards" if k == "shards" else str(v) for k, v in zip(columns, head, strict=True))
        for head in heads
    ]
    text = ["| " + " | ".join([*rest, *names]) + " |", "|" + "---|" * (len(rest) + len(names))]
    for at, cells in rows.items():
        text.append("| " + " | ".join([*map(_cell, at), *(cells.get(head, "") for head in heads)]) + " |")
    return text


def _plain(lines: Sequence[Line]) -> list[str]:
    keys = [k for k in dict.fromkeys(key for line in lines for key in line) if k not in ("setting", "std")]
    text = ["| " + " | ".join(k.replace("_", " ") for k in keys) + " |", "|" + "---|" * len(keys)]
    for line in lines:
        text.append("| " + " | ".join(_value(line) if k == "accuracy" else _cell(line.get(k)) for k in keys) + " |")
    return text


def _order(line: Line) -> tuple[Any, ...]:
    method = line["method"]
    place = ORDER.index(method) if method in ORDER else len(ORDER)
    numbers = (float(line.get(k, 0)) for k in ("shards", "radius", "epsilon", "removed", "forgotten"))
    return (*numbers, place, line["preset"] == "exact")


def _name(line: Line) -> str:
    return line["method"] if line["method"] == "SISA" else f"{line['method']}, {line['preset']}"


def _setting(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in said.items() if v is not None)


def _value(line: Line) -> str:
    return f"{line['accuracy']:.1f} ± {line['std']:.1f}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return "" if value is None else str(value)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
