"""Images in an HDF5 file, read one at a time."""

from __future__ import annotations

from pathlib import Path

import h5py

from taftcache.backbone.sources.arrays import ArraySource, AskedArrays, check_expansion, split_of
from taftcache.errors import DataError, check_file
from taftcache.foreign_hdf5 import CACHE, check_cached, check_own, node_of, read_whole

_FAULTS = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)  # h5py's, for damaged files


def open_hdf5(asked: AskedArrays) -> ArraySource:
    """Keep a file open for reading; keys may be paths inside it (``train/images``).

    Links, external storage and virtual datasets are refused: such a file could make the program read any other one.
    Which split is read, as for ``open_npz``.
    """
    file, id_key = asked.file, asked.id_key
    check_file(file, "correct data.train or data.test", of_folder='set data.source = "folder" if it holds images')
    try:
        handle = h5py.File(file, "r", rdcc_nbytes=CACHE)
    except _FAULTS as error:
        raise DataError(
            f"{file} cannot be read as HDF5", got=str(error), do="write the file again, or name another"
        ) from error
    try:
        named = [asked.image_key, asked.label_key, *([] if id_key is None else [id_key])]
        found = {key: _dataset(handle, file, key) for key in dict.fromkeys((*handle, *named))}
        arrays = {key: dataset for key, dataset in found.items() if dataset is not None}
        names = {*_names(handle)} | arrays.keys()
        read = split_of(asked, names)
        inner = {plain: _dataset(handle, file, name) for plain, name in read.own.items()}
        arrays |= {plain: dataset for plain, dataset in inner.items() if dataset is not None}
        whole = {asked.label_key, id_key, "offset", "label", "classes", "id", "ids"}
        whole.discard(asked.image_key)  # images are read one by one
        needed = sum(int(array.size) * array.dtype.itemsize for key, array in arrays.items() if key in whole)
        check_expansion(file, needed, size := file.stat().st_size)
        texts = {key: array for key, array in arrays.items() if key in whole and array.dtype.hasobject}
        arrays |= {key: read_whole(array, key, size) for key, array in texts.items()}
        if (images := arrays.get(asked.image_key, arrays.get("blob"))) is not None:
            check_cached(images, asked.image_key)
        return ArraySource(asked, arrays, read)
    except BaseException as error:
        handle.close()
        if isinstance(error, _FAULTS):
            raise DataError(
                f"{file} cannot be read as HDF5",
                got=str(error),
                do="write the file again, with plain arrays in it, in small chunks (h5repack -l), packed by gzip, lzf"
                " or not at all",
            ) from error
        raise


def names_in_hdf5(file: Path) -> list[str]:
    """The names of the arrays in a file and in its groups; none if it cannot be read."""
    try:
        with h5py.File(file, "r") as handle:
            return _names(handle)
    except _FAULTS:
        return []


def _names(handle: h5py.File) -> list[str]:
    """Names of arrays, also of those in groups: ``train/images``."""
    groups = {key: node_of(handle, key) for key in handle}
    inner = [f"{key}/{name}" for key, group in groups.items() if isinstance(group, h5py.Group) for name in group]
    return [*(key for key, node in groups.items() if isinstance(node, h5py.Dataset)), *inner]


def _dataset(handle: h5py.File, file: Path, key: str) -> h5py.Dataset | None:
    """The dataset ``key``, or None for a group or nothing."""
    node = node_of(handle, key)
    if not isinstance(node, h5py.Dataset):
        return None
    check_own(node, key, file.stat().st_size)
    return node
