"""Small stores whose rows can be told from their ids alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3

from taftcache.cache.format.encoding import as_read, rows_dtype
from taftcache.cache.format.manifest import PREVIOUS
from taftcache.cache.format.parts import Skipped
from taftcache.cache.format.plan import in_order
from taftcache.cache.store import FeatureStore

SHAPE = (3, 8)
CLASSES = ["ant", "bee", "cat"]
IDENTITY = {"weights": "sha256:00", "cut": {"block": 11}, "preprocess": [224, 224]}
NO_ROWS = np.empty((0, *SHAPE))


def row(sample_id: str, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    """[t, d] in [-1, 1), from the id."""
    raw = blake3(sample_id.encode()).digest(4 * shape[0] * shape[1])
    return (np.frombuffer(raw, "<u4").astype(np.float64) / 2**31 - 1).reshape(shape)


def kept(sample_id: str, dtype: str = "float16") -> np.ndarray:
    """The row as a store has it."""
    return as_read(row(sample_id)[None].astype(rows_dtype(dtype)), dtype)[0]


def label(sample_id: str) -> int:
    return blake3(sample_id.encode()).digest()[0] % len(CLASSES)


def names(n: int, stem: str = "img") -> list[str]:
    """``n`` ids in canonical order."""
    return in_order([f"{stem}/{i:04d}.png" for i in range(n)], 0)


def create(path: Path, **fields: object) -> FeatureStore:
    given = {"identity": IDENTITY, "classes": CLASSES, "plan": {"plan": "hash", "seed": 0}, "recipe": {}} | fields
    return FeatureStore.create(path, **given)  # type: ignore[arg-type]


def fill(
    store: FeatureStore,
    name: str,
    ids: Sequence[str],
    *,
    role: str = "train",
    batch: int = 5,
    chunk_rows: int = 4,
    stop: int | None = None,
    bad: Sequence[str] = (),
    dtype: str = "float16",
) -> int:
    """Extract ``ids`` into a shard as a run would; give up after ``stop`` batches. Returns where it resumed."""
    with store.writer(
        name,
        role,
        chunk_rows=chunk_rows,
        dtype=dtype,
        tokens_shape=SHAPE,
        candidates=ids,
    ) as writer:
        resumed = writer.consumed
        if stop == 0:
            return resumed
        for count, at in enumerate(range(resumed, len(ids), batch)):
            if count == stop:
                return resumed
            group = ids[at : at + batch]
            good = [i for i in group if i not in bad]
            tokens = np.stack([row(i) for i in good]) if good else NO_ROWS
            writer.append(tokens, good, [label(i) for i in good], [Skipped(i, "unreadable") for i in group if i in bad])
        writer.commit()
    return resumed


def forget(path: Path, *ids: str) -> None:
    """Erase rows of a store, with an entry in its ledger."""
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.erase(ids)
        change.record({"event": "forget"})


def written(path: Path, ids: Sequence[str], dtype: str = "float16", **entry: object) -> Path:
    """A store of one shard and one component, and of one entry in its ledger where there is one."""
    with create(path) as store:
        fill(store, "000", ids, dtype=dtype)
        with store.transaction() as change:
            change.put("components/000", b"x" * 32)
            if entry:
                change.record(entry)
    return path


def tree(path: Path, *, but: Sequence[str] = ()) -> dict[str, bytes]:
    """Every file below ``path`` but the lock and the way back, which are in no digest: relative name -> bytes."""
    files = sorted(p for p in path.rglob("*") if p.is_file() or p.is_symlink())
    found = {p.relative_to(path).as_posix(): p.read_bytes() for p in files}
    return {k: v for k, v in found.items() if k not in ("lock", PREVIOUS) and not any(k.startswith(b) for b in but)}


def holds(store: FeatureStore, ids: Sequence[str], dtype: str = "float16") -> bool:
    """Whether the store's rows of ``ids`` are the ones that `fill` wrote."""
    for i in ids:
        shard, at = store.locate(i)
        if not np.array_equal(shard.tokens(slice(at, at + 1))[0], kept(i, dtype)) or shard.labels[at] != label(i):
            return False
    return True
