"""Read the texts in a file of any kind: an id may stand in a table, an array, a header or a line."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.columns import arrow_table, parquet_batches
from taftcache.backbone.sources.npz import FAULTS, read_header, read_member
from taftcache.cache.hdf5 import FeatureFile, fields_of
from taftcache.errors import TaftcacheError

MAX_TEXT, MAX_HEADER = 256 << 20, 64 << 20
RUN, BLOCK = 32, 16 << 20  # signs in a row that are text in a file that is not; bytes that are looked at together
NO_TEXT = np.isin(np.arange(256), [*range(9), *range(14, 32), 127, 0xC0, 0xC1, *range(0xF5, 256)])  # by byte
# Separates the words of a text, each of which may be an id.
WORDS = re.compile(r"[\s,;:'\"()\[\]{}<>=|]+")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
CELLS = re.compile(r"[\t\r\n,]")
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
DOUBLED = re.compile(r'"((?:[^"]|"")*)"')  # a quoted cell of a CSV file, in which quotes are doubled
DEFUSED = ("'=", "'+", "'-", "'@")  # how the CSV of a report's page begins a text that a spreadsheet would compute
BEGINNING = 512  # bytes at the start of a file: they tell what it is, whatever its name
HDF5, NPY, ZIP, PARQUET = b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"PK\x03\x04", b"PAR1"
ARROW = b"\xff\xff\xff\xff"  # before each message of a stream
MARKS = {
    BOM_UTF8: "utf-8-sig",
    BOM_UTF32_LE: "utf-32",
    BOM_UTF32_BE: "utf-32",
    BOM_UTF16_LE: "utf-16",
    BOM_UTF16_BE: "utf-16",
}
LONGEST, DEEPEST = 4096, 64  # characters of a path, and how many of its endings are tried
# gzip, bzip2, xz, zstandard, 7-Zip, SQLite; Arrow files and Feather, which are usually compressed, and Arrow would
# unpack them to any size; pickle. Their contents are not searched, and a note says so.
PACKED: tuple[bytes, ...] = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf\x27\x1c",
    b"SQLite format 3\0",
    b"ARROW1",
    b"FEA1",
    *(bytes([0x80, version]) for version in range(2, 6)),
)
TAR_AT, TAR = 257, b"ustar"


class Number(str):
    """A number in JSON, or among other words: seldom an id, for nearly every text has numbers."""


@dataclass
class FileTexts:
    """The texts of a file: ``ids`` are those that may be ids, ``about`` is other text, which may have ids in it.

    is_header: whether ``about`` says how arrays lie in the file, in numbers that are no ids.
    whole: whether all of the file was read; a fault leaves what was read before it.
    """

    ids: set[str] = field(default_factory=set)
    about: str = ""
    is_header: bool = False
    whole: bool = True

    def candidates(self) -> Iterator[str]:
        """Every text that may be an id; some come more than once."""
        return _meant(text for text in chain(self.ids, _candidates(self.about)) if not isinstance(text, Number))

    def numbers(self) -> Iterator[str]:
        """Every number that ``candidates`` leaves out, and that may be an id."""
        return (text for text in _candidates(self.about) if isinstance(text, Number) and not self.is_header)

    def take(self, array: NDArray[Any]) -> None:
        """Add every text of an array and of its fields; ValueError if there is more than ``MAX_TEXT``."""
        for name in array.dtype.names or ():
            self.take(array[name])
        if array.dtype.kind in "OSU":
            if array.nbytes > MAX_TEXT:
                raise ValueError(array.nbytes)
            self.add(array.ravel().tolist())

    def add(self, values: list[Any]) -> None:
        """Add every text in these values, but no number among other words."""
        self.ids.update(text for text in texts_in(values) if not isinstance(text, Number))


def read_texts(path: Path) -> FileTexts:
    """The texts of a file; not all of them if it is damaged, packed or too large, or if its library is missing."""
    texts = FileTexts()
    try:
        _read(path, texts)
    except (*FAULTS, KeyError, ImportError, TaftcacheError):
        texts.whole = False
    return texts


def _read(path: Path, to: FileTexts) -> None:
    """Add the texts of a file; its first bytes, or else its suffix, tell what it is.

    Raises:
        ValueError, KeyError, OSError, TaftcacheError, ImportError and others: it cannot be searched, or only in part.
    """
    with path.open("rb") as file:
        begin = file.read(BEGINNING)
    # A safetensors file begins with its header's size, whose bytes may be those of a pickle: 640 is 80 02.
    size = int.from_bytes(begin[:8], "little")
    headed = begin[8:9] == b"{" and size <= path.stat().st_size - 8
    if not headed and (begin.startswith(PACKED) or begin[TAR_AT:].startswith(TAR)):
        raise ValueError(path)
    if begin.startswith(HDF5) or path.suffix in (".h5", ".hdf5"):
        _hdf5(path, to)
    elif begin.startswith(ZIP) or path.suffix == ".npz":
        _npz(path, to)
    elif begin.startswith(NPY):
        to.take(np.load(path, mmap_mode="r", allow_pickle=False))
    elif begin.startswith(PARQUET) or path.suffix in (".parquet", ".pq"):
        _parquet(path, to)
    elif begin.startswith(ARROW) or path.suffix == ".arrow":
        _arrow(path, to)
    elif headed or path.suffix == ".safetensors":
        with path.open("rb") as file:
            texts = [*headers(file.read(8 + min(size, MAX_TEXT)))]
        if not texts:
            raise ValueError(path)
        to.about, to.is_header = texts[0], True
    elif form := next((form for mark, form in MARKS.items() if begin.startswith(mark)), ""):
        to.about = _whole(path).decode(form, "replace")
    elif (runs := _runs(path)) is not None:
        to.about = runs
    else:
        to.about = _whole(path).decode("utf-8", "replace")


def _whole(path: Path) -> bytes:
    """The bytes of a text; ValueError if there are more than ``MAX_TEXT``."""
    if path.stat().st_size > MAX_TEXT:
        raise ValueError(path)
    return path.read_bytes()


def _runs(path: Path) -> str | None:
    """The longer texts in a file that is not text, such as a picture or a model, one a line; None if it has no NUL
    byte. Of shorter ones there are many in bytes of any kind: a megabyte of weights "holds" most ids of two signs.

    Raises:
        ValueError: they are more than ``MAX_TEXT``.
    """
    if not path.stat().st_size:
        return None
    data = np.memmap(path, np.uint8, "r")
    if all(data[at : at + BLOCK].all() for at in range(0, len(data), BLOCK)):
        return None
    found, size = list[str](), 0
    for first, end in _stretches(data):
        if end - first > MAX_TEXT:
            raise ValueError(path)
        texts = data[first:end].tobytes().decode("utf-8", "replace").split("\ufffd")
        found += (longer := [text for text in texts if len(text) >= RUN])
        size += sum(map(len, longer))
        if size > MAX_TEXT:
            raise ValueError(path)
    return "\n".join(found)


def _stretches(data: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Where ``RUN`` bytes or more that a text may have follow one another: first and one past the last."""
    last = -1
    for at in range(0, len(data), BLOCK):
        edges = np.append(last, at + np.flatnonzero(NO_TEXT[data[at : at + BLOCK]]))
        far = np.flatnonzero(np.diff(edges) > RUN)
        yield from zip((edges[far] + 1).tolist(), edges[far + 1].tolist(), strict=True)
        last = int(edges[-1])
    if len(data) - last > RUN:
        yield last + 1, len(data)


def _hdf5(path: Path, to: FileTexts) -> None:
    with FeatureFile(path) as file:
        if file.is_export:
            to.ids.update(s.id for s in file.skipped)
        for array in file.texts():
            to.take(array)


def _npz(path: Path, to: FileTexts) -> None:
    """Add every array of texts; ValueError if an array holds Python objects, or an entry is not an array."""
    with ZipFile(path) as archive:
        strange, size = False, 0
        for entry in archive.infolist():
            with archive.open(entry) as member:
                dtype = read_header(member)[2]
            strange |= dtype.hasobject
            if dtype.hasobject or not any(kind.kind in "SU" for kind in fields_of(dtype)):
                continue
            size += entry.file_size
            if size > MAX_TEXT:
                raise ValueError(path)
            array = read_member(archive, entry)
            to.take(array)
            if entry.filename == "about.npy":
                to.about = str(array)
        if strange:
            raise ValueError(path)


def _arrow(path: Path, to: FileTexts) -> None:
    """Add every text in an Arrow stream; ValueError if it is compressed or damaged, or is no such stream."""
    import pyarrow as pa

    try:
        table = arrow_table(path)
        texts = [k for k, kind in enumerate(table.schema.types) if re.search("string|binary", str(kind))]
        _take(path, table.select(texts).to_batches(), to)
    except pa.ArrowException as error:
        raise ValueError(path) from error


def _parquet(path: Path, to: FileTexts) -> None:
    """Add the texts of a Parquet file: every column that has any, and what taftcache wrote into its schema.

    Raises:
        ImportError: pyarrow is not installed. ValueError: not a Parquet file, or more text than ``MAX_TEXT``.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema
            texts = [k for k in range(len(schema)) if schema.column(k).physical_type.endswith("BYTE_ARRAY")]
            names = sorted({schema.column(k).path for k in texts})
            to.about = ((file.schema_arrow.metadata or {}).get(b"taftcache") or b"").decode("utf-8", "replace")
            _take(path, parquet_batches(path, file, names) if names else (), to)
    except pa.ArrowException as error:
        raise ValueError(path) from error


def _take(path: Path, batches: Iterable[Any], to: FileTexts) -> None:
    """Add the texts of Arrow's batches; ValueError if they are larger than ``MAX_TEXT``."""
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > MAX_TEXT:
            raise ValueError(path)
        for column in batch.columns:
            to.add(column.to_pylist())


def _meant(texts: Iterable[str]) -> Iterator[str]:
    """Each text; without the apostrophe that keeps a spreadsheet from computing it; and, of a path, its endings."""
    for text in texts:
        yield text
        if text.startswith(DEFUSED):
            yield text[1:]
        if len(text) <= LONGEST:
            path = text.replace("\\", "/")
            at = path.rfind("/")
            for _ in range(DEEPEST):
                if at < 0:
                    break
                yield path[at + 1 :]
                at = path.rfind("/", 0, at)


def _candidates(text: str) -> Iterator[str]:
    """What may be an id in a text: the values of JSON; else lines, words, cells of a table, and quoted strings as JSON
    and CSV write them."""
    yield text
    if (value := _json(text)) is not None:
        yield from texts_in(value)
        return
    is_markup = text.lstrip()[:1] == "<"  # a comma in it separates no cells
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        yield from {line, *line.split("\t"), *(() if is_markup else CELLS.split(line)), *_words(line)}
    for quoted in QUOTED.finditer(text):
        with suppress(ValueError):
            yield json.loads(quoted[0]).encode("utf-8", "replace").decode()  # a lone surrogate is in no id
    yield from (cell[1].replace('""', '"') for cell in DOUBLED.finditer(text) if '""' in cell[1])


def _words(text: str) -> Iterator[str]:
    return (Number(word) if NUMBER.fullmatch(word) else word for word in WORDS.split(text) if word)


def _json(text: str) -> Any:
    """The object or list that a text writes in JSON, with numbers as ``Number`` and an object as its pairs; None if it
    writes neither."""
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MAX_HEADER:
        return None
    try:
        return json.loads(text, object_pairs_hook=tuple, parse_int=Number, parse_float=Number)
    except (ValueError, RecursionError):
        return None


def headers(data: bytes) -> Iterator[str]:
    """The text inside a file: the header of a safetensors file, or the whole file if it is short."""
    size = int.from_bytes(data[:8], "little")
    if 2 <= size <= min(MAX_HEADER, len(data) - 8) and data[8:9] == b"{":
        yield data[8 : 8 + size].decode("utf-8", "replace")
    elif len(data) <= 1 << 20:
        yield data.decode("utf-8", "replace")


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, whole and word by word, keys too, also in JSON inside a text; and bytes that are
    UTF-8."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, bytes):
            with suppress(UnicodeDecodeError):
                value = value.decode()
        if isinstance(value, str):
            yield value
            if (inner := _json(value)) is not None:
                left.append(inner)
            elif not isinstance(value, Number):
                yield from _words(value)
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            left += value
