"""What is made for others is there whole or not at all, and whether it can be written is known before any work."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

import taftcache
from taftcache.cache.place.failure import cause
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import RecipeError, StoreWriteError, UnreadableImage
from taftcache.recipe import load_recipe
from taftcache.stages.files import models
from taftcache.stages.files.exchange import FORMATS
from taftcache.stages.writing import alone, whole, writable
from tests import forked
from tests.stages.making import toml

KINDS = [*FORMATS, "model", "component"]

KILLED = """
import os, sys
from tests.stages.test_writing import write
os.fsync = lambda fd: os._exit(9)
write(*sys.argv[1:])
"""


def write(path, kind, place, force=False) -> None:
    """The export ``kind`` of a store."""
    if kind in FORMATS:
        taftcache.export(path, place, format=kind, force=force)
        return
    with FeatureStore(path) as store:
        if kind == "model":
            taftcache.export_model(store, place, force=force)
        else:
            taftcache.export_component(store, "000", place, force=force)


@pytest.mark.law("What is exported is there whole, or not at all under its name")
@pytest.mark.parametrize("kind", KINDS)
def test_an_export_that_is_killed_is_in_nobodys_way(finished, tmp_path, kind):
    """All work done, and the process gone before it has its name: what is left has another one, and goes next time."""
    assert forked.run(KILLED, finished, kind, tmp_path / "out").returncode == 9
    (left,) = tmp_path.iterdir()
    assert re.match(r"out\.\d+-\d+-[0-9a-f]{8}\.partial", left.name)
    write(finished, kind, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_there_stays(finished, tmp_path, kind):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(StoreWriteError, match="it exists already") as caught:
            write(finished, kind, tmp_path / name)
        assert ("or delete this one first" in caught.value.do) == (kind in ("model", "embedding-projector"))
    assert (
        (tmp_path / "file").read_text(encoding="utf-8")
        == (tmp_path / "folder" / "file").read_text(encoding="utf-8")
        == "mine"
    )
    assert len(list(tmp_path.rglob("*"))) == 3


@pytest.mark.law("An export by force replaces an earlier one whole or not at all, and nothing else")
@pytest.mark.parametrize("kind", ["hdf5", "parquet", "npz", "model", "component"])
def test_force_replaces_an_earlier_export_and_nothing_else(finished, tmp_path, monkeypatch, kind):
    """As in a notebook's cell that is run again."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    other, place = tmp_path / "other", tmp_path / "place" / "out"
    other.mkdir()
    (other / "config.json").write_text("mine")
    (tmp_path / "file").write_text("mine")
    place.parent.mkdir()
    for mine in (other, tmp_path / "file"):
        with pytest.raises(StoreWriteError):
            write(finished, kind, mine, force=True)
    write(finished, kind, place, force=True)
    mark = place / "README.md" if kind == "model" else place
    with mark.open("ab") as file:  # an earlier one, of other rows
        file.write(b"\0" if kind == "component" else b"earlier")
    if kind == "component":
        taftcache.export_component(finished, "001", tmp_path / "second")
        place.write_bytes((tmp_path / "second").read_bytes())
    before = mark.read_bytes()
    with pytest.raises(StoreWriteError, match=r"exists already\n.*--force; in Python force=True"):
        write(finished, kind, place)
    monkeypatch.setattr("taftcache.stages.writing._sync", full)  # the last step before it gets its name
    with pytest.raises(StoreWriteError, match="space"):
        write(finished, kind, place, force=True)
    monkeypatch.undo()
    assert mark.read_bytes() == before
    if kind == "model":
        (place / ".DS_Store").write_text("")  # macOS puts it there
        (tmp_path / "link").symlink_to(place)
        with pytest.raises(StoreWriteError, match="exists already"):
            write(finished, kind, tmp_path / "link", force=True)
    write(finished, kind, place, force=True)
    assert mark.read_bytes() != before
    assert [file.name for file in place.parent.iterdir()] == ["out"]
    assert (other / "config.json").read_text(encoding="utf-8") == (tmp_path / "file").read_text(encoding="utf-8")
    if kind == "model":
        (other / "about.json").write_text('{"me": "mine"}')
        with pytest.raises(StoreWriteError, match="it is no saved model"):
            write(finished, kind, other, force=True)
        assert len(list(other.iterdir())) == 2
        noted = pytest.raises(StoreWriteError, match=r"other files, too\n  got: notes.txt")
        save = models.save_model
        with noted, monkeypatch.context() as patch:  # once it was seen that there are no other files
            late = lambda *a, **b: (place / "notes.txt").write_text("mine") and save(*a, **b)  # noqa: E731
            patch.setattr(models, "save_model", late)
            write(finished, kind, place, force=True)
        with noted:
            write(finished, kind, place, force=True)
        assert (place / "notes.txt").exists()


def refused() -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def full(_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", ["npz", "model", "component"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_what_the_system_refuses_is_said_before_any_work(finished, tmp_path, monkeypatch, kind, code):
    def refuse(**options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr("taftcache.model.predictor.TangentModel.load", lambda *args: pytest.fail("work was begun"))
    with pytest.raises(StoreWriteError, match=cause(OSError(code, ""))) as caught:
        write(finished, kind, tmp_path / "out")
    assert "look at the disk" not in caught.value.do
    assert list(tmp_path.iterdir()) == []


def test_a_place_for_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    writable(tmp_path / "new")
    writable(tmp_path / "file", again=True)
    refused = {"file": False, "folder": False, "nowhere/x": False, "file/x": False, "x" * 300: False, "folder/": True}
    refused |= {"/": True}
    for name, again in refused.items():
        with pytest.raises(StoreWriteError, match="cannot write"):
            writable(tmp_path / name, again=again)


@pytest.mark.law("A file that a command did not write is not written over")
@pytest.mark.parametrize("name", ["key.pem", "pipe", "null"])
def test_only_what_a_page_may_replace_is_replaced(finished, tmp_path, name):
    """A page and an empty file are."""
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(StoreWriteError, match="not written by this command") as caught:
        taftcache.write_report(finished, tmp_path / name, neighbours=False)
    assert "KEY" not in str(caught.value)
    assert (tmp_path / "key.pem").read_text(encoding="utf-8") == "-----BEGIN PRIVATE KEY-----"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_page_is_written_again(finished, tmp_path):
    (page := tmp_path / "page.html").write_text("")
    for _ in range(2):
        taftcache.write_report(finished, page, neighbours=False)
    assert page.stat().st_size > 1000


def test_a_place_for_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "new/below"):
        writable(tmp_path / name, folder=True)
    writable(tmp_path, folder=True, again=True)
    for name, again in (("file", False), ("file", True), ("file/x", True), ("", False)):
        with pytest.raises(StoreWriteError, match="cannot write"):
            writable(tmp_path / name, folder=True, again=again)
    assert not (tmp_path / "new").exists()


def test_a_folder_whose_place_nothing_can_take_is_refused_before_any_work(tmp_path, monkeypatch):
    """A volume of a container: after an hour of training, the last step failed."""
    (tmp_path / "out").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: Path(path).name == "out")
        with pytest.raises(StoreWriteError, match="out: it is a mount point") as caught:
            writable(tmp_path / "out", folder=True)
        assert f"name a folder inside it: {tmp_path}/out/made" in str(caught.value)
        writable(tmp_path / "out", folder=True, again=True)
        writable(tmp_path / "out" / "made", folder=True)
    asked, real = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **said: asked.append(said["dir"]) or real(**said))
    for again, probed in ((False, tmp_path), (True, tmp_path / "out")):
        writable(tmp_path / "out", folder=True, again=again)
        assert asked.pop() == probed


def test_a_file_system_that_exchanges_no_folders_is_named(tmp_path, monkeypatch):
    """And what is there stays."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "earlier").write_text("")

    class Without:
        def __init__(self, *_, **__):
            pass

        def renameat2(self, *_):
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Without)
    with (
        pytest.raises(StoreWriteError, match="cannot exchange two folders"),
        whole(tmp_path / "out", folder=True, again=True) as partial,
    ):
        partial.mkdir()
    assert [file.name for file in tmp_path.rglob("*")] == ["out", "earlier"]


def test_what_another_machine_still_writes_is_left_alone_for_a_day(tmp_path):
    """Its process has a number that is unknown here."""
    young, old, folder = (tmp_path / f"out.999999999-1-0000000{k}.partial" for k in range(3))
    for file in (young, old):
        file.write_text("")
    folder.mkdir()
    (folder / "rows").write_text("")
    for file in (old, folder):  # of which only the file in it is young
        os.utime(file, (1e9, 1e9))
    with whole(tmp_path / "out") as partial:
        partial.write_text("done")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", young.name, folder.name]


@pytest.mark.parametrize("late", [False, True])
def test_what_another_program_puts_into_the_folder_meanwhile_stays(tmp_path, monkeypatch, late):
    (tmp_path / "out").mkdir()
    if late:  # once it was found to be empty
        monkeypatch.setattr("taftcache.stages.writing._is_empty", lambda folder: True)

    def both_write() -> None:
        with whole(tmp_path / "out", folder=True) as partial:
            partial.mkdir()
            (tmp_path / "out" / "theirs").write_text("")

    with pytest.raises(StoreWriteError, match="another program has put files there meanwhile"):
        both_write()
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["out", "theirs"]


def test_a_folder_with_files_of_macos_is_empty(tmp_path):
    for name in ("new", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".DS_Store").write_text("")
        (tmp_path / name / "._x").write_text("")
    (tmp_path / "mine" / "x").write_text("")
    with whole(tmp_path / "new", folder=True) as partial:
        partial.mkdir()
        (partial / "file").write_text("")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["file"]
    with pytest.raises(StoreWriteError, match="it exists already"):
        writable(tmp_path / "mine", folder=True)


@pytest.mark.parametrize("of_another_user", [False, True])
def test_what_another_process_still_writes_is_left_alone(tmp_path, monkeypatch, of_another_user):
    if of_another_user:
        ask, parent = os.kill, os.getppid()
        monkeypatch.setattr(os, "kill", lambda process, sign: refused() if process == parent else ask(process, sign))
    theirs, old = tmp_path / f"out.{os.getppid()}-1.partial", tmp_path / "out.999999999-1.partial"
    theirs.write_text("")
    old.mkdir()
    (tmp_path / "out.999999999.partial").write_text("")  # of an earlier release
    (tmp_path / "out.partial").write_text("")
    with whole(tmp_path / "out") as partial:
        partial.write_text("done")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["out", "out.partial", theirs.name])


@pytest.mark.law("What is exported is there whole, or not at all under its name")
def test_threads_that_write_the_same_file_at_once_all_succeed(tmp_path):
    """They shared one partial file: the slower one was told that there is no such folder."""
    both = threading.Barrier(2, timeout=60)

    def write_to(text: str) -> None:
        with whole(tmp_path / "out", again=True) as partial:
            both.wait()
            partial.write_text(text)
            both.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_to, ["one", "another"]))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text(encoding="utf-8") in ("one", "another")


def test_a_full_disk_is_said_of_the_file_that_was_asked_for(finished, tmp_path, monkeypatch):
    def full(*given, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(h5py.Group, "create_dataset", full)
    with pytest.raises(StoreWriteError, match=f"^cannot write {tmp_path}/rows.h5: no space left on the disk"):
        taftcache.export(finished, tmp_path / "rows.h5")
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_no_image_and_no_component(finished, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with FeatureStore(finished) as store:
        with pytest.raises(UnreadableImage, match="a pipe, socket"):
            taftcache.predict(store, [tmp_path / "pipe.png"])
        for file in (tmp_path / "pipe.png", "/dev/zero"):
            with pytest.raises(RecipeError, match="is not a file"):
                taftcache.import_component(store, type(tmp_path)(file), "new")


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--shard", "000"]], ids=" ".join)
def test_a_terminal_that_knows_ascii_only(finished, words):
    line = [sys.executable, "-c", "from taftcache.cli import main; main()", words[0], str(finished), *words[1:]]
    run = subprocess.run(
        line, capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "\\u" in run.stdout or "\\x" in run.stdout


@pytest.mark.parametrize("command", ["extract", "extract --dry-run"])
def test_a_store_that_the_disk_has_no_room_for_is_not_begun(command, tmp_path, monkeypatch, capsys):
    file = toml(tmp_path / "tiny.toml", tmp_path / "store", data={"source": "digits", "limit": 40}, store={"shards": 1})
    needed = taftcache.estimate(load_recipe(file)).bytes
    for free in (needed - 1, needed):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: shutil._ntuple_diskusage(free, 0, free))
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), str(file)])
        assert ended.value.code == (5 if free < needed else 0)
        if free < needed:
            assert "too little space" in capsys.readouterr().err
            assert not (tmp_path / "store").exists()


def test_a_copy_that_the_disk_has_no_room_for_is_not_begun(finished, tmp_path, monkeypatch, capsys):
    """Each file takes whole blocks of the disk."""
    block = os.statvfs(tmp_path).f_frsize
    whole = tmp_path / "whole"
    taftcache.copy(finished, whole)
    names = [path for path in whole.rglob("*") if path.is_file() and path.name not in ("manifest.json", "lock")]
    needed = sum(-(-path.stat().st_size // block) * block for path in names)
    for free in (needed - 1, needed):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: shutil._ntuple_diskusage(free, 0, free))
        with pytest.raises(SystemExit) as ended:
            main(["copy", str(finished), str(tmp_path / "copy")])
        assert ended.value.code == (5 if free < needed else 0)
        if free < needed:
            assert "too little space" in capsys.readouterr().err
            assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("command", ["import", "import an export", "convert"])
def test_an_import_or_a_conversion_that_the_disk_has_no_room_for_is_not_begun(
    command, finished, tmp_path, monkeypatch, capsys
):
    store = tmp_path / "store"
    np.savez(tmp_path / "rows.npz", features=np.eye(40, dtype=np.float32), labels=np.arange(40) % 2)
    if command == "import an export":
        taftcache.export(finished, tmp_path / "store.h5")
    given = {"import": tmp_path / "rows.npz", "convert": finished}.get(command, tmp_path / "store.h5")
    words = [str(given), str(store), *(["--chunk-rows", "7"] if command == "convert" else [])]
    for free in (1, 1 << 40):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: shutil._ntuple_diskusage(free, 0, free))
        with pytest.raises(SystemExit) as ended:
            main([command.split()[0], *words])
        assert ended.value.code == (5 if free == 1 else 0)
        if free == 1:
            assert "too little space" in capsys.readouterr().err
            assert not store.exists()


def test_a_lock_is_no_file_of_others(tmp_path):
    """It was overwritten, and gone afterwards."""
    (tmp_path / "lock").write_text("the combination is 1234\n")
    with pytest.raises(StoreWriteError, match="was not written by this command"), alone(tmp_path):
        raise AssertionError
    assert (tmp_path / "lock").read_text() == "the combination is 1234\n"
    (tmp_path / "lock").write_text("1234\n")  # of a process that was killed
    with alone(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / "lock").exists()
