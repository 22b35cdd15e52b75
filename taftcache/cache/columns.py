"""Names under which other tools keep features, labels and ids."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """Where the features lie in a file that is not an export; None takes the first of the usual names that the file
    has.

    Names of datasets (HDF5, as paths), of arrays (npz) or of columns (Parquet, CSV). ``ids`` and ``classes`` may be
    missing. Labels and ids may also be in files of their own (.npy, .csv, .tsv).
    """

    vectors: str | None = None
    labels: str | None = None
    ids: str | None = None
    classes: str | None = None

    def within(self, there: Container[str]) -> NamedColumns:
        """The names to use for a file that has the names ``there``: where it has none of the usual ones, the first."""
        found = {field: getattr(self, field) or _first(usual, there) for field, usual in USUAL.items()}
        return NamedColumns(**found)


@dataclass(frozen=True)
class NamedColumns:
    """``Columns`` of one file."""

    vectors: str
    labels: str
    ids: str
    classes: str


USUAL = {
    "vectors": ("tokens", "vectors", "vector", "features", "embeddings", "x", "feature", "embedding"),
    "labels": ("labels", "label", "y", "class"),
    "ids": ("sample_id", "ids", "id"),
    "classes": ("classes",),
}
NAMES = "class"  # beside labels that are numbers: the name of each row's class, as in an export to Parquet


def _first(usual: tuple[str, ...], there: Container[str]) -> str:
    return next((name for name in usual if name in there), usual[0])
