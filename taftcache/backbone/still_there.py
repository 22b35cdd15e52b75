"""Which images are still where a recipe names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from taftcache.backbone.files import expand_path
from taftcache.backbone.spec import DataSpec
from taftcache.errors import DataError


class StillThere(NamedTuple):
    """Ids that a source has, and whether they are only numbers of its rows."""

    ids: list[str]
    numbered: bool = False


def still_there(spec: DataSpec, ids: Sequence[str]) -> StillThere:
    """Those of ``ids`` that the data of ``spec`` has now, according to their paths or to its list; opens no image.

    There are none for timm's datasets, which may have to be fetched. Raises DataError for a folder that is not
    there, and otherwise as ``open_source`` does.
    """
    if spec.source == "timm":
        return StillThere([])
    if spec.source == "folder":  # by path alone, whatever else has become of the folder
        roots = folders(spec)
        if not all(root.is_dir() for root in roots.values()):
            raise DataError("a folder of images is not there")  # moved, or on a disk that is not mounted
        below = [i for i in ids if {"", ".."}.isdisjoint(i.split("/"))]
        at = [(i, root / i.removeprefix(p)) for p, root in roots.items() for i in below if i.startswith(p)]
        return StillThere([i for i, path in at if path.is_file()])
    from taftcache.backbone.sources.base import any_numbered
    from taftcache.backbone.sources.opening import open_source

    sources = open_source(msgspec.structs.replace(spec, limit=None), {*ids}.__contains__)
    there = {item.id for source in sources if source is not None for item in source.items}
    return StillThere([i for i in ids if i in there], any_numbered(*sources))


def folders(spec: DataSpec) -> dict[str, Path]:
    """Prefix of ids -> the folder of their images, for a source of folders."""
    assert spec.train is not None
    roots = {"train/": spec.train, "test/": spec.test} if spec.test else {"": spec.train}
    return {prefix: expand_path(root) for prefix, root in roots.items()}
