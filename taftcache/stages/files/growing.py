"""Append vectors to a store of vectors, with the store's own plan, scaling and classes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from numpy.typing import ArrayLike

from taftcache.cache.columns import Columns
from taftcache.cache.format.plan import held_out
from taftcache.cache.hdf5 import FeatureFile
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import DataError, StoreError, local_path
from taftcache.names import counted
from taftcache.recipe import Recipe, stored_at
from taftcache.stages.extract.classes import NewClasses, classes_of, growth_of, other_classes
from taftcache.stages.extract.forgotten import staying_out
from taftcache.stages.extract.growth.carrying_out import carry_out
from taftcache.stages.extract.growth.planning import plan_append
from taftcache.stages.extract.growth.reporting import AppendReport, append_report
from taftcache.stages.files.imported_rows import ImportedRows
from taftcache.stages.files.importing import open_features
from taftcache.stages.files.vectors import Vectors
from taftcache.stages.progress import Progress, or_silent


def append_vectors(
    x: ArrayLike,
    y: ArrayLike,
    store: Path | str,
    *,
    ids: ArrayLike | None = None,
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
        x, y, ids: as for ``import_vectors``. Rows are recognised by their ids, so new ones need ids of their own.
        new_shard, dry_run, relabel, new_classes: as for ``append``; without ``relabel``, another class for an existing
            row is a StoreError.

    Raises:
        DataError: data that cannot be used, another width, or classes that the store does not have, unless skipped or
            taken.
        RecipeError: as for ``append``.
        StoreError: a store of anything else, or a row whose id the store has for a different row.
    """
    given = Vectors.in_memory("rows", x, y, ids)
    return _append(given, store, new_shard, dry_run, relabel, new_classes, or_silent(progress))


def append_file(
    file: Path | str,
    store: Path | str,
    progress: Progress | bool | None = None,
    *,
    columns: Columns | None = None,
    new_shard: bool = False,
    dry_run: bool = False,
    relabel: bool = False,
    new_classes: NewClasses = "refuse",
) -> AppendReport:
    """``append_vectors`` of a file, read as ``import_`` reads it.

    Raises:
        DataError, StoreError: as for ``append_vectors``.
    """
    if Path(file).suffix == ".toml":
        raise DataError(
            f"{file} is a recipe, not a file of vectors",
            do="taftcache append RECIPE adds images to the store that the recipe names, unless its rows were imported",
        )
    with ExitStack() as stack:
        given = open_features(stack, local_path(file), columns or Columns(), Path(store))
        if isinstance(given, FeatureFile):
            raise DataError(f"{file} is the export of a store, not a file of vectors", do="import it into a new store")
        return _append(given, store, new_shard, dry_run, relabel, new_classes, or_silent(progress))


def _append(
    given: Vectors,
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
        if list(given.tokens_shape) != (shape := store.identity["cut"]["shape"]):
            raise DataError(
                f"the vectors of {given.path} are not as wide as those of {store.path}",
                got=f"{counted(given.tokens_shape[-1], 'number')}, {shape[-1]} in the store",
                do="append vectors of the same model, or import these into a store of their own",
            )
        recipe = stored_at(store.path, recorded_recipe(store))
        rows = ImportedRows(given, None, imported["scaling"], verb="append")
        rows.check(recipe.store.dtype, progress)
        rows.check_known(store, labels=not relabel)
        growth = growth_of(store, given, new_shard=new_shard, relabel=relabel, new_classes=new_classes)
        out = staying_out(store.is_forgotten, given, known=growth.classes)
        others = other_classes(store, classes_of(given) if relabel else {})
        ids = given.ids, _tested(store, recipe)
        plan = plan_append(store, recipe, ids, out, growth, relabelled=others)
        counts = None if dry_run else carry_out(store, recipe, plan, lambda: rows, progress)
        return append_report(store, plan, counts, begin)


def _tested(store: FeatureStore, recipe: Recipe) -> list[str] | None:
    """New ids to hold out: [] if the store's held-out rows came as a file of their own, None if the plan holds rows out
    by their ids. No store records which it is, but it shows in which of its rows are held out."""
    held = store.held_out.sample_ids if store.held_out else []
    every = [*held, *store.sample_ids()]
    planned = held_out(every, recipe.data.held_out, recipe.store.seed, recipe.data.group_of)
    return None if planned == set(held) else []
