"""Files of vectors that other tools wrote, from npy to CSV and HDF5, with labels and ids in them or beside them."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.arrays import check_expansion
from taftcache.backbone.sources.base import SPLIT
from taftcache.backbone.sources.columns import no_heading, parquet_batches, parquet_file, read_table
from taftcache.backbone.sources.npz import FAULTS, mapped, read_member
from taftcache.cache.columns import NAMES, USUAL, Columns, NamedColumns
from taftcache.cache.format.layout import check_shape
from taftcache.cache.hdf5 import FeatureFile
from taftcache.errors import OF_IMAGES, ArgumentError, DataError, check_file, local_path
from taftcache.stages.files.vectors.given import NAME_THEM, Vectors

_TABLES = (".csv", ".tsv")
SUFFIXES = (".npy", ".npz", ".parquet", ".pq", *_TABLES)
_LOCAL = struct.Struct("<26xHH")  # in a zip member's local header: the lengths of its name and its extra field
_AGAIN = "write it again, without Python objects: texts as array.astype(str)"
_LABELS = "name them: --labels, or Columns(labels=…)"


def open_features(
    stack: ExitStack, path: Path, columns: Columns, target: Path | None, *, labelled: bool = True
) -> FeatureFile | Vectors:
    """A file of features, or the export of a store; what must be spooled goes to the disk that ``target`` lies on, or
    where the system has temporary files. ``labelled``: as for ``open_vectors``."""
    if not isinstance(columns, Columns):
        raise ArgumentError("columns are not named by Columns", got=repr(columns)[:80], do='Columns(labels="y")')
    folder = None if target is None else target.absolute().parent
    scratch = folder if folder is not None and folder.is_dir() else None
    if path.suffix.lower() not in SUFFIXES:
        file = stack.enter_context(FeatureFile(path, scratch))
        return file if file.is_export else vectors_of_hdf5(file, columns, labelled=labelled)
    return open_vectors(path, columns, scratch, labelled=labelled)


def open_vectors(
    path: Path, columns: Columns, scratch: Path | None = None, aside: str | None = None, *, labelled: bool = True
) -> Vectors:
    """The vectors of a file, with labels and ids from it or from files that ``columns`` names; not ``labelled``, labels
    are not looked for. The column ``aside`` of a CSV file is no part of a vector either.

    An npy file and an uncompressed npz archive are mapped. A Parquet file, whose rows cannot be read one by one, is
    copied once, group by group, into a nameless file below ``scratch``.

    Raises:
        DataError: no such file, damaged, with Python objects or without labels; and as ``Vectors.of`` says.
    """
    check_file(path, of_folder=OF_IMAGES)
    try:
        if path.suffix.lower() == ".npy":
            return _from_npy(path, columns, labelled)
        if path.suffix.lower() in _TABLES:
            return _from_text(path, columns, aside, labelled)
        if path.suffix.lower() == ".npz":
            return _from_npz(path, columns, labelled)
        return _from_parquet(path, columns, scratch, labelled)
    except MemoryError as error:
        raise DataError(
            f"{path} needs more memory than there is", got=str(error), do="write it as npy, or npz uncompressed"
        ) from error
    except FAULTS as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}", got=str(error), do=_AGAIN) from error


def _from_npy(path: Path, columns: Columns, labelled: bool) -> Vectors:
    if columns.labels is None and labelled:
        raise DataError(f"{path} has only vectors, without labels", do=f"{_LABELS}, such as labels.npy or labels.csv")
    there = columns.within(())
    for name in (columns.vectors, columns.classes):
        if name is not None:
            raise DataError(f"{path} has no array named {name!r}", got="one array, without name", do="leave it out")
    beside = _Beside(path, columns, {}, labelled=labelled)
    return Vectors.of(path, mapped(path), beside.labels(there), beside.ids(there), splits=beside.splits())


def _from_npz(path: Path, columns: Columns, labelled: bool) -> Vectors:
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        names = columns.within(members)
        few = {name for name in _few(names, labelled) if name in members}
        packed = {names.vectors} if members.get(names.vectors, _STORED).compress_type != zipfile.ZIP_STORED else set()
        needed = sum(members[name].file_size for name in few | packed)
        check_expansion(path, needed, path.stat().st_size)
        _needs_vectors(path, columns, names, members)
        _needs(path, names.vectors, members)
        if columns.classes is not None:
            _needs(path, columns.classes, members)
        arrays = {name: read_member(archive, members[name]) for name in sorted(few | packed)}
        entry = members[names.vectors]
    beside = _Beside(path, columns, arrays, members, labelled=labelled)
    values = arrays[names.vectors] if packed else mapped(path, _start(path, entry))
    labels, ids, splits = beside.labels(names), beside.ids(names), beside.splits()
    return Vectors.of(path, values, labels, ids, arrays.get(names.classes), splits)


def _few(names: NamedColumns, labelled: bool) -> tuple[str, ...]:
    """What is read besides the vectors; not ``labelled``, nothing about labels."""
    return (names.ids, names.labels, names.classes, NAMES) if labelled else (names.ids,)


_STORED = zipfile.ZipInfo()


def _start(path: Path, entry: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin in its archive."""
    with path.open("rb") as stream:
        stream.seek(entry.header_offset)
        name, more = _LOCAL.unpack(stream.read(_LOCAL.size))
        return entry.header_offset + _LOCAL.size + int(name) + int(more)


def _from_parquet(path: Path, columns: Columns, scratch: Path | None, labelled: bool) -> Vectors:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(
            f"{path} cannot be read without pyarrow", got=str(error), do="pip install 'taftcache[parquet]'"
        ) from None
    try:
        with parquet_file(path) as file:
            there = file.schema_arrow.names
            names = columns.within(there)
            _needs_vectors(path, columns, names, there)
            _needs(path, names.vectors, there)
            if columns.classes is not None:
                raise DataError(f"{path} has no list of classes", got=columns.classes, do="leave its name out")
            few = [name for name in {*_few(names, labelled), SPLIT} - {names.classes} if name in there]
            batches = list(parquet_batches(path, file, few))
            arrays = {name: [v for b in batches for v in b[name].to_pylist()] for name in few}
            beside = _Beside(path, columns, arrays, there, labelled=labelled)
            labels, ids = beside.labels(names), beside.ids(names)
            with tempfile.TemporaryFile(dir=scratch) as spool:  # without a name: a killed run leaves nothing
                values = _spooled(path, file, names.vectors, spool)
    except pa.ArrowException as error:
        raise DataError(f"{path} cannot be read as Parquet", got=str(error), do="write it again") from error
    return Vectors.of(path, values, labels, ids, splits=beside.splits())


def _from_text(path: Path, columns: Columns, aside: str | None, labelled: bool) -> Vectors:
    """A CSV or TSV file: whatever is neither labels nor ids is a column of numbers."""
    table = read_table(path).columns
    names = columns.within(table)
    for name in (columns.vectors, columns.classes):
        if name is not None:
            raise DataError(
                f"{path} has no column of vectors, but one for each of their numbers", got=name, do="leave its name out"
            )
    _check_heading(path, table)
    others = (names.labels, names.ids, NAMES, SPLIT, aside)
    numbers = [_numbers(path, name, table[name]) for name in table if name not in others]
    beside = _Beside(path, columns, table, labelled=labelled)
    values = np.stack(numbers, 1) if numbers else np.empty((0, 0))
    return Vectors.of(path, values, beside.labels(names), beside.ids(names), splits=beside.splits())


def _check_heading(path: Path, table: Mapping[str, Sequence[str]]) -> None:
    """DataError if a table's names are those of a sample: half are fractions, and another is a value of its column,
    as a class is. Whole numbers are the names that pandas gives, and wavelengths, say, are fractions."""
    fractions = {name for name in table if _is_number(name) and not name.lstrip("-").isdecimal()}
    others = (cells for name, cells in table.items() if name not in fractions and name in cells)
    if 2 * len(fractions) >= len(table) and any(others):
        raise no_heading(path, [*table], "x1,x2,label")


def _numbers(path: Path, name: str, cells: Sequence[str]) -> NDArray[np.float64]:
    """A column of a table as numbers."""
    try:
        if not name:
            raise ValueError("a column without a name, as pandas has for its index")
        return np.array(cells, np.float64)
    except ValueError as error:
        odd = [row for row, cell in enumerate(cells) if not _is_number(cell)]
        comma = bool(odd) and _is_number(cells[odd[0]].replace(",", ".", 1))
        if not name or not (comma or 0 < 2 * len(odd) < len(cells)):
            do = "numbers alone beside labels and ids, under a line of names: in pandas to_csv(…, index=False)"
            raise DataError(
                f"{path} has a column that is not part of a vector", got=f"{name!r}: {error}", do=do
            ) from None
    raise DataError(
        f"row {odd[0] + 1} of {path} has no number in column {name!r}" + (" because of a comma" if comma else ""),
        got=f"{cells[odd[0]]!r}" + (f", and {len(odd) - 1} more in this column" if odd[1:] else ""),
        do="write a point for the comma; in pandas read_csv(…, decimal=',').to_csv(…, index=False)"
        if comma
        else "write a number there, or leave the row out",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def column_of(path: Path, columns: Columns, name: str) -> list[Any]:
    """A further column or array [n] of a file that ``open_vectors`` took or, if its labels are in a table, of that.

    Raises:
        DataError: there is none of this name, or it cannot be read.
    """
    labels = columns.labels
    place = local_path(labels) if labels is not None and Path(labels).suffix in _TABLES else path
    there: list[str] = []
    found: Any = None
    try:
        if place.suffix.lower() in _TABLES:
            table = read_table(place).columns
            there, found = [*table], table.get(name)
        elif place.suffix.lower() == ".npz":
            with zipfile.ZipFile(place) as archive:
                members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
                there = [*members]
                if name in members:
                    check_expansion(place, members[name].file_size, place.stat().st_size)
                    found = read_member(archive, members[name]).tolist()
        elif place.suffix.lower() != ".npy":
            with parquet_file(place) as file:
                there = file.schema_arrow.names
                if name in there:
                    found = [v for batch in parquet_batches(place, file, [name]) for v in batch[name].to_pylist()]
    except FAULTS as error:
        raise DataError(f"the column {name!r} of {place} cannot be read", got=str(error), do=_AGAIN) from error
    if found is None:
        raise DataError(f"{place} has no column {name!r}", got=_listed(there) or "vectors alone", do="name another")
    return [*found]


def vectors_of_hdf5(file: FeatureFile, columns: Columns, *, labelled: bool = True) -> Vectors:
    """The vectors, or rows [n, t, d], of an open HDF5 file that is no export; its rows are read when asked for.

    Raises:
        DataError: as for ``open_vectors``.
    """
    names = columns.within(file)
    _needs_vectors(file.path, columns, names, file)
    values = file.rows(names.vectors)
    arrays = {name: file.column(name) for name in _few(names, labelled) if name in file}
    if columns.classes is not None and labelled:
        _needs(file.path, columns.classes, arrays)
    beside = _Beside(file.path, columns, arrays, labelled=labelled)
    labels, ids, splits = beside.labels(names), beside.ids(names), beside.splits()
    found = Vectors.of(file.path, values, labels, ids, arrays.get(names.classes), splits)
    check_shape(found.tokens_shape, "float32", 1)
    return found


def _spooled(path: Path, file: Any, name: str, spool: IO[bytes]) -> NDArray[Any]:
    """A column of lists as a memory map [n, d] of ``spool``, which is filled batch by batch."""
    width, dtype = 0, np.dtype(np.float32)
    for batch in parquet_batches(path, file, [name]):
        lists = batch.column(0)
        if not str(lists.type).startswith(("list", "large_list", "fixed_size_list")):
            raise DataError(f"the column {name} of {path} has no lists of numbers", got=str(lists.type), do=NAME_THEM)
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
    """DataError if the file has no vectors under a usual name, and the caller gave no other."""
    if columns.vectors is None and names.vectors not in there:
        raise DataError(
            f"{path} holds no vectors under a usual name",
            got=_listed(there),
            do=f"{NAME_THEM}; {', '.join(USUAL['vectors'])} are looked for",
        )


def _needs(path: Path, name: str, there: Container[str]) -> None:
    if name not in there:
        raise DataError(f"{path} holds nothing named {name!r}", got=_listed(there), do=NAME_THEM)


def _listed(there: Container[str]) -> str | None:
    """The names that a file has, if they are known."""
    if not isinstance(there, Mapping | list) or not there:
        return None
    return f"it holds: {', '.join(sorted(map(str, there))):.300}"


@dataclass(frozen=True)
class _Beside:
    """Labels and ids, from ``arrays`` of the file itself or from another file that the caller named."""

    path: Path
    columns: Columns
    arrays: Mapping[str, Any]
    there: Mapping[str, Any] | list[str] = field(default_factory=list)  # what else the file has
    labelled: bool = True  # whether labels are looked for

    def labels(self, names: NamedColumns) -> Any:
        """Labels [n]; None where they are not looked for.

        Raises:
            DataError: there are none.
        """
        if not self.labelled:
            return None
        found = self._found(names.labels, "labels")
        if found is None:
            raise DataError(
                f"{self.path} has no labels named {names.labels!r}",
                got=_listed(self.there or self.arrays) or "vectors alone",
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

    def splits(self) -> list[str]:
        """The column ``split`` [n] of the table that the labels are from; empty without one."""
        place = self._file(self.columns.labels)
        if place is None:
            return list(map(str, self.arrays.get(SPLIT, ())))
        return list(map(str, read_table(place).columns.get(SPLIT, ()))) if place.suffix in _TABLES else []

    def _found(self, name: str, what: str) -> Any:
        place = self._file(name)
        if place is None:
            return self.arrays.get(name)
        check_file(place, f"correct the path of the {what}")
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
        """The file that ``name`` means; None if it is the name of an array."""
        if name is None or name in self.arrays or not is_file_name(name):
            return None
        return local_path(name)


def _named(labels: Any, names: Any) -> Any:
    """The ``names`` [n] of numeric labels [n], if they are texts, one for each different number; else the labels."""
    if names is None:
        return labels
    try:
        pairs = set(zip(np.asarray(labels, float).tolist(), names, strict=True))
    except (TypeError, ValueError, SystemError):  # SystemError: texts that are not Unicode
        return labels
    one_each = len({number for number, _ in pairs}) == len({text for _, text in pairs}) == len(pairs)
    return names if one_each and all(isinstance(text, str | bytes) for _, text in pairs) else labels


def is_file_name(name: str) -> bool:
    """Whether a name of labels or ids means a file of them."""
    return Path(name).suffix in (".npy", *_TABLES)
