"""What a store's forgetting leaves of a source: samples that stay out, for they or their classes were forgotten, and
folders of classes that were emptied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.folder import SUFFIXES, empty_folders
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import DataError
from taftcache.names import CLASS, counted


class StayOut(NamedTuple):
    """``ids`` of samples that were forgotten. ``closed``: of further samples of a class that was forgotten, which no
    store can take in again, for its classes cannot be added to: id -> class."""

    ids: set[str]
    closed: dict[str, str]

    @property
    def all(self) -> set[str]:
        """Ids of both kinds."""
        return self.ids | self.closed.keys()


def staying_out(
    forgotten: Callable[[str], bool], samples: Iterable[tuple[str, int]], classes: Sequence[str]
) -> StayOut:
    """Those of ``samples`` (id, index into ``classes``) that are ``forgotten``: they themselves, or their classes."""
    out, gone = StayOut(set(), {}), {k for k, name in enumerate(classes) if forgotten(CLASS + name)}
    for i, label in samples:
        if forgotten(i):
            out.ids.add(i)
        elif label in gone:
            out.closed[i] = classes[label]
    return out


def forgotten_items(forgotten: Callable[[str], bool], *sources: Source | None) -> StayOut:
    """`staying_out` of the images of some sources."""
    found = [staying_out(forgotten, source.items, source.classes) for source in sources if source is not None]
    ids, closed = (part for out in found for part in out.ids), (part for out in found for part in out.closed.items())
    return StayOut(set(ids), dict(closed))


def closed_notes(classes: Iterable[str]) -> list[str]:
    """A note on samples of forgotten ``classes`` (one name for each sample) that were left out; none where none was."""
    counts = Counter(classes)
    if not counts:
        return []
    left = counted(counts.total(), "sample")
    named = ", ".join(f"{name} ({n})" for name, n in sorted(counts.items()))
    return [f"{left} of forgotten classes left out: {named}; only another store takes them"]


def check_filled(store: Path, *sources: Source | None) -> None:
    """DataError for an empty folder of a class that the store at this place neither has nor forgot.

    Of one that it knows the images were taken away, as it must be after a request to forget them.
    """
    empty = [folder for source in sources if source is not None for folder in empty_folders(source)]
    if not empty:
        return
    classes, forgotten = set[str](), TombstoneFile(store).holds
    if FeatureStore.exists(store):
        with FeatureStore(store) as there:
            classes = {*there.classes, *(f.name for f in empty if there.is_forgotten(CLASS + f.name))}
    for folder in empty:
        if folder.name not in classes and not forgotten(CLASS + folder.name):
            raise DataError(
                f"the class folder {folder} has no images",
                got=f"no file ending in {', '.join(sorted(SUFFIXES))}",
                do="remove the folder or add images",
            )
