"""Held-out rows that come with vectors: in a file of their own, or in memory."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from numpy.typing import ArrayLike

from taftcache.cache.columns import Columns
from taftcache.cache.hdf5 import FeatureFile
from taftcache.errors import ArgumentError, DataError, RecipeError, local_path
from taftcache.names import counted
from taftcache.stages.files.vectors.given import Vectors
from taftcache.stages.files.vectors.opening import is_file_name, open_features

Tested = tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]
"""x and y of held-out rows, and perhaps their ids."""


def open_tested(
    stack: ExitStack, test: Path | str | None, labels: str | None, columns: Columns, target: Path
) -> Vectors | None:
    """A file of held-out rows, as for ``import_``; None if none is given. ``columns`` are those of the other rows."""
    if test is None:
        if labels is not None:
            raise RecipeError(
                "held-out rows have labels but no file", got=labels, do="name the file of the rows: --test, or test=…"
            )
        return None
    found = open_features(stack, local_path(test), _columns_of(columns, labels), target)
    if isinstance(found, FeatureFile):
        raise DataError(f"{test} is the export of a store, not a file of held-out rows", do="import it alone")
    return found.parted("all rows of this file are held out")[0].narrowed()


def in_memory_tested(test: Tested | None) -> Vectors | None:
    """Held-out rows in memory, as for ``import_vectors``; None if there are none."""
    if not (test is None or (isinstance(test, tuple | list) and len(test) in (2, 3))):
        raise ArgumentError("test is not x and y of held-out rows", got=type(test).__name__, do="test=(x, y)")
    return None if test is None else Vectors.in_memory("test", *test)


def check_tested(test: Vectors, classes: Collection[str], ids: Collection[str]) -> None:
    """DataError unless held-out rows have no other classes than the rows to train on, and none of their ids."""
    if unknown := sorted(set(test.classes) - set(classes)):
        raise DataError(
            "held-out rows are of classes that no other row has",
            got=f"{counted(len(unknown), 'class')}, the first: {unknown[0]!r}",
            do="leave those rows out, or give rows of these classes to train on",
        )
    if both := set(test.ids) & set(ids):
        raise DataError(
            "held-out rows have ids that other rows have, too",
            got=f"{counted(len(both), 'id')}, the first: {min(both)!r}",
            do="give ids of their own (--ids, or ids=… and test=(x, y, ids)), or rename the file that they come from",
        )


def _columns_of(columns: Columns, labels: str | None) -> Columns:
    """The columns of a file of held-out rows: those of the other file, with ``labels`` of its own if they are given.

    Raises:
        DataError: the other rows have their labels in a file, which has none for these.
    """
    if labels is None and columns.labels is not None and is_file_name(columns.labels):
        raise DataError(
            "the held-out rows have no labels of their own",
            got=f"{columns.labels} for the others",
            do="name a file of them: --test-labels, or test_labels=…",
        )
    ids = None if columns.ids is not None and is_file_name(columns.ids) else columns.ids
    return replace(columns, labels=labels or columns.labels, ids=ids)
