"""Datasets of HDF5 files that others wrote: reached without a link, and whole in the file itself.

Whatever could make a reader read something else is a ValueError here; the callers name the file in their own error.
"""

from __future__ import annotations

import math
from typing import Any

import h5py

_LARGEST_CHUNK = 1 << 30  # bytes
# deflate, shuffle, fletcher32, szip, and h5py's lzf: any other filter is a plug-in that HDF5 would load and run
_FILTERS = {1, 2, 3, 4, 32000}


def node_of(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset | None:
    """The group or dataset ``name``, None if there is none; ValueError for a link, which may lead to other files."""
    node: Any = file
    for part in name.strip("/").split("/"):
        # Not ``part in node``, which follows a link to see whether it leads anywhere.
        if not isinstance(node, h5py.Group) or not node.id.links.exists(part.encode()):
            return None
        if node.id.links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{name} is reached by a link, which may lead to another file")
        node = node[part]
    return node


def check_own(node: h5py.Dataset, name: str, size: int) -> None:
    """ValueError unless a file of ``size`` bytes has all of a dataset, in chunks that can be read as they are."""
    if node.is_virtual or node.external:
        raise ValueError(f"{name} is stored in another file")
    made = node.id.get_create_plist()
    if odd := {made.get_filter(k)[0] for k in range(made.get_nfilters())} - _FILTERS:
        raise ValueError(f"{name} needs the filter {min(odd)}, which would be loaded as a plug-in")
    if node.chunks is None:
        if int(node.nbytes) > size:
            raise ValueError(f"{name} has {node.nbytes} bytes, more than its file of {size}")
        if node.size and node.id.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED:
            raise ValueError(f"{name} was never written, and reads as zeros")
        return
    if (chunk := math.prod(node.chunks) * node.id.get_type().get_size()) > _LARGEST_CHUNK:
        raise ValueError(f"{name} has chunks of {chunk} bytes, more than are read at once")
    wanted = math.prod(-(-n // c) for n, c in zip(node.shape, node.chunks, strict=True))
    if (there := node.id.get_num_chunks()) != wanted:
        raise ValueError(f"{name} has only {there} of its {wanted} chunks; the rest reads as zeros")
