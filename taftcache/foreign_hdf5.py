"""Datasets of HDF5 files that others wrote: reached without a link, whole in the file itself, read in bounded memory.

Whatever could make a reader read something else is a ValueError here; the callers name the file in their own error.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

CACHE = 64 << 20  # bytes of unpacked chunks that an open file keeps
_LARGEST_CHUNK = 1 << 30  # bytes
_EXPANDED, _RATIO = 64 << 20, 100  # what is read at once may unpack to these bytes, or so many times the file's size
_TEXTS_AT_ONCE = 32  # each may be as long as the file
_ROWS_AT_ONCE = 64  # that an import has in memory
_DEFLATE, _SHUFFLE, _CHECKSUM, _SZIP, _LZF = 1, 2, 3, 4, 32000
_FILTERS = {_DEFLATE, _SHUFFLE, _CHECKSUM, _SZIP, _LZF}  # most others are plug-ins that HDF5 would load and run
_PACKERS = {_DEFLATE, _SZIP, _LZF}
_TIGHTEST = 1 << 12  # no packer packs this many bytes into one


def most_expanded(size: int) -> int:
    """Bytes that a dataset which is read whole may have in a file of ``size`` bytes."""
    return max(_EXPANDED, _RATIO * size)


def node_of(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset | None:
    """The group or dataset ``name``, None if there is none; ValueError for a link, which may lead to other files."""
    node: Any = file
    for part in name.strip("/").split("/"):
        # Not ``part in node``, which follows a link to see whether it leads anywhere.
        if not isinstance(node, h5py.Group) or not node.id.links.exists(part.encode()):
            return None
        if node.id.links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{name} is reached by a link, which may lead to another file")
        node = node[part]
    return node


def attribute(node: h5py.Group, name: str) -> Any:
    """An attribute that is one text or one number; None for any other, whose texts may be many, and none is there."""
    if name not in node.attrs:
        return None
    found = node.attrs.get_id(name)
    is_one = found.shape == () and (found.dtype.kind in "iuf" or h5py.check_string_dtype(found.dtype) is not None)
    return node.attrs[name] if is_one else None


def check_own(node: h5py.Dataset, name: str, size: int) -> None:
    """ValueError unless a file of ``size`` bytes has all of a dataset, in chunks that can be read as they are."""
    if node.is_virtual or node.external:
        raise ValueError(f"{name} is stored in another file")
    filters = filters_of(node)
    if odd := set(filters) - _FILTERS:
        raise ValueError(
            f"{name} has the filter {min(odd)}, a plug-in or one that is not read (gzip, szip and lzf are)"
        )
    if node.chunks is None:
        if int(node.nbytes) > size:
            raise ValueError(f"{name} has {node.nbytes} bytes, more than its file of {size}")
        if node.size and node.id.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED:
            raise ValueError(f"{name} was never written, and reads as zeros")
        return
    # a resizable dataset may be smaller than its one chunk
    most = min(_LARGEST_CHUNK, _RATIO * size, 2 * int(node.nbytes))
    if (chunk := _chunk_bytes(node)) > max(_EXPANDED, most):
        raise ValueError(f"{name} has chunks of {chunk} bytes, more than are read at once")
    wanted = math.prod(-(-n // c) for n, c in zip(node.shape, node.chunks, strict=True))
    if (there := node.id.get_num_chunks()) != wanted:
        raise ValueError(f"{name} has only {there} of its {wanted} chunks; the rest reads as zeros")
    if packers := _PACKERS.intersection(filters):
        if len(set(filters)) < len(filters) or [f for f in filters if f != _CHECKSUM][-1:] != [*packers]:
            raise ValueError(f"{name} is packed more than once, or in an order that no known program writes")
        _check_unpacked(node, name, size, *packers)


def filters_of(node: h5py.Dataset) -> list[int]:
    """The numbers of the filters that chunks went through, in that order."""
    made = node.id.get_create_plist()
    return [made.get_filter(k)[0] for k in range(made.get_nfilters())]


def _chunk_bytes(node: h5py.Dataset) -> int:
    return int(math.prod(node.chunks) * node.id.get_type().get_size())


def _check_unpacked(node: h5py.Dataset, name: str, size: int, packer: int) -> None:
    """ValueError if a chunk that may take more than `most_expanded` does: HDF5 unpacks all that is there, whatever a
    chunk's size should be."""
    found, chunk = list[tuple[tuple[int, ...], int]](), _chunk_bytes(node) + 4  # with a checksum
    if packer == _LZF:  # bounded by its form: 264 bytes from three
        return
    large, bit = most_expanded(size) // _TIGHTEST, filters_of(node).index(packer)
    node.id.chunk_iter(lambda c: found.append((c.chunk_offset, c.size)) if c.size > large else None)
    for place, stored in found:
        if stored > size:
            raise ValueError(f"{name} has a chunk of {stored} bytes, more than its file of {size}")
        skipped, packed = node.id.read_direct_chunk(place)
        if skipped >> bit & 1:
            continue
        try:
            is_more = (
                int.from_bytes(packed[:4], "little") > chunk
                if packer == _SZIP
                else len(zlib.decompressobj().decompress(packed, chunk + 1)) > chunk
            )
        except zlib.error as error:
            raise ValueError(f"{name} is damaged: {error}") from None
        if is_more:
            raise ValueError(f"{name} has a chunk that unpacks to more than its {chunk - 4} bytes")


def read_whole(node: h5py.Dataset, name: str, size: int) -> NDArray[Any]:
    """All values of a dataset of a file of ``size`` bytes, texts as bytes objects; ``check_own`` comes first.

    ValueError beyond `most_expanded`. Any number of texts may be one and the same in the file, and each is a copy in
    memory: they are counted as they are read.
    """
    left = most_expanded(size) - int(node.nbytes)
    if left < 0:
        raise ValueError(f"{name} has {node.nbytes} bytes, too many for a file of {size}")
    if not node.dtype.hasobject or not node.size:
        return np.asarray(node[()])
    if not has_only_texts(node.dtype):
        raise ValueError(f"{name} has neither numbers nor texts")
    check_cached(node, name)
    found = np.empty(node.shape, node.dtype)
    for place in _places(node.shape):
        found[place] = node[place]
        left -= _of_texts(found[place])
        if left < 0:
            raise ValueError(f"{name} has texts of more than {most_expanded(size)} bytes in a file of {size}")
    return found


def check_band(node: h5py.Dataset, name: str, size: int) -> int:
    """How many rows chunks hold; ValueError if packed ones hold more than a file of ``size`` bytes may unpack to at
    once, as those by column may, or a few rows do."""
    if node.chunks is None or not node.ndim:
        return 0
    row = math.prod(node.shape[1:]) * node.dtype.itemsize
    for rows, most in ((node.chunks[0], _LARGEST_CHUNK), (max(node.chunks[0], _ROWS_AT_ONCE), most_expanded(size))):
        if filters_of(node) and (needed := min(rows, len(node)) * row) > most:
            raise ValueError(f"{name} has {needed} bytes in {rows} packed rows, more than are read at once")
    return int(node.chunks[0])


def check_cached(node: h5py.Dataset, name: str) -> None:
    """ValueError if each read of a part unpacks a whole chunk anew, because it is too large for the `CACHE`."""
    if node.chunks is not None and filters_of(node) and (chunk := _chunk_bytes(node)) > CACHE:
        raise ValueError(
            f"{name} has packed chunks of {chunk} bytes, too large to be unpacked for each part that is read"
        )


def has_only_texts(dtype: np.dtype[Any]) -> bool:
    """Whether the objects in values of ``dtype``, or in fields of its records, are texts."""
    if dtype.names is not None:
        return all(has_only_texts(dtype[name].base) for name in dtype.names)
    return not dtype.hasobject or h5py.check_string_dtype(dtype) is not None


def _places(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Where the next ``_TEXTS_AT_ONCE`` values or fewer are, until all have come."""
    if (inner := math.prod(shape[1:])) > _TEXTS_AT_ONCE:
        yield from ((k, *rest) for k in range(shape[0]) for rest in _places(shape[1:]))
    elif shape:
        step = _TEXTS_AT_ONCE // inner
        yield from ((slice(at, at + step),) for at in range(0, shape[0], step))
    else:
        yield (...,)


def _of_texts(values: NDArray[Any]) -> int:
    """Bytes of memory of all texts in values, or in fields of records."""
    if values.dtype.names is not None:
        return sum(_of_texts(values[name]) for name in values.dtype.names)
    return sum(map(sys.getsizeof, values.flat)) if values.dtype.hasobject else 0
