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
from taftcache.errors import SolveError, UnknownSample
from taftcache.model.predictor import TangentModel
from taftcache.names import HEAD, MEAN
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.recipe import Recipe
from taftcache.solve.leave_one_out import CLOSED, leave_one_out
from taftcache.solve.settings import Goal
from taftcache.stages.look.leaving import ModelPart, ModelParts
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.training import loss_of
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    without = setting.solve_without(part, shard, row)
    change = part.weight * (without.delta - part.component.delta)
    whole = setting.model.delta
    own = ArrayRows(shard.tokens(slice(row, row + 1)), shard.labels[row : row + 1])
    before, after = (setting.logits(own, delta)[0] for delta in (whole, whole + change))
    label = int(shard.labels[row])
    changed, largest, count = 0, 0.0, 0
    if store.held_out is not None:
        operator = TangentOperator(setting.base, [store.held_out], trained=setting.model.layout, dtype=torch.float64)
        for (state, _), said, moved in zip(
            operator.blocks(), operator.matvec(whole), operator.matvec(change), strict=True
        ):
            z = state.logits + said
            changed += int((z.argmax(1) != (z + moved).argmax(1)).sum())
            largest = max(largest, moved.abs().max().item())
            count += len(z)
    return SampleInfluence(
        store.path,
        model,
        sample,
        store.classes[label],
        shard.name,
        change.norm().item(),
        part.weight * without.meta["certificate"]["distance_bound"],
        before[label].item(),
        after[label].item(),
        store.classes[int(before.argmax())],
        store.classes[int(after.argmax())],
        count,
        changed,
        largest,
        without.meta["stats"]["passes"],
    )


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
    progress = progress or Silent()
    setting = _Setting(store, model, progress)
    solver = setting.recipe.solver
    rows, base = setting.query_rows(query)
    logits = setting.logits(rows, setting.model.delta, base)[0]
    label = int(logits.argmax())
    unit = torch.zeros_like(logits)[None]
    unit[0, label] = 1
    operator = TangentOperator(base, [rows], trained=setting.model.layout, dtype=torch.float64)
    direction = operator.accumulate(None, lambda z, change, labels: unit)
    found: list[tuple[float, Shard, int]] = []
    methods, passes, residual = set(), 0, 0.0
    for part in setting.parts:
        with progress.task(f"influence of {', '.join(s.name for s in part.shards)}", None):
            result = leave_one_out(
                setting.base, part.shards, _objective(setting.recipe, part), direction, delta=part.component.delta,
                goal=Goal(tolerance=solver.tolerance, max_passes=solver.max_passes), memory=setting.recipe.memory_bytes,
            )  # fmt: skip
        places = [(shard, row) for shard in part.shards for row in range(shard.rows)]
        found += [(part.weight * c, *at) for c, at in zip(result.change.tolist(), places, strict=True)]
        methods.add(result.method)
        passes, residual = passes + result.passes, max(residual, result.residual)
    found.sort(key=lambda item: -abs(item[0]))
    samples = []
    for k, (change, shard, row) in enumerate(found[:top]):
        entry: dict[str, Any] = {
            "sample": shard.sample_ids[row],
            "label": store.classes[shard.labels[row]],
            "shard": shard.name,
            "change": change,
        }
        if methods != {CLOSED} and k < solve:
            part = setting.part_of(shard)
            without = setting.solve_without(part, shard, row)
            passes += without.meta["stats"]["passes"]
            entry["solved"] = part.weight * (direction @ (without.delta - part.component.delta)).item()
            bounds = [c.meta["certificate"]["distance_bound"] for c in (without, part.component)]
            entry["bound"] = part.weight * direction.norm().item() * sum(bounds)
        samples.append(entry)
    return QueryInfluence(
        store.path,
        model,
        str(query),
        store.classes[label],
        logits[label].item(),
        CLOSED if methods == {CLOSED} else "first order",
        residual,
        samples,
        passes,
    )


class _Setting(ModelParts):
    """A model of a store, what it was put together from, and rows to look at it with."""

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


def _objective(recipe: Recipe, part: ModelPart) -> Objective:
    """What a part was solved for, where influence has its closed form; SolveError for any other objective."""
    loss, asked = loss_of(recipe), recipe.objective
    weighted = asked.class_weights != "none" or asked.jvp_only or asked.radius or recipe.prior.teachers
    if not isinstance(loss, RSL) or weighted:
        raise SolveError(
            "no influence on a prediction but for the rescaled square loss with equal weights, a ridge and no prior",
            got=f"loss = {asked.loss!r}, class_weights = {asked.class_weights!r}, radius = {asked.radius},"
            f" {len(recipe.prior.teachers)} teachers",
        )
    return Objective(loss=loss, ridge=part.component.meta["certificate"]["ridge"], train=part.train)
