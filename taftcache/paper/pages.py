"""A comparison as files: Markdown with tables like the paper's, CSV with every figure and its setting, SVG plots."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from taftcache.names import counted
from taftcache.paper.claim import Claim, Subject, reached
from taftcache.paper.comparison import CompareReport, Figures
from taftcache.paper.findings import findings
from taftcache.paper.line import ASIDE, EARLY, NOT_RECORDED, STOPPED, ReportLine
from taftcache.paper.trial import CLOSER, HEAD_TOLERANCE
from taftcache.paper.uncomposed import EXACT, HEAD, HEADS
from taftcache.recipe_sections import SolverSpec
from taftcache.report.markdown import bullets, picture, section
from taftcache.report.paired import Verdict
from taftcache.report.plots import Point, curves, dots
from taftcache.report.tables import columns_of, comma_separated, markdown_table
from taftcache.report.write import write_bytes, write_json
from taftcache.stages.writing import check_replaced

# Report → what varies across its table's columns; the rest varies along the rows.
COLUMNS = {
    "table1": ("method",),
    "table2": ("shards", "method"),
    "table3": ("method", "preset"),
    "table7": ("method",),
    "figure1a": ("method", "preset"),
    "figure1b": ("method", "preset"),
    "figure2a": ("method",),
    "figure2b": ("method",),
    "figure2c": ("method",),
}
ORDER = ["NLFT-7", "TAFT-7", "NLFT-1", "TAFT-1", "FC", "Soup", "TAFT", HEADS, HEAD, EXACT]
BRACKETS = "Figures in brackets are the paper's: averages over seven datasets, with ViT-L/16."
VERDICTS: tuple[Verdict, ...] = ("holds", "within noise", "contradicted")
KEYS = ("preset", "method", "shards", "removed", "forgotten", "radius", "epsilon")


def check_pages(folder: Path, reports: Iterable[str]) -> None:
    """StoreWriteError if ``write_pages`` would replace files in ``folder`` with these reports that are no
    comparison's."""
    file, own = folder / "report.json", False
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_bytes()) if file.is_file() else None
        own = isinstance(found, dict) and {"reports", "spent", "recipe"} <= found.keys()
    written = re.compile(r"report\.(md|json)|({0})\.csv|(?=figure)({0})(-\d+)?\.svg".format("|".join(reports)))
    there = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    check_replaced(folder, filter(written.fullmatch, there), own=own)


def write_pages(report: CompareReport, folder: Path) -> list[Path]:
    """report.md, report.json, and for each table and figure a CSV file and its plots; the files in that order.

    Raises:
        StoreWriteError: files of these names are there, and are no comparison's.
    """
    check_pages(folder, [made.report for made in report.reports])
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "report.md", folder / "report.json"]
    write_json(files[1], report)  # first: by it a run that goes on after a kill knows the others as its own
    figures = {made.report: write_figures(made, report, folder) for made in report.reports}
    write_bytes(files[0], page(report, {name: [p.name for p in made[1:]] for name, made in figures.items()}).encode())
    return [*files, *(file for made in figures.values() for file in made)]


def write_figures(made: Figures, report: CompareReport, folder: Path) -> list[Path]:
    """Write the CSV file of a table or figure, and its plots, for a new report or one that was read."""
    file = folder / f"{made.report}.csv"
    write_bytes(file, every_figure(made, report).encode())
    return [file, *plot(made, folder)]


def page(report: CompareReport, plots: Mapping[str, Sequence[str]] | None = None) -> str:
    """The whole report in Markdown; ``plots`` are files in its folder, by report."""
    text = [
        f"# {report.backbone}: {report.rows} training and {report.held_out} held-out rows of {report.classes} classes",
        "",
    ]
    text += [*about(report), ""]
    for made in report.reports:
        text += section(made.title, figures(made))
        text += [line for name in (plots or {}).get(made.report, ()) for line in picture(made.title, name)]
    told = said({made.report: made.lines for made in report.reports})
    if any("[" in line for line in told):
        told = [BRACKETS, "", *told]
    text += section("What this says", told)
    return "\n".join(text)


def said(reports: Mapping[str, Sequence[ReportLine]]) -> list[str]:
    """What the figures say: a count of verdicts by subject, then each subject's claims as a table."""
    subjects = findings(reports)
    verdicts = [*VERDICTS, *([None] if any(not one.verdict for s in subjects for one in _claims(s)) else [])]
    counts = [
        [
            subject.title,
            *(str(sum(one.verdict == verdict for one in _claims(subject))) for verdict in verdicts),
            str(sum(bool(one.ends) for one in _claims(subject))),
        ]
        for subject in subjects
        if _claims(subject)
    ]
    heads = ["claims about", *(verdict or "no verdict" for verdict in verdicts), "chosen at the end of what was tried"]
    text = markdown_table(heads, counts) if counts else []
    for subject in subjects:
        text += ["", f"### {subject.title}", "", *_claims_table(_claims(subject))]
        sentences = [one for one in subject.said if isinstance(one, str)]
        text += [*([""] if _claims(subject) and sentences else []), *bullets(sentences)]
    return text


def _claims(subject: Subject) -> list[Claim]:
    return [one for one in subject.said if isinstance(one, Claim)]


def _claims_table(claims: Sequence[Claim]) -> list[str]:
    """One line for each claim; columns that are empty in all lines are left out."""
    if not claims:
        return []
    cells = {
        "claim": [one.what for one in claims],
        "verdict": [one.verdict or one.withheld for one in claims],
        "points ahead": [one.ahead for one in claims],
        "accuracy": [one.figures for one in claims],
        "cost": [one.costs for one in claims],
        "chosen at the end of what was tried": [one.ends for one in claims],
        "the paper's": [one.paper for one in claims],
    }
    filled = {name: column for name, column in cells.items() if any(column)}
    return markdown_table(list(filled), zip(*filled.values(), strict=True))


def about(report: CompareReport) -> list[str]:
    """Where and from what the figures were made."""
    lines = [line for made in report.reports for line in made.lines]
    used = {line.preset for line in lines}
    stores = ", ".join(f"`{name}` {digest}" for name, digest in report.digests.items())
    libraries = ", ".join(f"{name} {at}" for name, at in report.libraries.items())
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sorted(report.spent.items()))
    alone = "; of one, ± 0.0 says nothing, and no interval is for other seeds" if report.seeds == 1 else ""
    ran = [*([report.date] if report.date else []), libraries]
    ran += [] if report.kept else [f"{report.seconds / 60:.1f} minutes"]
    kept = counted(report.kept, "model")
    return [
        "Top-1 accuracy in per cent on the held-out rows, mean ± standard deviation over"
        f" {counted(report.seeds, 'seed')} of the split and the base point{alone}. Settings were chosen on a fifth of"
        " the training rows of seed 0.",
        "",
        f"- ran on: {report.machine}; {'; '.join(ran)}",
        f"- stores and their root digests: {stores}",
        *(text for preset, text in _presets(report).items() if preset in used),
        *_rsl(report, lines),
        *_at_the_end(report),
        *([f"- processor time, with the choice of settings: {spent}"] if spent else []),
        *([f"- kept from earlier runs, with the seconds of their machines: {kept}"] if report.kept else []),
        "- settings that share a run over the rows, like the paper's rates and the radii of a ball, show their mean"
        " seconds",
        *(f"- {note}" for note in report.notes),
    ]


def _at_the_end(report: CompareReport) -> list[str]:
    """For each end of the λ or rates tried, a line with the methods whose best one lies there."""
    by_end: dict[str, dict[tuple[str, Any], set[int]]] = {}
    for tuned in (tuned for made in report.reports for tuned in made.settings):
        if end := tuned.end:
            by_end.setdefault(end, {}).setdefault((tuned.method, tuned.chosen.get("loss")), set()).add(tuned.shards)
    return [
        f"- {what} of {', '.join(names)} is the {end} that was tried; another may be better"
        for (end, what), names in (
            (end.split(), [_whose(*of) for of in found.items()]) for end, found in by_end.items()
        )
    ]


def _whose(of: tuple[str, Any], shards: set[int]) -> str:
    """A method, with its loss and its numbers of shards if it has any."""
    method, loss = of
    *others, most = sorted(shards)
    return f"{method} ({loss}, {''.join(f'{n}, ' for n in others)}{counted(most, 'shard')})" if loss else method


def _presets(report: CompareReport) -> dict[str, str]:
    """What each preset means, according to its lines."""
    spec, solver = report.recipe["compare"], report.recipe["solver"]
    heads, relative = _numbers(spec["head_ridges"]), msgspec.convert(solver, SolverSpec).relative
    return {
        "paper": f"- preset `paper`: Adam, {counted(spec['epochs'], 'epoch')} in batches of {spec['batch']}, the rate"
        f" from {_numbers(spec['rates'])}, divided by ten after a half and five sixths of them, λ = {spec['decay']:g}"
        " for TAFT and FC alone",
        "exact": f"- preset `exact`: ‖∇F‖ ≤ τ ‖∇F(0)‖ in float64, or the line is marked as {STOPPED} (at most"
        f" {solver['max_passes']} passes); τ = {relative:g}; {CLOSER * relative:g} if CLS = T and for cross-entropy"
        f" without a ball; {min(HEAD_TOLERANCE, relative):g} for a head; λ from {_numbers(spec['ridges'])} (for a"
        f" head alone, {heads}), chosen by the loss on rows set aside; PT and CLS by accuracy there",
        "tangent": _private(report),
    }


def _rsl(report: CompareReport, made: Sequence[ReportLine]) -> list[str]:
    """α, if a line has it."""
    alpha = report.recipe["objective"]["alpha"]
    # Older reports have the recipe's word; comparisons have taken 1 for it ever since it may be said.
    said = f"1 (the recipe says {alpha!r}, which a comparison takes as 1)" if isinstance(alpha, str) else f"{alpha:g}"
    return [f"- α of RSL: {said}"] if any(line.setting.get("loss") == "rsl" for line in made) else []


def _private(report: CompareReport) -> str:
    """What both networks of Table 3 are trained with, besides each line's own setting."""
    spec = report.recipe.get("privacy")
    if spec is None:
        return f"- private training: steps, clip, loss, logits and relation are {NOT_RECORDED}"
    return (
        f"- private training: {spec['mechanism']} of {counted(spec['steps'], 'step')}, {spec['clipping']} at"
        f" {spec['clip']:g}, momentum {spec['momentum']:g}, loss {spec['loss']}, logits {spec['logits']}, neighbours"
        f" {spec['relation']}, δ = {spec['delta']:g}"
    )


def figures(made: Figures) -> list[str]:
    """A report's table, and the setting behind each figure."""
    # Lines with the same setting have the same text, which is shown once.
    costs = made.report in COLUMNS and not made.report.startswith("figure1")
    settings = dict.fromkeys(_origin(line, costs) for line in sorted(made.lines, key=_order))
    return [*table(made), "", "<details><summary>settings</summary>", "", *bullets(settings), "", "</details>"]


def table(made: Figures, lines: Sequence[ReportLine] | None = None) -> list[str]:
    """A report's table, or some lines of it."""
    lines = sorted(made.lines if lines is None else lines, key=_order)
    columns = COLUMNS.get(made.report)
    text = _pivot(lines, columns) if columns else _plain(lines)
    return [*text, "", EARLY] if any(line.stopped for line in lines) else text


def _origin(line: ReportLine, costs: bool) -> str:
    """What a line belongs to, its setting, its proof, and its cost if the table does not have that."""
    where = ", ".join([line.preset, line.method, *([] if line.shards is None else [f"shards {line.shards}"])])
    where += f", R = {line.radius:g}" if line.radius is not None else ""
    cost = f"; {line.seconds:.1f} s" if costs and line.seconds is not None else ""
    cost += " (mean over the radii)" if cost and line.radius is not None else ""
    cost += f", {counted(round(line.passes), 'pass')}" if cost and line.passes is not None else ""
    proof = f"; {reached(line)}{f', {STOPPED}' if line.stopped else ''}" if line.gradient is not None else ""
    return f"{where}: {_setting(line.setting)}{cost}{proof}"


def every_figure(made: Figures, report: CompareReport) -> str:
    """CSV, one row for each figure: keys, depth, accuracy, cost, proof, setting, and its store's digest."""
    return comma_separated([_row(line, report) for line in made.lines])


def _row(line: ReportLine, report: CompareReport) -> dict[str, Any]:
    own = Path(report.store).name
    solved = ("gradient", "tolerance", "converged") if line.preset == "exact" else ()
    return {
        "method": line.method,
        "preset": line.preset,
        "depth": report.recipe["tangent"]["blocks"],
        **dict.fromkeys(solved, NOT_RECORDED),
        **line.figures(),
        **{f"setting.{k}": v for k, v in line.setting.items()},
        "digest": report.digests[own if line.depth is None else f"{own}-{line.depth}"],
    }


def plot(made: Figures, folder: Path) -> list[Path]:
    """The plots of a figure, with one standard deviation over the seeds; none for a table.

    A star marks names with lines that stopped early, as the axis explains.
    """
    accuracy = "accuracy, per cent" + f" (*: {STOPPED})" * any(line.stopped for line in made.lines)
    if made.report in ("figure1a", "figure1b"):
        return [
            curves(
                folder / f"{made.report}-{shards}.svg",
                "shards removed",
                accuracy,
                *_subtracted([line for line in made.lines if line.shards == shards]),
                title=f"{shards} shards",
            )
            for shards in sorted({line.shards or 1 for line in made.lines})
        ]
    file = folder / f"{made.report}.svg"
    if made.report == "figure1c":
        return [curves(file, "per cent of the rows forgotten", accuracy, *_forgotten(made.lines))]
    if made.report.startswith("figure2"):
        methods = list(dict.fromkeys(line.method for line in made.lines))
        ordered = sorted(made.lines, key=lambda line: methods.index(line.method))
        names = _starred(ordered, _name)
        values = {names[_name(line)]: (line.accuracy, line.std) for line in ordered}
        return [dots(file, accuracy, values, {names[_name(line)]: line.preset for line in ordered})]
    return []


Curves = tuple[dict[str, list[Point]], dict[str, str]]


def _subtracted(lines: Sequence[ReportLine]) -> Curves:
    """Accuracy over the number of shards removed; SISA last, so that the others keep their colours of Figure 1a."""
    shown: dict[str, list[Point]] = {}
    families: dict[str, str] = {}
    names = _starred(lines, _name)
    for line in sorted(lines, key=lambda line: (line.method != "TAFT", line.method == "SISA", line.preset != "paper")):
        name = names[_name(line)]
        shown.setdefault(name, []).append((float(line.removed or 0), line.accuracy, line.std))
        families[name] = line.method
    return shown, families


def _forgotten(lines: Sequence[ReportLine]) -> Curves:
    """Accuracy over the part of the rows that was forgotten, for every number of shards and for one shard."""
    shown: dict[str, list[Point]] = {}
    families: dict[str, str] = {}
    names = _starred(lines, _of_shards)
    for line in sorted(lines, key=lambda line: line.shards or 1):
        name = names[_of_shards(line)]
        shown.setdefault(name, []).append((100 * (line.forgotten or 0.0), line.accuracy, line.std))
        families[name] = f"{line.shards} shards"
    for line in lines:
        at, name = 100 * (line.forgotten or 0.0), f"1 shard, {line.preset}"  # from scratch; a longer name has no room
        whole = shown.setdefault(name, [])
        if line.from_scratch is not None and all(x != at for x, *_ in whole):
            whole.append((at, line.from_scratch, 0.0))
        families[name] = "1 shard"
    return shown, families


def _pivot(lines: Sequence[ReportLine], columns: Sequence[str]) -> list[str]:
    rest = [k for k in KEYS if k not in columns and any(k in line.figures() for line in lines)]
    heads = list(dict.fromkeys(_values(line, columns) for line in lines))
    rows: dict[tuple[Any, ...], dict[Any, str]] = {}
    for line in lines:
        rows.setdefault(_values(line, rest), {})[_values(line, columns)] = line.spread()
    names = [
        ", ".join(f"{v} shards" if k == "shards" else str(v) for k, v in zip(columns, head, strict=True) if v)
        for head in heads
    ]
    table = ([*map(_cell, at), *(cells.get(head, "") for head in heads)] for at, cells in rows.items())
    return markdown_table([*rest, *names], table)


def _plain(lines: Sequence[ReportLine]) -> list[str]:
    keys = [k for k in columns_of([line.figures() for line in lines]) if k not in ("std", *ASIDE)]
    rows = [[line.spread() if k == "accuracy" else _cell(getattr(line, k)) for k in keys] for line in lines]
    heads = [k.replace("_", " ") for k in keys]
    if "times_faster" in keys:
        heads[keys.index("times_faster")] += ", one shard"
        heads.append("times faster, all shards")
        rows = [[*row, _cell(line.all_times_faster)] for row, line in zip(rows, lines, strict=True)]
    return markdown_table(heads, rows)


def _values(line: ReportLine, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(line, key) for key in keys)


def _order(line: ReportLine) -> tuple[Any, ...]:
    place = ORDER.index(line.method) if line.method in ORDER else len(ORDER)
    last = 0 if line.shards is not None or line.method not in (EXACT, HEAD) else inf  # they have no number of shards
    numbers = (line.shards or last, line.radius, line.epsilon, line.removed, line.forgotten)
    return (*(float(number or 0) for number in numbers), place, line.preset == "exact")


def _name(line: ReportLine) -> str:
    return line.method if line.method in ("SISA", EXACT, HEAD, HEADS) else f"{line.method}, {line.preset}"


def _of_shards(line: ReportLine) -> str:
    return f"{line.shards} shards, {line.preset}"


def _starred(lines: Sequence[ReportLine], name: Callable[[ReportLine], str]) -> dict[str, str]:
    """Each name as a plot shows it: with a star if one of its lines stopped early."""
    stopped = {name(line) for line in lines if line.stopped}
    return {one: one + "*" * (one in stopped) for one in map(name, lines)}


def _setting(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in setting.items() if v is not None)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return "" if value is None else str(value)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
