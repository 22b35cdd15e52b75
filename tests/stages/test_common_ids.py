"""What an audit makes of ids that are also words, numbers and dates of anything, and of those that are not."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import taftcache
from taftcache.cache.kept_keys import TombstoneKeys
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.stages.audit import byproducts, known
from taftcache.stages.file_texts import _apart, read_texts
from taftcache.stages.texts import LONGEST, listed, texts_in
from tests.stages.test_byproducts import HAS_PARQUET, some_vectors

COMMON = ["42", "invoice", "2024-01-31", "000017"]
LONG = "2257989f-aaaa-4bbb-8ccc-1234567890ab"


def made(tmp_path: Path, *gone: str) -> tuple[Path, Path]:
    """A store with these ids and others, and a folder to search."""
    store = some_vectors(tmp_path / "store", [*gone, "3", "17", "150", *(f"u/{k}" for k in range(20))])
    (place := tmp_path / "elsewhere").mkdir()
    return store, place


def audited(store: Path, place: Path, **options: object) -> tuple[dict[str, str], list[str]]:
    """What is found by path below the folder, and the notes about the folder."""
    report = taftcache.audit(store, also=[place], **options)
    found = {Path(f.where).relative_to(place).as_posix(): f.problem for f in report.findings}
    return found, [note for note in report.notes if str(place) in note]


HARMLESS = {
    "params/seed": "42",
    "VERSION": "42\n",
    "run.pid": "42\n17\n",
    "meta.yaml": "run_id: '42'\nexperiment_id: 42\n",
    "book.ipynb": json.dumps({"cells": [{"outputs": ["42", "invoice"], "execution_count": 42}]}),
    "access.log": '10.0.0.42 "GET /invoice/42?page=42 HTTP/1.1" 200 42 - 2024-01-31\n',
    "pay.py": "def invoice(qty=42):\n    return 'invoice'\n",
    "METADATA": "Name: invoice\nVersion: 42\nRequires-Dist: invoice\n",
    "qty.csv": "qty\n3\n42\n17\n150\n",
    "quoted.csv": '"price","qty"\n"17","42"\n"3","150"\n',
    "classes.json": json.dumps({"annotations": [{"category_id": 42, "n_samples": 42, "valid": 42}]}),
    "padded.txt": "frame 000017 of 42\n",
    "year.txt": "2024\n",
    "count.json": json.dumps({"samples": 42, "bytes": 10482}),
    "picture.svg": '<svg width="10482" viewBox="0, 2024, 3, 10482"><text>10482, in 2024</text></svg>\n',
    "price.csv": "price,qty\n10482,3\n",
}
TOLD = {
    "no heading.csv": "x,10482\ny,3\n",
    "second.txt": "price,qty\n3,17\n\nid,y\n42,3\n",
    "path.csv": "id\nraw/42\n",
    "end.txt": "It was id=42.\n",
    "one.csv": "id\n42\n",
    "quoted ids.csv": '"price","sample_id"\n"17","42"\n',
    "words.tsv": "label\tid\n3\tinvoice\n",
    "padded.csv": "userId,y\n000017,3\n",
    "keys.json": json.dumps({"seed": 3, "sample_ids": [3, 42]}),
    "key.json": json.dumps({"of": [{"imageId": 42}]}),
    "samples.json": json.dumps({"samples": ["invoice"]}),
    "lines.jsonl": '{"id": "2024-01-31", "y": 3}\n{"id": 5, "y": 3}\n',
    "key.yaml": "sample: 42\n",
    "log.txt": "skipped id=42, twice\n",
    "list.txt": "3\n42\n17\n150\n",
    "list.json": '["3", "invoice", "17"]',
}


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_common_id_is_found_where_the_place_says_that_it_is_one(tmp_path, monkeypatch):
    """And elsewhere it is a note, for nearly every folder has a 42 in it."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    gone = [*COMMON, "2024", "10482"]
    store, place = made(tmp_path, *gone)
    (place / "params").mkdir()
    for name, text in (HARMLESS | TOLD).items():
        (place / name).write_text(text)
    np.savez(place / "told.npz", sample_id=["42", "a"])
    np.savez(place / "other.npz", qty=["42", "a"])
    found, notes = audited(store, place)
    assert (found, notes) == ({}, [])
    taftcache.forget(store, gone)
    found, notes = audited(store, place)
    assert found.keys() == {*TOLD, "told.npz"}
    (note,) = notes
    assert note.startswith(f"{place}: {len(HARMLESS) + 1} files (")
    assert "a number, a date or a plain word where nothing says that it is an id" in note


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_common_id_is_found_in_every_export(tmp_path, monkeypatch):
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    store, place = made(tmp_path, *COMMON)
    forms = {"rows.h5": "hdf5", "rows.npz": "npz", "tables": "embedding-projector"}
    for file, form in (forms | ({"rows.parquet": "parquet"} if HAS_PARQUET else {})).items():
        taftcache.export(store, place / file, format=form)
    taftcache.write_report(store, place / "page.html")
    taftcache.copy(store, place / "copy")
    taftcache.forget(store, COMMON)
    found, _ = audited(store, place)
    assert {name.split("/")[0] for name in found} == {*forms, "page.html", "copy"} | ({"rows.parquet"} & found.keys())
    assert (found.get("rows.parquet") is not None) == HAS_PARQUET
    assert found["rows.npz"] == "it holds forgotten ids: 4 (in ids)"


INSIDE = [
    "GET /api/users/{}/avatar HTTP/1.1",
    "/samples/{}?full=1",
    '"s3://bucket/raw/{}/original.jpg"',
    "see \u201c{}\u201d",
    "\u6837\u672c{}\u3002",
    "{}\u2014done",
    "a%20{}%20b",
    "?path=%2Fdata%2F{}%2Fb",
    "saved {}.jpg",
    "https://ex.org/of/{}#top",
    "\u30b5\u30f3\u30d7\u30eb{}\u306f\uff01",
]


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("gone", [LONG, "anna.berg@example.org", "10482231", "c0/s 1.png", "raw/a/b.png"])
def test_an_id_within_an_address_is_found(tmp_path, monkeypatch, gone):
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    store, place = made(tmp_path, gone)
    for k, text in enumerate(INSIDE):
        (place / f"{k}.log").write_text(f"first\n{text.format(gone)}\n")
        (place / f"other {k}.log").write_text(f"first\n{text.format('x' + gone)}\n")
    taftcache.forget(store, [gone])
    found, _ = audited(store, place)
    assert found == {f"{k}.log": "it holds forgotten ids: 1 (line 2)" for k in range(len(INSIDE))}


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("gone", [LONG, "anna.berg@example.org", "img_1", "10482231"])
def test_a_file_with_the_name_of_an_id_is_found(tmp_path, gone):
    store, place = made(tmp_path, gone, "42")
    for name in (f"{gone}.jpg", gone, f"x{gone}.jpg", "42.jpg"):
        (place / name).write_bytes(b"\x89PNG")
    taftcache.forget(store, [gone, "42"])
    found, (note,) = audited(store, place)
    assert set(found) == {f"{gone}.jpg", gone}
    assert "1 file (42.jpg) with a forgotten id" in note


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("lost", [[], ["zarr.json"], ["zarr.json", "sample_id/zarr.json"]])
def test_a_shard_without_its_store_is_found(tmp_path, lost):
    store, place = made(tmp_path, "42", LONG)
    shutil.copytree(store / "shards", place / "shards")
    for of in (path for path in (place / "shards").iterdir() if path.is_dir()):
        for name in lost:
            (of / name).unlink()
    assert audited(store, place) == ({}, [])
    taftcache.forget(store, ["42", LONG])
    found, _ = audited(store, place)
    assert found
    assert all(name.endswith("sample_id/c.0") for name in found)
    assert {problem.partition(":")[0] for problem in found.values()} == {
        "a shard without its store, with rows of forgotten ids"
    }


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")  # zarr below 3.2, of text
@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("separator", [".", "/"])
def test_zarr_arrays_of_others_are_searched(tmp_path, monkeypatch, separator):
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    store, place = made(tmp_path, "42", LONG)
    key = {"name": "default", "separator": separator}

    def put(name: str, values: np.ndarray, **how: object) -> None:
        options = {"chunks": (2,), "compressors": None, "chunk_key_encoding": key, **how}
        array = zarr.create_array(str(place / name), shape=values.shape, dtype=values.dtype, **options)
        array[:] = values

    for name, values in (("who", ["a", "b", LONG]), ("bytes", [b"a", b"b", LONG.encode()])):
        put(name, np.array(values))
    put("sample_id", np.array([1, 3, 42]))
    put("large_id", np.array([1, 3, 42], ">i4"), serializer=zarr.codecs.BytesCodec(endian="big"))
    put("qty", np.array([1, 3, 42]))
    put("x", np.zeros(3), compressors="auto")
    put("filled_id", np.array([1, 3, 5]), fill_value=42)
    put("packed_id", np.array([1, 3, 5]), compressors="auto")
    put("cut_id", np.array([1, 3, 5]))
    put("lost", np.array([1, 3, 5]))
    (place / "lost" / "zarr.json").unlink()
    first = place / "cut_id" / f"c{separator}0"
    first.write_bytes(first.read_bytes()[:-1])
    zarr.create_array(str(place / "old_id"), shape=3, dtype="i8", zarr_format=2)[:] = 42
    taftcache.forget(store, ["42", LONG])
    found, notes = audited(store, place)
    assert {path.split("/")[0] for path in found} == {"who", "bytes", "sample_id", "large_id"}
    assert found["who/zarr.json"] == "it holds forgotten ids: 1 (in who)"
    (common,) = [note for note in notes if "may mean something else" in note]
    assert "2 files (filled_id/zarr.json, qty/zarr.json)" in common  # the one says 42 in its description
    (unread,) = [note for note in notes if "not searched" in note]
    assert all(f"{name}/" in unread for name in ("packed_id", "cut_id", "lost", "old_id")) or "more" in unread
    _, (note,) = audited(store, place / "old_id")
    assert ".zarray" in note


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_finding_says_where_and_what_to_do(tmp_path):
    store, place = made(tmp_path, LONG, "u/x")
    (place / "notes.md").write_text(f"one\ntwo {LONG}\nu/x and {LONG}\n")
    with h5py.File(place / "rows.hdf5", "w") as file:
        file["of/who"] = [LONG]
    taftcache.export(store, place / "rows.npz", format="npz")
    taftcache.export(store, place / "rows.h5", format="hdf5")
    taftcache.forget(store, [LONG, "u/x"])
    findings = taftcache.audit(store, also=[place]).findings
    assert {Path(f.where).name: (f.problem, "look at it" in f.do) for f in findings} == {
        "notes.md": ("it holds forgotten ids: 2 (line 2, line 3)", True),
        "rows.h5": ("it holds forgotten ids: 2 (in sample_id)", False),
        "rows.hdf5": ("it holds forgotten ids: 1 (in who)", True),
        "rows.npz": ("it holds forgotten ids: 2 (in ids)", False),
    }
    assert not [f for f in findings if LONG in f.problem + f.do]


def test_the_same_in_many_folders_is_one_finding(tmp_path):
    store, place = made(tmp_path, LONG, "u/x")
    for run in range(7):
        for name in ("params", "tags"):
            (place / "runs" / f"r{run}" / name).mkdir(parents=True)
            (place / "runs" / f"r{run}" / name / "of").write_text(LONG + ("\nu/x" if run else ""))
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "one.txt").write_text(LONG)
    taftcache.forget(store, [LONG, "u/x"])
    found, _ = audited(store, place)
    assert found["a/b/one.txt"] == "it holds forgotten ids: 1 (line 1)"
    assert set(found) == {"a/b/one.txt", "runs"}
    which = "r0/params/of, r0/tags/of, r1/params/of, r1/tags/of, r2/params/of and 9 more"
    assert found["runs"] == f"14 files ({which}): it holds forgotten ids, the first: 1 (line 1)"


def test_what_is_left_out_is_counted(tmp_path):
    store, place = made(tmp_path, LONG, "42")
    (place / "ci").mkdir()
    for name, text in (("ci/a.log", LONG), ("ci/b.log", "the 42"), ("ci/c.log", "fine"), ("d.log", "fine")):
        (place / name).write_text(text)
    with pytest.raises(RecipeError, match="exceptions are for what other folders hold"):
        taftcache.audit(store, harmless=["ci/*"])
    taftcache.forget(store, [LONG, "42"])
    assert set(audited(store, place)[0]) == {"ci/a.log"}
    assert set(audited(store, place, harmless=["a.log", "ci"])[0]) == {"ci/a.log"}
    report = taftcache.audit(store, also=[place], harmless=["nothing", "ci/*"], strict=True)
    assert (report.passed, report.harmless) == (True, 2)
    (note,) = [note for note in report.notes if str(place) in note]
    assert note.startswith(f"{place}: 2 files (ci/a.log, ci/b.log) left out of the verdict by --except")


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_dates_are_found_in_columns_of_dates(tmp_path, monkeypatch):
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    gone, other = "2024-01-31", "2023-05-06"
    store, place = made(tmp_path, gone)
    days = np.array([gone, other], "M8[D]")
    np.savez(place / "a.npz", id=days, qty=[1, 2])
    np.savez(place / "seconds.npz", id=days.astype("M8[s]"))
    np.savez(place / "when.npz", when=days)
    np.savez(place / "other.npz", id=days[1:])
    found, perhaps = {"a.npz", "seconds.npz"}, ["when.npz"]
    if HAS_PARQUET:
        import pyarrow as pa
        from pyarrow import parquet

        for kind, name in ((pa.date32(), "a"), (pa.timestamp("ns"), "b"), (pa.date64(), "c")):
            table = pa.table({"id": pa.array([gone, other, None]).cast(kind)})
            parquet.write_table(table, place / f"{name}.parquet")
            parquet.write_table(table.rename_columns(["when"]), place / f"{name} when.parquet")
            with pa.ipc.new_stream(place / f"{name}.arrow", table.schema) as writer:
                writer.write_table(table)
            found |= {f"{name}.parquet", f"{name}.arrow"}
            perhaps = [*perhaps[:-1], f"{name} when.parquet", "when.npz"]
    taftcache.forget(store, [gone])
    names, (note,) = audited(store, place)
    assert set(names) == found
    assert note.startswith(f"{place}: {len(perhaps)} file")
    assert f"({', '.join(map(repr, perhaps))})".replace("'when.npz'", "when.npz") in note


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_what_is_written_into_the_schema_of_a_table_is_searched(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    store, place = made(tmp_path, LONG)
    for name, said in (("of", LONG), ("other", "x" + LONG)):
        table = pa.table({"x": [1.5]}).replace_schema_metadata({"note": f"without {said}", "b": "3"})
        parquet.write_table(table, place / f"{name}.parquet")
    taftcache.forget(store, [LONG])
    assert audited(store, place) == ({"of.parquet": "it holds forgotten ids: 1"}, [])


@pytest.mark.parametrize("value", [[LONG], {"a": LONG}, LONG, (1, LONG), np.array([1, 2])])
def test_a_pickle_of_the_oldest_protocol_is_not_searched(tmp_path, value):
    (tmp_path / "rows").write_bytes(pickle.dumps(value, protocol=0))
    assert not read_texts(tmp_path / "rows").whole
    for text in ("(l of any\n", "(defun a ()\n", "class A:\n    pass\n", "cat\ndog\n", "Some text\np 3\n", "(see)\n"):
        (tmp_path / "text").write_text(text)
        assert read_texts(tmp_path / "text").whole


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_ids_are_found_in_what_is_like_a_pickle_or_a_chunk_and_beside_a_packed_array(tmp_path, monkeypatch):
    """A table of samples p1, p2 begins as a pickle does; any file may be called c/0; an array has attributes."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    store, place = made(tmp_path, LONG)
    array = {"node_type": "array", "shape": [3], "data_type": "int64", "codecs": [{"name": "zstd"}]}
    texts = {
        "table.csv": f"Sample\np1\n{LONG}\n",
        "c/0": f"see {LONG}\n",
        "y/zarr.json": json.dumps(array | {"attributes": {"of": LONG}}),
        "z/.zarray": json.dumps({"dtype": "<i8", "of": LONG}),
    }
    for name, text in texts.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    taftcache.forget(store, [LONG])
    assert {*audited(store, place)[0]} == {*texts}


@pytest.mark.parametrize("said", ["[]", "5", '{"node_type": "array", "data_type": "string", "codecs": []}'])
@pytest.mark.parametrize("name", ["zarr.json", ".zarray"])
def test_a_file_called_as_zarr_calls_its_own_ends_no_audit(tmp_path, name, said):
    (tmp_path / name).write_text(said)
    assert not read_texts(tmp_path / name).whole


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_an_id_in_a_column_of_ids_is_found_as_in_any_other(tmp_path, monkeypatch):
    """With the apostrophe of a spreadsheet, and as the end of a path, also if it is common."""
    monkeypatch.setattr(byproducts, "SINGLY", 99)
    gone = ["=sum", "our photos of that last summer/1.jpg", "42"]
    store, place = made(tmp_path, *gone)
    for k, cell in enumerate(("'=sum", f"/a place/{gone[1]}", "/a/42")):
        (place / f"{k}.csv").write_text(f"id,y\n{cell},3.5\n")
    taftcache.forget(store, gone)
    assert audited(store, place) == ({f"{k}.csv": "it holds forgotten ids: 1 (line 2)" for k in range(3)}, [])


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
def test_a_file_in_a_folder_of_the_same_name_is_found_with_it(tmp_path):
    store, place = made(tmp_path, "scan_1")
    (place / "scan_1").mkdir()
    (place / "scan_1/scan_1.png").write_bytes(b"x")
    taftcache.forget(store, ["scan_1"])
    assert {*audited(store, place)[0]} == {"scan_1", "scan_1/scan_1.png"}


def test_a_list_is_looked_for_in_as_many_cells_as_there_are():
    """And not in every column of the widest line for each of the others."""
    text = "," * 30_000 + "\n" + "a\n" * 30_000
    assert [len(column) for column in listed(text)] == [30_001, 30_001]


def test_only_the_commonest_suffixes_of_ids_are_tried_with_the_name_of_a_file(tmp_path):
    """Each of ``v.1``, ``v.2``, … has a suffix of its own, and there are as many files as ids, or more."""
    with FeatureStore(some_vectors(tmp_path / "store", [f"v.{k}" for k in range(99)])) as store:
        suffixes = known.Known.of(store, TombstoneKeys(store)).suffixes
        assert len(suffixes) <= len(known.SUFFIXES) + known.OWN_SUFFIXES


@pytest.mark.law("An audit finds what was made of forgotten rows in the folders that it is shown")
@pytest.mark.parametrize("gone", ["who is?", "写真（1）", "the “one”"])
def test_an_id_that_ends_with_a_sign_that_separates_words_is_found_among_others(tmp_path, gone):
    store, place = made(tmp_path, gone)
    (place / "a.txt").write_text(f"we see {gone} here", "utf-8")
    taftcache.forget(store, [gone])
    assert audited(store, place) == ({"a.txt": "it holds forgotten ids: 1 (line 1)"}, [])


def test_long_texts_are_not_kept_while_others_are_read():
    """Each line of a megabyte comes about ten times, as words in a row."""
    most = max(
        len(text) for kinds in _apart(texts_in("a b c " + "x" * 99_999 + " d")) for each in kinds for text in each
    )
    assert most <= LONGEST


def test_texts_of_no_length_end_no_audit(tmp_path):
    about = b"{'descr': '|S0', 'fortran_order': False, 'shape': (3,), }"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\0v\0" + about.ljust(117) + b"\n")
    assert not read_texts(tmp_path / "a.npy").ids
