"""Repairing what is damaged: bytes that are made again count only if they have the digest that the manifest names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format import encoding, layout
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.fault import Fault
from taftcache.cache.format.layout import ShardManifest
from taftcache.cache.format.ledger import KEY_FILE
from taftcache.cache.format.manifest import ShardRef
from taftcache.cache.format.naming import DERIVED
from taftcache.cache.format.parts import Tombstones
from taftcache.cache.format.plan import MAX_ID_BYTES
from taftcache.cache.place.folder import PRIVATE
from taftcache.cache.place.home import Home
from taftcache.cache.read.shard import Shard
from taftcache.cache.write.commit import Committer
from taftcache.cache.write.group import GroupWriter, ShardForm, chunk_record, describe, to_stored
from taftcache.cache.write.transaction import Transaction
from taftcache.errors import DataError, StoreError, StoreWriteError, TaftcacheError
from taftcache.names import counted

REPAIR = "staging/repair"
_ROWS_AT_ONCE = 64


class Maker(Protocol):
    """Makes contents of a store again from its data. If it raises a TaftcacheError, the damaged file stays as it is."""

    def members(self, shard: str) -> Sequence[str]:
        """Ids, in row order, of the samples that can be a shard's rows: all its rows, if the data is unchanged."""
        ...

    def labels(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Labels, by id, of those of ``ids`` that are in the data now."""
        ...

    def rows(self, shard: str, ids: Sequence[str]) -> NDArray[Any]:
        """The rows [len(ids), t, d] of these samples."""
        ...

    def layout(self, shard: str) -> tuple[tuple[int, int], str, int]:
        """(t, d), dtype and rows per chunk of a shard's tokens."""
        ...

    def object(self, name: str) -> bytes | None:
        """The bytes of an object, or None if it cannot be made again."""
        ...


@dataclass(frozen=True)
class Repaired:
    """``mended``: file -> where its bytes came from. ``dropped``: objects that are no longer named. ``left``: file ->
    why it is damaged still."""

    mended: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def repair(committer: Committer, faults: Sequence[Fault], maker: Maker | None) -> Repaired:
    """Repair the files that ``faults`` (of `FeatureStore.verify`) name, by way of the store's ``committer``.

    Metadata comes from the shard's manifest, a lost shard manifest from the group's files; chunks, labels and ids come
    from ``maker`` (chunks and labels for the ids that the shard has). Bytes are put in place, file by file and durably,
    only if they have the digest that the manifest names, so the root digest stays. Damaged components and models, which
    training makes again from the rows, are dropped in a commit, and so are damaged curves. Tombstones and their key
    come from the file beside the store. The rest is left, with the reason.
    """
    done = Repaired()
    committer.check_no_transaction("repair the store")
    committer.check_no_writer("repair the store")
    objects = dict(sorted(committer.manifest.objects.items()))
    damaged = {f.file for f in faults}
    try:
        for ref in committer.manifest.shards:
            if any(f.shard == ref.name for f in faults):
                _DamagedShard(committer, ref, maker, done).repair()
        for name, thing in objects.items():
            if thing.path in damaged:
                _repair_object(committer, name, maker, done)
    finally:
        committer.staging.remove(REPAIR)
    gone = {objects[name].path for name in done.dropped}
    curves = _repair_lists(committer, damaged, done)
    if done.dropped or curves:
        with Transaction(committer) as change:
            for name in done.dropped:
                change.drop(name)
            for name in set(curves) - set(done.dropped):
                change.drop_curve(name)
    for file in damaged - done.mended.keys() - gone:
        done.left.setdefault(file, _LOST)
    return done


def hopeless(faults: Sequence[Fault], has_data: bool) -> dict[str, str]:
    """The files that a repair cannot mend, with the reason; ``has_data``: whether it would have a `Maker`."""

    def of_data(file: str) -> bool:
        return file.startswith("base/") or "/c." in file

    return {f.file: _LOST for f in faults if not f.is_mendable or (of_data(f.file) and not has_data)}


def _repair_object(committer: Committer, name: str, maker: Maker | None, done: Repaired) -> None:
    ref = committer.manifest.objects[name]
    try:
        data = None if maker is None else maker.object(name)
    except TaftcacheError as error:
        done.left[ref.path] = str(error)
        return
    if data is not None:
        _put(committer.root, ref.path, ref.digest, data, "made again", done)
    elif name.partition("/")[0] in DERIVED:
        done.dropped.append(name)


def _repair_lists(committer: Committer, damaged: set[str], done: Repaired) -> list[str]:
    """Take the tombstones and their key from the file beside the store; returns the objects whose curves are lost."""
    root, named = committer.root, committer.manifest
    own, how = named.tombstones.part, "from the file beside the store"
    for key, hashes in committer.tombstone_file.beyond(()).items():
        if digest(key) != named.tombstone_key:  # that of another store that was here
            continue
        if KEY_FILE in damaged:
            _put(root, KEY_FILE, named.tombstone_key, key, how, done, PRIVATE)
        part = Tombstones.of(hashes).part
        if own is not None and own.ref.path in damaged and part is not None and part.ref == own.ref:
            _put(root, own.ref.path, own.ref.digest, part.data(), how, done)
    curves = {name: ref.curve.ref.path for name, ref in named.objects.items() if ref.curve is not None}
    lost = [name for name, path in curves.items() if path in damaged]
    done.mended.update((curves[name], f"left out: it said how the solve of {name} went, which stays") for name in lost)
    return lost


def _put(root: Home, file: str, wanted: str, data: Any, how: str, done: Repaired, mode: int | None = None) -> bool:
    """Put ``data`` in the place of ``file``, with the permissions ``mode`` if given, if it is what the manifest
    names."""
    if (got := digest(data)) != wanted:
        done.left[file] = f"what was made again has the digest {got[:16]}, not {wanted[:16]}: {_OTHER}"
        return False
    root.put(file, data, mode=mode)
    done.mended[file] = how
    return True


_LOST = "nothing else says what its bytes were: restore it from a copy"
_OTHER = "the data or its labels, the weights or the libraries are not those of the store; nothing was written"


class _DamagedShard:
    """One damaged shard."""

    def __init__(self, committer: Committer, ref: ShardRef, maker: Maker | None, done: Repaired) -> None:
        self._root, self._staging = committer.root, committer.staging
        self._ref, self._maker, self._done = ref, maker, done

    def repair(self) -> None:
        shard = Shard(self._root, self._ref)
        try:
            made = shard.listing
        except StoreError:
            rebuilt = self._rebuild()
            if rebuilt is None:
                self._all_again()
                return
            file = layout.manifest_file(self._ref.path)
            _put(
                self._root, file, self._ref.digest, canonical(rebuilt), "made again from the shard's files", self._done
            )
            made = rebuilt
        damaged = [name for name in made.objects if Shard(self._root, self._ref).check(name)]
        texts = layout.metadata(made.rows, made.tokens_shape, made.dtype, made.chunk_rows)
        for name in damaged:
            if name in texts:
                self._put(made, name, texts[name], "written from the shard manifest")
        for name, column in (("sample_id/c.0", self._ids), ("labels/c.0", partial(self._labels, made))):
            if name in damaged:
                self._try(made, name, column, "from the data source")
        for name in damaged:
            if name.startswith(tuple(f"{array}/c." for array in encoding.chunk_arrays(made.dtype))):
                self._try(made, name, partial(self._chunk, made, name), "extracted again")

    def _try(self, made: ShardManifest, name: str, make: Callable[[], Any], how: str) -> None:
        try:
            data = make()
        except StoreWriteError:
            raise
        except TaftcacheError as error:
            self._done.left[f"{self._ref.path}/{name}"] = str(error)
        else:
            if data is not None:
                self._put(made, name, data, how)

    def _put(self, made: ShardManifest, name: str, data: Any, how: str) -> None:
        _put(self._root, f"{self._ref.path}/{name}", made.objects[name].digest, data, how, self._done)

    def _ids(self) -> bytes | None:
        return None if self._maker is None else layout.encode_ids(self._members(self._maker, ()))

    def _members(self, maker: Maker, stated: Sequence[str]) -> Sequence[str]:
        """The rows' ids: those ``stated`` by an unverified file if they are possible, else all possible ones."""
        name, rows = self._ref.name, self._ref.rows
        ids = maker.members(name)
        if len(stated) == rows and set(stated) <= set(ids):
            return stated
        if len(ids) != rows:
            raise DataError(
                f"which images are the rows of shard {name} is not known: its ids are lost, and images "
                + ("that the store does not have were added to the data" if len(ids) > rows else "left the data"),
                got=f"{counted(len(ids), 'image')} that can be, for {counted(rows, 'row')}",
                do="name a place that has the images of the store and no others: --set data.train=…",
            )
        return ids

    def _labels(self, made: ShardManifest) -> bytes | None:
        if self._maker is None:
            return None
        ids = Shard(self._root, self._ref).sample_ids
        labels = dict(self._maker.labels(ids))
        if gone := [i for i in ids if i not in labels]:
            left = Counter({int(k): n for k, n in made.statistics.rows_per_class.items()}) - Counter(labels.values())
            if len(left) != 1:  # with one class left, it is theirs
                raise DataError(
                    f"shard {self._ref.name} lost labels of {counted(len(gone), 'row')}, whose images left the data",
                    got=f"the first: {gone[0]!r}",
                    do="put them back, or name where the data lies now with --set data.train=…",
                )
            labels |= dict.fromkeys(gone, *left)
        return np.array([labels[i] for i in ids], "<i4").tobytes()

    def _chunk(self, made: ShardManifest, name: str) -> NDArray[Any] | None:
        if self._maker is None:
            return None
        c, index = made.chunk_rows, int(name.split(".")[1])
        names = layout.chunk_names(index, made.dtype)
        ids = Shard(self._root, self._ref).sample_ids[index * c : (index + 1) * c]
        rows = to_stored(self._maker.rows(self._ref.name, ids), made.dtype, made.tokens_shape, ids)
        return encoding.encode(layout.pad(rows, c), made.dtype)[names.index(name)]

    def _rebuild(self) -> ShardManifest | None:
        """The shard manifest, rebuilt from the group's files; None if the root manifest names another one."""
        root, at, rows = self._root, self._ref.path, self._ref.rows
        try:
            stated = msgspec.json.decode(root.read(f"{at}/tokens/zarr.json", 1 << 16), type=_Tokens)
            (n, t, d), (c, _, _) = stated.shape, stated.chunk_grid.configuration.chunk_shape
            dtype = stated.data_type
            layout.check_shape((t, d), dtype, c)
            if n != rows:
                return None
            sizes = [c * size for size in encoding.row_bytes((t, d), dtype)]
            ids = self._stated()
            labels = np.frombuffer(root.read(f"{at}/labels/c.0", 4 * rows), "<i4").astype(np.int32)
            if ids is None or len(labels) != rows or labels.min() < 0:
                return None
            chunks = []
            for k in range(layout.chunk_count(rows, c)):
                names = layout.chunk_names(k, dtype)
                files = [root.view(f"{at}/{name}", size)[1] for name, size in zip(names, sizes, strict=True)]
                if None in files:
                    return None
                tokens = encoding.decode(files, dtype, (t, d))[:]
                chunks.append(chunk_record(tokens, files, min(c, rows - k * c)))
        except (OSError, StoreError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        made, _ = describe(self._form((t, d), dtype, c), chunks, ids, labels)
        return made if digest(canonical(made)) == self._ref.digest else None

    def _stated(self) -> list[str] | None:
        """The ids in the shard's file, unverified; None if there is not one for each row."""
        rows = self._ref.rows
        raw = self._root.read(f"{self._ref.path}/sample_id/c.0", 4 + (4 + MAX_ID_BYTES) * rows)
        return layout.decode_ids(raw, rows)

    def _form(self, tokens_shape: tuple[int, int], dtype: str, chunk_rows: int) -> ShardForm:
        ref = self._ref
        return ShardForm(name=ref.name, role=ref.role, tokens_shape=tokens_shape, dtype=dtype, chunk_rows=chunk_rows)

    def _all_again(self) -> None:
        """Make every row again: the shard manifest is lost, and so are some of the files that it named."""
        ref, maker = self._ref, self._maker
        file = layout.manifest_file(ref.path)
        if maker is None:
            return
        try:
            shape, dtype, chunk_rows = maker.layout(ref.name)
            stated = None
            with suppress(OSError, UnicodeDecodeError):
                stated = self._stated()
            ids = self._members(maker, stated or ())
            by_id = maker.labels(ids)

            def blocks() -> Iterator[NDArray[Any]]:
                for at in range(0, len(ids), _ROWS_AT_ONCE):
                    some = ids[at : at + _ROWS_AT_ONCE]
                    yield to_stored(maker.rows(ref.name, some), dtype, shape, some)

            staged, labels = f"{REPAIR}/group", np.array([by_id[i] for i in ids], np.int32)
            form = self._form(shape, dtype, chunk_rows)
            made = GroupWriter(self._staging, staged, form).put_all(blocks(), ids, labels)
            if made.digest != ref.digest and len(ids) < chunk_rows:
                self._staging.remove(staged)
                form = msgspec.structs.replace(form, pad=True)
                made = GroupWriter(self._staging, staged, form).put_all(blocks(), ids, labels)
        except StoreWriteError:
            raise
        except TaftcacheError as error:
            self._done.left[file] = str(error)
            return
        if made.digest != ref.digest:
            self._done.left[file] = f"the shard made again has the digest {made.digest[:16]}: {_OTHER}"
            return
        self._root.place(self._staging, layout.manifest_file(staged), file)
        self._root.place(self._staging, staged, ref.path)
        self._done.mended[file] = "the whole shard was extracted again"


class _Grid(msgspec.Struct):
    chunk_shape: tuple[int, int, int]


class _ChunkGrid(msgspec.Struct):
    configuration: _Grid


class _Tokens(msgspec.Struct):
    """What is read from tokens/zarr.json if the shard manifest is lost; the shard's digest decides if it is true."""

    shape: tuple[int, int, int]
    data_type: str
    chunk_grid: _ChunkGrid
