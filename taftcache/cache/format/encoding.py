"""How rows are encoded as the numbers in a chunk's files, and decoded: no other module knows it.

In 8 bits, a token whose largest |x| is m has the scale m / 127 in float32, rounded up to 16 significant bits and at
least 2⁻¹²⁶. Its values become q = x / scale in float32, rounded to the nearest integer, ties to even; if every q is 0,
so is the scale. So each product scale · q is exact in float32, the largest |q| of a token is 127 (less only at the
smallest scale), and decoded rows are encoded with the same scale and the same q: rows read and rewritten keep their
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4"), "int8": np.dtype("i1")}
"""The dtypes that a store may keep its rows as -> the dtype of its array ``tokens``."""
_SCALE = np.dtype("<f4")
_MOST = 127
_FINE = np.uint32(0xFF)  # bits of a scale that are always 0: 16 significant bits times the 7 of |q| fit a float32's 24
_PIECE = 1 << 18
_LEAST, _LARGEST = np.float32(2.0**-126), np.float32(2.0**120)


def rows_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype of rows [n, t, d] as readers get them."""
    return _SCALE if dtype == "int8" else DTYPES[dtype]


def chunk_arrays(dtype: str) -> tuple[str, ...]:
    """The arrays of a shard's group that have a file for each chunk of rows."""
    return ("tokens", "scales") if dtype == "int8" else ("tokens",)


def row_bytes(tokens_shape: tuple[int, int], dtype: str) -> tuple[int, ...]:
    """Bytes of one row [t, d] in each of ``chunk_arrays``."""
    t, d = tokens_shape
    numbers = t * d * DTYPES[dtype].itemsize
    return (numbers, t * _SCALE.itemsize) if dtype == "int8" else (numbers,)


def largest(rows: NDArray[Any]) -> Any:
    """The largest |x| in ``rows``, in their dtype; NaN or Inf if there is one."""
    kind: Any = np.uint16 if rows.dtype.itemsize == 2 else np.uint32
    # The bits of |x| sort as the values do, at the speed of integers; one piece at a time stays in a core's cache.
    bits, unsigned, most = np.ascontiguousarray(rows).reshape(-1).view(kind), kind(np.iinfo(kind).max >> 1), kind(0)
    for at in range(0, len(bits), _PIECE):
        most = max(most, (bits[at : at + _PIECE] & unsigned).max())
    return most.view(rows.dtype)


def fits(rows: NDArray[Any], dtype: str) -> bool:
    """Whether ``rows`` of ``rows_dtype`` are finite and, in 8 bits, their scales too."""
    return bool(largest(rows) <= (_MOST * _LARGEST if dtype == "int8" else np.finfo(rows.dtype).max))


def encode(rows: NDArray[Any], dtype: str) -> list[NDArray[Any]]:
    """What the files of a chunk hold, one array for each of ``chunk_arrays``, for ``rows`` [n, t, d] that ``fits``."""
    if dtype != "int8":
        return [rows]
    wide = rows.astype(np.float32)
    scales: NDArray[Any] = np.abs(wide).max(-1) / np.float32(_MOST)
    scales = ((scales.view(np.uint32) + _FINE) & ~_FINE).view(np.float32)
    np.maximum(scales, _LEAST, out=scales)
    wide /= scales[..., None]
    q = np.rint(wide, out=wide).astype(np.int8)
    scales[~q.any(-1)] = 0
    return [q, scales.astype(_SCALE, copy=False)]


def as_read(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    """``rows`` [n, t, d] of ``rows_dtype`` as they come back after being written and read."""
    return Scaled(*encode(rows, dtype))[:] if dtype == "int8" else rows


@dataclass(frozen=True, slots=True)
class Scaled:
    """Rows [n, t, d] kept as ``q`` int8 [n, t, d] with ``scales`` float32 [n, t]; indexing gives floats."""

    q: NDArray[np.int8]
    scales: NDArray[np.float32]

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[np.float32]:
        made = np.multiply(self.q[rows], self.scales[rows][..., None], dtype=np.float32)
        made.flags.writeable = False
        return made


Chunk = NDArray[Any] | Scaled
"""The rows of a chunk, taken by a slice or an index."""


def decode(files: Sequence[Any], dtype: str, tokens_shape: tuple[int, int]) -> Chunk:
    """The rows of a chunk out of its files' bytes, in the order of ``chunk_arrays``."""
    tokens = np.frombuffer(files[0], DTYPES[dtype]).reshape(-1, *tokens_shape)
    return Scaled(tokens, np.frombuffer(files[1], _SCALE).reshape(len(tokens), -1)) if len(files) > 1 else tokens


def scales_fault(data: Any) -> str | None:
    """What is wrong with the bytes of a file of scales."""
    bits = np.frombuffer(data, "<u4")
    right = (bits == 0) | ((bits >= _LEAST.view(np.uint32)) & (bits <= _LARGEST.view(np.uint32)))
    return None if (right & (bits & _FINE == 0)).all() else "a scale is none that is ever written"


def rows_fault(rows: Chunk) -> str | None:
    """What is wrong with a chunk whose scales are right: its rows, encoded again, would have other bytes."""
    if not isinstance(rows, Scaled):
        return None
    most = np.maximum(rows.q.max(-1), -rows.q.min(-1).astype(np.int16))
    full = (most == _MOST) | ((rows.scales == _LEAST) & (most > 0) & (most < _MOST))
    return None if np.where(rows.scales == 0, most == 0, full).all() else "its numbers are not those of their scales"
