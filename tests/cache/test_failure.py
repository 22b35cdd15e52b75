"""An error of the system names what could not be done, and why, and advises for that cause."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from taftcache.cache.place.folder import Folder
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError, StoreNotFound, StoreWriteError

from .making import create, fill, names

CAUSES = {
    errno.ENOSPC: ("no space left on the disk", "free some space"),
    errno.EACCES: ("permission denied", "chmod"),
    errno.EROFS: ("the file system is read-only", "mount it for writing"),
    errno.EMFILE: ("too many files are open", "ulimit"),
    errno.EIO: ("the disk reports an I/O error", "check the disk"),
    errno.EBUSY: ("another program has it open, or it is a mount point", "of a mount, name a folder in it"),
    errno.EFBIG: ("the file is too large", "allow larger files (ulimit -f), or name"),
    errno.EPROTO: ("protocol error", "look at the disk"),
}


@pytest.mark.parametrize("code", CAUSES, ids=errno.errorcode.get)
def test_a_write_says_its_cause_and_what_helps(tmp_path, monkeypatch, code) -> None:
    def fail(fd, data):
        raise OSError(code, os.strerror(code))

    with create(tmp_path / "s") as store, store.transaction() as change:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fail)
            with pytest.raises(StoreWriteError) as caught:
                change.put("components/000", b"x")
        assert caught.value.fault == f"cannot write to {tmp_path / 's'}: {CAUSES[code][0]}"
        assert CAUSES[code][1] in caught.value.do
        assert caught.value.do.endswith("the last commit is intact")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_says_what_the_stopped_shard_keeps(tmp_path, monkeypatch, code) -> None:
    def full(fd, data):
        raise OSError(code, os.strerror(code))

    ids = names(20)
    with create(tmp_path / "s") as store:
        fill(store, "000", ids, stop=2)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StoreWriteError, match=CAUSES[code][0]) as caught:
                fill(store, "000", ids)
        assert "taftcache gc STORE --unfinished removes it); the last commit is intact" in caught.value.do
        assert fill(store, "000", ids) > 0, "it goes on from there, as was said"


@pytest.mark.parametrize("write", [Folder.put, Folder.swap])
def test_a_file_that_was_not_written_takes_no_space(tmp_path, monkeypatch, write) -> None:
    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(Folder(tmp_path)) as folder:
        write(folder, "a", b"old")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StoreWriteError, match="no space left"):
                write(folder, "a", b"new")
        assert list(folder.walk()) == ["a"]
        assert folder.read("a", 9) == b"old"


@pytest.mark.parametrize("code", CAUSES, ids=errno.errorcode.get)
def test_a_store_that_cannot_be_created(tmp_path, monkeypatch, code) -> None:
    def fail(*_args, **_named):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(StoreWriteError) as caught:
        create(tmp_path / "s")
    assert caught.value.fault == f"cannot create a store at {tmp_path / 's'}: {CAUSES[code][0]}"
    assert CAUSES[code][1] in caught.value.do


def test_places_that_hold_no_store(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "rest/shards").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    for name, says, do in [
        ("gone", "there is no such folder", "make a store first"),
        ("empty", "there is no manifest.json", "make a store first"),
        ("rest", "there is no manifest.json", "run the same taftcache copy again"),
        ("file", "a file, or a link that leads nowhere, is where a folder must be", "name a folder"),
    ]:
        for mode in ("r", "a"):
            with pytest.raises(StoreNotFound, match=f"{name}: {says}") as refused:
                FeatureStore(tmp_path / name, mode=mode)
            assert do in str(refused.value.do)
    for name in ("file", "file/s"):
        with pytest.raises(
            StoreError,
            match=f"cannot create a store at .*{name}: a file, or a link that leads nowhere, is where a folder must be",
        ):
            create(tmp_path / name)
