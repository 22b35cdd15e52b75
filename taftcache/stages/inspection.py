"""What a store holds, from its manifests alone: instant at any size."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taftcache.cache import FeatureStore
from taftcache.errors import RecipeError
from taftcache.tangent.spec import TAIL


@dataclass(frozen=True)
class InspectReport:
    """A store's contents in JSON types."""

    store: Path
    root_digest: str
    bytes: int
    rows: int
    classes: list[str]
    rows_per_class: dict[str, int]
    cut: dict[str, Any]
    tangent: dict[str, str]
    dtype: str
    identity: dict[str, Any]
    plan: dict[str, Any]
    shards: list[dict[str, Any]]
    models: list[dict[str, Any]]
    skipped: int
    forgotten: int
    ledger_entries: int


def inspect(store: FeatureStore) -> InspectReport:
    """Shards, classes, fingerprints, components and certificates; statistics are those gathered at extraction."""
    shards, per_class = [], Counter[int]()
    for ref in store.manifest.shards:
        shard = store.shard(ref.name)
        shards.append(
            {
                "name": ref.name,
                "role": ref.role,
                "rows": ref.rows,
                "bytes": shard.nbytes,
                "chunk_rows": shard.chunk_rows,
                "digest": ref.digest,
                "max_abs": shard.statistics["max_abs"],
                "mean_token_norm": shard.statistics["mean_token_norm"],
                "classes": len(shard.statistics["rows_per_class"]),
            }
        )
        if ref.role == "train":
            per_class.update(shard.statistics["rows_per_class"])
    models = [
        {
            "name": name,
            "bytes": ref.size,
            "digest": ref.digest,
            **{
                k: ref.meta[k]
                for k in ("base_digest", "norm", "rows", "converged", "status", "certificate", "stats", "ridge_choice")
                if k in ref.meta
            },
        }
        for name, ref in store.objects().items()
        if name.startswith(("components/", "models/"))
    ]
    return InspectReport(
        store=store.path,
        root_digest=store.root_digest,
        bytes=store.nbytes,
        rows=sum(s["rows"] for s in shards if s["role"] == "train"),
        classes=store.classes,
        rows_per_class={store.classes[k]: per_class.get(k, 0) for k in range(len(store.classes))},
        cut=store.identity["cut"],
        tangent={k: store.objects()[TAIL].meta[k] for k in ("path", "why")} if TAIL in store.objects() else {},
        dtype=store.identity["dtype"],
        identity=store.identity,
        plan=store.manifest.plan,
        shards=shards,
        models=models,
        skipped=len(store.manifest.skipped),
        forgotten=len(store.manifest.tombstones),
        ledger_entries=store.manifest.ledger.entries if store.manifest.ledger else 0,
    )


@dataclass(frozen=True)
class SampleReport:
    """One sample: where it lies, its class, and statistics of its cached tokens."""

    sample: str
    shard: str
    row: int
    label: str
    first_token_norm: float
    mean_token_norm: float
    max_abs: float


def inspect_sample(store: FeatureStore, sample: str) -> SampleReport:
    """Where a sample lies and what is cached of it; UnknownSample names the nearest ids."""
    import numpy as np

    shard, row = store.locate(sample)
    tokens = shard.tokens(slice(row, row + 1))[0].astype(np.float64)
    norms = np.linalg.norm(tokens, axis=1)
    return SampleReport(
        sample,
        shard.name,
        row,
        store.classes[shard.labels[row]],
        float(norms[0]),
        float(norms.mean()),
        float(np.abs(tokens).max()),
    )


def list_samples(store: FeatureStore, shard: str | None = None, label: str | None = None) -> list[dict[str, str]]:
    """Ids with shard and class, of one shard, one class or all training rows."""
    if label is not None and label not in store.classes:
        raise RecipeError("a class is one of the store's", got=label, do=f"one of {', '.join(store.classes)}")
    chosen = [store.shard(shard)] if shard is not None else store.shards
    return [
        {"sample": i, "shard": part.name, "label": store.classes[k]}
        for part in chosen
        for i, k in zip(part.sample_ids, part.labels.tolist(), strict=True)
        if label is None or store.classes[k] == label
    ]
