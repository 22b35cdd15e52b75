"""One sample, and the list of all that can be forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.store import FeatureStore
from taftcache.names import component_of
from taftcache.stages.look.inside.classes import class_index
from taftcache.stages.look.inside.shards import outdated_recorded
from taftcache.stages.look.row_table import Sample, every_sample
from taftcache.stages.look.seen import UNCOVERED
from taftcache.stages.look.vectors import starts_blank
from taftcache.stages.report import Report
from taftcache.tangent.spec import TAIL


@dataclass(frozen=True, kw_only=True)
class SampleReport(Report):
    """One sample: where it lies, its class, statistics of its cached rows, and what every model says of it.

    row: its number in the shard, from 0. first_token_norm, mean_token_norm: norm of its first token, and mean norm of
    its tokens. max_abs: its largest absolute value. predictions: by model: class, logit of its own class, margin over
    the best other class. "base" is the untouched one, unless its head begins at zero; the margin is None where there is
    no other class. moved_bound: the most that forgetting it can move its shard's component. None for held-out rows, and
    if the component is not a solution of the rows that are there. notes: which models are outdated, and what the
    promise of private models does not cover of all this.
    """

    sample: str
    shard: str
    row: int
    label: str
    first_token_norm: float
    mean_token_norm: float
    max_abs: float
    predictions: dict[str, dict[str, Any]]
    moved_bound: float | None
    notes: list[str] = field(default_factory=list)


@at_its_place()
def inspect_sample(store: Place, sample: str) -> SampleReport:
    """Where a sample lies, what is cached of it and what the models say; UnknownSample names similar ids."""
    assert isinstance(store, FeatureStore)
    shard, row = store.locate(sample)
    tokens = shard.tokens(slice(row, row + 1))
    wide = tokens[0].astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    label = int(shard.labels[row])
    predictions: dict[str, dict[str, Any]] = {}
    bound = None
    notes: list[str] = []
    if TAIL in store.objects():
        from taftcache.stages.look.scoring import Scorer, margins  # loads torch

        scorer = Scorer(store)
        z, changes = scorer.logits(tokens, scorer.models)
        logits = np.concatenate([z, (z + changes)[:, 0]])
        beyond = margins(logits, np.full(len(logits), label, np.int32))
        every = list(zip(["base", *scorer.models], logits, beyond, strict=True))
        for name, of_model, margin in every[starts_blank(store) :]:  # such a base tells no class from another
            predictions[name] = {
                "label": store.classes[int(of_model.argmax())],
                "logit": float(of_model[label]),
                "margin": None if np.isnan(margin) else float(margin),
            }
        own = component_of(shard.name)
        if shard.role == "train" and scorer.is_weighed(own):
            bound = float(scorer.moved_at_most(tokens, shard.labels[row : row + 1], own)[0])
        notes += outdated_recorded(store)
        if scorer.is_private(own):
            notes.append(f"{own} is private: {UNCOVERED}")
    return SampleReport(
        sample=sample,
        shard=shard.name,
        row=row,
        label=store.classes[label],
        first_token_norm=float(norms[0]),
        mean_token_norm=float(norms.mean()),
        max_abs=float(np.abs(wide).max()),
        predictions=predictions,
        moved_bound=bound,
        notes=notes,
    )


@at_its_place()
def list_samples(store: Place, *, shard: str | None = None, label: str | None = None) -> list[Sample]:
    """All samples that can be forgotten, or those of one ``shard``, of the class ``label``.

    Training rows, held-out ones, those that extraction skipped, and those of an unfinished extraction.

    Raises:
        StoreError: no such shard or class.
    """
    assert isinstance(store, FeatureStore)
    if shard is not None and shard not in store.staged_ids():
        store.shard(shard)
    if label is not None:
        class_index(store, label)
    return [s for s in every_sample(store, shard) if label in (None, s.label)]
