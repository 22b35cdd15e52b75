"""Append vectors to a store of vectors, with the store's own plan, scaling and classes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from numpy.typing import ArrayLike

from taftcache.cache.columns import Columns
from taftcache.cache.hdf5 import FeatureFile
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import ArgumentError, DataError, StoreError, local_path
from taftcache.names import CLASS, counted
from taftcache.recipe import Recipe, stored_at
from taftcache.stages.extract.classes import NewClasses, classes_of, growth_of, other_classes
from taftcache.stages.extract.forgotten import staying_out
from taftcache.stages.extract.growth.carrying_out import carry_out
from taftcache.stages.extract.growth.planning import plan_append
from taftcache.stages.extract.growth.reporting import AppendReport, append_report
from taftcache.stages.extract.plan import BY_IDS, holds_out_by_ids
from taftcache.stages.files.vectors.given import Vectors
from taftcache.stages.files.vectors.imported_rows import ImportedRows
from taftcache.stages.files.vectors.opening import open_features
from taftcache.stages.files.vectors.tested import Tested, check_tested, in_memory_tested, open_tested
from taftcache.stages.progress import Progress, or_silent


def append_vectors(
    x: ArrayLike | None,
    y: ArrayLike | None,
    store: Path | str,
    *,
    ids: ArrayLike | None = None,
    test: Tested | None = None,
    new_shard: bool = False,
    dry_run: bool = False,
    relabel: bool = False,
    new_classes: NewClasses = "refuse",
    progress: Progress | bool | None = None,
) -> AppendReport:
    """Add vectors [n, d] with classes y [n] to a store that ``import_vectors`` or ``import_`` made from vectors.

    It works as ``append`` does with images: each row goes where the plan puts its id, the store ends up with the same
    bytes as one made from all rows at once, a killed run resumes, and forgotten ids stay out. Existing rows may be
    given again.

    Args:
        x, y, ids: as for ``import_vectors``. Rows are recognised by their ids, so new ones need ids of their own. None
            if there are only held-out rows.
        test: further held-out rows, as for ``import_vectors``, for a store whose held-out rows were given so, or that
            has held out none.
        new_shard, dry_run, relabel, new_classes: as for ``append``; without ``relabel``, another class for an existing
            row is a StoreError.

    Raises:
        DataError: data that cannot be used, another width, or classes that the store does not have, unless skipped or
            taken; held-out rows with the id of a row to train on, or of classes without one.
        RecipeError: as for ``append``.
        StoreError: a store of anything else, or a row whose id the store has for a different row; ``test`` for a store
            that holds rows out by their ids.
    """
    tested = in_memory_tested(test)
    if x is not None and y is not None:
        given = Vectors.in_memory("rows", x, y, ids)
    elif tested is not None:
        given = tested.part([])
    else:
        raise ArgumentError("there are no vectors with classes, nor held-out rows alone", do="x and y, or test=(x, y)")
    return _append(given, tested, store, new_shard, dry_run, relabel, new_classes, or_silent(progress))


def append_file(
    file: Path | str | None,
    store: Path | str,
    progress: Progress | bool | None = None,
    *,
    columns: Columns | None = None,
    test: Path | str | None = None,
    test_labels: str | None = None,
    new_shard: bool = False,
    dry_run: bool = False,
    relabel: bool = False,
    new_classes: NewClasses = "refuse",
) -> AppendReport:
    """``append_vectors`` of files, read as ``import_`` reads them.

    Raises:
        DataError, StoreError: as for ``append_vectors``.
    """
    if file is not None and Path(file).suffix == ".toml":
        raise DataError(
            f"{file} is a recipe, not a file of vectors",
            do="taftcache append RECIPE adds images to the store that the recipe names, unless its rows were imported",
        )
    with ExitStack() as stack:
        columns = columns or Columns()
        tested = open_tested(stack, test, test_labels, columns, Path(store))
        if file is None:
            if tested is None:
                raise ArgumentError("there is no file of vectors to append", do="name one, or one of held-out rows")
            given: FeatureFile | Vectors = tested.part([])
        else:
            given = open_features(stack, local_path(file), columns, Path(store))
        if isinstance(given, FeatureFile):
            raise DataError(f"{file} is the export of a store, not a file of vectors", do="import it into a new store")
        return _append(given, tested, store, new_shard, dry_run, relabel, new_classes, or_silent(progress))


def _append(
    given: Vectors,
    tested: Vectors | None,
    path: Path | str,
    new_shard: bool,
    dry_run: bool,
    relabel: bool,
    new_classes: NewClasses,
    progress: Progress,
) -> AppendReport:
    begin = time.perf_counter()
    with FeatureStore(path, mode="r" if dry_run else "a") as store:
        imported = store.identity.get("imported", {})
        if "scaling" not in imported:
            raise StoreError(
                f"cannot append vectors to {store.path}: it was not imported from vectors",
                do="import all rows into a new store" if imported else "taftcache append RECIPE, for images",
            )
        if "converted" in store.identity:
            raise StoreError(
                f"cannot append vectors to {store.path}: its rows were converted from those of another store",
                do="append to the store that it was made from, and convert that",
            )
        for part in (given, *([] if tested is None else [tested])):
            if list(part.tokens_shape) != (shape := store.identity["cut"]["shape"]):
                raise DataError(
                    f"the vectors of {part.path} are not as wide as those of {store.path}",
                    got=f"{counted(part.tokens_shape[-1], 'number')}, {shape[-1]} in the store",
                    do="append vectors of the same model, or import these into a store of their own",
                )
        recipe = stored_at(store.path, recorded_recipe(store))
        given, tested, by_ids = _held_out(store, recipe, given, tested, new_classes)
        notes = [*given.notes, *(() if tested is None else tested.notes)]
        rows = ImportedRows(given, tested, imported["scaling"], verb="append")
        rows.check(recipe.store.dtype, progress)
        rows.check_known(store, labels=not relabel)
        growth = growth_of(store, given, tested, new_shard=new_shard, relabel=relabel, new_classes=new_classes)
        out = staying_out(store.is_forgotten, recipe.data, given, tested, known=growth.classes)
        others = other_classes(store, classes_of(given, tested) if relabel else {})
        ids = given.ids, None if by_ids else [] if tested is None else tested.ids
        plan = plan_append(store, recipe, ids, out, growth, relabelled=others)
        counts = None if dry_run else carry_out(store, recipe, plan, lambda: rows, progress)
        return append_report(store, plan, counts, begin, notes)


def _held_out(
    store: FeatureStore, recipe: Recipe, given: Vectors, tested: Vectors | None, new_classes: NewClasses
) -> tuple[Vectors, Vectors | None, bool]:
    """Rows to train on, rows to hold out if these are named, and whether the plan holds rows out by their ids.

    Raises:
        StoreError: rows to hold out for a store that holds them out by ids. DataError: as for `check_tested`.
    """
    by_ids = holds_out_by_ids(store)
    if tested is not None:
        given, _ = given.parted(f"the rows of {tested.path} are held out")
        if by_ids:
            raise StoreError(
                f"cannot hold rows of a file out of {store.path}: it holds rows out by their ids",
                got=f"data.held_out = {recipe.data.held_out}, and {counted(len(tested.ids), 'row')} in {tested.path}",
                do="append them as the others, without --test or test=…; or import all into a new store with it",
            )
    else:
        given, tested = given.parted(BY_IDS if by_ids else None, alone=True)
    if tested is not None:
        left = [c for c in tested.classes if new_classes == "skip" or store.is_forgotten(CLASS + c)]
        check_tested(tested, {*given.classes, *store.classes, *left}, {*given.ids, *store.sample_ids()})
    return given, tested, by_ids
