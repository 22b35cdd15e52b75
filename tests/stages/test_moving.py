"""Images and weights that were moved are followed where they are the store's, and others are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import taftcache
from taftcache.backbone.files import BUNDLED, WEIGHTS_NAME, file_digest
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import BackboneError, IdentityError, UnreadableImage
from tests.stages.making import open_store, recipe, toml, tree, write_images


def asked(path, images, dtype="float16"):
    return recipe(path, store={"shards": 2, "dtype": dtype}, data={"source": "folder", "train": str(images)})


@pytest.fixture
def moved(tmp_path):
    """A store, and where its images were moved to."""
    images = write_images(tmp_path / "before")
    taftcache.run(asked(tmp_path / "store", images))
    return tmp_path / "store", shutil.move(images, tmp_path / "after")


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_images_that_were_moved_are_followed(moved, tmp_path, dtype):
    path, images = moved
    if dtype == "int8":
        path = taftcache.convert(path, tmp_path / "eight", dtype=dtype).store
    asking, before = asked(path, images, dtype), FeatureStore(path)
    report = taftcache.extract(asking)
    assert report.images == 0
    assert [note.startswith(f"the images lie at {images} now: 9 rows") for note in report.notes] == [True]
    after = FeatureStore(path)
    assert after.manifest.recipe["data"] == before.manifest.recipe["data"] | {"train": str(images)}
    assert (after.objects(), after.manifest.shards) == (before.objects(), before.manifest.shards)
    assert taftcache.extract(asking).notes == []


def another(images):
    for file in images.glob("*/*.png"):
        Image.open(file).transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(file)


def fewer(images):
    next(images.glob("1/*.png")).unlink()


def half(images):
    for file in sorted(images.glob("*/*.png"))[::2]:
        file.unlink()
    fewer(images)


def both(images):
    """Copied, and the copy is not whole."""
    shutil.copytree(images, images.with_name("before"))
    fewer(images)


@pytest.mark.parametrize(
    ("changed", "says", "do"),
    [
        (another, "are not those that the store was made from", "put the old place back"),
        (half, "22 of the 42 images that the store was made from are not at", "at least half of them"),
        (both, "1 of the 42 images that the store was made from are not at", "put the missing images there"),
    ],
)
def test_other_images_are_refused(moved, changed, says, do):
    """And what is advised brings nothing back that was forgotten."""
    path, images = moved
    changed(images)
    before = tree(path)
    with pytest.raises(IdentityError, match=says) as refused:
        taftcache.extract(asked(path, images))
    assert do in refused.value.do
    assert f"--set store.path=NEW --forgotten-of {path}" in refused.value.do
    assert tree(path) == before


def test_images_that_were_moved_are_followed_though_some_are_gone(moved, monkeypatch):
    """If the old place is gone, or its reader may not open it; append says so, too, before and after."""
    path, images = moved
    both(images)
    gone = sorted({i for s in FeatureStore(path).every_shard for i in s.sample_ids} - ids_in(images))
    appended = taftcache.append(asked(path, images))
    assert appended.not_in_source == gone
    assert [note for note in appended.notes if f"1 row (first: {gone[0]})" in note]
    assert FeatureStore(path).manifest.recipe["data"]["train"] == str(images.with_name("before"))
    taftcache.distrust(path)
    report = taftcache.extract(asked(path, images))
    assert report.notes[0].endswith("are the store's, and 1 row of 42 have no image there")
    assert f"1 row (first: {gone[0]})" in report.notes[1]
    assert FeatureStore(path).manifest.recipe["data"]["train"] == str(images)


def test_another_place_of_new_images_alone_is_not_asked_for_the_old_ones(moved, tmp_path):
    path, _ = moved
    more = write_images(tmp_path / "more", per_class=1)
    for file in more.glob("*/*.png"):
        file.rename(file.with_name("new.png"))
    assert taftcache.append(asked(path, more), dry_run=True).not_in_source == []


def ids_in(images):
    return {file.relative_to(images).as_posix() for file in images.glob("*/*.png")}


def test_labels_that_changed_are_refused(tmp_path):
    images = write_images(tmp_path / "images")
    lines = [f"{file.relative_to(images)},{file.parent.name}" for file in sorted(images.glob("*/*.png"))]
    for name, last in (("a.csv", lines[-1]), ("b.csv", lines[-1][:-1] + "0")):
        (tmp_path / name).write_text("\n".join(["path,label", *lines[:-1], last]))

    def by(name):
        table = {"source": "table", "train": str(tmp_path / name), "root": str(images)}
        return recipe(tmp_path / "store", data=table | {"image_key": "path", "label_key": "label"})

    taftcache.extract(by("a.csv"))
    with pytest.raises(IdentityError, match="is of the class '0', in the store of '2'"):
        taftcache.extract(by("b.csv"))


def test_an_unfinished_store_goes_on_at_its_own_place(moved, monkeypatch):
    path, images = moved
    monkeypatch.setattr("taftcache.stages.extract.extraction.is_complete", lambda store: False)
    with pytest.raises(IdentityError, match=r"data\.train: the store has"):
        taftcache.extract(asked(path, images))


SHAPE = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3, "num_classes": 10}


class Ours:
    """A store whose weights are a file (or folder) in the current folder, which has gone to ``found``."""

    def __init__(self, folder, form, monkeypatch):
        monkeypatch.chdir(folder)
        self.form, self.store, self.images = form, folder / "store", write_images(folder / "images", per_class=4)
        source = BUNDLED if form == "folder" else BUNDLED / WEIGHTS_NAME
        self.first = "ours" if form == "folder" else "ours.safetensors"
        (shutil.copytree if form == "folder" else shutil.copy)(source, self.first)
        taftcache.run(self.asking(self.first))
        (folder / "found").mkdir()
        self.found = shutil.move(self.first, f"found/{self.first}")

    def sections(self, weights):
        named = {} if self.form == "folder" else {"model": "vit_tiny_patch16_224", "model_args": SHAPE}
        return {
            "data": {"source": "folder", "train": str(self.images)},
            "backbone": {"weights": str(weights), **named},
        }

    def asking(self, weights):
        return recipe(self.store, **self.sections(weights))

    @property
    def recorded(self):
        return FeatureStore(self.store).manifest.recipe["backbone"]["weights"]

    def another_image(self):
        image = Image.open(self.images / "0" / "0000.png").rotate(90)
        image.save(self.images / "0" / "new.png")

    def unfinish(self):
        with open_store(self.store) as opened, opened.transaction() as change:
            change.drop_shard("001")


@pytest.fixture(params=["file", "folder"])
def ours(request, tmp_path, monkeypatch):
    return Ours(tmp_path, request.param, monkeypatch)


def command(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


@pytest.mark.parametrize("unfinished", [False, True])
def test_weights_that_were_moved_are_followed(ours, unfinished):
    """And the store names their place, for those who come next."""
    rows = {shard.name: shard.digest for shard in FeatureStore(ours.store).shards}
    if unfinished:
        ours.unfinish()
    report = taftcache.extract(ours.asking(ours.found))
    assert bool(report.images) is unfinished
    assert report.notes == [f"the weights lie at {ours.found} now: they are the store's"]
    assert ours.recorded == ours.found
    assert {shard.name: shard.digest for shard in FeatureStore(ours.store).shards} == rows
    before = tree(ours.store)
    assert taftcache.extract(ours.asking(ours.found)).notes == []
    taftcache.train(ours.store, ours.asking(ours.found))
    assert tree(ours.store) == before


def test_images_and_weights_may_move_at_once(ours):
    ours.images = shutil.move(ours.images, ours.images.with_name("after"))
    notes = taftcache.extract(ours.asking(ours.found)).notes
    assert [note.split(" lie at ")[0] for note in notes] == ["the images", "the weights"]
    recorded = FeatureStore(ours.store).manifest.recipe
    assert (recorded["data"]["train"], recorded["backbone"]["weights"]) == (str(ours.images), ours.found)


@pytest.mark.parametrize("by", ["store", "recipe"])
def test_rows_are_appended_with_weights_that_were_moved(ours, capsys, by):
    ours.another_image()
    target = ours.store if by == "store" else toml(Path("r.toml"), ours.store, **ours.sections(ours.first))
    line = ("append", target, "--set", f"backbone.weights={ours.found}")
    before = tree(ours.store)
    assert command(capsys, *line, "--dry-run")[0] == 0
    assert tree(ours.store) == before
    code, out, err = command(capsys, *line, "--json")
    assert (code, json.loads(out)["images"]) == (0, 1), err
    assert f"the weights lie at {ours.found} now: they are the store's" in json.loads(out)["notes"]
    assert ours.recorded == ours.found
    # as the user has named it, the store may open it without being asked again
    assert command(capsys, "predict", ours.store, ours.images / "0" / "new.png")[0] == 0


@pytest.mark.parametrize("work", ["extract", "append"])
def test_a_refused_command_leaves_the_place_of_the_weights(ours, work):
    """An image cannot be decoded, which is seen only when rows are made."""
    file = ours.images / "0" / "new.png"
    if work == "extract":
        file = ours.images / FeatureStore(ours.store).shard("001").sample_ids[0]
        ours.unfinish()
    file.write_bytes(b"no image")
    before = FeatureStore(ours.store).root_digest
    with pytest.raises(UnreadableImage):
        getattr(taftcache, work)(ours.asking(ours.found))
    assert FeatureStore(ours.store).root_digest == before


def test_training_takes_the_words_of_a_recipe_whose_weights_were_moved(ours):
    before = ours.recorded
    taftcache.train(ours.store, ours.asking(ours.found), overrides={"objective.ridge": 0.1})
    assert ours.recorded == before


@pytest.mark.parametrize("work", ["extract", "resume", "append", "train"])
def test_other_weights_elsewhere_are_refused_with_both_digests(ours, work):
    file = ours.store.parent / ours.found
    file = file / WEIGHTS_NAME if ours.form == "folder" else file
    state, was = load_file(file), file_digest(file)
    state["norm.bias"] = state["norm.bias"] + 0.5
    save_file(state, file)
    if work == "resume":
        ours.unfinish()
    ours.another_image()
    before, asked = tree(ours.store), ours.asking(ours.found)
    with pytest.raises(IdentityError) as refused:
        taftcache.train(ours.store, asked) if work == "train" else getattr(
            taftcache, "append" if work == "append" else "extract"
        )(asked)
    assert was in refused.value.got
    assert file_digest(file) in refused.value.got
    assert "backbone.weights" not in refused.value.got
    assert tree(ours.store) == before


def test_only_a_place_is_left_to_the_digest(ours):
    """The bundled weights are the same file; they are another request, as the hub's are, and so is nothing at all."""
    with pytest.raises(IdentityError, match=r"backbone\.weights: the store has"):
        taftcache.extract(ours.asking("bundled" if ours.form == "folder" else "pretrained"))
    with pytest.raises(BackboneError, match="no weights at"):
        taftcache.extract(ours.asking("found/none.safetensors"))
