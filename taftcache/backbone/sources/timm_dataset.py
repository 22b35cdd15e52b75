"""Map-style datasets that ``timm.data.create_dataset`` makes: torchvision's, folders, Hugging Face's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from timm.data.dataset_factory import create_dataset

from taftcache.backbone.sources.arrays import label_indexes, numbers
from taftcache.backbone.sources.base import Item, Knows, Source, SourceInfo, check_items, decoding
from taftcache.backbone.sources.rgb import decode_rgb, open_rgb, to_rgb
from taftcache.errors import DataError
from taftcache.names import counted

# What may stand before the first slash of a name; without a slash, timm reads the folder at ``root``. All
# others stream: their labels cannot be listed, and webdataset runs a ``root`` that begins with "pipe:" as a command.
_PREFIXES = ("torch", "hfds")


class TimmSource(Source):
    """The dataset ``name`` (``torch/cifar10``, ``hfds/user/set``, ...) at ``root``. Only for ``hfds/`` may anything be
    downloaded: Hugging Face's library asks its hub.

    Ids are the paths timm reports below ``root``, or ``<name>/<split>/<index>``; ``knows`` as for `numbers`.
    """

    info = SourceInfo(of_split=True)

    def __init__(self, name: str, split: str, root: Path | None, prefix: str = "", knows: Knows = None) -> None:
        self._name = f"{name}/{split}"
        _check(name, root)
        try:
            self._dataset: Any = create_dataset(name, root=None if root is None else str(root), split=split)
            if hasattr(self._dataset, "loader"):
                self._dataset.loader = open_rgb  # torchvision's opens pictures of any format
            n = len(self._dataset)
            labels, names = _labels(self._dataset)
        except DataError:
            raise
        except Exception as error:  # every dataset library has its own errors
            raise DataError(
                f"timm cannot open the dataset {name!r}",
                got=f"split {split!r} at {root}: {type(error).__name__}: {error}",
                do="check the name, root and the names of the splits; download the data first",
            ) from error
        if len(labels) != n:
            raise DataError(f"{self._name} has {counted(n, 'image')}, but {counted(len(labels), 'label')}")
        self.classes, indexes = label_indexes(Path(self._name), np.asarray(labels, np.int64), names)
        ids = self._paths(n, root, prefix)
        self.numbered = ids is None
        self.items = [Item(*pair) for pair in zip(ids or numbers(self._name, n, knows), indexes, strict=True)]
        check_items(self._name, self.classes, self.items)

    def read(self, index: int) -> Image.Image:
        with decoding(self.items[index].id):
            reader = getattr(self._dataset, "reader", None)
            if reader is None:
                return to_rgb(self._dataset[index][0])
            # timm opens pictures of any format, and gives the next one in place of one that does not decode
            with reader[index][0] as file:
                return decode_rgb(file.read())

    def _paths(self, n: int, root: Path | None, prefix: str) -> list[str] | None:
        """Paths below ``root``; None if timm does not tell them."""
        paths = [p for p, _ in getattr(self._dataset, "samples", None) or [] if isinstance(p, str)]
        if len(paths) != n and getattr(self._dataset, "reader", None) is not None:
            try:
                paths = [str(self._dataset.filename(k, absolute=True)) for k in range(n)]
            except (AttributeError, AssertionError, KeyError, NotImplementedError):
                paths = []
        if len(paths) == n and root is not None and all(Path(p).is_relative_to(root) for p in paths):
            return [prefix + Path(p).relative_to(root).as_posix() for p in paths]
        return None


def _check(name: str, root: Path | None) -> None:
    """DataError for a kind of dataset that is not taken, and a root that is not there."""
    prefix, slash, _ = name.partition("/")
    if slash and prefix.lower() not in _PREFIXES:
        raise DataError(
            f"timm's datasets of the kind {prefix + slash!r} are not read",
            got=f"the dataset {name!r}",
            do=f"{' or '.join(f'{known}/NAME' for known in _PREFIXES)}, or a name without a slash for a folder",
        )
    if root is None and prefix.lower() != "hfds":
        raise DataError(
            f"data.root is missing: the dataset {name!r} is read from a folder",
            do="name the folder: --set data.root=FOLDER",
        )
    # Hugging Face's library makes its folder
    if root is not None and not root.is_dir() and (prefix.lower() != "hfds" or ":" in str(root)):
        raise DataError(f"data.root is not a folder on this machine: {root}", got=str(root), do="correct the path")


def _labels(dataset: Any) -> tuple[list[int], list[str] | None]:
    """Labels and class names without decoding an image."""
    reader = getattr(dataset, "reader", None)
    if reader is None:
        labels, names = getattr(dataset, "targets", None), getattr(dataset, "classes", None)
    elif getattr(reader, "samples", None) is not None:
        labels = [sample[1] for sample in reader.samples]
        index = getattr(reader, "class_to_idx", None)
        names = sorted(index, key=index.get) if index else None
    else:  # Hugging Face
        table, key = getattr(reader, "dataset", None), getattr(reader, "label_key", "label")
        labels = None if table is None else table[key]
        names = None if table is None else getattr(table.features[key], "names", None)
    if labels is None:
        raise DataError(
            "the dataset's labels cannot be listed without decoding every image",
            got=type(dataset).__name__,
            do="export it to a folder, npz or HDF5 file",
        )
    return [int(label) for label in labels], None if names is None else [str(name) for name in names]
