"""An interrupt, a kill or a refusal of the system between two steps that belong together."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from threading import Event

import numpy as np
import pytest

from taftcache.cache import copying
from taftcache.cache.copying import copy
from taftcache.cache.format.manifest import FILE
from taftcache.cache.place import lock
from taftcache.cache.place.folder import Folder
from taftcache.cache.read.contents import Contents
from taftcache.cache.store import FeatureStore
from taftcache.cache.write import commit
from taftcache.cache.write.commit import Committer
from taftcache.cache.write.group import GroupWriter
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import StoreChanged, StoreError, StoreLocked, StoreWriteError

from .making import SHAPE, create, fill, forget, holds, label, names, row

IDS, NEW = names(12), names(20, "new")
GONE, ALSO = IDS[3], IDS[7]


@pytest.fixture
def path(tmp_path):
    """A store that forgot ``GONE``."""
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS)
    forget(tmp_path / "s", GONE)
    return tmp_path / "s"


def destroy(path) -> None:
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.destroy_key()
        change.record({"event": "destroy-key"})


def interrupt(*_args, **_named) -> None:
    raise KeyboardInterrupt


def at_the_swap(patch, before=False) -> None:
    """An interrupt, instead of the swap of a root manifest or directly after it."""
    real = Folder.swap

    def swap(self, name, data, **how):
        if name != FILE or not before:
            real(self, name, data, **how)
        if name == FILE:
            raise KeyboardInterrupt

    patch.setattr(Folder, "swap", swap)


def other_process(action, *arguments) -> None:
    """What ``action`` does in a store, from a commit on, whose sweep is not done yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "sweep", lambda *_: [])
        action(*arguments)


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
@pytest.mark.parametrize("again", [True, False], ids=["another key", "no key"])
@pytest.mark.parametrize("when", ["before the check", "before the swap", "after the swap"])
def test_a_copy_over_a_state_with_a_key_that_is_destroyed_goes_on(path, tmp_path, monkeypatch, again, when) -> None:
    target = tmp_path / "copy"
    with FeatureStore(path) as store:
        copy(store, target)
    destroy(path)
    if again:
        forget(path, ALSO)
    with monkeypatch.context() as patch, FeatureStore(path) as store:
        if when == "before the check":
            patch.setattr(copying, "verify", interrupt)
        else:
            at_the_swap(patch, when == "before the swap")
        with pytest.raises(KeyboardInterrupt):
            copy(store, target, update=True)
    if when == "before the check":
        with FeatureStore(target) as there:
            assert there.is_forgotten(GONE)
            assert there.verify() == []
    with FeatureStore(path) as store:
        copy(store, target, update=True)
        with FeatureStore(target) as there:
            assert there.root_digest == store.root_digest
            assert there.verify() == []
            assert there.is_forgotten(ALSO) == again
    found = TombstoneFile(target)
    assert (found.holds(ALSO), bool(found.key)) == (again, again)
    assert not found.match([GONE], [])


def test_a_copy_brings_no_key_that_its_source_has_destroyed(path, tmp_path) -> None:
    """Though a kill in an earlier version left it beside the source."""
    with FeatureStore(path) as store:
        copy(store, tmp_path / "copy")
    left = TombstoneFile(path)
    key, hashes = left.key, left.newest
    destroy(path)
    TombstoneFile(path).add(key, hashes)
    with FeatureStore(path) as store:
        copy(store, tmp_path / "copy", update=True)
    assert not TombstoneFile(tmp_path / "copy").key


def test_the_lock_is_kept_while_a_thread_writes(path, monkeypatch) -> None:
    """However often the waiting for it is interrupted."""
    real, begun, go = GroupWriter.put_chunk, Event(), Event()

    def put(self, index, tokens, rows):
        begun.set()
        assert go.wait(60)
        return real(self, index, tokens, rows)

    monkeypatch.setattr(GroupWriter, "put_chunk", put)
    store = FeatureStore(path, mode="a")
    try:
        writer = store.writer("001", "train", chunk_rows=4, tokens_shape=SHAPE, candidates=NEW[:9])
        writer.append(np.stack([row(i) for i in NEW[:9]]), NEW[:9], [label(i) for i in NEW[:9]])
        assert begun.wait(60)
        monkeypatch.setattr(writer._disk, "shutdown", interrupt)
        for close in (writer.close, store.close, store.close):
            with suppress(KeyboardInterrupt):
                close()
        with pytest.raises(StoreLocked):
            FeatureStore(path, mode="a")
        with pytest.raises(StoreError, match="is closed and takes no more rows"):
            writer.append(np.stack([row(NEW[9])]), [NEW[9]], [label(NEW[9])])
        monkeypatch.undo()
    finally:
        go.set()
    store.close()
    with FeatureStore(path, mode="a") as store:
        assert fill(store, "001", NEW[:9]) == 8
        assert holds(store, NEW[:9])


@pytest.mark.law("Batches, interruptions and the order of shards leave no trace in a store")
def test_rows_that_two_writers_entered_in_a_journal_are_taken_once(path) -> None:
    """As where a lock file was removed."""
    with FeatureStore(path, mode="a") as store:
        fill(store, "001", NEW, stop=2)
    journal = path / "staging/shard-001/journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    journal.write_bytes(b"".join([*lines[:2], lines[1], lines[2]]))
    with FeatureStore(path, mode="a") as store:
        assert fill(store, "001", NEW) == 4
        assert store.shard("001").sample_ids == NEW
        assert holds(store, NEW)


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("when", ["before the swap", "after the swap"])
def test_a_key_is_destroyed_as_a_whole_or_not_at_all(path, monkeypatch, when, killed) -> None:
    """Beside the store, too; where the process is killed, nothing is taken up."""
    stays = when == "before the swap"
    with monkeypatch.context() as patch:
        at_the_swap(patch, stays)
        if killed:
            patch.setattr(Committer, "_recover", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            destroy(path)
    assert bool(TombstoneFile(path).key) == (stays and not killed)
    with FeatureStore(path, mode="a") as store:
        assert store.is_forgotten(GONE) == stays
    assert TombstoneFile(path).holds(GONE) == bool(TombstoneFile(path).key) == stays


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
@pytest.mark.parametrize("failed", ["the swap", "the lock", "the file beside the store"])
def test_keys_that_were_not_destroyed_are_all_beside_the_store(path, monkeypatch, failed) -> None:
    """That of an earlier store at this place, too."""
    earlier = b"\1" * 32
    with FeatureStore(path, mode="a") as store:
        store.tombstone_file.add(earlier, ["ab" * 32])
        key = TombstoneFile(path).key
        before = {each: TombstoneFile(path).under(each) for each in (earlier, key)}
        if failed == "the lock":
            monkeypatch.setattr("taftcache.cache.place.lock.WriterLock.held", False)
            error: type[BaseException] = StoreError
        elif failed == "the swap":
            at_the_swap(monkeypatch, True)
            error = KeyboardInterrupt
        else:
            monkeypatch.setattr(TombstoneFile, "save", failing_once(TombstoneFile.save))
            error = StoreWriteError
        with pytest.raises(error), store.transaction() as change:
            change.destroy_key()
        assert {each: store.tombstone_file.under(each) for each in before} == before
        assert {each: TombstoneFile(path).under(each) for each in before} == before


@pytest.mark.law("A commit is beside the store whatever interrupts it")
def test_a_commit_that_took_effect_is_remembered_beside_the_store(path, monkeypatch) -> None:
    with FeatureStore(path, mode="a") as store:
        with monkeypatch.context() as patch:
            at_the_swap(patch, False)
            with pytest.raises(KeyboardInterrupt), store.transaction() as change:
                change.erase([ALSO])
        assert TombstoneFile(path).holds(ALSO)


def failing_once(real):
    """``real``, of which the first call is refused."""
    left = [StoreWriteError("no space")]

    def call(*given):
        if left:
            raise left.pop()
        return real(*given)

    return call


def refusal(code: int):
    def refuse(*_args, **_named) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_lock_that_cannot_be_looked_at_is_let_go(path, monkeypatch, code) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "has_lock", refusal(code))
        with pytest.raises(StoreWriteError):
            FeatureStore(path, mode="a")
    FeatureStore(path, mode="a").close()


@pytest.mark.parametrize("step", ["taking", "signing", "letting go"])
def test_an_interrupted_lock_is_let_go(path, monkeypatch, step) -> None:
    """Though what failed is kept, as a notebook does with the last error."""
    real = fcntl.flock

    def flock(fd, how):
        real(fd, how)
        raise KeyboardInterrupt

    if step == "letting go":
        store = FeatureStore(path, mode="a")
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", interrupt)
            with pytest.raises(KeyboardInterrupt) as kept:
                store.close()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(*((fcntl, "flock", flock) if step == "taking" else (lock, "write_all", interrupt)))
            with pytest.raises(KeyboardInterrupt) as kept:
                FeatureStore(path, mode="a")
    FeatureStore(path, mode="a").close()
    assert kept.traceback


def test_a_reader_beside_a_request_is_not_told_of_an_old_copy(path, monkeypatch) -> None:
    """It has read the manifest of before the request, and then the file beside the store of after it."""
    real = TombstoneFile.__init__
    done = []

    def read(self, store):
        if not done:
            done.append(True)
            other_process(forget, path, ALSO)
        real(self, store)

    monkeypatch.setattr(TombstoneFile, "__init__", read)
    with pytest.raises(StoreChanged):
        FeatureStore(path)
    with FeatureStore(path) as store:
        assert store.is_forgotten(ALSO)


def test_a_writer_that_was_interrupted_takes_no_more_rows(path) -> None:
    class Seen(set):
        update = interrupt

    with FeatureStore(path, mode="a") as store:
        with store.writer("001", "train", chunk_rows=8, tokens_shape=SHAPE, candidates=NEW) as writer:
            for at in range(0, len(NEW), 4):
                part = NEW[at : at + 4]
                rows = np.stack([row(i) for i in part]), part, [label(i) for i in part]
                if at != 4:
                    with suppress(StoreError):
                        writer.append(*rows)
                    continue
                seen, writer._seen = writer._seen, Seen(writer._seen)
                with pytest.raises(KeyboardInterrupt):
                    writer.append(*rows)
                writer._seen = seen
            with pytest.raises(StoreError, match="was interrupted and takes no more rows"):
                writer.commit()
        fill(store, "001", NEW)
        assert holds(store, NEW)


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
def test_a_commit_that_was_interrupted_is_not_undone_by_the_next(path, monkeypatch) -> None:
    with FeatureStore(path, mode="a") as store:
        with monkeypatch.context() as patch:
            real = Contents.adopt

            def adopt(self, *given):
                patch.setattr(Contents, "adopt", real)
                raise KeyboardInterrupt

            patch.setattr(Contents, "adopt", adopt)
            with pytest.raises(KeyboardInterrupt), store.transaction() as change:
                change.erase([ALSO])
        with store.transaction() as change:
            change.put("components/000", b"x")
        assert store.is_forgotten(ALSO)
    with FeatureStore(path) as store:
        assert store.is_forgotten(ALSO)
        assert not store.holds(ALSO)
        assert store.verify() == []
