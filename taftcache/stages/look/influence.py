"""What one training sample changed, and which samples changed one prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, SolveError, UnknownSample
from taftcache.model.component import Component, read_component
from taftcache.model.predictor import TangentModel
from taftcache.names import EXACT, HEAD, MEAN, WEIGHTED, component_of, is_component
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.privacy.statement import META
from taftcache.solve.leave_one_out import CLOSED, leave_one_out
from taftcache.solve.settings import Goal
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import SolveOptions, solve_component
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource, RowSubset
from taftcache.tangent.spec import Train


@dataclass(frozen=True, kw_only=True)
class SampleInfluence:
    """A model with and without one training sample.

    ``moved`` is ‖Δw₋ₙ − Δw‖ of the model, ``distance_bound`` how far the solve without the sample can be from its
    optimum, weighted as it enters the model. ``own_logit`` and ``own_logit_without`` are of the sample's class at the
    sample: what the model says of an image that it has seen, and would say had it not. Of ``held_out`` rows,
    ``labels_changed`` get another label, and no logit moves by more than ``largest_change``.
    """

    store: Path
    model: str
    sample: str
    label: str
    shard: str
    moved: float
    distance_bound: float
    own_logit: float
    own_logit_without: float
    own_label: str
    own_label_without: str
    held_out: int
    labels_changed: int
    largest_change: float
    passes: int


@dataclass(frozen=True, kw_only=True)
class QueryInfluence:
    """The training samples that moved one prediction most.

    ``logit`` is that of the predicted ``label``; each of ``samples`` has ``change``, what its removal would add to
    it, and where it was solved without the sample, ``solved`` and its certified ``bound``. ``method`` is "closed
    form": exact leave-one-out, or "first order": the influence function, whose first samples are solved.
    """

    store: Path
    model: str
    query: str
    label: str
    logit: float
    method: str
    residual: float
    samples: list[dict[str, Any]]
    passes: int


class Without(RowSubset):
    """A shard without one row."""

    def __init__(self, shard: Shard, row: int) -> None:
        super().__init__([shard], np.delete(np.arange(shard.rows), row))
        self.name, self.digest, self.labels = shard.name, "", np.asarray(shard.labels)[self.index]


def sample_influence(
    store: FeatureStore, sample: str, model: str = MEAN, progress: Progress | None = None
) -> SampleInfluence:
    """Solve without the sample, and compare.

    Raises:
        UnknownSample: no such sample, or one that nothing was trained on.
    """
    setting = _Setting(store, model, progress or Silent())
    shard, row = store.locate(sample)
    if shard.role != "train":
        raise UnknownSample(
            f"{sample} has no influence: it is held out", got=repr(sample), do="name a sample of a training shard"
        )
    part = setting.part_of(shard)
    without, bound, passes = setting.solve_without(part, shard, row)
    change = part.weight * (without - part.component.delta)
    whole = setting.model.delta
    own = ArrayRows(shard.tokens(slice(row, row + 1)), shard.labels[row : row + 1])
    before, after = (setting.logits(own, delta)[0] for delta in (whole, whole + change))
    label = int(shard.labels[row])
    held_out = _held_out_change(setting, change)
    return SampleInfluence(
        store=store.path,
        model=model,
        sample=sample,
        label=store.classes[label],
        shard=shard.name,
        moved=change.norm().item(),
        distance_bound=part.weight * bound,
        own_logit=before[label].item(),
        own_logit_without=after[label].item(),
        own_label=store.classes[int(before.argmax())],
        own_label_without=store.classes[int(after.argmax())],
        held_out=held_out.rows,
        labels_changed=held_out.labels,
        largest_change=held_out.largest,
        passes=passes,
    )


@dataclass(frozen=True, kw_only=True)
class _HeldOutChange:
    """Of so many held-out ``rows``, how many get another label, and the largest change of a logit."""

    rows: int = 0
    labels: int = 0
    largest: float = 0.0


def _held_out_change(setting: _Setting, change: Tensor) -> _HeldOutChange:
    """What adding ``change`` [P] to a model's Δw does to the predictions of held-out rows."""
    held = setting.store.held_out
    if held is None:
        return _HeldOutChange()
    rows, labels, largest = 0, 0, 0.0
    operator = TangentOperator(setting.base, [held], trained=setting.model.layout, dtype=torch.float64)
    products = operator.matvec(setting.model.delta), operator.matvec(change)
    for (state, _), said, moved in zip(operator.blocks(), *products, strict=True):
        z = state.logits + said
        labels += int((z.argmax(1) != (z + moved).argmax(1)).sum())
        largest = max(largest, moved.abs().max().item())
        rows += len(z)
    return _HeldOutChange(rows=rows, labels=labels, largest=largest)


def query_influence(
    store: FeatureStore,
    query: Path | str,
    model: str = MEAN,
    top: int = 10,
    progress: Progress | None = None,
    solve: int = 3,
) -> QueryInfluence:
    """The ``top`` training samples by how much each moved the logit that ``model`` predicts for ``query``.

    Args:
        query: an image file, or the id of a sample in the store.
        solve: where there is no closed form, so many of them are also solved without, for a certified change.
    """
    setting = _Setting(store, model, progress or Silent())
    rows, base = setting.query_rows(query)
    logits = setting.logits(rows, setting.model.delta, base)[0]
    label = int(logits.argmax())
    unit = torch.zeros_like(logits)[None]
    unit[0, label] = 1
    operator = TangentOperator(base, [rows], trained=setting.model.layout, dtype=torch.float64)
    direction = operator.accumulate(None, lambda z, change, labels: unit)
    found = [_changes(setting, part, direction) for part in setting.parts]
    closed = {each.method for each in found} == {CLOSED}
    passes = sum(each.passes for each in found)
    samples = []
    ranked = sorted((row for each in found for row in each.rows), key=lambda item: -abs(item[0]))
    for k, (change, shard, row) in enumerate(ranked[:top]):
        entry: dict[str, Any] = {
            "sample": shard.sample_ids[row],
            "label": store.classes[shard.labels[row]],
            "shard": shard.name,
            "change": change,
        }
        if not closed and k < solve:
            part = setting.part_of(shard)
            without, bound, taken = setting.solve_without(part, shard, row)
            passes += taken
            entry["solved"] = part.weight * (direction @ (without - part.component.delta)).item()
            own = part.component.meta["certificate"]["distance_bound"]
            entry["bound"] = part.weight * direction.norm().item() * (bound + own)
        samples.append(entry)
    return QueryInfluence(
        store=store.path,
        model=model,
        query=str(query),
        label=store.classes[label],
        logit=logits[label].item(),
        method=CLOSED if closed else "first order",
        residual=max([0.0, *(each.residual for each in found)]),
        samples=samples,
        passes=passes,
    )


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """What leaving each row of a part out would add to a logit, with the row's shard and place in it."""

    rows: list[tuple[float, Shard, int]]
    method: str
    residual: float
    passes: int


def _changes(setting: _Setting, part: _Part, direction: Tensor) -> _Changes:
    """Exact or to first order, for the logit whose gradient is ``direction`` [P]."""
    recipe, solver = setting.settings.recipe, setting.settings.recipe.solver
    with setting.progress.task(f"influence of {', '.join(s.name for s in part.shards)}", None):
        result = leave_one_out(
            setting.base, part.shards, _objective(setting.settings, part), direction, delta=part.component.delta,
            goal=Goal(tolerance=solver.tolerance, max_passes=solver.max_passes), memory=recipe.memory_bytes,
        )  # fmt: skip
    places = [(shard, row) for shard in part.shards for row in range(shard.rows)]
    return _Changes(
        rows=[(part.weight * change, *at) for change, at in zip(result.change.tolist(), places, strict=True)],
        method=result.method,
        residual=result.residual,
        passes=result.passes,
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One solved problem that enters a model with ``weight``."""

    name: str
    weight: float
    component: Component
    shards: list[Shard]
    train: Train


class _Setting:
    """A model of a store, and the problems that it was put together from."""

    def __init__(self, store: FeatureStore, model: str, progress: Progress) -> None:
        self.store, self.progress = store, progress
        self.settings = settings_of(store)
        self.base = self.settings.base
        self.model = read_component(store, model, self.base)
        self._check_solved(model)
        if model in (MEAN, WEIGHTED):
            weights = self.model.meta["coefficients"]
        elif model in (EXACT, HEAD) or is_component(model):
            weights = {model: 1.0}
        else:
            raise RecipeError(f"{model} was not solved from the rows, nor composed", got=model, do=f"name {MEAN}")
        self.parts = [
            _Part(
                name=name,
                weight=mu,
                component=read_component(store, name, self.base),
                shards=shards,
                train="head" if name == HEAD else self.settings.train,
            )
            for name, mu in weights.items()
            if (shards := self._shards(name))
        ]

    def _check_solved(self, model: str) -> None:
        """RecipeError for a private model, or one with a private part: its noise is no sample's influence."""
        objects = self.store.objects()
        names = [model, *self.model.meta.get("coefficients", {})]
        if private := [name for name in names if name in objects and META in objects[name].meta]:
            raise RecipeError(
                f"influence would compare the noise of {', '.join(private)} with a solve without noise",
                got="trained privately",
                do="its promise bounds the influence of any sample: taftcache inspect says epsilon and delta",
            )

    def _shards(self, name: str) -> list[Shard]:
        """The shards that a part was made from; none for an imported component, whose rows are elsewhere."""
        if name in (EXACT, HEAD):
            return self.store.shards
        return [shard for shard in self.store.shards if component_of(shard.name) == name]

    def part_of(self, shard: Shard) -> _Part:
        """The part that a shard's rows entered."""
        for part in self.parts:
            if any(own.name == shard.name for own in part.shards):
                return part
        raise UnknownSample(f"shard {shard.name} has no part in the model", got="a sample that it was not made from")

    def solve_without(self, part: _Part, shard: Shard, row: int) -> tuple[Tensor, float, int]:
        """The part's optimum without one row, the certified distance to it, and passes."""
        sources: list[Any] = [Without(s, row) if s.name == shard.name else s for s in part.shards]
        options = SolveOptions(start=part.component.delta)
        without = solve_component(self.settings, sources, part.train, self.progress, label=part.name, options=options)
        return without.delta, without.meta["certificate"]["distance_bound"], without.meta["stats"]["passes"]

    def logits(self, rows: RowSource, delta: Tensor, base: Base | None = None) -> Tensor:
        """f(x; Δw) [n,K] in float64 of a few rows."""
        operator = TangentOperator(base or self.base, [rows], trained=self.model.layout, dtype=torch.float64)
        ((state, _),) = operator.blocks()
        return state.logits + operator.tangent(state, operator.direction(delta))

    def query_rows(self, query: Path | str) -> tuple[RowSource, Base]:
        """A query's row at the tail's input, and the base point for such rows."""
        if self.store.holds(str(query)):
            shard, row = self.store.locate(str(query))
            return ArrayRows(shard.tokens(slice(row, row + 1)), shard.labels[row : row + 1]), self.base
        tokens = TangentModel.load(self.store, MEAN if MEAN in self.store.objects() else HEAD).tokens([Path(query)])
        return ArrayRows(tokens, np.zeros(len(tokens), np.int32)), self.base.unreduced()


def _objective(settings: Settings, part: _Part) -> Objective:
    """What a part was solved for, where influence has its closed form; SolveError for any other objective."""
    loss, asked = settings.loss, settings.recipe.objective
    if not isinstance(loss, RSL) or asked.class_weights != "none" or asked.jvp_only or asked.radius:
        raise SolveError(
            "no influence of single rows but for the rescaled square loss with equal weights and a ridge",
            got=f"loss = {asked.loss!r}, class_weights = {asked.class_weights!r}, radius = {asked.radius}",
        )
    return Objective(loss=loss, ridge=part.component.meta["certificate"]["ridge"], train=part.train)
