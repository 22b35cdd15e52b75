"""Export features to files for other tools."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from taftcache.cache.hdf5 import export as write_hdf5
from taftcache.cache.opening import Place
from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError, local_path
from taftcache.model.outdated import Keys
from taftcache.names import BASE, default_model
from taftcache.stages.file_texts import HDF5, PARQUET, ZIP
from taftcache.stages.files.sample_files import OnRows, write_npz, write_parquet, write_projector
from taftcache.stages.progress import Progress, noting, or_silent
from taftcache.stages.report import Report
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.writing import reserve, whole

ExportFormat = Literal["hdf5", "parquet", "npz", "embedding-projector"]
_OVERHEAD = 1 << 16  # the least number of bytes that an HDF5 file's own tables take


@dataclass(frozen=True, kw_only=True)
class ExportReport(Report):
    """The file that was made from a store's rows.

    format: the file's, as --format names it. rows: how many it has. notes: if the model whose predictions it has is
    outdated.
    """

    store: Path
    root_digest: str
    file: Path
    format: ExportFormat
    rows: int
    bytes: int
    seconds: float
    notes: list[str] = field(default_factory=list)


def _hdf5(store: FeatureStore, file: Path, on_rows: OnRows) -> int:
    shards = [store.shard(ref.name) for ref in store.manifest.shards]
    rows = sum(s.rows * math.prod(s.tokens_shape) * s.dtype.itemsize for s in shards)
    base = sum(ref.size for ref in store.objects(BASE).values())
    reserve(file, rows + base + _OVERHEAD)
    return write_hdf5(store, file, on_rows)


FORMATS: dict[ExportFormat, Callable[[FeatureStore, Path, OnRows], int]] = {
    "hdf5": _hdf5,
    "npz": write_npz,
    "parquet": write_parquet,
    "embedding-projector": write_projector,
}
"""Format -> function that writes a store's rows to a new file and returns its size in bytes."""

MARKS: dict[ExportFormat, bytes] = {"hdf5": HDF5, "npz": ZIP, "parquet": PARQUET}
"""Format -> what its files begin with."""

ENDINGS: dict[str, ExportFormat] = {".h5": "hdf5", ".hdf5": "hdf5", ".npz": "npz", ".parquet": "parquet"}


def export(
    store: Place,
    file: Path | str,
    *,
    format: ExportFormat | None = None,
    force: bool = False,
    progress: Progress | bool | None = None,
) -> ExportReport:
    """Write a store's rows, labels and ids to one file for other tools; each row is verified as it is read.

    The file is a copy: what is forgotten later stays in it. ``format``: by default according to the file's ending, and
    HDF5 if it has none. ``force``: replace a file of that format that is there, whole or not at all; a folder is not
    replaced.

    Raises:
        ArgumentError: no such format, or an ending that belongs to another format or to none.
        StoreWriteError: the file exists, or cannot be written.
    """
    place = local_path(file)
    ending = ENDINGS.get(place.suffix.lower())
    if format is None and ending is None and place.suffix:
        raise ArgumentError(
            f"cannot tell in which format to export to {place.name}: no format's files end in {place.suffix}",
            got=place.name, do=f"a name ending in {', '.join(ENDINGS)}, or a format (--format): {', '.join(FORMATS)}",
        )  # fmt: skip
    format = ending or "hdf5" if format is None else format
    if format not in FORMATS:
        raise ArgumentError(
            f"cannot export as {format!r}: there is no such format", got=format, do=f"one of {', '.join(FORMATS)}"
        )
    if ending not in (None, format):
        raise ArgumentError(
            f"cannot export as {format} to {place.name}: its ending is that of {ending}",
            got=format, do=f"the format {ending}, or another name",
        )  # fmt: skip
    begin = time.perf_counter()
    folder = format == "embedding-projector"
    with FeatureStore(store) as store, or_silent(progress).task("export", None) as task:
        with whole(place, folder=folder, again=force and MARKS.get(format, False)) as partial:
            size = FORMATS[format](store, partial, noting(task, "rows"))
            store.check_may_leave()
        return ExportReport(
            store=store.path,
            root_digest=store.root_digest,
            file=place,
            format=format,
            rows=sum(ref.rows for ref in store.manifest.shards),
            bytes=size,
            seconds=time.perf_counter() - begin,
            notes=_notes(store, format),
        )


def _notes(store: FeatureStore, format: ExportFormat) -> list[str]:
    """A note if the model whose predictions are exported is outdated."""
    if format == "hdf5" or (model := default_model(store.objects())) is None:
        return []
    return outdated_notes(store, Keys.recorded(store), model)
