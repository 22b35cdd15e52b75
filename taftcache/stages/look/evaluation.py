"""Accuracy on the held-out rows of every model that a store holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from taftcache.backbone.device import resolve_device
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.model.component import read_component
from taftcache.model.composition import compose
from taftcache.names import is_component, is_model
from taftcache.stages.look.scoring import kept_components
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.train.record import settings_of
from taftcache.tangent.operator import TangentOperator

UNTOUCHED = "base model untouched"


@dataclass(frozen=True, kw_only=True)
class EvaluateReport:
    """Top-1 accuracy by model over ``rows`` held-out rows."""

    store: Path
    root_digest: str
    rows: int
    accuracy: dict[str, float]


def evaluate(
    store: FeatureStore, progress: Progress | None = None, rows: Shard | None = None, without: Sequence[str] = ()
) -> EvaluateReport:
    """Top-1 of the base point, every component and every model on the held-out group (or ``rows``), in one pass.

    ``without`` names shards: the mean of all other shards' components is one model more.

    Raises:
        StoreError: the store has no held-out rows. RecipeError: no component is left.
    """
    rows = rows or store.held_out
    if rows is None:
        raise StoreError(
            f"{store.path} has no held-out rows to measure an accuracy on",
            got="training rows alone",
            do="extract with data.test, or with data.held_out above 0",
        )
    settings = settings_of(store)
    base, device = settings.base, resolve_device(settings.recipe.device)
    names = [name for name in store.objects() if is_model(name)]
    components = [read_component(store, name, base) for name in names]
    if without:
        every = [name for name in names if is_component(name)]
        kept = kept_components(every, without)
        components.append(compose({name: components[names.index(name)] for name in kept}))
        names.append(f"mean of {len(kept)} of {len(every)} components")
    operator = TangentOperator(base, [rows], device=device)
    directions = [base.tail.bind(c.layout.views(c.delta.to(device=device, dtype=operator.dtype))) for c in components]
    correct = torch.zeros(1 + len(names), dtype=torch.int64)
    with (progress or Silent()).task("evaluate", rows.rows) as task:
        for state, labels in operator.blocks():
            logits = [state.logits] + [state.logits + operator.tangent(state, d) for d in directions]
            correct += torch.stack([(z.argmax(1) == labels).sum().cpu() for z in logits])
            task.advance(len(labels))
    accuracy = (correct / rows.rows).tolist()
    return EvaluateReport(
        store=store.path,
        root_digest=store.root_digest,
        rows=rows.rows,
        accuracy=dict(zip([UNTOUCHED, *names], accuracy, strict=True)),
    )
