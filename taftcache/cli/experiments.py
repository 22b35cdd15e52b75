"""Comparisons and teaching.

What needs torch is imported inside a command, so that the others start at once.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

import typer

import taftcache
from taftcache.cli.options import (
    Device,
    Either,
    Json,
    Overrides,
    RecipePath,
    device_override,
    print_report,
    read_either,
)
from taftcache.recipe_sections import Report
from taftcache.rounding import round_rows_alike
from taftcache.stages.writing import alone, writable
from taftcache.teaching.recipe import load_teaching
from taftcache.terminal.console import bars

REPORTS = f"[{'|'.join(get_args(Report))}]"
commands = typer.Typer()


@commands.command()
def compare(
    target: Either,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="write report.md, report.json, CSV and SVG there; keep models in FOLDER/models",
        ),
    ] = None,
    report: Annotated[
        list[str] | None,
        typer.Option("--report", metavar=REPORTS, help="default: the recipe's, or table2 (repeatable)"),
    ] = None,
    set_: Overrides = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Make the paper's tables and figures on any data.

    Tables 1 (depth), 2 (soup), 3 (privacy), 7 (balls), Figures 1a to c (forgetting) and 2a to c (loss, PT, CLS), with
    the paper's optimiser and grids beside the certified optimum. Uses one cache per depth, and trains only once what
    they share. An existing store will do in place of a recipe, and stays as it is. With --output, each report is
    written as soon as it is made and trained models are kept, so the same command resumes where it left off.

    Example: taftcache compare quickstart --report table2 --set compare.shards=[20] --set compare.epochs=1 --set compare.seeds=1
    """  # noqa: E501
    from taftcache.paper.comparison import USUAL, check_read
    from taftcache.paper.pages import check_pages, write_pages
    from taftcache.report.plots import check_plots

    if out is not None:
        check_plots()
        writable(out, folder=True, again=True)
    named = [f"compare.reports={list(report)}"] if report else []
    recipe, _ = read_either("compare", target, [*(set_ or []), *named], device, opens=("images", "weights"))
    check_read(recipe, set_ or [])
    if out is not None:
        check_pages(out, recipe.compare.reports or USUAL)
    if "table3" in recipe.compare.reports:
        round_rows_alike(every_shape=True)
    done, keep = (partial(write_pages, folder=out), out / "models") if out is not None else (None, None)
    with nullcontext() if out is None else alone(out), bars(as_json) as progress:
        made = taftcache.compare(recipe, progress=progress, done=done, keep=keep)
    print_report(made, as_json)


@commands.command()
def teach(recipe: RecipePath, set_: Overrides = None, device: Device = None, as_json: Json = False) -> None:
    """Train a small model guided by features of larger ones.

    Trains from images, and reports what the guidance did. Students are kept: the same command resumes where it left
    off, and trains nothing twice. It has its own kind of recipe: see docs/teaching.md.

    Example: taftcache teach teach/quick
    """
    made = load_teaching(recipe, [*(set_ or []), *device_override(device)])
    with bars(as_json) as progress:
        report = taftcache.teach(made, progress=progress)
    print_report(report, as_json)
