"""Features to and from the files of other tools."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taftcache.backbone.files import file_digest
from taftcache.cache.format.plan import assign, held_out, in_order
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, RecipeError, StoreError
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.extract.extraction import HELD_OUT, load_frozen
from taftcache.stages.files.sample_files import write_npz, write_parquet, write_projector
from taftcache.stages.progress import Progress, Silent
from taftcache.stages.writing import reserve, whole

if TYPE_CHECKING:
    from taftcache.cache.hdf5 import Columns, FeatureFile

_ROWS_AT_ONCE = 64
_OVERHEAD = 1 << 16  # of an HDF5 file's own tables, at the least


@dataclass(frozen=True)
class ExportReport:
    """The file that was made of a store's rows."""

    store: Path
    root_digest: str
    file: Path
    format: str
    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
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


def _hdf5(store: FeatureStore, file: Path, told: Callable[[int, int], None]) -> int:
    from taftcache.cache.hdf5 import export as write

    if not file.exists():
        shards = [store.shard(ref.name) for ref in store.manifest.shards]
        rows = sum(s.rows * math.prod(s.tokens_shape) * s.dtype.itemsize for s in shards)
        base = sum(ref.size for ref in store.objects("base/").values())
        reserve(file.with_name(f"{file.name}.partial"), rows + base + _OVERHEAD)
    return write(store, file, told)


FORMATS: dict[str, Callable[[FeatureStore, Path, Callable[[int, int], None]], int]] = {
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
        RecipeError: no such format. DataError: the file exists. StoreWriteError: the disk refused.
    """
    if format not in FORMATS:
        raise RecipeError(f"A store is exported as {', '.join(FORMATS)}.", got=format, do="--format hdf5")
    begin, place = time.perf_counter(), Path(file).expanduser()
    with FeatureStore(path) as store, (progress or Silent()).task("export", None) as task, whole(place):
        size = FORMATS[format](store, place, lambda done, total: task.note(f"{done} of {total} rows"))
        rows = sum(ref.rows for ref in store.manifest.shards)
        return ExportReport(store.path, store.root_digest, place, format, rows, size, time.perf_counter() - begin)


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
    from taftcache.cache.hdf5 import FeatureFile, restore

    begin = time.perf_counter()
    with FeatureFile(Path(file).expanduser(), columns) as features, (progress or Silent()).task("import", None) as task:

        def told(done: int, total: int) -> None:
            task.note(f"{done} of {total} rows")

        if features.is_export:
            store = restore(features, recipe.store_path, told)
        else:
            store = _others(features, recipe, backbone, told)
        with store:
            shape = store.shard(store.manifest.shards[0].name).tokens_shape
            return ImportReport(
                store.path,
                store.root_digest,
                features.path,
                features.is_export,
                {ref.name: ref.rows for ref in store.manifest.shards},
                list(shape),
                len(store.classes),
                bool(store.objects("base/")),
                time.perf_counter() - begin,
            )


def _others(features: FeatureFile, recipe: Recipe, backbone: bool, told: Callable[[int, int], None]) -> FeatureStore:
    """A store of features that someone else extracted."""
    spec = recipe.store
    shape = tuple(features.tokens.shape[1:]) if features.tokens.ndim == 3 else (1, features.tokens.shape[1])
    if len(features.classes) < 2:
        raise DataError("A classifier needs two classes or more.", got=f"{features.path}: {features.classes}")
    groups = _groups(features.ids, recipe)
    name = features.path.name
    identity: dict[str, Any] = {
        "imported": {"file": name, "digest": file_digest(features.path)},
        "backbone": {"model": "unknown", "weights": name, "weights_digest": file_digest(features.path)},
        "cut": {"start": "unknown", "rows": "features", "shape": list(shape)},
        "dtype": spec.dtype,
    }
    tail: tuple[bytes, dict[str, Any]] | None = None
    if backbone:
        from safetensors.torch import save

        frozen, _ = load_frozen(recipe, features.classes)
        if tuple(frozen.tokens_shape) != shape:
            raise DataError(
                "Imported features are what the recipe's backbone would have cached.",
                got=f"{list(shape)} in {features.path}, an extraction caches {list(frozen.tokens_shape)}",
                do="name the backbone that made them",
            )
        identity |= {
            "backbone": frozen.backbone.config,
            "cut": {"start": frozen.config.start, "rows": frozen.rows, "shape": list(shape)},
        }
        tail = save(frozen.tail_state()), frozen.config.as_dict()
    plan = {"kind": spec.plan, "shards": spec.shards, "seed": spec.seed, "groups": len(groups)}
    values = recipe_values(recipe)
    values["store"]["path"] = None
    record = {key: value for key, value in values.items() if key not in ("extract", "forget")}
    path = recipe.store_path
    if FeatureStore.exists(path):
        store = FeatureStore(path, mode="a")
    else:
        store = FeatureStore.create(path, identity=identity, classes=features.classes, plan=plan, recipe=record)
    try:
        store.check_identity(identity)
        if store.manifest.plan != plan:
            raise StoreError("An import goes on with the plan it began with.", got=f"{plan}, not {store.manifest.plan}")
        _fill(store, features, groups, recipe, (int(shape[0]), int(shape[1])), told)
        if tail is not None and not store.objects("base/"):
            from taftcache.tangent.spec import TAIL

            with store.transaction() as change:
                change.put(TAIL, *tail)
    except BaseException:
        store.close()
        raise
    return store


def _groups(ids: list[str], recipe: Recipe) -> dict[str, tuple[str, list[str]]]:
    spec = recipe.store
    kept = held_out(ids, recipe.data.held_out, spec.seed)
    plan = assign([i for i in ids if i not in kept], spec.plan, spec.shards, spec.seed)
    groups = {name: ("train", part) for name, part in plan.items()}
    return groups | ({HELD_OUT: (HELD_OUT, in_order(sorted(kept), spec.seed))} if kept else {})


def _fill(
    store: FeatureStore,
    features: FeatureFile,
    groups: dict[str, tuple[str, list[str]]],
    recipe: Recipe,
    shape: tuple[int, int],
    told: Callable[[int, int], None],
) -> None:
    place = {i: k for k, i in enumerate(features.ids)}
    done = 0
    for name, (role, ids) in groups.items():
        if not store.has_shard(name):
            with store.writer(
                name,
                role,
                chunk_rows=recipe.store.chunk_rows,
                dtype=recipe.store.dtype,
                tokens_shape=shape,
                candidates=ids,
            ) as writer:
                for at in range(writer.consumed, len(ids), _ROWS_AT_ONCE):
                    some = [place[i] for i in ids[at : at + _ROWS_AT_ONCE]]
                    writer.append(
                        features.rows(features.tokens, some), ids[at : at + _ROWS_AT_ONCE], features.labels[some]
                    )
                    told(done + at + len(some), len(place))
                writer.commit()
        done += len(ids)
