"""Rows of a store whose images its source does not have now: removed, renamed, or appended from elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from taftcache.cache.format.plan import other_forms
from taftcache.cache.store import FeatureStore
from taftcache.names import counted, first_few, typed


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
                "rows stay until they are forgotten by id (listed as not_in_source: taftcache append RECIPE "
                "--new-classes skip --dry-run --json)"
            )
        return said


def rows_away(store: FeatureStore, given: Collection[str], *, numbered: bool) -> Away:
    """The rows of a store that are not among the ids ``given`` by its source, which may be ``numbered``."""
    files = {i.rpartition("/")[0] for i in given} if numbered else set[str]()
    gone = sorted(store.every_id.difference(given))
    ids, by_number = ([i for i in gone if (i.rpartition("/")[0] in files) is is_number] for is_number in (False, True))
    return Away(ids, by_number)


def renamed_notes(store: FeatureStore, away: Away, given: Mapping[str, str], out: Collection[str]) -> list[str]:
    """Notes on rows that are ``away``, while images that are ``given`` (id -> class), new and not to stay ``out``, have
    the same paths below the folder of another class. If these are most rows of a class, the folder was renamed, and so
    its images; else the images were moved."""
    if not away.ids:
        return []
    held = store.every_id
    gone, fresh = {*away.ids}, given.keys() - held - {*out}
    now = defaultdict[str, list[str]](list)
    for i in fresh - other_forms(fresh, held).keys():  # what is named in another form is refused as such
        now[_without_class(i, given[i])].append(i)
    rows = [
        (i, store.classes[k]) for part in store.every_shard for i, k in zip(part.sample_ids, part.labels, strict=True)
    ]
    every = Counter(name for _, name in rows)
    moves = defaultdict[tuple[str, str], dict[str, str]](dict)
    for i, name in rows:
        for new in now[_without_class(i, name)] if i in gone else ():
            moves[name, given[new]][i] = new
    renamed = {of: some for of, some in sorted(moves.items()) if 2 * len(some) > every[of[0]]}
    lie = [f"of {name} ({len(some)}) lie in {other}" for (name, other), some in renamed.items()]
    moved = {i: new for of, some in moves.items() if of not in renamed for i, new in some.items()}
    notes = lie and [
        f"by their file names, the images {first_few(lie, 20)} now: an image in a renamed folder has another id, and "
        "is taken in again beside its row of the old class; a folder that has its old name again keeps its rows"
    ]
    if moved:  # a few, for other images may have the same names, 0001.png say
        pairs, first = [f"{i} ({new} now)" for i, new in sorted(moved.items())], typed(min(moved))
        notes.append(
            f"by their file names, moved to the folder of another class: {first_few(pairs)}; append takes in a moved "
            "image as a new one, with --relabel, too, and its row keeps the old class; if it is the same image, take "
            f"the row out: forget --sample {first}"
        )
    return notes


def _without_class(sample: str, name: str) -> str:
    """An id without the first folder that has its class's name; without such a folder it is like no other."""
    return f"/{sample}".replace(f"/{name}/", "//", 1)
