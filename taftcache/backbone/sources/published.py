"""The seven datasets of the paper, as their publishers (and torchvision) unpack them, with the published splits.

Ids are paths below the root. Nothing is downloaded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import blake3
import numpy as np
from PIL import Image

from taftcache.backbone.sources.arrays import most_expanded
from taftcache.backbone.sources.base import Item, Source, check_items, decoding
from taftcache.backbone.sources.rgb import open_rgb
from taftcache.errors import DataError
from taftcache.names import counted

TRAINING_OF_CALTECH256 = 60  # a class; Caltech-256 has no published split

_HEAD, _COMPRESSED = 128, 15  # of a MATLAB file: bytes before the first variable, and its mark of a compressed one

Listed = list[tuple[str, int]]  # (path below the root, class)


class Published(NamedTuple):
    """Where a dataset lies below its root: a marker that must be there, and how the two lists are read."""

    marker: str
    read: Callable[[Path], tuple[list[str], Listed, Listed]]
    train: int
    test: int
    classes: int


class ListedSource(Source):
    """Images by a list of paths below ``root``."""

    numbered = False

    def __init__(self, name: str, root: Path, classes: list[str], listed: Listed) -> None:
        self._root, self.classes = root, classes
        self.items = [Item(path, label) for path, label in sorted(listed)]
        check_items(f"{name} at {root}", classes, self.items)
        missing = next((item.id for item in self.items if not (root / item.id).is_file()), None)
        if missing is not None:
            raise DataError(
                f"an image of the published list is missing: {root / missing}",
                got=f"{root / missing} is missing",
                do="unpack the archive again",
            )

    def read(self, index: int) -> Image.Image:
        """The image in RGB."""
        id = self.items[index].id
        file = self._root / id
        with decoding(id, lambda: not file.is_symlink()):  # one of those was dead before
            return open_rgb(file)


def open_published(name: str, root: Path) -> tuple[ListedSource, ListedSource]:
    """The training and the test images of the dataset ``name``, at ``root`` or in a folder of it.

    Raises:
        DataError: no such dataset, its files are not there, or a list names an image that is not there.
    """
    if name not in DATASETS:
        raise DataError(f"unknown published dataset {name!r}", got=name, do=f"one of {', '.join(DATASETS)}")
    dataset = DATASETS[name]
    inner = [root, *sorted(p for p in root.iterdir() if p.is_dir())] if root.is_dir() else []
    place = next((p for p in inner if (p / dataset.marker).exists()), None)
    if place is None:
        raise DataError(
            f"no unpacked {name} at {root}",
            got=f"{dataset.marker} is missing, there and in its folders",
            do="unpack the archive there, or correct data.root",
        )
    try:
        classes, train, test = dataset.read(place)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"a published list of {name} at {place} cannot be read",
            got=f"{type(error).__name__}: {error}",
            do="unpack the archive again",
        ) from error
    if not train or not test:
        raise DataError(
            f"the published split at {place} has an empty part",
            got=f"{len(train)} and {counted(len(test), 'image')}",
            do="unpack the whole archive there",
        )
    return ListedSource(name, place, classes, train), ListedSource(name, place, classes, test)


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the published list {file} cannot be read", got=str(error), do="unpack the archive again"
        ) from error


def _caltech256(root: Path) -> tuple[list[str], Listed, Listed]:
    """60 images a class train, chosen by a hash of their paths; the rest tests. The clutter class is left out."""
    images = root / "256_ObjectCategories"
    folders = sorted(p.name for p in images.iterdir() if p.is_dir() and not p.name.startswith("257."))
    train: Listed = []
    test: Listed = []
    for label, name in enumerate(folders):
        paths = [f"256_ObjectCategories/{name}/{file.name}" for file in (images / name).glob("*.jpg")]
        paths.sort(key=lambda path: blake3.blake3(path.encode()).digest())
        train += [(path, label) for path in paths[:TRAINING_OF_CALTECH256]]
        test += [(path, label) for path in paths[TRAINING_OF_CALTECH256:]]
    return folders, train, test


def _mit67(root: Path) -> tuple[list[str], Listed, Listed]:
    lists = (_lines(root / name) for name in ("TrainImages.txt", "TestImages.txt"))
    return _by_folder([[line.strip() for line in lines] for lines in lists])


def _pets(root: Path) -> tuple[list[str], Listed, Listed]:
    parts = [
        [line.split() for line in _lines(root / "annotations" / name) if not line.startswith("#")]
        for name in ("trainval.txt", "test.txt")
    ]
    names = {int(fields[1]): fields[0].rpartition("_")[0] for part in parts for fields in part}
    classes = [names[k] for k in sorted(names)]
    at = {k: place for place, k in enumerate(sorted(names))}
    train, test = ([(f"images/{f[0]}.jpg", at[int(f[1])]) for f in part] for part in parts)
    return classes, train, test


def _dogs(root: Path) -> tuple[list[str], Listed, Listed]:
    parts = []
    for name in ("train_list.mat", "test_list.mat"):
        place = root / name if (root / name).exists() else root / "lists" / name
        parts.append([str(path) for path in _matlab(place, "file_list")])
    return _by_folder(parts)


def _cub200(root: Path) -> tuple[list[str], Listed, Listed]:
    def table(name: str) -> dict[str, str]:
        return dict(line.split(maxsplit=1) for line in _lines(root / name))

    paths, training = table("images.txt"), table("train_test_split.txt")
    labels, names = table("image_class_labels.txt"), table("classes.txt")
    order = sorted(names, key=int)
    at = {key: k for k, key in enumerate(order)}
    train, test = (
        [(f"images/{paths[i].strip()}", at[labels[i].strip()]) for i in paths if training[i].strip() == wanted]
        for wanted in "10"
    )
    return [names[key].strip() for key in order], train, test


def _aircraft(root: Path) -> tuple[list[str], Listed, Listed]:
    classes = [line.strip() for line in _lines(root / "data" / "variants.txt")]
    at = {name: k for k, name in enumerate(classes)}
    parts = (_lines(root / "data" / f"images_variant_{split}.txt") for split in ("trainval", "test"))
    train, test = (
        [(f"data/images/{n}.jpg", at[v.strip()]) for n, v in (line.split(" ", 1) for line in p)] for p in parts
    )
    return classes, train, test


def _cars(root: Path) -> tuple[list[str], Listed, Listed]:
    classes = [str(name) for name in _matlab(root / "devkit" / "cars_meta.mat", "class_names")]
    places = ("cars_train", "devkit/cars_train_annos.mat"), ("cars_test", "cars_test_annos_with_labels.mat")
    train, test = (
        [(f"{folder}/{one['fname']}", int(one["class"]) - 1) for one in _matlab(root / file, "annotations")]
        for folder, file in places
    )
    return classes, train, test


def _by_folder(parts: list[list[str]]) -> tuple[list[str], Listed, Listed]:
    """Classes and lists from paths below ``Images``, whose first part is the class."""
    classes = sorted({path.partition("/")[0] for part in parts for path in part})
    at = {name: k for k, name in enumerate(classes)}
    train, test = ([(f"Images/{path}", at[path.partition("/")[0]]) for path in part] for part in parts)
    return classes, train, test


def _matlab(file: Path, name: str) -> Iterable[Any]:
    """One variable of a MATLAB file, as plain values."""
    from scipy.io import loadmat, whosmat  # late: only two datasets need it

    try:
        size = file.stat().st_size
        if _unpacked(file, most := most_expanded(size)) >= most:
            raise ValueError(f"its {size} bytes unpack to more than {most}")
        shapes = {found: shape for found, shape, _ in whosmat(str(file))}
        if prod(shapes[name]) > size:  # each element becomes an object of Python
            raise ValueError(f"it has {prod(shapes[name])} elements, but only {size} bytes")
        values: Iterable[Any] = np.atleast_1d(loadmat(str(file), variable_names=[name], squeeze_me=True)[name])
        return values
    except MemoryError:
        raise
    except Exception as error:  # scipy has errors of its own, and zlib, struct and numpy theirs
        raise DataError(
            f"cannot read the variable {name} of {file}",
            got=f"{type(error).__name__}: {error}",
            do="unpack the archive again",
        ) from error


def _unpacked(file: Path, most: int) -> int:
    """How many bytes the compressed variables of a MATLAB file are, counted up to ``most``."""
    raw, at, total = file.read_bytes(), _HEAD, 0
    order = "<" if raw[_HEAD - 2 : _HEAD] == b"IM" else ">"
    while at + 8 <= len(raw) and total < most:
        kind, size = struct.unpack_from(f"{order}II", raw, at)
        at += 8
        if kind == _COMPRESSED:
            total += len(zlib.decompressobj().decompress(raw[at : at + size], most - total))
        at += size
    return total


# Name → where it lies, and its sizes, so that estimates are possible before anything is downloaded.
DATASETS = {
    "caltech256": Published("256_ObjectCategories", _caltech256, 15360, 14420, 256),
    "mit67": Published("TrainImages.txt", _mit67, 5360, 1340, 67),
    "pets": Published("annotations/trainval.txt", _pets, 3680, 3669, 37),
    "dogs": Published("Images", _dogs, 12000, 8580, 120),
    "cub200": Published("train_test_split.txt", _cub200, 5994, 5794, 200),
    "aircraft": Published("data/variants.txt", _aircraft, 6667, 3333, 100),
    "cars": Published("devkit/cars_meta.mat", _cars, 8144, 8041, 196),
}
