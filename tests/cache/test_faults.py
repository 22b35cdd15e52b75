"""A disk that is full or broken: a typed error, the last commit intact, the space given back."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import contextmanager
from functools import wraps

import pytest

from taftcache.cache.format.fault import unreadable
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreChanged, StoreError, StoreLocked, StoreUnreachable, StoreWriteError
from tests import FSYNC

from .making import create, fill, holds, names, tree

OLD, NEW = names(9, "old"), names(11, "new")
CALLS = ("write", "fsync", "mkdir", "replace", "unlink", "rmdir", "ftruncate", "open")


@contextmanager
def failing(code: int, at: int, forever: bool):
    """The ``at``-th call that changes the disk fails (and, ``forever``, all later ones that need space)."""
    real = {name: getattr(os, name) for name in CALLS}
    seen: list[str] = []
    lock = threading.Lock()  # chunks are written by several threads

    def wrap(name):
        def wrapped(*args, **kwargs):
            if name != "open" or args[1] & os.O_CREAT:
                with lock:
                    seen.append(name)
                    number = len(seen)
                if number == at or (forever and number > at and name in ("write", "mkdir", "open", "fsync")):
                    raise OSError(code, os.strerror(code))
            return real[name](*args, **kwargs)

        return wrapped

    for name in CALLS:
        setattr(os, name, wrap(name))
    try:
        yield seen
    finally:
        for name, function in real.items():
            setattr(os, name, function)


@pytest.fixture
def path(tmp_path):
    with create(tmp_path / "s") as store:
        fill(store, "000", [*OLD, "first"])
        with store.transaction() as change:
            change.erase(["first"])
            change.put("components/000", b"old")
    return tmp_path / "s"


def change_much(store) -> None:
    with store.transaction() as change:
        change.erase([OLD[1], OLD[8]])
        change.put("components/000", b"new")
        change.record({"action": "erase"})


def write_shard(store) -> None:
    fill(store, "001", NEW, batch=3)


@pytest.mark.law("A kill, an interruption or a failed write leaves the last commit or the next one")
@pytest.mark.parametrize(("code", "forever"), [(errno.EIO, False), (errno.ENOSPC, True)])
@pytest.mark.parametrize("work", [change_much, write_shard])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.full)])
def test_every_call_may_fail(path, work, code, forever, step) -> None:
    before = tree(path)
    failed = 0
    for at in range(1, 500, step):
        with FeatureStore(path, mode="a") as store:
            assert tree(path, but=("staging/",)) == before
            digest = store.root_digest
            try:
                with failing(code, at, forever) as seen:
                    work(store)
            except StoreWriteError:
                failed += 1
            else:
                # Once the swap is through, the file of tombstones beside the store may fail: an audit says so.
                assert len(seen) < at or seen.index("replace") < at - 1, f"nobody said that call {at} failed"
                break
            if store.root_digest != digest:
                # the swap was through: what failed is its last fsync, or the sweep, which the next open does again
                assert seen.index("replace") < at - 1
                break
            assert store.verify() == []
            assert holds(store, OLD)
            if work is write_shard and not (path / "staging/shard-001/journal").exists():
                assert store.strays() == [], f"an audit would fail after call {at}: {seen[at - 1]}"
            if work is change_much and not forever and seen[at - 1] not in ("unlink", "rmdir"):
                assert tree(path) == before, f"space given back at once, call {at}: {seen[at - 1]}"
        if work is change_much:
            FeatureStore(path, mode="a").close()
            assert tree(path) == before
    assert failed > 20 / step
    with FeatureStore(path, mode="a") as store:
        assert store.verify() == []
        assert store.strays() == []
        if work is write_shard:
            if not store.has_shard("001"):
                write_shard(store)
            assert holds(store, [*OLD, *NEW])
        else:
            assert store.is_forgotten(OLD[1]) == (store.read_object("components/000") == b"new")


def test_a_writer_that_failed_takes_no_more(path) -> None:
    with FeatureStore(path, mode="a") as store:
        fill(store, "001", NEW, stop=1)  # a chunk of 4 rows is durable; which call writes the next is up to threads
        with (
            pytest.raises(StoreWriteError, match="no space left on the disk"),
            failing(errno.ENOSPC, 3, True),
        ):
            write_shard(store)
        assert fill(store, "001", NEW) >= 4
        assert holds(store, [*OLD, *NEW])


def test_a_sweep_that_fails_is_said_and_done_again(path) -> None:
    """After the swap the erasure is committed; that the old bytes are still there must not go unsaid."""
    with FeatureStore(path, mode="a") as store:
        real = os.unlink

        def refuse(name, **kwargs):
            if "tokens" in os.readlink(f"/proc/self/fd/{kwargs['dir_fd']}"):
                raise OSError(errno.EIO, "Input/output error")
            real(name, **kwargs)

        os.unlink = refuse
        try:
            with pytest.raises(StoreWriteError, match="committed, but") as caught:
                change_much(store)
            assert caught.value.do.startswith("check the disk; do not repeat the command itself: taftcache gc ")
        finally:
            os.unlink = real
        assert store.is_forgotten(OLD[1])
        assert store.strays()
    with FeatureStore(path, mode="a") as store:
        assert store.strays() == []
        assert store.verify() == []
        assert len(store.shards[0]) == 7


def test_reading_errors_are_faults(path, monkeypatch) -> None:
    with FeatureStore(path) as store:
        shard = store.shards[0]
        shard.labels  # noqa: B018
        real = store.root.open

        def broken(name):
            if "tokens/c.1" in name:
                raise OSError(errno.EIO, "Input/output error")
            return real(name)

        monkeypatch.setattr(store.root, "open", broken)
        with pytest.raises(StoreError, match=r"chunk 1.*cannot be read: the disk reports an I/O error"):
            list(shard.blocks())
        assert [f.chunk for f in store.verify()] == [1]


def test_nor_is_a_command_to_be_repeated_whose_sweep_cannot_read(path, monkeypatch) -> None:
    with FeatureStore(path, mode="a") as store:

        def sweep(root, *_) -> None:
            unreadable(root, "ledger/0.json", TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

        monkeypatch.setattr("taftcache.cache.write.commit.sweep", sweep)
        with pytest.raises(StoreUnreachable, match="committed, but") as caught:
            change_much(store)
        assert caught.value.do.startswith("look at the network and at the mount; do not repeat the command itself: ")


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ETIMEDOUT], ids=errno.errorcode.get)
def test_a_network_file_system_that_does_not_answer_is_no_damage(path, monkeypatch, code) -> None:
    """NFS forgets an open file once another machine has removed it: then a commit may be the reason."""
    with FeatureStore(path) as store:
        real = store.root.open

        def broken(name):
            if "tokens/c.1" in name:
                raise OSError(code, os.strerror(code))
            return real(name)

        monkeypatch.setattr(store.root, "open", broken)
        for read in (store.verify, lambda: list(store.shards[0].blocks())):
            with pytest.raises(StoreUnreachable, match="the network file system") as caught:
                read()
            assert caught.value.do.endswith("then run the same command again")
        with FeatureStore(path, mode="a") as other:
            fill(other, "001", NEW)
        with pytest.raises(StoreChanged if code == errno.ESTALE else StoreUnreachable):
            list(store.shards[0].blocks())


@pytest.mark.law("Everything is on the disk before a manifest names it")
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_everything_is_synced_before_the_manifest_names_it(tmp_path, monkeypatch, dtype) -> None:
    """Each file and each folder's entries are fsynced after their last change and before the manifest's rename; after
    it what was replaced is gone durably, too."""
    dirty: set[str] = set()
    late: list[tuple[str, list[str]]] = []
    entered: list[int] = []
    unnamed: set[tuple[str, str]] = set()  # folders, and chunks whose entry there is not durable yet
    real = {name: getattr(os, name) for name in ("write", "replace", "open", "mkdir", "unlink", "rmdir")}
    lock = threading.RLock()  # chunks are written by several threads

    def alone(function):
        """What is noted in one call is noted before another notes or reads anything."""

        @wraps(function)
        def called(*given, **named):
            with lock:
                return function(*given, **named)

        return called

    def where(fd, name=None):
        base = os.readlink(f"/proc/self/fd/{fd}")
        return base if name is None else os.path.normpath(f"{base}/{name}")

    @alone
    def write(fd, data):
        if where(fd).endswith("/journal"):
            entered.extend(range(len(entered), len(entered) + bytes(data).count(b'"type":"chunk"')))
            chunks = [d.rpartition("/c.")[2] for d in dirty if "/group/tokens/c." in d or "/group/scales/c." in d]
            early = [k for k in entered if any(c.startswith(f"{k}.") for c in chunks + [c for _, c in unnamed])]
            assert not early, f"chunks {early} are in the journal before they are durable"
        dirty.add(where(fd))
        return real["write"](fd, data)

    @alone
    def fsync(fd):
        dirty.discard(where(fd))
        unnamed.difference_update([u for u in unnamed if u[0] == where(fd)])
        return FSYNC(fd)

    @alone
    def opened(name, flags, mode=0o777, *, dir_fd=None):
        if flags & os.O_CREAT and dir_fd is not None and not os.path.exists(where(dir_fd, name)):
            dirty.add(where(dir_fd))
            if where(dir_fd).endswith(("/group/tokens", "/group/scales")) and name.startswith("c."):
                unnamed.add((where(dir_fd), name.removeprefix("c.")))
        return real["open"](name, flags, mode, dir_fd=dir_fd)

    @alone
    def mkdir(name, mode=0o777, *, dir_fd=None):
        real["mkdir"](name, mode, dir_fd=dir_fd)
        dirty.add(where(dir_fd))

    @alone
    def replace(old, new, *, src_dir_fd=None, dst_dir_fd=None):
        if new == "manifest.json":
            late.append((new, sorted(d for d in dirty if not d.endswith("/lock") and d != where(dst_dir_fd))))
        moved = where(src_dir_fd, old)
        assert not any(d == moved or d.startswith(f"{moved}/") for d in dirty), f"{moved} is moved before it is durable"
        real["replace"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        dirty.update((where(src_dir_fd), where(dst_dir_fd)))

    @alone
    def unlink(name, *, dir_fd):
        real["unlink"](name, dir_fd=dir_fd)
        dirty.add(where(dir_fd))

    @alone
    def rmdir(name, *, dir_fd):
        gone = where(dir_fd, name)
        real["rmdir"](name, dir_fd=dir_fd)
        dirty.difference_update([d for d in dirty if d == gone or d.startswith(f"{gone}/")])
        dirty.add(where(dir_fd))

    with create(tmp_path / "s") as store:
        for function in (write, fsync, replace, mkdir, unlink, rmdir):
            monkeypatch.setattr(os, function.__name__, function)
        monkeypatch.setattr(os, "open", opened)
        fill(store, "000", OLD, dtype=dtype)
        change_much(store)
        monkeypatch.undo()
    assert len(late) == 2
    assert all(rest == [] for _, rest in late), late
    assert not dirty - {str(tmp_path / "s" / "lock")}, dirty


@pytest.mark.law("No chunk is entered in a journal after one that failed")
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_no_chunk_is_entered_after_one_that_failed(tmp_path, monkeypatch, victim) -> None:
    """Else the journal would give a chunk's rows the ids of the one after it."""
    from taftcache.cache.write import group

    real = group.GroupWriter.put_chunk

    def put(self, index, tokens, rows):
        record = real(self, index, tokens, rows)
        if index == victim:
            raise StoreWriteError("cannot write: the disk fails", got="fsync failed after all bytes were there")
        return record

    with create(tmp_path / "s") as store:
        monkeypatch.setattr(group.GroupWriter, "put_chunk", put)
        with pytest.raises(StoreWriteError):
            fill(store, "000", names(30), batch=30)
        monkeypatch.setattr(group.GroupWriter, "put_chunk", real)
        assert fill(store, "000", names(30), batch=7) == 4 * victim
        assert holds(store, names(30))
        assert store.verify() == []


def test_a_lock_file_that_is_removed_before_it_is_locked_is_taken_again(path, monkeypatch) -> None:
    """Else the next writer would lock another file of that name, and both would write."""
    real, removed = fcntl.flock, []

    def flock(fd, how):
        if len(removed) < 2:
            os.unlink(path / "lock")
            removed.append(fd)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with FeatureStore(path, mode="a"):
        assert len(removed) == 2
        with pytest.raises(StoreLocked), FeatureStore(path, mode="a"):
            pass


@pytest.mark.parametrize("other", [True, False], ids=["another writer", "none"])
def test_a_writer_whose_lock_file_was_removed_commits_nothing(path, other) -> None:
    with FeatureStore(path, mode="a") as store:
        digest = store.root_digest
        change = store.transaction()
        change.put("components/000", b"new")
        (path / "lock").unlink()
        if other:
            with FeatureStore(path, mode="a") as faster, faster.transaction() as quick:
                quick.put("components/001", b"theirs")
        with pytest.raises(StoreLocked, match="removed while it was held"):
            change.commit()
    with FeatureStore(path, mode="a") as store:
        assert (store.root_digest != digest) == other
        assert store.read_object("components/000") == b"old"
        assert store.verify() == []
        assert store.strays() == []
