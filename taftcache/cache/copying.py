"""Copying whole stores: byte for byte, or with another dtype or chunk size."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from taftcache.cache.format import layout, ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.format.fault import read_named
from taftcache.cache.format.manifest import FILE, MAX_BYTES, Manifest
from taftcache.cache.place.address import is_bucket, new_home, spelled
from taftcache.cache.place.folder import PRIVATE, Folder, writing
from taftcache.cache.place.home import Home
from taftcache.cache.place.lock import WriterLock
from taftcache.cache.read.around import check_outside
from taftcache.cache.read.shard import Shard
from taftcache.cache.read.verify import OnProgress, verify
from taftcache.cache.room import check_room, taken_bytes
from taftcache.cache.store import FeatureStore
from taftcache.cache.write import previous
from taftcache.cache.write.commit import check_foreign
from taftcache.cache.write.sweep import leftovers, outdated, sweep
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import FormatError, StaleStore, StoreError
from taftcache.names import BASE, counted, typed

_THREADS = 4


@dataclass(frozen=True)
class Copied:
    """``files`` and ``bytes`` copied now, and files that were ``there`` already with the right bytes."""

    files: int
    bytes: int
    there: int


@dataclass(frozen=True)
class _File:
    path: str
    digest: str
    size: int
    read: Callable[[], Any]


def copy(
    source: FeatureStore, target: str | os.PathLike[str], *, update: bool = False, progress: OnProgress | None = None
) -> Copied:
    """Copy what ``source``'s manifests name to ``target``, a folder or a bucket: the same bytes, the same root digest.

    Every file is verified as it is read, and once more, at the target, before the root manifest is put there: an
    incomplete copy never counts as a store. A copy that was cut off goes on: files that are there with the right
    digest are not copied again. ``update`` allows a target that holds another state of the same store (with the same
    identity), which then becomes this one. What is remembered beside ``source`` of forgotten rows is added to what is
    remembered beside the target.

    Raises:
        StaleStore: rows of ``source`` were forgotten at the target. IntegrityError: ``source`` is damaged.
        StoreError: something else lies at the target. StoreWriteError.
    """
    check_outside(target)
    manifest = source.manifest.encode()
    every = list(_files(source))
    # The target's own manifest names its key until the swap, so the new key is put there directly before it.
    key = [file for file in every if file.path == ledger.KEY_FILE]
    files = [file for file in every if file not in key]
    made = new_home(target, "copy the store to", partial(_check_place, source, target, every))
    with made as (root, staging), writing(root.path), WriterLock(staging):
        before = _before(root, source, update)
        gone = _destroyed_key(source, before)
        forgotten = _forgotten_there(root, target, source, before, gone)
        bring = partial(_bring, root, _passing(root, staging, before))
        brought = _bring_all(files, bring, progress, sum(file.size for file in every))
        if faults := verify(root, source.manifest, manifest=False):
            raise faults[0].error()
        new = before is None or before.digest != source.root_digest
        if new:
            source.check_may_leave()
            previous.forget(root)
        if gone:  # before the swap, after which nothing says any more that the key must go
            forgotten.destroy_key(gone)
        brought += [file for file in key if bring(file)]
        if key:
            ledger.read_key(root, source.manifest)
        if new:
            root.swap(FILE, manifest)
        with suppress(StoreError):  # as after every commit, it is for `taftcache audit` to report
            _remember(root, forgotten, source, gone)
        _sweep(root, staging, source.manifest, before)
        return Copied(len(brought), sum(file.size for file in brought), len(every) - len(brought))


def _bring_all(
    files: list[_File], bring: Callable[[_File], bool], progress: OnProgress | None, total: int
) -> list[_File]:
    """``bring`` every file, from a few threads; returns those that were copied.

    ``total``: bytes of all files of the copy. Progress counts those that are not among ``files`` as done.
    """
    brought, done = [], total - sum(file.size for file in files)
    for file, copied in _each(files, bring):
        brought += [file] if copied else []
        done += file.size
        if progress:
            progress(done, total)
    return brought


def _sweep(root: Home, staging: Folder, named: Manifest, before: Manifest | None) -> None:
    """Remove what the copy replaced; an error says that the copy is there."""
    try:
        sweep(root, staging, named, before or named)
    except StoreError as error:
        error.fault = f"copied, but what the copy replaced is still there: {error.fault}"
        raise


def _forgotten_there(
    root: Home, target: str | os.PathLike[str], source: FeatureStore, before: Manifest | None, gone: str
) -> TombstoneFile:
    """What was forgotten at the target, according to the file beside it and to the manifest ``before`` that it holds.
    The key of ``before`` is not read if it is ``gone``: a copy that was cut off may have replaced it.

    StaleStore if ``source`` has rows that were forgotten there: it is an older state than the target's.
    """
    there = TombstoneFile(target)
    if before is not None:
        with suppress(StoreError):  # a damaged ledger: the copy brings its own
            there.add_charges(ledger.charges(root, before.ledger))
    if before is not None and before.tombstone_key not in ("", gone) and before.digest != source.root_digest:
        same = before.tombstone_key == source.manifest.tombstone_key
        there.consider(ledger.read_key(source.root if same else root, before), before.tombstones)
    _check_state(source, target, there)
    return there


def _check_place(source: FeatureStore, target: str | os.PathLike[str], files: Sequence[_File], root: Home) -> None:
    """`check_foreign`; and, where no store is yet, `_check_state`, and room for the ``files`` that are not there yet: a
    copy that is refused leaves no lock file there."""
    check_foreign(root)
    if root.exists(FILE):
        return
    _check_state(source, target, TombstoneFile(target))
    if not is_bucket(target):
        there = {**root.sizes("shards"), **root.sizes("models"), **root.sizes("components"), **root.sizes("base")}
        rest = (file.size for file in files if there.get(file.path) != file.size)
        check_room(target, taken_bytes(target, rest))


def _check_state(source: FeatureStore, target: str | os.PathLike[str], there: TombstoneFile) -> None:
    """StaleStore if ``source`` has rows that were forgotten at the target, as ``there`` knows; `check_owner` of what is
    remembered beside both."""
    source.tombstone_file.check_owner()
    there.check_owner()
    if back := source.returned(there):
        raise StaleStore(
            f"{source.path} has {counted(len(back), 'row')} forgotten at {spelled(target)}: "
            "it is an older state of the store",
            got=f"root digest {source.root_digest[:16]}, by {there.file or 'the tombstones of the target'}",
            do="name another place, or forget them in the source too: "
            f"taftcache forget {typed(source.path)} --sample ID",
        )


def _remember(root: Home, there: TombstoneFile, source: FeatureStore, gone: str) -> None:
    """Bring the file beside the target up to date with the manifest that is there now and with the file of ``source``.
    The key ``gone`` is left out; the file of ``source`` may still have it, from an earlier release."""
    now = source.manifest
    there.add_charges(ledger.charges(root, now.ledger))
    there.merge(source.tombstone_file)
    there.destroy_key(gone)  # before anything is written; "" is no key's digest
    if now.tombstone_key:
        there.add(ledger.read_key(root, now), now.tombstones)


def carry_tombstones(source: FeatureStore, target: str | os.PathLike[str]) -> TombstoneFile:
    """The tombstone file of ``target``, where a store is to be made, with all that ``source`` has forgotten and
    released; the caller saves it.

    Raises:
        StoreError: a store is there that does not know all of it; the place remembers another store's requests, under
            another key; or it is in a bucket, beside which nothing is remembered.
    """
    named, there, beside = source.manifest, TombstoneFile(target), source.tombstone_file
    beside.check_owner()
    there.check_owner()
    key = ledger.read_key(source.root, named) if named.tombstone_key else beside.key
    fault = f"what {source.path} has forgotten cannot be carried to {spelled(target)}"
    if there.file is None:
        raise StoreError(
            f"{fault}: beside a bucket nothing is remembered", do="make the store in a folder, and copy it"
        )
    if key and there.key not in (b"", key):
        raise StoreError(
            f"{fault}: other requests are remembered there", got=str(there.file), do="name another place for the store"
        )
    if FeatureStore.exists(target):
        if not there.covers(key, [*named.tombstones, *beside.under(key)]):
            raise StoreError(f"{fault}: a store is there already", do="name another place, or forget the samples there")
        return there
    for earlier, hashes in beside.beyond(()).items():
        there.consider(earlier, hashes)
    if key:
        there.consider(key, named.tombstones)
    there.add_charges([*beside.charges, *ledger.charges(source.root, named.ledger)])
    return there


def _destroyed_key(source: FeatureStore, before: Manifest | None) -> str:
    """The digest of the key of the manifest ``before`` if ``source`` destroyed that key on purpose, else "". It did if
    it no longer has the key, and its ledger has all the entries that ``before`` names, and more."""
    if before is None or before.tombstone_key == source.manifest.tombstone_key or (last := before.ledger) is None:
        return ""
    entries = source.ledger()
    goes_on = last.entries < len(entries) and entries[last.entries]["previous"] == last.head
    return before.tombstone_key if goes_on else ""


def convert(
    source: FeatureStore,
    target: str | os.PathLike[str],
    *,
    identity: dict[str, Any],
    recipe: dict[str, Any],
    dtype: str | None = None,
    chunk_rows: int | Literal["auto"] | None = None,
    progress: OnProgress | None = None,
) -> FeatureStore:
    """A new store at ``target`` with ``source``'s rows in another dtype or chunk size; open for writing.

    Components and models stay behind, because their keys name the old shards; base, skipped samples, ledger and
    tombstones come along. A conversion that was cut off goes on.

    Raises:
        DataError: a number that overflows the new dtype, naming the sample. IdentityError: another store lies there.
        FormatError: chunks that are too large. StoreError: the target remembers requests that ``source`` does not know.
    """
    source.tombstone_file.check_owner()
    anew = not FeatureStore.exists(target)
    if anew and TombstoneFile(target).more_than(source.manifest.tombstones):
        raise StoreError(
            f"cannot convert into {spelled(target)}: requests to forget are remembered there that {source.path} does "
            "not know",
            do="name another place",
        )
    forms, sizes = dict[str, tuple[str, int]](), list[int]()
    for ref in source.manifest.shards:
        old = source.shard(ref.name)
        kept_as = dtype or old.stored_as
        rows = layout.resolve_chunk_rows(chunk_rows or old.chunk_rows, old.tokens_shape, kept_as)
        forms[ref.name] = kept_as, rows
        sizes += layout.least_sizes([ref.rows], old.tokens_shape, kept_as, rows)
    said = {"identity": identity, "classes": source.classes, "plan": source.manifest.plan, "recipe": recipe}
    if anew:
        check_room(target, taken_bytes(target, sizes))
    with gone_on_with(target, said) as made:
        total, done = sum(ref.rows for ref in source.manifest.shards), 0
        for ref in source.manifest.shards:
            old, (kept_as, rows) = source.shard(ref.name), forms[ref.name]
            if not made.has_shard(ref.name):
                left_out = source.manifest.skipped.of(ref.name)
                with made.writer(
                    ref.name,
                    ref.role,
                    chunk_rows=rows,
                    dtype=kept_as,
                    tokens_shape=old.tokens_shape,
                    candidates=[*old.sample_ids, *(s.id for s in left_out)],
                ) as writer:
                    for block in old.blocks(old.chunk_rows, min(writer.consumed, old.rows)):
                        ids = old.sample_ids[block.start : block.start + len(block.labels)]
                        writer.append(block.tokens, ids, block.labels)
                        if progress:
                            progress(done + block.start + len(ids), total)
                    if writer.consumed == old.rows:
                        writer.append(old.tokens([]), [], [], left_out)
                    source.check_may_leave()
                    writer.commit()
            _check_converted(made.shard(ref.name), old, kept_as, min(rows, old.rows))
            done += ref.rows
        _memory(source, made)
    return made


@contextmanager
def gone_on_with(path: str | os.PathLike[str], said: dict[str, Any]) -> Iterator[FeatureStore]:
    """The store at ``path``, created from the arguments ``said`` if there is none: open for writing, and closed if the
    ``with`` block fails. IdentityError: another store lies there."""
    made = FeatureStore(path, mode="a") if FeatureStore.exists(path) else FeatureStore.create(path, **said)
    try:
        made.check_identity(said["identity"])
        yield made
    except BaseException:
        made.close()
        raise


def _check_converted(new: Shard, old: Shard, dtype: str, rows: int) -> None:
    if (new.sample_ids, new.stored_as, new.chunk_rows) != (old.sample_ids, dtype, rows):
        raise StoreError(
            f"cannot go on with the conversion: shard {new.name} there is of another one",
            got=f"it has {new.rows} rows, {new.stored_as}, {new.chunk_rows} rows a chunk",
            do="name another folder; where rows were forgotten since, remove the unfinished one, which may hold them",
        )


def _memory(source: FeatureStore, made: FeatureStore) -> None:
    """The base, the ledger and the tombstones, in one commit; and what only the file beside ``source`` remembers."""
    with suppress(StoreError):  # as after every commit, it is for `taftcache audit` to report
        made.tombstone_file.merge(source.tombstone_file)
        made.tombstone_file.save()
    there = source.manifest
    wanted = made.manifest.replace(
        objects=source.objects(BASE),
        tombstones=there.tombstones,
        tombstone_key=there.tombstone_key,
        ledger=there.ledger,
    )
    if wanted.digest == made.root_digest:
        return
    known = {ref.path for ref in made.manifest.objects.values()}
    for file in _files(source, rows=False):
        folder = file.path.partition("/")[0]
        if folder in ("base", "ledger", ledger.KEY_FILE) and file.path not in known:
            made.root.put(file.path, file.read(), mode=_mode(file))
    made.committer().publish(wanted)


def _files(source: FeatureStore, rows: bool = True) -> Iterator[_File]:
    """Every file that the root manifest and those below it name, each with a verifying read."""
    named, root = source.manifest, source.root
    for ref in named.shards if rows else []:
        shard = source.shard(ref.name)
        made = shard.manifest
        yield _plain(root, shard.manifest_file, ref.digest, layout.MAX_BYTES)
        for name, part in made.objects.items():
            yield _File(f"{shard.at}/{name}", part.digest, part.size, partial(shard.read, name))
    for name, thing in named.objects.items():
        yield _File(thing.path, thing.digest, thing.size, partial(source.read_object, name))
    files = named.files()
    for path, listed in named.parts().items():
        if path in files:
            yield _File(path, listed.ref.digest, listed.ref.size, listed.data)
    after = named.ledger.head if named.ledger else ""
    for file, entry in reversed(ledger.read_chain(root, named.ledger)):
        yield _plain(root, file, after, ledger.MAX_ENTRY_BYTES)
        after = entry["previous"]
    if named.tombstone_key:
        yield _plain(root, ledger.KEY_FILE, named.tombstone_key, ledger.KEY_BYTES)


def _plain(root: Home, path: str, wanted: str, limit: int) -> _File:
    return _File(path, wanted, root.size(path), partial(read_named, root, path, limit, wanted, "the source"))


def _each(files: list[_File], work: Callable[[_File], bool]) -> Iterator[tuple[_File, bool]]:
    """Call ``work`` on every file from a few threads: an object store answers late, but many requests at once."""
    waiting: deque[tuple[_File, Future[bool]]] = deque()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="taftcache-copy") as pool:
        try:
            for file in files:
                waiting.append((file, pool.submit(work, file)))
                if len(waiting) > 2 * _THREADS:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _passing(root: Home, staging: Folder, before: Manifest | None) -> set[str]:
    """Paths at the target that another process may remove as leftovers before the copy's manifest names them."""
    if root.locked or before is None:
        return set()
    return {path for path in leftovers(root, staging, before) if outdated(root, path)}


def _bring(root: Home, passing: set[str], file: _File) -> bool:
    """Copy one file, unless it is there already and will stay; whether it was copied."""
    named = "/".join(file.path.split("/")[:2])  # a shard's files go with their folder
    if named not in passing and _same(root, file):
        return False
    root.put(file.path, file.read(), mode=_mode(file))
    return True


def _mode(file: _File) -> int | None:
    return PRIVATE if file.path == ledger.KEY_FILE else None


def _same(root: Home, file: _File) -> bool:
    """Whether the target has the file already, to the bit."""
    try:
        data = root.view(file.path, file.size)[1]
    except (FileNotFoundError, FormatError):
        return False  # not there, or a link
    return data is not None and digest(data) == file.digest


def _before(root: Home, source: FeatureStore, update: bool) -> Manifest | None:
    """What the target holds: nothing, this state, or (with ``update``) another one of the same store."""
    try:
        found = Manifest.decode(root.read(FILE, MAX_BYTES), root)
    except FileNotFoundError:
        return None
    if found.digest != source.root_digest and not (update and found.identity == source.identity):
        same = found.identity == source.identity
        raise StoreError(
            f"cannot copy to {root.path}: it holds another {'state of this store' if same else 'store'}",
            got=f"root digest {found.digest[:16]}",
            do="allow it with update (--update on the command line)" if same else "name another place",
        )
    return found
