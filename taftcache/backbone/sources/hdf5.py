"""Images in an HDF5 file, read one at a time."""

from __future__ import annotations

from pathlib import Path

import h5py

from taftcache.backbone.sources.arrays import ArraySource
from taftcache.errors import DataError


def open_hdf5(file: Path, image_key: str, label_key: str, prefix: str = "") -> ArraySource:
    """Keep ``file`` open for reading; keys may be paths inside it (``train/images``).

    Links to other files, external storage and virtual datasets are refused: such a file could make
    the program read any other one.
    """
    if not file.is_file():
        raise DataError(f"no HDF5 file at {file}", got=str(file), do="correct data.train or data.test")
    try:
        handle = h5py.File(file, "r")
    except OSError as error:
        raise DataError(f"{file} cannot be read as HDF5", got=str(error)) from error
    try:
        found = {key: _dataset(handle, file, key) for key in dict.fromkeys((*handle, image_key, label_key))}
        arrays = {key: dataset for key, dataset in found.items() if dataset is not None}
        return ArraySource("hdf5", file, arrays, image_key, label_key, prefix)
    except BaseException:
        handle.close()
        raise


def _dataset(handle: h5py.File, file: Path, key: str) -> h5py.Dataset | None:
    """The dataset ``key``, or None for a group or nothing."""
    node = handle
    for part in key.strip("/").split("/"):
        if not isinstance(node, h5py.Group) or part not in node:
            return None
        if isinstance(node.get(part, getlink=True), h5py.ExternalLink):
            raise _elsewhere(file, key, "a link to another file")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        return None
    if node.is_virtual or node.external:
        raise _elsewhere(file, key, "stored in another file")
    return node


def _elsewhere(file: Path, key: str, what: str) -> DataError:
    return DataError(f"{key} of {file} is {what}, which must not be read", got=key, do="copy the data into it")
