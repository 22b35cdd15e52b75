"""What a component's file says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taftcache.errors import FormatError, local_path
from taftcache.model.component_file import read_header
from taftcache.model.meta import checked
from taftcache.stages.report import Report

UNPROVEN = (
    "this is what the file says of itself, and nothing was checked: import-component holds its numbers against its "
    "norm, and taftcache audit proves the rest where its rows are"
)


@dataclass(frozen=True, kw_only=True)
class ComponentFileReport(Report):
    """What a component's file says of itself; nothing here proves it.

    base_digest: of its base point. tensors: shapes, by the parameter's name. said: its description. notes: that it is
    not checked.
    """

    file: Path
    bytes: int
    base_digest: str
    tensors: dict[str, list[int]]
    said: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def inspect_component(file: Path | str) -> ComponentFileReport:
    """What the file of a component, which ``export_component`` wrote, says of itself; its numbers are not read.

    Raises:
        FormatError: not a component, or what it says of itself cannot be read, as for an import.
    """
    file = local_path(file)
    try:
        header, shapes = read_header(file)
        checked(header.meta)
    except FormatError as error:
        do = "name a store, or a file that taftcache export-component wrote"
        raise FormatError(f"cannot look into {file}: {error.fault}", got=error.got, do=do) from None
    return ComponentFileReport(
        file=file,
        bytes=file.stat().st_size,
        base_digest=header.base_digest,
        tensors=shapes,
        said=header.meta,
        notes=[UNPROVEN],
    )
