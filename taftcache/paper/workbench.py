"""What the reports of one comparison share: stores by depth, trials, trained models, and the chosen settings."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.device import resolve_device
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError
from taftcache.paper.fits import Fits
from taftcache.paper.line import Tuned
from taftcache.paper.private_runs import check_promises
from taftcache.paper.trial import Fitted, Method, Preset, Setting, Trial, bases, percent
from taftcache.recipe import Recipe
from taftcache.stages.extract.extraction import extract
from taftcache.stages.progress import Progress
from taftcache.tangent.spec import TAIL

Criterion = Literal["TAFT", "NLFT", "FC", "Soup", "SISA"]
"""How a method is measured; the three for the network itself choose among the same fine-tuned shards."""

SPLIT = {"table2", "figure1a", "figure1b", "figure1c"}
"""Reports that split the rows into each of the numbers of shards."""

FIGURES = ("seconds", "passes", "gradient", "tolerance", "converged")
"""The fields of ``Fitted`` that are not tensors."""

Tried = dict[Setting, tuple[float, dict[str, Any]]]
"""Setting → what it is ranked by, and what a report shows for it."""


class Workbench:
    """Trains every model that the reports ask for once; settings are chosen on a fifth of seed 0's training rows.

    ``settings`` logs each choice with all that was tried, ``spent`` the processor seconds by method and preset.

    Args:
        keep: a folder in which models stay, for the same comparison to go on from; comparisons may share one.
    """

    def __init__(self, recipe: Recipe, progress: Progress, keep: Path | None = None) -> None:
        self.recipe, self.progress, self.spec = recipe, progress, recipe.compare
        self.fits = Fits(keep)
        self.settings: list[Tuned] = []
        self.spent: dict[str, float] = defaultdict(float)
        self._stack = ExitStack()
        self._stores: dict[Any, FeatureStore] = {}
        self._trials: dict[Any, Trial] = {}
        self._best: dict[Any, Setting] = {}
        self._counted: set[Any] = set()

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def depth(self) -> int | str:
        """The recipe's own depth, at which every report is made, except the deeper rows of Table 1."""
        return self.recipe.tangent.blocks

    def at(self, depth: int | str) -> Recipe:
        """The recipe for the last ``depth`` blocks: each depth has a store of its own."""
        if depth == self.depth:
            return self.recipe
        path = self.recipe.store_path
        return msgspec.structs.replace(
            self.recipe,
            tangent=msgspec.structs.replace(self.recipe.tangent, blocks=depth),
            store=msgspec.structs.replace(self.recipe.store, path=str(path.with_name(f"{path.name}-{depth}"))),
        )

    def store(self, depth: int | str | None = None) -> FeatureStore:
        """The store for a depth, extracted now if it is not there.

        Raises:
            StoreError: no held-out rows.
        """
        depth = self.depth if depth is None else depth
        if depth not in self._stores:
            recipe = self.at(depth)
            extract(recipe, progress=self.progress)
            store = self._stack.enter_context(FeatureStore(recipe.store_path))
            if store.held_out is None:
                raise StoreError(
                    f"a comparison needs held-out rows, but {store.path} has none",
                    do="extract with data.held_out or data.test",
                )
            self._stores[depth] = store
        return self._stores[depth]

    @property
    def digests(self) -> dict[str, str]:
        """Root digest of every store in use, by its folder's name."""
        return {Path(store.path).name: store.root_digest for store in self._stores.values()}

    @property
    def shards(self) -> dict[str, list[str]]:
        """Digests of the shards of every store in use, by its folder's name."""
        return {Path(s.path).name: [ref.digest for ref in s.manifest.shards] for s in self._stores.values()}

    def check(self, reports: Collection[str]) -> None:
        """Raise, before anything is trained, what would end one of these reports.

        Raises:
            RecipeError: a shard would have fewer than two rows, no row would remain, or no noise reaches an ε.
        """
        rows, spec = len(self.store().sample_ids()), self.spec
        if not SPLIT.isdisjoint(reports) and max(spec.shards) > rows // 2:
            raise RecipeError(
                f"{rows} rows are too few for {max(spec.shards)} shards, which need two rows each",
                do="lower compare.shards",
            )
        most = max(spec.forgotten, default=0.0)
        if "figure1c" in reports and round(most * rows) >= rows:
            raise RecipeError(f"compare.forgotten = {most:g} leaves none of {rows} rows", do="lower compare.forgotten")
        if "table3" in reports:
            check_promises(self.recipe)

    def tokens(self) -> tuple[bool, ...]:
        """CLS to choose from: the recipe's, if the cached rows have a class token."""
        whole = self.store().objects()[TAIL].meta.get("class_token", False)
        return self.spec.tokens if whole else (False,)

    def seeds(self) -> range:
        """The seeds of split and base point."""
        return range(self.spec.seeds)

    def trial(self, shards: int, seed: int, depth: int | str | None = None, validate: bool = False) -> Trial:
        """A split of the rows; the last two are kept, with what they hold of their test rows."""
        depth = self.depth if depth is None else depth
        key = (shards, seed, depth, validate)
        if key not in self._trials:
            while len(self._trials) >= 2:
                self._trials.pop(next(iter(self._trials)))
            self._trials[key] = Trial(self.store(depth), self.at(depth), shards, seed, validate=validate)
        return self._trials[key]

    def fit(
        self,
        settings: Sequence[Setting],
        shards: int,
        seed: int,
        depth: int | str | None = None,
        validate: bool = False,
        trial: Trial | None = None,
        parts: Sequence[Sequence[str]] | None = None,
        key: object = None,
    ) -> dict[Setting, Fitted]:
        """Models of a trial under every setting, including those from before.

        Args:
            trial, parts, key: another trial or other parts than the whole split, and a name for them.
        """
        depth = self.depth if depth is None else depth
        where = {"shards": shards, "seed": seed, "validate": validate, "part": key}
        keys = {s: {"setting": asdict(s), **where, **self._about(s, depth)} for s in settings}
        there = {s: held for s, k in keys.items() if (held := self.fits.get(k)) is not None}
        found = {s: Fitted(held["mean"], held["logits"], **figures) for s, (held, figures) in there.items()}
        missing = [s for s in settings if s not in found]
        if missing:
            trial = trial or self.trial(shards, seed, depth, validate)
            names = sorted({f"{s.method} {s.preset}" for s in missing})
            label = f"{', '.join(names)}: {len(missing)} settings, {shards} shards, seed {seed}"
            with self.progress.task(label + (", choosing" if validate else ""), None):
                made = trial.fit(missing, parts)
            made_from = [ref.digest for ref in self.store(depth).manifest.shards]
            for setting, fitted in made.items():
                figures = {name: getattr(fitted, name) for name in FIGURES}
                self.fits.put(keys[setting], {"mean": fitted.mean, "logits": fitted.logits}, figures, made_from)
            found |= made
        for setting, fitted in found.items():
            self._charge(setting, (depth, *where.values()), sum(fitted.seconds))
        return found

    def _charge(self, setting: Setting, where: tuple[Any, ...], seconds: float) -> None:
        """Count a fit's processor time once, however often reports ask for that fit."""
        if (setting, where) not in self._counted:
            self._counted.add((setting, where))
            self.spent[setting.method if setting.method == "NLFT" else f"{setting.method}, {setting.preset}"] += seconds

    def _about(self, setting: Setting, depth: int | str) -> dict[str, Any]:
        """What decides a setting's models besides the setting and the rows."""
        recipe, spec = self.at(depth), self.spec
        solved = setting.preset == "exact" and setting.method != "NLFT"
        how = recipe.solver if solved else {"epochs": spec.epochs, "batch": spec.batch, "decay": spec.decay}
        about = {"store": self.store(depth).root_digest, "alpha": recipe.objective.alpha, "tangent": recipe.tangent}
        device = resolve_device(recipe.device).type  # decides a model's last digits and its seconds
        about |= {} if device == "cpu" else {"device": device}
        about |= {"head": "zero"} if setting.from_zero else {}
        plain: dict[str, Any] = msgspec.to_builtins({**about, "how": how, "taftcache": version("taftcache")})
        return plain

    def one_model(self, setting: Setting, seed: int, ids: Sequence[str] | None = None, key: object = None) -> Fitted:
        """One model of all rows, as in Table 1; or of these ids, with ``key`` as a name for them."""
        parts = None if ids is None else [sorted(ids)]
        return self.fit([setting], 1, seed, parts=parts, key=key)[setting]

    def right(
        self, criterion: Criterion, trial: Trial, setting: Setting, fitted: Fitted, kept: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which test rows [n] the model that a criterion makes of some shards' models gets right."""
        if criterion == "Soup":
            return trial.soup(setting, fitted)
        if criterion == "SISA":
            return trial.sisa(fitted, kept)
        return trial.taft(fitted, kept)

    def tuned(
        self,
        criterion: Criterion,
        preset: Preset,
        shards: int = 1,
        depth: int | str | None = None,
        *,
        template: Setting | None = None,
        resets: Sequence[bool] | None = None,
        tokens: Sequence[bool] = (False,),
    ) -> Setting:
        """The best λ, rate, PT and CLS, by the criterion on rows set aside.

        Settings are compared by accuracy. The exact preset takes λ by the least mean loss, which is what
        ``ridge = "auto"`` means; one run over the rows gives it for every λ. Between base points a loss says little,
        because how far a composed model's logits fall short of κ depends on the point.

        Args:
            template: what an ablation fixes (loss, κ, R). resets, tokens: PT = F and CLS = T to choose from.
        """
        depth = self.depth if depth is None else depth
        resets = self.spec.resets if resets is None else resets
        method: Method = criterion if criterion == "TAFT" or criterion == "FC" else "NLFT"
        kappa = self.recipe.objective.kappa
        template = template or Setting(method, 0.0, loss=self.recipe.objective.loss, kappa=kappa)
        template = replace(template, method=method, preset=preset, strength=0.0)
        key = (criterion, shards, depth, template, tuple(resets), tuple(tokens))
        if key not in self._best:
            solved = preset == "exact" and method != "NLFT"
            strengths = self.spec.rates if not solved else (0.0,) if template.radius else self._ridges(template)
            grid = bases([replace(template, strength=one) for one in strengths], resets, tokens)
            if len(grid) == 1:
                tried: Tried = {grid[0]: (0.0, {})}  # nothing to choose from
            elif solved:
                tried = self._exact(template, shards, depth, resets, tokens)
            else:
                tried = self._paper(criterion, grid, shards, depth)
            best = max(tried, key=lambda setting: tried[setting][0])
            self._best[key] = best
            self.settings.append(
                Tuned(
                    method=criterion,
                    depth=depth,
                    shards=shards,
                    chosen=best.describe(),
                    tried=[{**s.describe(), **shown} for s, (_, shown) in tried.items()],
                )
            )
        return self._best[key]

    def _paper(self, criterion: Criterion, grid: Sequence[Setting], shards: int, depth: int | str) -> Tried:
        found = self.fit(grid, shards, 0, depth, validate=True)
        trial = self.trial(shards, 0, depth, validate=True)
        scores = {s: percent(self.right(criterion, trial, s, f, range(shards))) for s, f in found.items()}
        return {s: (scores[s], {"accuracy": round(scores[s], 2)}) for s in grid}

    def _exact(
        self, template: Setting, shards: int, depth: int | str, resets: Sequence[bool], tokens: Sequence[bool]
    ) -> Tried:
        tried: Tried = {}
        for at in bases([template], resets, tokens):
            if template.radius is not None:  # a ball has no λ
                made = self.fit([at], shards, 0, depth, validate=True)[at]
                accuracy = percent(self.trial(shards, 0, depth, validate=True).taft(made, range(shards)))
                tried[at] = (accuracy, {"accuracy": round(accuracy, 2)})
            else:
                path = self._path(at, shards, depth)
                least = min(loss for loss, _ in path)
                for ridge, (loss, accuracy) in zip(self._ridges(template), path, strict=True):
                    shown = {"loss": round(loss, 4), "accuracy": round(accuracy, 2)}
                    tried[replace(at, strength=ridge)] = (accuracy if loss <= least else -inf, shown)
        return tried

    def _ridges(self, at: Setting) -> tuple[float, ...]:
        """λ to choose from."""
        return self.spec.head_ridges if at.from_zero else self.spec.ridges

    def _path(self, at: Setting, shards: int, depth: int | str) -> list[tuple[float, float]]:
        """Mean loss and accuracy at each λ, on the rows set aside."""
        key = {"path": asdict(at), "shards": shards, "ridges": self._ridges(at), **self._about(at, depth)}
        known = self.fits.get(key)
        if known is None:
            begin = time.process_time()
            trial = self.trial(shards, 0, depth, validate=True)
            with self.progress.task(f"{at.method} exact, choosing: {shards} shards", None):
                path = trial.path(at, self._ridges(at))
            known = {}, {"path": path, "seconds": time.process_time() - begin}
            self.fits.put(key, *known)
        self._charge(at, ("path", shards, depth), known[1]["seconds"])
        return [(loss, accuracy) for loss, accuracy in known[1]["path"]]
