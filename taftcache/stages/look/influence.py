"""What one training sample changed, and which samples changed one prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, SolveError, UnknownSample
from taftcache.names import EXACT, HEAD, MEAN, WEIGHTED, component_of, is_component
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.privacy.statement import META
from taftcache.solve.settings import Goal
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.training import adopt, loss_of, solve_component
from taftcache.tangent.rows import RowSubset

if TYPE_CHECKING:
    from torch import Tensor

    from taftcache.model.component import Component
    from taftcache.recipe import Recipe
    from taftcache.tangent.base import Base
    from taftcache.tangent.rows import RowSource


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
    import torch

    from taftcache.tangent.operator import TangentOperator
    from taftcache.tangent.rows import ArrayRows

    setting = _Setting(store, model, progress or Silent())
    shard, row = store.locate(sample)
    if shard.role != "train":
        raise UnknownSample(
            "influence is of a training sample", got=f"{sample!r} is held out", do="name one of a training shard"
        )
    part = setting.part_of(shard)
    without, bound, passes = setting.solve_without(part, shard, row)
    change = part.weight * (without - part.component.delta)
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
        part.weight * bound,
        before[label].item(),
        after[label].item(),
        store.classes[int(before.argmax())],
        store.classes[int(after.argmax())],
        count,
        changed,
        largest,
        passes,
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
    import torch

    from taftcache.solve.leave_one_out import CLOSED, leave_one_out
    from taftcache.tangent.operator import TangentOperator

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
            without, bound, taken = setting.solve_without(part, shard, row)
            passes += taken
            entry["solved"] = part.weight * (direction @ (without - part.component.delta)).item()
            told = part.component.meta["certificate"]["distance_bound"]
            entry["bound"] = part.weight * direction.norm().item() * (bound + told)
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


@dataclass(frozen=True)
class _Part:
    """One solved problem that enters a model with ``weight``."""

    name: str
    weight: float
    component: Component
    shards: list[Shard]
    train: Any


class _Setting:
    """A model of a store, and the problems that it was put together from."""

    def __init__(self, store: FeatureStore, model: str, progress: Progress) -> None:
        from taftcache.model.component import read_base, read_component

        self.store, self.progress = store, progress
        self.recipe: Recipe = adopt(store, None)
        self.base: Base = read_base(store, self.recipe.tangent)
        self.model = read_component(store, model, self.base)
        self._check_solved(model)
        if model in (MEAN, WEIGHTED):
            weights = self.model.meta["coefficients"]
        elif model in (EXACT, HEAD) or is_component(model):
            weights = {model: 1.0}
        else:
            raise RecipeError("influence is of a model that was solved from the rows", got=model, do=f"name {MEAN}")
        self.parts = [
            _Part(name, mu, read_component(store, name, self.base), shards, "head" if name == HEAD else self._train())
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

    def _train(self) -> Any:
        return self.recipe.tangent.train

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
        raise UnknownSample(
            "influence is of a sample that the model was made from", got=f"shard {shard.name} has no part in it"
        )

    def solve_without(self, part: _Part, shard: Shard, row: int) -> tuple[Tensor, float, int]:
        """The part's optimum without one row, the certified distance to it, and passes."""
        sources: list[Any] = [Without(s, row) if s.name == shard.name else s for s in part.shards]
        without = solve_component(
            self.recipe, self.base, sources, part.train, self.progress, label=part.name, start=part.component.delta
        )
        return without.delta, without.meta["certificate"]["distance_bound"], without.meta["stats"]["passes"]

    def logits(self, rows: RowSource, delta: Tensor, base: Base | None = None) -> Tensor:
        """f(x; Δw) [n,K] in float64 of a few rows."""
        import torch

        from taftcache.tangent.operator import TangentOperator

        operator = TangentOperator(base or self.base, [rows], trained=self.model.layout, dtype=torch.float64)
        ((state, _),) = operator.blocks()
        return state.logits + operator.tangent(state, operator.direction(delta))

    def query_rows(self, query: Path | str) -> tuple[RowSource, Base]:
        """A query's row at the tail's input, and the base point for such rows."""
        from taftcache.tangent.rows import ArrayRows

        if self.store.holds(str(query)):
            shard, row = self.store.locate(str(query))
            return ArrayRows(shard.tokens(slice(row, row + 1)), shard.labels[row : row + 1]), self.base
        from taftcache.model.predictor import TangentModel

        tokens = TangentModel.load(self.store, MEAN if MEAN in self.store.objects() else HEAD).tokens([Path(query)])
        return ArrayRows(tokens, np.zeros(len(tokens), np.int32)), self.base.unreduced()


def _objective(recipe: Recipe, part: _Part) -> Objective:
    """What a part was solved for, where influence has its closed form; SolveError for any other objective."""
    loss, asked = loss_of(recipe), recipe.objective
    if not isinstance(loss, RSL) or asked.class_weights != "none" or asked.jvp_only or asked.radius:
        raise SolveError(
            "no influence of single rows but for the rescaled square loss with equal weights and a ridge",
            got=f"loss = {asked.loss!r}, class_weights = {asked.class_weights!r}, radius = {asked.radius}",
        )
    return Objective(loss=loss, ridge=part.component.meta["certificate"]["ridge"], train=part.train)
