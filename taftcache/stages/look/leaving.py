"""What one training row changed, or several: the problem that it has a part in, solved again without it.

The one way to leave a row out: ``taftcache influence`` and the page both solve through ``ModelParts.solve_without``,
which solves as the store's recipe says, whatever its objective, solver and prior.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, SolveError, StoreError, UnknownSample
from taftcache.model.component import Component, read_component
from taftcache.names import EXACT, HEAD, MEAN, PRIVATE, WEIGHTED, component_of, counted, is_component
from taftcache.objective.problem import Problem
from taftcache.solve.leave_one_out import moves
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.settings import DECISIVE
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import HeldOutLogits, Scorer
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.solving import SolveOptions, choice_of, is_chosen_again, solve_component
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSubset
from taftcache.tangent.spec import Train

Moves = NDArray[np.float64]


# (N·K)³ summed over the shards whose kernels are inverted for a page: some ten seconds of one core.
KERNEL_WORK = 4 * 4096.0**3


class Without(RowSubset):
    """A shard's rows but some: labels [n] and sample ids like a shard's, and a digest of no bytes on disk."""

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
    weight: float
    component: Component
    shards: list[Shard]
    train: Train

    @property
    def solves_these(self) -> bool:
        """Whether its key names the shards as they are: not after an ``append`` without ``train``, nor where the solve
        was interrupted, which leaves no key."""
        return self.component.record.row_digests == [shard.digest for shard in self.shards]


class ModelParts:
    """The problems that a store's model was put together from.

    Args:
        store: an open store.
        model: a component, or one of models/mean, weighted, exact and head.
        progress: told of every solve.

    Raises:
        RecipeError: the model was not solved from the rows, or was trained privately.
    """

    def __init__(self, store: FeatureStore, model: str, progress: Progress) -> None:
        self.store, self.progress = store, progress
        # read for this object alone: a solve on the side lends the tail other weights while others use theirs
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
        """RecipeError where a part was solved from other rows: they would seem to be one row's doing."""
        if old := [part.name for part in self.parts if not part.solves_these]:
            raise RecipeError(
                f"not solved from the rows that the store has now: {', '.join(old)}",
                got="rows that were appended since, or a solve that was interrupted",
                do=f"taftcache train {self.store.path}",
            )

    def part_of(self, shard: Shard) -> ModelPart:
        """The part that a shard's rows entered; UnknownSample where they entered none."""
        for part in self.parts:
            if any(own.name == shard.name for own in part.shards):
                return part
        raise UnknownSample(f"shard {shard.name} has no part in the model", got="a sample that it was not made from")

    def solve_without(self, part: ModelPart, shard: Shard, rows: int | Sequence[int]) -> Component:
        """The part's optimum without some rows of ``shard``; nothing is written.

        SolveError where they are all its rows.
        """
        sources: list[Shard] = [Without(s, rows) if s.name == shard.name else s for s in part.shards]  # type: ignore[misc]  # rows of a shard, without its files
        if not sum(source.rows for source in sources):
            raise SolveError(f"{part.name} has no row but what is left out: without it there is no such model")
        options = self._from_the_part(part, sources, shard, rows)
        return solve_component(self.settings, sources, part.train, self.progress, label=part.name, options=options)

    def _from_the_part(
        self, part: ModelPart, sources: Sequence[Shard], shard: Shard, rows: int | Sequence[int]
    ) -> SolveOptions:
        """From where the part is; at zero where a solve begins there only, and the part kept no dual vectors or the
        rows that stay choose another λ."""
        old, settings = part.component, self.settings
        if not settings.starts_at_zero(sources, part.train):
            return SolveOptions(start=old.delta)
        choice = None if old.dual is None else choice_of(settings, sources, part.train)
        if old.dual is None or not is_chosen_again(choice, settings, old):
            return SolveOptions(choice=choice)
        stays = np.concatenate([~np.isin(np.arange(s.rows), rows if s.name == shard.name else []) for s in part.shards])

        def near(moved: float) -> float:
            """As near as decides what the rows moved, or as the part itself is to its own optimum."""
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


def moved_by_each(store: FeatureStore, scorer: Scorer, shards: Sequence[Shard]) -> Iterator[tuple[Shard, Moves | None]]:
    """Each of ``shards`` with ‖Δw₋ₙ − Δw‖ [N] of its component for each of its rows, or None where there is no closed
    form: an objective that is not quadratic, with weights, a ball or a prior, and a private component.

    Raises:
        StoreError: without the closed form of the head alone, the kernels would take more than ``KERNEL_WORK``.
    """
    classes = len(store.classes)
    weighed = [shard for shard in shards if scorer.is_weighed(component_of(shard.name)) and scorer.loss.quadratic]
    kernels = [s for s in weighed if scorer.components[component_of(s.name)].layout != scorer.base.head_layout]
    if sum((shard.rows * classes) ** 3 for shard in kernels) > KERNEL_WORK:
        raise StoreError(
            "no exact influence of every sample: the shards' kernels are too large to invert for a page",
            got=f"{counted(max(shard.rows for shard in kernels), 'row')} of {counted(classes, 'class')} in a shard,"
            f" {counted(len(kernels), 'shard')}",
            do="choose a sample and solve without it",
        )
    for shard in shards:
        yield shard, _moves(store, component_of(shard.name), shard) if shard in weighed else None


def _moves(store: FeatureStore, name: str, shard: Shard) -> Moves | None:
    parts = ModelParts(store, name, Silent())
    component = parts.model
    operator = TangentOperator(parts.base, [shard], trained=component.layout, dtype=torch.float64)
    found = moves(Problem(operator, parts.settings.loss, component.record.certified.ridge))
    return None if found is None else np.asarray(found.cpu().numpy())


@dataclass(frozen=True, kw_only=True)
class LogitsOf:
    """Logits [K] of one row: by its shard's component, and by the mean of all components."""

    component: list[float]
    mean: list[float]


@dataclass(frozen=True, kw_only=True)
class OnHeldOut:
    """Of the ``held_out`` rows that stay, ``changed`` get another class by the mean of the components; ``accuracy``: of
    that mean on them, before and after. None where no held-out rows are scored, or no component is left."""

    changed: int | None = None
    held_out: int | None = None
    accuracy: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class RowLeftOut(OnHeldOut):
    """A shard's component without one of its rows, and what that changes.

    ``moved``: ‖Δw without it − Δw‖, where ‖Δw‖ is ``norm``; ``distance_bound``: how exact the new one is. ``before``
    and ``after``: the row's logits. ``ridge``: λ before and after, which "auto" chooses anew.
    """

    ridge: tuple[float, float]
    status: str
    passes: int
    moved: float
    norm: float
    distance_bound: float
    before: LogitsOf
    after: LogitsOf


def leave_out(scorer: Scorer, parts: ModelParts, shard: Shard, row: int, kept: HeldOutLogits | None) -> RowLeftOut:
    """Solve the component of ``shard`` without a row, as ``taftcache forget`` would, and compare.

    Args:
        scorer: the store's models.
        parts: of the shard's component.
        shard: of the store's training shards.
        row: of the shard.
        kept: logits of held-out rows to compare on, if there are any.
    """
    parts.check_current()
    part = parts.part_of(shard)
    without = parts.solve_without(part, shard, row)
    delta, said = without.delta - part.component.delta, without.record
    members = [name for name in scorer.models if is_component(name)]
    tokens = shard.tokens(slice(row, row + 1))
    z, changes = scorer.logits(tokens, members)
    step = scorer.tangent(tokens, part.component.layout, delta)
    mean, own = z + changes.mean(0), z + changes[members.index(part.name)]
    return RowLeftOut(
        ridge=ridges(part, without),
        status=said.ending,
        passes=said.passes,
        moved=float(delta.norm()),
        norm=float(part.component.delta.norm()),
        distance_bound=said.certified.distance_bound,
        before=LogitsOf(component=own[0].tolist(), mean=mean[0].tolist()),
        after=LogitsOf(component=(own + step)[0].tolist(), mean=(mean + step / len(members))[0].tolist()),
        **vars(_compared(scorer, parts.store.held_out, kept, [(part, delta)])),
    )


@dataclass(frozen=True, kw_only=True)
class SolvedAgain:
    """One component without rows of its shard: ``moved`` by ‖Δw without them − Δw‖, of ``norm`` ‖Δw‖, exact to
    ``distance_bound``. ``ridge``: λ before and after, which "auto" chooses anew."""

    ridge: tuple[float, float]
    status: str
    passes: int
    moved: float
    norm: float
    distance_bound: float


@dataclass(frozen=True, kw_only=True)
class RowsLeftOut(OnHeldOut):
    """What leaving rows out changes.

    solved: the components that were solved again. dropped: those of shards that are left without a row.
    """

    solved: dict[str, SolvedAgain]
    dropped: list[str]


def leave_rows_out(
    store: FeatureStore,
    scorer: Scorer,
    leaving: Mapping[str, Sequence[int]],
    kept: HeldOutLogits | None,
    progress: Progress,
) -> RowsLeftOut:
    """Solve the component of each shard in ``leaving`` without its rows, as ``taftcache forget`` would.

    A private component stays as it is, as it would.

    Args:
        store: an open store.
        scorer: its models.
        leaving: row numbers by the name of their shard, the held-out one too.
        kept: logits of held-out rows to compare on, if there are any.
        progress: told of every solve.

    Raises:
        RecipeError: a class would be left without a training row, which solves every component again.
    """
    _check_classes(store, leaving)
    solved: dict[str, SolvedAgain] = {}
    dropped: list[str] = []
    steps: list[tuple[ModelPart, torch.Tensor]] = []
    for shard in store.shards:
        rows, name = leaving.get(shard.name, ()), component_of(shard.name)
        if not len(rows) or name not in scorer.models or scorer.is_private(name):
            continue
        if len(set(rows)) == shard.rows:
            dropped.append(name)
            continue
        parts = ModelParts(store, name, progress)
        parts.check_current()
        part = parts.part_of(shard)
        without = parts.solve_without(part, shard, rows)
        delta = without.delta - part.component.delta
        steps.append((part, delta))
        solved[name] = _solved(without, part, delta)
    held = store.held_out
    gone = () if held is None else leaving.get(held.name, ())
    return RowsLeftOut(solved=solved, dropped=dropped, **vars(_compared(scorer, held, kept, steps, gone, dropped)))


def _check_classes(store: FeatureStore, leaving: Mapping[str, Sequence[int]]) -> None:
    """RecipeError where a class that has training rows would have none."""
    before, after = np.zeros((2, len(store.classes)), np.int64)
    for shard in store.shards:
        before += np.bincount(shard.labels, minlength=len(before))
        gone = np.asarray(leaving.get(shard.name, ()), np.int64)
        after += np.bincount(np.delete(shard.labels, gone), minlength=len(before))
    gone_classes = [store.classes[k] for k in np.flatnonzero((before > 0) & (after == 0))]
    if gone_classes:
        raise RecipeError(
            "a class cannot go with its last training row: every component would lose a column",
            got=", ".join(gone_classes),
            do="taftcache forget --dry-run says what that costs",
        )


def ridges(part: ModelPart, without: Component) -> tuple[float, float]:
    """λ of a part, and of the same part solved ``without`` some rows."""
    return part.component.record.certified.ridge, without.record.certified.ridge


def _solved(without: Component, part: ModelPart, delta: torch.Tensor) -> SolvedAgain:
    said = without.record
    return SolvedAgain(
        ridge=ridges(part, without),
        status=said.ending,
        passes=said.passes,
        moved=float(delta.norm()),
        norm=float(part.component.delta.norm()),
        distance_bound=said.certified.distance_bound,
    )


def _compared(
    scorer: Scorer,
    held: Shard | None,
    kept: HeldOutLogits | None,
    steps: Sequence[tuple[ModelPart, torch.Tensor]],
    gone: Sequence[int] = (),
    dropped: Collection[str] = (),
) -> OnHeldOut:
    """The mean of the components before and after, on the held-out rows that stay."""
    if held is None or kept is None:
        return OnHeldOut()
    members = [name for name in scorer.models if is_component(name)]
    left = [k for k, name in enumerate(members) if name not in dropped]
    stay = np.flatnonzero(~np.isin(kept.rows, np.asarray(gone, np.int64)))
    if not left or not len(stay):
        return OnHeldOut()
    labels, rows = kept.labels[stay], kept.rows[stay]
    change = np.zeros((len(stay), kept.base.shape[1]), np.float32)
    for k in range(0, len(stay), STEP_ROWS) if steps else ():
        change[k : k + STEP_ROWS] = _tangents(scorer, held.tokens(rows[k : k + STEP_ROWS]), steps)
    old = (kept.base + kept.tangents.mean(0))[stay].argmax(1)
    new = (kept.base[stay] + (kept.tangents[left].sum(0)[stay] + change) / len(left)).argmax(1)
    return OnHeldOut(
        changed=int((old != new).sum()),
        held_out=len(stay),
        accuracy=(float((old == labels).mean()), float((new == labels).mean())),
    )


def _tangents(
    scorer: Scorer, tokens: NDArray[np.generic], steps: Sequence[tuple[ModelPart, torch.Tensor]]
) -> NDArray[np.float32]:
    """Σ J δ [b,K] over the changes of the components."""
    return np.asarray(sum(scorer.tangent(tokens, part.component.layout, delta) for part, delta in steps))
