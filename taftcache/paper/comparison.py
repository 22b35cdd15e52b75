"""The paper's tables and figures on any data: every method trained from the same cached rows and tuned alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from taftcache.errors import RecipeError
from taftcache.names import counted
from taftcache.paper import figures as paper_figures
from taftcache.paper import tables as paper_tables
from taftcache.paper.line import ASIDE, EARLY, ReportLine, Tuned, at_their_ends
from taftcache.paper.trial import alpha_of
from taftcache.paper.workbench import Workbench
from taftcache.recipe import Recipe, checked_recipe, recipe_values
from taftcache.rounding import processor
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report

TITLES = {
    "table1": "Table 1: fine-tuning by depth, and the head alone",
    "table2": "Table 2: composed models, by the number of shards",
    "table3": "Table 3: private fine-tuning, by what is trained",
    "table7": "Table 7: training in a ball of radius R",
    "figure1a": "Figure 1a: shards subtracted from the composed tangent model",
    "figure1b": "Figure 1b: shards subtracted, against SISA",
    "figure1c": "Figure 1c: shards solved again without what was forgotten, against training from scratch",
    "figure2a": "Figure 2a: the loss",
    "figure2b": "Figure 2b: the block as it was pre-trained (PT=T), or re-initialised (PT=F)",
    "figure2c": "Figure 2c: the class token as it comes (CLS=F), or a fresh one that is trained (CLS=T)",
}
USUAL = ("table2",)
SECTIONS = ("data", "backbone", "tangent", "objective", "solver", "privacy", "compare")  # that a report repeats
# Recipe keys that a comparison of models without noise sets itself, with the key of [compare] to use instead, if any.
OWN = {
    "tangent.class_token": "compare.tokens",
    "tangent.reset_block": "compare.resets",
    "tangent.seed": "compare.seeds",
    "objective.ridge": "compare.ridges",
    "objective.radius": "compare.radii",
    "objective.class_weights": "",
    "objective.jvp_only": "",
    "solver.method": "compare.presets",
    "solver.proof_passes": "",
    "solver.precision": "",
}
REPORTS: dict[str, Callable[[Workbench], Iterator[ReportLine]]] = {
    name: getattr(paper_tables if name.startswith("table") else paper_figures, name) for name in TITLES
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One table or figure.

    report: its name, such as "table1". title: in words. lines: one for each point. settings: what was chosen for it,
    and all that was tried. That was on a fifth of the training rows of seed 0. seconds: how long it took to make.
    """

    report: str
    title: str
    lines: list[ReportLine]
    settings: list[Tuned]
    seconds: float

    @property
    def early(self) -> str:
        """What to know about lines whose solves stopped early, if there are any."""
        return EARLY if any(line.stopped for line in self.lines) else ""

    @property
    def aside(self) -> tuple[str, ...]:
        """Figures of a line that a table has no room for."""
        return tuple(name for name in ASIDE if name != "converged" or not self.early)


@dataclass(frozen=True, kw_only=True)
class CompareReport(Report):
    """All reports of a comparison, and what they were made from and on.

    digests: root digest of every store read, by its folder. shards: digests of each store's shards, likewise. rows,
    held_out: training and held-out rows. classes: how many. backbone: the model's name. seeds: how many. reports: the
    tables and figures. spent: processor seconds by method and preset. Those for models left by an earlier run are
    included. seconds: of this run. machine: what it ran on, in words. libraries: their versions. recipe: the recipe, by
    section. kept: models of an earlier run that were used again. date: when it ended; empty in reports from before
    0.2.0.
    """

    store: Path
    digests: dict[str, str]
    shards: dict[str, list[str]]
    rows: int
    held_out: int
    classes: int
    backbone: str
    seeds: int
    reports: list[Figures]
    spent: dict[str, float]
    seconds: float
    machine: str
    libraries: dict[str, str]
    recipe: dict[str, Any]
    kept: int = 0
    date: str = ""
    notes: list[str] = field(default_factory=list)


def compare(
    recipe: Recipe,
    *,
    progress: Progress | bool | None = None,
    done: Callable[[CompareReport], object] | None = None,
    keep: Path | None = None,
) -> CompareReport:
    """Make every report that ``compare.reports`` names; features that are missing are extracted first.

    Args:
        done: called with what there is after each report, so that an interrupted comparison leaves the reports it
            finished.
        keep: a folder in which models are kept, so that the same comparison resumes where it stopped.

    Raises:
        FormatError: a damaged file in ``keep``.
        StoreError: no held-out rows. RecipeError: a recipe that trains less than the whole tail, or as in
            ``Workbench.check``.
        DataError: too few rows to set any aside.
    """
    begin, recipe = time.perf_counter(), checked_recipe(recipe)
    recorded = {name: recipe_values(recipe)[name] for name in SECTIONS}
    recorded["objective"]["alpha"] = alpha_of(recipe)
    _check_tail(recipe)
    with Workbench(recipe, or_silent(progress), keep) as work:
        store = work.store()
        assert store.held_out is not None
        made: list[Figures] = []
        notes, reports = unread(recipe), recipe.compare.reports or USUAL
        work.check(reports)
        for name in reports:
            start, known = time.perf_counter(), len(work.settings)
            lines = at_their_ends(list(REPORTS[name](work)), work.settings)
            made.append(
                Figures(
                    report=name,
                    title=TITLES[name],
                    lines=lines,
                    settings=work.settings[known:],
                    seconds=time.perf_counter() - start,
                )
            )
            report = CompareReport(
                store=store.path,
                digests=work.digests,
                shards=work.shards,
                rows=len(store.sample_ids()),
                held_out=store.held_out.rows,
                classes=len(store.classes),
                backbone=store.identity.get("backbone", {}).get("model", "imported features"),
                seeds=recipe.compare.seeds,
                reports=list(made),
                spent={owner: round(seconds, 1) for owner, seconds in work.spent.items()},
                seconds=time.perf_counter() - begin,
                machine=machine(),
                libraries={name: version(name) for name in ("taftcache", "torch", "timm")},
                recipe=recorded,
                kept=work.fits.found,
                date=time.strftime("%Y-%m-%d"),
                notes=notes,
            )
            if done is not None:
                done(report)
    return report


def _check_tail(recipe: Recipe) -> None:
    """RecipeError unless there is a tail, and all of it is trained."""
    tangent, features = recipe.tangent, recipe.backbone.features
    if tangent.blocks == 0:
        changed = ["tangent.blocks=1", *(["tangent.init=torch"] if tangent.init == "zero" else [])]
        changed += ['backbone.features="last"'] if features != "last" else []
        raise RecipeError(
            "there is no tangent model to compare: the recipe trains a head alone",
            got=f"tangent.blocks = 0 with backbone.features = {features!r}",
            do=f"{' '.join(f'--set {change}' for change in changed)} and another store.path (vectors have no tangent)",
        )
    if tangent.train != "full":
        raise RecipeError(
            f"a comparison needs all of the tail, but tangent.train is {tangent.train!r}",
            do='leave tangent.train at "full"',
        )


def _own(recipe: Recipe) -> dict[str, str]:
    """``OWN``; empty for the private table alone, which sets none of these keys."""
    return {} if set(recipe.compare.reports) == {"table3"} else OWN


def check_read(recipe: Recipe, overrides: Sequence[str]) -> None:
    """Raise RecipeError if an override sets a key that the recipe's reports do not read."""
    own = _own(recipe)
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in own:
            raise RecipeError(
                f"a comparison does not read {key}: it sets that itself",
                got=override,
                do=f"--set {own[key]}=…" if own[key] else "leave it out",
            )


def unread(recipe: Recipe) -> list[str]:
    """A note naming the keys that the recipe sets but no report reads."""
    values, usual = recipe_values(recipe), recipe_values(Recipe())
    names = [
        f"{key} ({instead} says it)" if instead else key
        for key, instead in _own(recipe).items()
        for section, name in (key.split("."),)
        if values[section][name] != usual[section][name]
    ]
    if not names:
        return []
    return [f"set in the recipe, but not read by a comparison: {', '.join(names)}"]


def machine() -> str:
    """What the comparison ran on, in words."""
    return f"{processor()}, {os.cpu_count()} CPU cores, {counted(torch.get_num_threads(), 'thread')} of torch"
