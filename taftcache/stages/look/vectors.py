"""One vector per sample, made from what is cached of it: maps, neighbours and projectors work on these."""

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


def starts_blank(store: FeatureStore) -> bool:
    """Whether the head begins at zero: before training, all logits are zero, and tell no class from another."""
    return bool(store.manifest.recipe.get("tangent", {}).get("init") == "zero")


def cut_of(store: FeatureStore) -> dict[str, Any]:
    """Where the network was cut, what the rows are, and the ``tail`` in words; FormatError if the store does not say
    how its rows were made."""
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
    """Whether a sample's first row can stand for the sample: it is the class token, or the only row."""
    if cut_of(store)["shape"][0] == 1:
        return True
    return has_tail(store) and bool(store.objects()[TAIL].meta.get("class_token"))


def describe_vectors(store: FeatureStore) -> str:
    """What ``sample_vectors`` gives, in words."""
    cut = cut_of(store)
    if cut["shape"][0] == 1:
        return f"the cached {cut['rows']} of a sample"
    if first_row_stands(store):
        return f"the class token at {cut['start']}"
    return f"the mean of the rows cached at {cut['start']}"


def sample_vectors(rows: NDArray[Any], first: bool) -> NDArray[np.float32]:
    """One vector per sample [b,d] from its cached rows [b,t,d]: row 0 if ``first``, else the mean of all."""
    return np.asarray(rows[:, 0], np.float32) if first else rows.mean(1, dtype=np.float32)


def mean_vectors(table: RowTable, progress: Progress) -> NDArray[np.float32]:
    """The mean of each sample's cached rows [n,d], for every row of a store's table, in one pass."""
    found = np.empty((len(table), table.shards[0].tokens_shape[1] if table.shards else 0), np.float32)
    with progress.task("vectors", len(table)) as task:
        for here, shard, rows in table.steps():
            found[here] = sample_vectors(table.reader.tokens(shard.name, rows), first=False)
            task.advance(here.stop - here.start)
    return found
