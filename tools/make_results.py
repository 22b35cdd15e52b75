"""Write docs/results.md and docs/results-elsewhere.md from what `taftcache compare` reported.

python tools/make_results.py [FOLDER …]
python tools/make_results.py --run [FOLDER] [--only single|composed|private]
python tools/make_results.py --check

A FOLDER is what `taftcache compare RECIPE -o FOLDER` wrote. Each of its tables and figures takes the place of the
one that is kept in docs/results/NAME, where NAME is that of its store without "paper-". Both pages, the plots and the
CSV files are made of what is kept; nothing is computed. docs/results.md has what pipelines/paper.toml and table3.toml
report, the other page has the rest. With `--run` those reports are made first, in three groups below FOLDER
(stores/results by default), with models in FOLDER/models, so that the same command goes on where it was. Groups can run
side by side, a process each with its `--only`. `--check` writes nothing, and exits 1 where a page is not what the kept
reports make.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

import taftcache
from taftcache.paper.claim import Claim
from taftcache.paper.comparison import TITLES, CompareReport, Figures
from taftcache.paper.findings import findings
from taftcache.paper.line import ReportLine, at_their_ends
from taftcache.paper.pages import about, said, table, write_figures, write_pages
from taftcache.recipe_sections import SolverSpec
from taftcache.report.tables import markdown_table
from taftcache.terminal.console import bars

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MAIN = "caltech101"  # whose reports are docs/results.md
# What shares models is one group: those of all rows, those of shards, and those that noise protects.
GROUPS = {
    "single": (ROOT / "pipelines" / "paper.toml", ("table1", "figure2b", "figure2c", "figure2a", "table7")),
    "composed": (ROOT / "pipelines" / "paper.toml", ("table2", "figure1a", "figure1b", "figure1c")),
    "private": (ROOT / "pipelines" / "table3.toml", ("table3",)),
}


CHOSEN = ("- rate of", "- λ of")  # an end of what was tried
CLAIMED = ("figure2a", "figure2b", "figure2c")  # all of whose figures stand with the claims
BEFORE = " --set compare.tokens=[false]"
ENDS = (
    "† The rate or λ of at least one of the two lies at the end of the list that was tried for it, as named under"
    " *Where it ran*, so a longer list may change the verdict. The rates are the paper's two; if the larger was chosen,"
    " one above it may be better: [an example](paper.md#two-presets)."
)


def main(words: Sequence[str] | None = None) -> None:
    """Make the reports, where that was asked for, keep them, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", choices=GROUPS, action="append")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(words)
    folders: list[Path] = asked.folders
    if asked.check:
        if asked.run or asked.only or folders:
            parser.error("--check stands alone")
        return check()
    if asked.only and not asked.run:
        parser.error("--only says which groups to --run")
    if asked.run:
        if len(folders) > 1:
            parser.error("--run makes all reports in one folder")
        (place,) = folders or [ROOT / "stores" / "results"]
        groups = asked.only or GROUPS
        for group in groups:
            run(place, group)
        folders = [place / group for group in groups]
    for folder in folders:
        keep(folder)
    write()


def run(place: Path, group: str) -> None:
    """The reports of one group, each written as it is made; models stay in ``place / "models"``."""
    recipe, names = GROUPS[group]
    made = taftcache.load_recipe(recipe, [f"compare.reports={list(names)}"])
    with bars(False) as progress:
        taftcache.compare(
            made, progress=progress, done=lambda so_far: write_pages(so_far, place / group), keep=place / "models"
        )


def keep(folder: Path) -> None:
    """Each table and figure of a folder's report, with what it was made from, in the place of its name."""
    report = json.loads((folder / "report.json").read_text("utf-8"))
    place = DOCS / "results" / Path(report["store"]).name.removeprefix("paper-")
    place.mkdir(parents=True, exist_ok=True)
    for made in report["reports"]:
        text = json.dumps({**report, "reports": [made]}, separators=(",", ":"))
        (place / f"{made['report']}.json").write_text(text + "\n", encoding="utf-8")


def kept() -> dict[str, list[CompareReport]]:
    """What is kept by name: tables and figures of one run as one report, in the order of the page."""
    found: dict[str, dict[bytes, CompareReport]] = {}
    for place in sorted((DOCS / "results").iterdir()):
        for file in (place / f"{name}.json" for name in TITLES):
            if not file.is_file():
                continue
            read = msgspec.convert(
                json.loads(file.read_text("utf-8")), CompareReport, dec_hook=lambda kind, value: kind(value)
            )
            read.reports[:] = [replace(made, lines=[known(line, read) for line in made.lines]) for made in read.reports]
            alone = replace(read, reports=[])
            of = found.setdefault(place.name, {}).setdefault(msgspec.json.encode(alone, enc_hook=str), alone)
            of.reports.extend(read.reports)
    return {name: with_ends(list(runs.values())) for name, runs in found.items()}


def known(line: ReportLine, report: CompareReport) -> ReportLine:
    """A line of a report of 0.1.0, which tells of some that they stopped early: a gradient above the recipe's own
    tolerance, the loosest of all, met none."""
    if line.converged is not None or line.gradient is None:
        return line
    above = line.gradient > msgspec.convert(report.recipe["solver"], SolverSpec).relative
    return msgspec.structs.replace(line, converged=False if above else None)


def with_ends(runs: list[CompareReport]) -> list[CompareReport]:
    """The same, each line with the end of what was tried that was chosen for it, in whichever of the reports."""
    choices = [tuned for run in runs for made in run.reports for tuned in made.settings]
    for run in runs:
        run.reports[:] = [replace(made, lines=at_their_ends(made.lines, choices)) for made in run.reports]
    return runs


def write() -> None:
    """Write both pages, and the files that they show."""
    runs = kept()
    for name, of in runs.items():
        for run in of:
            for made in run.reports:
                write_figures(made, run, DOCS / "results" / name)
    for file, text in pages(runs).items():
        (DOCS / file).write_text(text, encoding="utf-8")


def check() -> None:
    """Nothing where each page is what the kept reports make.

    Raises:
        SystemExit: one is not.
    """
    made = pages(kept())
    for page in sorted(DOCS.glob("results*.md")):  # of one that none of the kept reports makes, too
        if made.get(page.name) != page.read_text("utf-8"):
            raise SystemExit(f"docs/{page.name} is not what the kept reports make")


def pages(runs: dict[str, list[CompareReport]]) -> dict[str, str]:
    """Both pages by their files; one of which nothing is kept is left out."""
    others = {name: of for name, of in runs.items() if name != MAIN}
    presets = {line for run in runs.get(MAIN, ()) for line in about(run) if line.startswith("- preset")}
    made = {"results.md": here(runs[MAIN]) if MAIN in runs else [], "results-elsewhere.md": elsewhere(others, presets)}
    return {file: "\n".join(text).rstrip() + "\n" for file, text in made.items() if text}


def here(runs: list[CompareReport]) -> list[str]:
    """The page of the paper's tables and figures."""
    first, there = runs[0], every(runs)
    if any((r.digests.get(k, v), r.backbone) != (v, first.backbone) for r in runs for k, v in first.digests.items()):
        raise SystemExit("reports of one page come from one store")
    absent = [name for name in TITLES if name not in there]
    return [
        "# Results",
        "",
        "The paper's tables and figures from one cache. `tools/make_results.py` writes this page from what"
        " `taftcache compare` measured. The column *the paper's*, and brackets elsewhere, have the paper's averages"
        " over seven datasets with ViT-L/16, unless they say otherwise. We use another dataset and a far smaller"
        " network, so compare the pattern, not the figures.",
        "",
        f"{data(first)}, from `{first.recipe['data']['train']}`.",
        "",
        "## What the figures say",
        "",
        "Each claim has the 95 % interval of its difference, for other held-out rows and other seeds at the settings"
        " chosen on seed 0 ([how](paper.md#intervals-and-verdicts)): it holds if the interval lies above zero, is"
        " contradicted if it lies below, and is within noise otherwise. If a choice lies at the end of what was tried,"
        f" another may be better.{rates(lines(runs))}",
        "",
        *said(lines(runs)),
        "",
        *([f"Not run for this page: {', '.join(absent)}.", ""] if absent else []),
        *shown(MAIN, runs, "##", commands(runs)),
        *where(runs, "##", ends=False),
    ]


def rates(lines: Mapping[str, Sequence[ReportLine]]) -> str:
    """How many lines that the paper's preset trained took the larger of its rates; "" if none had a choice."""
    chose = [(name, line) for name, made in lines.items() for line in made if line.preset == "paper" and line.end]
    others = dict.fromkeys(
        f"{line.method} in {TITLES[name].partition(':')[0]}" for name, line in chose if line.end != "largest rate"
    )
    if not chose:
        return ""
    larger = sum(line.end == "largest rate" for _, line in chose)
    but = f" (not {', '.join(others)})" if others else ""
    return (
        f" Of the {len(chose)} lines of the preset `paper` here, {larger} took the larger of the paper's two"
        f" rates{but}, while exact models had seven λ."
    )


def elsewhere(others: dict[str, list[CompareReport]], presets: set[str]) -> list[str]:
    """The page of other data; ``presets``: what the page of the paper's tables says of these."""
    if not others:
        return []
    text = [
        "# Results on other data",
        "",
        "The claims of [Results](results.md), tested on other data with `taftcache compare`;"
        " `tools/make_results.py` writes this page. See [how intervals and verdicts are"
        " made](paper.md#intervals-and-verdicts). Unless stated otherwise, presets are"
        " [those of that page](results.md#where-it-ran).",
        "",
        *side_by_side(others),
        "",
    ]
    told = set(presets)
    for name, runs in others.items():
        how = f"`taftcache compare paper-{name} -o FOLDER`"
        without = any(map(chose_no_token, runs))
        how += f", Table 2 with `{BEFORE.strip()}`" if without else ""
        text += [f"## {name}", "", f"{data(runs[0])}. {how}", ""]
        if without and any(map(has_fresh_token, lines(runs).get("table1", ()))):
            text += [
                "Under `paper` the one model of all rows has CLS = T, which its shards could not choose; this explains"
                " part of its lead over composed TAFT.",
                "",
            ]
        text += [*shown(name, runs, "###", of=("table1", "table2")), *where(runs, "###", told)]
    return text


def has_fresh_token(line: ReportLine) -> bool:
    """Whether it is the paper's tangent model, and has a class token of its own."""
    return line.preset == "paper" and line.method.startswith("TAFT") and line.setting.get("CLS") == "T"


def side_by_side(others: dict[str, list[CompareReport]]) -> list[str]:
    """By how many points each claim is ahead, a column for each data set."""
    found: dict[str, dict[str, str]] = {}
    for name, runs in others.items():
        for subject in findings(lines(runs)):
            for one in subject.said:
                if isinstance(one, Claim):
                    end = " †" if one.ends else ""
                    found.setdefault(one.what, {})[name] = f"{one.ahead}: {one.verdict or one.withheld}{end}"
    table = markdown_table(
        ["points ahead", *others], ([what, *(of.get(name, "") for name in others)] for what, of in found.items())
    )
    return [*table, "", ENDS]


def every(runs: Sequence[CompareReport]) -> dict[str, Figures]:
    """All tables and figures by name, in the order of the page."""
    made = {one.report: one for run in runs for one in run.reports}
    return {name: made[name] for name in TITLES if name in made}


def lines(runs: Sequence[CompareReport]) -> dict[str, list[ReportLine]]:
    """Their lines by name."""
    return {name: made.lines for name, made in every(runs).items()}


def data(run: CompareReport) -> str:
    """Through which network, and how many rows."""
    return f"{run.backbone}; {run.rows} training and {run.held_out} held-out images of {run.classes} classes"


def commands(runs: Sequence[CompareReport]) -> dict[str, str]:
    """What makes each report of the page again, as ``--run`` does."""
    also = {made.report: BEFORE if chose_no_token(run) else "" for run in runs for made in run.reports}
    return {
        name: f"`taftcache compare {recipe.stem} --report {name}{also.get(name, '')} -o FOLDER`"
        for recipe, names in GROUPS.values()
        for name in names
    }


def chose_no_token(run: CompareReport) -> bool:
    """Whether its shards chose among CLS = F alone, as they did before they chose from ``compare.tokens``."""
    tried = {one.get("CLS") for made in run.reports for t in made.settings if t.shards > 1 for one in t.tried} - {None}
    return tried == {"F"} and True in run.recipe["compare"]["tokens"]


def shown(
    name: str,
    runs: Sequence[CompareReport],
    level: str,
    commands: Mapping[str, str] | None = None,
    of: Sequence[str] = (),
) -> list[str]:
    """Each table and figure with its plots, where all its figures are, and the command that makes it; ``of``: of these
    alone, others by a link."""
    text, others = [], []
    for report, made in every(runs).items():
        if of and report not in of:
            others.append(f"[{report}.csv](results/{name}/{report}.csv)")
            continue
        text += [f"{level} {made.title}", ""]
        if report == "figure1a" and "figure1b" in every(runs):
            text += ["Its lines are in the table of Figure 1b.", ""]
        elif report not in CLAIMED:
            text += [*table(made, some(made.lines)), ""]
        text += [f"![{made.title}{of_shards(f)}](results/{name}/{f.name})\n" for f in plots(name, report)]
        link = f"All figures with settings, seconds, passes and gradients: [{report}.csv](results/{name}/{report}.csv)."
        text += [f"{link} {(commands or {}).get(report, '')}".rstrip(), ""]
    return [*text, *([f"Also {', '.join(others)}.", ""] if others else [])]


def of_shards(plot: Path) -> str:
    """What tells a plot from the others of its figure: its number of shards, which its name ends with; else nothing."""
    shards = plot.stem.partition("-")[2]
    return f", {shards} shards" if shards else ""


def some(lines: Sequence[ReportLine]) -> list[ReportLine]:
    """Of each number of shards every third number that is removed, and the least and the largest part of the rows that
    is forgotten; all lines where none is."""
    parts = sorted({line.forgotten for line in lines if line.forgotten})
    lines = [line for line in lines if not parts or line.forgotten in (parts[0], parts[-1])]
    kept = {
        (shards, removed)
        for shards in {line.shards for line in lines}
        for removed in sorted({line.removed or 0 for line in lines if line.shards == shards})[::3]
    }
    return [line for line in lines if (line.shards, line.removed or 0) in kept]


def plots(name: str, report: str) -> list[Path]:
    """The plots of a table or figure."""
    return sorted((DOCS / "results" / name).glob(f"{report}*.svg"))


def where(runs: Sequence[CompareReport], level: str, told: set[str] | None = None, *, ends: bool = True) -> list[str]:
    """Where each run was; what is in ``told`` is not said again, but for choices at an end, with ``ends``."""
    text, told = [f"{level} Where it ran", ""], set() if told is None else told
    for run in runs:
        if len(runs) > 1:
            text += [f"**{', '.join(made.report for made in run.reports)}**", ""]
        new = [line for line in about(run) if line and line not in told and (ends or not line.startswith(CHOSEN))]
        text += [part for line in new for part in ([line] if line.startswith("- ") else [line, ""])] + [""]
        told |= {line for line in new if not line.startswith(CHOSEN)}  # those are of its own table
    return text


if __name__ == "__main__":
    main()
