"""The paper's comparisons, every method trained from the same cached rows and tuned over a grid of the same size."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taftcache.cache import FeatureStore
from taftcache.errors import RecipeError, StoreError
from taftcache.recipe import Recipe
from taftcache.stages.extraction import extract
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.trial import Fitted, Method, Setting, Trial

TITLES = {
    "table2": "Table 2: composed models, by the number of shards",
    "figure1a": "Figure 1a: shards subtracted from the composed tangent model",
    "figure1b": "Figure 1b: shards subtracted, against SISA",
    "figure1c": "Figure 1c: shards solved again without what was forgotten, against training from scratch",
}
# What is measured of a method; both nets' criteria choose among the same fine-tuned shards.
CRITERIA = {"TAFT": "TAFT", "Soup": "NLFT", "SISA": "NLFT"}


@dataclass(frozen=True)
class CompareReport:
    """One line a point: ``method``, ``shards``, what is ``removed``, accuracy in percent over ``seeds`` (mean, std).

    ``settings`` says what was chosen, on a fifth of the training rows of the first seed, for each method and number
    of shards, and ``tried`` the accuracy of every choice.
    """

    store: Path
    report: str
    title: str
    rows: int
    held_out: int
    seeds: int
    lines: list[dict[str, Any]]
    settings: list[dict[str, Any]]
    seconds: float
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The report as a page."""
        keys = list(dict.fromkeys(key for line in self.lines for key in line))
        text = [f"# {self.title}", "", f"{self.rows} training and {self.held_out} held-out rows, {self.seeds} seeds."]
        text += ["", "| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
        text += ["| " + " | ".join(_cell(line.get(key)) for key in keys) + " |" for line in self.lines]
        text += ["", "Chosen on a fifth of the training rows of seed 0:", ""]
        text += [f"- {s['method']}, {s['shards']} shards: {s['chosen']} of {s['tried']}" for s in self.settings]
        return "\n".join([*text, *(f"\n{note}" for note in self.notes)]) + "\n"


def compare(recipe: Recipe, progress: Progress | None = None) -> CompareReport:
    """Run the comparison that ``compare.report`` names; the features are extracted first where they are not there.

    Raises:
        StoreError: no held-out rows. RecipeError: more shards than rows.
    """
    begin = time.perf_counter()
    progress = progress or Silent()
    extract(recipe, progress)
    with FeatureStore(recipe.store_path) as store:
        if store.held_out is None:
            raise StoreError("a comparison needs held-out rows", got=f"{store.path} has none")
        spec = recipe.compare
        rows = len(store.sample_ids())
        if max(spec.shards) > rows // 2:
            raise RecipeError("a shard has two rows at least", got=f"{max(spec.shards)} shards of {rows} rows")
        work = _Comparison(store, recipe, progress)
        lines = list(getattr(work, spec.report)())
        return CompareReport(
            store.path, spec.report, TITLES[spec.report], rows, store.held_out.rows, spec.seeds,
            lines, work.settings, time.perf_counter() - begin, work.notes,
        )  # fmt: skip


class _Comparison:
    """The four reports over one store."""

    def __init__(self, store: FeatureStore, recipe: Recipe, progress: Progress) -> None:
        self.store, self.recipe, self.progress, self.spec = store, recipe, progress, recipe.compare
        self.settings: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._best: dict[tuple[str, int], Setting] = {}
        self._fits: dict[tuple[int, int, Setting], Fitted] = {}

    def table2(self) -> Iterator[dict[str, Any]]:
        """TAFT against Soup."""
        for shards in self.spec.shards:
            for method in ("TAFT", "Soup"):
                values = [self._composed(method, shards, trial, range(shards)) for trial in self._trials(shards)]
                yield {"method": method, "shards": shards, **_spread(values)}

    def figure1a(self) -> Iterator[dict[str, Any]]:
        """TAFT as shards are subtracted."""
        yield from self._subtracted(("TAFT",))

    def figure1b(self) -> Iterator[dict[str, Any]]:
        """TAFT and SISA as shards are subtracted, the same ones."""
        yield from self._subtracted(("TAFT", "SISA"))

    def figure1c(self) -> Iterator[dict[str, Any]]:
        """Rows forgotten uniformly; every shard solved again, against one model over all rows that remain."""
        for shards in self.spec.shards:
            setting = self._tuned("TAFT", shards)
            for fraction in (0.0, *self.spec.forgotten):
                found = defaultdict(list)
                for trial in self._trials(shards):
                    ids = [i for part in trial.parts for i in part]
                    gone = random.Random(trial.seed).sample(sorted(ids), round(fraction * len(ids)))
                    left = Trial(self.store, self.recipe, shards, trial.seed, without=gone)
                    fitted = self._fit(left, setting)
                    whole = self._fit(left, setting, [[i for part in left.parts for i in part]])
                    found["accuracy"].append(left.taft(fitted, range(shards)))
                    found["scratch"].append(left.taft(whole, [0]))
                    found["seconds"].append(statistics.mean(fitted.seconds))
                    found["seconds_scratch"].append(whole.seconds[0])
                yield {
                    "method": "TAFT", "shards": shards, "forgotten": fraction, **_spread(found["accuracy"]),
                    "from_scratch": statistics.mean(found["scratch"]),
                    "seconds_a_shard": statistics.mean(found["seconds"]),
                    "seconds_from_scratch": statistics.mean(found["seconds_scratch"]),
                }  # fmt: skip

    def _subtracted(self, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Accuracy after k shards are gone, the mean over random orders in which they go."""
        for shards in self.spec.shards:
            steps = sorted({round(k * shards / 10) for k in range(10)})
            values: dict[tuple[str, int], list[float]] = defaultdict(list)
            for trial in self._trials(shards):
                orders = [random.Random(n).sample(range(shards), shards) for n in range(self.spec.orders)]
                for method in methods:
                    for k in steps:
                        some = [self._composed(method, shards, trial, order[k:]) for order in orders]
                        values[method, k].append(statistics.mean(some))
            for (method, k), found in sorted(values.items(), key=lambda item: (item[0][1], item[0][0])):
                yield {"method": method, "shards": shards, "removed": k, **_spread(found)}

    def _trials(self, shards: int) -> Iterator[Trial]:
        for seed in range(self.spec.seeds):
            self._fits.clear()  # a trial's models serve all methods and subsets, and no other trial
            yield Trial(self.store, self.recipe, shards, seed)

    def _composed(self, method: str, shards: int, trial: Trial, kept: Sequence[int]) -> float:
        setting = self._tuned(method, shards)
        return self._measure(method, setting)(trial, self._fit(trial, setting), kept)

    def _measure(self, method: str, setting: Setting) -> Callable[[Trial, Fitted, Sequence[int]], float]:
        if method == "TAFT":
            return lambda trial, fitted, kept: trial.taft(fitted, kept)
        if method == "Soup":
            return lambda trial, fitted, kept: trial.soup(setting, fitted, kept)
        return lambda trial, fitted, kept: trial.sisa(fitted, kept)

    def _tuned(self, method: str, shards: int) -> Setting:
        """The best setting for a method and number of shards on validation rows of the first seed."""
        if (method, shards) not in self._best:
            kind: Method = "TAFT" if CRITERIA[method] == "TAFT" else "NLFT"
            strengths = self.spec.ridges if kind == "TAFT" else self.spec.rates
            grid = [Setting(kind, s, reset) for s in strengths for reset in self.spec.resets]
            trial = Trial(self.store, self.recipe, shards, 0, validate=True)
            tried = {}
            for setting in grid:
                fitted = self._fit(trial, setting, tuning=True)
                tried[setting] = self._measure(method, setting)(trial, fitted, range(shards))
            best = max(grid, key=lambda setting: tried[setting])
            self._best[method, shards] = best
            self.settings.append(
                {
                    "method": method,
                    "shards": shards,
                    "chosen": best.describe(),
                    "tried": [{**s.describe(), "accuracy": round(a, 2)} for s, a in tried.items()],
                }
            )
        return self._best[method, shards]

    def _fit(
        self,
        trial: Trial,
        setting: Setting,
        parts: Sequence[Sequence[str]] | None = None,
        tuning: bool = False,
    ) -> Fitted:
        key = (-1 if tuning else trial.seed, len(trial.parts), setting)
        remember = parts is None and self.spec.report != "figure1c"
        if remember and key in self._fits:
            return self._fits[key]
        label = f"{setting.method} {setting.strength:g}, {len(trial.parts)} shards, seed {trial.seed}"
        with self.progress.task(label, None):
            fitted = trial.fit(setting, parts)
        if remember:
            self._fits[key] = fitted
        return fitted


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"accuracy": statistics.mean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def _cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)
