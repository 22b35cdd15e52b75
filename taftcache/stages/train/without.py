"""The problems that a model was put together from, each solved again without some of its rows.

This is the only way to leave a row out: ``taftcache influence`` and the page both use ``ModelParts.solve_without``,
which solves as the store's recipe says, whatever its objective, solver and prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError, RecipeError, SolveError
from taftcache.model.component import Component, read_component
from taftcache.model.composition import factors
from taftcache.model.meta import Coefficient
from taftcache.model.outdated import OUTDATED, is_outdated
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, is_component, typed
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.settings import DECISIVE
from taftcache.stages.progress import Progress
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.solving import SolveOptions, choice_of, solve_component
from taftcache.tangent.rows import RowSubset
from taftcache.tangent.spec import Train

ROUNDS = 6  # at most, to bring a solve near enough to tell what some rows moved
FINEST = 1e-15  # the smallest relative gradient that float64 can tell


class Without(RowSubset):
    """A shard without some of its rows: labels [n] and sample ids like a shard's, but no digest, as it has no files."""

    digest = ""

    def __init__(self, shard: Shard, rows: int | Sequence[int]) -> None:
        super().__init__([shard], np.delete(np.arange(shard.rows), np.asarray(rows, np.int64)))
        self.name = shard.name
        self.labels = np.asarray(shard.labels)[self.index]
        self.sample_ids = [shard.sample_ids[k] for k in self.index]


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """One solved problem that enters a model with ``weight``: its rows are those of ``shards``."""

    name: str
    weight: Coefficient
    component: Component
    shards: list[Shard]
    train: Train

    def weigh(self, change: Tensor) -> Tensor:
        """By what [P] a ``change`` [P] of the part's Δw changes the model's."""
        return change * factors(self.weight, self.component.layout)

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def weight_of(self, k: int) -> float:
        """Its weight in the model's logit of class k."""
        return self.weight[k] if isinstance(self.weight, list) else self.weight


class ModelParts:
    """The problems that a store's model was put together from.

    Args:
        model: a component, or one of models/mean, weighted, exact and head.

    Raises:
        RecipeError: the model was not solved from the rows, or was trained privately.
    """

    def __init__(self, store: FeatureStore, model: str, progress: Progress) -> None:
        self.store, self.name, self.progress = store, model, progress
        # read for this object alone: a solve replaces the weights of its tail, which other threads must not see
        self.settings = settings_of(store)
        self.base = self.settings.base
        self.model = read_component(store, model, self.base)
        self._check_solved(model)
        if model in (MEAN, WEIGHTED):
            weights = self.model.record.coefficients or {}
        elif model in (EXACT, HEAD) or is_component(model):
            weights = {model: 1.0}
        else:
            raise RecipeError(
                f"influence needs a model that was solved from the rows, not {model}", got=model, do=f"name {MEAN}"
            )
        self.parts = [
            ModelPart(
                name=name,
                weight=weight,
                component=read_component(store, name, self.base),
                shards=shards,
                train="head" if name == HEAD else self.settings.train,
            )
            for name, weight in weights.items()
            if (shards := self._shards(name))
        ]

    def check_current(self) -> None:
        """RecipeError if the model or a part of it was made from other rows or settings: their effect would be taken
        for the left-out row's."""
        names = dict.fromkeys([*(part.name for part in self.parts), self.name])
        if old := [name for name in names if is_outdated(self.store, self.settings.keys, name)]:
            place = typed(self.store.path)
            raise RecipeError(
                f"cannot leave rows out of what was {OUTDATED}: {', '.join(old)}",
                got="rows or settings that changed since, or a solve that was interrupted",
                do=f"taftcache train {place}, then taftcache compose {place}",
            )

    def part_of(self, shard: Shard) -> ModelPart:
        """The part that a shard's rows entered; ArgumentError where they entered none."""
        for part in self.parts:
            if any(own.name == shard.name for own in part.shards):
                return part
        place = typed(self.store.path)
        raise ArgumentError(
            f"shard {shard.name} has no part in the model",
            got="a sample that it was not made from",
            do=f"taftcache train {place} --shard {shard.name}, then taftcache compose {place}, to have it there",
        )

    def solve_without(self, part: ModelPart, shard: Shard, rows: int | Sequence[int]) -> Component:
        """The part's optimum without some rows of ``shard``; nothing is written.

        SolveError if no rows would be left.
        """
        sources: list[Shard] = [Without(s, rows) if s.name == shard.name else s for s in part.shards]  # type: ignore[misc]  # rows of a shard, without its files
        if not sum(source.rows for source in sources):
            raise SolveError(f"{part.name} has no rows but those left out: without them there is no such model")
        options = self._from_the_part(part, sources, shard, rows)
        solved = self._solved(part, sources, options)
        # If a relative gradient ends the solve, the part's own Δw may already meet it for the rows that stay.
        for _ in range(ROUNDS if options.start is not None else 0):
            said, moved = solved.record.certified, (solved.delta - part.component.delta).norm().item()
            near = max(DECISIVE * moved, part.component.record.certified.distance_bound)
            if said.distance_bound <= near or not solved.record.converged:
                break
            nearer = min(tolerance_for(solved, 0.5 * near), max(FINEST, 0.1 * said.relative_gradient))
            goal = replace(self.settings.goal, tolerance=nearer, decisive=False, until_decisive=False)
            solved = self._solved(part, sources, replace(options, start=solved.delta, goal=goal))
        return solved

    def _solved(self, part: ModelPart, sources: Sequence[Shard], options: SolveOptions) -> Component:
        return solve_component(self.settings, sources, part.train, self.progress, label=part.name, options=options)

    def _from_the_part(
        self, part: ModelPart, sources: Sequence[Shard], shard: Shard, rows: int | Sequence[int]
    ) -> SolveOptions:
        """Options to start from the part's solution; but from zero if the solve can begin only there and the part kept
        no dual vectors, or the rows that stay choose another λ."""
        old, settings = part.component, self.settings
        if not settings.starts_at_zero(sources, part.train):
            return SolveOptions(start=old.delta, choice=choice_of(settings, sources, part.train))
        choice = None if old.dual is None else choice_of(settings, sources, part.train)
        if old.dual is None or (choice is not None and choice.ridge != old.record.certified.ridge):
            return SolveOptions(choice=choice)
        stays = np.concatenate([~np.isin(np.arange(s.rows), rows if s.name == shard.name else []) for s in part.shards])

        def near(moved: float) -> float:
            """Near enough to decide what the rows moved, or as near as the part itself is to its own optimum."""
            return max(DECISIVE * moved, old.record.certified.distance_bound)

        restart = Restart(part.shards, old.delta, old.dual, torch.from_numpy(stays), near)
        return SolveOptions(restart=restart, choice=choice)

    def _shards(self, name: str) -> list[Shard]:
        """The shards that a part was made from; none for an imported component, whose rows are elsewhere."""
        if name in (EXACT, HEAD):
            return self.store.shards
        return [shard for shard in self.store.shards if component_of(shard.name) == name]

    def _check_solved(self, model: str) -> None:
        """RecipeError for a private model, or one with a private part: its noise is no sample's influence."""
        objects = self.store.objects()
        names = [model, *self.model.meta.get("coefficients", {})]
        if private := [name for name in names if name in objects and PRIVATE in objects[name].meta]:
            raise RecipeError(
                f"influence would compare the noise of {', '.join(private)} with a solve without noise",
                got="trained privately",
                do="its promise bounds the influence of any sample: taftcache inspect says epsilon and delta",
            )


def tolerance_for(component: Component, distance: float) -> float:
    """The relative gradient at which the certified distance falls to ``distance``: in proportion, but where F itself
    bounds it, which falls later. No less than float64 can tell, since at a gradient of zero the whole distance is what
    rounding may hide."""
    said = component.record.certified
    steep = said.distance_bound
    if said.objective_at_most is not None and said.gap_bound >= said.objective_at_most:
        steep = max(steep, (said.gradient + said.rounding) / said.ridge)
    return max(FINEST, said.relative_gradient * distance / steep)


def bounds_of(part: ModelPart, without: Component) -> float:
    """How far a part, and the same part solved ``without`` some rows, can be from their optima, together."""
    return sum(each.record.certified.distance_bound for each in (part.component, without))


def ridges(part: ModelPart, without: Component) -> tuple[float, float]:
    """λ of a part, and of the same part solved ``without`` some rows."""
    return part.component.record.certified.ridge, without.record.certified.ridge
