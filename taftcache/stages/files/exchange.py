"""Features to and from the files of other tools."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taftcache.backbone.files import file_digest
from taftcache.backbone.reduction import Reduction
from taftcache.cache.hdf5 import Columns, FeatureFile, restore
from taftcache.cache.hdf5 import export as write_hdf5
from taftcache.cache.store import FeatureStore
from taftcache.consent import remember
from taftcache.errors import DataError, RecipeError, StoreError
from taftcache.recipe import Recipe
from taftcache.stages.extract.extraction import create_store, load_frozen, plan_record, put_tail
from taftcache.stages.extract.filling import RowCounts, RowSink, fill_missing
from taftcache.stages.extract.plan import PlannedShard, plan_shards
from taftcache.stages.files.sample_files import OnRows, write_npz, write_parquet, write_projector
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.writing import reserve, whole

_ROWS_AT_ONCE = 64
_OVERHEAD = 1 << 16  # of an HDF5 file's own tables, at the least


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """The file that was made of a store's rows."""

    store: Path
    root_digest: str
    file: Path
    format: str
    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """The store that was made of a file. ``exported``: the file came from a store, whose bytes the shards have again.

    ``trainable``: the store has a base, so that stage 2 can go on from it.
    """

    store: Path
    root_digest: str
    file: Path
    exported: bool
    shards: dict[str, int]
    tokens: list[int]
    classes: int
    trainable: bool
    seconds: float


def _hdf5(store: FeatureStore, file: Path, on_rows: OnRows) -> int:
    shards = [store.shard(ref.name) for ref in store.manifest.shards]
    rows = sum(s.rows * math.prod(s.tokens_shape) * s.dtype.itemsize for s in shards)
    base = sum(ref.size for ref in store.objects("base/").values())
    reserve(file, rows + base + _OVERHEAD)
    return write_hdf5(store, file, on_rows)


FORMATS: dict[str, Callable[[FeatureStore, Path, OnRows], int]] = {
    "hdf5": _hdf5,
    "npz": write_npz,
    "parquet": write_parquet,
    "embedding-projector": write_projector,
}
"""Format -> what writes a store's rows to a new file of it and returns the bytes."""


def export(path: Path | str, file: Path | str, format: str = "hdf5", progress: Progress | None = None) -> ExportReport:
    """Write a store's rows, labels and ids to one file for other tools; each row is verified as it is read.

    The file is a copy: what is forgotten later stays in it.

    Raises:
        RecipeError: no such format. StoreWriteError: the file exists, or the disk refused.
    """
    if format not in FORMATS:
        raise RecipeError(
            f"cannot export as {format!r}: it is not one of {', '.join(FORMATS)}", got=format, do="--format hdf5"
        )
    begin, place = time.perf_counter(), Path(file).expanduser()
    folder = format == "embedding-projector"
    with FeatureStore(path) as store, (progress or Silent()).task("export", None) as task:
        with whole(place, folder=folder) as partial:
            size = FORMATS[format](store, partial, lambda done, total: task.note(f"{done} of {total} rows"))
        return ExportReport(
            store=store.path,
            root_digest=store.root_digest,
            file=place,
            format=format,
            rows=sum(ref.rows for ref in store.manifest.shards),
            bytes=size,
            seconds=time.perf_counter() - begin,
        )


def import_(
    file: Path | str,
    recipe: Recipe,
    progress: Progress | None = None,
    *,
    columns: Columns | None = None,
    backbone: bool = False,
) -> ImportReport:
    """Make a store of the features in an HDF5 file.

    A file that ``export`` wrote gives the shards that it came from, byte for byte, and its own settings. Any other has
    floats [n, t, d] (or [n, d], taken for t = 1), labels, and ids or none; ``recipe`` says how they are split into
    shards and held out, the dtype, and where the store goes.

    Args:
        columns: the datasets' names in a file that is not an export.
        backbone: the features are what extraction with this recipe would cache, and its backbone goes on from them:
            its tail becomes the store's base. Without it the store holds rows only.

    Raises:
        DataError: what cannot be used: NaN, overflow, an id twice, rows that were never written, links, plug-ins.
    """
    begin, progress = time.perf_counter(), progress or Silent()
    remember(recipe.store_path, recipe)
    with FeatureFile(Path(file).expanduser(), columns) as features:
        if features.is_export:
            with progress.task("import", None) as task:
                store = restore(features, recipe.store_path, lambda done, total: task.note(f"{done} of {total} rows"))
        else:
            store = _import_columns(features, recipe, backbone, progress)
        with store:
            return ImportReport(
                store=store.path,
                root_digest=store.root_digest,
                file=features.path,
                exported=features.is_export,
                shards={ref.name: ref.rows for ref in store.manifest.shards},
                tokens=list(store.shard(store.manifest.shards[0].name).tokens_shape),
                classes=len(store.classes),
                trainable=bool(store.objects("base/")),
                seconds=time.perf_counter() - begin,
            )


def _import_columns(features: FeatureFile, recipe: Recipe, backbone: bool, progress: Progress) -> FeatureStore:
    """A store of features that someone else extracted."""
    if len(features.classes) < 2:
        raise DataError(
            f"cannot import {features.path}: it has {len(features.classes)} classes, and a classifier needs two",
            got=str(features.classes),
        )
    shards = plan_shards(recipe, features.ids)
    origin = _FileRows(features)
    frozen = load_frozen(recipe, features.classes)[0] if backbone else None
    identity = _identity(features, recipe, origin.tokens_shape, frozen)
    path = recipe.store_path
    if FeatureStore.exists(path):
        store = FeatureStore(path, mode="a")
    else:
        store = create_store(recipe, identity, features.classes, len(shards))
    try:
        store.check_identity(identity)
        plan = plan_record(recipe, len(shards))
        if store.manifest.plan != plan:
            raise StoreError(
                f"the import into {path} was begun with another plan",
                got=f"{plan}, begun with {store.manifest.plan}",
                do="put the old settings back, or import into a new folder",
            )
        fill_missing(store, recipe, shards.values(), origin, progress)
        if frozen is not None:
            put_tail(store, frozen)
    except BaseException:
        store.close()
        raise
    return store


def _identity(
    features: FeatureFile, recipe: Recipe, shape: tuple[int, int], frozen: Reduction | None
) -> dict[str, Any]:
    """What the store says its rows were made from: the file, and the layers ``frozen`` where they are known.

    Raises:
        DataError: the layers make rows of another shape.
    """
    name, digest = features.path.name, file_digest(features.path)
    identity: dict[str, Any] = {
        "imported": {"file": name, "digest": digest},
        "backbone": {"model": "unknown", "weights": name, "weights_digest": digest},
        "cut": {"start": "unknown", "rows": "features", "shape": list(shape)},
        "dtype": recipe.store.dtype,
    }
    if frozen is None:
        return identity
    if tuple(frozen.tokens_shape) != shape:
        raise DataError(
            f"the rows of {features.path} have another shape than those the recipe's backbone would have cached",
            got=f"{list(shape)} in the file, an extraction caches {list(frozen.tokens_shape)}",
            do="name the backbone that made them",
        )
    return identity | {
        "backbone": frozen.backbone.config,
        "cut": {"start": frozen.config.start, "rows": frozen.rows, "shape": list(shape)},
    }


class _FileRows:
    """Rows [n, t, d], or [n, d] taken for t = 1, of an HDF5 file that someone else wrote."""

    verb = "import"

    def __init__(self, features: FeatureFile) -> None:
        self._features = features
        self._place = {i: k for k, i in enumerate(features.ids)}
        shape = [int(n) for n in features.tokens.shape[1:]]
        self.tokens_shape = (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])

    def classes(self, shard: PlannedShard) -> Sequence[str]:
        return self._features.classes

    def run(self, shard: PlannedShard, sink: RowSink, on_rows: Callable[[int], None]) -> RowCounts:
        """The shard's rows in steps of a few, for a file may be larger than memory."""
        begin = sink.consumed
        for at in range(begin, len(shard.ids), _ROWS_AT_ONCE):
            ids = shard.ids[at : at + _ROWS_AT_ONCE]
            some = [self._place[i] for i in ids]
            sink.append(self._features.rows(self._features.tokens, some), ids, self._features.labels[some].tolist())
            on_rows(len(ids))
        return RowCounts(len(shard.ids) - begin, 0)
