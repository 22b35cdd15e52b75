"""Files of vectors: one rule reads every format, and refuses what cannot be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import taftcache
from taftcache.backbone.sources.columns import parquet_batches
from taftcache.cache.columns import Columns
from taftcache.cache.hdf5 import FeatureFile
from taftcache.errors import DataError
from taftcache.stages.files.vectors import opening
from taftcache.stages.files.vectors.given import Vectors
from taftcache.stages.files.vectors.importing import recipe_of_vectors
from taftcache.stages.files.vectors.opening import open_vectors, vectors_of_hdf5
from tests.stages.test_vectors import IDS, LABELS, N, vectors


def refuse(file: Path, says: str, columns: Columns | None = None) -> None:
    with pytest.raises(DataError, match=says):
        open_vectors(file, columns or Columns())


def test_files_that_cannot_be_used(tmp_path):
    x, file = vectors(), tmp_path / "f.npz"
    refuse(tmp_path / "none.npy", "^cannot read .*: there is no such file")
    refuse(tmp_path, "^cannot read .*: it is a folder\n  try: .* taftcache init$")
    np.save(tmp_path / "alone.npy", x)
    refuse(tmp_path / "alone.npy", "without labels")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "alone.npy").read_bytes()[:-1])
    np.save(tmp_path / "y.npy", LABELS)
    refuse(tmp_path / "cut.npy", "cannot be read as npy", Columns(labels=str(tmp_path / "y.npy")))
    np.save(tmp_path / "objects.npy", np.array([[{}, 1]] * 3, object), allow_pickle=True)
    refuse(tmp_path / "objects.npy", "cannot be read as npy", Columns(labels=str(tmp_path / "y.npy")))
    np.savez(file, x=x)
    refuse(file, "no labels named 'labels'")
    np.savez(file, a=x, y=LABELS)
    refuse(file, "no vectors under a usual name")
    refuse(file, "nothing named 'b'", Columns(vectors="b"))
    np.savez(file, x=x, y=LABELS)
    refuse(file, "nothing named 'c'", Columns(classes="c"))
    refuse(file, "no ids named 'i'", Columns(ids="i"))
    y = str(tmp_path / "y.npy")
    refuse(tmp_path / "alone.npy", "no array named 'x'", Columns(vectors="x", labels=y))
    refuse(tmp_path / "alone.npy", "no ids named 'i'", Columns(ids="i", labels=y))
    for name in ("none.npy", "none.csv"):
        refuse(
            tmp_path / "alone.npy",
            f"{name}: there is no such file\n.*of the labels",
            Columns(labels=str(tmp_path / name)),
        )
    refuse(tmp_path / "alone.npy", "labels in .*cut.npy cannot be read", Columns(labels=str(tmp_path / "cut.npy")))
    np.savez(file, x=x, y=np.array([[1]] * N, object))
    refuse(file, "cannot be read as npz")
    np.savez(file, x=x, y=np.arange(N) % 3, classes=np.array(["ant", "bee"]))
    refuse(file, "not among its classes")
    (tmp_path / "y.csv").write_text("kind,when\nant,1\n")
    refuse(tmp_path / "alone.npy", "no column named 'labels'", Columns(labels=str(tmp_path / "y.csv")))
    (tmp_path / "y.csv").write_text("labels\n")
    refuse(tmp_path / "alone.npy", "y.csv has no rows", Columns(labels=str(tmp_path / "y.csv")))
    (tmp_path / "y.csv").write_text("id,y,a\nk,ant,1,\n")
    refuse(tmp_path / "y.csv", "line 2 .* has 4 fields")
    for text, says in {",y,a\n0,ant,1": "'': a column without a name", "y,a\nant,b": "'a': could not convert"}.items():
        (tmp_path / "y.csv").write_text(text)
        refuse(tmp_path / "y.csv", f"(?s)not part of a vector.*{says}.*index=False")
    refuse_texts(tmp_path / "y.csv")
    (tmp_path / "y.csv").write_text("id,y\nk,ant\n")
    refuse(tmp_path / "y.csv", "there are no vectors")
    refuse(tmp_path / "y.csv", "one for each of their numbers", Columns(vectors="a"))
    (tmp_path / "y.pt").touch()
    with pytest.raises(DataError, match=r"(?s)it is not HDF5.*\.npz, \.parquet, \.csv"):
        taftcache.import_(tmp_path / "y.pt", recipe_of_vectors(tmp_path / "s"))


def refuse_texts(file: Path) -> None:
    """Cells without a number, and a first line that is a sample."""
    sample = r"(?s)no line of names: its first line is a sample.*as x1,x2,label"
    for text, says in {
        "y,a\nant,1\nbee,2\nant,NA\n": "^row 3 of .* has no number in column 'a'\n  got: 'NA'\n",
        "y,a\nant,1\nbee,\nant,3\nbee,\nant,5\n": "^row 2 of .* has no number .*\n  got: '', and 1 more in",
        "y;a\nant;1,5\nbee;2,5\n": "^row 1 of .* because of a comma\n  got: '1,5', .*\n.*decimal=','",
        "0.5,-1.5,ant\n0.7,2,bee\n1.5,-3,ant\n": sample,
        "0.5,7e-1,0\n0.7,2,1\n1.5,-3,0\n": sample,
        "0,1,2\n0.7,2,1\n1.5,-3,0\n": "no labels named",  # as pandas calls columns
        "400.5,500.5,kind\n0.7,2,0\n1.5,-3,1\n": "no labels named",  # wavelengths
        "0.0,0.5,kind\n0.0,2,7\n1.5,-3,8\n": "no labels named",  # times, and one cell as its column
    }.items():
        file.write_text(text)
        refuse(file, says)
    file.write_text("0.5,-1.5,ant\n0.7,2,bee\n1.5,-3,ant\n")
    refuse(file, sample, Columns(labels="ant"))


@pytest.mark.parametrize("form", ["npz", "h5"])
def test_bytes_are_texts(tmp_path, form):
    """UTF-8, though h5py tags NumPy's bytes as ASCII."""
    ids, texts = [f"é/{i}" for i in IDS], np.char.encode(["bär", "fuß", "日"], "utf-8")
    found = opened(tmp_path, form, vectors(), np.arange(N) % 3, np.char.encode(ids, "utf-8"), {"classes": texts})
    assert (found.ids, found.classes) == (ids, ["bär", "fuß", "日"])
    assert opened(tmp_path, form, vectors(), texts[np.arange(N) % 3], None).classes == ["bär", "fuß", "日"]
    with pytest.raises(DataError, match="UTF-8"):
        opened(tmp_path, form, vectors(), np.arange(N) % 3, np.char.encode(ids, "latin-1"))


def opened(folder: Path, form: str, x, y, ids, more=None) -> Vectors:
    """x, y and ids (or None) as a file of some form, read again; what is in ``more`` stands beside the labels."""
    columns = {"x": x, "y": y} | ({} if ids is None else {"ids": ids}) | (more or {})
    file = folder / f"f.{form}"
    if form == "npz":
        np.savez(file, **columns)
    elif form == "npy":
        np.save(file, x)
        places = {name: folder / f"{name}.npy" for name in columns}
        for name, place in places.items():
            np.save(place, columns[name])
        if more is not None:
            table = {"y": y, **more}
            rows = [table, *zip(*table.values(), strict=True)]
            (folder / "y.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
            return open_vectors(file, Columns(labels=str(folder / "y.csv")))
        return open_vectors(file, Columns(labels=str(places["y"]), ids=None if ids is None else str(places["ids"])))
    elif form == "csv":
        table = {f"number {k}": column for k, column in enumerate(x.T)} | {k: v for k, v in columns.items() if k != "x"}
        file.write_text("\n".join(",".join(map(str, row)) for row in [table, *zip(*table.values(), strict=True)]))
    elif form == "h5":
        with h5py.File(file, "w") as out:
            for name, values in columns.items():
                out[name] = values.astype(h5py.string_dtype()) if values.dtype.kind == "U" else values
        with FeatureFile(file) as found:
            vectors = vectors_of_hdf5(found, Columns())
            return replace(vectors, values=vectors.values[:])
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table({n: v.tolist() if n != "x" else list(v) for n, v in columns.items()}), file)
    return open_vectors(file, Columns(), folder)


ENDINGS = ["npy", "npz", "h5", "parquet", "csv"]


@pytest.mark.law("Every format of vectors is read by one rule: the same numbers, classes, labels and ids.")
@pytest.mark.parametrize("form", ENDINGS)
def test_every_format_is_read_by_one_rule(tmp_path, form):
    x, years, texts = np.arange(12).reshape(6, 2), np.array([2021, 1999, 2021, 2030, 1999, 1999]), np.array([*"bbaabc"])
    for dtype in (np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64):
        found = opened(tmp_path, form, x.astype(dtype), years, np.arange(6) + 10)
        assert (found.classes, found.labels.tolist()) == (["1999", "2021", "2030"], [1, 0, 1, 2, 0, 0])
        assert found.ids == [str(k) for k in range(10, 16)]
        assert np.array_equal(found.take([4, 1]), x[[4, 1], None].astype(found.take([0]).dtype))
        assert found.take(range(2)).dtype.kind == "f"
    assert opened(tmp_path, form, x, np.array([1, 2, 5, 1, 2, 5]), None).classes == ["1", "2", "5"]
    found = opened(tmp_path, form, x, texts, None)
    assert (found.classes, found.labels.tolist()) == (["a", "b", "c"], [1, 1, 0, 0, 1, 2])
    assert found.ids[1] == "f/00000001"


@pytest.mark.parametrize("form", ENDINGS)
def test_numbers_are_called_by_the_names_beside_them(tmp_path, form):
    """A column ``class`` of texts, one for each number; one that says something else changes nothing."""
    x, numbers = np.ones((4, 2)), np.array([1, 0, 1, 4])
    for beside, classes in (
        (["dog", "ant", "dog", "fox"], ["ant", "dog", "fox"]),
        (["2021", "1999", "2021", "2030"], ["1999", "2021", "2030"]),
        (["pet", "ant", "pet", "pet"], ["0", "1", "4"]),
        (["a", "b", "c", "d"], ["0", "1", "4"]),
    ):
        found = opened(tmp_path, form, x, numbers, None, {"class": np.array(beside)})
        assert found.classes == classes
        assert [found.classes[k] for k in found.labels] == (beside if classes != ["0", "1", "4"] else [*"1014"])
    texts = np.array(["cat", "owl", "cat", "cow"])
    assert opened(tmp_path, form, x, texts, None, {"class": np.array([*"abac"])}).classes == ["cat", "cow", "owl"]
    if form == "npz":  # a column that is named is the one
        opened(tmp_path, form, x, numbers, None, {"class": np.array(["dog", "ant", "dog", "fox"])})
        assert open_vectors(tmp_path / "f.npz", Columns(labels="class")).classes == ["ant", "dog", "fox"]
        assert open_vectors(tmp_path / "f.npz", Columns(labels="y")).classes == ["0", "1", "4"]


@pytest.mark.parametrize("form", ENDINGS[:-1])  # all of a CSV file is text
def test_every_format_is_refused_by_one_rule(tmp_path, form):
    x, y = np.ones((6, 2)), np.arange(6) % 3
    for rows, labels, ids, says in (
        (x.astype(bool), y, None, "not numbers|lists of one length"),
        (x, y[:5], None, "6 vectors, but 5 labels"),
        (x, y / 2, None, "not integers or texts"),
        (x, np.array([*"ab", "", *"abc"]), None, "empty label"),
        (x, y, np.array([*"aabcde"]), "more than once"),
        (x, y, np.array(["a\nb", *"cdefg"]), "control"),
        (x, y, y / 2, "not integers or texts|not all integers"),
        (x, y, np.array(["a", "b"]), "6 vectors, but 2 ids"),
    ):
        if form == "parquet" and len({len(rows), len(labels), len(rows if ids is None else ids)}) > 1:
            continue  # a table has columns of one length
        with pytest.raises(DataError, match=says):
            opened(tmp_path, form, rows, labels, ids)


def test_hdf5_has_what_the_others_have(tmp_path):
    """Names and files of labels; rows [n, t, d] beside vectors, and nothing of more dimensions."""
    rows = np.arange(24.0).reshape(4, 3, 2)
    with h5py.File(tmp_path / "f.h5", "w") as out:
        out["deep/x"], out["x"], out["cube"] = rows, rows[:, 0], rows[..., None]
        out["classes"] = np.array(["ant", "bee"], dtype=h5py.string_dtype())
    np.save(tmp_path / "y.npy", [0, 1, 0, 1])
    with FeatureFile(tmp_path / "f.h5") as file:
        asked = Columns(vectors="deep/x", labels=str(tmp_path / "y.npy"))
        found = vectors_of_hdf5(file, asked)
        assert (found.classes, found.labels.tolist(), found.tokens_shape) == (["ant", "bee"], [0, 1, 0, 1], (3, 2))
        assert np.array_equal(found.take([2, 0]), rows[[2, 0]])
        for wrong, says in (
            (replace(asked, vectors="cube"), r"not numbers \[n, d\] or \[n, t, d\]"),
            (replace(asked, labels=None), "no labels named 'labels'"),
            (replace(asked, ids="i"), "no ids named 'i'"),
            (replace(asked, classes="c"), "nothing named 'c'"),
            (replace(asked, vectors="y"), "there is no y"),
        ):
            with pytest.raises(DataError, match=says):
                vectors_of_hdf5(file, wrong)
        np.save(tmp_path / "y.npy", [0, 1, 2, 1])
        with pytest.raises(DataError, match="not among its classes"):
            vectors_of_hdf5(file, asked)


def test_parquet_that_cannot_be_used(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "f.parquet"
    for column, says in (
        ([[1.0, 2.0], [1.0]], "lists of one length"),
        ([[1.0, None], [1.0, 2.0]], "lists of one length"),
        ([None, [1.0, 2.0]], "lists of one length"),
        ([["a"], ["b"]], "lists of one length"),
        ([1.0, 2.0], "no lists of numbers"),
    ):
        parquet.write_table(pa.table({"vector": column, "label": [0, 1]}), file)
        refuse(file, says)
    parquet.write_table(pa.table({"vector": [[1.0], [2.0]], "label": [0, 1], "id": ["a", None]}), file)
    refuse(file, "ids of .* are not all integers or texts")
    file.write_bytes(b"PAR1")
    refuse(file, "cannot be read as")


def test_one_long_text_takes_no_room_for_the_others(tmp_path):
    """As an array of texts these would be 22 GB."""
    n = 50_000
    np.save(tmp_path / "v.npy", np.ones((n, 1), np.float32))
    rows = [f"{'ab'[k % 2]},{k}" for k in range(n - 1)]
    (tmp_path / "l.csv").write_text("\n".join(["label,id", *rows, "x" * 110_000 + ",last"]))
    found = open_vectors(tmp_path / "v.npy", Columns(labels=str(tmp_path / "l.csv")))
    assert (len(found.ids), len(found.classes)) == (n, 3)


def test_texts_that_are_no_unicode(tmp_path):
    for code in (0xD800, 0x110001):
        labels = np.frombuffer(np.array([code, 0x62, 0x63], "<u4").tobytes(), "<U1")
        np.savez(tmp_path / "v.npz", x=np.ones((3, 2)), y=labels)
        refuse(tmp_path / "v.npz", "labels must be UTF-8")


@pytest.mark.parametrize("group", [1024, 16384])
def test_vectors_of_parquet_are_not_in_memory_together(tmp_path, monkeypatch, group):
    """pyarrow read all groups of the column ahead; of a single group it reads all if it may."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x = np.random.default_rng(0).random((16384, 256), np.float32)
    columns = {"x": pa.FixedSizeListArray.from_arrays(x.ravel(), 256), "y": [0, 1] * 8192}
    parquet.write_table(pa.table(columns), tmp_path / "v.parquet", row_group_size=group)
    before, taken = pa.total_allocated_bytes(), list[int]()

    def watched(*given):
        for batch in parquet_batches(*given):
            taken.append(pa.total_allocated_bytes() - before)
            yield batch

    monkeypatch.setattr(opening, "parquet_batches", watched)
    assert (open_vectors(tmp_path / "v.parquet", Columns(), tmp_path).values == x).all()
    assert max(taken) < x.nbytes / 2


def test_parquet_that_repeats_a_number_millions_of_times_is_refused_soon(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    many = 20_000_000
    x = pa.ListArray.from_arrays(pa.array([0, many // 2, many], pa.int32()), pa.array(np.zeros(many, np.float32)))
    parquet.write_table(pa.table({"x": x, "y": [0, 1]}), tmp_path / "v.parquet")
    refuse(tmp_path / "v.parquet", "as a file made to exhaust memory does")
