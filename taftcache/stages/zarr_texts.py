"""Texts and whole numbers in the chunks of a Zarr array that lies in a folder, whoever wrote it and without its group.

Nothing is unpacked: an array in compressed chunks, or of an older Zarr, counts as not searched.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format.layout import decode_ids

ARRAY, OLD_ARRAY = "zarr.json", ".zarray"
CHUNK = re.compile(r"(.*/)?[^/]+/c([./]\d+)+")  # the path of a chunk's file, from the folder of its array
MAX_ARRAY = 1 << 20  # bytes of an array's description
TEXTS = ("string", "variable_length_bytes")


def chunk_texts(path: Path, most: int) -> list[str] | None:
    """The texts in a file that is a ``vlen-utf8`` chunk of at most ``most`` bytes; None if it is none, by its bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        rows, first = np.frombuffer(file.read(8).ljust(8, b"\0"), "<u4").tolist()
        if not 0 < rows <= (size - 4) // 4 or 8 + first > size or size > most:
            return None
        file.seek(0)
        return decode_ids(file.read(), rows)


def array_of_chunk(path: Path) -> Path | None:
    """The folder of the array that a file is a chunk of, by its name; None if it has no such name."""
    if not CHUNK.fullmatch(path.as_posix()):
        return None
    return path.parent if path.name.startswith("c") else next(p for p in path.parents if p.name == "c").parent


def array_texts(path: Path, most: int) -> NDArray[Any] | None:
    """What may be ids in an array of texts, of bytes or of one whole number a row, by its ``zarr.json``, of at most
    ``most`` bytes in all; None if it has nothing of the kind, or each of its chunks is `chunk_texts`.

    Raises:
        ValueError, KeyError, TypeError, OSError: it is damaged, too large or compressed.
    """
    if path.stat().st_size > MAX_ARRAY:
        raise ValueError(path)
    said = json.loads(path.read_bytes())
    if path.name == OLD_ARRAY and str(said["dtype"])[1:2] in "OSUiu":
        raise ValueError(path)
    if path.name == OLD_ARRAY or said.get("node_type") != "array":
        return None
    files = sorted(file for file in path.parent.rglob("*") if array_of_chunk(file) == path.parent)
    if sum(file.stat().st_size for file in files) > most:
        raise ValueError(path)
    kind, codec = said["data_type"], said["codecs"][0]
    if kind in TEXTS:
        if any(chunk_texts(file, most) is None for file in files):
            raise ValueError(path)
        return None
    dtype = _dtype(kind)
    if dtype is None or (dtype.kind in "iu" and len(said["shape"]) != 1):
        return None
    if len(said["codecs"]) > 1 or codec["name"] != "bytes":
        raise ValueError(path)
    if codec.get("configuration", {}).get("endian") == "big":
        dtype = dtype.newbyteorder(">")
    return _joined(files, dtype, said["shape"], said["chunk_grid"]["configuration"]["chunk_shape"])


def _dtype(kind: Any) -> np.dtype[Any] | None:
    """The dtype of whole numbers, or of texts or bytes of a fixed length; None for any other data type."""
    if isinstance(kind, str):
        return np.dtype(kind).newbyteorder("<") if re.fullmatch("u?int(8|16|32|64)", kind) else None
    letter = {"fixed_length_utf32": "<U", "null_terminated_bytes": "S"}.get(kind["name"])
    size = kind.get("configuration", {}).get("length_bytes")
    return np.dtype(f"{letter}{size // 4 if letter == '<U' else size}") if letter else None


def _joined(files: list[Path], dtype: np.dtype[Any], shape: list[int], chunk: list[int]) -> NDArray[Any]:
    """The values in these chunks: those of rows in a line without what fills the last one."""
    parts = [np.empty(0, dtype)]
    for file in files:
        data = file.read_bytes()
        if len(data) != math.prod(chunk) * dtype.itemsize:
            raise ValueError(file)
        at = int(re.split("[./]", file.name)[-1]) * chunk[0] if len(shape) == 1 else 0
        parts.append(np.frombuffer(data, dtype)[: shape[0] - at if len(shape) == 1 else None])
    return np.concatenate(parts)
