"""What a store takes on disk, and whether there is room for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from taftcache.backbone.reduction import Reduction
from taftcache.cache.format.layout import resolve_chunk_rows
from taftcache.cache.place.address import is_bucket
from taftcache.errors import StoreWriteError
from taftcache.recipe import Recipe


def bytes_of(rows: Iterable[int], kept: Reduction, recipe: Recipe) -> int:
    """Bytes of shards of so many rows each, in whole chunks or one of just the rows, and of the tail's weights."""
    chunk = resolve_chunk_rows(recipe.store.chunk_rows, kept.tokens_shape, recipe.store.dtype)
    stored = (count if count < chunk else -(-count // chunk) * chunk for count in rows)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in kept.tail_state().values())
    return sum(stored) * kept.bytes_per_sample + weights


def free_bytes(path: Path) -> int | None:
    """What is free where ``path`` is, or will be; None in a bucket."""
    if is_bucket(path):
        return None
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.is_dir())
    return shutil.disk_usage(there).free


def check_room(path: Path, needed: int) -> None:
    """StoreWriteError where ``needed`` bytes are more than what is free at ``path``."""
    free = free_bytes(path)
    if free is not None and free < needed:
        raise StoreWriteError(
            f"cannot write to {path}: the disk has too little space for the store",
            got=f"{needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free",
            do="name a place on another disk (store.path), or keep less: data.limit, store.dtype, tangent.blocks",
        )
