"""One trial of a comparison: the rows of a store split anew, and each shard's model by every method, from one cache."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.backbone.device import float64_device
from taftcache.baselines.fine_tuning import fine_tune, predict
from taftcache.baselines.schedule import Schedule
from taftcache.baselines.sisa import sisa
from taftcache.baselines.tangent_training import Run, train_tangents
from taftcache.cache.format.plan import assign, held_out
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError
from taftcache.model.component import read_base
from taftcache.objective.loss import Loss
from taftcache.objective.named import named_loss
from taftcache.objective.objective import Objective
from taftcache.recipe import Recipe
from taftcache.solve.choosing import ridge_path
from taftcache.solve.minimise import minimise, minimise_in_balls
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.solve.solution import Solution
from taftcache.stages.memory import memory_of
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource
from taftcache.tangent.spec import Train

Method = Literal["TAFT", "NLFT", "FC"]
Preset = Literal["paper", "exact"]
# A factor on the exact preset's tolerance where ∇F(0), which that is relative to, is too coarse a measure: a fresh
# token's LayerNorm multiplies its part of it by a thousand, and the few rows that cross-entropy tells apart last are a
# small part of it.
CLOSER = 0.1
HEAD_TOLERANCE = 1e-3  # of the exact preset's head: its passes cost next to nothing


@dataclass(frozen=True)
class Setting:
    """One way to train: what is tuned (λ or the learning rate, PT, CLS) and what an ablation changes.

    strength: the ridge of "exact", the learning rate of "paper" and of NLFT.
    reset_block: PT = F. reset_token: CLS = T. loss, kappa, radius: of the tangent models; a ball means no decay.
    """

    method: Method
    strength: float
    reset_block: bool = False
    preset: Preset = "exact"
    reset_token: bool = False
    loss: str = "rsl"
    kappa: float = 15.0
    radius: float | None = None

    @property
    def from_zero(self) -> bool:
        """Whether the head begins at zero, as linear models do in other tools: if it alone is solved for.

        A drawn head stays as drawn in directions that no row says anything about. In a shard with fewer rows than
        features these are most directions, and the drawn part is the same in every shard, so that a mean does not
        remove it: with 50 shards of Caltech-101 it cost 10 points.
        """
        return self.method == "FC" and self.preset == "exact"

    def tolerance(self, relative: float) -> float:
        """The exact preset's tolerance on ‖∇F‖/‖∇F(0)‖, given the ``relative`` one of the recipe's solver."""
        if self.reset_token or (self.loss == "cross_entropy" and not self.radius):
            relative *= CLOSER
        return min(relative, HEAD_TOLERANCE) if self.method == "FC" else relative

    def describe(self) -> dict[str, Any]:
        """For a report."""
        solved = self.preset == "exact"
        shown: dict[str, Any] = {"preset": self.preset, "ridge" if solved else "rate": self.strength}
        if self.method != "FC":
            shown |= {"PT": "F" if self.reset_block else "T", "CLS": "T" if self.reset_token else "F"}
        if self.method == "NLFT" or self.loss == "cross_entropy":
            shown |= {"loss": "cross_entropy"}
        else:
            shown |= {"loss": self.loss} if self.loss == "mse" else {"loss": self.loss, "kappa": self.kappa}
        if self.radius is not None:
            shown |= {"radius": self.radius}
            shown.pop("ridge", None)
        return shown


class Chosen(ArrayRows):
    """Some rows of a store, by id, in memory as they are stored."""

    def __init__(self, store: FeatureStore, ids: Sequence[str]) -> None:
        places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        shards: dict[int, Shard] = {}
        for place, (shard, row) in enumerate(store.locate(i) for i in ids):
            places[id(shard)].append((place, row))
            shards[id(shard)] = shard
        labels = np.empty(len(ids), np.int32)
        tokens: np.ndarray | None = None
        for key, shard in shards.items():
            at, rows = (np.array(column) for column in zip(*places[key], strict=True))
            order = np.argsort(rows)
            found = shard.tokens(rows[order])
            tokens = np.empty((len(ids), *found.shape[1:]), found.dtype) if tokens is None else tokens
            tokens[at[order]] = found
            labels[at] = np.asarray(shard.labels)[rows]
        assert tokens is not None
        super().__init__(tokens, labels)


@dataclass(frozen=True)
class Fitted:
    """Every shard's model: the mean Δw [P], logits on the test rows [m,n,K], seconds and passes by shard.

    seconds: processor time, or elapsed time if another device computes.

    gradient: the largest ‖∇F‖/‖∇F(0)‖ of the solves, in float64. tolerance: what was asked of it. converged: whether
        every solve met it. All three are None for what was not solved.
    """

    mean: Tensor
    logits: Tensor
    seconds: list[float]
    passes: list[int]
    gradient: float | None = None
    tolerance: float | None = None
    converged: bool | None = None


class Trial:
    """``shards`` uniform shards of the training rows for one ``seed``, which also draws the base point's head.

    Args:
        validate: set a fifth of the training rows aside as test rows, to choose settings on.
        without: ids that are left out; a shard with no rows left is dropped.

    Raises:
        DataError: no row is set aside, which may happen with few rows.
    """

    def __init__(
        self,
        store: FeatureStore,
        recipe: Recipe,
        shards: int,
        seed: int,
        *,
        validate: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        self.store, self.recipe, self.seed = store, recipe, seed
        self.device = float64_device(recipe.device)
        self._arithmetic = Arithmetic(memory=memory_of(recipe), device=self.device)
        ids = store.sample_ids()
        apart = held_out(ids, 0.2, 10**6 + seed, recipe.data.group_of) if validate else set()
        if validate and not apart:
            rows = f"{len(ids)} training rows"
            raise DataError("no row is set aside to choose settings on", got=rows, do="extract more rows")
        gone = {*apart, *without}
        parts = assign([i for i in ids if i not in apart], "balanced", shards, seed).values()
        self.parts = [kept for part in parts if (kept := [i for i in part if i not in gone])]
        self._apart = sorted(apart)
        self._tests: dict[tuple[Any, ...], Any] = {}

    @cached_property
    def test(self) -> RowSource:
        """The rows that accuracy is measured on."""
        if self._apart:
            return Chosen(self.store, self._apart)
        assert self.store.held_out is not None
        return self.store.held_out

    @cached_property
    def labels(self) -> Tensor:
        """Their classes [n]."""
        rows: Shard | Chosen = self.test  # type: ignore[assignment]
        return torch.from_numpy(np.array(rows.labels, np.int64))

    def base(self, setting: Setting) -> Base:
        """The base point for a setting and the trial's seed; with the head at zero if ``Setting.from_zero``."""
        spec = msgspec.structs.replace(
            self.recipe.tangent,
            seed=self.seed,
            reset_block=setting.reset_block,
            class_token="reset" if setting.reset_token else "keep",
        )
        if setting.from_zero:
            spec = msgspec.structs.replace(spec, train="head", init="zero")
        return read_base(self.store, spec)

    def fit(self, settings: Sequence[Setting], parts: Sequence[Sequence[str]] | None = None) -> dict[Setting, Fitted]:
        """A model for each shard (or for ``parts``) under every setting.

        Settings of the paper's schedule that share a base point are trained in one pass over the rows. Solves that
        differ only in R go on from each other, so within its tolerance a solve may depend on which others there are.
        """
        groups: dict[Any, list[Setting]] = defaultdict(list)
        for setting in sorted(settings, key=lambda s: s.radius or 0.0):
            alone = setting.preset == "exact" or setting.method == "NLFT"
            shared = (setting.method, setting.reset_block, setting.reset_token)
            groups[replace(setting, radius=setting.radius and 1.0) if alone else shared].append(setting)
        found: dict[Setting, Fitted] = {}
        parts = self.parts if parts is None else parts
        clock = time.process_time if self.device.type == "cpu" else time.perf_counter
        for group in groups.values():
            base, train = self.base(group[0]), self._train(group[0])
            total = torch.zeros(len(group), base.trained(train).size, dtype=torch.float64)
            logits: list[Tensor] = []
            seconds: list[float] = []
            passes: list[list[int]] = []
            solves: list[list[Solution]] = []
            for part in parts:
                rows = Chosen(self.store, part)
                begin = clock()
                deltas, took, solved = self._solve(base, group, rows)
                seconds.append((clock() - begin) / len(group))
                passes.append(took)
                solves.append(solved)
                total += deltas
                logits.append(self._logits(group[0], base, deltas))
            for k, setting in enumerate(group):
                made = (total[k] / len(parts), torch.stack([some[k] for some in logits]), seconds)
                found[setting] = Fitted(
                    *made, [took[k] for took in passes], **self._proof(setting, [some[k] for some in solves if some])
                )
        return found

    def _proof(self, setting: Setting, solves: Sequence[Solution]) -> dict[str, Any]:
        """How near to their optima the solves of all shards ended."""
        if not solves:
            return {}
        return {
            "gradient": max(one.certificate.relative_gradient for one in solves),
            "tolerance": setting.tolerance(self.recipe.solver.relative),
            "converged": all(one.converged for one in solves),
        }

    def path(self, setting: Setting, ridges: Sequence[float]) -> list[tuple[float, float]]:
        """Mean loss and accuracy of the composed model on the test rows, for every λ from one run per shard."""
        base, train = self.base(setting), self._train(setting)
        total: Tensor | None = None
        for part in self.parts:
            deltas = ridge_path(
                base, [Chosen(self.store, part)], Objective(loss=self.loss(setting), train=train), ridges,
                arithmetic=self._arithmetic,
            )  # fmt: skip
            total = torch.stack(deltas) if total is None else total + torch.stack(deltas)
        assert total is not None
        found = self._logits(setting, base, total / len(self.parts))
        loss = self.loss(setting)
        return [(loss.value(z.double(), self.labels).mean().item(), percent(self.right(z.argmax(1)))) for z in found]

    def loss(self, setting: Setting) -> Loss:
        """ℓ of a setting's tangent models."""
        return named_loss(setting.loss, alpha_of(self.recipe), setting.kappa)

    def _train(self, setting: Setting) -> Train:
        return "head" if setting.method == "FC" else self.recipe.tangent.train

    def _solve(self, base: Base, group: Sequence[Setting], rows: Chosen) -> tuple[Tensor, list[int], list[Solution]]:
        """Δw [settings,P] in host memory, the passes over the rows for each, and the solves, if any."""
        first, recipe, spec = group[0], self.recipe, self.recipe.compare
        train = self._train(first)
        schedule = Schedule(first.strength, spec.epochs, spec.batch)
        if first.method == "NLFT":
            delta = fine_tune(base, [rows], schedule, train=train, seed=self.seed, device=self.device)
            return delta[None].cpu(), [spec.epochs], []
        if first.preset == "paper":
            runs = [Run(self.loss(s), s.strength, 0.0 if s.radius else spec.decay, s.radius) for s in group]
            trained = train_tangents(
                base, [rows], runs, schedule, train=train, seed=self.seed, memory=memory_of(recipe),
                device=self.device,
            )  # fmt: skip
            return torch.stack(trained).cpu(), [spec.epochs] * len(group), []
        solver = recipe.solver
        objective = Objective(loss=self.loss(first), ridge=0.0 if first.radius else first.strength, train=train)
        goal = Goal(tolerance=first.tolerance(solver.relative), max_passes=solver.max_passes)
        radii = [setting.radius for setting in group if setting.radius is not None]
        if radii:
            solved = list(minimise_in_balls(base, [rows], objective, radii, goal=goal, arithmetic=self._arithmetic))
        else:
            solved = [minimise(base, [rows], objective, goal=goal, arithmetic=self._arithmetic)]
        passes = [solution.stats.passes for solution in solved]
        deltas = torch.stack([solution.value for solution in solved]).cpu()
        return deltas, passes, solved

    def _logits(self, setting: Setting, base: Base, deltas: Tensor) -> Tensor:
        """Logits [s,n,K] of the test rows for every Δw [s,P], in one pass."""
        if setting.method == "NLFT":
            layout = base.trained(self._train(setting))
            return predict(base, layout, deltas[0], self.test, device=self.device)[None].cpu()
        return self.tangent_logits(base, deltas, self._train(setting))

    def tangent_logits(self, base: Base, deltas: Tensor, train: Train | None = None) -> Tensor:
        """f_lin(x; Δw) [s,n,K] of the test rows for Δw [s,P], in float32; the rows' states are kept for the next Δw."""
        train = self.recipe.tangent.train if train is None else train
        key = (base.spec, str(train))
        if key not in self._tests:
            memory = memory_of(self.recipe) // 2
            self._tests[key] = TangentOperator(
                base, [self.test], trained=base.trained(train), device=self.device, memory=memory
            )
        operator = self._tests[key]
        directions = [operator.direction(delta) for delta in deltas]
        found = [
            torch.stack([state.logits + operator.tangent(state, direction) for direction in directions])
            for state, _ in operator.blocks()
        ]
        return torch.cat(found, 1).cpu()

    def right(self, labels: Tensor) -> NDArray[np.bool_]:
        """For which test rows [n] these labels are right."""
        found: NDArray[np.bool_] = (labels == self.labels).numpy()
        return found

    def taft(self, fitted: Fitted, kept: Sequence[int]) -> NDArray[np.bool_]:
        """Which rows the composed tangent model of some shards gets right: by linearity, their logits' mean decides."""
        return self.right(fitted.logits[list(kept)].mean(0).argmax(1))

    def soup(self, setting: Setting, fitted: Fitted) -> NDArray[np.bool_]:
        """Which rows the soup, the mean of all shards' fine-tuned weights, gets right (Wortsman et al. 2022).

        The networks are not linear, so nothing makes the soup equal to their ensemble.
        """
        return self.right(self._logits(setting, self.base(setting), fitted.mean[None])[0].argmax(1))

    def sisa(self, fitted: Fitted, kept: Sequence[int]) -> NDArray[np.bool_]:
        """Which rows the ensemble of some shards' fine-tuned networks gets right."""
        return self.right(sisa(fitted.logits[list(kept)]))


def alpha_of(recipe: Recipe) -> float:
    """α of the rescaled square loss; 1 if the recipe names none, because the paper states none."""
    asked = recipe.objective.alpha
    return 1.0 if asked == "auto" else asked


def percent(right: NDArray[np.bool_]) -> float:
    """Top-1 accuracy in percent."""
    return 100 * float(right.mean())


def bases(settings: Sequence[Setting], resets: Sequence[bool], tokens: Sequence[bool]) -> list[Setting]:
    """Every setting at every base point, that is with every PT and CLS, once even if a list names a value twice."""
    grid = (replace(s, reset_block=pt, reset_token=cls) for s in settings for pt in resets for cls in tokens)
    return list(dict.fromkeys(grid))
