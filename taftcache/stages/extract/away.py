"""Rows of a store whose images its source does not have now: removed, renamed, or appended from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from taftcache.cache.store import FeatureStore
from taftcache.names import counted, with_counts


class Away(NamedTuple):
    """Ids of rows that are not in the source, sorted: ``ids`` of images, and those ``by_number`` of a file that is
    there, which do not say which images are gone."""

    ids: list[str]
    by_number: list[str]

    @property
    def notes(self) -> list[str]:
        """A note on each kind that there is."""
        said = []
        if self.by_number:
            said.append(
                f"not in the source now: {counted(len(self.by_number), 'row')} of the store; ids are numbers of rows "
                "there, so which images are gone cannot be said"
            )
        if self.ids:
            said.append(
                "in the store, but not in the source that the recipe names: "
                f"{counted(len(self.ids), 'row')} (first: {self.ids[0]}), appended from elsewhere or gone since; such "
                "rows stay until they are forgotten by id (taftcache append RECIPE --dry-run --json: not_in_source)"
            )
        return said


def rows_away(store: FeatureStore, given: Collection[str], *, numbered: bool) -> Away:
    """The rows of a store that are not among the ids ``given`` by its source, which may be ``numbered``."""
    files = {i.rpartition("/")[0] for i in given} if numbered else set[str]()
    gone = sorted(store.every_id.difference(given))
    ids, by_number = ([i for i in gone if (i.rpartition("/")[0] in files) is is_number] for is_number in (False, True))
    return Away(ids, by_number)


def renamed_notes(store: FeatureStore, away: Away, present: Collection[str], strange: Mapping[str, int]) -> list[str]:
    """A note if the source, which has the classes ``present``, has no image left of a class of rows that are ``away``,
    but images of ``strange`` classes, which have their number: a folder may have been renamed, and so its images."""
    gone = {*away.ids} if strange else set[str]()
    parts = store.every_shard if gone else []
    there = ((i, store.classes[k]) for part in parts for i, k in zip(part.sample_ids, part.labels, strict=True))
    if not (old := Counter(name for i, name in there if i in gone and name not in present)):
        return []
    return [
        f"the source has no image any more of {with_counts(old)}, and new ones of {with_counts(strange)}: an image in "
        "a renamed folder has another id, and is taken in again beside its row of the old class; a folder that has its "
        "old name again keeps its rows"
    ]
