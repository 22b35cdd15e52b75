"""Tables on disk as columns: CSV, Parquet, and the folder that Hugging Face's ``datasets`` saves."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from taftcache.backbone.sources.arrays import check_expansion
from taftcache.backbone.sources.base import SPLITS
from taftcache.errors import DataError
from taftcache.names import counted, first_few

TEXT, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
_SAVED = "state.json"  # marks a folder that save_to_disk wrote
_NUMBERED = re.compile(r"(.+)-\d+-of-(\d+)(-[0-9a-f]+)?")  # how the Hub and datasets call the parts of a split
_CONVERTED = re.compile(r"[0-9]{4}")  # and the Hub those of a dataset that it has converted, from 0000
_ROWS_AT_ONCE = 256
_READ_AT_ONCE = 1 << 20  # bytes of a column


class _Part(msgspec.Struct, frozen=True):
    filename: str


class _State(msgspec.Struct, frozen=True):
    """The fields of ``state.json`` that are read."""

    parts: list[_Part] = msgspec.field(name="_data_files")
    indices: Any = msgspec.field(name="_indices_files", default=None)


class _Info(msgspec.Struct, frozen=True):
    """The fields of ``dataset_info.json`` that are read."""

    features: dict[str, Any] | None = None


class _Marked(msgspec.Struct, frozen=True):
    """What Hugging Face writes into a Parquet file's schema."""

    info: _Info = _Info()


class Table(NamedTuple):
    """Columns by name, all of one length; and the names of classes, by the column that has their numbers."""

    columns: Mapping[str, Sequence[Any]]
    classes: Mapping[str, list[str]]


def is_table(place: Path) -> bool:
    """Whether ``read_table`` takes it: a file by its suffix, a folder by the state of a saved dataset in it, or by
    Parquet files that are named after splits."""
    if place.is_file():
        return place.suffix.lower() in (*TEXT, *PARQUET)
    return (place / _SAVED).is_file() or bool(splits_in(place))


def tables_in(folder: Path) -> list[Path]:
    """The files of tables that lie in a folder."""
    return [e for e in _entries(folder) if e.is_file() and is_table(e)]


def splits_in(place: Path) -> dict[str, list[Path]]:
    """The Parquet files in a folder by the split that they are named after, as on the Hub: ``train.parquet``, or
    ``train-00000-of-00002.parquet`` and a second part; or else by that of their folder, as where the Hub has converted
    a dataset: ``train/0000.parquet``. None for a file or a saved dataset."""
    if not place.is_dir() or (place / _SAVED).is_file():
        return {}
    found: dict[str, list[Path]] = {}
    entries = _entries(place)
    for file in entries:
        split = file.stem if file.stem.lower() in SPLITS else part_of(file)[0]
        if split and file.suffix.lower() in PARQUET and file.is_file():
            found.setdefault(split, []).append(file)
    if not found and any(entry.name.lower() in SPLITS for entry in entries):
        parts = {entry.name: tables_in(entry) for entry in entries if entry.is_dir()}
        found = {split: files for split, files in parts.items() if files and all(map(_is_numbered, files))}
    return found


def _is_numbered(file: Path) -> bool:
    return _CONVERTED.fullmatch(file.stem) is not None and file.suffix.lower() in PARQUET


def configurations_in(folder: Path) -> list[Path]:
    """The folders in a folder that have a dataset's splits each."""
    return [entry for entry in _entries(folder) if splits_in(entry)]


def _entries(folder: Path) -> list[Path]:
    # as in folders of images: macOS keeps a file ._train.parquet beside train.parquet
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def part_of(file: Path) -> tuple[str, int]:
    """The split that a file is a part of, and the number of its parts, by the file's name; ``("", 1)`` for others."""
    match = _NUMBERED.fullmatch(file.stem)
    return (match[1], int(match[2])) if match else ("", 1)


def read_table(place: Path, split: str = "") -> Table:
    """The whole table, or one ``split`` of a folder that has Parquet files of several; for Arrow and Parquet files,
    values become Python's when they are asked for.

    Raises:
        DataError: no such file, one of another kind, damaged or without rows, or not all parts of the split; or pyarrow
            is needed and not installed.
    """
    if not place.exists():
        raise DataError(f"no table at {place}", got=str(place), do="correct data.train or data.test")
    if not is_table(place):
        inside = tables_in(place) if place.is_dir() else []
        if place.is_dir() and (several := configurations_in(place)):
            raise DataError(
                f"{place} is not a table of images, but a folder with splits in folders of their own",
                got=first_few([folder.name for folder in several]),
                do=f"name one of them: {several[0]}",
            )
        raise DataError(
            f"{place} is not a table of images",
            got="a folder without state.json" if place.is_dir() else f"a file ending in {place.suffix or 'nothing'}",
            do=f"name the table in it: {inside[0]}"
            if len(inside) == 1
            else "a .csv, .tsv or .parquet file, a folder with train.parquet or its parts, or one split of a folder "
            "written by datasets' save_to_disk",
        )
    try:
        table = _text(place) if place.suffix.lower() in TEXT else _arrow(place, split)
    except MemoryError as error:
        raise DataError(
            f"the table {place} needs more memory than there is", got=str(error), do="write it in several parts"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"the table {place} is not UTF-8 text",
            got=str(error),
            do="write it again as UTF-8, or under the ending of its format if it is no text",
        ) from error
    except PermissionError as error:
        raise DataError(
            f"no permission to read the table {place}", got=str(error), do="let this user read it"
        ) from error
    except (OSError, ValueError, KeyError, msgspec.DecodeError, RecursionError) as error:
        # Arrow's errors are OSError and ValueError
        raise DataError(
            f"the table {place} cannot be read",
            got=f"{type(error).__name__}: {error}",
            do="write it again: its ending must be that of its format",
        ) from error
    if not all(len(column) for column in table.columns.values()) or not table.columns:
        raise DataError(
            f"the table {place} has no rows",
            got=f"the columns {', '.join(table.columns)}, and nothing below" if table.columns else "an empty file",
            do="name another file, or write the rows below a line of names",
        )
    return table


def _text(file: Path) -> Table:
    """A CSV or TSV file with a line of names; a CSV's delimiter is the most frequent one in that line."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        head = lines.readline()
        lines.seek(0)
        delimiter = "\t" if file.suffix.lower() == ".tsv" else max(",;\t", key=head.count)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        records, rows = _records(file, reader), list[list[str]]()
        names = [name.strip() for name in next(records, (1, []))[1]]
        if twice := sorted({name for name in names if name and names.count(name) > 1}):
            raise DataError(
                f"the table {file} has columns that cannot be told apart: they have the same name",
                got=", ".join(map(repr, twice)),
                do="give each a name of its own in the first line; if that is a sample, add a line of names above it",
            )
        empty = 0
        for line, row in records:
            if not row:
                empty += 1
                continue
            if len(row) != len(names):
                quoted = f"put a field with {delimiter!r} in it in quotes, or take out what is too much"
                raise DataError(
                    f"line {line} of the table {file} has {counted(len(row), 'field')}, but the first line "
                    f"{len(names)}",
                    got=repr(delimiter.join(row))[:80],
                    do=quoted if len(row) > len(names) else "write what it lacks, if only an empty field",
                )
            # in a single column, an empty line with others below it is an empty field
            rows += [*([[""]] * empty if len(names) == 1 else []), row]
            empty = 0
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return Table(dict(zip(names, columns, strict=False)), {})


def _records(file: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The records of a CSV reader, each with the number of the line that it begins in; DataError for a stray quote."""
    line = 1
    try:
        for record in reader:
            yield line, record
            line = reader.line_num + 1
    except csv.Error as error:
        unclosed = "unexpected end" in str(error)
        raise DataError(
            f"line {line} of the table {file} cannot be split into fields"
            + (": it opens a quote that nothing closes" if unclosed else ""),
            got=str(error),
            do='close each quote, and write one that is part of a field twice: ""',
        ) from error


def no_heading(place: Path, first: Sequence[str], example: str) -> DataError:
    """The error for a table whose ``first`` line has no names of columns."""
    return DataError(
        f"{place} has no line of names: its first line is a sample",
        got=first_few([name[:60] for name in first]),
        do=f"add a line of names above it, as {example}",
    )


def _parts(place: Path, split: str) -> list[Path]:
    """The Parquet files of one split in a folder; DataError unless all are there."""
    there = splits_in(place)
    if split not in there:
        raise DataError(
            f"no Parquet file in {place} has the split {split!r}",
            got=f"files of {', '.join(sorted(there))}",
            do="set data.train_split and data.test_split",
        )
    files = there[split]
    names = {file.stem for file in files if file.parent != place}
    if missing := sorted({f"{k:04d}" for k in range(int(max(names, default="0")))} - names):
        raise DataError(
            f"{place / split} does not have all parts of the split: they count from 0000, and {missing[0]} is missing",
            got=first_few(sorted(names)),
            do="download the others, or name one of these as the table",
        )
    wanted = len(names) if names else max(part_of(file)[1] for file in files)
    if len(files) != wanted:
        raise DataError(
            f"{place} does not have the parts of the split {split!r} that their names say",
            got=f"{counted(len(files), 'file')}, parts of {wanted}",
            do="download the others, and remove those of another number of parts",
        )
    return files


def _arrow(place: Path, split: str) -> Table:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(
            f"the table {place} cannot be read without pyarrow", got=str(error), do="pip install 'taftcache[parquet]'"
        ) from None
    if (place / _SAVED).is_file():
        state = msgspec.json.decode(_regular(place / _SAVED).read_bytes(), type=_State)
        if state.indices:
            raise ValueError("it is a selection of rows: save ds.flatten_indices() instead")
        files = [_regular(place / Path(part.filename).name) for part in state.parts]
        table = pa.concat_tables([arrow_table(file) for file in files])
        info = msgspec.json.decode(_regular(place / "dataset_info.json").read_bytes(), type=_Info)
    else:
        read = list[Any]()
        for part in _parts(place, split) if place.is_dir() else [place]:
            with parquet_file(part) as file:
                read.append(pa.Table.from_batches(parquet_batches(part, file), schema=file.schema_arrow))
        table = pa.concat_tables(read)
        info = msgspec.json.decode((table.schema.metadata or {}).get(b"huggingface", b"{}"), type=_Marked).info
    listed = {key: f.get("names") for key, f in (info.features or {}).items() if isinstance(f, dict)}
    names = {key: found for key, found in listed.items() if found and _are_texts(found)}
    return Table({name: _Column(table.column(name)) for name in table.column_names}, names)


def arrow_table(file: Path) -> Any:
    """The table of an Arrow stream, mapped; errors as for ``arrow_stream`` and ``checked_batches``."""
    import pyarrow as pa

    stream = arrow_stream(file, pa.memory_map(str(file)))
    return pa.Table.from_batches(checked_batches(file, stream), schema=stream.schema)


def arrow_stream(file: Path, opened: Any) -> Any:
    """Arrow's reader of the stream in ``file``, which pyarrow has ``opened``.

    Raises:
        ValueError: it is compressed, which ``datasets`` never does: Arrow would unpack a whole batch, of any size,
            before anything can be counted.
    """
    import pyarrow as pa

    for message in pa.ipc.MessageReader.open_stream(opened):
        if message.type in ("record batch", "dictionary") and _is_packed(message):
            raise ValueError(f"{file.name} is compressed: write it without compression")
    opened.seek(0)
    return pa.ipc.open_stream(opened)


def checked_batches(file: Path, batches: Iterable[Any]) -> Iterator[Any]:
    """Each batch of an Arrow stream, once its values are known to lie in it; DataError as for ``parquet_batches``."""
    needed, rows, size = 0, 0, file.stat().st_size
    for batch in batches:
        batch.validate(full=True)  # Arrow trusts its own files about where values lie, and reads there
        needed, rows = needed + sum(_expanded(column) for column in batch.columns), rows + len(batch)
        check_expansion(file, max(needed, 8 * rows), size)
        yield batch


def _is_packed(message: Any) -> bool:
    """Whether a message with a batch names a codec: in its FlatBuffers table, which Arrow has verified, or in its
    metadata, where early releases wrote it."""
    data = message.metadata.to_pybytes()

    def field(table: int, index: int) -> int:
        fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        if 4 + 2 * index >= int.from_bytes(data[fields : fields + 2], "little"):
            return 0
        at = int.from_bytes(data[fields + 4 + 2 * index :][:2], "little")
        return table + at if at else 0

    def target(place: int) -> int:
        return place + int.from_bytes(data[place : place + 4], "little")

    batch = target(field(target(0), 2))  # Message.header
    if message.type == "dictionary":
        batch = target(field(batch, 1))  # DictionaryBatch.data
    return field(batch, 3) > 0 or b"ARROW:experimental_compression" in data  # RecordBatch.compression


def parquet_file(place: Path) -> Any:
    """A Parquet file, opened to be read a few rows at a time.

    By default pyarrow reads ahead all columns that are asked for (``pre_buffer``), and without ``buffer_size`` a column
    of a whole row group at once; pandas writes up to a million rows as one group.
    """
    from pyarrow import parquet

    return parquet.ParquetFile(place, pre_buffer=False, buffer_size=_READ_AT_ONCE)


def parquet_batches(place: Path, file: Any, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The rows of an open Parquet file, a few at a time.

    The format may say in a few bytes that a value is repeated millions of times. The metadata of its columns would
    tell, but pyarrow ends the process if that is damaged, so the bytes of the rows that were read are counted. The size
    that each row group unpacks to is declared for the group as a whole, and checked first.

    Raises:
        DataError: values that would take far more memory than the file has bytes.
    """
    needed, size, groups = 0, place.stat().st_size, file.metadata
    check_expansion(place, sum(abs(groups.row_group(k).total_byte_size) for k in range(groups.num_row_groups)), size)
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
        needed += sum(_expanded(column) for column in batch.columns)
        check_expansion(place, needed, size)
        yield batch


def _expanded(values: Any) -> int:
    """Bytes of an Arrow array with each of its values written out; for a dictionary array, those of its texts."""
    import pyarrow as pa
    from pyarrow import compute

    if not pa.types.is_dictionary(values.type):
        return int(values.nbytes)
    known, index = values.dictionary, values.indices
    try:
        return int(compute.sum(compute.binary_length(known).take(index)).as_py() or 0)
    except pa.ArrowNotImplementedError:  # the values are not texts
        return len(index) * int(known.nbytes) // max(1, len(known))


def _regular(file: Path) -> Path:
    """``file`` if it is a regular one: opening a pipe would wait for a writer for ever."""
    if not file.is_file():
        raise ValueError(f"{file.name} is not there, or is no file")
    return file


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


class _Column(Sequence[Any]):
    """An Arrow column; each value becomes Python's when it is asked for."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._values[index].as_py()
        except (ValueError, OverflowError) as error:  # a time in a year that Python does not have
            raise DataError(
                "a table has a value that cannot be read",
                got=f"{self._values.type} in row {index + 1}: {error}",
                do="write the column as text or whole numbers",
            ) from error
