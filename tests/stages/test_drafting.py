"""``init``: a recipe for whatever lies there, which runs as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from types import SimpleNamespace as Namespace

import h5py
import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

import taftcache
from taftcache.backbone.model import load_backbone
from taftcache.backbone.saved import save_backbone
from taftcache.backbone.sources import table as table_source
from taftcache.backbone.sources.base import Item, SourceInfo
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import BackboneSpec, DataSpec
from taftcache.cache.store import FeatureStore
from taftcache.errors import BackboneError, DataError, RecipeError, StoreWriteError
from taftcache.names import readable_size, readable_time
from taftcache.recipe import load_recipe, parse_recipe
from taftcache.stages.extract import drafting, looking
from taftcache.stages.extract.classes import doubtful_classes_notes
from taftcache.stages.extract.drafting import COMMENTS, PRETRAINED
from taftcache.stages.extract.forgotten import open_images
from taftcache.terminal.pipeline import show_init
from tests.backbone.test_table import saved, write
from tests.stages.making import digits, recipe, tree, write_images, write_inside


def test_a_class_for_each_image_is_noted(place):
    """``init`` and ``extract`` took prices for classes, and the accuracy was 0 %."""
    paths = listed(place / "images")["file_name"]
    write(place / "images" / "a.csv", {"path": paths, "label": [str(1000 + k) for k in range(len(paths))]})
    made = taftcache.init_recipe(place / "images" / "a.csv", overrides=["data.held_out=0"])
    said = "42 of 42 samples have a class of their own"
    assert [note[: len(said)] for note in made.notes] == [said]
    assert any(note.startswith(said) for note in taftcache.extract(load_recipe(made.recipe)).notes)
    write(place / "images" / "a.csv", {"path": paths, "label": [f"{k / 4}" for k in range(len(paths))]})
    with pytest.raises(DataError, match=r"(?s)42 different numbers for 42 rows.*fitted by TangentRegressor"):
        taftcache.init_recipe(place / "images" / "a.csv", force=True)


def test_a_table_without_a_line_of_names_loses_no_image(place):
    """``init`` offered the first image and its class as names of columns, and the image was lost."""
    table = listed(place / "images")
    lines = [f"{path},{name}\n" for path, name in zip(table["file_name"], table["species"], strict=True)]
    (place / "images" / "a.csv").write_text("".join(lines))
    with pytest.raises(DataError, match=r"has no line of names: its first line is a sample\n.*\n  try: add a line"):
        taftcache.init_recipe(place / "images" / "a.csv")


@pytest.mark.parametrize(
    ("classes", "noted"),
    [
        *((["-1", "0", "1"], ["-1"]), (["-1", "a"], []), (["0", "1"], [])),
        *((["a", "nan"], ["nan"]), (["NA", "None", "b"], ["NA", "None"]), (["<NA>", "banana"], ["<NA>"])),
    ],
)
def test_classes_that_often_mean_no_label_are_noted(classes, noted):
    found = Namespace(classes=classes, items=[Item(str(k), k % len(classes)) for k in range(30)])
    often = "which often means that a label is not given"
    said = [f"{30 // len(classes)} samples of the class {name}, {often}" for name in noted]
    assert [note.partition(";")[0] for note in doubtful_classes_notes(found)] == said


def test_a_file_of_ones_own_weights(place, capsys):
    """Saved for another size, they were resized without a word, and nothing said what becomes of images."""
    options = {"depth": 2, "embed_dim": 48, "num_heads": 3, "patch_size": 8}
    made = timm.create_model("vit_tiny_patch16_224", **options, img_size=32, num_classes=3)
    save_file(made.state_dict(), place / "mine.safetensors")
    overrides = {"backbone.model": "vit_tiny_patch16_224", "backbone.weights": "mine.safetensors"}
    asked = overrides | {"backbone.model_args": {**options, "img_size": 48}, "preprocess.mean": [0.5] * 3}
    drafted = taftcache.init_recipe(place / "images", overrides=asked)
    input_ = "48 x 48 pixels, bicubic, crop 0.9, mean 0.5, std 0.5"
    assert f"Here: {input_}; what [preprocess] leaves out is" in drafted.recipe.read_text(encoding="utf-8")
    read = load_recipe(drafted.recipe, ["tangent.train=head"])
    reports = [drafted, taftcache.estimate(read), taftcache.extract(read), taftcache.inspect(read.store_path)]
    for report in reports:
        (note,) = [note for note in report.notes if "resized" in note]
        assert "pos_embed 1x17x48 to 1x37x48; with img_size = 32 in backbone.model_args they fit as they are" in note
        capsys.readouterr()
        taftcache.show(report)
        said = re.sub(r"(?<=,)\s+", " ", capsys.readouterr().out)
        assert re.search(rf"\ninput:? +{re.escape(input_)}\n", said)
    prepared = [drafted.estimate.preprocess, *(report.preprocess for report in reports[1:3])]
    assert prepared == [reports[3].identity["preprocess"]] * 3
    fits = overrides | {"backbone.model_args": {**options, "img_size": 32}}
    again = taftcache.init_recipe(place / "images", overrides=fits, force=True)
    assert [note for note in again.notes if "resized" in note] == []


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Three classes of 14 images of 8 x 8."""
    return write_images(tmp_path_factory.mktemp("my digits") / "all of them")


@pytest.fixture
def place(images, tmp_path, monkeypatch):
    """The current folder, with those images in the folder ``images``."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(images, tmp_path / "images")
    return tmp_path


def listed(folder):
    paths = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.png"))
    split = ["train" if k % 3 else "test" for k in range(len(paths))]
    return {"file_name": paths, "species": [p.split("/")[0] for p in paths], "split": split}


def as_splits(place):
    for path, split in zip(*(listed(place / "images")[k] for k in ("file_name", "split")), strict=True):
        (place / "set" / split / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place / "images" / path, place / "set" / split / path)
    return place / "set"


def as_beside(place):
    """Images side by side, and a table of their labels beside their folder."""
    table = listed(place / "images")
    (place / "set" / "jpeg").mkdir(parents=True)
    names = [f"jpeg/{k}.png" for k in range(len(table["split"]))]
    for path, name in zip(table["file_name"], names, strict=True):
        shutil.copy(place / "images" / path, place / "set" / name)
    write(place / "set" / "labels.csv", {"file_name": names, "species": table["species"]})
    return place / "set"


def as_saved(place):
    import pyarrow as pa

    table = listed(place / "images")
    (place / "set").mkdir()
    for split in ("train", "test"):
        rows = [k for k, s in enumerate(table["split"]) if s == split]
        images = [{"bytes": (place / "images" / table["file_name"][k]).read_bytes(), "path": None} for k in rows]
        labels = [int(table["species"][k]) for k in rows]
        saved(place / "set" / split, pa.table({"image": images, "label": labels}), ["zero", "one", "two"])
    return place / "set"


def as_listed(place):
    """Images numbered alike in train/ and test/, each with a metadata.csv, as Hugging Face's imagefolder has them."""
    table = listed(place / "images")
    for split in ("train", "test"):
        rows = [k for k, s in enumerate(table["split"]) if s == split]
        (place / "set" / split).mkdir(parents=True)
        for n, k in enumerate(rows):
            shutil.copy(place / "images" / table["file_name"][k], place / "set" / split / f"{n}.png")
        labels = [table["species"][k] for k in rows]
        write(
            place / "set" / split / "metadata.csv",
            {"file_name": [f"{n}.png" for n in range(len(rows))], "label": labels},
        )
    return place / "set"


def as_hub(place, *, paths=False, **columns):
    """Parquet files in data/, the training images in two parts; a path beside each image, numbered anew in each split,
    or none. ``columns`` name what each split numbers from: 0, or so many."""
    table = listed(place / "images")
    (place / "set" / "data").mkdir(parents=True)
    rows = {s: [k for k, own in enumerate(table["split"]) if own == s] for s in ("train", "test")}
    parts = {
        "train-00000-of-00002": rows["train"][:10],
        "train-00001-of-00002": rows["train"][10:],
        "test-00000-of-00001": rows["test"],
        "validation-00000-of-00001": rows["test"],
    }
    for name, part in parts.items():
        split = name.partition("-")[0]
        numbers = [rows[split].index(k) if split in rows else k for k in part]
        found = [(place / "images" / table["file_name"][k]).read_bytes() for k in part]
        cells = [{"bytes": b, "path": f"{n}.png" if paths else None} for b, n in zip(found, numbers, strict=True)]
        more = {key: [n + (split == "test") * apart for n in numbers] for key, apart in columns.items()}
        labels = [table["species"][k] for k in part]
        write(place / "set" / "data" / f"{name}.parquet", {"image": cells, "label": labels, **more})
    return place / "set"


def several_tables(place):
    for name in ("a.csv", "b.csv"):
        write(place / name, {"path": ["x.png"], "label": ["a"]})
    shutil.rmtree(place / "images")
    return place


def several_saved(place):
    whole = as_saved(place)
    for old, new in (("train", "one"), ("test", "two")):
        (whole / old).rename(whole / new)
    return whole


def as_jsonl(place):
    whole = as_listed(place)
    for file in whole.rglob("metadata.csv"):
        file.rename(file.with_suffix(".jsonl"))
    return whole


PLACES = {
    "folder": (lambda place: place / "images", {"source": "folder", "held_out": 0.2}, ["0", "1", "2"]),
    "splits": (as_splits, {"source": "folder"}, ["0", "1", "2"]),
    "csv": (
        lambda place: write(place / "images" / "a.csv", listed(place / "images")),
        {"source": "table", "image_key": "file_name", "label_key": "species", "test_split": "test"},
        ["0", "1", "2"],
    ),
    "parquet": (
        lambda place: write(place / "images" / "a.parquet", listed(place / "images")),
        {"source": "table", "train_split": "train"},
        ["0", "1", "2"],
    ),
    "beside": (as_beside, {"source": "table", "label_key": "species"}, ["0", "1", "2"]),
    "saved": (as_saved, {"source": "table", "image_key": "image"}, ["zero", "one", "two"]),
    "listed": (as_listed, {"source": "table", "image_key": "file_name"}, ["0", "1", "2"]),
    "hub": (as_hub, {"source": "table", "train_split": "train", "test_split": "test"}, ["0", "1", "2"]),
}


@pytest.mark.law("A recipe that init writes is read back as what was chosen, and runs unchanged")
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.full] * (k in ("splits", "parquet"))) for k in PLACES]
)
def test_a_recipe_for_what_lies_there(place, kind):
    make, data, classes = PLACES[kind]
    report = taftcache.init_recipe(make(place), "mine.toml")
    text, costs = (place / "mine.toml").read_text(encoding="utf-8"), report.estimate
    assert f"about {readable_size(costs.bytes)}, and {readable_time(costs.seconds)} to make.\n" in text
    values = tomllib.loads(text)
    assert data.items() <= values["data"].items()
    assert (report.images, report.classes, report.pixels) == (42, classes, (8, 8))
    assert report.held_out == (14 if "test" in values["data"] else report.estimate.rows["held-out"])
    assert values["backbone"] == {"weights": "bundled", "features": "every block"}
    recipe = load_recipe("mine.toml")
    assert (recipe.name, recipe.store_path, recipe.store.shards) == ("mine", place / "stores/mine", 1)
    if kind in ("folder", "saved"):
        extracted = taftcache.extract(recipe)
        assert extracted.shards == report.estimate.rows
        files = [f for f in recipe.store_path.rglob("*") if f.is_file()]
        rounding = os.statvfs(place).f_frsize * len(files)  # each takes whole blocks
        assert 0.9 * extracted.bytes <= report.estimate.bytes <= 1.1 * extracted.bytes + rounding


@pytest.mark.parametrize(
    ("columns", "paths", "key"),
    [
        ({}, False, None),
        ({}, True, "image"),
        ({"image_id": range(42), "other": range(42)}, True, "image_id"),
        ({"ID": ["x"] * 42, "uuid": [f"u{k}" for k in range(42)]}, False, "uuid"),
        ({"id": [*range(41), None]}, True, "image"),
        ({"other": range(42)}, False, None),
    ],
)
def test_a_column_of_ids_is_found_where_images_lie_in_the_table(place, columns, paths, key):
    file = write_inside(place / "set.parquet", place / "images", paths=paths, **columns)
    report = taftcache.init_recipe(file)
    text = (place / "set.toml").read_text(encoding="utf-8")
    assert load_recipe("set.toml").data.id_key == key
    notes = [note for note in report.notes if note.startswith("ids are numbers of rows") and "data.id_key" in note]
    assert len(notes) == (key is None)
    said = "Ids are the paths kept beside the images" if key == "image" else COMMENTS["data.id_key"]
    assert text.count(f"# {said}") == (key is not None)


def test_ids_that_two_tables_share_are_not_taken(place):
    """Many libraries number the rows of each split anew; such numbers would be an error, and say nothing."""
    whole = write_inside(place / "set.parquet", place / "images", paths=True, id=range(42), uid=range(42))
    rest = write_inside(place / "rest.parquet", place / "images", paths=True, id=range(42), uid=range(42, 84))
    for given, key in (({"data.test": str(rest)}, "uid"), ({"data.id_key": "image", "data.test": str(rest)}, "image")):
        taftcache.init_recipe(whole, force=True, overrides=given)
        assert load_recipe("set.toml").data.id_key == key


def opened(place, **given):
    """What ``init`` opens of a place: the section [data], ids to train on and to test on, and its notes, but for that
    on ids."""
    section = looking.data_section(place, given) | given
    data = parse_recipe({"data": section, "backbone": {"weights": "bundled"}}).data
    source, test, notes = open_images(data, None)
    ids = [[] if part is None else [item.id for item in part.items] for part in (source, test)]
    other = [note for note in notes if not note.startswith("ids are numbers of rows")]
    return section, *ids, [*other, *looking.unused_notes(place, data)]


def test_numbers_that_come_again_in_another_folder_are_other_images(place):
    """Refused: a table in each of two folders may name different files by the same path."""
    _, train, test, notes = opened(as_listed(place))
    assert (train[:2], test[:2], notes) == (["train/0.png", "train/1.png"], ["test/0.png", "test/1.png"], [])
    assert opened(place / "set" / "train")[1][:2] == ["0.png", "1.png"]
    tables = {part: str(place / "set" / part / "metadata.csv") for part in ("train", "test")}
    with pytest.raises(DataError, match="14 ids in both training and test"):  # one path below one root is one image
        opened(place, **tables, root=str(place / "set" / "train"))
    write(place / "set" / "train" / "other.csv", {"file_name": ["0.png", "1.png"], "label": ["0", "1"]})
    with pytest.raises(DataError, match=r"in both: 0\.png, 1\.png"):
        opened(place, train=tables["train"], test=str(place / "set" / "train" / "other.csv"))


def test_parts_of_a_split_are_one_table(place):
    section, train, test, notes = opened(as_hub(place))
    assert (train, test) == ([f"train/{k:04d}" for k in range(28)], [f"test/{k:04d}" for k in range(14)])
    assert section["train"] == section["test"] == str(place / "set" / "data")
    assert notes == ["split: 'train' for training, 'test' for testing; used for neither: validation"]
    first = place / "set" / "data" / "train-00000-of-00002.parquet"
    [note] = opened(first)[3]
    assert note.startswith("train-00000-of-00002.parquet is one of 2 parts of 'train'")
    with pytest.raises(DataError, match=r"no Parquet file in .* has the split 'dev'\n  got: files of test, train, val"):
        opened(place / "set", test_split="dev")
    first.unlink()
    with pytest.raises(DataError, match=r"does not have the parts of the split 'train'(.|\n)*got: 1 file, parts of 2"):
        opened(place / "set")
    (place / "set" / "data" / "train-00001-of-00002.parquet").unlink()
    (place / "set" / "data" / "test-00000-of-00001.parquet").rename(place / "set" / "data" / "training.parquet")
    (place / "set" / "data" / "validation-00000-of-00001.parquet").rename(place / "set" / "data" / "more.parquet")
    section, train, test, notes = opened(place / "set")
    assert (train[0], len(train), test, notes) == ("training/0000", 14, [], [])


def test_numbered_parts_in_a_folder_for_each_split_are_tables(place):
    """As the Hub's converted files, which lie in a folder for each configuration."""
    hub = as_hub(place)
    for file in (hub / "data").iterdir():
        split, part = file.stem.split("-")[:2]
        (hub / "default" / split).mkdir(parents=True, exist_ok=True)
        file.rename(hub / "default" / split / f"{int(part):04d}.parquet")
    (hub / "data").rmdir()
    note = "split: 'train' for training, 'test' for testing; used for neither: validation"
    for given in (hub, hub / "default"):
        section, train, test, notes = opened(given)
        assert (train, test) == ([f"train/{k:04d}" for k in range(28)], [f"test/{k:04d}" for k in range(14)])
        assert (section["train"], section["test"], notes) == (*[str(hub / "default")] * 2, [note])
    shutil.copytree(hub / "default", hub / "other")
    with pytest.raises(DataError, match="has several configurations of a dataset") as caught:
        opened(hub)
    assert (caught.value.got, caught.value.do) == ("default, other", f"choose one: taftcache init {hub}/default")
    with pytest.raises(DataError, match=r"splits in folders of their own(.|\n)*got: default, other") as caught:
        open_source(DataSpec(source="table", train=str(hub), image_key="image", label_key="label"))
    assert caught.value.do == f"name one of them: {hub}/default"
    (hub / "other" / "train" / "0000.parquet").unlink()
    with pytest.raises(DataError, match=r"they count from 0000, and 0000 is missing(.|\n)*got: 0001"):
        opened(hub / "other")
    (hub / "other" / "validation" / "more.parquet").touch()
    assert set(looking.splits_in(hub / "other")) == {"test", "train"}
    one = (hub / "other" / "test" / "0000.parquet").rename(hub / "other" / "test" / "9.parquet")
    (hub / "other" / "train" / "0001.parquet").unlink()
    shutil.copy(one, hub / "other" / "train")
    section, train, test, _ = opened(hub / "other")  # no number of the Hub's: a name
    assert section["train"] == str(hub / "other" / "train" / "9.parquet")
    assert (len(train), len(test)) == (14, 14)


@pytest.mark.parametrize(
    ("columns", "key", "first"),
    [
        ({}, "image", ("train/0.png", "test/0.png")),
        ({"id": 0}, "image", ("train/0.png", "test/0.png")),
        ({"id": 0, "uid": 100}, "uid", ("0", "100")),
    ],
)
def test_ids_of_a_folder_of_parquet_files_are_unique_in_both_splits(place, columns, key, first):
    section, train, test, _ = opened(as_hub(place, paths=True, **columns))
    assert (section["id_key"], train[0], test[0]) == (key, *first)
    assert len({*train, *test}) == 42


@pytest.mark.parametrize("paths", [False, True])
def test_parquet_files_in_a_folder_for_each_split(place, paths):
    whole = as_hub(place, paths=paths)
    for split in ("train", "test"):
        (whole / split).mkdir()
        for file in (whole / "data").glob(f"{split}-*"):
            file.rename(whole / split / file.name)
    shutil.rmtree(whole / "data")
    section, train, test, _ = opened(whole)
    assert (section["test_split"], len(train), len({*train, *test})) == ("test", 28, 42)


def test_classes_are_folders_whatever_lies_beside_them(place):
    (place / "images" / "metadata.jsonl").write_text("{}\n")
    assert opened(place / "images")[0] == {"source": "folder", "train": str(place / "images")}


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (("train", "test", "test"), None),
        (("train", "dev", "dev"), "split: 'train' for training, 'dev' for testing"),
        (
            ("train", "test", "validation"),
            "split: 'train' for training, 'test' for testing; used for neither: validation (14)",
        ),
        (("a", "b", "b"), "the column split of {} is not used: a (14), b (28); to test on one of these, set data.test"),
        (("all", "all", "all"), None),
    ],
)
def test_what_each_split_of_a_column_is_used_for_is_said(place, names, note):
    """Rows of 'dev' were trained on, and those of a third split were lost, without a word."""
    table = listed(place / "images") | {"split": [names[k % 3] for k in range(42)]}
    file = write(place / "images" / "a.csv", table)
    _, train, test, notes = opened(file)
    assert [said[: len(note.format(file))] for said in notes] == [note.format(file)] if note else notes == []
    tested = names.count(names[1]) * 14 if names[0] == "train" and "validation" not in names else 14
    assert (len(train), len(test)) == ((14, tested) if names[0] == "train" else (42, 0))


def test_a_class_of_a_split_that_is_not_used_is_no_class(place, monkeypatch):
    """Unless a store has it, whose classes keep their numbers."""
    table = listed(place / "images")
    splits = ["extra" if name == "0" else ("train", "test")[k % 2] for k, name in enumerate(table["species"])]
    file = str(write(place / "images" / "a.csv", table | {"split": splits}))
    data = {"source": "table", "train": file, "test": file, "test_split": "test"}
    asking = recipe(place / "store", data=data | {"image_key": "file_name", "label_key": "species"})
    with monkeypatch.context() as before:
        before.setattr(table_source, "SourceInfo", lambda **said: SourceInfo(**said | {"unused": ()}))
        taftcache.extract(asking)
    with FeatureStore(place / "store") as store:
        assert store.classes == ["0", "1", "2"]
    assert taftcache.extract(asking).notes == []
    assert taftcache.append(asking).root_before == FeatureStore(place / "store").root_digest
    new = recipe(place / "new", data=data | {"image_key": "file_name", "label_key": "species"})
    report = taftcache.extract(new)
    assert "without an image" not in str(report.notes)
    with FeatureStore(place / "new") as store:
        assert store.classes == ["1", "2"]
    assert taftcache.extract(new).notes == []


def test_a_further_split_is_named_and_left_out(place):
    """As SVHN's "extra": the whole set was refused, and so was the cure."""
    for make in (as_saved, as_listed, as_splits):
        whole = make(place)
        shutil.copytree(whole / "test", whole / "extra")
        section, train, test, notes = opened(whole)
        assert (len(train), len(test)) == (28, 14)
        assert notes == [f"of the folders in {whole}, these are used for neither training nor testing: extra"]
        there = {"train": str(whole / "extra"), "test": str(whole / "test")}
        if make is as_listed:
            with pytest.raises(DataError, match=f"name the table in it: {whole}/extra/metadata.csv"):
                opened(whole, **there)
        else:
            named = opened(whole, **there)
            assert (named[0]["source"], len(named[1])) == (section["source"], 14)
        shutil.rmtree(whole)


@pytest.mark.parametrize("make", [as_splits, as_listed])
@pytest.mark.parametrize("name", ["train", "test"])
def test_a_split_whose_link_leads_nowhere_is_not_left_out(place, make, name):
    whole = make(place)
    (whole / name).rename(place / "away")
    (whole / name).symlink_to("gone")
    with pytest.raises(DataError, match=f"what the link {whole / name} leads to cannot be reached\n  got: gone"):
        opened(whole)


@pytest.mark.parametrize(
    ("names", "found", "note"),
    [
        (("train_images", "train_labels", "test_images", "test_labels"), {"test_split": "test"}, None),
        (
            ("x_train", "y_train", "x_test", "y_test", "x_val", "y_val"),
            {"image_key": "x", "label_key": "y", "test_split": "test"},
            "split: 'train' for training, 'test' for testing; used for neither: val",
        ),
        (("X_train", "y_train", "X_test"), {"image_key": "X", "label_key": "y"}, None),
        (
            ("images", "labels", "train_images", "train_labels", "test_images", "test_labels"),
            {},
            "split: the arrays of none for training; used for neither: test, train",
        ),
        (
            ("images", "labels", "test_images", "test_labels"),
            {},
            "split: the arrays of none for training; used for neither: test",
        ),
        (("x", "y"), {"image_key": "x", "label_key": "y"}, None),
    ],
)
def test_splits_in_a_file_of_arrays_are_found(place, names, found, note):
    pixels, labels = digits()
    lots = {name: (pixels if name[0] in "xXi" or "images" in name else labels)[:20] for name in names}
    np.savez(place / "set.npz", **lots)
    section, train, test, notes = opened(place / "set.npz")
    file = str(place / "set.npz")
    splits = {"test": file, "train_split": "train"} if "test_split" in found else {}
    splits |= {"train_split": "train"} if "X_test" in names else {}
    assert section == {"source": "npz", "train": file} | splits | found
    assert (len(train), len(test), notes) == (20, 20 if "test_split" in found else 0, [note] if note else [])


def test_splits_of_image_files_that_are_not_used_are_named(place):
    file = next(place.rglob("*.png")).read_bytes()
    rows = {"blob": np.frombuffer(file * 4, np.uint8), "offset": np.arange(5) * len(file), "label": np.arange(4) % 2}
    np.savez(place / "set.npz", **{f"{split}_{key}": rows[key] for split in ("train", "test") for key in rows})
    with h5py.File(place / "set.h5", "w") as arrays:
        for split in ("train", "test"):
            arrays.update({f"{split}/{key}": rows[key] for key in rows})
    for name in ("set.npz", "set.h5"):
        _, train, _, notes = opened(place / name)
        assert (len(train), notes) == (4, ["split: 'train' for training; used for neither: test"])


def test_the_default_names_of_arrays_come_before_other_usual_ones(place):
    pixels, labels = digits()
    np.savez(place / "set.npz", images=pixels[:20], labels=labels[:20] % 3, label=np.full(20, "same"))
    assert opened(place / "set.npz")[0] == {"source": "npz", "train": str(place / "set.npz")}


def test_splits_are_found_by_the_names_that_are_given(place):
    pixels, labels = digits()
    np.savez(place / "set.npz", x_train=pixels[:20], y_train=labels[:20], x_test=pixels[20:30], y_test=labels[20:30])
    _, train, test, notes = opened(place / "set.npz", image_key="x", label_key="y")
    assert (len(train), len(test), notes) == (20, 10, [])
    with h5py.File(place / "set.h5", "w") as file:
        file["a/b/x"], file["y"] = pixels[:20], labels[:20]
    section, train, _, _ = opened(place / "set.h5", image_key="a/b/x")
    assert (section["label_key"], len(train)) == ("y", 20)


@pytest.mark.parametrize(("asked", "written"), [("stores/mine", "{}/stores/mine"), ("${STORES}/x", "${{STORES}}/x")])
def test_a_store_that_is_named_is_the_same_from_anywhere(place, monkeypatch, asked, written):
    monkeypatch.setenv("STORES", "here")
    taftcache.init_recipe("images", overrides=[f"store.path={asked}"])
    assert load_recipe("images.toml").store.path == written.format(place)


def test_all_paths_that_are_given_are_the_same_from_anywhere(place, monkeypatch):
    """The folder that a table's paths start from stayed as it was typed, and the recipe ran from one folder alone."""
    monkeypatch.setenv("IMAGES", "images")
    save_backbone(load_backbone(BackboneSpec()), place / "network")
    table = {key: listed(place / "images")[key] for key in ("file_name", "species")}
    write(place / "some.csv", table)
    write(place / "lists.csv", table)
    given = ["data.root=images", "data.train=some.csv", "backbone.weights=local-dir:network"]
    made = load_recipe(taftcache.init_recipe("lists.csv", overrides=given).recipe)
    assert [made.data.train, made.data.root, made.backbone.weights] == [
        str(place / name) for name in ("some.csv", "images", "network")
    ]
    taftcache.init_recipe("lists.csv", overrides=["data.root=${IMAGES}"], force=True)
    assert load_recipe("lists.toml").data.root == "${IMAGES}"


def test_a_relative_store_is_said_in_full_where_it_is_made(place):
    taftcache.init_recipe("images")
    recipe = load_recipe("images.toml", ["store.path=stores/mine"])
    made = taftcache.extract(recipe)
    assert [note for note in made.notes if f"created {place}/stores/mine (" in note]
    assert taftcache.extract(recipe).notes == []
    assert taftcache.extract(load_recipe("images.toml", [f"store.path={place}/other"])).notes == []


def test_a_place_is_written_without_dots(place, monkeypatch):
    """``init ../pictures`` wrote a path with ``..`` in it, which error and trust then repeated."""
    (place / "work").mkdir()
    write_images(place / "pictures").rename(place / "pictures.of.mine")
    (place / "link").symlink_to(place / "pictures.of.mine")
    monkeypatch.chdir(place / "work")
    for given, file, train in (
        ("../pictures.of.mine", "pictures.of.toml", place.resolve() / "pictures.of.mine"),
        (str(place / "link"), "link.toml", place / "link"),
    ):
        report = taftcache.init_recipe(given)
        assert (str(report.recipe), load_recipe(report.recipe).data.train) == (file, str(train))


def test_a_recipe_explains_itself_and_is_never_lost(place):
    taftcache.init_recipe("images")
    text = (place / "images.toml").read_text(encoding="utf-8")
    assert text.startswith("# 42 images of 3 classes, about 8 x 8 pixels, from images\n")
    sections = tomllib.loads(text)
    said = [f"{name}.{key}" for name, section in sections.items() for key in section]
    several = {name: COMMENTS[name] for name in said if name in COMMENTS and name != "compose.mode"}
    assert all(f"# {comment}\n" in text for comment in several.values())
    assert sections["store"]["shards"] == 1
    assert "# Of one shard, its model is that of all rows" in text, "there is no models/exact"
    assert set(COMMENTS) - set(said) == {"data.id_key", "data.unreadable", "tangent.reset_block"}
    with pytest.raises(RecipeError, match=r"images\.toml exists already") as caught:
        taftcache.init_recipe("images")
    assert "--force" in caught.value.do
    assert (place / "images.toml").read_text(encoding="utf-8") == text
    grouped = taftcache.init_recipe("images", force=True, overrides=[r"data.group=([0-9])\.png"])
    assert "\n# The part of the groups that is kept for testing; " in grouped.recipe.read_text(encoding="utf-8")
    assert any(re.search(r"\(data\.group\), \d+ of them held out; the largest", note) for note in grouped.notes)
    changes = ["store.shards=2", "objective.ridge=auto", "device=cpu", "tangent.blocks=0"]
    report = taftcache.init_recipe("images", force=True, overrides=changes)
    recipe = load_recipe("images.toml")
    assert (recipe.store.shards, recipe.objective.ridge, recipe.device, recipe.tangent.blocks) == (2, "auto", "cpu", 0)
    assert report.shards == 2
    text = (place / "images.toml").read_text(encoding="utf-8")
    assert f"# {COMMENTS['compose.mode']}\n" in text
    assert f"# {COMMENTS['tangent.blocks']}\n" in text
    taftcache.init_recipe("images", force=True, overrides=["tangent.blocks=1"])
    assert "# How many of the last blocks are trained" in (place / "images.toml").read_text(encoding="utf-8")
    with pytest.raises(StoreWriteError, match="cannot write"):
        taftcache.init_recipe("images", "nowhere/a.toml")


HEAD = ({"weights": "bundled", "features": "every block"}, {"blocks": 0, "init": "zero"})
LAST_BLOCK = ({"weights": "bundled"}, {"reset_block": True})


@pytest.mark.parametrize(
    ("changes", "backbone", "tangent"),
    [
        ([], *HEAD),
        (["backbone.features=every block"], *HEAD),
        (["backbone.features=last"], HEAD[0] | {"features": "last"}, LAST_BLOCK[1]),
        (["tangent.blocks=1"], LAST_BLOCK[0], LAST_BLOCK[1] | {"blocks": 1}),
        (["tangent.train=head"], LAST_BLOCK[0], {"train": "head"}),
        (["store.cache=tokens"], *LAST_BLOCK),
    ],
)
def test_a_head_on_every_block_unless_something_else_is_asked_for(place, changes, backbone, tangent):
    report = taftcache.init_recipe("images", overrides=changes)
    values = tomllib.loads(report.recipe.read_text(encoding="utf-8"))
    assert (values["backbone"], values["tangent"]) == (backbone, tangent)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["tangent.blocks=1"], "the end of it from blocks.5 on, linearised, 112,323 parameters"),
        (["tangent.blocks=1", "tangent.train=head"], "the end of it from blocks.5 on, linearised, 291 parameters"),
        (["tangent.blocks=0"], "a head on its last features, 291 parameters"),
        ([], "a head on every block, 3,459 parameters"),
    ],
)
def test_what_is_trained_and_how_much_of_it_is_shown(place, changes, said, capsys):
    """``blocks = 1`` of some models is nearly the whole network."""
    show_init(taftcache.init_recipe(place / "images", overrides=changes))
    assert f"trained  {said}\n" in capsys.readouterr().out


def test_a_feature_that_there_is_not_is_refused(place):
    with pytest.raises(RecipeError, match="features"):
        taftcache.init_recipe("images", overrides=["backbone.features=first"])


def test_blocks_that_say_too_much_are_not_chosen(place, monkeypatch):
    """The bundled model's six blocks say 1,152 numbers, of some 33 rows."""
    monkeypatch.setattr(drafting, "WIDE", 60)
    report = taftcache.init_recipe("images")
    values = tomllib.loads(report.recipe.read_text(encoding="utf-8"))
    assert (values["backbone"], values["tangent"]) == LAST_BLOCK
    assert [note for note in report.notes if "1,152 numbers" in note and "features=every block" in note]
    assert report.estimate.numbers > 1152
    asked = taftcache.init_recipe("images", force=True, overrides={"backbone.features": "every block"})
    assert (asked.estimate.numbers, asked.notes) == (1152, [])
    monkeypatch.setattr(drafting, "WIDE", 80)  # twice the rows: they span no more
    assert taftcache.init_recipe("images", force=True).estimate.numbers == 1152


def test_names_of_folders_that_need_care(place):
    odd = place / 'a "b" \\ ü\x7f#[x]'
    (place / "images").rename(odd)
    report = taftcache.init_recipe(odd)
    assert report.recipe.name == "a-b-ü-x.toml"
    recipe = load_recipe(report.recipe)
    assert recipe.data.train == str(odd)
    assert tomllib.loads(report.recipe.read_text(encoding="utf-8"))["data"]["train"] == str(odd)


def test_images_that_do_not_decode_are_left_out(place):
    for k in (3, 9):
        sorted((place / "images" / "1").iterdir())[k].write_bytes(b"none")
    report = taftcache.init_recipe("images")
    (note,) = report.notes
    assert note.startswith("of 42 looked at, 2 images cannot be decoded; left out: 1/")
    assert load_recipe("images.toml").data.unreadable == "skip"
    report = taftcache.init_recipe("images", force=True, overrides=["data.unreadable=stop"])
    assert "cannot be decoded; a run stops there: 1/" in report.notes[0]


def test_every_image_is_looked_at_as_long_as_it_takes_seconds(place, monkeypatch):
    """A broken image that was none of 48 passed, and the run stopped there."""
    monkeypatch.setattr(looking, "TRIED", 10)
    broken = sorted((as_splits(place) / "test" / "1").iterdir())[0]
    broken.write_bytes(broken.read_bytes()[:60])
    report = taftcache.init_recipe("set", "a.toml")
    assert report.notes == ["of 42 looked at, 1 image cannot be decoded; left out: test/1/" + broken.name]
    monkeypatch.setattr(looking, "SECONDS", -1)
    report = taftcache.init_recipe("images", "b.toml")
    assert report.notes == [
        "10 of 42 images were looked at; another that does not decode is what stops a run,"
        ' unless data.unreadable = "skip"'
    ]


def test_classes_that_cannot_be_learned_are_named(place):
    """A table of thirty images of thirty classes passed in silence."""
    paths = listed(place / "images")["file_name"][:30]
    file = write(place / "images" / "a.csv", {"path": paths, "label": [f"class {k:02}" for k in range(30)]})
    report = taftcache.init_recipe(file, overrides={"data.held_out": np.float64(0.4), "objective.radius": None})
    assert report.held_out > 5
    alone, note, untold = report.notes
    assert f"{report.held_out} of 30 classes held out without a training image" in note
    assert note.endswith(f" and {report.held_out - 5} more")
    assert f"{30 - report.held_out} of 30 classes without a held-out image, of which accuracy and probab" in untold
    assert taftcache.init_recipe(file, force=True, overrides=["data.held_out=0"]).notes == [alone]
    split = ["test" if k < 3 else "train" for k in range(30)]
    label = ["new" if k == 0 else f"class {k % 2}" for k in range(30)]
    file = write(place / "images" / "b.csv", {"path": paths, "label": label, "split": split})
    assert taftcache.init_recipe(file).notes == [
        "1 of 3 classes held out without a training image, which cannot be learned: new"
    ]


def test_classes_that_differ_in_case_alone_are_named(place):
    paths = listed(place / "images")["file_name"]
    labels = [("Cat", "cat", "dog")[k % 3] for k in range(len(paths))]
    report = taftcache.init_recipe(write(place / "images" / "a.csv", {"path": paths, "label": labels}))
    (note,) = report.notes
    assert note.startswith("Cat and cat are classes of their own")
    assert report.classes == ["Cat", "cat", "dog"]


def test_files_that_a_table_lists_and_that_are_not_there_stop_it(place):
    """They were said not to decode, and the recipe left them out: a wrong path is no damaged image."""
    table = listed(place / "images")
    table["file_name"][6] = "1/none.png"  # to test on
    table["file_name"][20] = "2/none.png"
    file = write(place / "images" / "a.csv", table)
    with pytest.raises(DataError, match=r"missing: 2 of 42 images that .* lists") as caught:
        taftcache.init_recipe(file)
    assert (caught.value.got, "data.unreadable=skip" in caught.value.do) == ("2/none.png, 1/none.png", True)
    assert not list(place.glob("*.toml"))
    report = taftcache.init_recipe(file, overrides=["data.unreadable=skip"])
    assert load_recipe(report.recipe).data.unreadable == "skip"


def test_no_image_decodes(place):
    for file in (place / "images").rglob("*.png"):
        file.write_bytes(b"none")
    with pytest.raises(DataError, match="none of 42 images tried can be decoded"):
        taftcache.init_recipe("images")
    assert not (place / "images.toml").exists()


def test_large_pictures_get_a_pretrained_model_where_one_can_be_had(place, monkeypatch, capsys):
    for file in (place / "images").rglob("*.png"):
        Image.fromarray(np.zeros((90, 120, 3), np.uint8)).save(file)

    asked = []

    def offline(spec, *rest, **named):
        asked.append(spec.model)
        if spec.model is not None:
            raise BackboneError(f"no pretrained weights of {spec.model} here", do="connect")
        return load(spec, *rest, **named)

    from taftcache.stages.extract import frozen

    load = frozen.load_backbone
    monkeypatch.setattr(frozen, "load_backbone", offline)
    report = taftcache.init_recipe("images")
    assert asked == [PRETRAINED, None]
    assert report.backbone == "bundled"
    assert any("no pretrained weights" in note and "--weights" in note for note in report.notes)
    show_init(report)
    said = " ".join(capsys.readouterr().out.split())
    assert "far less accurate on photographs" in said
    assert f"taftcache init PLACE --force --model {PRETRAINED} --weights FILE.safetensors" in said
    for changes in (["backbone.model=vit_tiny_patch16_224"], [f"backbone.model={PRETRAINED}"]):
        with pytest.raises(BackboneError, match="no pretrained weights"):  # a model that was asked for is not swapped
            taftcache.init_recipe("images", force=True, overrides=changes)
    assert load_recipe("images.toml").backbone.weights == "bundled"


@pytest.mark.parametrize(
    ("make", "fault", "do"),
    [
        (lambda place: place / "nowhere", "nothing at", "one subfolder per class"),
        (lambda place: place / "images" / "0", "have no labels", "CSV file"),
        (lambda place: write(place / "a.csv", {"path": ["x.png"], "kind": ["a"]}), "no column of", "data.label_key="),
        (lambda place: write(place / "a.csv", {"path": [], "label": []}), "has no rows", "below a line of names"),
        (several_tables, "nothing says which to train on\n  got: a.csv, b.csv", "--set data.test=FILE"),
        (several_saved, "has several tables of images, and none is called train\n  got: one, two", "set/one"),
        (as_jsonl, "metadata.jsonl is of a kind of table that is not read", "metadata.csv"),
        (lambda place: next((place / "images").rglob("*.png")), "not a file that lists or holds images", ".csv"),
    ],
)
def test_places_without_labelled_images(place, make, fault, do):
    with pytest.raises(DataError, match=fault) as caught:
        taftcache.init_recipe(make(place))
    assert do in caught.value.do
    assert not list(place.glob("*.toml"))


@pytest.mark.parametrize("name", ["picture.png", "images", "pyproject.toml", "student.toml"])
def test_force_replaces_a_recipe_alone(place, name):
    """It took any file's place: that of an image, too, if -o named one by mistake."""
    shutil.copy(place / "images" / listed(place / "images")["file_name"][0], place / "picture.png")
    (place / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (place / "student.toml").write_text("[data]\n[student]\n")
    before = tree(place)
    with pytest.raises(RecipeError, match="does not read as a recipe of images, which is all that force replaces"):
        taftcache.init_recipe("images", place / name, force=True)
    assert tree(place) == before


@pytest.mark.parametrize("text", ["", "[data]\nsorce = 'folder'\n", "[backbone]\nweights = 7\n"])
def test_force_replaces_a_recipe_with_mistakes(place, text):
    (place / "mine.toml").write_text(text)
    assert load_recipe(taftcache.init_recipe("images", "mine.toml", force=True).recipe).data.source == "folder"


def test_the_nearest_folder_is_named(place):
    with pytest.raises(DataError) as caught:
        taftcache.init_recipe(place / "images" / "none" / "such")
    assert caught.value.got == f"{place}/images is the nearest folder that exists"


def test_a_slip_is_told_before_torch_is_loaded(tmp_path):
    """It took seconds to say that a folder is not there."""
    (tmp_path / "there.toml").touch()
    for arguments in (["nowhere"], [".", "-o", "there.toml"]):
        code = f"import sys, taftcache.cli\ntry: taftcache.cli.main({['init', *arguments]!r})\n"
        code += "except SystemExit as end: print(end.code > 0, {'torch', 'timm'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "True set()\n", done.stderr


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("deit_tiny_patch16_224.safetensors", "deit_tiny_patch16_224"),
        ("deit_tiny_patch16_224.fb_in1k.safetensors", "deit_tiny_patch16_224.fb_in1k"),
        ("deit_tiny_patch16_224.mine.safetensors", "deit_tiny_patch16_224"),
        ("model.safetensors", None),
    ],
)
def test_weights_called_after_a_model_name_it(place, monkeypatch, file, model):
    """The file has no weights: they are not looked at."""
    from taftcache.stages.extract import frozen

    load = frozen.load_backbone
    monkeypatch.setattr(frozen, "load_backbone", lambda spec, *rest, **named: load(BackboneSpec(), *rest, **named))
    report = taftcache.init_recipe("images", overrides=[f"backbone.weights=/x/{file}"])
    backbone = tomllib.loads(report.recipe.read_text(encoding="utf-8"))["backbone"]
    named = {} if model is None else {"model": model}
    assert backbone == {"weights": f"/x/{file}", "features": "every block"} | named


def test_a_column_is_named(place):
    paths = listed(place / "images")["file_name"]
    file = write(place / "images" / "a.csv", {"where": paths, "colour": ["red", "blue"] * 21})
    report = taftcache.init_recipe(file, overrides=["data.label_key=colour", "data.image_key=where"])
    assert report.classes == ["blue", "red"]
    assert json.dumps("colour") in report.recipe.read_text(encoding="utf-8")
