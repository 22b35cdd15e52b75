"""A store that grew has the bytes of one that was made at once; shards that got nothing keep their files."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image
from typer.testing import CliRunner

import taftcache
from taftcache.backbone.sources.folder import FolderSource
from taftcache.backbone.sources.rgb import open_rgb
from taftcache.backbone.spec import DataSpec
from taftcache.cache.format.ledger import ADOPT
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.cli import app, main
from taftcache.errors import DataError, IdentityError, RecipeError, StoreError, TaftcacheError, UnreadableImage
from taftcache.names import counted
from taftcache.stages.extract.forgotten import forgotten_beside
from taftcache.stages.extract.growth.reporting import AppendReport
from taftcache.stages.progress import Silent
from taftcache.terminal.forgetting import show_receipts
from taftcache.terminal.pipeline import show_append, show_extract
from tests.stages.making import recipe, toml, tree, write_images

UNREAD = "left out: 1 image that could not be read (first: 0/broken.png)"
MEMORY = ("ledger/", "tombstones.key", "lists/tombstones", "manifest.json")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Three classes of fourteen files and one that does not decode. A test that adds one takes it away again."""
    images = write_images(tmp_path_factory.mktemp("grown") / "digits")
    (images / "0" / "broken.png").write_bytes(b"no image")
    return images


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, images) -> Path:
    """A store of two thirds of the images; then the others come back. Not to be written to."""
    later = sorted(images.glob("*/*.png"))[::3]
    root = tmp_path_factory.mktemp("extracted")
    for file in later:
        (root / "aside" / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.move(file, root / "aside" / file.parent.name / file.name)
    taftcache.extract(asked(root / "store", images))
    for file in later:
        shutil.move(root / "aside" / file.parent.name / file.name, file)
    return root / "store"


@pytest.fixture
def few(tmp_path, extracted) -> Path:
    """A copy of ``extracted``."""
    return shutil.copytree(extracted, tmp_path / "store")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, images) -> dict[str, bytes]:
    """The files of a store of all images that was made at once."""
    path = tmp_path_factory.mktemp("fresh") / "store"
    taftcache.extract(asked(path, images))
    return tree(path)


def asked(path, images, **more):
    return recipe(path, data={"source": "folder", "train": str(images), "unreadable": "skip"} | more)


@pytest.mark.law("A store that grew has the bytes of one made at once")
def test_a_grown_store_is_one_made_at_once(few, images, fresh):
    assert "taftcache append" in taftcache.extract(asked(few, images)).notes[0]
    before, planned = tree(few), taftcache.append(asked(few, images), dry_run=True)
    assert (planned.dry_run, planned.images, planned.known, tree(few)) == (True, 0, 28, before)
    report = taftcache.append(asked(few, images))
    assert (report.images + report.skipped, report.known, report.added) == (15, 28, planned.added)
    assert sum(report.added.values()) == 15
    assert tree(few) == fresh
    again = taftcache.append(asked(few, images))
    assert (again.added, again.images, again.root_digest) == ({}, 0, report.root_digest)
    assert [note.split(";")[0] for note in taftcache.extract(asked(few, images)).notes] == [UNREAD]


@pytest.mark.law("A store that grew has the bytes of one made at once")
@pytest.mark.parametrize(
    ("folder", "store", "new_shard"),
    [("train", {}, False), ("train", {"plan": "balanced"}, False), ("train", {}, True), ("test", {}, False)],
    ids=["hash", "balanced", "beside a new shard", "held out"],
)
def test_a_mended_image_goes_where_it_was_left_out(tmp_path, folder, store, new_shard):
    places = {name: write_images(tmp_path / name) for name in ("train", "test")}
    file = sorted((places[folder] / "1").iterdir())[4]
    good = file.read_bytes()
    file.write_bytes(good[:40])
    data = {"source": "folder", "unreadable": "skip"} | {name: str(place) for name, place in places.items()}
    sections = {"data": data, "store": store}
    taftcache.extract(recipe(tmp_path / "store", **sections))
    before = tree(tmp_path / "store")
    report = taftcache.append(recipe(tmp_path / "store", **sections), new_shard=new_shard)
    assert (report.unread, report.added, tree(tmp_path / "store")) == (1, {}, before)
    file.write_bytes(good)
    planned = taftcache.append(recipe(tmp_path / "store", **sections), new_shard=new_shard, dry_run=True)
    report = taftcache.append(recipe(tmp_path / "store", **sections), new_shard=new_shard)
    assert (report.unread, report.images, sum(report.added.values())) == (0, 1, 1)
    assert planned.added == report.added
    taftcache.extract(recipe(tmp_path / "fresh", **sections))
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")
    assert (list(report.added) == ["held-out"]) == (folder == "test")


def test_what_still_does_not_decode_is_said_beside_what_was_added(capsys):
    report = AppendReport(
        store="store", root_before="a", root_digest="b", added={"000": 1}, known=3, unread=2, images=1
    )
    show_append(report)
    said = " ".join(capsys.readouterr().out.split())
    assert "2 samples skipped before, and not to be read now either" in said
    assert "1 row made in 0.0 s, 1 known" in said  # of what stays skipped it is not said that nothing is
    show_append(replace(report, skipped=2))
    assert "made in 0.0 s, 2 new samples skipped, 1 known" in " ".join(capsys.readouterr().out.split())


def test_a_file_of_no_printable_name_does_not_stop_a_finished_store(tmp_path, capsys):
    folder = write_images(tmp_path / "digits")
    made = asked(tmp_path / "store", folder, unreadable="stop")
    taftcache.extract(made)
    file = sorted((folder / "1").iterdir())[0]
    for name in (b"a\nb.png", b"\xff.png"):
        shutil.copy(file, folder / "1" / os.fsdecode(name))
    for stage in (taftcache.extract, taftcache.append):
        with pytest.raises(DataError, match=r'; or set data\.unreadable = "skip"'):
            stage(made)
    skipping = asked(tmp_path / "store", folder)
    names = r"'1/a\nb.png', '1/\udcff.png'"
    note = f"2 images left out, of names that are not printable text: {names}; rename them"
    before = tree(tmp_path / "store")
    assert taftcache.extract(skipping).notes == [note]
    assert taftcache.append(skipping).notes == [note]
    assert tree(tmp_path / "store") == before
    set_skip = ("--set", "data.unreadable=skip", "--set", "backbone.weights=bundled")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["init", str(folder), "-o", str(tmp_path / "made.toml"), *set_skip, "--json"])
    assert note in json.loads(capsys.readouterr().out)["notes"]


class Interrupting(Silent):
    """Progress that presses Ctrl-C at the n-th call."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def task(self, name, total):
        from contextlib import nullcontext

        return nullcontext(self)

    def advance(self, steps: int = 1) -> None:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_interrupted_and_done_again(few, images, fresh, calls, monkeypatch):
    monkeypatch.setattr("taftcache.backbone.forward.extract.default_batch", lambda cut: 4)
    with pytest.raises(KeyboardInterrupt):
        taftcache.append(asked(few, images), progress=Interrupting(calls))
    assert taftcache.verify(few).faults == []
    taftcache.append(asked(few, images))
    assert tree(few) == fresh


def test_a_new_shard_leaves_the_others_alone(few, images):
    with FeatureStore(few, mode="a") as store:
        taftcache.train(store)
        taftcache.compose(store)
    before = tree(few)
    report = taftcache.append(asked(few, images), new_shard=True)
    assert list(report.added) in (["002"], ["002", "held-out"])
    assert set(report.untouched) >= {"000", "001"}
    after = tree(few)
    assert {f for f in before if before[f] != after.get(f)} <= {
        "manifest.json",
        *(f for f in before if "/held-out-" in f),
    }
    with FeatureStore(few, mode="a") as store:
        assert [shard.name for shard in store.shards] == ["000", "001", "002"]
        assert store.verify() == []
        trained = taftcache.train(store)
        assert "components/002" in trained.trained
        assert {"components/000", "components/001"} <= set(trained.kept)
        taftcache.compose(store)
        assert taftcache.evaluate(store).rows
        sample = store.shard("002").sample_ids[0]
        taftcache.forget(store, [sample])
    assert taftcache.extract(asked(few, images)).images == 0
    assert taftcache.append(asked(few, images), new_shard=True).added == {}, "forgotten stays out"
    flipped = next(f for f in tree(few) if f.startswith("shards/002-") and "/tokens/c.0" in f)
    whole = tree(few)
    (few / flipped).write_bytes(b"damage")
    assert taftcache.verify(few, repair=True).faults == []
    assert tree(few) == whole


def test_images_of_another_folder(few, images, tmp_path):
    """Its ids must be others: a name that is known is taken for the sample that has it."""
    other = tmp_path / "other"
    for digit in range(3):
        (other / str(digit)).mkdir(parents=True)
        Image.new("RGB", (8, 8), (80 * digit, 9, 9)).save(other / str(digit) / "plain.png")
    shutil.copy(next(iter(sorted((images / "1").glob("*.png")))), other / "1")
    report = taftcache.append(asked(few, other))
    assert (report.images, report.known) == (4, 0) or (report.images, report.known) == (3, 1)
    with FeatureStore(few) as store:
        assert store.holds("1/plain.png")
        assert store.manifest.recipe["data"]["train"] == str(images)


def test_forgotten_samples_stay_out(few, images):
    with FeatureStore(few, mode="a") as store:
        gone = store.shards[0].sample_ids[1]
        with store.transaction() as change:
            change.erase([gone])
    taftcache.append(asked(few, images))
    with FeatureStore(few) as store:
        assert store.is_forgotten(gone)
        assert not store.holds(gone)


def test_where_all_new_images_are_skipped_no_row_is_said_to_come(few, images, tmp_path, capsys):
    folder = shutil.copytree(images, tmp_path / "images")
    taftcache.append(asked(few, folder))
    before = tree(few, but=("manifest.json", "lists/"))
    (folder / "0" / "torn.png").write_bytes(b"no image")
    capsys.readouterr()
    report = taftcache.append(asked(few, folder))
    assert (report.added, report.images, report.skipped, report.skipped_ids) == ({}, 0, 1, ["0/torn.png"])
    show_append(report)
    said = capsys.readouterr().out
    assert "no row more: 1 new sample skipped" in said
    assert "next" not in said
    show_receipts(taftcache.receipts(few, ["0/torn.png"]))
    assert "0/torn.png: not held: it could not be used when shard 0" in capsys.readouterr().out
    with FeatureStore(few) as store:
        assert [s.id for s in store.manifest.skipped] == ["0/broken.png", "0/torn.png"]
        assert store.verify() == []
    assert tree(few, but=("manifest.json", "lists/")) == before
    assert taftcache.append(asked(few, folder)).unread == 2
    (folder / "0" / "another.png").write_bytes(b"no image")
    shutil.copy(next((folder / "1").glob("*.png")), folder / "0" / "good.png")
    report = taftcache.append(asked(few, folder))
    assert (sum(report.added.values()), report.images, report.skipped, report.unread) == (1, 1, 1, 2)
    assert report.skipped_ids == ["0/another.png"]


def test_no_further_shard_is_made_of_images_that_cannot_be_read(few, images, tmp_path, capsys):
    folder = shutil.copytree(images, tmp_path / "images")
    taftcache.append(asked(few, folder))
    for name in ("torn", "worn"):
        (folder / "0" / f"{name}.png").write_bytes(b"no image")
    before = tree(few)
    for _ in range(2):  # each night
        report = taftcache.append(asked(few, folder), new_shard=True)
        assert (report.added, report.images, report.skipped) == ({}, 0, 2)
        assert sorted(report.skipped_ids) == ["0/torn.png", "0/worn.png"]
        assert report.notes == [
            "no shard 002 was made: none of its 2 samples can be read (first: 0/torn.png); the next append tries again"
        ]
        assert tree(few) == before
    show_append(report)
    assert "2 new samples skipped\n" in capsys.readouterr().out
    shutil.copy(next((folder / "1").glob("*.png")), folder / "0" / "torn.png")
    report = taftcache.append(asked(few, folder), new_shard=True)
    assert (report.added, report.skipped, report.notes) == ({"002": 1}, 1, [])
    (folder / "0" / "third.png").write_bytes(b"no image")
    with pytest.raises(UnreadableImage):
        taftcache.append(asked(few, folder, unreadable="stop"), new_shard=True)


def test_what_is_out_of_reach_is_not_skipped_and_what_was_skipped_is_named(tmp_path, images, monkeypatch, capsys):
    folder = shutil.copytree(images, tmp_path / "images")
    made, reached, there = asked(tmp_path / "store", folder), [], iter(range(10))

    def gone(file):
        reached.append(file)
        if next(there, None) is None:
            raise FileNotFoundError(2, "No such file or directory", str(file))
        return open_rgb(file)

    with monkeypatch.context() as patched:
        patched.setattr("taftcache.backbone.sources.folder.open_rgb", gone)
        with pytest.raises(DataError, match="cannot be reached any more"):
            taftcache.extract(made)
    assert len(reached) > 10
    report = taftcache.extract(made)
    assert (report.skipped, len(list(folder.glob("*/*.png")))) == (1, 43)
    show_extract(report)
    assert "1 skipped, which taftcache inspect names" in " ".join(capsys.readouterr().out.split())
    assert taftcache.extract(made).notes == [f"{UNREAD}; taftcache append RECIPE takes in those that can by now"]


@pytest.mark.parametrize("by", ["class", "ids"])
def test_further_images_of_a_forgotten_class_are_left_out_and_named(tmp_path, images, capsys, by):
    folder = shutil.copytree(images, tmp_path / "images")
    (folder / "1" / "broken.png").write_bytes(b"no image")
    made = asked(tmp_path / "store", folder)
    taftcache.extract(made)
    with FeatureStore(tmp_path / "store", mode="a") as store:
        rows = [(i, k) for name in ("000", "001", "held-out") for i, k in zip(*columns(store.shard(name)), strict=True)]
        named = {"classes": ["1"]} if by == "class" else {"samples": [i for i, k in rows if k == 1]}
        planned = taftcache.forget(store, **named, dry_run=True)
        report = taftcache.forget(store, **named)
    assert [note for note in report.notes if "append leaves further samples of such a class out" in note]
    assert planned.notes
    assert set(planned.notes) <= set(report.notes)
    left, unread = taftcache.extract(made).notes
    assert unread.startswith(UNREAD if by == "class" else UNREAD.replace("1 image", "2 images"))
    assert re.match(r"\d+ images still in the source, forgotten here: 1/\d+.png", left)
    (folder / "1" / "broken.png").unlink()
    for name in ("1/broken", "1/new", "0/new"):
        shutil.copy(next((folder / "0").glob("*.png")), folder / f"{name}.png")
    assert "1 sample left out, of forgotten classes: 1 (1)" in taftcache.extract(made).notes[0]
    report = taftcache.append(made)
    out = 1 if by == "class" else 2  # what was skipped of a class is forgotten with it
    assert (report.closed, report.images, list(report.added.values())) == ({"1": out}, 1, [1])
    assert "still in the source, forgotten here" in report.notes[0]
    assert f"{counted(out, 'sample')} left out, of forgotten classes: 1 ({out})" in report.notes[1]
    again = taftcache.append(made)
    everyone = len(list(folder.glob("*/*.png")))
    assert (again.closed, again.added, again.known + again.forgotten) == ({"1": out}, {}, everyone - out)
    show_append(again)
    assert "left out, of forgotten classes" in capsys.readouterr().out
    with FeatureStore(tmp_path / "store") as store:
        assert store.classes == ["0", "2"]


@pytest.mark.parametrize("forgotten", [True, False])
def test_an_emptied_folder_of_a_class_that_the_store_knows_stops_nothing(tmp_path, images, forgotten):
    folder = shutil.copytree(images, tmp_path / "images")
    made = asked(tmp_path / "store", folder)
    taftcache.extract(made)
    if forgotten:
        with FeatureStore(tmp_path / "store", mode="a") as store:
            taftcache.forget(store, classes=["1"])
    for file in (folder / "1").iterdir():
        file.unlink()
    shutil.copy(next((folder / "0").glob("*.png")), folder / "0" / "new.png")
    assert taftcache.append(made).images == 1
    assert taftcache.extract(made).images == 0
    if forgotten:  # a store made anew where another had forgotten leaves the class out, too
        shutil.rmtree(tmp_path / "store")
        taftcache.extract(made)
        with FeatureStore(tmp_path / "store") as store:
            assert store.classes == ["0", "2"]


@pytest.mark.parametrize("stage", [taftcache.extract, taftcache.append, taftcache.estimate, taftcache.init_recipe])
def test_what_is_left_out_of_a_folder_is_said_and_stops_nothing(tmp_path, few, images, fresh, stage):
    """Types that are not read, images beside the folders, and a folder without an image: it is no class."""
    folder = shutil.copytree(images, tmp_path / "digits")
    for name in ("0/a.HEIC", "0/b.heic", "1/c/d.avif", "1/.DS_Store", "1/Thumbs.db", "1/a.json", ".e.heic"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"none that is read")
    shutil.copy(next(images.glob("1/*.png")), folder / "loose.PNG")
    (folder / "11").mkdir()
    new = few if stage is taftcache.append else tmp_path / "new"
    given = [folder, tmp_path / "made.toml"] if stage is taftcache.init_recipe else [asked(new, folder)]
    report = stage(*given)
    files, loose, empty = report.notes[:3]
    assert files.startswith("3 files left out, of types that are not read: .heic 2, .avif 1; ")
    assert loose == "1 image left out, beside the class folders: loose.PNG"
    assert empty == "1 folder left out, without an image that is taken in and so no class: 11"
    if stage in (taftcache.extract, taftcache.append):
        assert tree(new, but=("manifest.json",)) == {k: v for k, v in fresh.items() if k != "manifest.json"}
    elif stage is taftcache.init_recipe:
        assert report.classes == ["0", "1", "2"]
    else:
        assert report.classes == 3


def test_an_empty_folder_of_one_split_needs_none_in_the_other(tmp_path):
    places = {name: str(write_images(tmp_path / name)) for name in ("train", "test")}
    taftcache.extract(recipe(tmp_path / "fresh", data={"source": "folder"} | places))
    (tmp_path / "train" / "11").mkdir()
    report = taftcache.extract(recipe(tmp_path / "store", data={"source": "folder"} | places))
    assert "no class: 11" in report.notes[0]
    assert tree(tmp_path / "store") == tree(tmp_path / "fresh")
    # Nor does a class with images: without any to test, it ended the append of all others, too.
    shutil.copy(next((tmp_path / "train" / "1").iterdir()), tmp_path / "train" / "11")
    given = recipe(tmp_path / "store", data={"source": "folder"} | places)
    assert taftcache.append(given, new_classes="skip").new_classes == {"11": 1}
    assert taftcache.append(given, new_classes="take").added.keys() <= {"000", "001", "002", "003"}
    with FeatureStore(tmp_path / "store") as store:
        assert store.classes == ["0", "1", "11", "2"]


def test_test_images_may_all_be_of_one_class(tmp_path):
    """They were refused, with the advice to add a class."""
    places = {name: write_images(tmp_path / name, per_class=6) for name in ("train", "test")}
    for name in ("0", "1"):
        shutil.rmtree(places["test"] / name)
    given = recipe(tmp_path / "store", data={"source": "folder"} | {name: str(at) for name, at in places.items()})
    notes = taftcache.run(given).evaluate.notes
    assert "2 of 3 classes without a held-out row, of which accuracy and probabilities say nothing: 0, 1" in notes
    more = next((places["train"] / "2").iterdir())
    shutil.copy(more, places["test"] / "2" / f"more{more.suffix}")
    assert taftcache.append(given).added == {"held-out": 1}


def test_a_class_that_only_test_images_have(tmp_path, capsys):
    """A store that has the class, or forgot it, needs no training images of it; any other class may be skipped."""
    places = {name: write_images(tmp_path / name, per_class=5) for name in ("train", "test")}
    given = recipe(tmp_path / "store", data={"source": "folder"} | {name: str(at) for name, at in places.items()})
    taftcache.extract(given)
    (places["test"] / "0").rename(places["test"] / "9")
    with pytest.raises(DataError, match=r"no training image has\n.*only in training: 0; only in test: 9") as refused:
        taftcache.extract(msgspec.structs.replace(given, store=recipe(tmp_path / "new").store))
    assert "--new-classes" not in refused.value.do
    (places["train"] / "9").mkdir()  # a folder without an image trains nothing
    with pytest.raises(DataError, match=r"no training image has\n.*only in training: 0; only in test: 9"):
        taftcache.extract(msgspec.structs.replace(given, store=recipe(tmp_path / "new").store))
    for answer in ("refuse", "take"):
        with pytest.raises(DataError, match="no training image has") as refused:
            taftcache.append(given, new_classes=answer)
        assert "leave their test images out: --new-classes skip" in refused.value.do
    for file in [*places["train"].glob("2/*"), *places["test"].glob("2/*")]:
        file.rename(file.with_name(f"more{file.name}"))
    (places["train"] / "2").rename(tmp_path / "aside")  # what is left of 2 has no training image
    report = taftcache.append(given, new_classes="skip")
    assert (report.added, report.new_classes) == ({"held-out": 5}, {"9": 5})
    with FeatureStore(given.store.path) as store:
        rows = zip(store.held_out.sample_ids, store.held_out.labels, strict=True)
        assert [store.classes[k] for i, k in rows if "/more" in i] == ["2"] * 5
    text = "of classes that the store does not have: 9 (5); --new-classes take takes them in once there are training"
    assert text in report.notes[-1]
    assert any("RECIPE --new-classes take takes them in once there are tr" in n for n in taftcache.extract(given).notes)
    taftcache.forget(given.store.path, classes=["2"])
    for file in places["test"].glob("2/*"):
        file.rename(file.with_name(f"still{file.name}"))
    assert taftcache.append(given, new_classes="skip").closed == {"2": 5}


def test_no_two_classes_are_left_of_empty_folders(tmp_path, images):
    folder = shutil.copytree(images, tmp_path / "images")
    for file in [*folder.glob("[12]/*.png")]:
        file.unlink()
    with pytest.raises(DataError, match="fewer than two classes"):
        taftcache.extract(asked(tmp_path / "new", folder))
    (folder / "0" / "a.heic").write_bytes(b"none")
    for file in [*folder.glob("0/*.png")]:
        file.unlink()
    with pytest.raises(DataError, match="no images of a type that is read") as caught:
        taftcache.extract(asked(tmp_path / "new", folder))
    assert "0/a.heic" in caught.value.got


def test_a_store_of_more_classes_leaves_out_what_the_old_one_forgot(tmp_path, images):
    folder = shutil.copytree(images, tmp_path / "images")
    old, new = asked(tmp_path / "old", folder), asked(tmp_path / "new", folder)
    taftcache.extract(old)
    with FeatureStore(tmp_path / "old", mode="a") as store:
        gone = store.sample_ids()[::9]
        forgotten = taftcache.forget(store, gone, classes=["2"]).forgotten
    shutil.copytree(folder / "1", folder / "9")
    note, left, _ = taftcache.extract(old).notes
    assert f"{len(forgotten)} images still in the source, forgotten here: " in left
    assert "of 1 class that the store does not have (first: 9/" in note
    assert "append RECIPE --new-classes take takes them in" in note
    with pytest.raises(DataError) as caught:
        taftcache.append(old)
    assert "--new-classes take, which drops all models, or --new-classes skip" in caught.value.do
    beside = taftcache.extract(asked(tmp_path / "beside", folder, limit=60)).notes
    assert any(re.match(rf"forgotten in {tmp_path / 'old'}, and taken in here: \d+ samples; --f", n) for n in beside)
    shutil.copyfile(tmp_path / "old.forgotten", tmp_path / "again.forgotten")  # as where a store was deleted since
    again = taftcache.extract(asked(tmp_path / "again", folder)).notes
    assert any(re.fullmatch(r"\d+ samples? left out, forgotten before", note) for note in again)
    assert not any("taken in here" in note for note in again)
    for _ in range(2):  # as when the first one was killed
        report = taftcache.extract(new, forgotten_of=tmp_path / "old")
    assert not report.images
    for name in gone:
        (folder / name).unlink()
    shutil.rmtree(folder / "2")
    taftcache.extract(asked(tmp_path / "fresh", folder))
    assert tree(tmp_path / "new", but=MEMORY) == tree(tmp_path / "fresh", but=MEMORY)
    with FeatureStore(tmp_path / "new") as store:
        assert store.classes == ["0", "1", "9"]
        assert [entry["event"] for entry in store.ledger()] == [ADOPT]
        assert all(map(store.is_forgotten, gone))
    assert taftcache.audit(tmp_path / "new").findings == []
    with pytest.raises(StoreError, match="a store is there already"):
        taftcache.extract(asked(tmp_path / "fresh", folder), forgotten_of=tmp_path / "old")
    with FeatureStore(tmp_path / "fresh", mode="a") as store:
        taftcache.forget(store, [store.sample_ids()[0]])
    shutil.rmtree(tmp_path / "fresh")
    with pytest.raises(StoreError, match="other requests are remembered there"):
        taftcache.extract(asked(tmp_path / "fresh", folder), forgotten_of=tmp_path / "old")


def test_a_refused_store_remembers_nothing_and_other_ids_are_refused(tmp_path, images):
    """A typing error left the requests' key beside a store that was never made; ids of another form came back."""
    old = asked(tmp_path / "old", images)
    taftcache.extract(old)
    with FeatureStore(tmp_path / "old", mode="a") as store:
        gone = store.sample_ids()[::9]
        taftcache.forget(store, gone)
    place, plain = tmp_path / "not" / "there" / "new", {"source": "folder", "train": str(images)}
    with pytest.raises(DataError, match="shards empty"):
        taftcache.extract(recipe(place, data=plain, store={"shards": 5000}), forgotten_of=tmp_path / "old")
    tested = {"source": "folder", "train": str(images), "test": str(shutil.copytree(images, tmp_path / "test"))}
    with pytest.raises(StoreError, match="would come back"):
        taftcache.extract(recipe(place, data=tested), forgotten_of=tmp_path / "old")
    assert not place.parent.parent.exists()
    taftcache.extract(asked(place, images), forgotten_of=tmp_path / "old")
    with FeatureStore(place) as store:
        assert not any(map(store.holds, gone))
        assert all(map(store.is_forgotten, gone))
    with FeatureStore(tmp_path / "old", mode="a") as store:
        taftcache.destroy_key(store)
    report = taftcache.extract(asked(tmp_path / "all", images), forgotten_of=tmp_path / "old")
    assert any("remembers no request" in text for text in report.notes)


def test_what_another_store_forgot_is_counted_in_a_dry_run_and_the_data_listed_once(tmp_path, images, monkeypatch):
    old, listed, init = tmp_path / "old", [], FolderSource.__init__
    file = toml(tmp_path / "new.toml", tmp_path / "new", data={"source": "folder", "train": str(images)})
    monkeypatch.setattr(
        FolderSource, "__init__", lambda self, *args, **named: [listed.append(args), init(self, *args, **named)][1]
    )
    taftcache.extract(asked(old, images))
    with FeatureStore(old) as store:
        shard = store.shards[0]
        kept = shard.rows - 4
    taftcache.forget(old, shard.sample_ids[:4])
    listed.clear()
    given = ["extract", str(file), "--forgotten-of", str(old), "--set", "data.unreadable=skip"]
    for dry_run in (["--dry-run"], []):
        result = CliRunner().invoke(app, [*given, *dry_run])
        assert result.exit_code == 0
        assert "4 samples left out, forgotten before" in result.output
        assert len(listed) == 1
        listed.clear()
    planned = taftcache.estimate(asked(tmp_path / "other", images), forgotten_of=old)
    assert planned.rows[shard.name] in (kept, kept + 1)  # with the one that does not decode
    assert not (tmp_path / "other.forgotten").exists()


def columns(shard):
    return shard.sample_ids, shard.labels.tolist()


def test_what_cannot_be_appended(few, images, tmp_path):
    before = tree(few)
    with pytest.raises(IdentityError, match="preprocess"):
        taftcache.append(
            recipe(few, data={"source": "folder", "train": str(images)}, preprocess={"crop_pct": 0.5}),
        )
    (images / "9").mkdir()
    shutil.copy(next(images.glob("1/*.png")), images / "9")
    for dry_run in (True, False):
        with pytest.raises(DataError, match=r"1 sample of 1 class that .* does not have(.|\n)*got: 9 \(1\)"):
            taftcache.append(asked(few, images), dry_run=dry_run)
    assert tree(few) == before
    strange, known, _ = taftcache.extract(asked(few, images)).notes
    assert "1 image of 1 class that the store does not have (first: 9/" in strange
    assert "append RECIPE --new-classes skip takes them in" in known  # while that one is there
    shutil.rmtree(images / "9")
    half = tmp_path / "half"
    with pytest.raises(KeyboardInterrupt):
        taftcache.extract(asked(half, images), progress=Interrupting(1))
    with pytest.raises(StoreError, match="finished"):
        taftcache.append(asked(half, images))


def test_a_store_made_anew_names_what_is_left_of_an_earlier_one(tmp_path):
    """That store may have been moved: its recipe then made another one, and said nothing."""
    assert forgotten_beside(tmp_path / "store", DataSpec(source="digits")) == []
    TombstoneFile(tmp_path / "store").add(bytes(32), ["1" * 64])
    (note,) = forgotten_beside(tmp_path / "store", DataSpec(source="digits"))
    assert "store.forgotten is left of an earlier store there; if that was moved" in note


@pytest.mark.law("A store that grew has the bytes of one made at once")
def test_new_classes_are_left_out_where_that_is_asked_for(few, images, fresh, tmp_path, capsys):
    folder = shutil.copytree(images, tmp_path / "images")
    for name in ("8", "9"):
        shutil.copytree(folder / "1", folder / name)
    more, before = {"9": 14, "8": 14}, tree(few)
    planned = taftcache.append(asked(few, folder), new_classes="skip", dry_run=True)
    assert tree(few) == before
    report = taftcache.append(asked(few, folder), new_classes="skip")
    assert tree(few) == fresh
    for said in (planned, report):
        assert (said.new_classes, said.known, said.added) == (more, 28, planned.added)
        show_append(said)
        text = " ".join(capsys.readouterr().out.split())
        assert "28 samples left out, of classes that the store does not have: 8 (14), 9 (14)" in text
    again = taftcache.append(asked(few, folder), new_classes="skip")
    assert (again.added, again.new_classes, again.root_digest) == ({}, more, report.root_digest)


@pytest.mark.law("A store that grew has the bytes of one made at once")
@pytest.mark.parametrize(
    ("names", "killed"),
    [(("8", "9"), False), (("00", "10"), False), (("00", "10"), True)],
    ids=["behind the others", "among them", "killed"],
)
def test_new_classes_are_taken_where_that_is_asked_for(few, images, tmp_path, names, killed, capsys):
    folder = shutil.copytree(images, tmp_path / "images")
    for name in names:
        shutil.copytree(folder / "1", folder / name)
    more, before = dict.fromkeys(names, 14), tree(few)
    planned = taftcache.append(asked(few, folder), new_classes="take", dry_run=True)
    assert tree(few) == before
    if killed:
        with pytest.raises(KeyboardInterrupt):
            taftcache.append(asked(few, folder), new_classes="take", progress=Interrupting(2))
    report = taftcache.append(asked(few, folder), new_classes="take")
    taftcache.extract(asked(tmp_path / "fresh", folder))
    assert tree(few, but=("manifest.json",)) == tree(tmp_path / "fresh", but=("manifest.json",))  # which has the place
    with FeatureStore(few) as store:
        assert store.classes == sorted(["0", "1", "2", *names])
    assert (planned.new_classes, planned.dropped) == (more, [])
    if not killed:
        assert (report.new_classes, report.added, report.untouched) == (more, planned.added, planned.untouched)
        show_append(report)
        assert f"2 classes more: {names[0]} (14), {names[1]} (14)" in capsys.readouterr().out
    again = taftcache.append(asked(few, folder), new_classes="take")
    assert (again.added, again.new_classes, again.root_digest) == ({}, {}, report.root_digest)


def test_a_service_keeps_its_model_until_a_newer_one_can_be_loaded(few, images, tmp_path):
    """By the recipe of the guide."""
    guide = (Path(__file__).parents[2] / "docs/guide.md").read_text(encoding="utf-8")
    (block,) = (part for part in guide.split("```python\n") if "def newest" in part)
    code: dict[str, Any] = {}
    exec(block.partition("\nmodel = ")[0], code)
    newest, forgotten = code["newest"], FeatureStore(few).shards[0].sample_ids[0]
    taftcache.train(few)
    model = newest(few)
    assert newest(few, model) is model
    report = taftcache.forget(few, [forgotten])
    newer = newest(few, model)
    assert (newer.root_digest, newer is model) == (report.root_digest, False)
    folder = shutil.copytree(images, tmp_path / "images")
    shutil.copytree(folder / "1", folder / "9")
    taftcache.append(asked(few, folder), new_classes="take")
    assert newest(few, newer) is newer
    with pytest.raises(TaftcacheError):
        newest(few)
    taftcache.train(few)
    assert newest(few, newer).classes == ["0", "1", "2", "9"]


@pytest.mark.parametrize("unreadable", ["stop", "skip"])
@pytest.mark.parametrize("name", ["1", "9"], ids=["of a class that is there", "of the new class"])
def test_models_stay_where_a_new_image_does_not_decode(tmp_path, unreadable, name):
    """They were dropped in a first commit, before any image was looked at."""
    folder, path = write_images(tmp_path / "images"), tmp_path / "store"
    given = asked(path, folder, unreadable=unreadable)
    taftcache.extract(given)
    taftcache.train(path)
    before = tree(path)
    (folder / "9").mkdir()
    if name == "1":
        shutil.copy(next((folder / "0").iterdir()), folder / "9" / "good.png")
    (folder / name / "zzz.png").write_bytes(b"no image")
    if unreadable == "stop":
        with pytest.raises(UnreadableImage, match="zzz"):
            taftcache.append(given, new_classes="take")
        assert tree(path) == before
    else:
        report = taftcache.append(given, new_classes="take")
        assert bool(report.dropped) == (name == "1")
        with FeatureStore(path) as store:
            assert ("9" in store.classes) == (name == "1")


@pytest.mark.law("A store that grew has the bytes of one made at once")
@pytest.mark.parametrize("changed", ["held_out", "limit", "test"])
@pytest.mark.parametrize("new_shard", [False, True])
def test_what_decides_which_rows_go_where_cannot_change(few, images, changed, new_shard):
    before, data = tree(few), {"held_out": 0.5, "limit": 30, "test": str(images)}
    with pytest.raises(IdentityError, match=rf"data\.{changed}: the store has"):
        taftcache.append(asked(few, images, **{changed: data[changed]}), new_shard=new_shard)
    assert tree(few) == before


def test_a_balanced_plan_takes_new_samples_as_a_shard_only(tmp_path):
    images = write_images(tmp_path / "digits")
    later = images / "0" / "zzz.png"
    path = tmp_path / "store"
    wanted = recipe(path, data={"source": "folder", "train": str(images)}, store={"plan": "balanced"})
    taftcache.extract(wanted)
    for k in range(4):
        Image.new("L", (8, 8), 20 * k).save(later.with_name(f"zzz{k}.png"))
    with pytest.raises(RecipeError, match="--new-shard"):
        taftcache.append(wanted)
    assert taftcache.append(wanted, new_shard=True).images == 4
    assert taftcache.verify(path).faults == []


@pytest.mark.law("A sample that was skipped is forgotten with its class, and with its shard")
@pytest.mark.parametrize("whole", ["class", "shard"])
def test_what_was_skipped_of_a_class_or_shard_goes_with_it(tmp_path, images, whole):
    """Its id has the class's name in it; of no folder for each class, nothing tells the class, and that is said."""
    path, folder = tmp_path / "store", shutil.copytree(images, tmp_path / "images")
    (folder / "1").rename(folder / "ada")
    (folder / "ada" / "broken.png").write_bytes(b"no image")
    made = asked(path, folder, held_out=0.0)
    taftcache.extract(made)
    with FeatureStore(path, mode="a") as store:
        (shard,) = (s.shard for s in store.manifest.skipped if s.id == "ada/broken.png")
        there = {s.id for s in store.manifest.skipped}
        named = {"classes": ["ada"]} if whole == "class" else {"shards": [shard]}
        report = taftcache.forget(store, **named)
        left = {s.id for s in store.manifest.skipped}
        assert "ada/broken.png" in report.forgotten
        assert there - left == {i for i in report.forgotten if "broken" in i}
        assert all(store.is_forgotten(i) for i in there - left)
        assert not any("stay listed" in note for note in report.notes)
    if whole == "class":
        assert not [file for file, data in tree(path).items() if b"ada/" in data]
    shutil.copy(next((folder / "0").glob("0*.png"), folder / "0" / "x.png"), folder / "ada" / "broken.png")
    taftcache.append(made)
    with FeatureStore(path) as store:
        assert not store.holds("ada/broken.png")


def test_skipped_samples_whose_class_nothing_tells_are_counted(tmp_path, images):
    path, table = tmp_path / "store", tmp_path / "table.csv"
    files = [file for file in sorted(images.glob("*/*.png")) if file.name != "broken.png"] + [images / "0/broken.png"]
    table.write_text("file,label\n" + "".join(f"{f.relative_to(images)},{f.parent.name}\n" for f in files))
    data = {
        "source": "table",
        "train": str(table),
        "root": str(images),
        "image_key": "file",
        "label_key": "label",
        "unreadable": "skip",
    }
    taftcache.extract(recipe(path, data=data))
    with FeatureStore(path, mode="a") as store:
        report = taftcache.forget(store, classes=["0"])
        assert [note[:9] for note in report.notes if "stay listed" in note] == ["1 sample "]
        assert [s.id for s in store.manifest.skipped] == ["0/broken.png"]
