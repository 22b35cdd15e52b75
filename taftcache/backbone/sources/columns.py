"""Tables on disk as columns: CSV, Parquet, and the folder that Hugging Face's ``datasets`` saves."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from taftcache.errors import DataError

TEXT, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
_SAVED = "state.json"  # of a folder that save_to_disk wrote


class Table(NamedTuple):
    """Columns by name, each a sequence of as many values; and the names of classes, by the column of their numbers."""

    columns: Mapping[str, Sequence[Any]]
    classes: Mapping[str, list[str]]


def is_table(place: Path) -> bool:
    """Whether ``read_table`` takes it: by its suffix, or a folder with the state of a saved dataset."""
    return place.suffix.lower() in (*TEXT, *PARQUET) if place.is_file() else (place / _SAVED).is_file()


def read_table(place: Path) -> Table:
    """The whole table; of Arrow and Parquet files, values become Python's when they are asked for.

    Raises:
        DataError: no such file, of another kind, damaged, without rows, or pyarrow is needed and not installed.
    """
    if not place.exists():
        raise DataError(f"no table at {place}", got=str(place), do="correct data.train or data.test")
    if not is_table(place):
        raise DataError(
            f"{place} is not a table of images",
            got="a folder without state.json" if place.is_dir() else f"a file ending in {place.suffix or 'nothing'}",
            do="a .csv, .tsv or .parquet file, or one split of a folder written by datasets' save_to_disk",
        )
    try:
        table = _text(place) if place.suffix.lower() in TEXT else _arrow(place)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:  # Arrow's errors are OSError and ValueError
        raise DataError(
            f"the table {place} cannot be read",
            got=f"{type(error).__name__}: {error}",
            do="write it again: its ending must be that of its format, and its text UTF-8",
        ) from error
    if not all(len(column) for column in table.columns.values()) or not table.columns:
        raise DataError(
            f"the table {place} has no rows",
            got=f"the columns {', '.join(table.columns)}, and nothing below" if table.columns else "an empty file",
            do="name another file, or write the rows below a line of names",
        )
    return table


def _text(file: Path) -> Table:
    """A CSV or TSV file with a line of names; its delimiter is the most frequent of that line's."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        head = lines.readline()
        lines.seek(0)
        delimiter = "\t" if file.suffix.lower() == ".tsv" else max(",;\t", key=head.count)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        names, rows = next(reader, []), []
        for row in reader:
            if row and len(row) != len(names):
                raise ValueError(f"line {reader.line_num} has {len(row)} fields, the first has {len(names)}")
            rows += [row] if row else []
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return Table({name.strip(): column for name, column in zip(names, columns, strict=False)}, {})


def _arrow(place: Path) -> Table:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"the table {place} cannot be read without pyarrow", got=str(error), do="pip install 'taftcache[parquet]'"
        ) from None
    if place.is_dir():
        state = json.loads((place / _SAVED).read_text(encoding="utf-8"))
        if state.get("_indices_files"):
            raise ValueError("it is a selection of rows: save ds.flatten_indices() instead")
        files = [place / Path(part["filename"]).name for part in state["_data_files"]]
        table = pa.concat_tables([pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in files])
        described = json.loads((place / "dataset_info.json").read_text(encoding="utf-8"))
    else:
        table, described = parquet.read_table(place, memory_map=True), {}
        with suppress(KeyError, TypeError):
            described = json.loads(table.schema.metadata[b"huggingface"])["info"]
    features = described.get("features") or {}
    names = {key: f["names"] for key, f in features.items() if isinstance(f, dict) and f.get("names")}
    return Table({name: _Column(table.column(name)) for name in table.column_names}, names)


class _Column(Sequence[Any]):
    """A column of Arrow's, each value made Python's when it is asked for."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index].as_py()
