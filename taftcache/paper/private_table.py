"""The paper's Table 3 on any store: private training of the tangent model beside that of the network itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torch import Tensor

from taftcache.cache.opening import at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import StoreError
from taftcache.paper.fits import Fits
from taftcache.paper.private_runs import Kind, PrivateRun, PrivateRuns, Regime
from taftcache.recipe import Recipe, checked_recipe
from taftcache.stages.progress import Progress, Silent, Task

REGIMES: tuple[Regime, ...] = ("full", "bitfit", "layernorm", "head")
KINDS: tuple[Kind, ...] = ("tangent", "ordinary")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One regime, network and ε: held-out accuracy by seed of the base point, every run with fresh noise.

    run: what was chosen. figures: what the statement of the first seed's run says. right: by seed, which held-out rows
    got their own class [n]. tried: what was chosen from, each with its accuracy in percent on the rows that were set
    aside for that.
    """

    run: PrivateRun
    figures: dict[str, Any]
    right: list[Tensor]
    tried: list[tuple[PrivateRun, float]]

    @property
    def accuracy(self) -> list[float]:
        """By seed."""
        return [float(seed.double().mean()) for seed in self.right]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return mean(self.accuracy)

    @property
    def std(self) -> float:
        """Over the seeds, with n − 1."""
        return stdev(self.accuracy) if len(self.accuracy) > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class PrivateTableReport:
    """All cells: by regime, network, mechanism and ε."""

    store: Path
    root_digest: str
    rows: int
    held_out: int
    cells: list[Cell]
    seconds: float


@at_its_place()
def private_table(
    store: FeatureStore,
    recipe: Recipe | None = None,
    *,
    epsilons: Sequence[float] = (1.0, 3.0, 8.0),
    seeds: Sequence[int] = (0, 1, 2),
    regimes: Sequence[Regime] = REGIMES,
    resets: Sequence[bool] = (False, True),
    rates: Sequence[float] = (0.3, 1.0, 3.0),
    progress: Progress | None = None,
    fits: Fits | None = None,
) -> PrivateTableReport:
    """Train every cell on all training rows and test it on the held-out ones; nothing is written to the store.

    Both networks start alike, as ``privacy.logits`` says ("tangent": with the head at zero), and choose from the same
    settings on a fifth of the training rows of seed 0, by accuracy: PT at the middle rate, then the rate. ε counts no
    such choice. The head's regime is linear whatever the network, so it runs once, at the recipe's own PT; beside plain
    descent it runs with least squares on noisy sufficient statistics, which has no rate. A table compares settings on
    the same rows: it is no private release of them.

    Args:
        resets: PT = F, to choose from. rates: multiples of the recipe's learning rate, to choose from.
        fits: runs from before, which are not run again; each new run is kept there.

    Raises:
        StoreError: the store has no held-out rows.
        IdentityError: its rows are too reduced for another PT than the recipe's.
    """
    progress = progress or Silent()
    begin = time.perf_counter()
    recipe = recorded_recipe(store) if recipe is None else checked_recipe(recipe)
    if store.held_out is None:
        raise StoreError(f"a table needs held-out rows, but {store.path} has none", do="extract with data.test")
    cells = list(_cells(recipe, regimes, epsilons))
    choices = {cell: _choices(cell, recipe, resets, rates) for cell in cells}
    searched = sum(len(r) + len(f) - 1 for r, f in choices.values() if len(r) * len(f) > 1)
    expected = searched + len(cells) * len(seeds)
    runs = PrivateRuns(store, recipe, fits or Fits(), progress, expected)
    with progress.task("private table", expected) as task:
        made = [_cell(runs, task, cell, *choices[cell], seeds) for cell in cells]
    return PrivateTableReport(
        store=store.path,
        root_digest=store.root_digest,
        rows=sum(shard.rows for shard in store.shards),
        held_out=store.held_out.rows,
        cells=made,
        seconds=time.perf_counter() - begin,
    )


def _cells(recipe: Recipe, regimes: Sequence[Regime], epsilons: Sequence[float]) -> Iterator[PrivateRun]:
    """What is to be filled, each with the settings that it begins with."""
    plain = recipe.privacy.mechanism
    for regime in regimes:
        for network in KINDS if regime != "head" else KINDS[:1]:
            for mechanism in (plain, "least-squares") if regime == "head" else (plain,):
                for epsilon in epsilons:
                    yield PrivateRun(
                        regime=regime, network=network, mechanism=mechanism, epsilon=epsilon,
                        reset_block=recipe.tangent.reset_block,
                    )  # fmt: skip


def _choices(
    cell: PrivateRun, recipe: Recipe, resets: Sequence[bool], rates: Sequence[float]
) -> tuple[Sequence[bool], Sequence[float]]:
    """PT and rates that a cell chooses from: the same for both networks."""
    if cell.mechanism == "least-squares":
        rates = (1.0,)
    return ((recipe.tangent.reset_block,) if cell.regime == "head" else tuple(resets)), sorted(rates)


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
