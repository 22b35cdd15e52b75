"""The paper's Table 3 on any store: private training of the tangent model, compared with that of the network itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from torch import Tensor

from taftcache.paper.private_runs import Kind, PrivateRun, PrivateRuns, Regime
from taftcache.paper.trial import alpha_of
from taftcache.paper.workbench import Workbench
from taftcache.recipe import Recipe
from taftcache.stages.progress import Task

REGIMES: tuple[Regime, ...] = ("full", "bitfit", "layernorm", "head")
KINDS: tuple[Kind, ...] = ("tangent", "ordinary")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One regime, network and ε: held-out accuracy by seed of the base point, every run with fresh noise.

    run: what was chosen. figures: from the statement of the first seed's run. right: by seed, which held-out rows got
    their own class [n]. tried: the candidates, each with its accuracy in percent on the rows set aside for the choice.
    """

    run: PrivateRun
    figures: dict[str, Any]
    right: list[Tensor]
    tried: list[tuple[PrivateRun, float]]


def private_cells(work: Workbench) -> list[Cell]:
    """Train every cell on all training rows and test it on the held-out ones; the store is never written to.

    Both networks start alike, as ``privacy.logits`` says ("tangent": with the head at zero). They choose from the same
    settings, by accuracy on a fifth of the training rows of seed 0: first PT at the middle rate, then the rate. ε does
    not cover this choice. The head's regime is linear for either network, so it runs once, at the recipe's own PT. It
    also runs with least squares on noisy sufficient statistics, which has no rate. The table compares settings on the
    same rows, so it is not a private release of them.

    Raises:
        IdentityError: the store's rows are too reduced for another PT than the recipe's.
    """
    objective = msgspec.structs.replace(work.recipe.objective, alpha=alpha_of(work.recipe))
    recipe = msgspec.structs.replace(work.recipe, objective=objective)
    cells = {cell: _choices(cell, recipe) for cell in _cells(recipe)}
    searched = sum(len(r) + len(f) - 1 for r, f in cells.values() if len(r) * len(f) > 1)
    expected = searched + len(cells) * len(work.seeds())
    runs = PrivateRuns(work.store(), recipe, work.fits, work.progress, expected)
    with work.progress.task("private table", expected) as task:
        return [_cell(runs, task, cell, *choices, work.seeds()) for cell, choices in cells.items()]


def _cells(recipe: Recipe) -> Iterator[PrivateRun]:
    """The cells to fill, each with the settings that it begins with."""
    plain = recipe.privacy.mechanism
    for regime in REGIMES:
        for network in KINDS if regime != "head" else KINDS[:1]:
            for mechanism in (plain, "least-squares") if regime == "head" else (plain,):
                for epsilon in recipe.compare.epsilons:
                    yield PrivateRun(
                        regime=regime, network=network, mechanism=mechanism, epsilon=epsilon,
                        reset_block=recipe.tangent.reset_block,
                    )  # fmt: skip


def _choices(cell: PrivateRun, recipe: Recipe) -> tuple[Sequence[bool], Sequence[float]]:
    """PT and rates that a cell chooses from: the same for both networks."""
    rates = (1.0,) if cell.mechanism == "least-squares" else recipe.compare.private_rates
    return (recipe.tangent.reset_block,) if cell.regime == "head" else recipe.compare.resets, sorted(rates)


def _cell(
    runs: PrivateRuns,
    task: Task,
    cell: PrivateRun,
    resets: Sequence[bool],
    rates: Sequence[float],
    seeds: Sequence[int],
) -> Cell:
    """Choose, then train on all rows with every seed."""
    middle = rates[len(rates) // 2]
    tried: dict[PrivateRun, float] = {}

    def best(candidates: Sequence[PrivateRun]) -> PrivateRun:
        if len(resets) * len(rates) > 1:
            for one in candidates:
                if one not in tried:
                    tried[one] = runs(replace(one, validate=True), task).accuracy
        return max(candidates, key=lambda one: tried.get(one, 0.0))

    chosen = best([replace(cell, reset_block=reset, rate=middle) for reset in resets])
    chosen = best([replace(chosen, rate=rate) for rate in rates])
    made = [runs(replace(chosen, seed=seed), task) for seed in seeds]
    return Cell(run=chosen, figures=made[0].figures, right=[one.right for one in made], tried=list(tried.items()))
