"""What one training sample changed, and which samples changed one prediction."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from taftcache.backbone.sources.pictures import called
from taftcache.backbone.sources.rgb import Picture
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.errors import ArgumentError, SolveError, UnknownSample, check_counts
from taftcache.model.meta import magnitude
from taftcache.model.predictor import TangentModel
from taftcache.names import MEAN, counted, first_few, model_of, scaling_of, typed
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.solve.leave_one_out import CLOSED, METHODS, InfluenceMethod, RowInfluence, leave_one_out
from taftcache.solve.settings import Goal
from taftcache.stages.look.row_table import no_class
from taftcache.stages.memory import memory_of
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.train.solving import check_head_fits
from taftcache.stages.train.without import ModelPart, ModelParts, bounds_of, ridges
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource

CHOSEN_AGAIN = (
    'λ is "auto": these changes hold λ as it is, and forget chooses it again from the rows that stay; where that is '
    "another λ, predictions change by more or less; influence --sample ID says so of one sample"
)
UNTOLD = (
    "solved without a sample, the model is bounded no nearer than it moved, so that the bound tells nothing: go by the "
    "changes at this λ, or"
)
SOLVED = 3  # without a closed form, the model is also solved without each of the first so many samples


@dataclass(frozen=True, kw_only=True)
class SampleInfluence(Report):
    """A model with and without one training sample.

    moved: ‖Δw₋ₙ − Δw‖ of the model. distance_bound: how far both solves can be from their optima, together. They are
    weighted as they enter the model. own_logit, own_logit_without: logit of the sample's class for the sample itself,
    trained with it and without it. What the model says of an image that it has seen, and would say had it not.
    own_label, own_label_without: the class predicted for the sample, trained with it and without it. held_out: how many
    held-out rows were compared. labels_changed: how many of them get another label. largest_change: the most by which a
    logit of theirs moves. ridge: λ of the solves, with the sample and without it. Where the rows that stay choose
    another one, as they do when the sample is forgotten, all of this is the doing of both.
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
    ridge: tuple[float, float]
    passes: int


@dataclass(frozen=True, kw_only=True)
class InfluentialSample:
    """A training sample that moved a prediction.

    change: what its removal would add to the logit if λ stayed as it is; below zero, the sample supported it. solved:
    what it adds in a solve without the sample, if there was one; λ "auto" is chosen again for that, as in ``forget``.
    bound: a certified bound on ``solved``. ridge: λ of that solve.
    """

    sample: str
    label: str
    shard: str
    change: float
    solved: float | None = None
    bound: float | None = None
    ridge: float | None = None


@dataclass(frozen=True, kw_only=True)
class QueryInfluence(Report):
    """The training samples that moved one prediction most.

    query: the image, or what was given. label: the class whose logit was asked for, by default the predicted one.
    logit: the logit of that class. predicted: the predicted class. method: how:
    "closed form" is exact leave-one-out at this λ; "estimated leverages" leave-one-out by what a row has of the
    prediction with itself as the kernel taken apart has it; "first order" the influence function, without that. Of the
    last two the first samples are solved. residual: of "closed form", the largest fraction of the largest change of a
    part by which any may be off; of the others, the largest relative residual of the systems that were solved.
    samples: the largest change first. ridges: λ at which changes hold, by component or model that was solved. notes:
    what a removal may do besides.
    """

    store: Path
    model: str
    query: str
    label: str
    logit: float
    method: InfluenceMethod
    residual: float
    samples: list[InfluentialSample]
    passes: int
    ridges: dict[str, float]
    predicted: str
    notes: list[str] = field(default_factory=list)


@at_its_place()
def sample_influence(
    store: Place, sample: str, *, model: str | None = None, progress: Progress | bool | None = None
) -> SampleInfluence:
    """Solve again without the sample, and compare.

    Raises:
        UnknownSample: no such sample. ArgumentError: a held-out one, or one whose component is no part of the model.
        UnknownName: no such model.
    """
    assert isinstance(store, FeatureStore)
    model = model_of(store.objects(), model)
    setting = _Setting(store, model, or_silent(progress))
    shard, row = store.locate(sample)
    if shard.role != "train":
        raise ArgumentError(
            f"{sample} has no influence: it is held out", got=repr(sample), do="name a sample of a training shard"
        )
    part = setting.part_of(shard)
    if part.rows == 1 and (share := setting.dropped(part)) is not None:
        change, bound, passes = share.change, share.bound, 0
        ridge = (part.component.record.certified.ridge,) * 2
    else:
        without = setting.solve_without(part, shard, row)
        change = part.weigh(without.delta - part.component.delta)
        bound, passes = magnitude(part.weight) * bounds_of(part, without), without.record.passes
        ridge = ridges(part, without)
    whole = setting.model.delta
    own = ArrayRows(shard.tokens(slice(row, row + 1)), shard.labels[row : row + 1])
    before, after = (setting.logits(own, delta)[0] for delta in (whole, whole + change))
    label = int(shard.labels[row])
    rows, changed, largest = _held_out_change(setting, change)
    return SampleInfluence(
        store=store.path,
        model=model,
        sample=sample,
        label=store.classes[label],
        shard=shard.name,
        moved=change.norm().item(),
        distance_bound=bound,
        own_logit=before[label].item(),
        own_logit_without=after[label].item(),
        own_label=store.classes[int(before.argmax())],
        own_label_without=store.classes[int(after.argmax())],
        held_out=rows,
        labels_changed=changed,
        largest_change=largest,
        ridge=ridge,
        passes=passes,
    )


def _held_out_change(setting: _Setting, change: Tensor) -> tuple[int, int, float]:
    """The number of held-out rows, how many get another label when ``change`` [P] is added to a model's Δw, and the
    largest change of a logit."""
    held, labels, largest = setting.store.held_out, 0, 0.0
    if held is None:
        return 0, labels, largest
    operator = TangentOperator(setting.base, [held], trained=setting.model.layout, dtype=torch.float64)
    before, after = operator.direction(setting.model.delta), operator.direction(change)
    for state, _ in operator.blocks():
        z, moved = state.logits + operator.tangent(state, before), operator.tangent(state, after)
        labels += int((z.argmax(1) != (z + moved).argmax(1)).sum())
        largest = max(largest, moved.abs().max().item())
    return held.rows, labels, largest


@at_its_place()
def query_influence(
    store: Place,
    query: Picture,
    *,
    model: str | None = None,
    label: str | None = None,
    top: int = 10,
    progress: Progress | bool | None = None,
    consent: Consent | None = None,
) -> QueryInfluence:
    """The ``top`` training samples that most moved a logit of ``model`` for ``query``, at the model's λ.

    Without a closed form, the model is also solved without each of the first three, for a certified change.

    Args:
        query: an image (as for ``predict``), or the id of a sample in the store; for a store of vectors, an id.
        label: the class whose logit it is; by default the one that is predicted.
        consent: as for ``predict``.
    """
    assert isinstance(store, FeatureStore)
    check_counts(top=top)
    if label is not None and label not in store.classes:
        raise no_class(store, str(label))
    model = model_of(store.objects(), model)
    setting = _Setting(store, model, or_silent(progress))
    rows, base = setting.query_rows(query, consent)
    logits = setting.logits(rows, setting.model.delta, base)[0]
    predicted = int(logits.argmax())
    asked = predicted if label is None else store.classes.index(label)
    unit = torch.zeros_like(logits)[None]
    unit[0, asked] = 1
    operator = TangentOperator(base, [rows], trained=setting.model.layout, dtype=torch.float64)
    direction = operator.accumulate(None, lambda z, change, labels: unit)
    found = [_changes(setting, part, direction, asked) for part in setting.parts]
    method = max((each.method for each, _ in found), key=METHODS.index)
    passes = sum(each.passes for each, _ in found)
    samples = list[InfluentialSample]()
    ranked = sorted((row for _, rows in found for row in rows), key=lambda item: -abs(item[0]))
    for k, (change, shard, row) in enumerate(ranked[:top]):
        entry = InfluentialSample(
            sample=shard.sample_ids[row], label=store.classes[shard.labels[row]], shard=shard.name, change=change
        )
        part = setting.part_of(shard)
        if method != CLOSED and k < SOLVED and part.rows > 1:
            without = setting.solve_without(part, shard, row)
            passes += without.record.passes
            solved = part.weight_of(asked) * (direction @ (without.delta - part.component.delta)).item()
            bound = abs(part.weight_of(asked)) * direction.norm().item() * bounds_of(part, without)
            entry = replace(entry, solved=solved, bound=bound, ridge=ridges(part, without)[1])
        samples.append(entry)
    return QueryInfluence(
        store=store.path,
        model=model,
        query=called(query, 0),
        label=store.classes[asked],
        logit=logits[asked].item(),
        predicted=store.classes[predicted],
        method=method,
        residual=max([0.0, *(each.residual for each, _ in found)]),
        samples=samples,
        passes=passes,
        ridges={part.name: part.component.record.certified.ridge for part in setting.parts},
        notes=_notes(setting, samples),
    )


def _notes(setting: _Setting, samples: Sequence[InfluentialSample]) -> list[str]:
    """What a removal may do besides, what is not known of it, and which shards' rows are left out."""
    notes = [CHOSEN_AGAIN] if setting.settings.recipe.objective.ridge == "auto" else []
    if any(s.solved is not None and s.bound is not None and s.bound >= abs(s.solved) for s in samples):
        notes.append(f"{UNTOLD} taftcache train {typed(setting.store.path)} --set solver.tolerance=decisive")
    alone = [part.shards[0].name for part in setting.parts if part.rows == 1 and setting.dropped(part) is None]
    if alone and len(setting.parts) > 1:
        notes.append(
            f"not listed, for without it its component is gone: the only row of shard {first_few(alone)};"
            f" taftcache forget --dry-run says what becomes of {setting.name}"
        )
    return notes


def _changes(
    setting: _Setting, part: ModelPart, direction: Tensor, label: int
) -> tuple[RowInfluence, list[tuple[float, Shard, int]]]:
    """How the effect of leaving out a part's rows was computed, on the logit of ``label``, whose gradient is
    ``direction`` [P]; and for each row what leaving it out adds to the logit, its shard, and its place there."""
    recipe, solver = setting.settings.recipe, setting.settings.recipe.solver
    objective = _objective(setting, part)
    share = setting.dropped(part) if part.rows == 1 else None
    if share is not None or (part.rows == 1 and len(setting.parts) > 1):
        change = None if share is None else direction @ share.change.to(direction)
        alone = RowInfluence(torch.zeros(0) if change is None else change[None], CLOSED, 0.0, 0)
        return alone, [] if change is None else [(change.item(), part.shards[0], 0)]
    needed = check_head_fits(setting.settings, part.shards, objective.train, chosen=False, left_out=1)
    with setting.progress.task(f"influence of {', '.join(s.name for s in part.shards)}", None):
        result = leave_one_out(
            setting.base, part.shards, objective, direction, delta=part.component.delta,
            goal=Goal(tolerance=solver.relative, max_passes=solver.max_passes), memory=memory_of(recipe, needed),
        )  # fmt: skip
    places = [(shard, row) for shard in part.shards for row in range(shard.rows)]
    weight = part.weight_of(label)
    return result, [(weight * change, *at) for change, at in zip(result.change.tolist(), places, strict=True)]


class Share(NamedTuple):
    """What leaves a mean with one of its components: the ``change`` [P] of Δw, and how far both can be from those of
    the optima, together."""

    change: Tensor
    bound: float


class _Setting(ModelParts):
    """A model of a store and the problems that it was put together from; gives logits, and reads queries."""

    def __init__(self, store: FeatureStore, model: str, progress: Progress) -> None:
        super().__init__(store, model, progress)
        self.check_current()

    def logits(self, rows: RowSource, delta: Tensor, base: Base | None = None) -> Tensor:
        """f(x; Δw) [n,K] of a few rows, in float64."""
        operator = TangentOperator(base or self.base, [rows], trained=self.model.layout, dtype=torch.float64)
        ((state, _),) = operator.blocks()
        return state.logits + operator.tangent(state, operator.direction(delta))

    def dropped(self, part: ModelPart) -> Share | None:
        """What becomes of the model where the last row of a ``part`` leaves: the mean of the others; None for another
        model, or where there are no others."""
        w = part.weight
        if self.name != MEAN or isinstance(w, list) or w >= 1:
            return None
        bounds = [each.component.record.certified.distance_bound for each in self.parts]
        own = part.component.record.certified.distance_bound
        scale = w / (1 - w)
        return Share(scale * (self.model.delta - part.component.delta), scale * (w * sum(bounds) + own))

    def query_rows(self, query: Picture, consent: Consent | None) -> tuple[RowSource, Base]:
        """A query's row at the tail's input, and the base point for such rows."""
        name, vectors = str(query), scaling_of(self.store.identity) is not None
        no_file = isinstance(query, str) and not os.path.exists(os.path.expanduser(name))
        if self.store.holds(name) or no_file or vectors:
            if vectors and not isinstance(query, str | Path):
                raise ArgumentError(
                    "a query of a store of vectors must be one id, a text",
                    got=f"an object of type {type(query).__name__}",
                    do="an id of the store; taftcache append takes in rows that it does not have",
                )
            try:
                asked: Any = name if isinstance(query, Path) else query
                shard, row = self.store.locate(asked)  # a store of vectors takes ids only
            except UnknownSample as error:
                if vectors:
                    raise
                raise UnknownSample(
                    f"neither a file nor a sample: {error.fault}", got=error.got, ids=error.ids, do=error.do
                ) from error
            return ArrayRows(shard.tokens(slice(row, row + 1)), shard.labels[row : row + 1]), self.base
        tokens = TangentModel.read(self.store, None, "auto", consent).tokens([query])
        return ArrayRows(tokens, np.zeros(len(tokens), np.int32)), self.base.unreduced()


def _objective(setting: _Setting, part: ModelPart) -> Objective:
    """The objective that a part was solved for; SolveError if it is not one that influence on a prediction supports."""
    recipe, loss, asked = setting.settings.recipe, setting.settings.loss, setting.settings.recipe.objective
    weighted = asked.class_weights != "none" or asked.jvp_only or asked.radius or recipe.prior.teachers
    if not isinstance(loss, RSL) or weighted:
        raise SolveError(
            "influence on a prediction needs the rescaled square loss with equal weights, a ridge, no prior, and no"
            " jvp_only",
            got=f"loss = {asked.loss!r}, class_weights = {asked.class_weights!r}, radius = {asked.radius},"
            f" jvp_only = {asked.jvp_only}, {counted(len(recipe.prior.teachers), 'teacher')}",
            do=f"taftcache influence {typed(setting.store.path)} --sample ID, which solves without it",
        )
    return Objective(loss=loss, ridge=part.component.record.certified.ridge, train=part.train)
