"""What is left out of a source: samples that a store has forgotten, or whose classes it has forgotten or does not
have; folders without images; and files that a folder's source does not read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from taftcache.backbone.sources.base import (
    Item,
    Knows,
    Labelled,
    Source,
    any_numbered,
    check_two_classes,
    splits_note,
)
from taftcache.backbone.sources.folder import SUFFIXES, suffix, unread_notes
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import DataSpec
from taftcache.cache.copying import carry_tombstones
from taftcache.cache.format.plan import check_forms
from taftcache.cache.opening import Place
from taftcache.cache.place.address import is_bucket
from taftcache.cache.read.around import REMEMBERED
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.consent import names
from taftcache.errors import DataError, StoreError, TaftcacheError
from taftcache.names import CLASS, counted, first_few, them, typed, with_counts, yours_to_do
from taftcache.recipe import Recipe
from taftcache.stages.extract.classes import NewClasses, classes_of
from taftcache.stages.extract.plan import PlannedShard, forgotten_group


class StayOut(NamedTuple):
    """``ids`` of samples that were forgotten; ``grouped`` others, id -> group, whose group (``data.group``) was; and
    further samples, id -> class: the class of ``closed`` ones was forgotten, that of ``strange`` ones is not in the
    store, which takes it in only if asked to, and not if it is ``alone``: a class of test samples that no training
    sample has."""

    ids: set[str]
    grouped: dict[str, str]
    closed: dict[str, str]
    strange: dict[str, str]
    alone: Collection[str] = ()

    @property
    def gone(self) -> set[str]:
        """Ids of what was forgotten, in one of these ways."""
        return self.ids | self.grouped.keys() | self.closed.keys()

    @property
    def all(self) -> set[str]:
        """Ids of all kinds."""
        return self.gone | self.strange.keys()


def staying_out(
    forgotten: Callable[[str], bool],
    data: DataSpec,
    *sources: Labelled | None,
    known: Collection[str] | None = None,
) -> StayOut:
    """The samples of some sources, the training samples first, that are ``forgotten`` themselves, whose groups by
    ``data`` or whose classes are, or whose classes are not among the ``known`` ones; ``known`` is None for a new store,
    which takes any."""
    out, group_of = StayOut(set(), {}, {}, {}), forgotten_group(data, forgotten)
    for source in sources:
        if source is None:
            continue
        gone = {name for name in source.classes if forgotten(CLASS + name)}
        strange = set[str]() if known is None else {*source.classes} - {*known}
        for i, label in source.items:
            name = source.classes[label]
            if forgotten(i):
                out.ids.add(i)
            elif (group := group_of(i)) is not None:
                out.grouped[i] = group
            elif name in gone:
                out.closed[i] = name
            elif name in strange:
                out.strange[i] = name
    trained = {c for s in sources[:1] if s is not None for c in {*s.classes}.difference(s.info.empty)}
    return out._replace(alone={*out.strange.values()} - trained)


def remembered(path: Path, forgotten_of: Place | None, *sources: Labelled | None) -> tuple[TombstoneFile, list[str]]:
    """What a new store at ``path`` is to keep out: what the place remembers and what ``forgotten_of`` has forgotten.
    The place remembers the latter, too, once the result is saved. A note if there is nothing to take over.

    Raises:
        StoreError: ``sources`` are given, and share no id with that store; or as for `carry_tombstones`.
    """
    if forgotten_of is None:
        return TombstoneFile(path), []
    with FeatureStore(forgotten_of) as other:
        own = {item.id for source in sources if source is not None for item in source.items}
        theirs = other.every_id if own else set[str]()
        if theirs and own.isdisjoint(theirs) and in_nfc(own).isdisjoint(in_nfc(theirs)):
            raise StoreError(
                f"none of the ids of {other.path} is in this data: what was forgotten there would come back unnoticed",
                got=f"{min(own)!r} here, {min(theirs)!r} there",
                do="name the data as was done for that store, with a test part or without, with ids or without, or "
                "leave --forgotten-of out",
            )
        carried = carry_tombstones(other, path)
        return carried, [] if carried.key else [f"{other.path} remembers no request: nothing is kept out for it"]


def in_nfc(ids: Iterable[str]) -> set[str]:
    """Ids in one Unicode form."""
    return {normalize("NFC", i) for i in ids}


def without_forgotten(
    beside: TombstoneFile,
    there: FeatureStore | None,
    data: DataSpec,
    shards: Mapping[str, PlannedShard],
    source: Labelled,
    test: Labelled | None,
) -> tuple[dict[str, PlannedShard], list[str], list[str]]:
    """Shards and classes without what the store that is ``there``, or the place of a new one, has forgotten, groups by
    ``data`` included, and notes that say how much.

    DataError if two ids or classes of those that stay, or one of them and one of the store's, differ only in their
    Unicode form.
    """
    forgotten = beside.holds if there is None else there.is_forgotten
    out = staying_out(forgotten, data, source, test)
    gone = out.all
    kept = {name: replace(s, ids=[i for i in s.ids if i not in gone]) for name, s in shards.items()}
    classes = [c for c in source.classes if not forgotten(CLASS + c)]
    known = () if there is None else chain(there.every_id, (s.id for s in there.manifest.skipped))
    check_forms((i for shard in kept.values() for i in shard.ids), known)
    check_forms(classes, () if there is None else there.classes, "classes")
    notes = [f"{counted(len(out.ids), 'sample')} left out, forgotten before{_as_written(out.ids)}"] if out.ids else []
    notes += [*left_out_notes(out.grouped.values(), OF_GROUPS), *left_out_notes(out.closed.values())]
    return {n: s for n, s in kept.items() if s.ids}, classes, notes


def in_source_note(recipe: Recipe, ids: Collection[str], *, numbered: bool) -> list[str]:
    """A note on forgotten samples that the recipe's source still has; none for data that comes with a library. ``ids``
    may be numbers of rows."""
    if not (ids and names(recipe, "images")):
        return []
    left = counted(len(ids), "row" if numbered else "image")
    deleting = yours_to_do(len(ids), numbered=numbered)
    return [f"{left} still in the source, forgotten here{_as_written(ids)}: {first_few(sorted(ids))}; {deleting}"]


def _as_written(ids: Iterable[str]) -> str:
    """Says of forgotten ``ids`` that they may have been forgotten in other forms, if some have any."""
    return "" if all(map(str.isascii, ids)) else " in this Unicode form or another"


def forgotten_beside(path: Place, data: DataSpec, *sources: Labelled | None) -> list[str]:
    """Notes for a new store at ``path``: that the place remembers an earlier one; and on samples of these sources that
    another store in its folder has forgotten, but that it takes in, because they were not forgotten there."""
    if is_bucket(path):
        return []
    own, notes = Path(os.path.realpath(path)), list[str]()
    if own.with_name(own.name + REMEMBERED).exists():
        notes.append(
            f"{path} is made anew, though {own.name + REMEMBERED} is left of an earlier store there; if that was "
            "moved, name its place in store.path"
        )
    files = sorted(own.parent.glob("*" + REMEMBERED))
    others = [store for store in (f.with_name(f.name.removesuffix(REMEMBERED)) for f in files) if store != own]
    out = staying_out(TombstoneFile(own).holds, data, *sources).all if others else frozenset[str]()
    for store in others:
        with suppress(TaftcacheError):  # a damaged file is reported by commands on the store that it belongs to
            if count := len(staying_out(TombstoneFile(store).holds, data, *sources).all - out):
                there = Path(path).with_name(store.name)
                notes.append(
                    f"forgotten in {there}, and taken in here: {counted(count, 'sample')}; "
                    f"--forgotten-of {typed(there)} keeps them out of a new store"
                )
    return notes


NOTHING_TO_LEARN = "so there is nothing to learn; logits of another store takes its shards"
NOT_THERE = "classes that the store does not have"
OF_GROUPS = "forgotten groups (data.group)"


def left_out_notes(
    classes: Iterable[str], kind: str = "forgotten classes", how: str = "only another store takes them"
) -> list[str]:
    """A note on samples of ``classes``, or of groups (one name for each sample), that were left out, and how to take
    them in; none if there are none."""
    counts = Counter(classes)
    if not counts:
        return []
    left = counted(counts.total(), "sample")
    return [f"{left} left out, of {kind}: {with_counts(counts)}; {how}"]


def taking(count: int, alone: Collection[str]) -> str:
    """How ``count`` samples of classes that the store does not have are taken in; ``alone`` as in `StayOut`."""
    once = f" once there are training images of {first_few(sorted(alone))}" if alone else ""
    return f"--new-classes take takes {them(count)} in{once}"


def open_images(
    data: DataSpec, store: Path | None, new_classes: NewClasses | None = None, *, forgotten_of: Place | None = None
) -> tuple[Source, Source | None, list[str]]:
    """The sources of ``data``, for ``store``, and notes on what lies there and is left out.

    A folder without images is no class, unless the store at this place has the class or forgot it: then its images
    were taken away, as they must be after a request to forget them. The same holds for a class that has rows in no
    split that is used. ``new_classes`` as for ``append``, None for others; ``forgotten_of`` as for ``extract``.

    Raises:
        DataError: training images of fewer than two classes, unless they are appended or nothing is held out; a class
            that only test images have, and the store at this place neither has nor forgot, unless such images are
            skipped; or as for ``open_source``.
    """
    with _known_ids(store, forgotten_of) as knows:
        source, test = open_source(data, knows)
    sources = [part for part in (source, test) if part is not None]
    numbered = [] if store and FeatureStore.exists(store) else numbered_note(data, *sources)
    notes = [*aside_notes(sources), *_split_notes(data, source), *numbered]
    folders = {name for part in sources for name in part.info.empty}
    empty = [{*part.info.empty, *part.info.unused} for part in sources]
    if unknown := set[str]().union(*empty):
        unknown -= _known_classes(store, unknown)
        for part, names in zip(sources, empty, strict=True):
            _leave_out(part, names & unknown)
    if new_classes is None and (test is not None or data.held_out > 0):
        check_two_classes(str(data.train), source.classes)
    elif new_classes is None and len(source.classes) == 1:
        notes.append(f"a pool without labels: all images are of the class {source.classes[0]!r}, {NOTHING_TO_LEARN}")
    if test is not None and new_classes != "skip":
        _check_learnable(source, test, store, append=new_classes is not None)
    if not unknown:
        return source, test, notes
    if unknown := (unknown & folders).difference(*(part.classes for part in sources)):
        left = counted(len(unknown), "folder")
        notes.append(
            f"{left} left out, without an image that is taken in and so no class: {first_few(sorted(unknown))}"
        )
    return source, test, notes


@contextmanager
def _known_ids(store: Path | None, forgotten_of: Place | None) -> Iterator[Knows]:
    """Whether an id is one of the stores at these places, or was forgotten there; the stores are opened once it is
    asked. None if there is no store, and the place of ``store`` remembers nothing: millions of ids would be asked."""
    there = [place for place in (store, forgotten_of) if place is not None and FeatureStore.exists(place)]
    beside = [file for file in map(TombstoneFile, [store] if store else []) if file.key]
    with ExitStack() as stack:

        @cache
        def opened() -> list[Callable[[str], bool]]:
            stores = (stack.enter_context(FeatureStore(place)) for place in there)
            return [*(file.holds for file in beside), *(one.knows for one in stores)]

        yield (lambda sample: any(knows(sample) for knows in opened())) if there or beside else None


def _check_learnable(source: Source, test: Source, store: Path | None, *, append: bool) -> None:
    """DataError if only test images have a class that the store at this place neither has nor forgot. Classes that only
    training images have are no error, for nothing needs to be held out of each class; nor are those that a source of
    training images declares, and has no image of."""
    only_train, only_test = (
        sorted({*classes_of(a).values()}.difference(b.classes)) for a, b in ((source, test), (test, source))
    )
    if only_test and (unknown := {*only_test} - _known_classes(store, {*only_test})):
        check_forms([*sorted(unknown), *only_train], kind="classes")
        raise DataError(
            f"test images of {counted(len(unknown), 'class')} that no training image has",
            got=f"only in training: {first_few(only_train) or 'none'}; only in test: {first_few(sorted(unknown))}",
            do="give both the same names, add training images of these classes, or leave their test images out"
            + (': --new-classes skip, in Python new_classes="skip"' if append else ""),
        )


def _known_classes(store: Path | None, names: set[str]) -> set[str]:
    """The classes among ``names`` that the store at this place has, or that were forgotten there."""
    if store is None:
        return set()
    known, beside = set[str](), TombstoneFile(store).holds
    if FeatureStore.exists(store):
        with FeatureStore(store) as there:
            known = {name for name in names if name in there.classes or there.is_forgotten(CLASS + name)}
    return known | {name for name in names if beside(CLASS + name)}


def _leave_out(source: Source, names: set[str]) -> None:
    """Remove classes without an image from a source."""
    kept = [name for name in source.classes if name not in names]
    place = {name: k for k, name in enumerate(kept)}
    source.items = [Item(item.id, place[source.classes[item.label]]) for item in source.items]
    source.classes = kept


def misnamed_notes(*sources: Source | None) -> list[str]:
    """A note on images in folders whose file names no store takes; none if there are none."""
    aside = [path for source in sources if source is not None for path in source.info.aside]
    if not (misnamed := [ascii(path) for path in aside if suffix(path) in SUFFIXES and not path.isprintable()]):
        return []
    left = counted(len(misnamed), "image")
    return [
        f"{left} left out, of names that are not printable text: {first_few(misnamed)}; rename {them(len(misnamed))}"
    ]


BY_NUMBER = (
    "what was forgotten is kept out by numbers of rows: if rows have moved since, it is taken in, and others stay out"
)


def numbered_note(data: DataSpec, *sources: Source | None) -> list[str]:
    """A note if ids are numbers of rows, and how to have better ones."""
    if not any_numbered(*sources):
        return []
    better = {
        "table": "name a column of ids (--set data.id_key=COLUMN)",
        "timm": "write the images into a folder, whose paths are ids",
    }.get(data.source, "write an array of them, named id, into the file")
    return [
        "ids are numbers of rows, and name other images once a row is removed or moved, as after a request to forget; "
        f"if the images have ids, {better}"
    ]


def _split_notes(data: DataSpec, source: Source) -> list[str]:
    """What each split of a table or file of arrays is used for, unless that is plain: one is trained on, and one called
    test held out."""
    files, rows, both = {*source.info.splits}, source.info.rows_by_split, data.test == data.train
    if len(files or rows) < 2:
        return []
    if not files and not both:
        return [
            f"the column split of {data.train} is not used: {with_counts(rows)}; to test on one of these, set "
            "data.test to the same table, and data.train_split and data.test_split"
        ]
    trained = "" if "" in files else data.train_split  # arrays of no split
    left = sorted({*(files or rows)} - {trained, data.test_split if both else ""})
    named = left if files else [f"{name} ({rows[name]})" for name in left]
    return splits_note(trained, data.test_split if both else None, named)


def aside_notes(sources: Sequence[Source]) -> list[str]:
    """Notes on images in folders that are left out; none if there are none."""
    aside = [path for source in sources for path in source.info.aside]
    loose = [path for path in aside if suffix(path) in SUFFIXES and path.isprintable()]
    notes = [*unread_notes(aside), *misnamed_notes(*sources)]
    if loose:
        notes.append(f"{counted(len(loose), 'image')} left out, beside the class folders: {first_few(loose)}")
    return notes
