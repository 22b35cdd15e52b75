"""Copy whole stores to other places, and convert them to other forms."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from taftcache.cache.copying import convert as convert_rows
from taftcache.cache.copying import copy as copy_files
from taftcache.cache.opening import Place
from taftcache.cache.store import FeatureStore
from taftcache.consent import take_over
from taftcache.errors import ArgumentError, RecipeError, check_counts
from taftcache.names import is_model, made_by
from taftcache.recipe_sections import Stored
from taftcache.stages.progress import Progress, noting, or_silent
from taftcache.stages.report import Report

_MADE_OF = {"float32": None, "float16": "float32", "int8": "float16"}
"""Dtype -> the one that an extraction rounds to it: float32 to float16, that to int8. An import rounds only once."""


@dataclass(frozen=True, kw_only=True)
class CopyReport(Report):
    """What was copied now.

    files, bytes: how many were copied now. there: files that the target had already, bit for bit.
    """

    store: Path
    root_digest: str
    files: int
    bytes: int
    there: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ConvertReport(Report):
    """The new store, and what it does not have of the old one.

    dtype: the new rows' dtype. chunk_rows: rows per chunk, by shard. rows: how many. left: components and models of the
    old store. again: the command that makes each of these again.
    """

    store: Path
    root_digest: str
    dtype: str
    chunk_rows: dict[str, int]
    rows: int
    bytes: int
    left: list[str]
    again: dict[str, str]
    seconds: float


def copy(
    source: Place, target: Path | str, *, progress: Progress | bool | None = None, update: bool = False
) -> CopyReport:
    """Copy a store, folder or bucket, to another place: every byte verified on the way and at the target.

    Args:
        update: allow a target that holds another state of the same store.
    """
    begin = time.perf_counter()
    with FeatureStore(source) as store, or_silent(progress).task("copy", None) as task:
        done = copy_files(store, target, update=update, progress=noting(task, "MB", 1e6))
        made = FeatureStore(target)
        take_over(store, made)
    with made:
        return CopyReport(
            store=made.path,
            root_digest=made.root_digest,
            files=done.files,
            bytes=done.bytes,
            there=done.there,
            seconds=time.perf_counter() - begin,
        )


def convert(
    source: Place,
    target: Path | str,
    *,
    progress: Progress | bool | None = None,
    dtype: Stored | None = None,
    chunk_rows: int | Literal["auto"] | None = None,
) -> ConvertReport:
    """Write a store's rows into a new one with another dtype or chunk size.

    From float32 to float16, and from float16 to int8, the shards get the same bytes as an extraction in that dtype, and
    the store the same identity. Any other conversion differs from an extraction (from float16 to float32 every number
    stays as it is), and the new identity says so.

    Raises:
        RecipeError: neither is given, no such dtype, or not a number of rows.
    """
    begin = time.perf_counter()
    if dtype not in (None, *_MADE_OF):
        raise ArgumentError("a store cannot have this dtype", got=f"dtype = {dtype!r}", do=" or ".join(_MADE_OF))
    if dtype is None and chunk_rows is None:
        raise RecipeError(
            "a conversion with neither dtype nor chunk size changes nothing",
            do="name one: --dtype float32 or --chunk-rows 16; taftcache copy copies a store as it is",
        )
    if chunk_rows is not None and chunk_rows != "auto":
        check_counts(chunk_rows=chunk_rows)
        chunk_rows = int(chunk_rows)  # it may be a numpy integer or True, which a recipe does not take
    with FeatureStore(source) as store, or_silent(progress).task("convert", None) as task:
        made = convert_rows(
            store,
            target,
            identity=_identity(store, dtype),
            recipe=_recipe(store, dtype, chunk_rows),
            dtype=dtype,
            chunk_rows=chunk_rows,
            progress=noting(task, "rows"),
        )
        with made:
            take_over(store, made)
            left = sorted(store.objects().keys() - made.objects().keys())
            shards = [made.shard(ref.name) for ref in made.manifest.shards]
            return ConvertReport(
                store=made.path,
                root_digest=made.root_digest,
                dtype=shards[0].stored_as,
                chunk_rows={shard.name: shard.chunk_rows for shard in shards},
                rows=sum(shard.rows for shard in shards),
                bytes=made.nbytes,
                left=left,
                again={n: made_by(made.path, n, store.manifest.objects[n].meta) for n in left if is_model(n)},
                seconds=time.perf_counter() - begin,
            )


def _identity(store: FeatureStore, dtype: str | None) -> dict[str, Any]:
    """The new rows' identity. If no extraction in their dtype would give them, it names the dtype of the extraction."""
    there = dict(store.identity)
    if dtype is None:
        return there
    extracted = there.pop("converted", {}).get("from") or there.get("dtype")
    made_of = _MADE_OF | ({"int8": "float32"} if "imported" in there else {})
    if extracted not in (None, dtype, made_of[dtype]):
        there["converted"] = {"from": extracted}
    return there | {"dtype": dtype}


def _recipe(store: FeatureStore, dtype: str | None, chunk_rows: int | str | None) -> dict[str, Any]:
    new = {key: value for key, value in (("dtype", dtype), ("chunk_rows", chunk_rows)) if value is not None}
    return store.manifest.recipe | {"store": store.manifest.recipe.get("store", {}) | new}
