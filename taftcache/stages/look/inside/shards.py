"""One shard, and how reports describe a shard or a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taftcache.cache.format.manifest import ObjectRef
from taftcache.cache.opening import Place, at_its_place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError
from taftcache.model.meta import loss_of, of_each_class, ridge_of
from taftcache.model.outdated import Keys
from taftcache.names import PRIVATE, STATED, component_of
from taftcache.stages.completeness import subtracted_among
from taftcache.stages.look.inside.statistics import Activations, activations
from taftcache.stages.look.seen import kept_notes
from taftcache.stages.report import Report
from taftcache.stages.train.outdated import outdated_notes

# The keys of a model's meta that are listed.
LISTED = (
    "base_digest",
    "norm",
    "rows",
    "imported",
    "converged",
    "status",
    "certificate",
    "stats",
    "convergence",
    "coefficients",
    "ridge_choice",
    PRIVATE,
    STATED,
)
NAMED = 10  # how many samples of a shard or a class are named


@dataclass(frozen=True, kw_only=True)
class ShardFigures:
    """What reports say of a shard.

    name: ``held-out`` for held-out rows. rows: how many. dtype: as they are stored. chunk_rows: how many a file has.
    digest: names its bytes. max_abs: the largest |x|. mean_token_norm: mean of ‖x‖ over rows and tokens. classes: how
    many have rows. fewest, most: rows of a class that has any. rows_per_class: rows, by class.
    """

    name: str
    role: str
    rows: int
    bytes: int
    dtype: str
    chunk_rows: int
    digest: str
    max_abs: float
    mean_token_norm: float
    classes: int
    fewest: int
    most: int
    rows_per_class: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class ShardReport(Report):
    """One shard.

    shard: as in ``shards`` of a store. rows_per_class: rows, by class. activations: statistics of
    its rows. component: as in ``models`` of a store; None if there is none. first_samples: a few ids. notes: whether
    the shard was subtracted, and whether its component is outdated.
    """

    store: Path
    shard: ShardFigures
    rows_per_class: dict[str, int]
    activations: Activations
    component: dict[str, Any] | None
    first_samples: list[str]
    notes: list[str] = field(default_factory=list)


@at_its_place()
def inspect_shard(store: Place, name: str) -> ShardReport:
    """One shard: its description, balance and activations, and its component; StoreError, for an unknown shard, names
    those there are."""
    assert isinstance(store, FeatureStore)
    shard, component = store.shard(name), component_of(name)
    ref = store.objects().get(component)
    described = describe_shard(shard, store.classes)
    return ShardReport(
        store=store.path,
        shard=described,
        rows_per_class=described.rows_per_class,
        activations=activations(store, name),
        component=describe_model(component, ref, ref.whole_meta()) if ref is not None else None,
        first_samples=shard.sample_ids[:NAMED],
        notes=[
            *subtracted_among(store, {name: shard.rows}),
            *outdated_recorded(store, component),
        ],
    )


def outdated_recorded(store: FeatureStore, model: str | None = None) -> list[str]:
    """Notes on what was made from other rows or settings, or if ``model`` was; none if this release does not know the
    recorded settings."""
    try:
        return [*outdated_notes(store, Keys.recorded(store), model), *kept_notes(store, model)]
    except FormatError:
        return []


def describe_shard(shard: Shard, classes: Sequence[str]) -> ShardFigures:
    """What reports say of a shard."""
    statistics = shard.statistics
    counts = statistics["rows_per_class"]
    return ShardFigures(
        name=shard.name,
        role=shard.role,
        rows=shard.rows,
        bytes=shard.nbytes,
        dtype=shard.stored_as,
        chunk_rows=shard.chunk_rows,
        digest=shard.digest,
        max_abs=statistics["max_abs"],
        mean_token_norm=statistics["mean_token_norm"],
        classes=len(counts),
        fewest=min(counts.values()),
        most=max(counts.values()),
        rows_per_class={classes[k]: n for k, n in counts.items()},
    )


def describe_model(name: str, ref: ObjectRef, meta: dict[str, Any]) -> dict[str, Any]:
    """What reports say of a component or a sum, whose whole description is ``meta``."""
    listed = {k: meta[k] for k in LISTED if k in meta}
    parts = listed.get("coefficients")
    if parts and of_each_class(parts):
        listed["coefficients"] = len(parts)  # there may be hundreds of thousands
    problem = {"loss": loss_of(meta), "ridge": ridge_of(meta)}
    solved = {key: value for key, value in problem.items() if value is not None}
    return {"name": name, "bytes": ref.size, "digest": ref.digest, **solved, **listed}
