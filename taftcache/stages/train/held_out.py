"""Which held-out rows models classify correctly, and how that changed when models were made anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from taftcache.backbone.device import resolve_device
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, recorded_recipe
from taftcache.errors import TaftcacheError, first_line
from taftcache.model.calibration import FIRST
from taftcache.model.component import StoredComponents, read_base
from taftcache.names import UNTOUCHED, model_of
from taftcache.recipe import Recipe
from taftcache.report.paired import RowGroups, row_verdict
from taftcache.stages.memory import memory_of_models
from taftcache.stages.progress import Progress, Silent
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator

# Of logits of a model, but at least the rows that a temperature is fitted to: more rows change little of what its
# probabilities are worth.
KEPT_BYTES = 32 << 20


@dataclass(frozen=True)
class KeptLogits:
    """Logits that a pass over held-out rows keeps: of the first ``rows`` = m, ``logits`` [m,K] by model."""

    rows: int
    logits: dict[str, NDArray[np.float32]]

    @classmethod
    def of(cls, shard: Shard, names: Iterable[str], classes: int) -> KeptLogits:
        """Room for the models ``names``: for all rows of the shard or, above KEPT_BYTES, for the first ones."""
        rows = min(shard.rows, max(FIRST, KEPT_BYTES // (4 * classes)))
        return cls(rows, {name: np.empty((rows, classes), np.float32) for name in names})

    def take(self, name: str, start: int, logits: Tensor) -> None:
        """Keep what is wanted of a model's logits [b,K] of the rows ``start …``."""
        if name in self.logits and start < self.rows:
            mine = logits[: self.rows - start]
            self.logits[name][start : start + len(mine)] = mine.float().cpu().numpy()


def predicted_by(
    base: Base,
    recipe: Recipe,
    rows: Shard,
    models: StoredComponents,
    progress: Progress,
    kept: KeptLogits | None = None,
) -> dict[str, NDArray[np.int64]]:
    """The class [N] that the untouched network and each model give to each row: in one pass for all models that the
    recipe's memory has room for. ``kept`` takes their logits on the way."""
    operator = TangentOperator(base, [rows], device=resolve_device(recipe.device))
    groups = list(models.groups(memory_of_models(recipe)))
    predicted: dict[str, NDArray[np.int64]] = {}
    with progress.task("evaluate", rows.rows * len(groups)) as task:
        for names in groups:
            directions = {} if predicted else {UNTOUCHED: None}
            read = ((name, models[name]) for name in names)
            directions |= {name: operator.direction(model.delta, model.layout) for name, model in read}
            # once for all rows: a small array of each block, kept, would lie in the place of the block's logits, so
            # that those of the next found none, and all of them stayed
            predicted |= {name: np.empty(rows.rows, np.int64) for name in directions}
            start = 0
            for state, labels in operator.blocks():
                for name, direction in directions.items():
                    z = state.logits if direction is None else state.logits + operator.tangent(state, direction)
                    predicted[name][start : start + len(z)] = z.argmax(1).cpu().numpy()
                    if kept is not None:
                        kept.take(name, start, z)
                start += len(labels)
                task.advance(len(labels))
    return predicted


def predicted_of(
    store: FeatureStore, name: str, rows: Shard, consent: Consent | None = None, kept: KeptLogits | None = None
) -> NDArray[np.int64]:
    """The class that one model gives to each of ``rows`` [n]; errors as for ``read_base``. ``kept``: see
    ``predicted_by``."""
    recipe = recorded_recipe(store)
    base = read_base(store, recipe.tangent, consent=consent)
    return predicted_by(base, recipe, rows, StoredComponents(store, [name], base), Silent(), kept)[name]


@dataclass(frozen=True, kw_only=True)
class HeldOutHits:
    """Which held-out rows, by ``ids`` [n], a store's default ``model`` classifies correctly: ``right`` [n].

    groups: None where no two rows share one (``data.group``). classes: the store's. predicted: the index of one of them
    for each row [n]. logits: [n, K], or None where they take more than KEPT_BYTES.
    """

    model: str
    ids: NDArray[np.str_]
    groups: RowGroups | None
    right: NDArray[np.bool_]
    classes: NDArray[np.object_]
    predicted: NDArray[np.int64]
    logits: NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True)
class HeldOutChange:
    """A store's default model before something was done, and after it.

    models: before and after. rows: how many were held out both times. accuracy: before and after, 0 to 1. gain: by how
    much the accuracy rose. interval: 95 % interval of the gain. verdict: what the interval says. See
    ``paired.row_verdict``. groups: how many groups (``data.group``) the interval and the verdict were judged by; None
    where no two rows share one; of 1 there is no interval, which is then from −1 to 1. labels_changed: how many of
    the rows get another class. largest_change: the most by which a logit of theirs moved, of a class that is there both
    times; None if the logits of all rows take more than 32 MiB.
    """

    models: tuple[str, str]
    rows: int
    accuracy: tuple[float, float]
    gain: float
    interval: tuple[float, float]
    verdict: Literal["ahead", "within noise", "behind"]
    labels_changed: int
    largest_change: float | None
    groups: int | None = None


def row_groups(store: FeatureStore, ids: Sequence[str]) -> RowGroups | None:
    """Which rows with these ``ids`` belong together by the store's ``data.group``; None where no two do."""
    return RowGroups.of(recorded_recipe(store).data.groups(ids))


def held_out_hits(store: FeatureStore) -> HeldOutHits | None:
    """The default model's hits, in one pass; None without held-out rows or a model. Errors as for ``read_base``."""
    model = model_of(store.objects())
    if store.held_out is None or model not in store.objects():
        return None
    rows = store.held_out
    kept = KeptLogits.of(rows, [model], len(store.classes))
    predicted = predicted_of(store, model, rows, kept=kept)
    return HeldOutHits(
        model=model,
        ids=np.asarray(rows.sample_ids),
        groups=row_groups(store, rows.sample_ids),
        right=predicted == rows.labels,
        classes=np.array(store.classes, object),
        predicted=predicted,
        logits=kept.logits[model] if kept.rows == rows.rows else None,
    )


def held_out_change(before: HeldOutHits | None, after: HeldOutHits | None) -> HeldOutChange | None:
    """Compare a store's hits before and after a change; None if they share no row."""
    if before is None or after is None:
        return None
    shared, earlier, later = np.intersect1d(before.ids, after.ids, assume_unique=True, return_indices=True)
    if not len(shared):
        return None
    was, now = before.right[earlier], after.right[later]
    groups = after.groups and after.groups.take(later)
    gain, interval, verdict, judged_by = row_verdict(now, was, groups)
    return HeldOutChange(
        models=(before.model, after.model),
        rows=len(shared),
        accuracy=(float(was.mean()), float(now.mean())),
        gain=gain,
        interval=interval,
        verdict=verdict,
        labels_changed=int((before.classes[before.predicted[earlier]] != after.classes[after.predicted[later]]).sum()),
        largest_change=_largest_change(before, earlier, after, later),
        groups=judged_by,
    )


def _largest_change(
    before: HeldOutHits, earlier: NDArray[np.int64], after: HeldOutHits, later: NDArray[np.int64]
) -> float | None:
    """The most by which a logit of rows ``earlier`` [m] before, ``later`` [m] after, moved."""
    if before.logits is None or after.logits is None:
        return None
    _, was, now = np.intersect1d(before.classes.astype(str), after.classes.astype(str), return_indices=True)
    moved = after.logits[np.ix_(later, now)] - before.logits[np.ix_(earlier, was)]
    return float(np.abs(moved).max(initial=0))


def hits_or_note(store: FeatureStore) -> tuple[HeldOutHits | None, list[str]]:
    """``held_out_hits``, or a note on why they are not known: that must not stop the command that asks for them."""
    try:
        return held_out_hits(store), []
    except (TaftcacheError, RuntimeError, MemoryError) as error:  # torch raises RuntimeError for a full GPU
        return None, [f"what became of the held-out accuracy is not known: {first_line(error)}"]
