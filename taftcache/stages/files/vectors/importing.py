"""Make stores from existing features: an export becomes a store again, and vectors of other tools become rows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import ArrayLike
from safetensors.torch import save

from taftcache.backbone.files import expand_path
from taftcache.backbone.reduction import Reduction
from taftcache.cache.columns import Columns
from taftcache.cache.format.layout import least_sizes
from taftcache.cache.hdf5 import FeatureFile, restore
from taftcache.cache.opening import Place
from taftcache.cache.room import check_room, taken_bytes
from taftcache.cache.store import FeatureStore
from taftcache.consent import KINDS, recorded_recipe, remember
from taftcache.errors import DataError, RecipeError, StoreError, check_path, local_path
from taftcache.names import counted, is_model, typed
from taftcache.recipe import (
    Overrides,
    Recipe,
    apply_overrides,
    as_mapping,
    check_used,
    checked_recipe,
    parse_recipe,
    recipe_values,
)
from taftcache.stages.extract.classes import absent_notes, doubtful_classes_notes, unlearned_notes
from taftcache.stages.extract.extraction import create_store, plan_record, put_tail
from taftcache.stages.extract.filling import fill_missing
from taftcache.stages.extract.forgotten import BY_NUMBER, remembered, without_forgotten
from taftcache.stages.extract.frozen import load_frozen
from taftcache.stages.extract.plan import BY_IDS, group_notes, groups_of, holds_out_by_ids, plan_shards, shards_for
from taftcache.stages.files.vectors.given import Vectors
from taftcache.stages.files.vectors.imported_rows import ImportedRows
from taftcache.stages.files.vectors.opening import open_features
from taftcache.stages.files.vectors.tested import Tested, check_tested, in_memory_tested, open_tested
from taftcache.stages.progress import Progress, noting, or_silent
from taftcache.stages.report import Report
from taftcache.stages.scaling import SCALINGS, Scaling
from taftcache.stages.train.checks import check_class_weights
from taftcache.stages.train.record import SECTIONS, changed_settings, makes_models, record_recipe
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TAIL


@dataclass(frozen=True, kw_only=True)
class ImportReport(Report):
    """The store that was made from a file, or from arrays.

    file: what was read; None for arrays. exported: whether it was an export of a store, whose shards' bytes these have.
    shards: rows, by shard. tokens: shape of a row. classes: how many. trainable: whether the store has a base, which
    stage 2 needs. scaling: what was done to each vector; None if rows are not vectors. notes: what may cost vectors
    accuracy.
    """

    store: Path
    root_digest: str
    file: Path | None
    exported: bool
    shards: dict[str, int]
    tokens: list[int]
    classes: int
    trainable: bool
    scaling: Scaling | None
    seconds: float
    notes: list[str] = field(default_factory=list)


def import_(
    file: Path | str,
    target: Recipe | Path | str,
    *,
    overrides: Overrides = (),
    progress: Progress | bool | None = None,
    columns: Columns | None = None,
    backbone: bool = False,
    test: Path | str | None = None,
    test_labels: str | None = None,
    scaling: Scaling = "row",
    forgotten_of: Place | None = None,
) -> ImportReport:
    """Make a store from the features in a file: HDF5, npy, npz, Parquet or CSV.

    A file that ``export`` wrote as HDF5 gives the shards that it came from, byte for byte, and its own settings. Any
    other has vectors [n, d] (HDF5 also rows [n, t, d]), labels, and ids or none. The store of vectors trains a linear
    head.

    Args:
        target: the new store's place; or a recipe, which says where it is, how rows are split into shards and held out,
            and the dtype.
        overrides: as for ``import_vectors``, or for the recipe.
        columns: the names of datasets, arrays or columns in a file that is not an export; or files of labels and ids.
        backbone: the features are what extraction with the recipe would cache, so the tail of its backbone becomes the
            store's base. Without it, rows [n, t, d] make a store that cannot be trained.
        test: a file of held-out rows. Without one, the column ``split`` of the table that has the labels decides, if it
            has names that ``init`` takes for training and testing: a note says which, and rows of others are left out.
            Otherwise, or if ``overrides`` set it or the existing store does so, a part of the rows is held out
            (``data.held_out``).
        test_labels: the name or file of its labels, if it is not the name in ``columns``.
        scaling: "row" divides each vector by its root mean square, "none" leaves it as it is.
        forgotten_of: a store; the samples and classes that it has forgotten are left out, as for ``extract``.

    Raises:
        DataError: data that cannot be used: NaN, overflow, an id given twice, rows that were never written, links,
            plug-ins.
        StoreError: ``forgotten_of`` with an export, which is imported as a whole; or an existing store has other rows,
            or was begun or trained with other settings (settings for training are recorded if it has no model).
    """
    progress, path, columns = or_silent(progress), local_path(file), columns or Columns()
    begin, changes = time.perf_counter(), as_mapping(overrides)
    if isinstance(target, str | Path):
        recipe = recipe_of_vectors(target, changes)
    else:
        check_used("import --recipe" if backbone else "import", changes)
        recipe = parse_recipe(apply_overrides(recipe_values(checked_recipe(target)), changes))
    with ExitStack() as stack:
        features = open_features(stack, path, columns, recipe.store_path)
        if isinstance(features, FeatureFile):
            if forgotten_of is not None:
                raise StoreError(
                    f"{path} is the export of a store, from which nothing can be left out",
                    got=f"--forgotten-of {os.fspath(forgotten_of)}",
                    do="import it without, and forget the samples in the new store",
                )
            named = columns != Columns() or test is not None or test_labels is not None
            if named or changes or scaling != "row":
                raise RecipeError(
                    f"cannot name or set anything of {path}: the export of a store comes back as it is",
                    got="names of labels and the like, or held-out rows" if named else "--scaling, or --set",
                    do="import it alone",
                )
            remember(recipe.store_path, recipe)
            with progress.task("import", None) as task:
                store = restore(features, recipe.store_path, noting(task, "rows"))
            with store:
                return _report(store, path, exported=True, begin=begin)
        tested = open_tested(stack, test, test_labels, columns, recipe.store_path)
        if tested is not None:
            features, _ = features.parted(f"the rows of {test} are held out")
        else:
            features, tested = features.parted(_instead_of_splits(recipe.store_path, changes))
        if isinstance(target, str | Path):
            recipe = _in_shards(recipe, changes, features, tested)
        return _import(_Request(features, tested, recipe, backbone, scaling, forgotten_of), path, progress, begin)


def import_vectors(
    x: ArrayLike,
    y: ArrayLike,
    store: Path | str,
    *,
    ids: ArrayLike | None = None,
    test: Tested | None = None,
    scaling: Scaling = "row",
    overrides: Overrides = (),
    forgotten_of: Place | None = None,
    progress: Progress | bool | None = None,
) -> ImportReport:
    """Make a store from vectors that are in memory or memory-mapped; linear heads can be trained and composed on it,
    and samples forgotten.

    Args:
        x: numbers [n, d]. y: their classes [n], integers or texts. The store's class names are texts, and so are those
            of ``predict``: "7" for 7.
        store: the new store's place.
        ids: ids of the samples [n], by which they are forgotten. Without them, the index of ``x`` is taken, if it is a
            pandas table whose index has unique texts; otherwise rows are numbered: "rows/00000000", and held-out ones
            from ``test`` "test/00000000".
        test: x and y of held-out rows, and optionally their ids; without it, a part of the rows is held out
            (``data.held_out``, a fifth).
        scaling, forgotten_of: as for ``import_``.
        overrides: for the recipe: {"store.shards": 8, "data.held_out": 0}, or as on the command line
            ["store.shards=8"]. An existing store keeps what they leave open.

    Raises:
        DataError, StoreError: as for ``import_``; also a column y that has the index of x in another order.
        ArgumentError: ``test`` is not such a tuple.
    """
    begin = time.perf_counter()
    tested = in_memory_tested(test)
    features = Vectors.in_memory("rows", x, y, ids)
    recipe = _in_shards(recipe_of_vectors(store, overrides), as_mapping(overrides), features, tested)
    asked = _Request(features, tested, recipe, False, scaling, forgotten_of)
    return _import(asked, None, or_silent(progress), begin)


def recipe_of_vectors(store: Path | str, overrides: Overrides = ()) -> Recipe:
    """The recipe of an import that is given none; if the store exists, it decides what ``overrides`` leave open.

    Images and weights that the store names are left out, because an import allows a store to open what its recipe
    names.

    Raises:
        RecipeError: an override of what no import uses, or as ``parse_recipe``. ArgumentError: as ``check_path``.
    """
    check_path("the place of a store", store)
    overrides = as_mapping(overrides)
    check_used("import", overrides, placed=True)
    values: dict[str, Any] = {
        "name": Path(store).name,
        "data": {"source": "digits"},  # the source that names no images
        "tangent": {"blocks": 0, "train": "head", "init": "zero"},
    }
    if FeatureStore.exists(place := expand_path(str(store))):
        with FeatureStore(place) as there:
            recorded = recipe_values(recorded_recipe(there))
        values |= {section: recorded[section] for section in (*SECTIONS, "store")}
        values["data"] |= {key: recorded["data"].get(key) for key in ("held_out", "group")}
    made = apply_overrides(values, overrides)
    # not as an override, which may read a folder's name as a number
    return parse_recipe({**made, "store": {**made.get("store", {}), "path": str(store)}})


def _instead_of_splits(path: Path, overrides: Mapping[str, Any]) -> str | None:
    """What chooses the held-out rows of an import instead of a column ``split``; None if that may."""
    if "data.held_out" in overrides:
        return "data.held_out, which is set, chooses held-out rows by their ids"
    if not FeatureStore.exists(path):
        return None
    with FeatureStore(path) as store:
        return BY_IDS if store.manifest.shards and holds_out_by_ids(store) else None  # without rows, nothing shows it


def _in_shards(recipe: Recipe, overrides: Mapping[str, Any], features: Vectors, test: Vectors | None) -> Recipe:
    """The recipe of an import that was given none, with as many shards as a new store's rows and classes suggest."""
    if "store.shards" in overrides or FeatureStore.exists(recipe.store_path):
        return recipe
    part = 1 if test is not None else 1 - recipe.data.held_out
    rows, groups = (int(part * len(each)) for each in (features.ids, groups_of(recipe.data, features.ids)))
    shards = shards_for(rows, len(features.classes), groups)
    return msgspec.structs.replace(recipe, store=msgspec.structs.replace(recipe.store, shards=shards))


def _report(
    store: FeatureStore,
    file: Path | None,
    *,
    exported: bool = False,
    scaling: Scaling | None = None,
    notes: Sequence[str] = (),
    begin: float,
) -> ImportReport:
    return ImportReport(
        store=store.path,
        root_digest=store.root_digest,
        file=file,
        exported=exported,
        shards={ref.name: ref.rows for ref in store.manifest.shards},
        tokens=list(store.shard(store.manifest.shards[0].name).tokens_shape),
        classes=len(store.classes),
        trainable=TAIL in store.objects(),
        scaling=scaling,
        seconds=time.perf_counter() - begin,
        notes=list(notes),
    )


@dataclass(frozen=True)
class _Request:
    """What is to be imported, and how."""

    features: Vectors
    test: Vectors | None
    recipe: Recipe
    backbone: bool
    scaling: Scaling
    forgotten_of: Place | None

    @property
    def of_vectors(self) -> bool:
        """Whether the rows are vectors, for a head alone."""
        return self.features.tokens_shape[0] == 1 and not self.backbone


def _import(asked: _Request, file: Path | None, progress: Progress, begin: float) -> ImportReport:
    """Make a store of features that someone else extracted."""
    features, test, recipe = asked.features, asked.test, asked.recipe
    _check(asked)
    scaling = asked.scaling if asked.of_vectors else None
    rows = ImportedRows(features, asked.test, scaling)
    notes = [n for part in (features, test) if part is not None for n in part.notes]
    notes += doubtful_classes_notes(features) + rows.check(recipe.store.dtype, progress)
    if asked.of_vectors:
        tangent = msgspec.structs.replace(recipe.tangent, blocks=0, train="head")
        recipe = msgspec.structs.replace(recipe, tangent=tangent)
    path = recipe.store_path
    # not the teachers, which may be those that the store itself names; `record_recipe` allows others
    anew = not FeatureStore.exists(path)
    remember(path, recipe, KINDS if anew else ["images", "weights"])
    beside, unasked = remembered(path, asked.forgotten_of, features, test)
    if anew and beside.key and any(part.numbered for part in (features, test) if part is not None):
        unasked.append(BY_NUMBER)
    with ExitStack() as stack:
        there = stack.enter_context(FeatureStore(path, mode="a")) if FeatureStore.exists(path) else None
        if there is not None and "imported" not in there.identity:
            raise StoreError(
                f"cannot import into {there.path}: its rows were made from images",
                got=f"the backbone {there.identity.get('backbone', {}).get('model')}",
                do="import into a new folder",
            )
        planned = plan_shards(recipe, features.ids, None if test is None else test.ids)
        shards, classes, left = without_forgotten(beside, there, recipe.data, planned, features, test)
        notes += [*unasked, *left]
        if not shards:
            raise DataError(
                f"nothing is left of {features.path}: all of its samples were forgotten",
                got=counted(len(features.ids), "sample"),
                do="give others, or leave --forgotten-of out",
            )
        notes += group_notes(recipe.data, shards.values()) if there is None else []
        check_class_weights(recipe, len(classes if there is None else there.classes))
        frozen = load_frozen(recipe, classes)[0] if asked.backbone else None
        identity = _identity(asked, file, frozen)
        if there is None:
            sizes = least_sizes(
                (len(shard.ids) for shard in shards.values()),
                features.tokens_shape,
                recipe.store.dtype,
                recipe.store.chunk_rows,
            )
            check_room(path, taken_bytes(path, sizes))
            beside.save()  # nothing refuses the file any more
        store = there or stack.enter_context(create_store(recipe, identity, classes, len(shards)))
        store.check_identity(identity)
        _check_plan(store, recipe, len(shards))
        for shard in shards.values():
            if store.has_shard(shard.name):
                rows.check_same(store, shard)
        notes += _take_settings(store, recipe)
        fill_missing(store, recipe, shards.values(), rows, progress)
        if frozen is not None:
            put_tail(store, frozen)
        elif asked.of_vectors:
            _put_head(store, features.tokens_shape[1], asked.scaling)
        way = "; in a new store, --test FILE or --set data.held_out=0 leaves all rows to train on"
        notes += [note + (way if test is None else "") for note in unlearned_notes(store)]
        notes += absent_notes(store)
        return _report(store, file, scaling=scaling, notes=notes, begin=begin)


def _check(asked: _Request) -> None:
    """Refuse what cannot be imported, before anything is made.

    Raises:
        DataError: one class, scaled vectors of one number, or held-out rows that do not belong to the others.
        RecipeError: no such scaling.
    """
    features, test = asked.features, asked.test
    if len(features.classes) < 2:
        raise DataError(
            f"cannot import {features.path}: it has {counted(len(features.classes), 'class')}, a classifier needs two",
            got=str(features.classes),
            do="import rows of two classes or more; --labels names the array or file of their labels",
        )
    if asked.scaling not in SCALINGS:
        raise RecipeError(f"no scaling of vectors is called {asked.scaling!r}", do=" or ".join(SCALINGS))
    if asked.of_vectors and asked.scaling == "row" and features.tokens_shape[1] == 1:
        raise DataError(
            f"cannot scale vectors of one number, because only their signs would be left: {features.path}",
            got=f"{counted(len(features.ids), 'vector')} of one number",
            do="--scaling none, or scaling='none' in Python",
        )
    if test is None:
        return
    if test.tokens_shape != features.tokens_shape:
        raise DataError(
            "the held-out rows have another shape than the others",
            got=f"{list(test.tokens_shape)} in {test.path}, {list(features.tokens_shape)} in {features.path}",
            do="give held-out rows of the same model",
        )
    check_tested(test, features.classes, features.ids)


def _check_plan(store: FeatureStore, recipe: Recipe, shards: int) -> None:
    asked, begun = (
        plan
        | {"groups": shards, "chunk_rows": said.store.chunk_rows}
        | ({"group": said.data.group} if said.data.group else {})
        for plan, said in (
            (plan_record(recipe, shards), recipe),
            (store.manifest.plan, recorded_recipe(store)),
        )
    )
    if begun != asked:
        raise StoreError(
            f"the import into {store.path} was begun with another plan",
            got=f"{asked}, begun with {begun}",
            do="put the old settings back, or import into a new folder",
        )


def _take_settings(store: FeatureStore, recipe: Recipe) -> list[str]:
    """Record the settings for training that another import into the store changes; returns a note on them.

    Raises:
        StoreError: the store has models made with the recorded settings; only ``train`` changes both together.
    """
    changed = changed_settings(store, recipe)
    if not changed:
        return []
    if (making := [key for key in changed if makes_models(key)]) and any(map(is_model, store.objects())):
        options = " ".join(f"--set {key}=…" for key in making)
        given = ", ".join(f'"{key}=…"' for key in making)
        raise StoreError(
            f"{store.path} was trained with other settings than this import asks for, and an import trains nothing",
            got=", ".join(f"{key} {changed[key]}" for key in making),
            do=f"leave them out, and then: taftcache train {typed(store.path)} {options}; in Python "
            f"train(store, overrides=[{given}])",
        )
    with store.transaction() as change:
        record_recipe(change, store, recipe)
    said = ", ".join(f"{key} {how}" for key, how in changed.items())
    return [f"recorded for the training of the store that is there: {said}"]


def _put_head(store: FeatureStore, width: int, scaling: Scaling) -> None:
    """Commit the description of a tail that is a head alone, unless it is there: it has no weights of its own.

    Its ``start`` tells unscaled vectors from scaled ones, so that their heads do not share a base point.
    """
    if TAIL not in store.objects():
        with store.transaction() as change:
            start = "vectors" if scaling == "row" else "vectors without scaling"
            change.put(TAIL, save({}), TailConfig.of_vectors(width, start=start).as_dict())


def _identity(asked: _Request, file: Path | None, frozen: Reduction | None) -> dict[str, Any]:
    """What the store says its rows were made from: the file, and the layers ``frozen`` if they are known.

    No digest of the file: that would keep a trace of every row that is forgotten later.

    Raises:
        DataError: the layers make rows of another shape.
    """
    name, shape = "arrays" if file is None else file.name, asked.features.tokens_shape
    model, start, rows = ("none", "vectors", "feature") if asked.of_vectors else ("unknown", "unknown", "features")
    identity: dict[str, Any] = {
        "imported": {"file": name} | ({"scaling": asked.scaling} if asked.of_vectors else {}),
        "backbone": {"model": model, "weights": name, "weights_digest": model},
        "cut": {"start": start, "rows": rows, "shape": list(shape)},
        "dtype": asked.recipe.store.dtype,
    }
    if frozen is None:
        return identity
    if tuple(frozen.tokens_shape) != shape:
        raise DataError(
            f"the rows of {asked.features.path} have another shape than those the recipe's backbone would have cached",
            got=f"{list(shape)} in the file, an extraction caches {list(frozen.tokens_shape)}",
            do="name the backbone that made them",
        )
    return identity | {
        "backbone": frozen.backbone.config,
        "cut": {"start": frozen.config.start, "rows": frozen.rows, "shape": list(shape)},
    }
