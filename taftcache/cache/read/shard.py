"""Reading one shard: every byte verified before it is first handed out, mapped without a copy afterwards."""

from __future__ import annotations

import os
import resource
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from mmap import mmap
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taftcache.cache.format import encoding, layout
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.encoding import Chunk
from taftcache.cache.format.fault import Fault, problem_of, read_named, unreadable
from taftcache.cache.format.layout import FileRef, ShardManifest
from taftcache.cache.format.manifest import Role, ShardRef
from taftcache.cache.place.failure import AVOID
from taftcache.cache.place.home import Home
from taftcache.errors import FormatError, StoreError
from taftcache.names import counted

if TYPE_CHECKING:
    import zarr


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows ``start .. start + b`` of a shard: ``tokens`` [b, t, d] and ``labels`` [b], both read-only."""

    start: int
    tokens: NDArray[np.floating[Any]]
    labels: NDArray[np.int32]


class Shard:
    """One shard of an open store: ``len(shard)`` rows of ``tokens_shape`` (t, d).

    Nothing is read until it is asked for. A file's digest is checked the first time it is touched through this object;
    IntegrityError names the shard, array, chunk and file of what is damaged or missing.
    """

    def __init__(self, root: Home, ref: ShardRef, at: str | None = None) -> None:
        self.name, self.rows, self.digest = ref.name, ref.rows, ref.digest
        self.role = cast(Role, ref.role)  # a manifest with another is refused
        self._root, self._ref = root, ref
        self.at = ref.path if at is None else at
        self._verified: set[str] = set()
        self._maps: dict[str, Any] = {}
        self._chunks: dict[int, Chunk] = {}  # those whose files are all mapped
        weakref.finalize(self, _descriptors.give, self._maps)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, (self._root, self._ref, self.at)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"<Shard {self.name}: {counted(self.rows, 'row')}, {self.role}, {self.digest[:16]}>"

    @cached_property
    def manifest(self) -> ShardManifest:
        """The shard manifest, verified against the root manifest, and the group's metadata against it."""
        for name, text in self._metadata().items():
            if self._bytes(name) != text:
                raise FormatError(f"{self.at}/{name} is not the one text that its shape has", do=AVOID)
        return self.listing

    @cached_property
    def listing(self) -> ShardManifest:
        """The shard manifest alone, verified: which files there are, before any of them is read."""
        raw = read_named(self._root, self.manifest_file, layout.MAX_BYTES, self.digest, "the root manifest", self.name)
        return ShardManifest.decode(raw, self._ref)

    @property
    def store_path(self) -> Path:
        """The place of the store that it is part of."""
        return self._root.path

    @property
    def manifest_file(self) -> str:
        """Where the shard manifest lies, below the store."""
        return layout.manifest_file(self.at)

    @property
    def tokens_shape(self) -> tuple[int, int]:
        """(t, d): tokens per row, features per token."""
        return self.manifest.tokens_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of rows as readers get them: float16 or float32."""
        return encoding.rows_dtype(self.stored_as)

    @property
    def stored_as(self) -> str:
        """What its files hold: "float16", "float32", or "int8" with a scale for each token."""
        return self.manifest.dtype

    @property
    def chunk_rows(self) -> int:
        """Rows per chunk file."""
        return self.manifest.chunk_rows

    @property
    def statistics(self) -> dict[str, Any]:
        """``max_abs``, ``mean_token_norm``, and ``rows_per_class`` (class index -> rows, for classes that have any)."""
        made = self.manifest.statistics
        per_class = {int(k): n for k, n in made.rows_per_class.items()}
        return {
            "max_abs": made.max_abs,
            "mean_token_norm": made.mean_token_norm,
            "rows_per_class": dict(sorted(per_class.items())),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all of the shard's files, by their manifests."""
        return sum(part.size for part in self.listing.objects.values()) + len(canonical(self.listing))

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """The rows' labels, int32 [n], read-only."""
        return np.frombuffer(self.read("labels/c.0"), "<i4").astype(np.int32, copy=False)

    @cached_property
    def sample_ids(self) -> list[str]:
        """The rows' sample ids, in row order."""
        ids = layout.decode_ids(self.read("sample_id/c.0"), self.rows)
        if ids is None:
            raise FormatError(f"shard {self.name} does not have one sample id for each row", do=AVOID)
        return ids

    def group(self) -> zarr.Group:
        """The shard as a read-only Zarr group whose every read is verified (for tools; `blocks` is faster)."""
        from taftcache.cache.read.zarr_view import open_group

        def read(name: str) -> bytes:
            if name == "sample_id/c.0":
                self.sample_ids  # noqa: B018  Zarr would allocate whatever count the file declares
            return self.read(name)

        return open_group(self.name, self.manifest.objects, read)

    def blocks(self, size: int = 256, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        """Rows ``start .. stop`` in order, in blocks of ``size`` (the last may be shorter) that begin at ``start``.

        The blocks are the same whatever the chunk size. A block within one chunk is a view of the mapped file, so
        ``size=shard.chunk_rows`` reads at nearly the speed of memory; other blocks, and rows in 8 bits, are copies.
        Meanwhile a few threads verify the next chunks (or fetch them, from a bucket).
        """
        if size < 1:
            raise ValueError(f"a block must have at least one row, not {size}")
        first, last, _ = slice(start, stop).indices(self.rows)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="taftcache-verify") as pool:
            chunks = _Ahead(self, pool, last)
            for at in range(first, last, size):
                end = min(at + size, last)
                yield RowBlock(at, self._span(at, end, chunks.get), self.labels[at:end])

    def tokens(self, rows: slice | ArrayLike) -> NDArray[np.floating[Any]]:
        """Tokens [b, t, d] of a slice (a read-only view where it lies in one chunk of floats) or of an array of row
        numbers."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.rows)
            if step == 1:
                return self._span(start, max(start, stop), self._chunk)
            rows = np.arange(start, stop, step)
        index = np.asarray(rows)
        if index.dtype == bool or index.ndim != 1 or not (index.size == 0 or np.issubdtype(index.dtype, np.integer)):
            raise IndexError(f"rows are a slice or a vector of row numbers, not {index.dtype} {list(index.shape)}")
        index = index.astype(np.int64)
        index = np.where(index < 0, index + self.rows, index)
        if index.size and not (index.min() >= 0 and index.max() < self.rows):
            raise IndexError(f"shard {self.name} has rows 0 to {self.rows - 1}")
        out = np.empty((len(index), *self.tokens_shape), self.dtype)
        chunks = index // self.chunk_rows
        for chunk in np.unique(chunks):
            here = chunks == chunk
            out[here] = self._chunk(int(chunk))[index[here] % self.chunk_rows]
        return out

    def moved_to(self, root: Home, at: str) -> None:
        """Take note that a commit put the shard at ``at``."""
        self._root, self.at = root, at

    def read(self, name: str) -> bytes:
        """The verified bytes of one file of the shard, as `ShardManifest.objects` names it."""
        self.manifest  # noqa: B018  verifies the group's metadata first
        return self._bytes(name)

    def check(self, name: str) -> Fault | None:
        """Read one file of the shard from the disk and say what is wrong with it."""
        made = self.listing
        part = made.objects[name]
        try:
            data = self._view(name, part.size)
        except _Damaged as damage:
            return damage.fault
        except FormatError as error:
            return self.fault(name, problem_of(error))
        if digest(data) != part.digest:
            return self.fault(name, _CHANGED)
        if layout.is_metadata(name):
            right = bytes(data) == self._metadata()[name]
            return None if right else self.fault(name, "it is not the one text that its shape has")
        (array, chunk), problem = _place(name), None
        if chunk is None or array not in encoding.chunk_arrays(made.dtype):
            return None
        if (chunk + 1) * made.chunk_rows > self.rows:
            row = len(data) // made.chunk_rows
            if np.frombuffer(data, np.uint8)[(self.rows - chunk * made.chunk_rows) * row :].any():
                return self.fault(name, "there is something in the padding after the last row")
        if array == "scales":
            problem = encoding.scales_fault(data)
        else:
            with suppress(StoreError):  # damaged scales are reported as their own file's fault
                rest = [self._mapped(other) for other in layout.chunk_names(chunk, made.dtype)[1:]]
                problem = encoding.rows_fault(encoding.decode([data, *rest], made.dtype, made.tokens_shape))
        return None if problem is None else self.fault(name, problem)

    def _metadata(self) -> dict[str, bytes]:
        made = self.listing
        return layout.metadata(made.rows, made.tokens_shape, made.dtype, made.chunk_rows)

    def _bytes(self, name: str) -> bytes:
        part, data = self._part(name)
        if digest(raw := bytes(data)) != part.digest:
            raise self.fault(name, _CHANGED).error()
        return raw

    @property
    def _threads(self) -> int:
        """Enough to keep the processors hashing; more for a bucket, where each answer takes a while."""
        return max(2, min(4, os.cpu_count() or 1)) if self._root.stable else 8

    def _span(self, start: int, stop: int, chunk: Callable[[int], Chunk]) -> NDArray[Any]:
        if start >= stop:
            return np.empty((0, *self.tokens_shape), self.dtype)
        c = self.chunk_rows
        parts = [chunk(k)[max(start - k * c, 0) : min(stop - k * c, c)] for k in range(start // c, -(-stop // c))]
        if len(parts) == 1:
            return parts[0]
        joined = np.concatenate(parts)
        joined.flags.writeable = False
        return joined

    def _chunk(self, index: int) -> Chunk:
        """Chunk ``index``, whose rows are taken by a slice or an index."""
        if (made := self._chunks.get(index)) is not None:
            return made
        names = layout.chunk_names(index, self.stored_as)
        rows = encoding.decode([self._mapped(name) for name in names], self.stored_as, self.tokens_shape)
        if all(name in self._maps for name in names):
            self._chunks[index] = rows
        return rows

    def _mapped(self, name: str) -> Any:
        """The verified bytes of one of a chunk's files."""
        if name in self._maps:
            return self._maps[name]
        part, data = self._part(name)
        if name not in self._verified or not self._root.stable:
            if digest(data) != part.digest:
                raise self.fault(name, _CHANGED).error()
            if name.startswith("scales/") and (problem := encoding.scales_fault(data)):
                raise self.fault(name, problem).error()
            self._verified.add(name)
        # Files beyond what may be kept are mapped anew at each pass. First come, first kept: passes go round and
        # round, and dropping the least recently used would drop each file just before it is due.
        if self._root.stable and isinstance(data, mmap):  # copies would fill the memory
            _descriptors.keep(self._maps, name, data)
        return data

    def _part(self, name: str) -> tuple[FileRef, Any]:
        part = self.listing.objects[name]
        try:
            return part, self._view(name, part.size)
        except _Damaged as damage:
            raise damage.fault.error() from None

    def _view(self, name: str, size: int) -> Any:
        try:
            found, data = self._root.view(f"{self.at}/{name}", size)
        except OSError as error:
            raise _Damaged(self.fault(name, unreadable(self._root, f"{self.at}/{name}", error))) from None
        if data is None:
            raise _Damaged(self.fault(name, f"it has {found} bytes, and the shard manifest declares {size}"))
        return data

    def fault(self, name: str, problem: str) -> Fault:
        """The fault of one of the shard's files, given by its name in the shard."""
        array, chunk = _place(name)
        return Fault(shard=self.name, array=array, chunk=chunk, file=f"{self.at}/{name}", problem=problem)


class _Ahead:
    """The chunks of one pass: those that come next are asked for by threads, and kept while a block needs them."""

    def __init__(self, shard: Shard, pool: ThreadPoolExecutor, last: int) -> None:
        self._shard, self._pool = shard, pool
        self._end = layout.chunk_count(last, shard.chunk_rows)
        self._coming: dict[int, Future[Chunk]] = {}

    def get(self, index: int) -> Chunk:
        """Chunk ``index``; called in order. If fetching it ahead failed, the error is raised here."""
        coming = self._coming
        for old in [k for k in coming if k < index]:
            del coming[old]
        for k in range(index, min(index + 1 + self._shard._threads, self._end)):
            if k not in coming and k not in self._shard._chunks:
                coming[k] = self._pool.submit(self._shard._chunk, k)
        return coming[index].result() if index in coming else self._shard._chunk(index)


class _Descriptors:
    """How many more chunks may stay mapped: each map holds one of the process's file descriptors."""

    def __init__(self) -> None:
        self._left = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, 16384)
        self._lock = Lock()

    def keep(self, maps: dict[str, Any], name: str, data: Any) -> None:
        """Keep a file among a shard's maps if one more may stay; if several threads bring the same file, one counts."""
        with self._lock:
            if self._left > 0 and name not in maps:
                maps[name] = data
                self._left -= 1

    def give(self, maps: dict[str, Any]) -> None:
        with self._lock:
            self._left += len(maps)


_descriptors = _Descriptors()


class _Damaged(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


_CHANGED = "its bytes do not have the digest that the shard manifest names"


def _place(name: str) -> tuple[str | None, int | None]:
    """(array, chunk) of one of a shard's files."""
    array, _, leaf = name.rpartition("/")
    chunk = leaf.split(".")[1] if leaf.startswith("c.") else None
    return array or None, None if chunk is None else int(chunk)
