"""Labelled vectors, wherever they come from: checked, with ids and classes, and read row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taftcache.backbone.sources.arrays import label_indexes, texts, to_numpy
from taftcache.backbone.sources.base import REGRESSION, TEST, TRAIN, Item, SourceInfo, first_usual, splits_note
from taftcache.cache.format.plan import check_ids
from taftcache.cache.hdf5 import StoredRows
from taftcache.errors import DataError, first_line
from taftcache.names import counted, with_counts

NAME_THEM = (
    "numbers [n, d], and one label and one id for each; in a file, name them: --vectors, --labels, --ids, or Columns(…)"
)


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Vectors [n, d] (or rows [n, t, d]) with their ids, labels int64 [n], and the classes that the labels index.

    ``values`` is mapped from a file if there is one, so that rows are read only when they are needed; ``rows`` [n] are
    the places in it, None for all. ``splits`` [n] is the column ``split`` of a table that has the labels; empty without
    one. ``numbered``: as of a source of images.
    """

    path: Path
    values: NDArray[Any] | StoredRows
    ids: list[str]
    labels: NDArray[np.int64]
    classes: list[str]
    notes: tuple[str, ...] = ()
    numbered: bool = False
    splits: Sequence[str] = ()
    rows: NDArray[np.int64] | None = None
    info: ClassVar[SourceInfo] = SourceInfo()

    @classmethod
    def in_memory(cls, name: str, values: ArrayLike, labels: ArrayLike, ids: ArrayLike | None = None) -> Vectors:
        """Vectors from a program's own arrays, tables, or tensors on any device; the rest as for ``of``.

        Without ``ids``, the index of a pandas table gives them if it has unique texts. Otherwise rows are numbered, and
        a note says so unless the index only numbers them, too. Columns are joined by position: DataError if the index
        of one has the table's labels in another order.
        """
        table: Any = values
        index, notes = _index(table), list[str]()
        for what, given in (("labels", labels), ("ids", ids)):
            _check_order(name, what, index, _index(given))
        if ids is None and index is not None:
            if len({i for i in index if isinstance(i, str)}) == len(index):
                ids = index
            elif not hasattr(table.index, "step"):  # a range only numbers rows, too
                notes = [f"{name} are numbered, for the index of their table is not of unique texts; ids=… names them"]
        x, y, known = (
            to_numpy(f"the {what} of {name}", given)
            for what, given in (("vectors", values), ("labels", labels), ("ids", ids))
        )
        try:
            x = np.asarray(x)
        except ValueError as error:  # lists of unlike lengths
            raise DataError(
                f"the vectors of {name} are not numbers [n, d]", got=first_line(error), do="vectors of one length"
            ) from None
        return replace(cls.of(Path(name), x, y, known), notes=tuple(notes))

    @classmethod
    def of(
        cls,
        path: Path,
        values: NDArray[Any] | StoredRows,
        labels: ArrayLike | None,
        ids: ArrayLike | None,
        names: Any = None,
        splits: Sequence[str] = (),
    ) -> Vectors:
        """Vectors of ``path`` (a file, or what stands for one in messages and ids), checked except for NaN. Without
        ``labels`` they are of one class.

        Raises:
            DataError: not numbers [n, d], labels or ids of another length, labels that are not classes, or ids that are
                not allowed or come twice.
        """
        if values.ndim and not len(values):
            got = f"{values.dtype} {list(values.shape)}"
            raise DataError(f"there are no vectors in {path}", got=got, do="give at least one")
        forms = {2: "[n, d]"} | ({3: "[n, t, d]"} if isinstance(values, StoredRows) else {})
        numbers = values.ndim == 1 and values.dtype.kind in "fiu"
        if values.ndim not in forms or not values.size or values.dtype.kind not in "fiu" or values.dtype.itemsize > 8:
            cure = 'turn them into numbers of 8 bytes at most: astype("float32")' if values.ndim in forms else NAME_THEM
            cure = cure if values.size else "vectors of one number at least"
            raise DataError(
                f"the vectors of {path} are not numbers {' or '.join(forms.values())}",
                got=f"{values.dtype} {list(values.shape)}",
                do="reshape(-1, 1) and --scaling none, if they are vectors of one number" if numbers else cure,
            )
        n = len(values)
        given = np.zeros(n, np.int64) if labels is None else _words(path, "labels", labels)
        known = (
            [f"{path.stem}/{k:08d}" for k in range(n)] if ids is None else texts(path, "ids", _words(path, "ids", ids))
        )
        for what, count in (("label", len(given)), ("id", len(known))):
            if count != n:
                raise DataError(
                    f"{path} has {counted(n, 'vector')}, but {counted(count, what)}",
                    do=f"{NAME_THEM}; a table begins with a line of names",
                )
        check_ids(known)
        classes, indexes = label_indexes(
            path, given, None if names is None or labels is None else texts(path, "classes", names)
        )
        found = np.array(indexes, np.int64)
        if found.min() < 0 or found.max() >= len(classes):
            raise DataError(
                f"{path} has labels that are not among its classes",
                got=f"labels from {found.min()} to {found.max()}, {counted(len(classes), 'class')}",
                do="number the labels from 0, in the order of the classes",
            )
        if "" in classes:
            got = next((repr(i) for i, index in zip(known, indexes, strict=True) if not classes[index]), "a class")
            raise DataError(f"{path} has an empty label", got=got, do="leave the sample out")
        return cls(
            path=path, values=values, ids=known, labels=found, classes=classes, numbered=ids is None, splits=splits
        )

    @property
    def tokens_shape(self) -> tuple[int, int]:
        """(t, d) of a row; t = 1 for a vector."""
        *t, d = self.values.shape[1:]
        return (t[0] if t else 1), d

    @property
    def items(self) -> list[Item]:
        """Ids and labels."""
        return [Item(i, k) for i, k in zip(self.ids, self.labels.tolist(), strict=True)]

    def narrowed(self) -> Vectors:
        """The same with only the classes that occur: if all labels are 1 and 2, a store has no class "0"."""
        used, labels = np.unique(self.labels, return_inverse=True)
        return replace(self, classes=[self.classes[k] for k in used], labels=labels)

    def part(self, places: Sequence[int]) -> Vectors:
        """Some of the rows, with only the classes that occur among them, and without notes."""
        at = np.array(places, np.int64)
        ids, rows = [self.ids[k] for k in at], at if self.rows is None else self.rows[at]
        return replace(self, ids=ids, labels=self.labels[at], splits=(), rows=rows, notes=()).narrowed()

    def parted(self, instead: str | None, *, alone: bool = False) -> tuple[Vectors, Vectors | None]:
        """The rows to train on and those to hold out, as the column ``split`` says in the names that ``init`` takes;
        rows of other splits are left out. All rows and None if the column has no such two names, or if something is to
        be done ``instead``, as a note then says. With ``alone``, rows to hold out are enough.
        """
        counts = Counter(self.splits)
        trained, tested = first_usual(counts, TRAIN), first_usual(counts, TEST)
        if tested is None or instead is not None or (trained is None and not alone):
            how = instead or "to test on one of these, call it test and others train, or give --test FILE"
            said = [f"the column split beside the labels of {self.path} is not used: {with_counts(counts)}; {how}"]
            return replace(self, notes=(*self.notes, *(said if len(counts) > 1 else []))), None
        parts = (self.part([k for k, own in enumerate(self.splits) if own == name]) for name in (trained, tested))
        left = [f"{name} ({counts[name]})" for name in sorted(counts.keys() - {trained, tested})]
        given, test = parts
        return replace(given, notes=(*self.notes, *splits_note(trained, tested, left))), test

    def take(self, index: Sequence[int]) -> NDArray[Any]:
        """Rows ``index`` [b, t, d], in that order."""
        here: Any = list(index)
        if self.rows is not None:
            here = self.rows[here].tolist()
        elif isinstance(index, range) and index.step == 1:  # read in one piece, and not copied from a map
            here = slice(index.start, index.stop)
        found: NDArray[Any] = self.values[here].reshape(-1, *self.tokens_shape)
        return found if found.dtype.kind == "f" else found.astype(np.float64)


def _index(given: Any) -> list[Any] | None:
    """The row labels of a pandas table or column; None for anything else."""
    return given.index.tolist() if hasattr(given, "iloc") else None


def _check_order(name: str, what: str, of_rows: list[Any] | None, own: list[Any] | None) -> None:
    """DataError if the ``own`` index of a column has the labels of the rows' index in another order."""
    if of_rows is None or own is None or of_rows == own or Counter(of_rows) != Counter(own):
        return
    at = next(k for k, (i, j) in enumerate(zip(of_rows, own, strict=True)) if i != j)
    raise DataError(
        f"the {what} of {name} are in another order than the vectors, according to the index of both",
        got=f"row {at} is {of_rows[at]!r} of the vectors, and {own[at]!r} of the {what}",
        do=f"{what}.loc[vectors.index]; or to_numpy(), if the order is right and the index is not",
    )


def _in_one_row(what: str, found: NDArray[Any]) -> str:
    """What makes labels or ids [n] of an array that is not integers or texts [n]."""
    if found.ndim == 2 and found.shape[1] == 1:
        return f"np.ravel({what})"
    if found.ndim == 2 and found.dtype.kind in "biuf":
        some = found != 0
        if (some.sum(1) == 1).all() and (found[some] == 1).all():
            return f"np.argmax({what}, 1)"
    return f"write {what} as integers or texts, one for each vector" + (
        f"; {REGRESSION}" if what == "labels" and found.dtype.kind == "f" else ""
    )


def _words(path: Path, what: str, given: ArrayLike) -> NDArray[Any]:
    """Labels or ids [n] as they were given; DataError unless each is an integer or a text."""
    # as objects: in an array of texts, each takes as much room as the longest
    of_texts = isinstance(given, list | tuple) and all(isinstance(value, str) for value in given)
    found = np.asarray(given, object if of_texts else None)
    if what == "labels" and found.ndim == 1 and found.dtype.kind == "f" and (np.abs(found) < 2**53).all():
        whole = found.astype(np.int64)  # pandas turns integers into floats once there are gaps among them
        found = whole if (whole == found).all() else found
    if found.ndim != 1 or found.dtype.kind not in "USOiuT":
        raise DataError(
            f"the {what} of {path} are not integers or texts [n]",
            got=f"{found.dtype} {list(found.shape)}",
            do=_in_one_row(what, found),
        )
    if found.dtype.kind == "O":
        odd = (k for k, value in enumerate(found) if not isinstance(value, str | bytes | int | np.integer))
        if (at := next(odd, None)) is not None:
            raise DataError(
                f"the {what} of {path} are not all integers or texts",
                got=f"{found[at]!r} for row {at}",
                do="leave that row out, or write what it lacks",
            )
    return found
