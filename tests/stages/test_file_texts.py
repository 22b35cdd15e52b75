"""What an audit reads of a file that is no table of ours: logs that are cut off meanwhile, zeros, objects of git."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest

import taftcache
from taftcache.stages import file_texts
from taftcache.stages.file_texts import FileTexts, read_texts
from tests import forked
from tests.stages.test_byproducts import some_vectors

# Reads argv[1] again and again; each time it is cut off one line of the reader later. What a map shows of it ends the
# process then.
CUT_OFF = """
import sys
from pathlib import Path
from taftcache.stages import file_texts

path, left = Path(sys.argv[1]), 0
data, file_texts.BLOCK = path.read_bytes(), 1 << 12
whole = file_texts.read_texts(path)
path.write_bytes(data[:1000])
some = file_texts.read_texts(path)

def each_line(frame, event, arg):
    global left
    of = frame.f_code
    if of.co_filename not in (file_texts.__file__, sys.argv[2]) or of.co_name[0] == "<" or of.co_name == "add":
        return None
    if event == "line":
        left -= 1
        if left == 0:
            with path.open("r+b") as file:
                file.truncate(1000)
    return each_line

lines, said = 0, []
while left <= 0:
    path.write_bytes(data)
    left = lines = lines + 1
    sys.settrace(each_line)
    read = file_texts.read_texts(path)
    sys.settrace(None)
    assert not read.whole or read in (whole, some), read
    said.append(read.whole)
assert whole.whole and said[-1] and False in said
"""

CUT_OFF_DIGEST = """
import os, sys, threading
from pathlib import Path
from taftcache.backbone.files import file_digest

os.truncate(sys.argv[1], 4 << 30)
threading.Timer(0.2, lambda: os.truncate(sys.argv[1], 1000)).start()
file_digest(Path(sys.argv[1]))
"""


def cut_files(place: Path) -> dict[str, Path]:
    """Files of several kinds with texts in them, none of which a library reads at once."""
    files = {name: place / name for name in ("a.log", "a.bin", "a.npy", "records.npy", "a.h5", "a.npz", "a.arrow")}
    ids = np.array([f"u/{k:05d}" for k in range(600)])
    files["a.log"].write_text("\n".join(ids))
    files["a.bin"].write_bytes(b"\1\0" + "\n".join(ids).encode())
    np.save(files["a.npy"], ids)
    np.save(files["records.npy"], np.array([(i, 1.0) for i in ids], [("of", "S8"), ("x", "f8")]))
    np.savez(files["a.npz"], ids=ids)
    with h5py.File(files["a.h5"], "w") as file:
        file["ids"] = ids.astype("S8")
    if find_spec("pyarrow") is None:
        return files
    import pyarrow as pa

    table = pa.table({"id": ids, "x": np.zeros(len(ids))})
    with pa.ipc.new_stream(files["a.arrow"], table.schema) as writer:
        writer.write_table(table, max_chunksize=200)
    return files


@pytest.mark.parametrize("name", ["a.log", "a.bin", "a.npy", "records.npy", "a.h5", "a.npz", "a.arrow"])
def test_a_file_that_is_cut_off_while_it_is_read_ends_no_audit(tmp_path, name):
    file = cut_files(tmp_path)[name]
    if not file.exists():
        pytest.skip("pyarrow is not installed")
    from taftcache.backbone.sources import columns

    done = forked.run(CUT_OFF, file, columns.__file__)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_is_cut_off_while_its_digest_is_taken_ends_no_audit(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    done = forked.run(CUT_OFF_DIGEST, tmp_path / "model.onnx")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("form", ["utf-8", "utf-16-le"])
def test_zeros_are_no_lines_and_take_no_memory(tmp_path, monkeypatch, form):
    """A log whose place was taken beforehand, a disk's picture: each zero became a line."""
    monkeypatch.setattr(file_texts, "MAX_TEXT", 3 << 20)
    file, said = tmp_path / "a.log", "first line\nu/7 removed"
    for begin, end in (("", ""), (said, ""), ("", said), (said, said)):
        with file.open("wb") as out:
            out.write(begin.encode(form))
            out.truncate(32 << 20)
            out.seek(0, 2)
            out.write(end.encode(form))
        tracemalloc.start()
        read, peak = read_texts(file), tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert read == FileTexts(about=f"{begin}\n{end}")
        assert peak < 16 << 20


def loose(kind: str, data: bytes, level: int = 1) -> bytes:
    """A file of git's with one object in it."""
    return zlib.compress(f"{kind} {len(data)}\0".encode() + data, level)


def test_what_git_keeps_in_files_of_its_own_is_searched(tmp_path):
    """Each counted as packed, and a strict audit of a project never passed."""
    store = some_vectors(tmp_path / "store", ["cust/0007", "0008.png", *(f"u/{k}" for k in range(20))])
    place, plain = tmp_path / "project" / ".git" / "objects", b"nothing of anyone"
    (place / "ab").mkdir(parents=True)
    (place / "pack").mkdir()
    objects = {
        "plain": loose("blob", plain),
        "empty": loose("blob", b""),
        "other": loose("tree", b"100644 other.png\0" + bytes(range(20))),
        "commit": loose("commit", b"tree 12\nauthor A <a@b.c> 1 +0000\n\nRemove cust/0007, as asked\n"),
        "tag": loose("tag", b"object 12\n\nbefore cust/0007 went\n", 9),
        "tree": loose("tree", b"100644 0001.png\0" + bytes(20) + b"100644 0008.png\0" + bytes(range(20))),
        "text": loose("blob", "id,label\ncust/0007,3\n".encode("utf-16"), 5),
        "picture": loose("blob", b"\x89PNG\0\1" + b"made of what was once called: cust/0007" + bytes(9)),
    }
    for name, data in objects.items():
        (place / "ab" / name).write_bytes(data)
    taftcache.forget(store, ["cust/0007", "0008.png"])
    report = taftcache.audit(store, also=[tmp_path / "project"], strict=True)
    assert {Path(f.where).name for f in report.findings} == {"commit", "tag", "tree", "text", "picture"}
    assert {(f.kind, "git" in f.do) for f in report.findings} == {("by-product", True)}
    for name in ("commit", "tag", "tree", "text", "picture"):
        (place / "ab" / name).unlink()
    assert taftcache.audit(store, also=[tmp_path / "project"], strict=True).passed
    odd = {
        "gzip": loose("blob", gzip.compress(plain)),
        "zip": loose("blob", b"PK\3\4" + plain),
        "short": loose("blob", plain)[:-9],
        "longer": zlib.compress(b"blob 3\0" + plain),
        "large": zlib.compress(b"blob 999999999999\0" + plain),
        "none": zlib.compress(plain),
        "pack": b"PACK\0\0\0\2\0\0\0\1" + plain,
    }
    for name, data in odd.items():
        (place / "pack" / name).write_bytes(data)
    (place / "pack" / "power").write_text("x^2 is no object, nor packed")
    (found,) = taftcache.audit(store, also=[tmp_path / "project"], strict=True).findings
    assert f"{len(odd)} files (" in found.problem
    assert "git's pack" in found.problem


def test_no_object_of_git_is_unpacked_to_more_than_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(file_texts, "MAX_TEXT", 1 << 20)
    for size, said in ((1 << 20) - 20, True), (1 << 20, False), (64 << 20, False):
        (tmp_path / "a").write_bytes(loose("blob", b"u" * size))
        tracemalloc.start()
        read, peak = read_texts(tmp_path / "a"), tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert read.whole == said
        assert peak < 8 << 20
    (tmp_path / "a").write_bytes(zlib.compress(b"blob 9\0" + b"u" * (64 << 20)))
    assert not read_texts(tmp_path / "a").whole


def test_links_to_folders_elsewhere_are_named(tmp_path):
    """They were passed over without a word, with --strict too."""
    store = some_vectors(tmp_path / "store", [f"u/{k}" for k in range(20)])
    place, other = tmp_path / "place", tmp_path / "place of others"
    for folder in (place / "below", other / "deep"):
        folder.mkdir(parents=True)
    taftcache.copy(store, place / "copy")
    (other / "deep" / "ids.txt").write_text("u/1\n")
    (place / "again").symlink_to(place / "below")
    (place / "store").symlink_to(store)
    (place / "nowhere").symlink_to(tmp_path / "nothing")
    assert taftcache.audit(store, also=[place], strict=True).passed
    (place / "below" / "out").symlink_to(other)
    assert taftcache.audit(store, also=[place], strict=True).passed  # nothing was forgotten yet
    for each in (store, place / "copy"):
        taftcache.forget(each, ["u/1"])
    (place / "copy" / "out").symlink_to(other / "deep")
    (note,) = [n for n in taftcache.audit(store, also=[place]).notes if "not searched" in n]
    assert note.startswith(f"{place}: 2 links (")
    assert "--also" in note
    (found,) = taftcache.audit(store, also=[place], strict=True).findings
    assert (found.kind, found.where) == ("undecided", str(place))
    (found,) = taftcache.audit(store, also=[place, other], strict=True).findings
    assert found.where == str(other / "deep" / "ids.txt")
