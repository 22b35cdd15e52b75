"""Comparisons, private training with a choice, and teaching.

What needs torch is imported inside a command, so that the others start at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import taftcache
from taftcache.cli.options import (
    Device,
    Json,
    Overrides,
    RecipePath,
    StorePath,
    device_override,
    print_report,
    read_recipe,
    round_alike,
    stored_recipe,
)
from taftcache.stages.writing import writable
from taftcache.teaching.recipe import load_teaching
from taftcache.terminal.console import bars, complain
from taftcache.terminal.experiments import show_compare, show_private_table, show_teach, show_train_private

if TYPE_CHECKING:
    from taftcache.paper.comparison import CompareReport

commands = typer.Typer()


@commands.command()
def tune(
    store: StorePath,
    rate: Annotated[
        list[float] | None, typer.Option("--rate", help="a multiple of the learning rate to try (repeatable)")
    ] = None,
    uncharged: Annotated[
        bool, typer.Option("--uncharged", help="each trial spends all of epsilon; the component says so")
    ] = False,
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """Private training with several learning rates, of which held-out rows choose one. All trials share epsilon.

    Example: taftcache tune stores/quickstart --rate 0.3 --rate 1 --set privacy.steps=3
    """
    round_alike()
    with taftcache.FeatureStore(store, mode="a") as opened, bars(as_json) as progress:
        recipe = stored_recipe(opened, set_)
        report = taftcache.train_private(
            opened, recipe, progress=progress, rates=rate or [0.3, 1.0, 3.0], charged=not uncharged
        )
        taftcache.compose(opened, recipe)
    print_report(report, as_json, show_train_private)


@commands.command()
def private_table(
    store: StorePath,
    epsilon: Annotated[list[float] | None, typer.Option("--epsilon", help="1, 3 and 8 by default (repeatable)")] = None,
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="of the base point; 0, 1 and 2 by default (repeatable)")
    ] = None,
    regime: Annotated[
        list[str] | None, typer.Option("--regime", help="full, bitfit, layernorm or head; all by default (repeatable)")
    ] = None,
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """The paper's Table 3: private fine-tuning of the tangent model beside the network's own. Writes no model.

    Example: taftcache private-table stores/quickstart --epsilon 3 --seed 0 --regime head
    """
    from taftcache.paper.private_table import REGIMES

    round_alike()
    with taftcache.FeatureStore(store) as opened, bars(as_json) as progress:
        recipe = stored_recipe(opened, set_)
        report = taftcache.private_table(
            opened,
            recipe,
            epsilons=epsilon or (1.0, 3.0, 8.0),
            seeds=seed or (0, 1, 2),
            regimes=regime or REGIMES,
            progress=progress,
        )
    print_report(report, as_json, show_private_table)


@commands.command()
def compare(
    recipe: RecipePath,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="write report.md, report.json, CSV and SVG there; keep models in FOLDER/models",
        ),
    ] = None,
    report: Annotated[
        list[str] | None, typer.Option("--report", help="table1, figure2a, …; the recipe's by default (repeatable)")
    ] = None,
    set_: Overrides = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """The paper's tables and figures on the recipe's data, all from one cache; what they share is trained once.

    Table 1 (depth), 2 (soup), 3 (privacy), 7 (balls), Figure 1a to c (forgetting) and 2a to c (loss, PT, CLS), with the
    paper's optimiser and grids beside the certified optimum. The store stays as it is. With --out each report is written
    as it is made and trained models stay, so that the same command goes on where it was.

    Example: taftcache compare pipelines/quickstart.toml --report table2 --set compare.shards=[20] --set compare.epochs=1 --set compare.seeds=1
    """  # noqa: E501
    from taftcache.paper.pages import write_pages
    from taftcache.report.plots import check_plots

    if out is not None:
        check_plots()
        writable(out, folder=True, again=True)
    named = [f"compare.reports={list(report)}"] if report else []

    def write(so_far: CompareReport) -> None:
        if out is not None:
            write_pages(so_far, out)

    with bars(as_json) as progress:
        made = taftcache.compare(
            read_recipe(recipe, [*(set_ or []), *named], device), progress, write, out / "models" if out else None
        )
    print_report(made, as_json, show_compare)


@commands.command()
def teach(recipe: RecipePath, set_: Overrides = None, device: Device = None, as_json: Json = False) -> None:
    """Train a small model from images with a prior from cached features of others, and report what the prior did.

    Students are kept: the same command goes on where it was, and trains nothing twice. The recipe is of its own kind,
    see docs/teaching.md.

    Example: taftcache teach pipelines/teach/quick.toml
    """
    made = load_teaching(recipe, [*(set_ or []), *device_override(device)])
    with bars(as_json) as progress:
        report = taftcache.teach(made, progress)
    print_report(report, as_json, show_teach)


@commands.command(hidden=True)
def transfer(recipe: RecipePath, set_: Overrides = None, device: Device = None, as_json: Json = False) -> None:
    """The old name of ``taftcache teach``."""
    complain("taftcache transfer is now called taftcache teach")
    teach(recipe, set_, device, as_json)
