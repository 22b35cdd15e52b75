"""Write docs/results.md from reports of `taftcache compare … --out FOLDER`.

python tools/make_results.py FOLDER [FOLDER …]

Reports of one store and backbone become one page; of a table or figure that is there twice the later one counts. Plots
and CSV files are copied to docs/results/.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from taftcache.paper.comparison import TITLES, CompareReport, Figures
from taftcache.paper.findings import findings
from taftcache.paper.pages import about, figures

ROOT = Path(__file__).resolve().parent.parent
PAGE, FILES = ROOT / "docs" / "results.md", ROOT / "docs" / "results"


def main(folders: list[str]) -> None:
    """Write the page and copy the files beside it."""
    runs = [read(Path(folder)) for folder in folders]
    FILES.mkdir(exist_ok=True)
    for folder in map(Path, folders):
        for file in [*folder.glob("*.svg"), *folder.glob("*.csv")]:
            shutil.copyfile(file, FILES / file.name)
    PAGE.write_text(page(runs), encoding="utf-8")


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
        " `taftcache compare` measured. In brackets beside each claim: the paper's averages over its seven datasets"
        " with ViT-L/16; ours is another dataset and a far smaller network, so the pattern is to be compared, not the"
        " figures.",
        "",
        f"{first.backbone}; {first.rows} training and {first.held_out} held-out images of {first.classes} classes,"
        f" from `{first.recipe['data']['train']}`.",
        "",
        "## What the figures say",
        "",
        *(f"- {line}" for line in findings({name: newest[name][1].lines for name in there})),
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
    """What was not run, or stands elsewhere."""
    names = [name for name in TITLES if name not in there and name != "table3"]
    text = [f"Not run for this page: {', '.join(names)}."] if names else []
    if "table3" not in there:
        text.append("Table 3, made one regime at a time: [Private training](privacy.md#the-papers-table-3).")
    return [" ".join(text), ""] if text else []


def command(run: CompareReport, name: str) -> str:
    """What makes one report again."""
    spec: dict[str, Any] = run.recipe["compare"]
    assert name in spec["reports"]
    return f"taftcache compare pipelines/{name}.toml --out FOLDER"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
