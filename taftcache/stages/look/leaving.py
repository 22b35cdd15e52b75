"""What one or several training rows changed: their shards' components, and predictions on held-out rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError
from taftcache.names import component_of, counted, is_component
from taftcache.objective.problem import Problem
from taftcache.report.paired import RowVerdict, row_verdict
from taftcache.solve.head.size import HeadSize
from taftcache.solve.leave_one_out import moves
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import HeldOutLogits, Scorer
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.without import ModelPart, ModelParts, bounds_of, ridges
from taftcache.tangent.operator import TangentOperator

Moves = NDArray[np.float64]


# Multiplications that a page may cost, summed over the shards: some ten seconds on one core.
WORK = 4 * 4096.0**3


def moved_by_each(store: FeatureStore, scorer: Scorer, shards: Sequence[Shard]) -> Iterator[tuple[Shard, Moves | None]]:
    """Each of ``shards`` with how far each of its rows moved its component, ‖Δw₋ₙ − Δw‖ [N]; None if that has no
    closed form (a private component, or an objective that is not quadratic or has weights, a ball or a prior), or if
    the component was not solved from the rows that the shard has now.

    Raises:
        StoreError: the inversions would take more than ``WORK``.
    """
    weighed = [shard for shard in shards if scorer.is_weighed(component_of(shard.name)) and scorer.loss.quadratic]
    if sum(_work(scorer, shard) for shard in weighed) > WORK:
        raise StoreError(
            "no exact influence of every sample: it would take too long for a page",
            got=f"{counted(max(shard.rows for shard in weighed), 'row')} of {counted(len(store.classes), 'class')} in a"
            f" shard, {counted(len(weighed), 'shard')}",
            do="choose a sample and solve without it",
        )
    for shard in shards:
        yield shard, _moves(store, component_of(shard.name), shard) if shard in weighed else None


def _work(scorer: Scorer, shard: Shard) -> float:
    """About how many multiplications inverting takes: n³ for the kernel of a shard's rows and classes; for a head, n³
    for the products of few rows, else each row with the matrix that classes share and the columns of their own."""
    classes, n = scorer.base.config.classes, scorer.base.config.width + 1
    if scorer.layouts[component_of(shard.name)] != scorer.base.head_layout:
        return float(shard.rows * classes) ** 3
    size = HeadSize(scorer.loss, shard.rows, n, classes)
    return 3.0 * shard.rows**3 if size.by_rows else 3.0 * shard.rows * n * (n + size.own_columns)


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
    """The mean of the components on the ``held_out`` rows that stay: how many get another class (``changed``), its
    ``accuracy`` before and after, and the ``gain``. All are None if no held-out rows are scored, or no component is
    left."""

    changed: int | None = None
    held_out: int | None = None
    accuracy: tuple[float, float] | None = None
    gain: RowVerdict | None = None


@dataclass(frozen=True, kw_only=True)
class SolvedAgain:
    """One component solved without some rows of its shard. ``moved``: ‖Δw without them − Δw‖, exact to
    ``distance_bound``. ``norm``: ‖Δw‖. ``ridge``: λ before and after, which "auto" chooses anew."""

    ridge: tuple[float, float]
    status: str
    passes: int
    moved: float
    norm: float
    distance_bound: float


@dataclass(frozen=True, kw_only=True)
class RowLeftOut(OnHeldOut, SolvedAgain):
    """A shard's component without one of its rows, and what changes; ``before`` and ``after``: that row's logits."""

    before: LogitsOf
    after: LogitsOf


def leave_out(
    store: FeatureStore, scorer: Scorer, shard: Shard, row: int, kept: HeldOutLogits | None, progress: Progress
) -> RowLeftOut:
    """Solve the component of a training shard without a row, as ``taftcache forget`` would, and compare, also on
    held-out rows if their logits were ``kept``."""
    part, delta, solved = _without(store, shard, row, progress)
    members = [name for name in scorer.models if is_component(name)]
    tokens = shard.tokens(slice(row, row + 1))
    z, changes = scorer.logits(tokens, members)
    step = scorer.tangent(tokens, part.component.layout, delta)
    mean, own = z + changes.mean(0), z + changes[members.index(part.name)]
    return RowLeftOut(
        **vars(solved),
        before=LogitsOf(component=own[0].tolist(), mean=mean[0].tolist()),
        after=LogitsOf(component=(own + step)[0].tolist(), mean=(mean + step / len(members))[0].tolist()),
        **vars(_compared(scorer, store.held_out, kept, [(part, delta)])),
    )


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

    Private components stay as they are, as they would there. ``leaving`` has row numbers by the name of their shard,
    the held-out one too; ``kept`` has the logits of the held-out rows to compare on, if there are any.

    Raises:
        RecipeError: a class would be left without a training row: then every component has to be solved again.
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
        part, delta, solved[name] = _without(store, shard, rows, progress)
        steps.append((part, delta))
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
            "cannot leave out a class's last training row: every component would lose a column",
            got=", ".join(gone_classes),
            do="taftcache forget --dry-run says what that costs",
        )


def _without(
    store: FeatureStore, shard: Shard, rows: int | Sequence[int], progress: Progress
) -> tuple[ModelPart, torch.Tensor, SolvedAgain]:
    """The component of ``shard``, its change δ [P] without ``rows``, and a summary of the solve."""
    parts = ModelParts(store, component_of(shard.name), progress)
    parts.check_current()
    part = parts.part_of(shard)
    without = parts.solve_without(part, shard, rows)
    delta, said = without.delta - part.component.delta, without.record
    return (
        part,
        delta,
        SolvedAgain(
            ridge=ridges(part, without),
            status=said.ending,
            passes=said.passes,
            moved=float(delta.norm()),
            norm=float(part.component.delta.norm()),
            distance_bound=bounds_of(part, without),
        ),
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
        tokens = held.tokens(rows[k : k + STEP_ROWS])
        change[k : k + STEP_ROWS] = sum(scorer.tangent(tokens, part.component.layout, delta) for part, delta in steps)
    old = (kept.base + kept.tangents.mean(0))[stay].argmax(1)
    new = (kept.base[stay] + (kept.tangents[left].sum(0)[stay] + change) / len(left)).argmax(1)
    return OnHeldOut(
        changed=int((old != new).sum()),
        held_out=len(stay),
        accuracy=(float((old == labels).mean()), float((new == labels).mean())),
        gain=row_verdict(new == labels, old == labels, kept.groups and kept.groups.take(stay)),
    )
