"""What a file that lies outside of a store says: ids in it, by whatever tool it was written, and other text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from taftcache.cache.columns import USUAL, Columns
from taftcache.cache.hdf5 import FeatureFile
from taftcache.stages.forget.traces import headers, texts_in

MAX_TEXT = 256 << 20
PARQUET_ROWS = 4096
CELLS = re.compile(r"[\t\r\n,]")
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
DOUBLED = re.compile(r'"((?:[^"]|"")*)"')  # a cell of a CSV file, in which quotes stand twice
BEGINNING = 512  # bytes, by which a file is known; its name may be any
HDF5, NPY, ZIP, PARQUET = b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"PK\x03\x04", b"PAR1"
# gzip, bzip2, xz, zstandard, 7-Zip, SQLite, pickle: what is in them is not looked at, and that is said.
PACKED: tuple[bytes, ...] = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf\x27\x1c",
    b"SQLite format 3\0",
)
PACKED += tuple(bytes([0x80, version]) for version in range(2, 6))
TAR_AT, TAR = 257, b"ustar"


def candidates(text: str) -> Iterator[str]:
    """What may be an id in a text: lines, words, cells of a table, and quoted strings as JSON and CSV write them."""
    yield from texts_in(text)
    for line in text.split("\n"):
        yield from (line.removesuffix("\r"), *line.removesuffix("\r").split("\t"))
    yield from CELLS.split(text)
    for quoted in QUOTED.finditer(text):
        with suppress(ValueError):
            yield json.loads(quoted[0]).encode("utf-8", "replace").decode()  # half of a pair is no id
    yield from (cell[1].replace('""', '"') for cell in DOUBLED.finditer(text) if '""' in cell[1])


def read(path: Path) -> tuple[list[str], str]:
    """Ids that a file of rows has, and what else is text in it; what it is follows from its first bytes.

    Raises:
        ValueError, KeyError, OSError, TaftcacheError, ImportError and others: it cannot be searched.
    """
    with path.open("rb") as file:
        begin = file.read(BEGINNING)
    if begin.startswith(PACKED) or begin[TAR_AT:].startswith(TAR):
        raise ValueError(path)
    if begin.startswith(HDF5) or path.suffix in (".h5", ".hdf5"):
        return _hdf5(path)
    if begin.startswith(ZIP) or path.suffix == ".npz":
        return _npz(path)
    if begin.startswith(NPY):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.dtype.kind in "US" and array.nbytes > MAX_TEXT:
            raise ValueError(path)
        return [str(i) for i in array.astype(str).ravel()] if array.dtype.kind in "US" else [], ""
    if begin.startswith(PARQUET) or path.suffix in (".parquet", ".pq"):
        return _parquet(path)
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return [], "".join(headers(size.to_bytes(8, "little") + file.read(min(size, MAX_TEXT))))
    if path.stat().st_size > MAX_TEXT:
        raise ValueError(path)
    return [], path.read_bytes().decode("utf-8", "replace")


def _hdf5(path: Path) -> tuple[list[str], str]:
    with FeatureFile(path) as file:
        if not file.is_export:
            ids = Columns().within(file).ids
            return ([str(i) for i in file.column(ids).tolist()] if ids in file else []), ""
        return [*(i for shard in file.shards.values() for i in shard.ids), *(s.id for s in file.skipped)], ""


def _npz(path: Path) -> tuple[list[str], str]:
    with np.load(path, allow_pickle=False) as arrays:  # of another archive it says what is in it, not that it is none
        name = next((name for name in USUAL["ids"] if name in arrays), "ids")
        return [str(i) for i in arrays[name]], str(arrays["about"]) if "about" in arrays else ""


def _parquet(path: Path) -> tuple[list[str], str]:
    """Every text in the columns of a Parquet file that have any, whatever they are called; and what its schema says.

    Raises:
        ImportError: pyarrow is not installed. ValueError: no such file, or more text than is looked through.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            made = file.metadata
            groups = [made.row_group(k) for k in range(made.num_row_groups)]
            columns = [group.column(k) for group in groups for k in range(group.num_columns)]
            texts = [column for column in columns if column.physical_type == "BYTE_ARRAY"]
            if sum(column.total_uncompressed_size for column in texts) > MAX_TEXT:
                raise ValueError(path)
            names = sorted({column.path_in_schema for column in texts})
            ids = {
                text
                for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=names)
                for column in batch.columns
                for text in texts_in(column.to_pylist())
            }
            about = file.schema_arrow.metadata or {}
            return list(ids), about.get(b"taftcache", b"").decode("utf-8", "replace")
    except pa.ArrowException as error:
        raise ValueError(path) from error
