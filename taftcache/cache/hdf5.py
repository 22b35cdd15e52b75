"""Features in HDF5 files, in both directions; a file that someone else made is looked at before a row is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from taftcache.cache.copying import gone_on_with
from taftcache.cache.format import layout
from taftcache.cache.format.digest import canonical, digest, too_deep
from taftcache.cache.format.encoding import DTYPES, rows_dtype
from taftcache.cache.format.parts import Skipped
from taftcache.cache.read.verify import OnProgress
from taftcache.cache.room import check_room, taken_bytes
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import OF_IMAGES, DataError, FormatError, StaleStore, StoreError, check_file
from taftcache.foreign_hdf5 import (
    CACHE,
    attribute,
    check_band,
    check_own,
    filters_of,
    has_only_texts,
    node_of,
    read_whole,
)
from taftcache.names import BASE, FROM_EXPORT, counted

FORMAT = "taftcache-features"
VERSIONS = (1, 2)
"""The versions that are read; the last is written. Version 1 does not say how rows were stored: as they are there."""
MAX_TEXT = 64 << 20
_TEXTS = ("identity", "plan", "recipe", "skipped", "objects")


def export(store: FeatureStore, file: str | os.PathLike[str], progress: OnProgress | None = None) -> int:
    """Write all rows of ``store`` to a new HDF5 file, the same one from the same store; how many bytes it has.

    ``/shards/<name>/tokens`` [n, t, d], ``labels`` int32 [n], ``sample_id`` UTF-8 [n]; ``/classes``; the base's files;
    identity, plan, recipe and skipped samples as JSON. Components, ledger and tombstones are not features and stay.

    Raises:
        IntegrityError: a damaged row. OSError: the file is there already, or the disk is full.
    """
    total, done = sum(ref.rows for ref in store.manifest.shards), 0
    with h5py.File(file, "x", libver="v110") as out:  # "x" follows no link at that place
        out.attrs["format"], out.attrs["version"] = FORMAT, VERSIONS[-1]
        out.attrs["root_digest"] = store.root_digest
        out["classes"] = np.array(store.classes, dtype=h5py.string_dtype())
        for name, value in _texts(store).items():
            out[name] = np.frombuffer(canonical(value), np.uint8)
        for name in store.objects(BASE):
            folder, _, leaf = f"files/{name}".rpartition("/")
            # made here, because one that HDF5 makes on the way to a dataset says when
            out.require_group(folder)[leaf] = np.frombuffer(store.read_object(name), np.uint8)
        for shard in store.every_shard:
            group = out.create_group(f"shards/{shard.name}")
            group.attrs["role"], group.attrs["digest"] = shard.role, shard.digest
            group.attrs["chunk_rows"] = shard.chunk_rows
            group.attrs["stored_as"] = shard.stored_as
            group["labels"] = shard.labels
            group["sample_id"] = np.array(shard.sample_ids, dtype=h5py.string_dtype())
            tokens = group.create_dataset("tokens", (shard.rows, *shard.tokens_shape), shard.dtype)
            for block in shard.blocks(shard.chunk_rows):
                tokens[block.start : block.start + len(block.labels)] = block.tokens
                done += len(block.labels)
                if progress:
                    progress(done, total)
    return os.path.getsize(file)


class FeatureFile:
    """An HDF5 file of features, open for reading: ``is_export``, or someone else's ``rows`` and ``column``.

    DataError for whatever could make a reader read anything but the file's own rows: links to other files, external or
    virtual storage, filters that load plug-ins, chunks that were never written and would read as zeros; and for what
    would unpack to far more than the file. ``scratch``: the folder in which rows are unpacked, if they are packed.
    """

    def __init__(self, file: str | os.PathLike[str], scratch: Path | None = None) -> None:
        self.path, self.scratch = Path(file), scratch
        check_file(self.path, of_folder=OF_IMAGES)
        if not h5py.is_hdf5(self.path):
            raise DataError(
                f"cannot read {self.path}: it is not HDF5",
                got=f"a file ending in {self.path.suffix or 'nothing'}",
                do="HDF5, or vectors as .npy, .npz, .parquet, .csv or .tsv; of a tensor np.save(file, tensor)",
            )
        with self._reading():
            self._file = h5py.File(self.path, "r", rdcc_nbytes=CACHE)
        try:
            with self._reading():
                form, version = attribute(self._file, "format"), attribute(self._file, "version")
                self.is_export = isinstance(form, str) and form == FORMAT
                if self.is_export and not (isinstance(version, np.integer) and version in VERSIONS):
                    raise FormatError(
                        f"{self.path} is of version {version!r} of {FORMAT!r}, and only versions"
                        f" {' and '.join(map(str, VERSIONS))} are imported",
                    )
                if self.is_export:
                    self._open_export(version)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        with self._reading():
            return name in self._file

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def file(self, name: str) -> bytes:
        """The bytes of an exported object."""
        with self._reading():
            return self._bytes(f"files/{name}")

    def _open_export(self, version: int) -> None:
        texts = {name: self._json(name) for name in _TEXTS}
        self.identity, self.plan, self.recipe = texts["identity"], texts["plan"], texts["recipe"]
        self.skipped = _typed(texts["skipped"], list[Skipped], "skipped")
        self.objects = _typed(texts["objects"], dict[str, _Object], "objects")
        self.classes = self._strings("classes")
        self.shards: dict[str, ExportedShard] = {}
        group = self._node("shards")
        if not isinstance(group, h5py.Group):
            raise _bad(self.path, "shards is no group")
        for name in sorted(group):
            shard = self._node(f"shards/{name}")
            tokens = self.rows(f"shards/{name}/tokens")
            labels, ids = self.column(f"shards/{name}/labels"), self._strings(f"shards/{name}/sample_id")
            if (
                tokens.ndim != 3
                or tokens.dtype.name not in ("float16", "float32")
                or labels.dtype.kind not in "iu"
                or labels.shape != (len(ids),)
                or len(tokens) != len(ids)
            ):
                raise _bad(self.path, f"shards/{name} is not what an export writes")
            layout.check_shape(tokens.shape[1:], "float32", 1)
            role, wanted, rows = (attribute(shard, key) for key in ("role", "digest", "chunk_rows"))
            if not (isinstance(role, str) and isinstance(wanted, str) and isinstance(rows, np.integer)):
                raise _bad(self.path, f"shards/{name} lacks role, digest or chunk_rows")
            kept_as = tokens.dtype.name if version == VERSIONS[0] else attribute(shard, "stored_as")
            if not isinstance(kept_as, str) or kept_as not in DTYPES or rows_dtype(kept_as) != tokens.dtype:
                raise _bad(self.path, f"shards/{name} does not say as what its rows are stored")
            self.shards[name] = ExportedShard(tokens, labels.astype(np.int64), ids, role, wanted, int(rows), kept_as)

    def rows(self, name: str) -> StoredRows:
        """A dataset of numbers, whole and in this file."""
        with self._reading():
            check_band(dataset := self._dataset(name), name, self.size)
            return StoredRows(self, dataset)

    def column(self, name: str) -> NDArray[Any]:
        """A small dataset: its values, texts as objects."""
        with self._reading():
            if h5py.check_string_dtype(self._dataset(name).dtype) is None:
                return self._whole(name)
            return np.array(self._strings(name), dtype=object)

    def names(self) -> list[str]:
        """The full name of every group, dataset and link."""
        names = list[str | bytes]()
        with self._reading():
            self._file.visit_links(names.append)
        return [name if isinstance(name, str) else name.decode("utf-8", "replace") for name in names]

    def arrays(
        self, is_wanted: Callable[[str, tuple[int, ...], np.dtype[Any]], bool]
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Every dataset that is wanted by its name, shape and dtype (texts have objects); DataError for one that has
        other objects."""
        names = list[str]()
        with self._reading():
            self._file.visit(names.append)  # follows no links
        for name in names:
            with self._reading():
                node = self._node(name)
                if not isinstance(node, h5py.Dataset) or node.shape is None:
                    continue
                if not has_only_texts(node.dtype):
                    raise _bad(self.path, f"{name} has neither numbers nor texts")
                if is_wanted(last := name.rpartition("/")[2], node.shape, node.dtype):
                    yield last, self._whole(name)

    def _strings(self, name: str) -> list[str]:
        dataset = self._dataset(name)
        if h5py.check_string_dtype(dataset.dtype) is None or dataset.ndim != 1:
            raise _bad(self.path, f"{name} is {dataset.dtype} {list(dataset.shape)}, not a list of texts")
        try:
            return [text.decode() for text in self._whole(name).tolist()]
        except UnicodeDecodeError:
            raise _bad(self.path, f"{name} is not UTF-8") from None

    def _bytes(self, name: str) -> bytes:
        dataset = self._dataset(name)
        if dataset.dtype != np.uint8 or dataset.ndim != 1 or dataset.nbytes > layout.MAX_CHUNK_BYTES:
            raise _bad(self.path, f"{name} is {dataset.dtype} {list(dataset.shape)}, not bytes")
        return self._whole(name).tobytes()

    def _json(self, name: str) -> Any:
        raw = self._bytes(name)
        try:
            value = msgspec.json.decode(raw if len(raw) <= MAX_TEXT else b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _bad(self.path, f"{name} is not JSON") from None
        if too_deep(raw):
            raise _bad(self.path, f"lists and mappings of {name} are too deep")
        return value

    def _node(self, name: str) -> h5py.Group | h5py.Dataset:
        node = node_of(self._file, name)
        if node is None:
            top = ", ".join(str(key) for key in list(self._file)[:8])  # keys that are not UTF-8 are bytes
            raise _bad(self.path, f"there is no {name}; at the top: {top or 'nothing'}")
        return node

    def _dataset(self, name: str) -> h5py.Dataset:
        """A dataset that lies entirely in this file."""
        node = self._node(name)
        if not isinstance(node, h5py.Dataset) or node.shape is None:
            raise _bad(self.path, f"{name} is no dataset")
        check_own(node, name, self.size)
        return node

    def _whole(self, name: str) -> NDArray[Any]:
        """All values of a dataset that is not vast."""
        return read_whole(self._dataset(name), name, self.size)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:  # h5py's, for damaged or odd files
            raise _bad(self.path, f"{error}") from error


class StoredRows:
    """Numbers [n, d] or [n, t, d] of a ``FeatureFile``, read when they are asked for.

    Rows in packed chunks are written to a file without a name first, because stores take rows in an order of their own,
    and a chunk would be unpacked anew for each.
    """

    def __init__(self, file: FeatureFile, dataset: h5py.Dataset) -> None:
        self._file, self._dataset = file, dataset
        self.dtype, self.shape, self.ndim, self.size = dataset.dtype, dataset.shape, dataset.ndim, dataset.size

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: slice | Sequence[int]) -> NDArray[Any]:
        rows = self._unpacked
        with self._file._reading():
            if isinstance(index, slice):
                return np.asarray(rows[index])
            return np.stack([rows[i] for i in index])

    @cached_property
    def _unpacked(self) -> h5py.Dataset | NDArray[Any]:
        if self._dataset.chunks is None or not filters_of(self._dataset):
            return self._dataset
        with tempfile.TemporaryFile(dir=self._file.scratch) as spool:
            for at in range(0, len(self), step := check_band(self._dataset, self._dataset.name, self._file.size)):
                with self._file._reading():
                    rows = self._dataset[at : at + step]
                spool.write(rows.data)
            spool.flush()
            return np.memmap(spool, self.dtype, "r", 0, self.shape)


class _Object(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exported object, all that is said of it in ``meta``."""

    path: str
    digest: str
    size: int
    meta: dict[str, Any]


@dataclass(frozen=True)
class ExportedShard:
    """One exported shard: its rows, the digest that it had, and the form in which its rows were stored."""

    tokens: StoredRows
    labels: NDArray[np.int64]
    ids: list[str]
    role: str
    digest: str
    chunk_rows: int
    stored_as: str


def restore(file: FeatureFile, path: str | os.PathLike[str], progress: OnProgress | None = None) -> FeatureStore:
    """The store of an export, open for writing: shards with the bytes and digests that they had, and the base.

    IntegrityError if rows in the file are not those that were exported; StaleStore, before anything is made, if some of
    them were forgotten at ``path``. An import that was cut off goes on.
    """
    everyone = (i for part in file.shards.values() for i in part.ids)
    if back := TombstoneFile(path).match([*everyone, *(s.id for s in file.skipped)], ()):
        raise StaleStore(
            f"cannot import {file.path}: {counted(len(back), 'sample')} of it forgotten at {path}, and an export is"
            " imported as a whole",
            do="import it into a new folder, and forget them there",
        )
    if not FeatureStore.exists(path):
        sizes = list[int]()
        for part in file.shards.values():
            sizes += layout.least_sizes([len(part.ids)], part.tokens.shape[1:], part.stored_as, part.chunk_rows)
        check_room(path, taken_bytes(path, sizes))
    plan = {**file.plan, FROM_EXPORT: True}
    said = {"identity": file.identity, "classes": file.classes, "plan": plan, "recipe": file.recipe}
    with gone_on_with(path, said) as store:
        total, done = sum(len(part.ids) for part in file.shards.values()), 0
        for name, part in file.shards.items():
            left_out = [s for s in file.skipped if s.shard == name]
            if store.has_shard(name) and store.shard(name).digest != part.digest:
                raise StoreError(
                    f"{store.path} holds other rows than {file.path}",
                    got=f"shard {name} has digest {store.shard(name).digest[:16]}, exported was {part.digest[:16]}",
                    do="import it into a new folder",
                )
            if not store.has_shard(name):
                with store.writer(
                    name,
                    part.role,
                    chunk_rows=part.chunk_rows,
                    dtype=part.stored_as,
                    tokens_shape=part.tokens.shape[1:],
                    candidates=[*part.ids, *(s.id for s in left_out)],
                    pad=True,
                ) as writer:
                    for at in range(writer.consumed, len(part.ids), part.chunk_rows):
                        stop = min(at + part.chunk_rows, len(part.ids))
                        writer.append(part.tokens[at:stop], part.ids[at:stop], part.labels[at:stop])
                        if progress:
                            progress(done + stop, total)
                    if writer.consumed == len(part.ids):
                        writer.append(np.empty(0), [], [], left_out)
                    writer.commit(expect=part.digest)
            done += len(part.ids)
        with store.transaction() as change:
            for name, ref in file.objects.items():
                data = file.file(name)
                if digest(data) != ref.digest:
                    raise _bad(file.path, f"files/{name} does not have the digest that it was exported with")
                change.put(name, data, ref.meta, suffix=Path(ref.path).suffix)
    return store


def _texts(store: FeatureStore) -> dict[str, Any]:
    named = store.manifest
    return {
        "identity": named.identity,
        "plan": named.plan,
        "recipe": named.recipe,
        "skipped": list(named.skipped),
        "objects": {n: _Object(o.path, o.digest, o.size, store.meta(n)) for n, o in store.objects(BASE).items()},
    }


def _typed(value: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{name} is not what an export writes", got=str(error)) from None


def _bad(path: Path, what: str) -> DataError:
    return DataError(
        f"cannot read {path}: {what}",
        do="name the datasets (--vectors, --labels, --ids), or write the file anew with plain arrays in it, in chunks"
        " of a few rows (h5repack -l)",
    )
