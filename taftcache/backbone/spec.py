"""What a recipe may say about the backbone, the images and their preprocessing.

Parsing a recipe must stay fast, so nothing here imports torch or timm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args
from unicodedata import normalize

import msgspec

from taftcache.errors import RecipeError

# Arguments by which timm itself opens files or asks the network. What it then reads can run code.
LOADING = ("cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay")
PLACING = ("device", "dtype")  # where and in what precision it is built, which other keys say


def check_options(model_args: Mapping[str, Any]) -> None:
    """RecipeError for arguments of a model by which timm would load something, or that take other images than RGB."""
    if loading := [name for name in LOADING if name in model_args]:
        raise RecipeError(
            "backbone.model_args cannot hold arguments by which timm loads files",
            got=", ".join(loading),
            do="name the weights by backbone.weights, and what the images need in [preprocess]",
        )
    if placing := [name for name in PLACING if name in model_args]:
        raise RecipeError(
            "backbone.model_args cannot say where or in what precision the model is built",
            got=", ".join(f"{name} = {model_args[name]!r}" for name in placing),
            do="leave it out; the recipe's device and backbone.precision say that",
        )
    if model_args.get("in_chans", 3) != 3:
        raise RecipeError(
            "images are RGB: a model must take three channels",
            got=f"in_chans = {model_args['in_chans']!r}",
            do="leave in_chans out of backbone.model_args; grey images become RGB",
        )


Precision = Literal["float32", "bfloat16", "float16"]
Features = Literal["last", "every block"]
EVERY_BLOCK: Features = "every block"


class BackboneSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which frozen model produces the features.

    model: a timm architecture, with or without a pretrained tag; leave it out when the weights name it.
    weights: "bundled" (the small ViT inside the package), "pretrained" (timm's hub), the path of a ``.safetensors``
        file with timm's names, or a folder in timm's local-dir layout (docs/guide.md shows both).
    model_args: passed on to ``timm.create_model``.
    precision: how the frozen layers compute; weights and what is trained stay in float32. Half precision is for GPUs
        that have units for it; its rounding is stored for good.
    features: what the head reads. "last" is the model's own feature. "every block" is the class token and the mean of
        the other tokens after every block, each normalised: a wider feature, on which only the head is trained
        (``tangent.blocks = 0``).
    """

    model: str | None = None
    weights: str = "bundled"
    model_args: dict[str, Any] = {}
    precision: Precision = "float32"
    features: Features = "last"

    def __post_init__(self) -> None:
        check_options(self.model_args)
        for key, kind in (("precision", Precision), ("features", Features)):
            if (value := getattr(self, key)) not in get_args(kind):
                do = " or ".join(map(repr, get_args(kind)))
                raise RecipeError(f"backbone.{key} cannot be {value!r}", got=f"{key} = {value!r}", do=do)
        if self.weights == "bundled" and self.model is not None:
            raise RecipeError(
                "the bundled weights are of their own model, not of another",
                got=f"model = {self.model!r} with weights = 'bundled'",
                do="leave model out, or set weights to 'pretrained', a .safetensors file or a folder",
            )
        if self.weights == "pretrained" and self.model is None:
            raise RecipeError(
                "pretrained weights need the name of a model",
                got="weights = 'pretrained' without model",
                do="set model to a timm name such as 'deit_tiny_patch16_224.fb_in1k'",
            )
        if not self.weights:
            raise RecipeError(
                "the model's weights must not be empty",
                got="weights = ''",
                do="write 'bundled', 'pretrained' or a path",
            )


def backbone_of(given: str | Path | BackboneSpec) -> BackboneSpec:
    """The backbone of a word: "bundled", a file or folder of weights, or the name of a pretrained timm model.

    Raises:
        RecipeError: it is nothing that an estimator takes.
    """
    if isinstance(given, BackboneSpec):
        return given
    if not isinstance(given, str | Path):
        raise RecipeError(
            "the backbone is of no kind that an estimator takes",
            got=repr(given)[:80],
            do="None, a name, a path, a BackboneSpec or a pair (state, config); features of a module of your own are X"
            " of fit(X, y), or of import_vectors for a store",
        )
    name = str(given)
    if name == "bundled" or name.endswith(".safetensors") or os.path.exists(os.path.expanduser(name)):
        return BackboneSpec(weights=name)
    return BackboneSpec(model=name, weights="pretrained")


class DataSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the images and labels come from.

    source: scikit-learn's "digits", a "folder" with one subfolder per class, a "table" of paths and labels, "npz" or
        "hdf5" arrays, a "timm" dataset, or a "published" one with its published split.
    train: a folder, a table, a file of arrays, or timm's name for a dataset; ``${VAR}`` and ``~`` are expanded. For
        "published" data: "caltech256", "mit67", "pets", "dogs", "cub200", "aircraft" or "cars".
    test: the same for held-out images, if they have a place of their own.
    held_out: the fraction of ``train`` that is kept for testing when there is no ``test``.
    group: what rows belong together, such as all images of one patient: a regular expression that is searched in each
        id. Its first group in parentheses, or else all that it matches, names the sample's group; a sample whose id it
        does not match is a group of its own. A group is held out or trained on as a whole, lies in one shard, and is
        left out as a whole where λ is chosen.
    limit: use at most this many images of each source, chosen by a hash of their ids.
    unreadable: what to do with an image that cannot be decoded. One that is out of reach, because its disk does not
        answer or its file vanished while the command ran, always stops the run.
    image_key: the name of the images' array in npz and HDF5 files, or of a table's column of paths.
    label_key: the same for the labels.
    id_key: the same for the ids, text or whole numbers. The column of images itself stands for the paths that Hugging
        Face's library keeps beside images inside a table. By default, ids are the paths that a table lists, or keeps if
        each of its images has one of its own; in npz and HDF5 files, the array ``id`` or ``ids``; else numbers of rows,
        which change when a row before is removed.
    root: for timm and published datasets, the folder; for a table, the folder that its paths start from (its own folder
        by default).
    train_split: timm's name for the split; for a table that is both train and test, the value in its column ``split``;
        for a folder of Parquet files, what their names begin with; for a file of arrays that has several splits, what
        stands before or after ``image_key`` and ``label_key`` in their names (``train_images``, ``images_train`` or
        ``train/images``).
    test_split: the same for held-out images.
    """

    source: Literal["digits", "folder", "table", "npz", "hdf5", "timm", "published"]
    train: str | None = None
    test: str | None = None
    held_out: float = 0.2
    group: str | None = None
    limit: int | None = None
    unreadable: Literal["stop", "skip"] = "stop"
    image_key: str = "images"
    label_key: str = "labels"
    id_key: str | None = None
    root: str | None = None
    train_split: str = "train"
    test_split: str = "validation"

    @property
    def places(self) -> tuple[str, ...]:
        """Those of train, test and root that are paths for this source; the others are names, or mean nothing."""
        if self.source in ("timm", "published"):
            return ("root",)
        return {"digits": (), "table": ("train", "test", "root")}.get(self.source, ("train", "test"))

    def in_id(self, sample_id: str) -> re.Match[str] | None:
        """What ``group`` finds in an id, in the Unicode form NFC; None if it finds nothing, or if there is none."""
        return None if self.group is None else re.search(self.group, normalize("NFC", sample_id))

    def group_of(self, sample_id: str) -> str:
        """The group of a sample: text of its id, in the Unicode form NFC; the id itself if it is in no other group.

        Raises:
            RecipeError: the expression matches the empty text there.
        """
        if self.group is None:
            return sample_id
        found = self.in_id(sample_id)
        name = found[min(1, found.re.groups)] if found else None
        if found and not (name or found[0]):
            raise RecipeError(
                "data.group matches the empty text in an id",
                got=f"{self.group!r:.80}, and {sample_id!r}",
                do=_GROUP_EXAMPLE,
            )
        return name or sample_id

    def groups(self, ids: Iterable[str]) -> list[str] | None:
        """The group of each sample, in order; None without ``group``. Errors as for ``group_of``."""
        return None if self.group is None else [self.group_of(i) for i in ids]

    def __post_init__(self) -> None:
        if self.source == "digits":
            if self.train is not None or self.test is not None:
                raise RecipeError(
                    "the digits are part of scikit-learn and have no path",
                    got=f"train = {self.train!r}, test = {self.test!r}",
                    do="leave train and test out, or choose another source",
                )
        elif not self.train:
            raise RecipeError(
                f"data.train is missing: the source {self.source!r} needs it",
                got="no train",
                do="set train to " + ("the name of a timm dataset" if self.source == "timm" else "a path"),
            )
        if self.source == "published" and (self.root is None or self.test is not None):
            raise RecipeError(
                "a published dataset needs data.root, the folder that it was unpacked in"
                if self.root is None
                else "a published dataset has its own split: data.test must be left out",
                got=f"root = {self.root!r}, test = {self.test!r}",
                do="set root to the folder it was unpacked in, and leave test out",
            )
        if not 0.0 <= self.held_out < 1.0:
            raise RecipeError(
                f"data.held_out is {self.held_out}, but must be a fraction of the training images",
                got=f"held_out = {self.held_out}",
                do="choose a number from 0 up to, not including, 1",
            )
        if self.group is not None:
            _check_group(self.group)
        if self.limit is not None and self.limit < 1:
            raise RecipeError(
                f"data.limit is {self.limit}, but must be at least 1",
                got=f"limit = {self.limit}",
                do="raise it or leave it out",
            )


def _check_group(pattern: str) -> None:
    """RecipeError for what is no regular expression. Nothing is searched for it here: a stranger's store, which is only
    looked at, may name one that takes for ever."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise RecipeError(
            f"data.group is no regular expression: {error}", got=repr(pattern)[:80], do=_GROUP_EXAMPLE
        ) from error


_GROUP_EXAMPLE = "write for example group = 'patient_[0-9]+', whose matches in ids name the groups"


class PreprocessSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes to timm's data configuration for the model; keys left out keep timm's values.

    input_size: channels, height and width.
    mean, std: one for each channel, for images scaled to 0 to 1.
    interpolation: how images are resized.
    crop_pct: size of the crop as a fraction of the resized image.
    crop_mode: "center" crops, "squash" ignores the aspect ratio, "border" pads.
    """

    input_size: tuple[int, int, int] | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"] | None = None
    crop_pct: float | None = None
    crop_mode: Literal["center", "squash", "border"] | None = None

    def __post_init__(self) -> None:
        if self.input_size is not None and (self.input_size[0] != 3 or min(self.input_size) < 1):
            raise RecipeError(
                "preprocess.input_size must be three channels, height and width",
                got=f"input_size = {list(self.input_size)}",
                do="write for example input_size = [3, 224, 224]",
            )
        self._check_pixels(("mean", -1e3, 1e3), ("std", 1e-6, 1e6))  # beyond, pixels in float32 overflow
        if self.crop_pct is not None and not 0.1 <= self.crop_pct <= 4.0:
            raise RecipeError(
                f"preprocess.crop_pct is {self.crop_pct}, but must be a fraction of the resized image",
                got=f"crop_pct = {self.crop_pct}",
                do="choose a number from 0.1 to 4, usually 0.875 to 1",
            )

    def check_scale(self) -> None:
        """RecipeError for a mean or std of pixels from 0 to 255. Only new stores are asked: from one that was made with
        such numbers, samples can still be forgotten."""
        self._check_pixels(("mean", -10, 10), ("std", 1e-6, 10))

    def _check_pixels(self, *limits: tuple[str, float, float]) -> None:
        for name, least, most in limits:
            given = getattr(self, name)
            if given is not None and not all(least <= value <= most for value in given):  # NaN is nowhere
                raise RecipeError(
                    f"preprocess.{name} must be numbers from {least:g} to {most:g}",
                    got=f"{name} = {list(given)}",
                    do="pixels are from 0 to 1: divide by 255 what was made for 0 to 255",
                )
