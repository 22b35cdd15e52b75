"""One vector a sample, out of what is cached of it: what maps, neighbours and projectors work on."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError
from taftcache.names import tail_text, typed
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.progress import Progress
from taftcache.tangent.spec import TAIL


def has_tail(store: FeatureStore) -> bool:
    """Whether the store holds a tail to compute logits with."""
    return TAIL in store.objects()


def cut_of(store: FeatureStore) -> dict[str, Any]:
    """Where the rows were taken and what they are, ``tail`` in words; FormatError where the store does not say how they
    were made."""
    identity = store.identity
    needed = {"": ("backbone", "cut", "dtype"), "backbone": ("model", "weights", "weights_digest")}
    for section, keys in (needed | {"cut": ("start", "rows", "shape")}).items():
        there = identity[section] if section else identity
        if missing := [key for key in keys if key not in there]:
            raise FormatError(
                "the store does not say how its rows were made",
                got=f"an identity without {f'{section}.{missing[0]}'.lstrip('.')}",
                do=f"take the rows alone: taftcache export {typed(store.path)} FILE.h5",
            )
    cut = dict(identity["cut"])
    tail = tail_text(identity["backbone"], cut["start"], prod(cut["shape"]))
    return cut | {"tail": tail} | ({} if cut["start"] else {"rows": "feature"})


def first_row_stands(store: FeatureStore) -> bool:
    """Whether row 0 of a sample's rows is its class token (or all there is of it)."""
    if cut_of(store)["shape"][0] == 1:
        return True
    return has_tail(store) and bool(store.objects()[TAIL].meta.get("class_token"))


def describe_vectors(store: FeatureStore) -> str:
    """What ``sample_vectors`` gives, for people."""
    cut = cut_of(store)
    if cut["shape"][0] == 1:
        return f"the cached {cut['rows']} of a sample"
    if first_row_stands(store):
        return f"the class token at {cut['start']}"
    return f"the mean of the rows cached at {cut['start']}"


def sample_vectors(rows: NDArray[Any], first: bool) -> NDArray[np.float32]:
    """One vector [b,d] of each sample's cached rows [b,t,d]: row 0, or the mean of all rows."""
    return np.asarray(rows[:, 0], np.float32) if first else rows.mean(1, dtype=np.float32)


def mean_vectors(table: RowTable, progress: Progress) -> NDArray[np.float32]:
    """The mean of each sample's cached rows [n,d], for every row of a store's table, in one pass."""
    found = np.empty((len(table), table.shards[0].tokens_shape[1] if table.shards else 0), np.float32)
    with progress.task("vectors", len(table)) as task:
        for here, shard, rows in table.steps():
            found[here] = sample_vectors(table.reader.tokens(shard.name, rows), first=False)
            task.advance(here.stop - here.start)
    return found
