"""Labels that may be wrong: training rows in order of their margin under a model that did not see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.backbone.device import resolve_device
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.errors import SolveError, StoreError, check_counts
from taftcache.model.component import Component, StoredComponents
from taftcache.model.composition import compose
from taftcache.model.members import subtracted
from taftcache.names import MEAN, component_of, counted, first_few, them
from taftcache.solve.choosing import choose_ridge
from taftcache.solve.head.choice import head_of
from taftcache.solve.pair import pose
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.look.probe import untouched_base
from taftcache.stages.look.scoring import margins
from taftcache.stages.look.seen import kept_notes, private_notes, private_parts
from taftcache.stages.progress import Progress, or_silent
from taftcache.stages.report import Report
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import check_head_fits
from taftcache.tangent.operator import TangentOperator

OWN = "the shard's own"
OTHER_SHARDS = "the mean of the other shards' components"
LEAST = 3  # rows, or all of them, that make a class one that the judge may not know


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A training row whose label a model doubts.

    says: the class predicted by a model that did not see it. margin: the label's logit minus the largest other one;
    below 0 if the classes differ.
    """

    sample: str
    label: str
    says: str
    margin: float
    shard: str


@dataclass(frozen=True, kw_only=True)
class SuspectsReport(Report):
    """The training rows with the smallest margins, smallest first.

    method: which model judges a row. rows: how many were judged: not those of a class of which no judge saw another
    row. disagreeing: how many of them it gives another class. suspects: the rows. notes: on outdated components,
    shards with few classes, classes without a judge, or that it may not know, and promises of privacy. The promise of
    private models does not cover this list.
    """

    store: Path
    root_digest: str
    method: str
    rows: int
    disagreeing: int
    suspects: list[Suspect]
    notes: list[str] = field(default_factory=list)


@at_its_place()
def suspects(store: Place, *, top: int = 20, progress: Progress | bool | None = None) -> SuspectsReport:
    """Rank training rows by the out-of-sample margin of their labels, in one pass over the rows; ``top`` are listed.

    A row is judged by the mean of the components of the shards that it is not in. If there are none (one shard, or
    before training), it is judged by a head on the untouched network's features, solved over all other rows: exact
    leave-one-out, with λ chosen as for any head.

    Raises:
        StoreError: no training rows, fewer than two classes, no class of which a judge saw another row, or a single
            private component. SolveError: the head has no exact leave-one-out either: a loss that is not quadratic, a
            ball, or no room in memory.
    """
    assert isinstance(store, FeatureStore)
    check_counts(0, top=top)
    check_has_classes(store)
    progress = or_silent(progress)
    if not store.shards or len(store.classes) < 2:
        raise StoreError(
            "cannot judge labels without training rows of two classes",
            got=f"{counted(len(store.shards), 'training shard')}, {counted(len(store.classes), 'class')}",
            do="append rows of a second class",
        )
    settings = settings_of(store)
    judges = _judges(store, settings)
    unseen = _unseen(store, judges is not None)
    if judges is not None:
        method, blocks = OTHER_SHARDS, _by_judges(store, settings, judges, progress)
    else:
        method, blocks = _by_head(store, settings, progress)
    of_judges = []
    if judges is not None:
        of_judges = [*outdated_notes(store, settings.keys), *kept_notes(store), *_one_sided(store)]
    says, ahead = (np.concatenate(part) for part in zip(*map(_judged, *zip(*blocks, strict=True)), strict=True))
    ids = [
        (name, shard.name, k) for shard in store.shards for name, k in zip(shard.sample_ids, shard.labels, strict=True)
    ]
    labels = np.array([k for _, _, k in ids])
    judged, order = ~np.isin(labels, unseen), np.argsort(ahead, kind="stable")
    listed = [
        Suspect(
            sample=ids[n][0],
            label=store.classes[ids[n][2]],
            says=store.classes[says[n]],
            margin=float(ahead[n]),
            shard=ids[n][1],
        )
        for n in order[judged[order]][:top]
    ]
    alike = settings.recipe.objective.class_weights == "none" and not private_parts(store)
    unknown = _unknown(store.classes, labels, says != labels, unseen, alike=alike)
    return SuspectsReport(
        store=store.path,
        root_digest=store.root_digest,
        method=method,
        rows=int(judged.sum()),
        disagreeing=int((says != labels)[judged].sum()),
        suspects=listed,
        notes=[*private_notes(store), *_unseen_note(store, unseen, judges is not None), *of_judges, *unknown],
    )


def _judges(store: FeatureStore, settings: Settings) -> Iterator[Component] | None:
    """For each training shard, the mean of the other shards' components; None if some shard has no others."""
    left = subtracted(store)
    names = [component_of(shard.name) for shard in store.shards if shard.name not in left]
    parts = StoredComponents(store, [name for name in names if name in store.objects()], settings.base)
    own = [component_of(shard.name) for shard in store.shards]
    if any(not parts.keys() - {name} for name in own):
        return None
    mean, many = compose(parts), len(parts)
    mu = {MEAN: many / (many - 1), OWN: -1 / (many - 1)}
    return (compose({MEAN: mean, OWN: parts[name]}, mu) if name in parts else mean for name in own)


def _one_sided(store: FeatureStore) -> list[str]:
    """A note on shards with few classes: their components favour those, yet count as much as the others."""
    classes = {shard.name: len(shard.statistics["rows_per_class"]) for shard in store.shards}
    few = [f"{name} ({count})" for name, count in classes.items() if 2 * count < len(store.classes)]
    if not few:
        return []
    return [
        f"shards with less than half of the {len(store.classes)} classes judge as much as the others, and rather say "
        f"those: {', '.join(few)}"
    ]


def _unseen(store: FeatureStore, by_others: bool) -> list[int]:
    """Classes that no judge of their rows has seen: all their rows are in one shard, or there is one row.

    Raises:
        StoreError: those are all that there are.
    """
    counts = [Counter(shard.statistics["rows_per_class"]) for shard in store.shards]
    seen = Counter(k for count in counts for k in (count if by_others else count.elements()))
    unseen = [k for k, times in sorted(seen.items()) if times == 1]
    if len(unseen) == len(seen):
        raise StoreError(
            "no label can be judged, for no judge has seen another row of its class",
            got=f"no class with {'rows in two shards' if by_others else 'two rows'}",
            do="append more rows of the same classes",
        )
    return unseen


def _unseen_note(store: FeatureStore, unseen: Sequence[int], by_others: bool) -> list[str]:
    """A note on the classes ``unseen``."""
    if not unseen:
        return []
    names = [store.classes[k] for k in unseen]
    rows = sum(shard.statistics["rows_per_class"].get(k, 0) for shard in store.shards for k in unseen)
    where = "in one shard alone" if by_others else "of a single row"
    return [
        f"not judged, for no judge has seen another such row: {counted(rows, 'row')} of {counted(len(names), 'class')} "
        f"{where}: {first_few(names)}"
    ]


def _unknown(
    classes: Sequence[str],
    labels: NDArray[np.int64],
    differs: NDArray[np.bool_],
    unseen: Collection[int],
    *,
    alike: bool,
) -> list[str]:
    """A note on classes of whose rows most ``differs`` [n] from the labels [n], which says more of the judge than of
    them; not on those ``unseen``, which have a note. ``alike``: the judge gives rows of all classes the same weight."""
    of, disputed = (np.bincount(part, minlength=len(classes)) for part in (labels, labels[differs]))
    most = np.flatnonzero((2 * disputed > of) & ((disputed >= LEAST) | (disputed == of)))
    found = sorted({*most.tolist()}.difference(unseen), key=lambda k: -disputed[k] / of[k])
    if not found:
        return []
    names = [
        f"{classes[k]} ({disputed[k]} of {counted(int(of[k]), 'row')}, {100 * of[k] / len(labels):.1f} % of all)"
        for k in found
    ]
    rare = 2 * len(classes) * of[found].min() < len(labels)
    return [
        f"most rows of {counted(len(names), 'class')} get another class than their label; either most of these "
        f"labels are wrong, or the judge does not know {them(len(names))}: {first_few(names)}"
        + ('; objective.class_weights = "balanced" weighs rare classes up' if alike and rare else "")
    ]


def _by_judges(
    store: FeatureStore, settings: Settings, judges: Iterator[Component], progress: Progress
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits [b,K] and labels [b] of all training rows, each shard's by its judge."""
    base, device = settings.base, resolve_device(settings.recipe.device)
    with progress.task("suspects", sum(shard.rows for shard in store.shards)) as task:
        for shard, judge in zip(store.shards, judges, strict=True):
            operator = TangentOperator(base, [shard], device=device)
            direction = operator.direction(judge.delta, judge.layout)
            for state, labels in operator.blocks():
                yield state.logits + operator.tangent(state, direction), labels
                task.advance(len(labels))


def _by_head(
    store: FeatureStore, settings: Settings, progress: Progress
) -> tuple[str, Iterator[tuple[Tensor, Tensor]]]:
    """The method in words, and logits and labels as in ``_by_judges``, each row judged by a head solved without it."""
    missing = "no shard's rows are judged by another shard's component"
    if private := private_parts(store):
        raise StoreError(
            f"{missing}, and a head of all rows would read those of private components without noise",
            got=", ".join(private),
            do="train more than one shard",
        )
    base, objective = untouched_base(store, settings), settings.objective(store.shards, "head")
    radius = settings.recipe.objective.radius
    if radius is not None or not objective.loss.quadratic:
        raise SolveError(
            f"{missing}, and a head has an exact leave-one-out only with a square loss and no ball",
            got=f"{objective.loss}" if radius is None else f"radius {radius}",
            do="train more than one shard",
        )
    needed = check_head_fits(settings, store.shards, "head", chosen=True, left_out=len(store.classes))
    how = settings.arithmetic_beside(needed)
    problem = pose(base, store.shards, objective, how, torch.float64)
    rows = problem.operator.rows
    with progress.task("λ of the head", None):
        groups = settings.groups(store.shards)
        ridge = choose_ridge(base, store.shards, objective, arithmetic=how, groups=groups).ridge
    with progress.task("leave-one-out of the head", rows) as task:
        # without the row, λ stands beside a mean over one row less; here, beside a mean over all rows
        blocks = list(head_of(problem).at(ridge * (rows - 1) / rows).left_out_logits(task.advance))
    return f"the head solved without the row (exact leave-one-out, λ = {ridge:.1e})", iter(blocks)


def _judged(logits: Tensor, labels: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The classes [b] that the logits [b,K] predict, and the margins [b] of the labels."""
    z = logits.cpu().numpy()
    return z.argmax(1), margins(z, labels.cpu().numpy())
