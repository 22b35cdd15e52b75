"""Rows of other ids that hold the very bytes of rows that leave: copies of them, which a request does not name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from blake3 import blake3

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError
from taftcache.stages.forget.request import Request, resolve_request
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.progress import Progress

KEY = 16  # bytes of a row's hash: two different rows of 2³² have the same one with a chance of 2⁻⁶⁴


def requested(
    store: FeatureStore,
    samples: Sequence[str],
    shards: Sequence[str],
    classes: Sequence[str],
    with_copies: bool,
    progress: Progress,
) -> Request:
    """What `resolve_request` finds, and the copies of it that stay; ``with_copies`` they leave, too."""
    request = resolve_request(store, samples, shards, classes)
    copies, unsearched = copies_of(store, request.samples, progress)
    if copies and with_copies:
        request, copies = resolve_request(store, [*samples, *copies], shards, classes), []
    return replace(request, copies=copies, unsearched=unsearched)


def copies_of(store: FeatureStore, leaving: Collection[str], progress: Progress) -> tuple[list[str], list[str]]:
    """Ids of rows, held-out ones too, that are not ``leaving`` and hold the same bytes as one that is; and the
    damaged shards, which cannot be compared.

    Labels have no part in it. Reads the store once; holds 16 bytes a row.
    """
    table = RowTable.of(store)
    named = set(leaving)
    goes = np.array([i in named for i in table.ids], bool)
    if not goes.any():
        return [], []
    keys = np.zeros(len(table), f"V{KEY}")
    read = np.zeros(len(table), bool)
    damaged = dict[str, None]()
    with progress.task("copies", len(table)) as task:
        for rows, shard, there in table.steps():
            try:
                tokens = np.ascontiguousarray(table.reader.tokens(shard.name, there))
            except StoreError:
                damaged[shard.name] = None
            else:
                keys[rows] = [blake3(row.tobytes()).digest(length=KEY) for row in tokens]
                read[rows] = True
            task.advance(rows.stop - rows.start)
    sought = {key.tobytes() for key in keys[goes & read]}
    copies = [table.ids[k] for k in np.flatnonzero(~goes & read) if keys[k].tobytes() in sought]
    return copies, list(damaged)
