"""Remove the files that no manifest names."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from taftcache.cache.collect import collect
from taftcache.cache.opening import Place
from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError, StoreWriteError
from taftcache.stages.report import Report


@dataclass(frozen=True, kw_only=True)
class CollectReport(Report):
    """What nothing in the store names.

    removed: bytes of what was removed, or would be, by path. kept: the same for unnamed files that stay.
    """

    store: Path
    root_digest: str
    dry_run: bool
    removed: dict[str, int]
    kept: dict[str, int]


def gc(
    store: Place, *, unfinished: bool = False, foreign: bool = False, hours: float = 24.0, dry_run: bool = False
) -> CollectReport:
    """Remove what no manifest of the store names: leftovers of crashes, interrupted uploads.

    Args:
        unfinished: also unfinished extractions, which the next ``extract`` would resume.
        foreign: also files that are not part of the format.
        hours: in a bucket, files younger than this stay, because they may belong to a commit under way.
        dry_run: only list them.

    Raises:
        ArgumentError: ``hours`` is no number, or less than 0.
    """
    if not (isinstance(hours, Real) and hours >= 0):
        raise ArgumentError("hours must be a number of at least 0", got=repr(hours), do="hours=24.0")
    try:
        opened = FeatureStore(store, mode="r" if dry_run else "a")
    except StoreWriteError as error:
        error.do = f"gc removes files, and so it writes to the store: {error.do}; --dry-run only lists them"
        raise
    with opened as store:
        found = collect(store, unfinished=unfinished, foreign=foreign, older=3600 * hours, dry=dry_run)
        return CollectReport(
            store=store.path, root_digest=store.root_digest, dry_run=dry_run, removed=found.removed, kept=found.kept
        )
