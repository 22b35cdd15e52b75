"""Writing one shard's Zarr group below a staging folder, chunk by chunk, with its digests and statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from taftcache.cache.format import encoding, layout
from taftcache.cache.format.digest import digest
from taftcache.cache.format.layout import FileRef, ShardManifest, Statistics
from taftcache.cache.format.manifest import ShardRef
from taftcache.cache.place.folder import Folder
from taftcache.errors import DataError, StoreError
from taftcache.names import counted


class ChunkRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One written chunk: its file's digest and size, its largest |x| and the sum of its tokens' norms.

    scales: the file of its scales, where its tokens have any.
    """

    digest: str
    size: int
    max_abs: float
    norm_sum: float
    scales: FileRef | None = None

    @property
    def files(self) -> list[FileRef]:
        """The chunk's files, in the order of ``chunk_arrays``."""
        return [FileRef(self.digest, self.size), *([] if self.scales is None else [self.scales])]


class ShardForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard is before it has rows: its name and role, (t, d) of a row, dtype, and rows per chunk.

    pad: a lone chunk is filled up to ``chunk_rows``, as earlier releases wrote it.
    """

    name: str
    role: str
    tokens_shape: tuple[int, int]
    dtype: str
    chunk_rows: int
    pad: bool = False

    def having(self, rows: int) -> ShardForm:
        """The form of a shard of ``rows`` rows: if they do not fill one chunk, its only chunk has just that size."""
        return self if self.pad else msgspec.structs.replace(self, chunk_rows=min(self.chunk_rows, rows))


class GroupWriter:
    """Writes the group of one shard at ``at``; the bytes depend on the rows, their order and the chunk size only."""

    def __init__(self, root: Folder, at: str, form: ShardForm) -> None:
        self._root, self._at, self._form = root, at, form
        self._arrays = layout.array_names(form.dtype)
        for array in self._arrays:
            root.make(f"{at}/{array}")

    def put_chunk(self, index: int, tokens: NDArray[Any], rows: int) -> ChunkRecord:
        """Write chunk ``index``: ``tokens`` [chunk_rows, t, d], of which rows from ``rows`` on are 0. Its bytes are
        durable on return, its name only after `sync_names` or `finish`; several threads may write at once."""
        files = encoding.encode(tokens, self._form.dtype)
        for name, data in zip(layout.chunk_names(index, self._form.dtype), files, strict=True):
            self._root.write(f"{self._at}/{name}", data)
        return chunk_record(tokens, files, rows)

    def put_rest(self, index: int, tokens: NDArray[Any], rows: int) -> ChunkRecord:
        """Write the last chunk: the first ``rows`` rows of ``tokens`` [chunk_rows, t, d]; the others are set to 0."""
        tokens[rows:] = 0
        size = self._form.having(rows).chunk_rows if index == 0 else self._form.chunk_rows
        return self.put_chunk(index, tokens[:size], rows)

    def get_chunk(self, index: int, record: ChunkRecord, *, sure: bool = True) -> NDArray[Any] | None:
        """The rows [chunk_rows, t, d] of a whole written chunk, None if its files do not have the digests in
        ``record``; if not ``sure``, only their sizes are compared."""
        files = []
        for name, made in zip(layout.chunk_names(index, self._form.dtype), record.files, strict=True):
            try:
                raw = self._root.read(f"{self._at}/{name}", made.size)
            except (OSError, StoreError):
                return None
            if len(raw) != made.size or (sure and digest(raw) != made.digest):
                return None
            files.append(raw)
        return encoding.decode(files, self._form.dtype, self._form.tokens_shape)[:]

    def sync_names(self) -> None:
        """Make the names of the chunks durable."""
        for array in encoding.chunk_arrays(self._form.dtype):
            self._root.sync(f"{self._at}/{array}")

    def finish(self, chunks: Sequence[ChunkRecord], ids: Sequence[str], labels: NDArray[np.int32]) -> ShardRef:
        """Write everything but the chunks, durably, and return what the root manifest needs to name the shard.

        StoreWriteError, before anything is written, for more chunks than a shard's manifest can name.
        """
        made, files = describe(self._form.having(len(ids)), chunks, ids, labels)
        raw, ref = made.encode()
        for name, data in files.items():
            self._root.write(f"{self._at}/{name}", data)
        self._root.write(layout.manifest_file(self._at), raw)
        for folder in (*self._arrays, ""):
            self._root.sync(f"{self._at}/{folder}".rstrip("/"))
        return ref

    def put_all(self, rows: Iterable[NDArray[Any]], ids: Sequence[str], labels: NDArray[np.int32]) -> ShardRef:
        """Write the whole group from blocks of rows [b, t, d] of the right dtype, any b."""
        chunks: list[ChunkRecord] = []
        buffer = self.buffer()
        filled = 0
        for block in rows:
            while len(block):
                take = min(len(block), self._form.chunk_rows - filled)
                buffer[filled : filled + take] = block[:take]
                filled, block = filled + take, block[take:]
                if filled == self._form.chunk_rows:
                    chunks.append(self.put_chunk(len(chunks), buffer, filled))
                    filled = 0
        if filled:
            chunks.append(self.put_rest(len(chunks), buffer, filled))
        return self.finish(chunks, ids, labels)

    def buffer(self) -> NDArray[Any]:
        """A zeroed chunk [chunk_rows, t, d]."""
        return np.zeros((self._form.chunk_rows, *self._form.tokens_shape), encoding.rows_dtype(self._form.dtype))


def chunk_record(tokens: NDArray[Any], files: Sequence[Any], rows: int) -> ChunkRecord:
    """What a manifest says of the chunk ``tokens`` [chunk_rows, t, d], whose rows from ``rows`` on are 0, and which
    ``files`` encode."""
    largest = float(encoding.largest(tokens))
    own, *scales = (FileRef(digest(data), memoryview(data).nbytes) for data in files)
    return ChunkRecord(own.digest, own.size, largest, token_norm_sum(tokens[:rows]), *scales)


def describe(
    form: ShardForm, chunks: Sequence[ChunkRecord], ids: Sequence[str], labels: NDArray[np.int32]
) -> tuple[ShardManifest, dict[str, bytes]]:
    """The manifest of a shard with these rows, and the files of its group other than the chunks."""
    n, t = len(ids), form.tokens_shape[0]
    files = {
        "labels/c.0": labels.astype("<i4").tobytes(),
        "sample_id/c.0": layout.encode_ids(ids),
        **layout.metadata(n, form.tokens_shape, form.dtype, form.chunk_rows),
    }
    counts = np.bincount(labels)
    made = ShardManifest(
        version=layout.version_of(form.dtype),
        name=form.name,
        role=form.role,
        rows=n,
        tokens_shape=form.tokens_shape,
        dtype=form.dtype,
        chunk_rows=form.chunk_rows,
        statistics=Statistics(
            max_abs=max(chunk.max_abs for chunk in chunks),
            mean_token_norm=mean_token_norm([chunk.norm_sum for chunk in chunks], n * t),
            rows_per_class={str(k): int(counts[k]) for k in np.flatnonzero(counts)},
        ),
        objects={
            name: file
            for i, chunk in enumerate(chunks)
            for name, file in zip(layout.chunk_names(i, form.dtype), chunk.files, strict=True)
        }
        | {name: FileRef(digest(data), len(data)) for name, data in files.items()},
    )
    return made, files


def to_stored(tokens: ArrayLike, dtype: str, tokens_shape: tuple[int, int], ids: Sequence[str]) -> NDArray[Any]:
    """``tokens`` [b, t, d] of any float dtype as they will be read; DataError names the samples that do not fit."""
    given, kind = np.asarray(tokens), encoding.rows_dtype(dtype)
    if not len(ids) and given.size == 0:
        return np.empty((0, *tokens_shape), kind)
    if given.shape != (len(ids), *tokens_shape) or not np.issubdtype(given.dtype, np.floating):
        raise DataError(
            "rows must be floats [b, t, d] with one id each",
            got=f"{given.dtype} {list(given.shape)} for {counted(len(ids), 'id')} and [t, d] = {list(tokens_shape)}",
        )
    with np.errstate(over="ignore", under="ignore"):
        stored = np.ascontiguousarray(given, kind)
    if encoding.fits(stored, dtype):
        return encoding.as_read(stored, dtype)
    bad = [k for k, row in enumerate(stored) if not encoding.fits(row, dtype)]
    row = given[bad[0]]
    if np.isfinite(row).all():
        worst = float(np.abs(row).max())
        what, cure = f"|x| up to {worst:.6g} overflows {dtype}", "store float32, or normalise the features"
    else:
        what, cure = "NaN" if np.isnan(row).any() else "Inf", "look at that sample and at the backbone's output"
    raise DataError(
        "features must be finite to be stored",
        got=f"sample {ids[bad[0]]!r}: {what}"
        + (f" ({counted(len(bad), 'sample')} in this batch)" if len(bad) > 1 else ""),
        do=cure,
    )


def mean_token_norm(sums: Iterable[float], tokens: int) -> float:
    """Of so many tokens, from ``token_norm_sum`` of each chunk."""
    # nine digits: the order of additions inside one token's norm changes only later ones
    return float(f"{math.fsum(sums) / tokens:.9g}")


def token_norm_sum(tokens: NDArray[Any]) -> float:
    """Σ over rows and tokens of ‖x‖₂, in float64; the outer sum is exact, so it does not depend on their order."""
    norms: list[float] = []
    for row in tokens:  # one row at a time stays in the cache
        wide = row.astype(np.float64)
        norms += np.sqrt(np.vecdot(wide, wide)).tolist()
    return math.fsum(norms)
