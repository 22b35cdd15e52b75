"""Tables of images: CSV, Parquet and Hugging Face's folders give the images that a folder gives."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from taftcache.backbone.sources.arrays import ArraySource, AskedArrays, label_indexes, split_of
from taftcache.backbone.sources.base import check_labels
from taftcache.backbone.sources.columns import configurations_in, is_table, read_table, splits_in, tables_in
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import DataSpec
from taftcache.errors import DataError, UnreadableImage
from taftcache.stages.files.vectors.given import Vectors

PIXELS = np.random.default_rng(2).integers(0, 256, (6, 9, 11, 3), dtype=np.uint8)
NAMES = ["ant", "bee", "cat"]
PATHS = [f"{NAMES[k % 3]}/{k}.png" for k in range(6)]
SPLITS = ["train"] * 3 + ["test"] * 3


@pytest.fixture
def folder(tmp_path):
    """images/<class>/<k>.png."""
    for path, pixels in zip(PATHS, PIXELS, strict=True):
        file = tmp_path / "images" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return tmp_path / "images"


def spec(file, **options):
    return DataSpec(**{"source": "table", "train": str(file), "image_key": "path", "label_key": "label", **options})


def columns(**more):
    return {"path": PATHS, "label": [p.split("/")[0] for p in PATHS], "split": SPLITS, **more}


def write(file, table, delimiter=","):
    if file.suffix == ".parquet":
        parquet.write_table(pa.table(table), file)
    else:
        lines = [table.keys(), *zip(*table.values(), strict=True)]
        file.write_text("".join(delimiter.join(map(str, line)) + "\n" for line in lines), encoding="utf-8-sig")
    return file


def saved(place, table, names, **options):
    """As datasets' save_to_disk writes one split."""
    place.mkdir()
    written = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(place / "data-00000-of-00001.arrow", table.schema, options=written) as writer:
        writer.write_table(table)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    (place / "dataset_info.json").write_text(json.dumps({"features": features}))
    return place


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def inside():
    """A table with the images in it, as Hugging Face has them."""
    images = [{"bytes": png(pixels), "path": None} for pixels in PIXELS]
    return pa.table({"image": images, "label": [k % 3 for k in range(6)]})


@pytest.mark.law("A table of paths and labels gives the ids, classes and pixels that its folder gives")
@pytest.mark.parametrize(
    ("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.CSV", "\t"), ("a.tsv", "\t"), ("a.parquet", "")]
)
def test_a_table_is_its_folder(folder, name, delimiter):
    listed, _ = open_source(spec(write(folder / name, columns(), delimiter)))
    walked, _ = open_source(DataSpec(source="folder", train=str(folder)))
    assert listed.classes == walked.classes == NAMES
    assert sorted(listed.items) == sorted(walked.items)
    for k, pixels in enumerate(PIXELS):
        assert np.array_equal(np.asarray(listed.read(k)), pixels)


def test_a_column_says_which_rows_are_for_testing(folder):
    file = write(folder / "a.csv", columns())
    train, test = open_source(spec(file, test=str(file), test_split="test"))
    assert [item.id for item in train.items] == PATHS[:3]
    assert [item.id for item in test.items] == PATHS[3:]
    assert np.array_equal(np.asarray(test.read(2)), PIXELS[5])
    with pytest.raises(DataError, match=r"no row of .* has the split 'validation'"):
        open_source(spec(file, test=str(file)))


def test_paths_start_from_root_and_labels_are_ordered_as_numbers(folder, tmp_path):
    absolute = [str(folder / path) for path in PATHS]
    numbers = ["10", "9", "2", "10", "9", "2"]
    file = write(tmp_path / "a.csv", columns(path=absolute, label=numbers))
    source, _ = open_source(spec(file, root=str(folder)))
    assert [item.id for item in source.items] == PATHS
    assert source.classes == ["2", "9", "10"]
    assert [item.label for item in source.items] == [2, 1, 0, 2, 1, 0]
    assert open_source(spec(file))[0].items[0].id == f"images/{PATHS[0]}"


def test_images_inside(tmp_path):
    table = inside()
    marked = table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": {"label": {"names": NAMES}}}})}
    )
    parquet.write_table(marked, tmp_path / "set.parquet")
    for place in (tmp_path / "set.parquet", saved(tmp_path / "set", table, NAMES)):
        assert is_table(place)
        source, _ = open_source(spec(place, image_key="image"))
        assert source.classes == NAMES
        assert [item.id for item in source.items] == [f"set/{k:04d}" for k in range(6)]
        assert all(np.array_equal(np.asarray(source.read(k)), PIXELS[k]) for k in range(6))
    parquet.write_table(table, tmp_path / "bare.parquet")
    assert open_source(spec(tmp_path / "bare.parquet", image_key="image"))[0].classes == ["0", "1", "2"]


def kept(paths, **more):
    """A table with the images in it, and a path beside each."""
    images = [{"bytes": png(pixels), "path": path} for pixels, path in zip(PIXELS, paths, strict=True)]
    return pa.table({"image": images, "label": [k % 3 for k in range(6)], **more})


def ids_of(source):
    return [item.id for item in source.items]


@pytest.mark.law("An image inside a table keeps its id, wherever its row is, if the table has one for each image")
@pytest.mark.parametrize("key", [None, "image", "n"])
def test_ids_that_do_not_depend_on_places(tmp_path, key):
    table = kept([f"{k}.png" for k in range(6)], n=pa.array([10.0, 11, 12, 13, 14, 15]))
    file = tmp_path / "set.parquet"
    parquet.write_table(table, file)
    source, _ = open_source(spec(file, image_key="image", id_key=key))
    before, given = source.items, ids_of(source)
    assert given == ([f"{k}" for k in range(10, 16)] if key == "n" else [f"{k}.png" for k in range(6)])
    assert not source.numbered
    assert not open_source(spec(file, image_key="image", id_key=key, limit=5))[0].numbered
    parquet.write_table(table.take([5, 0, 2, 3, 4]), file)
    again = open_source(spec(file, image_key="image", id_key=key))[0].items
    assert [*again] == [before[k] for k in (5, 0, 2, 3, 4)]


def test_paths_beside_images_of_two_tables_are_told_apart(tmp_path):
    paths, one, other = [f"{k}.png" for k in range(6)], tmp_path / "a.parquet", tmp_path / "b.parquet"
    parquet.write_table(kept(paths, n=list("abcdef"), split=SPLITS), one)
    parquet.write_table(kept(paths, n=list("ghijkl")), other)
    for key in (None, "image"):
        train, test = open_source(spec(one, image_key="image", id_key=key, test=str(other)))
        assert (ids_of(train), ids_of(test)) == ([f"train/{p}" for p in paths], [f"test/{p}" for p in paths])
        parts = open_source(spec(one, image_key="image", id_key=key, test=str(one), test_split="test"))
        assert list(map(ids_of, parts)) == [paths[:3], paths[3:]]
    train, test = open_source(spec(one, image_key="image", id_key="n", test=str(other)))
    assert (ids_of(train), ids_of(test)) == (list("abcdef"), list("ghijkl"))


@pytest.mark.parametrize("paths", [["0.png"] * 2, ["0.png", None], ["0.png", ""], ["0.png", "a\nb.png"]])
def test_paths_that_do_not_name_each_image_are_no_ids(tmp_path, paths):
    file = tmp_path / "set.parquet"
    parquet.write_table(kept([*paths, "2.png", "3.png", "4.png", "5.png"], split=SPLITS), file)
    source, _ = open_source(spec(file, image_key="image"))
    assert ids_of(source) == [f"set/{k:04d}" for k in range(6)]
    assert source.numbered
    by_split = open_source(spec(file, image_key="image", test=str(file), test_split="test"))
    assert [part.numbered for part in by_split] == [True, True], (
        "the second half has paths of its own, but not the whole"
    )
    with pytest.raises(DataError, match=r"more than once|has no id|not printable"):
        open_source(spec(file, image_key="image", id_key="image"))


@pytest.mark.parametrize("value", [None, "", 1.5, True, b"x"])
def test_a_row_without_an_id_is_refused(tmp_path, value):
    file = tmp_path / "set.parquet"
    parquet.write_table(kept(["x.png"] * 6, n=pa.array([value] * 6)), file)
    with pytest.raises(DataError, match=r"row 1 of .* has no id") as caught:
        open_source(spec(file, image_key="image", id_key="n"))
    assert "data.id_key" in caught.value.do
    with pytest.raises(DataError, match="has no column 'm'"):
        open_source(spec(file, image_key="image", id_key="m"))


def test_numbers_of_no_class_and_classes_in_another_order(tmp_path):
    table, parts = inside(), []
    of_parts = {"a": (NAMES, [0, 1, 2] * 2), "b": (NAMES, [-1] * 6), "c": (["ant", "cat", "bee"], [0] * 6)}
    for name, (names, labels) in of_parts.items():
        changed = table.set_column(table.schema.get_field_index("label"), "label", pa.array(labels))
        parts.append(str(saved(tmp_path / name, changed, names)))
    with pytest.raises(DataError, match=r"the label -1, but(.|\n)*6 of 6 labels outside of 0 to 2(.|\n)*and data.test"):
        open_source(spec(parts[0], image_key="image", test=parts[1]))
    with pytest.raises(DataError, match="in another order\n  got: training: bee, cat; test: cat, bee\n"):
        open_source(spec(parts[0], image_key="image", test=parts[2]))


def vectors_of(folder: Path, labels: np.ndarray) -> None:
    Vectors.of(folder / "a.npy", np.zeros((len(labels), 3)), labels, None)


def arrays_of(folder: Path, labels: np.ndarray) -> None:
    array_source(folder, {"x": np.zeros((len(labels), 2, 2, 3), np.uint8), "y": labels})


def array_source(folder: Path, arrays: dict[str, np.ndarray]) -> ArraySource:
    asked = AskedArrays(folder / "a.npz", "x", "y")
    return ArraySource(asked, arrays, split_of(asked, arrays))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"path": [f"elsewhere/{k}" for k in range(6)]}, r"lists are not there(.|\n)*data.image_key, which is 'path'"),
        ({"path": [f"https://x/{k}.png" for k in range(6)]}, "images that .* lists are not there"),
        ({"path": [rf"C:\images\{k}.png" for k in range(6)]}, r"lists are not there(.|\n)*try: write / in the paths"),
        ({"path": [f"file:///images/{k}.png" for k in range(6)]}, r"lists are not there(.|\n)*without file://"),
        ({"path": [*PATHS[:5], ""]}, r"row 6 of .* has no image\n  got: '' in the column 'path'"),
        (
            {"path": [*PATHS[:5], PATHS[0]], "label": ["ant", "bee", "cat", "ant", "bee", "dog"]},
            r"the image 'ant/0.png' more than once\n  got: row 1 \(ant\), row 6 \(dog\)\n  try: remove all .* one$",
        ),
        (
            {"path": [*PATHS[:4], *PATHS[1:3]]},
            r"image 'bee/1.png' more than once\n  got: row 2 \(bee\), row 5 \(bee\); 1 more like it",
        ),
        (
            {"label": ["a", "b", "", "a", "b", ""]},
            r"row 3 of .* has no label\n  got: 2 of 6 rows without one in the column 'label'",
        ),
        ({"label": ["a", "b", " ", "a", "b", "a"]}, "row 3 of .* has no label"),
        (
            {"label": ["a", "b", " a", "a", "b", "a"]},
            r"differ only in blanks(.|\n)*'a' and ' a'",
        ),
    ],
)
def test_rows_that_are_no_images(folder, change, fault):
    with pytest.raises(DataError, match=fault):
        open_source(spec(write(folder / "a.csv", columns(**change))))


def test_columns_of_one_name_are_refused(folder):
    """The last of them was read."""
    file = folder / "a.csv"
    file.write_text("path,label , label\n" + "".join(f"{path},a,b\n" for path in PATHS))
    with pytest.raises(DataError, match="columns that cannot be told apart: they have the same name\n  got: 'label'\n"):
        open_source(spec(file))


def test_empty_lines_of_a_single_column_are_rows(tmp_path):
    """They were left out, and the file said to be too short; at its end they are none."""
    (tmp_path / "a.csv").write_text("label\na\n\n\nb\n\n\n")
    assert read_table(tmp_path / "a.csv").columns == {"label": ("a", "", "", "b")}
    (tmp_path / "a.csv").write_text("label,id\na,1\n\nb,2\n\n")
    assert read_table(tmp_path / "a.csv").columns == {"label": ("a", "b"), "id": ("1", "2")}


@pytest.mark.parametrize("make", [vectors_of, arrays_of], ids=["vectors", "images"])
def test_labels_that_differ_in_blanks_are_refused_of_arrays_too(tmp_path, make):
    with pytest.raises(DataError, match=r"differ only in blanks(.|\n)*'b' and 'b '"):
        make(tmp_path, np.array(["a", "b", "b ", "a"]))


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        ([["0", "x"]] * 6, r"\['0', 'x'\]\" in row 1 of the column 'label', of the kind list"),
        ([{"a": 1}] * 6, "of the kind dict"),
        ([1.0, 2.0, 0.37, 1.0, 2.0, 1.0], "(?s)'0.37' in row 3 .*, of the kind float\n.*by TangentRegressor"),
        (["0.5", "1.5", "2", "1.5", "7.25", "2"], "values, not classes\n.*4 different .* 6 rows.*\n.*by TangentReg"),
        ([1.0, float("inf")] * 3, "'inf' in row 2"),
        ([True, False] * 3, "'True' in row 1 of the column 'label', of the kind bool"),
        ([b"a", b"b"] * 3, "of the kind bytes"),
        ([1.0, 2.0, float("nan"), 1.0, 2.0, 1.0], "row 3 of .* has no label"),
        ([1, 2, None, 1, 2, 1], "row 3 of .* has no label"),
    ],
)
def test_values_that_are_no_labels(folder, monkeypatch, labels, fault):
    monkeypatch.setattr("taftcache.backbone.sources.base.FEW", 6)
    with pytest.raises(DataError, match=fault):
        open_source(spec(write(folder / "a.parquet", columns(label=labels))))


def test_a_whole_number_is_one_class_beside_fractions_or_alone(folder):
    beside = write(folder / "beside.csv", columns(label=["1.0", "1.5", "2.0"] * 2))
    alone = write(folder / "alone.csv", columns(label=["1.0", "2.0", "2"] * 2))
    classes = [open_source(spec(file, image_key="path"))[0].classes for file in (beside, alone)]
    assert classes == [["1", "1.5", "2"], ["1", "2"]]


def test_fractions_that_come_again_are_classes(folder):
    """Of all rows, whichever part of them is taken."""
    table = columns(label=["0.5", "1.5", "7.25", "1.5", "0.5", "7.25"], split=[*"aabbbb"])
    table = write(folder / "a.csv", table)
    train, test = open_source(spec(table, test=str(table), train_split="a", test_split="b"))
    assert train.classes == test.classes == ["0.5", "1.5", "7.25"]
    assert len(train.items) == 2


def test_a_few_rows_may_have_fractions_for_classes_and_so_may_any_whose_classes_are_given():
    few = ["1.5", "3.0", "7.25", "inf"]
    check_labels("here", few)
    many = [str(k + 0.5) for k in range(30)]
    with pytest.raises(DataError, match="values, not classes"):
        check_labels("here", many)
    assert label_indexes(Path("here"), np.array(many), many) == (many, list(range(30)))
    check_labels("here", [*map(str, range(30)), "nan"])


@pytest.mark.law("Without names, exactly the labels that occur are the classes, in numeric order, in any kind of file")
@pytest.mark.parametrize("labels", [[3, 8] * 3, [2, 1, 3, 5, 4, 10], [9, 100, -1, 9, -20, 0]], ids=str)
@pytest.mark.parametrize("kind", [int, float, str, "{}.0".format])
def test_the_same_labels_are_the_same_classes_everywhere(folder, labels, kind):
    """Of the labels 3 and 8, some readers made nine classes."""
    classes = [str(k) for k in sorted({*labels})]
    given = [kind(label) for label in labels]
    found = [open_source(spec(write(folder / f"a.{end}", columns(label=given))))[0] for end in ("csv", "parquet")]
    if kind is not float:
        found.append(array_source(folder, {"x": PIXELS, "y": np.array(given)}))
    found.append(Vectors.of(folder / "a.npy", np.zeros((6, 3)), np.array(given), None))
    for source in found:
        assert source.classes == classes
        assert [source.classes[item.label] for item in source.items] == [str(label) for label in labels]


def test_numbers_that_are_written_as_codes_stay_as_they_are(folder):
    for labels in (["01", "1", "x"] * 2, ["1.0", "x", "1"] * 2):
        assert open_source(spec(write(folder / "a.csv", columns(label=labels))))[0].classes == sorted({*labels})


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("none.csv", None, "no table at"),
        ("a.xlsx", b"", "is not a table of images"),
        ("a.csv", b"path,label\nx.png", r"^line 2 of the table .* has 1 field, but the first line 2\n.*\n  try: write"),
        (
            "a.csv",
            b"path,label\nx,1,2\n",
            r"^line 2 .* 3 fields.*\n  got: 'x,1,2'\n  try: put .* ',' .*quotes",
        ),
        ("a.csv", b'path,label\ny.png,1\n"x.png,1\nz.png,2\n', "^line 3 of .* opens a quote that nothing closes"),
        ("a.csv", b'path,label\n"x.png,1\n"z.png",2\n', r"^line 2 of .* cannot be split into fields\n.*expected after"),
        ("a.csv", b"path,label\n\xff,1\n", "^the table .* is not UTF-8 text"),
        (
            "a.csv",
            b"ant/0.png,ant\nant/1.png,bee\n",
            r"no line of names: its first line is a .*\n.*\n.*as path,label",
        ),
        ("a.parquet", b"PAR1PAR1", "cannot be read"),
        ("a.csv", b"path,label\n", "has no rows"),
        ("a.csv", b"", "has no rows"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, fault):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=fault):
        open_source(spec(tmp_path / name))


def test_files_and_folders_with_a_dot_in_front_are_no_tables(tmp_path):
    """macOS puts ._train.parquet beside train.parquet, and the Hub's client its own folder into a data set's."""
    for name in ("train.parquet", "._train.parquet", "._test-00000-of-00001.parquet", ".cache/train.parquet"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).touch()
    assert tables_in(tmp_path / "set") == [tmp_path / "set" / "train.parquet"]
    assert splits_in(tmp_path / "set") == {"train": [tmp_path / "set" / "train.parquet"]}
    assert configurations_in(tmp_path / "set") == []
    assert configurations_in(tmp_path) == [tmp_path / "set"]


def test_a_file_that_is_gone_is_named(folder):
    source, _ = open_source(spec(write(folder / "a.csv", columns())))
    (folder / PATHS[4]).unlink()
    with pytest.raises(UnreadableImage, match=PATHS[4]):
        source.read(4)
    selected = saved(folder / "set", inside(), NAMES)
    (selected / "state.json").write_text('{"_data_files": [], "_indices_files": [1]}')
    with pytest.raises(DataError, match="cannot be read") as caught:
        open_source(spec(selected, image_key="image"))
    assert "flatten_indices" in str(caught.value.got)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("state.json", "[]"),
        ("state.json", '{"_data_files": [{"filename": 1}]}'),
        ("state.json", '{"_data_files": [{"filename": ".."}]}'),
        ("state.json", "[" * 100_000),
        ("dataset_info.json", "null"),
        ("dataset_info.json", '{"features": [1]}'),
        ("dataset_info.json", '{"features": ' + '{"a":' * 100_000),
    ],
)
def test_a_folder_whose_descriptions_say_something_else(tmp_path, file, text):
    place = saved(tmp_path / "set", inside(), NAMES)
    (place / file).write_text(text)
    with pytest.raises(DataError, match="cannot be read"):
        open_source(spec(place, image_key="image"))


@pytest.mark.parametrize("names", [3, {"a": 1}, "abc", [1, 2, 3], [["a"], ["b"], ["c"]], [None] * 3])
def test_names_of_classes_that_are_no_texts_are_none(tmp_path, names):
    source, _ = open_source(spec(saved(tmp_path / "set", inside(), names), image_key="image"))
    assert source.classes == ["0", "1", "2"]


@pytest.mark.parametrize("file", ["dataset_info.json", "data-00000-of-00001.arrow"])
def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path, file):
    place = saved(tmp_path / "set", inside(), NAMES)
    (place / file).unlink()
    os.mkfifo(place / file)
    with pytest.raises(DataError, match="is no file"):
        open_source(spec(place, image_key="image"))


def test_an_arrow_file_that_points_outside_of_itself(tmp_path):
    place = saved(tmp_path / "set", inside(), NAMES)
    (file,) = place.glob("*.arrow")
    sizes = [len(png(pixels)) for pixels in PIXELS]
    ends = np.cumsum([0, *sizes]).astype("<i4")
    data = file.read_bytes()
    assert data.count(ends.tobytes()) == 1
    for wrong in (2**31 - 1, -5):
        changed = ends.copy()
        changed[1] = wrong
        file.write_bytes(data.replace(ends.tobytes(), changed.tobytes()))
        with pytest.raises(DataError, match=r"cannot be read(.|\n)*[Oo]ffset"):
            open_source(spec(place, image_key="image"))


def test_values_that_python_lacks_and_numbers_of_too_many_digits(folder):
    times = pa.table({"path": PATHS, "label": pa.array([2**62] * 6, pa.timestamp("us"))})
    with pytest.raises(DataError, match="value that cannot be read"):
        open_source(spec(write(folder / "a.parquet", times)))
    long = "9" * 5000
    source, _ = open_source(spec(write(folder / "a.csv", columns(label=["10", "9", long] * 2))))
    assert source.classes == ["9", "10", long]


def test_one_long_label_takes_no_room_for_the_others(folder):
    """As an array of texts these would be 22 GB."""
    rows = [f"{path},{k}" for k, path in enumerate(PATHS)] + [f"more/{k}.png,a" for k in range(50_000)]
    (folder / "a.csv").write_text("\n".join(["path,label", *rows, "last.png," + "x" * 110_000]))
    source, _ = open_source(spec(folder / "a.csv"))
    assert len(source.items) == 50_007


def test_parquet_that_repeats_a_number_millions_of_times_is_refused_soon(tmp_path):
    many = 10_000_000
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"path": pa.nulls(many, pa.string()), "label": np.zeros(many, np.int64)}), file)
    assert file.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="as a file made to exhaust memory does"):
        open_source(spec(file))


def test_parquet_that_repeats_a_long_text_is_refused_soon(tmp_path):
    coded = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), ["x" * 100_000])
    for kept in (True, False):
        file = tmp_path / f"{kept}.parquet"
        parquet.write_table(
            pa.table({"path": [str(k) for k in range(20_000)], "label": coded}), file, store_schema=kept
        )
        assert (parquet.read_schema(file).field("label").type == pa.string()) is not kept
        with pytest.raises(DataError, match="as a file made to exhaust memory does"):
            open_source(spec(file))


def test_an_arrow_file_that_expands_is_refused_before_it_does(tmp_path, monkeypatch):
    many, coded = 10_000_000, pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), ["x" * 100_000])
    large = {"image": pa.array([bytes(64 << 20)] * 2, pa.large_binary()), "label": [0, 1]}
    for name, table, options, says in (
        ("batch", pa.table(large), {"compression": "zstd"}, "is compressed"),
        ("codes", pa.table({"image": coded}), {"compression": "lz4"}, "is compressed"),
        ("texts", pa.table({"image": coded}), {}, "as a file made to exhaust memory does"),
        ("nulls", pa.table({"image": pa.nulls(many)}), {}, "as a file made to exhaust memory does"),
    ):
        place = saved(tmp_path / name, table, NAMES, **options)
        with monkeypatch.context() as unread:
            if options:
                unread.setattr(pa.ipc, "open_stream", None)
            with pytest.raises(DataError, match=says):
                open_source(spec(place, image_key="image"))


def test_parquet_that_expands_is_refused_before_it_does(tmp_path, monkeypatch):
    file = tmp_path / "a.parquet"
    image = pa.array([bytes(64 << 20)] * 2, pa.large_binary())
    parquet.write_table(pa.table({"image": image, "label": [0, 1]}), file, compression="zstd", use_dictionary=False)
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", None)
    with pytest.raises(DataError, match="as a file made to exhaust memory does"):
        open_source(spec(file, image_key="image"))
