"""Labelled vectors of other tools, read row by row: npy, npz, Parquet and HDF5 files, and arrays in memory."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taftcache.backbone.sources.arrays import check_expansion, label_indexes, texts
from taftcache.backbone.sources.columns import read_table
from taftcache.backbone.sources.npz import FAULTS, mapped, read_member
from taftcache.cache.columns import NAMES, USUAL, Columns, NamedColumns
from taftcache.cache.format.layout import check_shape
from taftcache.cache.format.plan import check_ids
from taftcache.cache.hdf5 import FeatureFile, StoredRows
from taftcache.errors import DataError, first_line
from taftcache.names import counted

SUFFIXES = (".npy", ".npz", ".parquet", ".pq")
_TABLES = (".csv", ".tsv")
_ROWS_AT_ONCE = 4096
_LOCAL = struct.Struct("<26xHH")  # of a zip member's own header: the lengths of its name and of what follows it


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Vectors [n, d] (or rows [n, t, d]) with their ids, labels int64 [n] and the classes that these are indexes to.

    ``values`` is mapped from a file where there is one, so that rows are read when they are asked for.
    """

    path: Path
    values: NDArray[Any] | StoredRows
    ids: list[str]
    labels: NDArray[np.int64]
    classes: list[str]

    @classmethod
    def in_memory(cls, name: str, values: ArrayLike, labels: ArrayLike, ids: ArrayLike | None = None) -> Vectors:
        """Vectors of a program's own arrays, or of tensors, wherever they lie; the rest as for ``of``."""
        x, y = (a.detach().cpu() if hasattr(a, "detach") else a for a in (values, labels))
        try:
            x = np.asarray(x)
        except ValueError as error:  # lists of unlike lengths
            raise DataError(
                f"the vectors of {name} are not numbers [n, d]", got=first_line(error), do="vectors of one length"
            ) from error
        return cls.of(Path(name), x, y, ids)

    @classmethod
    def of(
        cls,
        path: Path,
        values: NDArray[Any] | StoredRows,
        labels: ArrayLike,
        ids: ArrayLike | None,
        names: Any = None,
    ) -> Vectors:
        """Vectors of ``path`` (a file, or what stands for one in messages and ids), checked but for NaN.

        Raises:
            DataError: no numbers [n, d], labels or ids of another length, labels that are no classes, ids that are none
                or come twice.
        """
        if values.ndim and not len(values):
            got = f"{values.dtype} {list(values.shape)}"
            raise DataError(f"there are no vectors in {path}", got=got, do="give one at least")
        forms = {2: "[n, d]"} | ({3: "[n, t, d]"} if isinstance(values, StoredRows) else {})
        numbers = values.ndim == 1 and values.dtype.kind in "fiu"
        if values.ndim not in forms or not values.size or values.dtype.kind not in "fiu" or values.dtype.itemsize > 8:
            raise DataError(
                f"the vectors of {path} are not numbers {' or '.join(forms.values())}",
                got=f"{values.dtype} {list(values.shape)}",
                do="reshape(-1, 1) and --scaling none, if they are vectors of one number" if numbers else _NAME,
            )
        n = len(values)
        given = _words(path, "labels", labels)
        known = (
            [f"{path.stem}/{k:08d}" for k in range(n)] if ids is None else texts(path, "ids", _words(path, "ids", ids))
        )
        for what, count in (("label", len(given)), ("id", len(known))):
            if count != n:
                raise DataError(
                    f"{path} has {counted(n, 'vector')}, but {counted(count, what)}",
                    do=f"{_NAME}; a table begins with a line of names",
                )
        check_ids(known)
        classes, indexes = label_indexes(path, given, None if names is None else texts(path, "classes", names))
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
        _check_classes(path, classes, n)
        made = cls(path=path, values=values, ids=known, labels=found, classes=classes)
        return made.narrowed() if names is None else made

    @property
    def tokens_shape(self) -> tuple[int, int]:
        """(t, d) of a row; t = 1 of a vector."""
        *t, d = self.values.shape[1:]
        return (t[0] if t else 1), d

    def narrowed(self) -> Vectors:
        """The same with the classes that occur alone: "0" is none of a store's where 1 and 2 are all labels."""
        used, labels = np.unique(self.labels, return_inverse=True)
        return replace(self, classes=[self.classes[k] for k in used], labels=labels)

    def take(self, index: Sequence[int]) -> NDArray[Any]:
        """Rows ``index`` [b, t, d], in that order."""
        here: Any = list(index)
        if isinstance(index, range) and index.step == 1:  # read in one piece, and from a map not copied
            here = slice(index.start, index.stop)
        found: NDArray[Any] = self.values[here].reshape(-1, *self.tokens_shape)
        return found if found.dtype.kind == "f" else found.astype(np.float64)


_AGAIN = "write it again, without Python objects: texts as array.astype(str)"
_NAME = (
    "numbers [n, d], and one label and one id for each; in a file, name them: --vectors, --labels, --ids, or Columns(…)"
)
_LABELS = "name them: --labels, or Columns(labels=…)"


def _words(path: Path, what: str, given: ArrayLike) -> NDArray[Any]:
    """Labels or ids [n] as they were given; DataError for what is neither integers nor texts, one by one."""
    found = np.asarray(given)
    if what == "labels" and found.ndim == 1 and found.dtype.kind == "f" and (np.abs(found) < 2**53).all():
        whole = found.astype(np.int64)  # as pandas has integers that once had gaps among them
        found = whole if (whole == found).all() else found
    if found.ndim != 1 or found.dtype.kind not in "USOiuT":
        raise DataError(
            f"the {what} of {path} are not integers or texts [n]",
            got=f"{found.dtype} {list(found.shape)}",
            do=f"write {what} as integers or texts, one for each vector",
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


def _check_classes(path: Path, classes: Sequence[str], n: int) -> None:
    """DataError where "classes" are values of a regression: fractions, most of them different."""
    if 2 * len(classes) <= n:
        return
    try:
        fractions = not all(float(name).is_integer() for name in classes)
    except ValueError:
        return
    if fractions:
        raise DataError(
            f"the labels of {path} are values, not classes",
            got=f"{counted(len(classes), 'different number')} for {counted(n, 'row')}, such as {classes[0]}",
            do="name the column of classes; values are fitted by TangentRegressor",
        )


def open_vectors(path: Path, columns: Columns, scratch: Path | None = None) -> Vectors:
    """The vectors of a file, with labels and ids from it or from files that ``columns`` names.

    An npy file and an uncompressed npz archive are mapped. A Parquet file, whose rows cannot be asked for singly, is
    read once, group by group, into a nameless file below ``scratch``.

    Raises:
        DataError: no such file, damaged, with Python objects or without labels; and as ``Vectors.of`` says.
    """
    if not path.is_file():
        raise DataError(f"cannot read {path}: it is not a file", do="correct the path")
    try:
        if path.suffix.lower() == ".npy":
            return _from_npy(path, columns)
        return _from_npz(path, columns) if path.suffix.lower() == ".npz" else _from_parquet(path, columns, scratch)
    except MemoryError as error:
        raise DataError(
            f"{path} needs more memory than there is", got=str(error), do="write it as npy, or npz uncompressed"
        ) from error
    except FAULTS as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}", got=str(error), do=_AGAIN) from error


def _from_npy(path: Path, columns: Columns) -> Vectors:
    if columns.labels is None:
        raise DataError(f"{path} has vectors alone, without labels", do=f"{_LABELS}, such as labels.npy or labels.csv")
    there = columns.within(())
    for name in (columns.tokens, columns.classes):
        if name is not None:
            raise DataError(f"{path} has no array named {name!r}", got="one array, without name", do="leave it out")
    columns_of_it = _Beside(path, columns, {})
    return Vectors.of(path, mapped(path), columns_of_it.labels(there), columns_of_it.ids(there))


def _from_npz(path: Path, columns: Columns) -> Vectors:
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        names = columns.within(members)
        few = {name for name in (names.labels, names.ids, names.classes, NAMES) if name in members}
        packed = {names.tokens} if members.get(names.tokens, _STORED).compress_type != zipfile.ZIP_STORED else set()
        needed = sum(members[name].file_size for name in few | packed)
        check_expansion(path, needed, path.stat().st_size)
        _needs_vectors(path, columns, names, members)
        _needs(path, names.tokens, members)
        if columns.classes is not None:
            _needs(path, columns.classes, members)
        arrays = {name: read_member(archive, members[name]) for name in sorted(few | packed)}
        entry = members[names.tokens]
    beside = _Beside(path, columns, arrays)
    values = arrays[names.tokens] if packed else mapped(path, _start(path, entry))
    return Vectors.of(path, values, beside.labels(names), beside.ids(names), arrays.get(names.classes))


_STORED = zipfile.ZipInfo()


def _start(path: Path, entry: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin in its archive."""
    with path.open("rb") as stream:
        stream.seek(entry.header_offset)
        name, more = _LOCAL.unpack(stream.read(_LOCAL.size))
        return entry.header_offset + _LOCAL.size + int(name) + int(more)


def _from_parquet(path: Path, columns: Columns, scratch: Path | None) -> Vectors:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{path} cannot be read without pyarrow", got=str(error), do="pip install 'taftcache[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            there = file.schema_arrow.names
            names = columns.within(there)
            _needs_vectors(path, columns, names, there)
            _needs(path, names.tokens, there)
            if columns.classes is not None:
                raise DataError(f"{path} has no list of classes", got=columns.classes, do="leave its name out")
            few = [name for name in {names.labels, names.ids, NAMES} if name in there]
            table = file.read(columns=few)
            beside = _Beside(path, columns, {name: table.column(name).to_pylist() for name in few})
            labels, ids = beside.labels(names), beside.ids(names)
            with tempfile.TemporaryFile(dir=scratch) as spool:  # of no name, so that a kill leaves nothing
                values = _spooled(path, file, names.tokens, spool)
    except pa.ArrowException as error:
        raise DataError(f"{path} cannot be read as Parquet", got=str(error), do="write it again") from error
    return Vectors.of(path, values, labels, ids)


def vectors_of_hdf5(file: FeatureFile, columns: Columns) -> Vectors:
    """The vectors, or rows [n, t, d], of an open HDF5 file that is no export; its rows are read when asked for.

    Raises:
        DataError: as for ``open_vectors``.
    """
    names = columns.within(file)
    _needs_vectors(file.path, columns, names, file)
    values = file.rows(names.tokens)
    arrays = {name: file.column(name) for name in (names.labels, names.ids, names.classes, NAMES) if name in file}
    if columns.classes is not None:
        _needs(file.path, columns.classes, arrays)
    beside = _Beside(file.path, columns, arrays)
    found = Vectors.of(file.path, values, beside.labels(names), beside.ids(names), arrays.get(names.classes))
    check_shape(found.tokens_shape, "float32", 1)
    return found


def _spooled(path: Path, file: Any, name: str, spool: IO[bytes]) -> NDArray[Any]:
    """A column of lists as a map [n, d] of a file that is filled batch by batch."""
    width, dtype = 0, np.dtype(np.float32)
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[name]):
        lists = batch.column(0)
        if not str(lists.type).startswith(("list", "large_list", "fixed_size_list")):
            raise DataError(f"the column {name} of {path} has no lists of numbers", got=str(lists.type), do=_NAME)
        flat = lists.flatten()
        values = np.asarray(flat.to_numpy(zero_copy_only=False))
        lengths = set(lists.value_lengths().to_pylist())
        width = width or len(values) // max(len(lists), 1)
        if lengths != {width} or flat.null_count or values.dtype.kind not in "fiu":
            raise DataError(
                f"the vectors of {path} are not lists of one length without gaps",
                got=f"{lists.type}, lengths {sorted(map(str, lengths))[:4]}, {flat.null_count} values missing",
                do="write as many numbers in each row, and leave rows without a vector out",
            )
        dtype = values.dtype
        spool.write(np.ascontiguousarray(values).tobytes())
    if not width:
        return np.empty((0, 0), dtype)
    spool.flush()
    return np.memmap(spool, dtype, "r", 0, (file.metadata.num_rows, width))


def _needs_vectors(path: Path, columns: Columns, names: NamedColumns, there: Container[str]) -> None:
    """DataError where the file has none of the usual names, and nobody said another."""
    if columns.tokens is None and names.tokens not in there:
        raise DataError(
            f"{path} holds no vectors under a usual name",
            got=_listed(there),
            do=f"{_NAME}; {', '.join(USUAL['tokens'])} are looked for",
        )


def _needs(path: Path, name: str, there: Container[str]) -> None:
    if name not in there:
        raise DataError(f"{path} holds nothing named {name!r}", got=_listed(there), do=_NAME)


def _listed(there: Container[str]) -> str | None:
    """The names that a file has, where they are known."""
    if not isinstance(there, Mapping | list):
        return None
    return f"it holds: {', '.join(sorted(map(str, there))):.300}"


@dataclass(frozen=True)
class _Beside:
    """Labels and ids: out of ``arrays`` of the file itself, or of a file that the caller named in their place."""

    path: Path
    columns: Columns
    arrays: Mapping[str, Any]

    def labels(self, names: NamedColumns) -> Any:
        """Labels [n].

        Raises:
            DataError: there are none.
        """
        found = self._found(names.labels, "labels")
        if found is None:
            raise DataError(
                f"{self.path} has no labels named {names.labels!r}",
                got=f"it holds: {', '.join(sorted(self.arrays)) or 'vectors alone'}",
                do=f"{_LABELS}, or a file of them (.npy, .csv, .tsv)",
            )
        return found if self.columns.labels is not None else _named(found, self.arrays.get(NAMES))

    def ids(self, names: NamedColumns) -> Any:
        """Ids [n]; None where there are none. A table that has the labels may have them, too."""
        found = self._found(names.ids, "ids")
        place = self._file(self.columns.labels)
        if found is None and place is not None and place.suffix in _TABLES:
            table = read_table(place).columns
            found = table.get(Columns(ids=self.columns.ids).within(table).ids)
        if found is None and self.columns.ids is not None:
            raise DataError(
                f"{self.path} has no ids named {self.columns.ids!r}",
                do="name them, or a file of them: --ids, or Columns(ids=…)",
            )
        return found

    def _found(self, name: str, what: str) -> Any:
        place = self._file(name)
        if place is None:
            return self.arrays.get(name)
        if not place.is_file():
            raise DataError(f"the {what} are not in {place}: it is not a file", do="correct the path")
        if place.suffix == ".npy":
            try:
                return np.array(mapped(place))
            except FAULTS as error:
                raise DataError(f"the {what} in {place} cannot be read", got=str(error), do=_AGAIN) from error
        table = read_table(place).columns
        own = getattr(Columns().within(table), what)
        if own not in table and len(table) == 1:
            own = next(iter(table))
        if own not in table:
            raise DataError(f"{place} has no column named {own!r}", got=", ".join(table), do=f"call one {own}")
        return _named(table[own], table.get(NAMES)) if what == "labels" else table[own]

    def _file(self, name: str | None) -> Path | None:
        """The file that ``name`` is, where it is not the name of an array."""
        return Path(name).expanduser() if name is not None and name not in self.arrays and _is_file(name) else None


def _named(labels: Any, names: Any) -> Any:
    """The ``names`` [n] beside labels [n] that are numbers, where they are texts and one for each; else the labels."""
    try:
        pairs = set(zip(np.asarray(labels, float).tolist(), names, strict=True))
    except (TypeError, ValueError):
        return labels
    one_each = len({number for number, _ in pairs}) == len({text for _, text in pairs}) == len(pairs)
    return names if one_each and all(isinstance(text, str | bytes) for _, text in pairs) else labels


def _is_file(name: str) -> bool:
    """Whether a name of labels or ids means a file of them."""
    return Path(name).suffix in (".npy", *_TABLES)


def columns_of_test(columns: Columns, labels: str | None) -> Columns:
    """Where a file of held-out rows has what ``columns`` names in the other file; ``labels`` of its own, or None.

    Raises:
        DataError: the labels of the other rows are a file, which says nothing of these.
    """
    if labels is None and columns.labels is not None and _is_file(columns.labels):
        raise DataError(
            "the held-out rows have no labels of their own",
            got=f"{columns.labels} for the others",
            do="name a file of them: --test-labels, or test_labels=…",
        )
    ids = None if columns.ids is not None and _is_file(columns.ids) else columns.ids
    return replace(columns, labels=labels or columns.labels, ids=ids)
