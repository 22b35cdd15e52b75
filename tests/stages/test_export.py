"""Features, labels, ids and predictions in the formats of other tools, read back with those tools."""

from __future__ import annotations

import builtins
import csv
import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import RecipeError, StoreError, StoreWriteError
from taftcache.stages.files.exchange import FORMATS
from taftcache.stages.files.vectors.importing import recipe_of_vectors
from taftcache.stages.look.row_table import RowTable
from tests import forked
from tests.cache.making import tree
from tests.stages.making import recipe
from tests.stages.test_damage import chunk_of, flip


@pytest.fixture(scope="module")
def expected(finished):
    """Ids, labels, vectors and the composed model's classes by the store's own means."""
    with FeatureStore(finished) as store:
        table = RowTable.of(store)
        vectors = np.concatenate([s.tokens(slice(0, s.rows))[:, 0] for s in table.shards]).astype(np.float32)
        accuracy = taftcache.evaluate(store).accuracy
        return table, vectors, accuracy


def read(format, file):
    """(ids, labels, vectors, predictions, logits or None, roles), as the format's own reader gives them."""
    if format == "npz":
        with np.load(file, allow_pickle=False) as a:
            assert json.loads(str(a["about"]))["features"] == "the class token at blocks.5"
            held = np.where(a["held_out"], "held-out", "train")
            assert (a["shards"][a["shard"]][a["held_out"]] == "held-out").all()
            return a["ids"].tolist(), a["labels"], a["features"], a["prediction"], a["logits"], held
    if format == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        t = parquet.read_table(file)
        assert json.loads(t.schema.metadata[b"taftcache"])["root_digest"]
        assert t["class"].to_pylist() == [str(k) for k in t["label"].to_pylist()]
        return (
            t["id"].to_pylist(), t["label"].to_numpy(), np.array(t["features"].to_pylist(), np.float32),
            t["prediction"].to_numpy(), np.array(t["logits"].to_pylist(), np.float32), np.array(t["role"].to_pylist()),
        )  # fmt: skip
    vectors = np.loadtxt(file / "vectors.tsv", delimiter="\t", dtype=np.float32)
    with (file / "metadata.tsv").open() as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    config = (file / "projector_config.pbtxt").read_text(encoding="utf-8")
    assert 'tensor_path: "vectors.tsv"' in config
    assert 'metadata_path: "metadata.tsv"' in config
    labels = np.array([int(row["class"]) for row in rows])
    predictions = np.array([int(row["prediction"]) for row in rows])
    return [row["id"] for row in rows], labels, vectors, predictions, None, np.array([row["role"] for row in rows])


@pytest.mark.parametrize("format", ["npz", "parquet", "embedding-projector"])
def test_what_is_written_is_what_is_stored(finished, expected, tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    table, vectors, accuracy = expected
    before = tree(finished)
    report = taftcache.export(finished, tmp_path / "out", format=format)
    assert (report.rows, report.format, report.bytes > 0) == (len(table), format, True)
    ids, labels, found, predictions, logits, roles = read(format, tmp_path / "out")
    assert ids == table.ids
    assert (labels == table.label).all()
    np.testing.assert_allclose(found, vectors, rtol=1e-5 if format == "embedding-projector" else 0)
    held = roles == "held-out"
    assert (held == table.held_out).all()
    assert (predictions == labels)[held].mean() == pytest.approx(accuracy["models/mean"])
    if logits is not None:
        assert (logits.argmax(1) == predictions).all()
    assert tree(finished) == before
    with pytest.raises(StoreWriteError, match="exists already"):
        taftcache.export(finished, tmp_path / "out", format=format)


@pytest.mark.parametrize("format", ["npz", "parquet", "embedding-projector"])
def test_a_store_without_models_has_no_predictions(tmp_path, format):
    if format == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "store"
    taftcache.extract(recipe(path))
    taftcache.export(path, tmp_path / "out", format=format)
    if format == "npz":
        with np.load(tmp_path / "out") as arrays:
            assert {"prediction", "logits"} & set(arrays) == set()
            assert "prediction_base" in arrays
    elif format == "parquet":
        found = parquet.read_table(tmp_path / "out")
        assert found["prediction"].null_count == found["logits"].null_count == found.num_rows
    else:
        assert (tmp_path / "out/metadata.tsv").read_text(encoding="utf-8").splitlines()[1].endswith("\t")


def test_a_base_that_tells_no_class_from_another_predicts_nothing(tmp_path):
    """A table said that the base takes every sample for the first class, which is right for one in ten."""
    path, backbone = tmp_path / "store", {"weights": "bundled", "features": "every block"}
    made = recipe(path, backbone=backbone, tangent={"blocks": 0, "init": "zero"}, objective={"ridge": 1e-2})
    taftcache.run(made)
    for format in "npz", "embedding-projector":
        taftcache.export(path, tmp_path / format, format=format)
    with np.load(tmp_path / "npz") as arrays:
        assert ({"prediction", "logits"} <= set(arrays), "prediction_base" in arrays) == (True, False)
        ids = arrays["ids"].tolist()
    _, first, *_ = (tmp_path / "embedding-projector/metadata.tsv").read_text(encoding="utf-8").splitlines()
    assert first.split("\t")[4] == ""
    assert first.split("\t")[5] != ""
    assert "base" not in taftcache.inspect_sample(path, ids[0]).predictions
    if find_spec("pyarrow") is not None:
        taftcache.export(path, tmp_path / "parquet", format="parquet")
        found = importlib.import_module("pyarrow.parquet").read_table(tmp_path / "parquet")
        assert found["prediction_base"].null_count == found.num_rows > found["prediction"].null_count
        names = found["class"].combine_chunks().dictionary.to_pylist()
        assert json.loads(found.schema.metadata[b"taftcache"])["classes"] == names


@pytest.mark.parametrize("format", sorted(set(FORMATS) & {"npz", "parquet", "embedding-projector"}))
def test_damage_leaves_no_file_behind(store, tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    flip(chunk_of(store, "000"))
    with pytest.raises(StoreError):
        taftcache.export(store, tmp_path / "out", format=format)
    assert [p.name for p in tmp_path.iterdir() if p.name != "copy"] == []


def test_parquet_without_its_library_says_what_to_install(finished, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith("pyarrow"):
            raise ImportError("No module named 'pyarrow'")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecipeError, match="pyarrow"):
        taftcache.export(finished, tmp_path / "out", format="parquet")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", ["npz", "parquet", "hdf5", "embedding-projector"])
def test_an_export_that_is_imported_has_the_same_classes(tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    x = np.random.default_rng(0).normal(size=(30, 4))
    taftcache.import_vectors(x, ["wasp", "ant", "bee"] * 10, tmp_path / "store")
    file, columns = tmp_path / f"out.{format}", None
    taftcache.export(tmp_path / "store", file, format=format)
    if format == "embedding-projector":  # vectors as text are not read, but the table beside them is
        columns = taftcache.Columns(labels=str(file / "metadata.tsv"))
        np.save(tmp_path / "out.npy", np.loadtxt(file / "vectors.tsv", delimiter="\t"))
        file = tmp_path / "out.npy"
    taftcache.import_(file, recipe_of_vectors(tmp_path / "again"), columns=columns)
    with FeatureStore(tmp_path / "store") as made, FeatureStore(tmp_path / "again") as again:
        assert again.classes == made.classes == ["ant", "bee", "wasp"]
        for sample in made.sample_ids():
            (ours, k), (theirs, n) = made.locate(sample), again.locate(sample)
            assert ours.labels[k] == theirs.labels[n]


def test_projectors_tables_are_utf8_in_any_locale(tmp_path):
    """The locale is read when a process begins."""
    x, y = np.random.default_rng(0).standard_normal((20, 3)), np.array(["é", "日本"])[np.arange(20) % 2]
    taftcache.import_vectors(x, y, tmp_path / "store")
    code = "import sys, taftcache; taftcache.export(sys.argv[1], sys.argv[2], format='embedding-projector')"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = [sys.executable, "-c", code, str(tmp_path / "store"), str(tmp_path / "out")]
    subprocess.run(arguments, env={**os.environ, **plain}, check=True)
    text = (tmp_path / "out" / "metadata.tsv").read_bytes().decode("utf-8")
    assert {line.split("\t")[1] for line in text.splitlines()[1:]} == {"é", "日本"}


@pytest.mark.parametrize(
    ("name", "format"),
    [("e.parquet", "parquet"), ("e.NPZ", "npz"), ("e.h5", "hdf5"), ("e.hdf5", "hdf5"), ("e", "hdf5")],
)
def test_the_ending_says_the_format(finished, tmp_path, name, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    assert taftcache.export(finished, tmp_path / name).format == format
    begins = {"parquet": b"PAR1", "npz": b"PK", "hdf5": b"\x89HDF"}[format]
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("name", "format"), [("e.parquet", "npz"), ("e.npz", "hdf5"), ("e.h5", "parquet"), ("e.npz", "embedding-projector")]
)
def test_an_ending_of_another_format_is_refused(finished, tmp_path, capsys, name, format):
    with pytest.raises(SystemExit) as ended:
        main(["export", str(finished), str(tmp_path / name), "--format", format])
    assert ended.value.code == 2
    assert f"cannot export as {format} to {name}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_ending_of_no_format_is_refused(finished, tmp_path):
    """``rows.csv`` became a file of HDF5."""
    with pytest.raises(RecipeError, match=r"end in \.csv") as caught:
        taftcache.export(finished, tmp_path / "rows.csv")
    assert all(word in caught.value.do for word in (".h5", ".parquet", "--format", "embedding-projector"))
    assert list(tmp_path.iterdir()) == []
    assert taftcache.export(finished, tmp_path / "rows.csv", format="hdf5").format == "hdf5"


def test_an_unknown_format(finished, tmp_path):
    with pytest.raises(RecipeError, match="parquet"):
        taftcache.export(finished, tmp_path / "out", format="xlsx")


# One process for all commands: libraries are loaded once, without the limit, and each command runs in a fork.
LIMITED = """
import json, os, resource, sys
import h5py, pyarrow, timm
sys.dont_write_bytecode = True  # what Python writes under the limit is cut off, and read by the next process
from taftcache.cli import main
import taftcache.model.predictor, taftcache.stages.files.sample_files
store, folder, *places = sys.argv[1:]
for n, place in enumerate(places):
    command, *words = place.split()
    read, write = os.pipe()
    os.mkdir(f"{folder}/{n}")
    if (child := os.fork()) == 0:
        os.dup2(write, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # more than what is asked of the disk before
        try:
            main([command, store, *(word.format(out=f"{folder}/{n}/out") for word in words)])
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(end.code)
    os.close(write)
    said = open(read, errors="replace").read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([place, code, said, os.listdir(f"{folder}/{n}")]))
"""
PLACES = [
    "export {out} --format npz",
    "export {out} --format parquet",
    "export {out} --format hdf5",
    "export {out} --format embedding-projector",
    "export-model {out}",
    "export-component 000 {out}",
]


@pytest.fixture(scope="module")
def limited(finished, tmp_path_factory):
    """Exit code, stderr and the files that are left, of each of ``PLACES``."""
    pytest.importorskip("pyarrow")
    run = forked.run(LIMITED, finished, tmp_path_factory.mktemp("limited"), *PLACES)
    assert run.returncode == 0, run.stderr
    return {place: rest for place, *rest in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("place", PLACES)
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_nothing(limited, place):
    """A limit on the size of files stands for a full disk: the same calls fail, with another number."""
    code, said, left = limited[place]
    assert code in (2, 5), said
    assert said.startswith("taftcache: ")
    assert "Traceback" not in said
    assert "the file is too large" in said
    assert left == []


@pytest.mark.parametrize("format", ["npz", "parquet", "hdf5"])
def test_a_missing_folder_is_named(finished, tmp_path, format):
    with pytest.raises(StoreError, match=r"cannot write .*no such folder") as caught:
        taftcache.export(finished, tmp_path / "nowhere" / "out", format=format)
    assert "make what is missing" in caught.value.do
