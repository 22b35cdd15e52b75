"""How a shard is laid out as a Zarr v3 group: its arrays, their chunk files, and the shard manifest over them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.encoding import DTYPES, chunk_arrays, row_bytes, rows_dtype
from taftcache.cache.format.fault import Fault
from taftcache.cache.format.manifest import ShardRef
from taftcache.cache.format.plan import MAX_ID_BYTES
from taftcache.cache.format.strict import Hex, check_version, decode_strict, decoded
from taftcache.cache.place.failure import AVOID
from taftcache.errors import FormatError, RecipeError, StoreError, StoreWriteError

FORMAT = "taftcache-shard"
VERSIONS = {1: ("float16", "float32"), 2: ("int8",)}
"""Version of a shard's manifest -> the dtypes of its rows: version 2 has the array of scales."""
MAX_BYTES = 32 << 20
MAX_STATISTICS = 2 << 20
_ONE_OF = ", ".join(DTYPES)
MAX_CHUNK_BYTES = 1 << 30
MAX_CHUNK_ROWS = 1 << 16
_AUTO_BYTES = 8 << 20


class FileRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a shard."""

    digest: Hex
    size: int


class Statistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the rows are like: largest |x|, mean of the tokens' Euclidean norms, rows per class index."""

    max_abs: float
    mean_token_norm: float
    rows_per_class: dict[Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,9})\Z")], int]


class ShardManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one shard holds, and the digest and size of every file of its group. It lies beside the group's folder."""

    format: str = FORMAT
    version: int
    name: str
    role: str
    rows: int
    tokens_shape: tuple[int, int]
    dtype: str
    chunk_rows: int
    statistics: Statistics
    objects: dict[str, FileRef]

    def encode(self) -> tuple[bytes, ShardRef]:
        """The file's bytes and the reference that names it; StoreWriteError if `decode` would refuse them."""
        raw = canonical(self)
        ref = ShardRef.of(self.name, self.role, self.rows, digest(raw))
        try:
            if len(raw) > MAX_BYTES:
                raise FormatError(f"its manifest would have {len(raw)} bytes, and {MAX_BYTES} are read")
            ShardManifest.decode(raw, ref)
        except StoreError as error:
            chunks = chunk_count(self.rows, self.chunk_rows)
            raise StoreWriteError(
                f"cannot write shard {self.name}, for it could not be read again: {error.fault}",
                got=f"{self.rows} rows in {chunks} chunks" + ("" if error.got is None else f"; {error.got}"),
                do="use more shards, or more rows per chunk",
            ) from error
        return raw, ref

    @classmethod
    def decode(cls, raw: bytes, ref: ShardRef) -> ShardManifest:
        """Read and check one (the caller checks its digest): FormatError for what must be refused."""
        file = manifest_file(ref.path)
        version = check_version(raw, FORMAT, VERSIONS, Fault(shard=ref.name, file=file, problem="it is not JSON"))
        _bounded(raw, ref, file)
        made = decode_strict(raw, cls, file)
        if (made.name, made.role, made.rows) != (ref.name, ref.role, ref.rows):
            raise FormatError("the shard manifest is not of the shard that the root manifest names", got=file, do=AVOID)
        check_shape(made.tokens_shape, made.dtype, made.chunk_rows)
        if version != version_of(made.dtype):
            raise FormatError(
                "the shard manifest is of a version that does not have its dtype",
                got=f"{file}: {made.dtype} in version {version}",
                do=AVOID,
            )
        expected = expected_sizes(made.rows, made.tokens_shape, made.dtype, made.chunk_rows)
        if expected.keys() != made.objects.keys():
            odd = sorted(expected.keys() ^ made.objects.keys())
            raise FormatError(
                "the shard has other files than its shape asks for",
                got=f"{file}: {', '.join(map(repr, odd[:5]))}",
                do=AVOID,
            )
        for name, part in made.objects.items():
            low, high = expected[name]
            if not low <= part.size <= high or len(part.digest) != 64:
                raise FormatError(
                    "a file of the shard has another size than its shape asks for",
                    got=f"{file}: {name} with {part.size} bytes, not {low}" + (f" to {high}" if high > low else ""),
                    do=AVOID,
                )
        return made


class _Declared(msgspec.Struct):
    rows: int
    tokens_shape: tuple[int, int]
    dtype: str
    chunk_rows: int
    statistics: msgspec.Raw


def _bounded(raw: bytes, ref: ShardRef, file: str) -> None:
    """FormatError if the size of ``raw`` does not fit the declared shape, before the list of files is decoded."""
    declared = decoded(raw, _Declared, file)
    check_shape(declared.tokens_shape, declared.dtype, declared.chunk_rows)
    each = len(chunk_arrays(declared.dtype))
    files = 5 + each + each * chunk_count(max(declared.rows, 0), declared.chunk_rows)
    # "tokens/c.0.0.0":{"digest":"…64…","size":1}, is the shortest entry of a chunk, the longest is 40 longer
    if not 90 * files <= len(raw) - len(declared.statistics) <= 140 * files + 4096 or declared.rows != ref.rows:
        raise FormatError(
            "the shard manifest cannot list the files that the shard's shape asks for",
            got=f"{file}: {len(raw)} bytes for {declared.rows} rows, {declared.chunk_rows} a chunk",
            do=AVOID,
        )
    if len(declared.statistics) > MAX_STATISTICS:
        raise FormatError(
            f"the shard's statistics have {len(declared.statistics)} bytes, and {MAX_STATISTICS} are read",
            got=file,
            do=AVOID,
        )


def version_of(dtype: str) -> int:
    """The version of the manifest of a shard whose rows are kept as ``dtype``."""
    return next(version for version, kept in VERSIONS.items() if dtype in kept)


def manifest_file(group: str) -> str:
    """Where the manifest of the group in the folder ``group`` lies: beside it, because inside Zarr would warn of it."""
    return f"{group}.json"


def chunk_names(index: int, dtype: str) -> tuple[str, ...]:
    """The files of chunk ``index`` (rows index·c .. (index + 1)·c), in the order of ``chunk_arrays``."""
    return tuple(f"{array}/c.{index}.0{'.0' if array == 'tokens' else ''}" for array in chunk_arrays(dtype))


def array_names(dtype: str) -> tuple[str, ...]:
    """The arrays of a shard's group."""
    return (*chunk_arrays(dtype), "labels", "sample_id")


def is_metadata(name: str) -> bool:
    """Whether a file of the group is one of ``metadata``."""
    return name.endswith("zarr.json")


def chunk_count(rows: int, chunk_rows: int) -> int:
    """How many chunks ``rows`` rows take."""
    return -(-rows // chunk_rows)


def auto_chunk_rows(tokens_shape: tuple[int, int], dtype: str) -> int:
    """The largest power of two in 16..512 with a chunk of at most 8 MiB (16 where even that is larger).

    It depends on the shape of a row only, never on how many rows there are.
    """
    row = row_bytes(tokens_shape, dtype)[0]
    return max(16, min(512, 1 << max(0, (_AUTO_BYTES // row).bit_length() - 1)))


def check_shape(tokens_shape: Sequence[int], dtype: str, chunk_rows: int) -> None:
    """FormatError unless dtype, shape and size of a chunk are within the format's limits."""
    t, d = tokens_shape
    good = dtype in DTYPES and t >= 1 and d >= 1 and 1 <= chunk_rows <= MAX_CHUNK_ROWS
    if not good or t * d * chunk_rows * rows_dtype(dtype).itemsize > MAX_CHUNK_BYTES:
        raise FormatError(
            f"tokens must be {_ONE_OF} [n, t, d] with t, d >= 1, in chunks of at most {MAX_CHUNK_ROWS} rows and"
            f" {MAX_CHUNK_BYTES} bytes",
            got=f"{dtype} [n, {t}, {d}] in chunks of {chunk_rows} rows",
            do="use fewer rows per chunk",
        )


def resolve_chunk_rows(chunk_rows: int | Literal["auto"], tokens_shape: tuple[int, int], dtype: str) -> int:
    """The number that ``chunk_rows`` means for rows of that shape."""
    if dtype not in DTYPES:
        raise RecipeError(f"tokens cannot be stored as {dtype!r}", do=f"use one of {_ONE_OF}")
    if min(tokens_shape) < 1:
        raise RecipeError(
            "a row must have at least one token of at least one feature",
            got=f"[t, d] = {list(tokens_shape)}",
            do="leave rows of no numbers out",
        )
    rows = auto_chunk_rows(tokens_shape, dtype) if chunk_rows == "auto" else int(chunk_rows)
    check_shape(tokens_shape, dtype, rows)
    return rows


def expected_sizes(rows: int, tokens_shape: tuple[int, int], dtype: str, chunk_rows: int) -> dict[str, tuple[int, int]]:
    """Every file of a shard's group -> the least and the most bytes it may have."""
    chunk = [chunk_rows * size for size in row_bytes(tokens_shape, dtype)]
    exact = {name: len(text) for name, text in metadata(rows, tokens_shape, dtype, chunk_rows).items()}
    exact["labels/c.0"] = 4 * rows
    for i in range(chunk_count(rows, chunk_rows)):
        exact |= zip(chunk_names(i, dtype), chunk, strict=True)
    return {name: (size, size) for name, size in exact.items()} | {
        "sample_id/c.0": (4 + 5 * rows, 4 + (4 + MAX_ID_BYTES) * rows)
    }


def least_sizes(
    rows: Iterable[int], tokens_shape: tuple[int, int], dtype: str, chunk_rows: int | Literal["auto"]
) -> list[int]:
    """The least bytes of each file of shards with these numbers of rows.

    A shard is stored in whole chunks, unless it has fewer rows than one chunk.
    """
    chunk, sizes = resolve_chunk_rows(chunk_rows, tokens_shape, dtype), list[int]()
    for count in filter(None, rows):
        sizes += [least for least, _ in expected_sizes(count, tokens_shape, dtype, min(count, chunk)).values()]
    return sizes


def metadata(rows: int, tokens_shape: tuple[int, int], dtype: str, chunk_rows: int) -> dict[str, bytes]:
    """The zarr.json of a shard's group and arrays. Each shape has exactly one right text: any other is refused."""
    t, d = tokens_shape
    whole = {
        "tokens": _array((rows, t, d), (chunk_rows, t, d), dtype, ("row", "token", "feature")),
        "scales": _array((rows, t), (chunk_rows, t), "float32", ("row", "token")),
        "labels": _array((rows,), (rows,), "int32", ("row",)),
        "sample_id": _array((rows,), (rows,), "string", ("row",)),
    }
    group = canonical({"zarr_format": 3, "node_type": "group", "attributes": {}})
    return {"zarr.json": group} | {f"{array}/zarr.json": whole[array] for array in array_names(dtype)}


def encode_ids(ids: Sequence[str]) -> bytes:
    """Zarr's ``vlen-utf8`` codec: the count, then length and UTF-8 bytes of each, all lengths little-endian uint32."""
    texts = [i.encode() for i in ids]
    return struct.pack("<I", len(texts)) + b"".join(struct.pack("<I", len(text)) + text for text in texts)


def decode_ids(data: bytes, rows: int) -> list[str] | None:
    """The strings of a ``vlen-utf8`` chunk; None when they are not exactly ``rows``, or not UTF-8."""
    if len(data) < 4 or struct.unpack_from("<I", data)[0] != rows:
        return None
    length, ids, at = struct.Struct("<I"), [], 4
    try:
        for _ in range(rows):
            end = at + 4 + length.unpack_from(data, at)[0]
            ids.append(data[at + 4 : end].decode())
            at = end
    except (struct.error, UnicodeDecodeError):
        return None
    return ids if at == len(data) else None


def pad(tokens: NDArray[Any], chunk_rows: int) -> NDArray[Any]:
    """``tokens`` [r, t, d] with zero rows after it: [chunk_rows, t, d], as Zarr wants its last chunk."""
    full = np.zeros((chunk_rows, *tokens.shape[1:]), tokens.dtype)
    full[: len(tokens)] = tokens
    return full


_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
_ZARR: dict[str, tuple[Any, dict[str, Any]]] = {
    "float16": (0.0, _LITTLE),
    "float32": (0.0, _LITTLE),
    "int8": (0, {"name": "bytes"}),
    "int32": (0, _LITTLE),
    "string": ("", {"name": "vlen-utf8", "configuration": {}}),
}
"""Zarr's data type -> fill value and codec."""


def _array(shape: Sequence[int], chunk: Sequence[int], dtype: str, names: Sequence[str]) -> bytes:
    fill, codec = _ZARR[dtype]
    return canonical(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            # flat file names: one folder to fsync for each array, instead of two for each chunk
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": fill,
            "codecs": [codec],
            "dimension_names": names,
            "attributes": {},
        }
    )
