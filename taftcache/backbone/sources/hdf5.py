"""Images in an HDF5 file, read one at a time."""

from __future__ import annotations

import math
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
        try:
            node = node[part]
        except (KeyError, OSError, RuntimeError) as error:  # a link that leads nowhere, or to itself
            raise DataError(f"{file}: {key} cannot be read", got=str(error), do="write the file again") from error
    if not isinstance(node, h5py.Dataset):
        return None
    if node.is_virtual or node.external:
        raise _elsewhere(file, key, "stored in another file")
    _check_written(file, key, node)
    return node


def _check_written(file: Path, key: str, node: h5py.Dataset) -> None:
    """DataError where a part was never written: HDF5 reads it as zeros, which would be taken for black pictures."""
    if not node.size:
        return
    whole = "all of it"
    if node.chunks is not None:
        wanted = math.prod(-(-n // c) for n, c in zip(node.shape, node.chunks, strict=True))
        written = node.id.get_num_chunks()
        missing, whole = written != wanted, f"{wanted - written} of {wanted} chunks"
    else:
        missing = node.id.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED
    if missing:
        raise DataError(
            f"{file}: {key} was not written whole, and the rest would be read as zeros",
            got=f"missing: {whole}",
            do="write the file again",
        )


def _elsewhere(file: Path, key: str, what: str) -> DataError:
    return DataError(f"{key} of {file} is {what}, which must not be read", got=key, do="copy the data into it")
