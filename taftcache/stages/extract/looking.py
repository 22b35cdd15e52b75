"""Look at a place with images: which source opens it, and how large are they?"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from taftcache.backbone.files import expand_path
from taftcache.backbone.sources.arrays import in_split, splits_with
from taftcache.backbone.sources.base import SPLIT, SPLITS, TEST, TRAIN, Source, first_usual
from taftcache.backbone.sources.columns import configurations_in, is_table, part_of, read_table, splits_in, tables_in
from taftcache.backbone.sources.folder import SUFFIXES, unreachable
from taftcache.backbone.sources.hdf5 import names_in_hdf5
from taftcache.backbone.sources.npz import names_in_npz
from taftcache.backbone.sources.table import check_heading, id_text, is_inside
from taftcache.backbone.spec import DataSpec
from taftcache.errors import DataError, RecipeError, UnreadableImage, local_path
from taftcache.names import counted, first_few, typed
from taftcache.recipe_files import read_toml
from taftcache.stages.writing import REPLACE

IMAGES = ("image", "images", "path", "paths", "file", "filename", "file_name", "filepath", "image_path", "img")
LABELS = ("label", "labels", "class", "target", "category", "species", "y", "fine_label")
IDS = ("id", "ids", "image_id", "sample_id", "uid", "uuid", "filename", "file_name")
PIXELS = ("images", "image", "x", "data", "imgs")  # in files of arrays
ARRAYS = {".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5"}
TRIED, SECONDS = 48, 10.0  # how many images are decoded at least; more are until so many seconds have passed


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Width and height of the image of median area, how many were looked at, and which of these do not decode."""

    width: int
    height: int
    tried: int
    unreadable: list[str]


def full_path(place: Path) -> Path:
    """The absolute path, without a ``..``; links are followed only if there was one."""
    whole = local_path(place).absolute()
    return Path(os.path.realpath(whole)) if ".." in whole.parts else whole


def file_for(place: Path, file: Path | str | None, force: bool) -> Path:
    """Where the recipe for ``place`` is written: ``file``, or the place's name and .toml in the current folder.

    Needs no torch, so that a mistake is reported at once.

    Raises:
        DataError: nothing is at ``place``. RecipeError: the file is there already, and is not to be replaced, or is no
            recipe.
    """
    whole = full_path(place)
    if not whole.exists():
        near = next(folder for folder in whole.parents if folder.is_dir())
        raise DataError(
            f"nothing at {whole}",
            got=f"{near} is the nearest folder that exists",
            do="name a folder of images with one subfolder per class, or a table or file of arrays: "
            "taftcache init --help",
        )
    name = re.sub(r"[^\w.-]+", "-", whole.stem).strip("-.") or "images"
    file = local_path(file) if file is not None else Path(f"{name}.toml")
    if file.exists() and not force:
        raise RecipeError(
            f"the recipe {file} exists already", got=str(file), do=f"{REPLACE}, or name another file (-o)"
        )
    if file.exists():
        _check_recipe(file)
    return file


def _check_recipe(file: Path) -> None:
    """RecipeError unless ``file`` has sections of a recipe of images, whatever is wrong in them, or is empty."""
    found = "a folder, or no plain file"
    if file.is_file():  # to read a pipe would wait for a writer
        try:
            values = read_toml(file) if file.stat().st_size else {"data": {}}
            if {"data", "backbone"} & values.keys() and "student" not in values:
                return
            found = f"TOML with {first_few(list(values)) or 'no key'}"
        except RecipeError as error:
            found = error.fault
    raise RecipeError(
        f"{file} is there already, and does not read as a recipe of images, which is all that force replaces",
        got=found,
        do="-o FILE for another name, or delete it first",
    )


def data_section(place: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The [data] section for a folder, a table or a file of arrays at ``place``; paths in it are whole.

    Args:
        given: keys that the user has set, such as ``label_key``, and that need not be found out; with ``train``, what
            lies there decides.

    Raises:
        DataError: nothing that a source opens is there.
    """
    named = given.get("train")
    place = full_path(expand_path(named) if isinstance(named, str) and "source" not in given else place)
    if is_table(place):
        return _table(place, place, given)
    if place.is_file():
        if place.suffix.lower() in ARRAYS:
            return _arrays(place, given)
        raise DataError(
            f"{place} is not a file that lists or holds images",
            got=f"a file ending in {place.suffix or 'nothing'}",
            do="name a folder with one folder for each class, a .csv, .tsv or .parquet file of paths and labels, "
            "or an .npz or .h5 file of arrays; vectors have no recipe: taftcache import",
        )
    return _folder(place, given)


def check_there(place: Path, sources: Sequence[Source]) -> None:
    """DataError if a table lists files that do not exist: usually the paths are wrong, and the images not lost."""
    if missing := [id for source in sources for id in source.missing()]:
        raise DataError(
            f"missing: {len(missing)} of {counted(sum(len(s.items) for s in sources), 'image')} that {place} lists",
            got=first_few(missing),
            do="correct the paths, or leave these images out: --set data.unreadable=skip",
        )


def look_at(sources: Sequence[Source]) -> Pixels:
    """Decode images of all sources in random order: ``TRIED`` at least, and more until ``SECONDS`` have passed.

    Raises:
        DataError: none of them decodes.
    """
    images = [(source, index) for source in sources for index in range(len(source.items))]
    sizes, unreadable, begin = list[tuple[int, int]](), list[str](), time.monotonic()
    for k in np.random.default_rng(0).permutation(len(images)).tolist():
        if len(sizes) + len(unreadable) >= TRIED and time.monotonic() - begin > SECONDS:
            break
        source, index = images[k]
        try:
            sizes.append(source.read(index).size)
        except UnreadableImage:
            unreadable.append(source.items[index].id)
    tried = len(sizes) + len(unreadable)
    if not sizes:
        raise DataError(
            f"none of {counted(tried, 'image')} tried can be decoded",
            got=", ".join(sorted(unreadable)[:3]),
            do="check that they are images, and that this user may read them",
        )
    width, height = sorted(sizes, key=lambda size: size[0] * size[1])[len(sizes) // 2]
    return Pixels(width=width, height=height, tried=tried, unreadable=sorted(unreadable))


def _folder(place: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The section for a folder of classes, of splits, or of images with a table beside them."""
    inner = _folders(place)
    train, test = (next((inner[name] for name in names if name in inner), None) for names in (TRAIN, TEST))
    if train is not None and (set(inner) <= SPLITS or test is not None or is_table(train)):
        if (listed := _listing(train)) is not None:
            return _table(listed, listed if test is None else _listing(test) or test, given)
        return {"source": "folder", "train": str(train)} | ({} if test is None else {"test": str(test)})
    if (listed := _listing(place)) is not None:
        return _table(listed, listed, given)
    if len(held := [folder for folder in inner.values() if is_table(folder)]) == 1:  # as the Hub's data/
        return _table(held[0], held[0], given)
    if held and held == configurations_in(place):
        raise DataError(
            f"{place} has several configurations of a dataset, and nothing says which to train on",
            got=first_few([folder.name for folder in held]),
            do=f"choose one: taftcache init {typed(held[0])}",
        )
    if held:
        raise DataError(
            f"{place} has several tables of images, and none is called train",
            got=first_few([folder.name for folder in held]),
            do=f"name the one to train on: taftcache init {typed(held[0])}; one to test on: --set data.test=FOLDER",
        )
    if len(inner) < 2 and (tables := tables_in(place)):
        raise DataError(
            f"{place} has several tables of images, and nothing says which to train on",
            got=first_few([file.name for file in tables]),
            do=f"name one: taftcache init {typed(tables[0])}, and one to test on: --set data.test=FILE; Parquet files "
            "are parts of one table if they are called train-00000-of-00002.parquet and so on",
        )
    if not inner and any(file.suffix.lower() in SUFFIXES for file in place.iterdir()):
        raise DataError(
            f"the images in {place} have no labels: they lie side by side",
            got="no folder for each class, and no table",
            do="sort them into folders named after their classes, or add a CSV file with the columns path and label",
        )
    return {"source": "folder", "train": str(place)}


def _folders(place: Path) -> dict[str, Path]:
    """The folders in a folder by their names in lower case; those whose names begin with a dot are left out.

    DataError for a link to what is not there that is named as a split.
    """
    entries = [entry for entry in sorted(place.iterdir()) if not entry.name.startswith(".")]
    for entry in entries:
        if entry.name.lower() in SPLITS and not entry.exists():
            raise unreachable(entry)
    return {entry.name.lower(): entry for entry in entries if entry.is_dir()}


def _listing(folder: Path) -> Path | None:
    """The table that lists the images in ``folder``: itself, or the only one in it, unless it has folders of classes,
    which would be two at least."""
    if is_table(folder):
        return folder
    if (folder / "metadata.jsonl").is_file() and len(_folders(folder)) < 2:
        raise DataError(
            f"{folder / 'metadata.jsonl'} is of a kind of table that is not read",
            do='write it as metadata.csv: pandas.read_json(FILE, lines=True).to_csv("metadata.csv", index=False)',
        )
    tables = tables_in(folder)
    return tables[0] if len(tables) == 1 and len(_folders(folder)) < 2 else None


def unused_notes(place: Path, data: DataSpec) -> list[str]:
    """Notes on what lies beside the training images that a recipe names, and is used for nothing: other splits, other
    parts of a table."""
    train, test = (None if at is None else full_path(expand_path(at)) for at in (data.train, data.test))
    assert train is not None
    split, parts = part_of(train)
    if parts > 1:
        return [
            f"{train.name} is one of {parts} parts of {split!r}, and the others are not read; "
            f"taftcache init {typed(train.parent)} reads all that are in its folder"
        ]
    used = {path for at in (train, test) if at is not None for path in (at, *at.parents)}
    folders = _folders(full_path(place)).values() if place.is_dir() else ()
    left = [folder.name for folder in folders if folder not in used]
    if not any(folder in used for folder in folders) or not left:
        return []
    return [f"of the folders in {place}, these are used for neither training nor testing: {first_few(left)}"]


def _table(train: Path, test: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    parts = splits_in(train)
    first = first_usual(parts, TRAIN) or min(parts, default="")
    columns = read_table(train, first).columns
    section = {"source": "table", "train": str(train)}
    for key, usual in (("image_key", IMAGES), ("label_key", LABELS)):
        section[key] = given.get(key) or _named(columns, key, usual, train)
    splits = {*parts} or {str(value) for value in columns.get(SPLIT, ())}
    names = [first_usual(splits, TRAIN), first_usual(splits, TEST)]
    tested = expand_path(given["test"]) if isinstance(given.get("test"), str) else test
    tables = [columns]
    there = splits_in(tested)
    split = given.get("test_split") or first_usual(there, TEST) or ("" if len(there) > 1 else min(there, default=""))
    if is_table(tested) and (split in there if there else tested != train):
        tables.append(read_table(tested, split).columns)
    if ids := given.get("id_key") or _ids_of(tables, section["image_key"]):
        section["id_key"] = ids
    if tested != train and there and split:
        section["test_split"] = split
    if test != train:
        return section | {"test": str(test)}
    if parts and names[1] is None:
        return section | {"train_split": first}
    if None in names:
        return section
    return section | {"test": str(train), "train_split": names[0], "test_split": names[1]}


def _arrays(place: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The section for a file of arrays. Names that are usual are written unless they are the default ones."""
    source = ARRAYS[place.suffix.lower()]
    section = {"source": source, "train": str(place)}
    names = (names_in_npz if source == "npz" else names_in_hdf5)(place)
    named = [str(given[key]) for key in ("image_key", "label_key") if key in given]  # perhaps deep in groups of HDF5
    for split in ("", *TRAIN, None):
        there = in_split(names, split) if split else names if split == "" else [*names, *named]
        images = _array(there, given.get("image_key"), "images", PIXELS)
        labels = _array(there, given.get("label_key"), "labels", LABELS)
        if images and labels:
            break
    else:
        return section
    section |= {} if images == "images" else {"image_key": images}
    section |= {} if labels == "labels" else {"label_key": labels}
    if not split:
        return section
    tested = first_usual(splits_with(names, images, labels), TEST)
    if tested is None:
        return section | {"train_split": split}
    return section | {"test": str(place), "train_split": split, "test_split": tested}


def _array(there: Collection[str], given: str | None, default: str, usual: tuple[str, ...]) -> str | None:
    """The one among these names that is ``given``; or else the default key, or a usual name."""
    key = given or default
    return key if key in there else None if given else first_usual(there, usual)


def _ids_of(tables: Sequence[Mapping[str, Any]], images: str) -> str | None:
    """The column with an id for each image that lies in the tables, by its usual names; or that of the images, if it
    keeps their paths. None if no column tells all images apart, or these are files, whose paths do."""
    there = {name.lower(): name for name in tables[0]}
    if not (images in tables[0] and is_inside(tables[0][images][0])):
        return None
    for key in (*(there[name] for name in IDS if name in there), images):
        found = [[id_text(value) for value in table.get(key, [""])] for table in tables]
        apart = found if key == images else [list(chain(*found))]  # paths get train/ or test/ before them
        if all(len({i for i in ids if i and i.isprintable()}) == len(ids) for ids in apart):
            return key
    return None


def _named(columns: Mapping[str, Any], key: str, usual: tuple[str, ...], place: Path) -> str:
    """The column that has one of the usual names."""
    found = first_usual(columns, usual)
    if found is None:
        check_heading(place, columns)
        raise DataError(
            f"no column of {place} has a usual name for {key.partition('_')[0]}s",
            got=f"it has {', '.join(columns) or 'none'}",
            do=f"name it: --set data.{key}=COLUMN",
        )
    return found
