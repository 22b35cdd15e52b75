"""Images in an HDF5 file, read one at a time."""

from __future__ import annotations

import math
from pathlib import Path

import h5py

from taftcache.backbone.sources.arrays import ArraySource, check_expansion
from taftcache.errors import DataError

# deflate, shuffle, fletcher32, szip, and h5py's lzf: any other filter is a plug-in that HDF5 would load and run
_FILTERS = {1, 2, 3, 4, 32000}
_MAX_CHUNK = 1 << 30
_FAULTS = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)  # h5py's for what is damaged


def open_hdf5(file: Path, image_key: str, label_key: str, prefix: str = "") -> ArraySource:
    """Keep ``file`` open for reading; keys may be paths inside it (``train/images``).

    Links to other files, external storage and virtual datasets are refused: such a file could make
    the program read any other one.
    """
    if not file.is_file():
        raise DataError(f"no HDF5 file at {file}", got=str(file), do="correct data.train or data.test")
    try:
        handle = h5py.File(file, "r")
    except _FAULTS as error:
        raise DataError(
            f"{file} cannot be read as HDF5", got=str(error), do="write the file again, or name another"
        ) from error
    try:
        found = {key: _dataset(handle, file, key) for key in dict.fromkeys((*handle, image_key, label_key))}
        arrays = {key: dataset for key, dataset in found.items() if dataset is not None}
        one_by_one = {image_key, "blob"}
        needed = sum(int(array.size) * array.dtype.itemsize for key, array in arrays.items() if key not in one_by_one)
        check_expansion(file, needed, file.stat().st_size)
        return ArraySource(file, arrays, image_key, label_key, prefix)
    except BaseException as error:
        handle.close()
        if isinstance(error, _FAULTS):
            raise DataError(f"{file} cannot be read as HDF5", got=str(error), do="write the file again") from error
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
    _check_storage(file, key, node)
    _check_written(file, key, node)
    return node


def _check_storage(file: Path, key: str, node: h5py.Dataset) -> None:
    """DataError for filters that HDF5 would load as a plug-in, and chunks that take more memory than they should."""
    made = node.id.get_create_plist()
    if odd := {made.get_filter(k)[0] for k in range(made.get_nfilters())} - _FILTERS:
        raise DataError(
            f"{file}: {key} needs the filter {min(odd)}, which would be loaded as a plug-in",
            do="write it with gzip, lzf, or no compression",
        )
    if node.chunks is None and int(node.nbytes) > file.stat().st_size:
        raise DataError(
            f"{file}: {key} has {node.nbytes} bytes, more than the file", do="write the file again: it is cut off"
        )
    if node.chunks is not None and math.prod(node.chunks) * node.dtype.itemsize > _MAX_CHUNK:
        raise DataError(
            f"{file}: {key} has chunks of more than {_MAX_CHUNK} bytes", got=node.chunks, do="write smaller chunks"
        )


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
