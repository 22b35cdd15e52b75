"""Images in a NumPy archive."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from taftcache.backbone.sources.arrays import ArraySource, AskedArrays, check_expansion, split_of
from taftcache.errors import DataError, check_file

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
FAULTS = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error),
    *(ValueError, OverflowError),  # a damaged header; UnicodeError is a ValueError
    RuntimeError,  # encrypted, or (as NotImplementedError) split over several disks
)


def open_npz(asked: AskedArrays) -> ArraySource:
    """Read a file into memory; arrays of Python objects are refused, because they are pickles.

    An array takes the memory that its header says, which must be what the archive has of it; all arrays together take
    no more than ``check_expansion`` allows. Of several splits, only the arrays of one are read (`split_of`); they are
    the file's arrays by plain names then, beside those that belong to no split.
    """
    file = asked.file
    check_file(file, "correct data.train or data.test", of_folder='set data.source = "folder" if it holds images')
    wanted = {asked.image_key, asked.label_key, asked.id_key, "blob", "offset", "label", "classes", "id", "ids"}
    try:
        with file.open("rb") as stream:
            if stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise DataError(
                    f"{file} is not an npz archive but a single array",
                    do="numpy.savez(FILE, images=…, labels=…) writes both",
                )
            with zipfile.ZipFile(stream) as archive:
                members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
                read = split_of(asked, members)
                members |= {plain: members[name] for plain, name in read.own.items()}
                needed = sum(entry.file_size for key, entry in members.items() if key in wanted)
                check_expansion(file, needed, file.stat().st_size)
                # Inflate only what is used; the other names are kept for the message that lists them.
                arrays = {key: read_member(archive, m) if key in wanted else np.empty(0) for key, m in members.items()}
    except MemoryError as error:
        raise DataError(
            f"{file} needs more memory than there is", got=str(error), do="write HDF5, which is read image by image"
        ) from error
    except FAULTS as error:
        raise DataError(
            f"{file} cannot be read as npz without Python objects",
            got=str(error),
            do="save arrays of numbers and texts with numpy.savez, not objects",
        ) from error
    return ArraySource(asked, arrays, read)


def names_in_npz(file: Path) -> list[str]:
    """The names of the arrays in a file; none if it cannot be read."""
    try:
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except FAULTS:
        return []


def read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """One array. Memory is asked for only if the array's header says as many bytes as the archive has of it."""
    if entry.compress_type not in _PACKED:
        raise ValueError(f"{entry.filename} is packed in a way that NumPy does not write")
    with archive.open(entry) as member:
        shape, _, dtype = read_header(member)
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize != entry.file_size - member.tell():
            raise ValueError(f"{entry.filename} says {dtype} {list(shape)}, but has another number of bytes")
    with archive.open(entry) as member:
        return np.asarray(npy.read_array(member, allow_pickle=False))


def read_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and dtype of the npy file that begins here.

    ValueError for whatever Python's own parser, which NumPy calls, objects to in the text.
    """
    version = npy.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"a header of unknown version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        shape, columns_first, dtype = read(member)
    except (MemoryError, RecursionError, SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"a header that cannot be read: {type(error).__name__}") from error
    if any(n < 0 for n in shape):
        raise ValueError(f"a shape below zero: {list(shape)}")
    return shape, columns_first, dtype


def mapped(file: Path, at: int = 0) -> np.ndarray[Any, Any]:
    """The npy file that begins at byte ``at`` of a file, as a read-only map.

    Raises:
        ValueError: no npy file, one of Python objects (pickles), or one that is cut off. OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        stream.seek(at)
        shape, columns_first, dtype = read_header(stream)
        if dtype.hasobject:
            raise ValueError("it holds Python objects (pickles), which are never read")
        if math.prod(shape) * dtype.itemsize > file.stat().st_size - stream.tell():
            raise ValueError(f"it has fewer bytes than {dtype} {list(shape)} takes")
        if 0 in shape:
            return np.empty(shape, dtype)
        order: Any = "F" if columns_first else "C"
        return np.memmap(file, dtype, "r", stream.tell(), shape, order)
