"""Stores on file systems other than a local one of Linux: macOS, NFS, SMB, FUSE, a container's volume."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat

import pytest

from taftcache.cache.place.durable import make_durable
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError, StoreLocked, StoreWriteError
from taftcache.report.write import write_bytes
from taftcache.stages.writing import whole

from .making import create, fill, holds, names


def failing(code: int):
    def fail(*given, **named):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def path(tmp_path):
    with create(tmp_path / "s") as store:
        fill(store, "000", [*names(9), "first"])
    return tmp_path / "s"


@pytest.mark.parametrize("refused", [None, errno.ENOTSUP, errno.EIO], ids=["taken", "not there", "broken"])
def test_on_macos_the_drive_itself_writes(path, monkeypatch, refused) -> None:
    """fsync leaves the bytes in the drive's memory there, from which they may be written in any order."""
    called, real = [], fcntl.fcntl

    def full(fd, what, *given):
        if what != 51:
            return real(fd, what, *given)
        called.append("full")
        return 0 if refused is None else failing(refused)()

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda fd: called.append("fsync"))
    if refused == errno.EIO:
        with pytest.raises(StoreWriteError, match="I/O error"), FeatureStore(path, mode="a") as store:
            store.transaction()
        assert called == ["full"]
        return
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.put("components/000", b"x")
    write_bytes(path.parent / "report", b"x")
    with whole(path.parent / "export") as partial:
        partial.write_bytes(b"x")
    assert called.count("full") > 3
    assert called.count("fsync") == (called.count("full") if refused else 0)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO], ids=errno.errorcode.get)
def test_a_folder_that_cannot_be_synced_is_taken_as_it_is(tmp_path, monkeypatch, code) -> None:
    def fsync(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            failing(code)()

    monkeypatch.setattr(os, "fsync", fsync)
    if code == errno.EIO:
        with pytest.raises(StoreWriteError, match="I/O error"):
            create(tmp_path / "s")
        return
    with create(tmp_path / "s") as store:
        fill(store, "000", names(9))
    monkeypatch.setattr(os, "fsync", failing(code))
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match=os.strerror(code)):
        make_durable(file.fileno())


def test_what_another_program_has_open_is_named_and_goes_later(path, monkeypatch) -> None:
    """On NFS a file that is removed while it is open stays under another name, and so does its folder."""
    with FeatureStore(path, mode="a") as store:
        change = store.transaction()
        change.erase(["first"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "rmdir", failing(errno.ENOTEMPTY))
            with pytest.raises(StoreWriteError, match=r"committed, but .* another program has a file in it") as caught:
                change.commit()
        assert "taftcache gc" in caught.value.do
        assert store.strays() != []
    with FeatureStore(path, mode="a") as store:
        assert store.strays() == []
        assert holds(store, names(9))


def test_a_lock_that_also_keeps_others_from_reading(path, monkeypatch) -> None:
    """SMB's do: then nobody can read whose lock it is."""
    with FeatureStore(path, mode="a"):
        monkeypatch.setattr(os, "pread", failing(errno.EACCES))
        with pytest.raises(StoreLocked, match="another process writes to it"):
            FeatureStore(path, mode="a")


def test_a_file_system_that_maps_nothing(path, monkeypatch) -> None:
    """Its files are read, and no more than one chunk of them is kept in memory."""

    class Refused(mmap.mmap):
        def __new__(cls, *given, **named):
            failing(errno.ENODEV)()

    with FeatureStore(path) as store:
        monkeypatch.setattr(mmap, "mmap", Refused)
        assert holds(store, [*names(9), "first"])
        assert store.verify() == []
        assert store.shards[0]._maps == {}


MACOS = (".DS_Store", "._shards")


@pytest.mark.parametrize("name", [*MACOS, "lost+found", "mine"])
def test_what_the_system_puts_into_a_folder_is_in_no_stores_way(tmp_path, name) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).mkdir() if name == "lost+found" else (tmp_path / "s" / name).write_bytes(b"x")
    if name == "mine":
        with pytest.raises(StoreError, match="it is not an empty folder"):
            create(tmp_path / "s")
        return
    with create(tmp_path / "s") as store:
        fill(store, "000", names(9))
        assert store.strays() == ([name] if name in MACOS else [])
    assert (tmp_path / "s" / name).exists()
