"""Write docs/results.md from reports of `taftcache compare … --out FOLDER`, which `--run` makes first.

python tools/make_results.py FOLDER [FOLDER …]
python tools/make_results.py --run [FOLDER] [--only single|composed|private] [--recipe FILE]
python tools/make_results.py --elsewhere [FOLDER …] [--check]

Reports of one store and backbone become one page; of a table or figure that is there twice the later one counts. Plots
and CSV files are drawn and written anew from each report.json, to docs/results/. With `--run` the three groups of
reports go to folders below FOLDER (stores/results by default), and models to FOLDER/models, so that the same command
goes on where it was. Groups can run side by side, a process each with its `--only`; the page is of all that are there
when one ends. `--elsewhere` writes docs/results-elsewhere.md instead: the same claims on data other than that page's. A
FOLDER holds a report of pipelines/paper-NAME.toml, which is kept in docs/results/NAME; the page is of all that are
kept. With `--check` it writes nothing, and exits 1 where the page is not what the kept reports make.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import taftcache
from taftcache.paper.claim import Claim
from taftcache.paper.comparison import TITLES, CompareReport, Figures
from taftcache.paper.findings import findings
from taftcache.paper.pages import about, figures, said, write_figures, write_pages
from taftcache.report.tables import markdown_table
from taftcache.terminal.console import bars

ROOT = Path(__file__).resolve().parent.parent
PAGE, FILES = ROOT / "docs" / "results.md", ROOT / "docs" / "results"
ELSEWHERE = ROOT / "docs" / "results-elsewhere.md"
# What shares models is one group: those of all rows, those of shards, and those that noise protects.
GROUPS = {
    "single": ("table1", "figure2b", "figure2c", "figure2a", "table7"),
    "composed": ("table2", "figure1a", "figure1b", "figure1c"),
    "private": ("table3",),
}


def main(words: Sequence[str] | None = None) -> None:
    """Make the reports, where that was asked for, and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", choices=GROUPS, action="append")
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--elsewhere", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(words)
    folders: list[Path] = asked.folders
    if asked.elsewhere:
        if asked.run or (asked.check and folders):
            parser.error("--elsewhere takes folders of reports, or --check alone")
        for folder in folders:
            keep(folder)
        text = elsewhere()
        if asked.check and text != ELSEWHERE.read_text(encoding="utf-8"):
            raise SystemExit(f"{ELSEWHERE.name} is not what the kept reports make")
        ELSEWHERE.write_text(text, encoding="utf-8")
        return
    if asked.run:
        if len(folders) > 1:
            parser.error("--run makes all reports in one folder")
        (place,) = folders or [ROOT / "stores" / "results"]
        for group in asked.only or GROUPS:
            run(place, group, asked.recipe)
        folders = [place / group for group in GROUPS if (place / group / "report.json").is_file()]
    elif not folders or asked.only or asked.recipe or asked.check:
        parser.error("give folders of reports, or --run")
    write(folders)


def run(place: Path, group: str, recipe: Path | None = None) -> None:
    """The reports of one group, each written as it is made; models stay in ``place / "models"``."""
    names = GROUPS[group]
    file = recipe or ROOT / "pipelines" / ("table3.toml" if group == "private" else "paper.toml")
    made = taftcache.load_recipe(file, [f"compare.reports={list(names)}"])
    with bars(False) as progress:
        taftcache.compare(made, progress, lambda so_far: write_pages(so_far, place / group), place / "models")


def write(folders: Sequence[Path]) -> None:
    """Write the page and the files beside it; nothing is computed."""
    runs = [read(folder) for folder in folders]
    for run in runs:
        for made in run.reports:
            write_figures(made, run, FILES)
    PAGE.write_text(page(runs), encoding="utf-8")


def keep(folder: Path) -> None:
    """A report of other data, with its figures, in the place of its name."""
    made = json.loads((folder / "report.json").read_text("utf-8"))
    place = FILES / name_of(made["store"])
    place.mkdir(parents=True, exist_ok=True)
    (place / "report.json").write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
    run = read(place)
    for figure in run.reports:
        write_figures(figure, run, place)


def name_of(store: str | Path) -> str:
    """NAME of pipelines/paper-NAME.toml, by its store."""
    return Path(store).name.removeprefix("paper-")


def elsewhere() -> str:
    """The page of other data."""
    runs = {name_of(run.store): run for run in map(read, sorted(file.parent for file in FILES.glob("*/report.json")))}
    text = [
        "# Results on other data",
        "",
        "The claims of [Results](results.md), asked of other data by `taftcache compare`, and written by"
        " `tools/make_results.py --elsewhere`. [How](paper.md#intervals-and-verdicts) intervals and verdicts are made."
        " The column *the paper's* has its averages over seven datasets with ViT-L/16.",
        "",
        *side_by_side(runs),
        "",
    ]
    for name, run in runs.items():
        text += [
            f"## {name}",
            "",
            f"{run.backbone}; {run.rows} training and {run.held_out} held-out images of {run.classes} classes."
            f" `taftcache compare paper-{name} --out FOLDER`",
            "",
            *said({made.report: made.lines for made in run.reports}),
            "",
        ]
        for made in run.reports:
            text += [f"### {made.title}", "", *figures(made), ""]
            text += [f"All figures with their settings: [{made.report}.csv](results/{name}/{made.report}.csv).", ""]
        text += ["### Where it ran", "", *about(run), ""]
    return "\n".join(text).rstrip() + "\n"


def side_by_side(runs: dict[str, CompareReport]) -> list[str]:
    """By how many points each claim is ahead, a column for each data set."""
    found: dict[str, dict[str, str]] = {}
    for name, run in runs.items():
        for subject in findings({made.report: made.lines for made in run.reports}):
            for one in subject.said:
                if isinstance(one, Claim) and one.verdict:
                    found.setdefault(one.what, {})[name] = f"{one.ahead}: {one.verdict}"
    return markdown_table(
        ["points ahead", *runs], ([what, *(of.get(name, "") for name in runs)] for what, of in found.items())
    )


def read(folder: Path) -> CompareReport:
    """The report of a folder."""
    kept = json.loads((folder / "report.json").read_text("utf-8"))
    return msgspec.convert(kept, CompareReport, dec_hook=lambda kind, value: kind(value))


def page(runs: list[CompareReport]) -> str:
    """The whole page."""
    first = runs[0]
    if any((r.digests.get(k, v), r.backbone) != (v, first.backbone) for r in runs for k, v in first.digests.items()):
        raise SystemExit("reports of one page come from one store")
    newest: dict[str, tuple[CompareReport, Figures]] = {
        made.report: (run, made) for run in runs for made in run.reports
    }
    there = [name for name in TITLES if name in newest]
    text = [
        "# Results",
        "",
        "The paper's tables and figures from one cache, written by `tools/make_results.py` from what"
        " `taftcache compare` measured. The column *the paper's*, and brackets elsewhere, have its averages over seven"
        " datasets with ViT-L/16; ours is another dataset and a far smaller network, so the pattern is to be"
        " compared, not the figures.",
        "",
        f"{first.backbone}; {first.rows} training and {first.held_out} held-out images of {first.classes} classes,"
        f" from `{first.recipe['data']['train']}`.",
        "",
        "## What the figures say",
        "",
        "Each claim with the 95 % interval of its difference, for other held-out rows and other seeds"
        " ([how](paper.md#intervals-and-verdicts)): it holds where the interval lies above zero, is contradicted where"
        " it lies below, and is within noise between.",
        "",
        *said({name: newest[name][1].lines for name in there}),
        "",
        *missing(there),
    ]
    for name in there:
        _, made = newest[name]
        text += [f"## {made.title}", "", *figures(made), ""]
        text += [f"![{made.title}](results/{f.name})\n" for f in sorted(FILES.glob(f"{name}*.svg"))]
        text += [
            f"All figures with their settings: [{name}.csv](results/{name}.csv). `{command(newest[name][0], name)}`",
            "",
        ]
    text += ["## Where it ran", ""]
    for run in runs:
        text += [f"**{', '.join(made.report for made in run.reports)}**", "", *about(run), ""]
    return "\n".join(text).rstrip() + "\n"


def missing(there: list[str]) -> list[str]:
    """What was not run."""
    names = [name for name in TITLES if name not in there]
    return [f"Not run for this page: {', '.join(names)}.", ""] if names else []


def command(run: CompareReport, name: str) -> str:
    """What makes one report again."""
    spec: dict[str, Any] = run.recipe["compare"]
    assert name in spec["reports"]
    return f"taftcache compare pipelines/{name}.toml --out FOLDER"


if __name__ == "__main__":
    main()
