"""Images that were moved are followed where they are the store's, and others are refused."""

from __future__ import annotations

import shutil

import pytest
from PIL import Image

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import IdentityError
from tests.stages.making import recipe, tree, write_images


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


@pytest.mark.parametrize(("changed", "says"), [(another, "gives another row"), (fewer, "is not there")])
def test_other_images_are_refused(moved, changed, says):
    path, images = moved
    changed(images)
    before = tree(path)
    with pytest.raises(IdentityError, match=says):
        taftcache.extract(asked(path, images))
    assert tree(path) == before


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
