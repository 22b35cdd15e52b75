"""Images in arrays: the part that npz and HDF5 files share.

Two layouts. *Pixels*: images uint8 [n, h, w], [n, h, w, 1 or 3] or [n, 1 or 3, h, w] and labels [n].
*Encoded*: ``blob`` uint8, the files of all images one after another; ``offset`` [n + 1], where each
begins and ends; ``label`` [n]. In both, ``classes`` (names) and ``id`` or ``ids`` (text or integers) are optional.
A file may have several splits of them, by names such as ``train_images``, ``images_train`` or ``train/images``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from taftcache.backbone.sources.base import (
    REGRESSION,
    Item,
    Knows,
    Source,
    SourceInfo,
    check_items,
    check_labels,
    decoding,
    name_order,
)
from taftcache.backbone.sources.rgb import decode_rgb, to_rgb
from taftcache.errors import DataError
from taftcache.names import counted

_IDS = ("id", "ids")
_EXPANDED = 64 << 20  # bytes that any file may expand to
_RATIO = 100  # and how many times its own size; deflate reaches a thousand, with zeros
_PIXELS = 1 << 28  # of one image, somewhat more than PIL decodes
_FILE = 1 << 30  # bytes of one image's file, as many as a chunk of HDF5 may have
_DIGITS, _MOST_DIGITS = 4, 9  # of numbers of rows in ids
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]*)?")
_WHOLE = re.compile(r"-?[0-9]+(\.0*)?")  # a whole number, perhaps written as a fraction


class AskedArrays(NamedTuple):
    """What is asked of a file of arrays.

    id_key: the array of ids; ``id`` or ``ids`` by default. prefix: put before the file's stem in numbers of rows.
    split: whose arrays are read if that is ``required``, because the file is both train and test, or if the file has no
    other images. knows: as for `numbers`.
    """

    file: Path
    image_key: str
    label_key: str
    id_key: str | None = None
    prefix: str = ""
    split: str = ""
    required: bool = False
    knows: Knows = None


class SplitArrays(NamedTuple):
    """Which arrays of a file are read. own: `in_split`, empty if they are of no split. name: for numbers of rows.
    splits: those that the file has, and ``""`` if the arrays are of none."""

    own: dict[str, str]
    name: str
    splits: Sequence[str]


class ArraySource(Source):
    """Images from ``arrays`` (numpy arrays, or HDF5 datasets that are read one image at a time), those of a split by
    plain names."""

    def __init__(self, asked: AskedArrays, arrays: Mapping[str, Any], read: SplitArrays) -> None:
        file, image_key, label_key = asked.file, asked.image_key, asked.label_key
        self.info = SourceInfo(splits=read.splits, of_split="" not in read.splits)
        self._encoded = image_key not in arrays and "blob" in arrays
        if self._encoded:
            label_key = label_key if label_key in arrays else "label"
            self._images, self._offset = arrays["blob"], _offsets(file, arrays)
            n = len(self._offset) - 1
        else:
            self._images = _named(file, arrays, image_key, "image_key")
            _check_pixels(file, self._images)
            n = len(self._images)
        given = _named(file, arrays, label_key, "label_key")
        if given.size != n:  # before they are read: a file may declare more labels than memory can hold
            raise DataError(
                f"{file} has {counted(n, 'image')}, but {counted(given.size, 'label')}",
                do="write a label for each image",
            )
        labels = np.asarray(given[()])
        names = texts(file, "classes", arrays["classes"][()]) if "classes" in arrays else None
        self.classes, indexes = label_indexes(file, labels.reshape(-1), names)
        key = asked.id_key or next((k for k in _IDS if k in arrays), None)
        self.numbered = key is None
        ids = numbers(read.name, n, asked.knows) if key is None else _ids(asked, arrays, n, key, read.own)
        self.items = [Item(id, label) for id, label in zip(ids, indexes, strict=True)]
        check_items(str(file), self.classes, self.items)

    def read(self, index: int) -> Image.Image:
        id = self.items[index].id
        with decoding(id):
            if self._encoded:
                encoded = self._images[int(self._offset[index]) : int(self._offset[index + 1])]
                return decode_rgb(np.asarray(encoded).tobytes())
            pixels = np.asarray(self._images[index])
        if pixels.ndim == 3 and pixels.shape[-1] not in (1, 3):
            pixels = np.moveaxis(pixels, 0, -1)
        if pixels.ndim == 3 and pixels.shape[-1] == 1:
            pixels = pixels[..., 0]
        return to_rgb(Image.fromarray(np.ascontiguousarray(pixels)))


def in_split(names: Iterable[str], split: str) -> dict[str, str]:
    """The names of one split's arrays by what they are called without it: of "train", ``images`` is ``train_images``,
    ``images_train`` or ``train/images``."""
    found = {}
    for name in names:
        for plain in (name.removeprefix(f"{split}_"), name.removeprefix(f"{split}/"), name.removesuffix(f"_{split}")):
            if plain not in ("", name):
                found[plain] = name
    return found


def splits_with(names: Collection[str], *plain: str) -> list[str]:
    """The splits that have an array of each of these ``plain`` names, in alphabetical order."""
    found = [
        {split for n in names for split in (n.removesuffix(f"_{p}"), n.removesuffix(f"/{p}"), n.removeprefix(f"{p}_"))}
        for p in plain
    ]
    return sorted(set.intersection(*found) - {"", *names})


def split_of(asked: AskedArrays, names: Collection[str]) -> SplitArrays:
    """Which of the arrays of these names are read.

    Raises:
        DataError: a split is required, and has no images.
    """
    splits = splits_with(names, asked.image_key, asked.label_key) or splits_with(names, "blob", "offset")
    images, name = {asked.image_key, "blob"}, asked.prefix + asked.file.stem
    found = in_split(names, asked.split) if asked.required or images.isdisjoint(names) else {}
    if not images.isdisjoint(found):
        return SplitArrays(found, f"{name}/{asked.split}", splits)
    if asked.required:
        raise DataError(
            f"{asked.file} has no array {asked.image_key!r} of the split {asked.split!r}",
            got=f"it holds {', '.join(sorted(names)) or 'nothing'}",
            do="set data.train_split and data.test_split to the splits in these names, such as train in train_images, "
            "and data.image_key and data.label_key to what stands beside them, such as images; or leave data.test out",
        )
    return SplitArrays({}, name, ["", *splits])


def to_numpy(what: str, given: Any) -> Any:
    """A program's own array or table, or a tensor on any device, as a NumPy array; anything else as it is.

    Raises:
        DataError: it is sparse, or as ``check_values`` says.
    """
    if hasattr(given, "toarray"):
        raise DataError(f"cannot take {what}: they are sparse", got=f"a {type(given).__name__}", do="use .toarray()")
    check_values(what, given)
    found = widened(given.detach().cpu()) if hasattr(given, "detach") else given
    return np.asarray(found) if hasattr(found, "__array__") or isinstance(found, memoryview) else found


def check_values(what: str, given: Any) -> None:
    """DataError for an array with masked values, because NumPy would show what lies below the mask, and for a tensor
    that is sparse or has no values."""
    if hasattr(given, "detach") and (given.is_meta or str(given.layout) != "torch.strided"):
        kind, do = ("without values", "give those that have some") if given.is_meta else ("sparse", "use .to_dense()")
        raise DataError(f"cannot take {what}: they are {kind}", got=f"{given.device}, {given.layout}", do=do)
    if np.ma.is_masked(given):
        raise DataError(
            f"cannot take {what}: they have masked values",
            got=counted(int(np.ma.getmaskarray(given).sum()), "masked value"),
            do="leave those rows out, or write what they lack: filled(…)",
        )


def widened(given: Any) -> Any:
    """A tensor without its history, and of bfloat16, which NumPy does not have, in float32; anything else as it is."""
    if not hasattr(given, "detach"):
        return given
    return given.detach().float() if str(given.dtype) == "torch.bfloat16" else given.detach()


def most_expanded(size: int) -> int:
    """Bytes that a file of ``size`` bytes may expand to."""
    return max(_EXPANDED, _RATIO * size)


def check_expansion(file: Path, needed: int, size: int) -> None:
    """DataError if a file of ``size`` bytes asks for so much memory that it can hold little but repetition."""
    if needed > most_expanded(size):
        raise DataError(
            f"{file} has {size} bytes but expands to {needed}, as a file made to exhaust memory does",
            got=f"{needed // max(size, 1)} times its size",
            do="write it without compression",
        )


def _named(file: Path, arrays: Mapping[str, Any], key: str, option: str) -> Any:
    if key not in arrays:
        raise DataError(
            f"{file} has no array named {key!r}",
            got=f"it holds {', '.join(sorted(arrays)) or 'nothing'}",
            do=f"name the right one: --set data.{option}=NAME",
        )
    return arrays[key]


def _check_pixels(file: Path, images: Any) -> None:
    shape, channels = images.shape, (1, 3)
    square = len(shape) == 3 or (len(shape) == 4 and (shape[3] in channels or shape[1] in channels))
    sides = shape[1:3] if shape[-1] in channels or len(shape) == 3 else shape[2:]  # as ``read`` has it
    if square and math.prod(sides) > _PIXELS:
        raise DataError(
            f"the images of {file} have more than {_PIXELS} pixels, too many for one image",
            got=list(shape),
            do="write them smaller: a backbone takes a few hundred pixels a side",
        )
    if not square or images.dtype != np.uint8 or (len(shape) and 0 in shape[1:]):
        raise DataError(
            f"the images of {file} are {images.dtype} {list(shape)}, which is not a form of uint8 pixels",
            got=f"{images.dtype} {list(shape)}",
            do="convert to uint8 [n, h, w], [n, h, w, channels] or [n, channels, h, w], with 1 or 3 channels",
        )


def _offsets(file: Path, arrays: Mapping[str, Any]) -> np.ndarray:
    """Checked: an offset outside the blob or a step back would read another image's bytes."""
    offset = np.asarray(_named(file, arrays, "offset", "image_key")[()])
    blob = arrays["blob"]
    sound = (
        blob.dtype == np.uint8
        and len(blob.shape) == 1
        and offset.ndim == 1
        and offset.dtype.kind in "iu"
        and len(offset) > 0
        and offset[0] >= 0
        and offset[-1] <= blob.shape[0]
        and bool(np.all(offset[1:] >= offset[:-1]))
    )
    if not sound:
        raise DataError(
            f"{file} is damaged: its offsets do not ascend within the uint8 blob",
            got=f"{file}: blob {blob.dtype} {list(blob.shape)}, offset {offset.dtype} {list(offset.shape)}",
            do="write the file again",
        )
    if int(np.diff(offset).max(initial=0)) > _FILE:
        raise DataError(
            f"{file} has an image of more than {_FILE} bytes", got=f"{np.diff(offset).max()}", do="leave it out"
        )
    return offset


def label_indexes(file: Path, labels: np.ndarray, names: list[str] | None) -> tuple[list[str], list[int]]:
    """Class names, and the labels [n] as indexes into them.

    Given ``names``, whole numbers are indexes, and texts are names. Else exactly the values that occur are the classes,
    in the order of `name_order`, whether a file has them as numbers or as texts.

    Raises:
        DataError: labels that are no classes, or texts that are not among ``names``.
    """
    if names is not None and labels.dtype.kind in "iu":
        return names, [int(v) for v in labels]
    found = texts(file, "labels", labels)
    if names is None:
        if all(map(_DECIMAL.fullmatch, found)):  # as pandas writes integers once there were gaps
            found = [text.partition(".")[0] if _WHOLE.fullmatch(text) else text for text in found]
        check_labels(file, found)
        names = sorted(set(found), key=name_order)
    known = {name: k for k, name in enumerate(names)}
    unknown = sorted(set(found) - known.keys())
    if unknown:
        raise DataError(
            f"{file} has labels that are not among its classes", got=", ".join(unknown[:5]), do="correct the file"
        )
    return names, [known[text] for text in found]


def numbers(name: str, n: int, knows: Knows = None) -> list[str]:
    """Ids of the n rows of a file: ``<name>/0000`` and so on, with as many digits as the last row needs, but four at
    least. A file that has grown or shrunk since a store was made keeps the digits of the ids that this ``knows``."""
    digits = own = max(_DIGITS, len(str(n - 1)))
    if knows is not None:
        every = (own, *(d for d in range(_DIGITS, _MOST_DIGITS + 1) if d != own))
        digits = next((d for d in every if any(map(knows, _first_numbers(name, n, d)))), own)
    return [f"{name}/{k:0{digits}d}" for k in range(n)]


def _first_numbers(name: str, n: int, digits: int) -> Iterator[str]:
    """The ids that differ from those with one digit less."""
    return (f"{name}/{k:0{digits}d}" for k in range(min(n, 10 ** max(_DIGITS, digits - 1))))


def _ids(asked: AskedArrays, arrays: Mapping[str, Any], n: int, key: str, own: Mapping[str, str]) -> list[str]:
    ids = texts(asked.file, key, _named(asked.file, arrays, key, "id_key")[()])
    do = "write an id for each image, or none"
    if own and key not in own:
        images = asked.image_key if asked.image_key in own else "blob"
        like = f"named as {own[images]!r} is, with {key!r} for {images!r}"
        do = f"write the ids of each split into an array of its own, {like}"
    if len(ids) != n:
        raise DataError(f"{asked.file} has {counted(n, 'image')}, but {counted(len(ids), 'id')}", do=do)
    return ids


def texts(file: Path, key: str, values: Any) -> list[str]:
    """Text from numpy strings, bytes (HDF5) or integers; DataError for what is not Unicode."""
    array = np.asarray(values).reshape(-1)
    if array.dtype.kind not in "USOiuT":
        are_values = key == "labels" and array.dtype.kind == "f"
        raise DataError(
            f"{key} must be text or integers",
            got=f"{file}: {array.dtype}",
            do=f"write classes as texts or integers; {REGRESSION}" if are_values else "write it as text",
        )
    try:
        found = [v.decode() if isinstance(v, bytes) else str(v) for v in array.tolist()]
        "".join(found).encode()
    except (UnicodeError, SystemError) as error:  # SystemError: numpy's for what is beyond Unicode
        raise DataError(f"{key} must be UTF-8 text", got=f"{file}: {error}", do="write it as UTF-8") from error
    return found
