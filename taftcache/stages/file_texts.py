"""Read the texts in a file of any kind: an id may stand in a table, an array, a header or a line."""

from __future__ import annotations

import io
import math
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.columns import arrow_stream, checked_batches, parquet_batches, parquet_file
from taftcache.backbone.sources.npz import FAULTS, read_header, read_member
from taftcache.cache.hdf5 import FeatureFile
from taftcache.errors import TaftcacheError
from taftcache.stages.texts import LONGEST, Number, Told, meant, names_ids, names_in, texts_in, told
from taftcache.stages.zarr_texts import ARRAY, OLD_ARRAY, array_of_chunk, array_texts, chunk_texts

MAX_TEXT, MAX_HEADER = 256 << 20, 64 << 20
RUN, BLOCK = 32, 1 << 20  # signs in a row that are text in a file that is not; bytes that are looked at together
CONTROLS = bytes([*range(1, 9), *range(14, 27), *range(28, 32), 127])  # which no text has; 27 begins a colour
NO_TEXT = np.isin(np.arange(256), [0, *CONTROLS, 27, 0xC0, 0xC1, *range(0xF5, 256)])  # by byte; these are in no UTF-8
TOGETHER = 1 << 16  # texts: most words come again
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
# and Feather, which are usually compressed, and Arrow would unpack them to any size; git's packs; pickle. What is in
# them is not searched, and a note says so.
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
    b"PACK\0\0\0",
    *(bytes([0x80, version]) for version in range(2, 6)),
)
# Python's pickle of the oldest protocol, which is text.
OLD_PICKLE = re.compile(rb"\([dl]p\d+\n|c[\w.]+\n\w+\n\(?p\d+\n|\(?[SV].*\np\d+\n|\([IFL][\d.-]+L?\n")
OF_ARROW = "string|binary|^u?int|=u?int|date|timestamp"  # types that may hold ids
TAR_AT, TAR = 257, b"ustar"
OF_GIT = re.compile(rb"(blob|commit|tag|tree) ([0-9]{1,12})\0")  # begins what git packs into a file of its own
IN_TREE = re.compile(rb"[0-7]{5,6} ([^\0]+)\0")  # a file's mode and name


@dataclass
class FileTexts:
    """The texts of a file: ``ids`` are those that may be ids, by the name of their array or column; ``about`` is other
    text, which may have ids in it.

    told: those of ``ids`` whose array says that they are ids. perhaps: numbers in its arrays that may be ids.
    names: what may be an id in the names of its arrays, groups, columns or members.
    is_header: whether ``about`` says how arrays lie in the file, in numbers that are no ids.
    whole: whether all of the file was read; a fault leaves what was read before it.
    of_git: whether it is an object of a git repository, unpacked.
    """

    ids: dict[str, str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    perhaps: set[Number] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    about: str = ""
    is_header: bool = False
    whole: bool = True
    of_git: bool = False

    def forgotten(self, is_forgotten: Callable[[str], bool]) -> tuple[list[str], set[str]]:
        """The texts that are forgotten ids, of equal ones perhaps one alone `Told`, and the numbers that are, which may
        mean something else."""
        ids, numbers = list[str](), set[str]()
        for said, texts, others in _apart(chain(map(Told, self.told), self.ids, texts_in(self.about))):
            ids += filter(is_forgotten, meant(chain(said, texts)))
            numbers.update(filter(is_forgotten, () if self.is_header else others))
        for _, texts, others in _apart(chain(self.names, self.perhaps)):
            ids += filter(is_forgotten, texts)
            numbers.update(filter(is_forgotten, others))
        return ids, numbers

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


def _apart(texts: Iterable[str]) -> Iterator[tuple[set[Told], set[str], set[Number]]]:
    """What is `Told`, other texts, and numbers, each once among as many as are looked at together: a text equals one
    of another kind with its signs. None too long for an id or its path: a file of long lines would be kept many times.
    """
    left = (text for text in texts if len(text) <= LONGEST)
    while several := [*islice(left, TOGETHER)]:
        said = {text for text in several if isinstance(text, Told)}
        numbers = {text for text in several if isinstance(text, Number)}
        yield said, {text for text in several if not isinstance(text, Told | Number)}, numbers


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
    """The texts of a file; not all of them if it is damaged, packed or too large, cut off while it is read, or if its
    library is missing."""
    texts = FileTexts()
    try:
        if not _zarr(path, texts):
            _read(path, texts)
    except (*FAULTS, LookupError, TypeError, AttributeError, ImportError, TaftcacheError):
        texts.whole = False
    return texts


def _zarr(path: Path, to: FileTexts) -> bool:
    """Add what a Zarr array has in its chunks and its description, or a chunk of texts on its own; returns whether the
    file is one. One that has the name of a chunk, but no array, may be of any kind.

    Raises:
        ValueError and others: as for `_read` and `array_texts`.
    """
    if path.name in (ARRAY, OLD_ARRAY):
        _read(path, to)  # its attributes
        if (array := array_texts(path, MAX_TEXT)) is not None:
            to.take(path.parent.name, array)
        return True
    of, texts = array_of_chunk(path), chunk_texts(path, MAX_TEXT)
    to.whole = texts is not None or of is None or (of / ARRAY).exists()
    to.add(texts or [], path.parent.name if of is None else of.name)
    return texts is not None


def _read(path: Path, to: FileTexts) -> None:
    """Add the texts of a file; its first bytes, or else its suffix, tell what it is.

    Raises:
        ValueError, KeyError, OSError, TaftcacheError, ImportError and others: it cannot be searched, or only in part.
    """
    with path.open("rb") as file:
        begin, length = file.read(BEGINNING), (there := path.stat().st_size)
        if (unpacked := _of_git(file, begin, to)) is not None:
            begin, length = unpacked[:BEGINNING], len(unpacked)
        # A safetensors file begins with its header's size, whose bytes may be those of a pickle: 640 is 80 02.
        size = int.from_bytes(begin[:8], "little")
        headed = begin[8:9] == b"{" and size <= length - 8
        if not headed and (begin.startswith(PACKED) or begin[TAR_AT:].startswith(TAR)):
            raise ValueError(path)
        to.whole &= OLD_PICKLE.match(begin) is None  # or a table of the samples p1, p2, …: searched as text, too
        if unpacked is not None and (headed or begin.startswith((HDF5, ZIP, NPY, PARQUET, ARROW))):
            raise ValueError(path)
        if begin.startswith(HDF5) or path.suffix in (".h5", ".hdf5"):
            _hdf5(path, to)
        elif begin.startswith(ZIP) or path.suffix == ".npz":
            _npz(path, to)
        elif begin.startswith(NPY):
            _npy(path, to)
        elif begin.startswith(PARQUET) or path.suffix in (".parquet", ".pq"):
            _parquet(path, to)
        elif begin.startswith(ARROW) or path.suffix == ".arrow":
            _arrow(path, to)
        elif headed or path.suffix == ".safetensors":
            file.seek(0)
            texts = [*headers(file.read(8 + min(size, MAX_TEXT)))]
            if not texts:
                raise ValueError(path)
            to.about, to.is_header = texts[0], True
        else:
            form = next((form for mark, form in MARKS.items() if begin.startswith(mark)), "")
            to.about = _text(file if unpacked is None else io.BytesIO(unpacked), form)
        if path.stat().st_size < there:  # it was cut off meanwhile, perhaps where a batch ends
            raise EOFError(path)


def _of_git(file: BinaryIO, begin: bytes, to: FileTexts) -> bytes | None:
    """What a git repository keeps in this file, and of a folder the names in it; None if the file is none of git's.

    Raises:
        ValueError, zlib.error: it is damaged, or more than ``MAX_TEXT``.
    """
    try:
        said = OF_GIT.match(zlib.decompressobj().decompress(begin, 64)) if begin[:1] == b"x" else None
    except zlib.error:
        return None
    if said is None:
        return None
    size, to.of_git = said.end() + int(said[2]), True
    if size > MAX_TEXT:
        raise ValueError(size)
    file.seek(0)
    unpacked = zlib.decompressobj().decompress(file.read(MAX_TEXT), size + 1)[said.end() :]
    if said.end() + len(unpacked) != size:
        raise ValueError(size)
    if said[1] == b"tree":
        to.name(*(name.decode("utf-8", "replace") for name in IN_TREE.findall(unpacked)))
    return unpacked


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file, some at a time: never through a map, for a file that somebody cuts off would end the process
    there. Of a block of zeros there are four, as many as a sign takes in any encoding.

    Raises:
        EOFError: it was cut off meanwhile.
    """
    left = file.seek(0, io.SEEK_END)
    file.seek(0)
    while left:
        if not (block := file.read(min(BLOCK, left))):
            raise EOFError
        left -= len(block)
        yield block if np.frombuffer(block, np.uint8).any() else bytes(4)


def _text(file: BinaryIO, form: str) -> str:
    """The text of a file in that encoding; where nothing tells it (""), in a likely one, or the longer texts in a file
    that is not text. Zeros in it end a line, as in a log that was cut while it was written to.

    Raises:
        ValueError: more than ``MAX_TEXT``. EOFError: as for `_blocks`.
    """
    data, has_zeros, has_controls = bytearray(), False, False
    for block in _blocks(file):
        has_zeros |= 0 in block
        has_controls |= len(block.translate(None, CONTROLS)) < len(block)
        if has_zeros and has_controls and not form:
            return _runs(file)
        data += block
        if len(data) > MAX_TEXT:
            raise ValueError(len(data))
    if has_zeros and not form:  # perhaps UTF-16 without its mark
        half = len(data) // 2
        first, second = (half - data[k : 2 * half : 2].count(0) for k in (0, 1))
        form = "utf-16-le" if first > 9 * second else "utf-16-be" if second > 9 * first else ""
    text = data.decode(form or "utf-8", "replace")
    if not form and "\ufffd" in text:
        text += "\n" + data.decode("cp1252", "replace")
    return re.sub("\0+", "\n", text) if has_zeros else text


def _runs(file: BinaryIO) -> str:
    """The longer texts in a file that is not text, such as a picture or a model, one a line. Of shorter ones there are
    many in bytes of any kind: a megabyte of weights "holds" most ids of two signs.

    Raises:
        ValueError: they are more than ``MAX_TEXT``. EOFError: as for `_blocks`.
    """
    found, size = list[str](), 0
    for stretch in _stretches(file):
        texts = stretch.decode("utf-8", "replace").split("\ufffd")
        found += (longer := [text for text in texts if len(text) >= RUN])
        size += sum(map(len, longer))
        if size > MAX_TEXT:
            raise ValueError(size)
    return "\n".join(found)


def _stretches(file: BinaryIO) -> Iterator[bytes]:
    """Bytes that a text may have, as many as follow one another; all that are ``RUN`` or more, and some shorter ones.

    Raises:
        ValueError: one of more than ``MAX_TEXT``. EOFError: as for `_blocks`.
    """
    last = bytearray()
    for block in _blocks(file):
        ends = np.flatnonzero(NO_TEXT[np.frombuffer(block, np.uint8)])
        last += block[: ends[0]] if len(ends) else block
        if len(last) > MAX_TEXT:
            raise ValueError(len(last))
        if len(ends):
            yield bytes(last)
            far = np.flatnonzero(np.diff(ends) > RUN)
            yield from (block[a + 1 : b] for a, b in zip(ends[far].tolist(), ends[far + 1].tolist(), strict=True))
            last = bytearray(block[ends[-1] + 1 :])
    yield bytes(last)


def _npy(path: Path, to: FileTexts) -> None:
    """Add an array, or the fields of its records, that may hold ids; ValueError if it is one of Python objects.

    The map only says what is in the file: what it shows ends the process if the file was cut off.
    """
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not to.is_wanted(path.stem, array.shape, array.dtype):
        return
    parts, step = list[list[tuple[str, NDArray[Any]]]](), max(1, BLOCK // max(1, array.itemsize))
    with path.open("rb") as file:
        file.seek(array.offset)
        for at in range(0, array.size, step):
            rows = np.frombuffer(file.read(step * array.itemsize)[: (array.size - at) * array.itemsize], array.dtype)
            if len(rows) < min(step, array.size - at):
                raise EOFError
            parts.append(
                [
                    (name, column.copy())
                    for name, column in _columns(path.stem, rows)
                    if may_hold_ids(name, (*array.shape, *column.shape[1:]), column.dtype)
                ]
            )
    for column in zip(*parts, strict=True):
        to.take(column[0][0], np.concatenate([part for _, part in column]))


def _columns(name: str, rows: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """The fields of records, also those inside them; of other rows, these."""
    if rows.dtype.names is None:
        yield name, rows
    for field_name in rows.dtype.names or ():
        yield from _columns(field_name, rows[field_name])


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
        with pa.OSFile(str(path)) as file:  # no map, as in `_blocks`
            stream = arrow_stream(path, file)
            to.name(*_names_of(stream.schema))
            kept = [k for k, kind in enumerate(stream.schema.types) if re.search(OF_ARROW, str(kind))]
            _take(path, (batch.select(kept) for batch in checked_batches(path, stream)), to)
    except pa.ArrowException as error:
        raise ValueError(path) from error


def _parquet(path: Path, to: FileTexts) -> None:
    """Add the texts and whole numbers of a Parquet file, by column, and what is written into its schema.

    Raises:
        ImportError: pyarrow is not installed. ValueError: not a Parquet file, or more than ``MAX_TEXT``.
    """
    import pyarrow as pa

    try:
        with parquet_file(path) as file:
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
