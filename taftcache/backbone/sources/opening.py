"""The sources that a recipe names."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import assert_never

import blake3
from PIL import Image

from taftcache.backbone.files import as_written, expand_path
from taftcache.backbone.sources.arrays import AskedArrays
from taftcache.backbone.sources.base import Knows, Source
from taftcache.backbone.sources.columns import splits_in
from taftcache.backbone.sources.digits import DigitsSource
from taftcache.backbone.sources.folder import FolderSource
from taftcache.backbone.sources.hdf5 import open_hdf5
from taftcache.backbone.sources.npz import open_npz
from taftcache.backbone.sources.published import open_published
from taftcache.backbone.sources.table import TableSource
from taftcache.backbone.sources.timm_dataset import TimmSource
from taftcache.backbone.spec import DataSpec
from taftcache.errors import DataError, RecipeError
from taftcache.names import counted, first_few


class Subset(Source):
    """At most ``limit`` images of ``source``, in its order.

    They are those whose ids have the smallest digests. The first ones of a folder would all be of one
    class; and with digests, other images do not change which of two ranks first.
    """

    def __init__(self, source: Source, limit: int) -> None:
        ranked = sorted(range(len(source.items)), key=lambda k: blake3.blake3(source.items[k].id.encode()).digest())
        self._whole, self._kept = source, sorted(ranked[:limit])
        self.classes, self.numbered, self.info = source.classes, source.numbered, source.info
        self.items = [source.items[k] for k in self._kept]

    def read(self, index: int) -> Image.Image:
        return self._whole.read(self._kept[index])

    def missing(self) -> list[str]:
        kept = {item.id for item in self.items}
        return [id for id in self._whole.missing() if id in kept]


def open_source(spec: DataSpec, knows: Knows = None) -> tuple[Source, Source | None]:
    """The training source, and the test source or None where ``spec`` names none.

    knows: of the store that the images are for. Numbers of rows have as many digits as in the ids that it knows.

    Raises DataError for paths and files that hold no usable images, and ids that occur in both; RecipeError for a path
    with an unset variable, or one place for both.
    """
    with as_written(spec.train, spec.test, spec.root):
        return _opened(spec, knows)


def _opened(spec: DataSpec, knows: Knows) -> tuple[Source, Source | None]:
    if spec.source == "digits":
        return _limited(DigitsSource(), spec.limit), None
    assert spec.train is not None  # every other source has it
    if spec.source == "published":
        assert spec.root is not None
        published, apart = open_published(spec.train, expand_path(spec.root))
        return _limited(published, spec.limit), _limited(apart, spec.limit)
    if spec.test and _is_one_place(spec):
        raise RecipeError(
            "data.test must not name what data.train names: a test on what was trained on says nothing",
            got=f"train = {spec.train!r}, test = {spec.test!r}",
            do="leave test out, and data.held_out keeps a part of train; or name images of their own",
        )
    train = _open(spec, spec.train, spec.train_split, "train/" if spec.test else "", knows)
    if not spec.test:
        return _limited(train, spec.limit), None
    test = _open(spec, spec.test, spec.test_split, "test/", knows)
    ours, theirs = ([c for c in a.classes if c in b.classes] for a, b in ((train, test), (test, train)))
    if ours != theirs:
        at = next(k for k, name in enumerate(ours) if name != theirs[k])
        raise DataError(
            "training and test images have their classes in another order",
            got=f"training: {first_few(ours[at:])}; test: {first_few(theirs[at:])}",
            do="number the classes of both in one order",
        )
    shared = {item.id for item in train.items} & {item.id for item in test.items}
    if shared:
        raise DataError(
            f"{counted(len(shared), 'id')} in both training and test, where each must be in only one",
            got=f"in both: {first_few(sorted(shared))}",
            do="remove the images from one of them or give them ids of their own",
        )
    return _limited(train, spec.limit), _limited(test, spec.limit)


def _open(spec: DataSpec, place: str, split: str, prefix: str, knows: Knows) -> Source:
    """One source, whose images have a place of their own in the recipe."""
    match spec.source:
        case "timm":
            return TimmSource(place, split, _root(spec), prefix, knows)
        case "folder":
            return FolderSource(expand_path(place), prefix, skip=spec.unreadable == "skip")
        case "table":
            return _table(spec, expand_path(place), split, prefix, knows)
        case "npz" | "hdf5":
            both = spec.test == spec.train  # then the splits tell ids apart
            apart = "" if both else _told_apart(spec, prefix)
            keys = (spec.image_key, spec.label_key, spec.id_key)
            asked = AskedArrays(expand_path(place), *keys, apart, split, both, knows)
            return open_npz(asked) if spec.source == "npz" else open_hdf5(asked)
        case "digits" | "published":
            raise AssertionError(spec.source)  # they have none
        case _:
            assert_never(spec.source)


def _table(spec: DataSpec, path: Path, split: str, prefix: str, knows: Knows) -> Source:
    below = prefix if _apart(spec) else ""
    table = partial(
        TableSource, path, spec.image_key, spec.label_key, spec.id_key, root=_root(spec), knows=knows, below=below
    )
    if splits_in(path):
        return table(split=split, prefix=prefix)
    if spec.test == spec.train:
        return table(split=split, other=spec.test_split if split == spec.train_split else spec.train_split)
    return table(prefix=prefix, name=_told_apart(spec, prefix) + path.stem)


def _told_apart(spec: DataSpec, prefix: str) -> str:
    """``prefix`` if the two files' stems, which are in ids, are the same; else nothing."""
    assert spec.train is not None
    same = spec.test is not None and expand_path(spec.train).stem == expand_path(spec.test).stem
    return prefix if same else ""


def _is_one_place(spec: DataSpec) -> bool:
    """Whether training and test images are the same: nothing tells them apart, as a split does."""
    assert spec.train is not None
    assert spec.test is not None
    if spec.source == "timm":
        return (spec.train, spec.train_split) == (spec.test, spec.test_split)
    if spec.source in ("table", "npz", "hdf5") and spec.train == spec.test:
        return spec.train_split == spec.test_split
    one, other = (os.path.realpath(expand_path(place)) for place in (spec.train, spec.test))
    return one == other


def _apart(spec: DataSpec) -> bool:
    """Whether the paths in two tables start from a folder each: then one path may mean two images."""
    assert spec.train is not None
    places = [expand_path(place) for place in (spec.train, spec.test or spec.train)]
    folders = {os.path.realpath(place if splits_in(place) else place.parent) for place in places}
    return spec.root is None and len(folders) == 2


def _root(spec: DataSpec) -> Path | None:
    return None if spec.root is None else expand_path(spec.root)


def _limited(source: Source, limit: int | None) -> Source:
    return source if limit is None or limit >= len(source.items) else Subset(source, limit)
