"""Read the texts in a file of any kind: an id may stand in a table, an array, a header or a line."""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.columns import arrow_table, parquet_batches
from taftcache.backbone.sources.npz import FAULTS, read_header, read_member
from taftcache.cache.hdf5 import FeatureFile
from taftcache.errors import TaftcacheError
from taftcache.stages.texts import Number, Told, meant, names_ids, names_in, texts_in, told
from taftcache.stages.zarr_texts import ARRAY, OLD_ARRAY, array_of_chunk, array_texts, chunk_texts

MAX_TEXT, MAX_HEADER = 256 << 20, 64 << 20
RUN, BLOCK = 32, 16 << 20  # signs in a row that are text in a file that is not; bytes that are looked at together
CONTROLS = [*range(1, 9), *range(14, 27), *range(28, 32), 127]  # bytes that no text has, for 27 begins a colour
NO_TEXT = np.isin(np.arange(256), [0, *CONTROLS, 27, 0xC0, 0xC1, *range(0xF5, 256)])  # by byte; these are in no UTF-8
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
# gzip, compress, bzip2, xz, zstandard, 7-Zip, RAR, LZ4, zlib; SQLite and its log; PDF and old Office files; Arrow files
# and Feather, which are usually compressed, and Arrow would unpack them to any size; pickle. Their contents are not
# searched, and a note says so.
PACKED: tuple[bytes, ...] = (
    b"\x1f\x8b",
    b"\x1f\x9d",
    b"BZh",
    b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf\x27\x1c",
    b"Rar!",
    b"\x04\x22\x4d\x18",
    b"x\x01",
    b"x\x9c",
    b"x\xda",
    b"SQLite format 3\0",
    b"\x37\x7f\x06\x82",
    b"\x37\x7f\x06\x83",
    b"%PDF-",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    b"ARROW1",
    b"FEA1",
    *(bytes([0x80, version]) for version in range(2, 6)),
)
# Python's pickle of the oldest protocol, which is text.
OLD_PICKLE = re.compile(rb"\([dl]p\d+\n|c[\w.]+\n\w+\n\(?p\d+\n|\(?[SV].*\np\d+\n|\([IFL][\d.-]+L?\n")
OF_ARROW = "string|binary|^u?int|=u?int|date|timestamp"  # types that may hold ids
TAR_AT, TAR = 257, b"ustar"


@dataclass
class FileTexts:
    """The texts of a file: ``ids`` are those that may be ids, by the name of their array or column; ``about`` is other
    text, which may have ids in it.

    told: those of ``ids`` whose array says that they are ids. perhaps: numbers in its arrays that may be ids.
    names: what may be an id in the names of its arrays, groups, columns or members.
    is_header: whether ``about`` says how arrays lie in the file, in numbers that are no ids.
    whole: whether all of the file was read; a fault leaves what was read before it.
    """

    ids: dict[str, str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    perhaps: set[Number] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    about: str = ""
    is_header: bool = False
    whole: bool = True

    def candidates(self) -> Iterator[str]:
        """Every text that may be an id; some come more than once."""
        texts = (text for text in chain(self.ids, texts_in(self.about)) if not isinstance(text, Number))
        return chain(map(Told, self.told), meant(texts), (name for name in self.names if not isinstance(name, Number)))

    def numbers(self) -> Iterator[str]:
        """Every number that ``candidates`` leaves out, and that may be an id."""
        about = () if self.is_header else texts_in(self.about)
        return chain(self.perhaps, (text for text in chain(about, self.names) if isinstance(text, Number)))

    def name(self, *names: str) -> None:
        """Add names of what is in the file."""
        self.names.update(text for name in names for text in names_in(name))

    def is_wanted(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Whether an array is to be taken: it `may_hold_ids`. Its name, and those of its fields, may be ids too."""
        self.name(name, *(dtype.names or ()))
        return may_hold_ids(name, shape, dtype)

    def take(self, name: str, array: NDArray[Any]) -> None:
        """Add every text of an array and of its fields, and whole numbers and dates in a list.

        Numbers are ids if ``name`` says so; if no two are the same, they may be.

        Raises:
            ValueError: more than ``MAX_TEXT``.
        """
        for field_name in array.dtype.names or ():
            self.take(field_name, array[field_name])
        if array.dtype.names or not may_hold_ids(name, array.shape, array.dtype):
            return
        if array.dtype.kind == "M":
            days = np.unique(array.astype("M8[D]"))
            self.add([*days.astype(str).tolist(), *np.unique(array).astype(str).tolist()], name)
        elif array.dtype.kind in "OSU":
            self.add(array.ravel().tolist(), name)
        elif names_ids(name):
            self.add([*map(str, array.ravel().tolist())], name)
        elif len(np.unique(array)) == array.size:
            self.perhaps.update(map(Number, array.ravel().tolist()))

    def add(self, values: list[Any], name: str) -> None:
        """Add every text in the values of an array or column, but no number among other words."""
        for text in texts_in([told(value) for value in values] if names_ids(name) else values):
            if isinstance(text, Told):
                self.told.add(text)
            if not isinstance(text, Number):
                self.ids[text] = name


def may_hold_ids(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether an array, or a field of its records, has texts, or one whole number or date a row that may be its id: no
    number of one byte, unless it is called so.

    Raises:
        ValueError: they are more than ``MAX_TEXT``; so it is known before they are read.
    """
    if dtype.names is not None:
        return any([may_hold_ids(f, (*shape, *dtype[f].shape), dtype[f].base) for f in dtype.names])
    is_whole = dtype.kind in "iuM" and (dtype.itemsize > 1 or names_ids(name))
    may = dtype.kind in "OSU" or (is_whole and math.prod(shape) == max(shape, default=0))
    if may and math.prod(shape) * dtype.itemsize > MAX_TEXT:
        raise ValueError(name)
    return may


def read_texts(path: Path) -> FileTexts:
    """The texts of a file; not all of them if it is damaged, packed or too large, or if its library is missing."""
    texts = FileTexts()
    try:
        if not _zarr(path, texts):
            _read(path, texts)
    except (*FAULTS, KeyError, ImportError, TaftcacheError):
        texts.whole = False
    return texts


def _zarr(path: Path, to: FileTexts) -> bool:
    """Add what a Zarr array has in its chunks, or a chunk on its own; returns whether the file is one.

    Raises:
        ValueError and others: a chunk without its array, or `array_texts`.
    """
    if path.name in (ARRAY, OLD_ARRAY):
        if (array := array_texts(path, MAX_TEXT)) is not None:
            to.take(path.parent.name, array)
        return False
    of, texts = array_of_chunk(path), chunk_texts(path, MAX_TEXT)
    if texts is None and of is not None and not (of / ARRAY).exists():
        raise ValueError(path)
    to.add(texts or [], path.parent.name if of is None else of.name)
    return texts is not None


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
    if not headed and (begin.startswith(PACKED) or begin[TAR_AT:].startswith(TAR) or OLD_PICKLE.match(begin)):
        raise ValueError(path)
    if begin.startswith(HDF5) or path.suffix in (".h5", ".hdf5"):
        _hdf5(path, to)
    elif begin.startswith(ZIP) or path.suffix == ".npz":
        _npz(path, to)
    elif begin.startswith(NPY):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if to.is_wanted(path.stem, array.shape, array.dtype):
            to.take(path.stem, array)
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
    else:
        to.about = _unmarked(path)


def _whole(path: Path) -> bytes:
    """The bytes of a text; ValueError if there are more than ``MAX_TEXT``."""
    if path.stat().st_size > MAX_TEXT:
        raise ValueError(path)
    return path.read_bytes()


def _unmarked(path: Path) -> str:
    """The text of a file that nothing tells the encoding of, or the longer texts in one that is not text.

    Raises:
        ValueError: more than ``MAX_TEXT``.
    """
    seen = np.zeros(256, bool)
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    for at in range(0, len(data), BLOCK):
        seen[np.unique(data[at : at + BLOCK])] = True
        if seen[0] and seen[CONTROLS].any():
            return _runs(path, data)
    if seen[0]:  # a log that was cut while it was written to, or UTF-16 without its mark
        first, second = (int(np.count_nonzero(data[k : len(data) // 2 * 2 : 2])) for k in (0, 1))
        form = "utf-16-le" if first > 9 * second else "utf-16-be" if second > 9 * first else "utf-8"
        return _whole(path).decode(form, "replace").replace("\0", "\n")
    text = _whole(path).decode("utf-8", "replace")
    return text + "\n" + _whole(path).decode("cp1252", "replace") if "\ufffd" in text else text


def _runs(path: Path, data: NDArray[np.uint8]) -> str:
    """The longer texts in a file that is not text, such as a picture or a model, one a line. Of shorter ones there are
    many in bytes of any kind: a megabyte of weights "holds" most ids of two signs.

    Raises:
        ValueError: they are more than ``MAX_TEXT``.
    """
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
            to.add([s.id for s in file.skipped], "skipped_ids")
        to.name(*file.names())
        for name, array in file.arrays(to.is_wanted):
            to.take(name, array)


def _npz(path: Path, to: FileTexts) -> None:
    """Add every array of texts or of ids; ValueError if one holds Python objects, or an entry is not an array."""
    with ZipFile(path) as archive:
        to.name(*archive.namelist())
        strange, size = False, 0
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            with archive.open(entry) as member:
                shape, _, dtype = read_header(member)
            strange |= dtype.hasobject
            if not to.is_wanted(name, shape, dtype) or dtype.hasobject:
                continue
            size += entry.file_size
            if size > MAX_TEXT:
                raise ValueError(path)
            array = read_member(archive, entry)
            to.take(name, array)
            if name == "about":
                to.about = str(array)
        if strange:
            raise ValueError(path)


def _arrow(path: Path, to: FileTexts) -> None:
    """Add the texts and whole numbers in an Arrow stream; ValueError if it is compressed or damaged, or is none."""
    import pyarrow as pa

    try:
        table = arrow_table(path)
        to.name(*_names_of(table.schema))
        kept = [k for k, kind in enumerate(table.schema.types) if re.search(OF_ARROW, str(kind))]
        _take(path, table.select(kept).to_batches(), to)
    except pa.ArrowException as error:
        raise ValueError(path) from error


def _parquet(path: Path, to: FileTexts) -> None:
    """Add the texts and whole numbers of a Parquet file, by column, and what is written into its schema.

    Raises:
        ImportError: pyarrow is not installed. ValueError: not a Parquet file, or more than ``MAX_TEXT``.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema
            to.name(*_names_of(file.schema_arrow))
            texts = [k for k in range(len(schema)) if schema.column(k).physical_type.endswith("BYTE_ARRAY")]
            numbers = {field.name for field in file.schema_arrow if re.search(OF_ARROW, str(field.type))}
            names = sorted(numbers | {schema.column(k).path for k in texts})
            said = (file.schema_arrow.metadata or {}).items()
            to.about = "\n".join(text.decode("utf-8", "replace") for each in said for text in each)
            _take(path, parquet_batches(path, file, names) if names else (), to)
    except pa.ArrowException as error:
        raise ValueError(path) from error


def _names_of(fields: Iterable[Any]) -> Iterator[str]:
    """The names of Arrow's fields, and of those inside them."""
    for each in fields:
        yield each.name
        yield from _names_of(each.type.field(k) for k in range(each.type.num_fields))


def _take(path: Path, batches: Iterable[Any], to: FileTexts) -> None:
    """Add the texts and whole numbers of Arrow's batches; ValueError if they are larger than ``MAX_TEXT``."""
    import pyarrow as pa

    size, numbers = 0, defaultdict[str, list[NDArray[Any]]](list)
    for batch in batches:
        size += batch.nbytes
        if size > MAX_TEXT:
            raise ValueError(path)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            if pa.types.is_integer(plain.type) or pa.types.is_date(plain.type) or pa.types.is_timestamp(plain.type):
                numbers[name].append(plain.drop_null().to_numpy(zero_copy_only=False))
            else:
                to.add(column.to_pylist(), name)
    for name, parts in numbers.items():
        to.take(name, np.concatenate(parts))


def headers(data: bytes) -> Iterator[str]:
    """The text inside a file: the header of a safetensors file, or the whole file if it is short."""
    size = int.from_bytes(data[:8], "little")
    if 2 <= size <= min(MAX_HEADER, len(data) - 8) and data[8:9] == b"{":
        yield data[8 : 8 + size].decode("utf-8", "replace")
    elif len(data) <= 1 << 20:
        yield data.decode("utf-8", "replace")
