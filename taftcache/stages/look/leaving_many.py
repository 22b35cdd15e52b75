"""What forgetting several rows changes of the components and their mean: each shard's solved without its own of them.

The same solves as ``leaving`` makes for one row; nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.model.component import Component
from taftcache.names import component_of, is_component
from taftcache.stages.look.leaving import ModelPart, ModelParts
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import HeldOutLogits, Scorer
from taftcache.stages.progress import Progress


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
class RowsLeftOut:
    """What leaving rows out changes.

    solved: the components that were solved again. dropped: those of shards that are left without a row. Of the
    ``held_out`` rows that stay, ``changed`` get another class by the mean of the components; ``accuracy``: of that mean
    on them, before and after. The last three are None where no held-out rows are scored, or no component is left.
    """

    solved: dict[str, SolvedAgain]
    dropped: list[str]
    changed: int | None = None
    held_out: int | None = None
    accuracy: tuple[float, float] | None = None


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
        part = parts.part_of(shard)
        without = parts.solve_without(part, shard, rows)
        delta = without.delta - part.component.delta
        steps.append((part, delta))
        solved[name] = _solved(without, part, delta)
    held = store.held_out
    if kept is None or held is None:
        return RowsLeftOut(solved=solved, dropped=dropped)
    return _compared(scorer, held, kept, leaving.get(held.name, ()), solved, dropped, steps)


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
            "a class would leave with its last training row, and with it a column of every component",
            got=", ".join(gone_classes),
            do="taftcache forget --dry-run says what that costs",
        )


def _solved(without: Component, part: ModelPart, delta: torch.Tensor) -> SolvedAgain:
    return SolvedAgain(
        ridge=(part.component.meta["certificate"]["ridge"], without.meta["certificate"]["ridge"]),
        status=without.meta["status"],
        passes=without.meta["stats"]["passes"],
        moved=float(delta.norm()),
        norm=float(part.component.delta.norm()),
        distance_bound=without.meta["certificate"]["distance_bound"],
    )


def _compared(
    scorer: Scorer,
    held: Shard,
    kept: HeldOutLogits,
    gone: Sequence[int],
    solved: dict[str, SolvedAgain],
    dropped: list[str],
    steps: Sequence[tuple[ModelPart, torch.Tensor]],
) -> RowsLeftOut:
    """The mean of the components before and after, on the held-out rows that stay."""
    members = [name for name in scorer.models if is_component(name)]
    left = [k for k, name in enumerate(members) if name not in dropped]
    stay = np.flatnonzero(~np.isin(kept.rows, np.asarray(gone, np.int64)))
    if not left or not len(stay):
        return RowsLeftOut(solved=solved, dropped=dropped)
    labels, rows = kept.labels[stay], kept.rows[stay]
    change = np.zeros((len(stay), kept.base.shape[1]), np.float32)
    for k in range(0, len(stay), STEP_ROWS) if steps else ():
        change[k : k + STEP_ROWS] = _tangents(scorer, held.tokens(rows[k : k + STEP_ROWS]), steps)
    old = (kept.base + kept.tangents.mean(0))[stay].argmax(1)
    new = (kept.base[stay] + (kept.tangents[left].sum(0)[stay] + change) / len(left)).argmax(1)
    return RowsLeftOut(
        solved=solved,
        dropped=dropped,
        changed=int((old != new).sum()),
        held_out=len(stay),
        accuracy=(float((old == labels).mean()), float((new == labels).mean())),
    )


def _tangents(
    scorer: Scorer, tokens: NDArray[np.generic], steps: Sequence[tuple[ModelPart, torch.Tensor]]
) -> NDArray[np.float32]:
    """Σ J δ [b,K] over the changes of the components."""
    return np.asarray(sum(scorer.tangent(tokens, part.component.layout, delta) for part, delta in steps))
