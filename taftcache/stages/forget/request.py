"""Find the rows and components that a request to forget names; if it names anything unknown, nothing is changed."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args
from unicodedata import normalize

import numpy as np

from taftcache.backbone.spec import DataSpec
from taftcache.backbone.still_there import folders
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import DataError, RecipeError, TaftcacheError, UnknownName, UnknownSample
from taftcache.model.members import imported, numbers_of, twins
from taftcache.names import (
    CLASS,
    COMPONENT,
    GROUP,
    HELD_OUT,
    NUMBERS,
    SHARD,
    component_of,
    counted,
    first_few,
    shard_of,
    told_apart,
    typed,
)
from taftcache.stages.extract.plan import groups_of
from taftcache.stages.look.duplicates import copies_of
from taftcache.stages.look.row_table import every_sample, folder_of, no_class
from taftcache.stages.progress import Progress

Mode = Literal["subtract", "retrain", "resolve"]
MODES: tuple[Mode, ...] = get_args(Mode)
PARTED = 3  # up to so many groups of which some samples stay are named with them


@dataclass(frozen=True, kw_only=True)
class PartedGroup:
    """A group of ``data.group`` of which samples leave or were named, and others stay.

    group: the text that its ids share. stays: the others, with a row or without. of: how many samples the store had of
    it before the request.
    """

    group: str
    stays: list[str]
    of: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """Rows and imported ``components`` that leave: ``samples`` now, ``already`` before.

    ``staged`` are those of ``samples`` that only a stopped extraction has: the next one leaves them out. ``leaving``
    has the number of rows by shard, ``emptied`` the shards that are left with none and go as a whole, ``classes`` those
    without a row left anywhere, which go from the list of classes; ``asked`` the shards, classes and components that
    were named as such and the groups that were to leave whole, in the form that tombstones have them, and the numbers
    of these components. ``listed`` is how
    many skipped samples stay because nothing says whether they belong to a class that was named. ``copies`` are the ids
    of rows that stay and hold the very bytes of rows that leave, ``copies_taken`` those that were not named, but leave,
    too. ``unsearched`` shards are damaged, so that copies in them were not looked for. ``matched`` has the ids that
    each pattern named. ``twins`` are imported components that stay and have the numbers of one that leaves.
    ``unlearned`` are classes of which every training row leaves, with the number of held-out rows
    that keep them in the list of classes. ``groups`` are those, of samples that leave or were named, that stay in part;
    ``group_taken`` are the ids that were not named, but leave with their group.
    """

    samples: list[str]
    staged: list[str]
    already: list[str]
    leaving: dict[str, int]
    emptied: list[str]
    classes: list[str]
    asked: list[str]
    listed: int = 0
    copies: list[str] = field(default_factory=list)
    copies_taken: list[str] = field(default_factory=list)
    unsearched: list[str] = field(default_factory=list)
    matched: dict[str, list[str]] = field(default_factory=dict)
    components: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)
    unlearned: dict[str, int] = field(default_factory=dict)
    groups: list[PartedGroup] = field(default_factory=list)
    group_taken: list[str] = field(default_factory=list)

    @property
    def trained(self) -> list[str]:
        """Shards that lose rows, without the held-out one."""
        return [name for name in self.leaving if name != HELD_OUT]


MAX_FILE = 256 << 20  # bytes of a file of ids
_LISTED = "write one id a line, as taftcache inspect STORE --ids lists them"


def read_ids(file: Path) -> list[str]:
    """The ids in a text file, or on standard input if it is "-": one per line, as it stands; empty lines are skipped.
    A file without ids is no error: a queue may be empty.

    Raises:
        RecipeError: no such file, standard input is closed, not UTF-8, or larger than ``MAX_FILE``.
    """
    if str(file) == "-" and (sys.stdin is None or sys.stdin.closed):  # None: it was closed when Python began
        raise RecipeError("cannot read the ids: standard input is closed", got=file, do="name a file, or pipe the ids")
    try:
        # A pipe may give ids, too, but not endlessly.
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as stream:
            raw = stream.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            raise RecipeError(
                f"{file} has more than {MAX_FILE >> 20} MiB of ids", got=str(file), do="give them in several requests"
            )
        lines = raw.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise RecipeError(
            f"cannot read the ids in {file}: {(error.strerror or str(error)).lower()}",
            got=file,
            do="name a file with one id per line, or - for standard input",
        ) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file} is not UTF-8 text", got=error, do=_LISTED) from None
    # Nothing else is stripped: an id may begin or end with a blank, and without it may be another sample's, or be one.
    return [i for line in lines if (i := line.removesuffix("\r"))]


def ids_of_files(store: FeatureStore, samples: Sequence[str]) -> list[str]:
    """Replace names that are files of the folder that the store was made from by those samples' ids; others stay."""
    unknown = [i for i in samples if not (store.holds(i) or store.is_forgotten(i))]
    roots: dict[str, Path] = {}
    if unknown:
        with suppress(TaftcacheError):  # a store that no stage made may record anything
            data = recorded_recipe(store).data
            if data.source == "folder":
                roots = {prefix: Path(os.path.abspath(root)) for prefix, root in folders(data).items()}
    meant = {}
    for sample in unknown:
        path = Path(os.path.abspath(sample))
        below = (prefix + path.relative_to(root).as_posix() for prefix, root in roots.items() if root in path.parents)
        meant[sample] = next(below, sample)
    if any(sample != one for sample, one in meant.items()):  # the id of a skipped or staged sample names no file
        for sample in {s.id for s in store.manifest.skipped}.union(*store.staged_ids().values()):
            meant.pop(sample, None)
    return [meant.get(sample, sample) for sample in samples]


def resolve_request(
    store: FeatureStore, samples: Sequence[str] = (), shards: Sequence[str] = (), classes: Sequence[str] = ()
) -> Request:
    """Look up all that a request names.

    Raises:
        UnknownSample, UnknownName: an id, shard or class that is neither there nor was forgotten; of ids, all that are
        unknown are named. DataError: no training row would be left, or a sample or class in another Unicode form of one
        that leaves.
    """
    unfinished = store.staged_rows()
    wanted, asked, already = _named(store, unfinished, shards, classes)
    wanted = list(dict.fromkeys([*ids_of_files(store, samples), *wanted]))
    skipped = {s.id for s in store.manifest.skipped}
    here = [i for i in wanted if store.holds(i) or i in skipped]
    elsewhere = {i for rows in unfinished.values() for i in rows}.difference(here)
    staged = [i for i in wanted if i in elsewhere]
    known = {*here, *staged}
    gone = [i for i in wanted if i not in known]
    if unknown := [i for i in gone if not store.is_forgotten(i)]:
        if all(map(str.isspace, unknown)):
            raise UnknownSample(
                "no row has an id of blanks alone; nothing is changed",
                got=", ".join(map(repr, unknown)),
                ids=unknown,
                do="leave it out: in a file, a line without anything is skipped, but blanks may be an id",
            )
        several = len(unknown) > 1
        which = f"any of {counted(len(unknown), 'id')} that are named" if several else f"the id {unknown[0]!r}"
        if cut := _cut_of_csv(store, unknown):
            raise UnknownSample(
                f"no row has {which}: this is CSV with further columns; nothing is changed",
                got=", ".join(map(repr, unknown)),
                ids=unknown,
                do=f"a file has one id a line, and nothing else: {cut} > ids.txt, then --file ids.txt",
            )
        near = None
        try:
            store.locate(unknown[-1])  # says which ids are near; the first may be the heading of a table
        except UnknownSample as last:
            if len(wanted) == 1:
                raise
            near = last.do
        raise UnknownSample(
            f"no row has {which}; nothing is changed",
            got=", ".join(map(repr, unknown)),
            ids=unknown,
            do=f"taftcache receipts {typed(store.path)} --file FILE says what is known about each; a file has one "
            f"id or path a line, and nothing else; {'for the last of these, ' if several else ''}{near}",
        )
    _check_forms({*wanted}, {*store.every_id, *skipped, *elsewhere}, "id")
    bare, unlearned = _leaving(store, {*here}, asked)
    _check_forms(bare, store.classes, "class")
    leaving = Counter(store.locate(i)[0].name for i in here if store.holds(i))
    emptied = [name for name, n in leaving.items() if n == store.shard(name).rows]
    if store.shards and all(shard.name in emptied for shard in store.shards):
        raise DataError(
            f"{store.path} would be left without a training row",
            got=f"all {sum(s.rows for s in store.shards)} would leave",
            do="delete the store's folder instead",
        )
    return Request(
        samples=[*here, *staged],
        staged=staged,
        already=[*gone, *already],
        leaving=dict(sorted(leaving.items())),
        emptied=sorted(emptied),
        classes=bare,
        asked=asked,
        listed=sum(folder_of(store, i) is None for i in skipped.difference(here)) if classes else 0,
        unlearned=unlearned,
    )


def _cut_of_csv(store: FeatureStore, lines: Sequence[str]) -> str:
    """The command that cuts the ids out of a file of these lines, if most are CSV with further columns beside an id
    that the store knows, in a column headed ``id`` or else the first; otherwise nothing."""
    rows = [line.split(",") for line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    heading = [cell.lower() for cell in rows[0]]
    column = heading.index("id") if "id" in heading else 0
    known = [len(row) == width > max(1, column) and store.knows(row[column]) for row in rows]
    if 2 * sum(known) < len(rows) or not any(known):
        return ""
    # without such a heading the first line may be a request, of a row that is not known
    return f"cut -d, -f{column + 1} FILE" + (" | tail -n +2" if "id" in heading and not known[0] else "")


def _check_forms(named: Collection[str], every: Collection[str], kind: str) -> None:
    """DataError if ``every``, a store's ids or classes, has other Unicode forms of those ``named``: each of them counts
    as forgotten once one is. The NFC form may be ASCII: that of the kelvin sign is K."""
    forms = {normalize("NFC", i): i for i in named}
    if left := sorted(i for i in every if i not in named and normalize("NFC", i) in forms):
        raise DataError(
            f"{counted(len(left), kind)} would stay that {'is' if len(left) == 1 else 'are'} named here in another "
            "Unicode form; nothing is changed",
            got=f"{left[0]!a} for {forms[normalize('NFC', left[0])]!a}",
            do=f"name both forms, which count as one {kind} once either is forgotten",
        )


def requested(
    store: FeatureStore,
    samples: Sequence[str],
    shards: Sequence[str],
    classes: Sequence[str],
    matching: Sequence[str],
    components: Sequence[str],
    with_copies: bool,
    with_group: bool,
    progress: Progress,
) -> Request:
    """What `resolve_request` finds for the names, the ids that match patterns and the components, the copies of those
    rows and components that stay, and the groups that do in part; if ``with_copies`` or ``with_group``, they leave,
    too, and so do the groups of such copies and the copies of such groups.

    RecipeError: ``with_group`` in a store without ``data.group``.
    """
    leaving, already = _imported(store, components)
    same = twins(store, leaving) if leaving else []
    if with_copies:
        leaving, same = [*leaving, *same], []
    matched = _matched(store, matching)
    samples = [*samples, *(i for ids in matched.values() for i in ids)]
    request = _spreading(store, samples, shards, classes, with_copies, with_group, progress)
    leaving_now = {*request.samples}
    named = [*ids_of_files(store, samples), *leaving_now]
    return replace(
        request,
        matched=matched,
        groups=_parted(store, named, leaving_now),
        components=leaving,
        twins=same,
        asked=[
            *request.asked,
            *(COMPONENT + shard_of(name) for name in leaving),
            *(NUMBERS + own for own in numbers_of(store, leaving).values()),  # their file may come again
        ],
        already=[*request.already, *already],
    )


def _spreading(
    store: FeatureStore,
    samples: Sequence[str],
    shards: Sequence[str],
    classes: Sequence[str],
    with_copies: bool,
    with_group: bool,
    progress: Progress,
) -> Request:
    """What `resolve_request` finds, with the rest of its groups and the copies of its rows, and again those of what
    came so, until nothing is added; of copies that stay, their ids alone.

    RecipeError: as for `requested`.
    """
    named, grouped, taken = ids_of_files(store, samples), list[str](), list[str]()
    copies, unsearched = list[str](), list[str]()
    request = resolve_request(store, samples, shards, classes)
    data = _check_grouped(store) if with_group else None
    while True:
        leaving = {*request.samples}
        every = members_of_groups(store, [*named, *leaving]).values() if with_group else ()
        if more := [i for members in every for i in members if i not in leaving]:
            grouped += more
            request = resolve_request(store, [*samples, *taken, *grouped], shards, classes)
        elif taken:  # and the copies of copies are copies of the first
            copies = []
            break
        copies, unsearched = copies_of(store, request.samples, progress)
        if not (with_copies and copies):
            break
        taken += copies
        request = resolve_request(store, [*samples, *taken, *grouped], shards, classes)
    whole = set[str]() if data is None else {GROUP + name for name in groups_of(data, [*named, *request.samples])}
    return replace(
        request,
        asked=[*request.asked, *sorted(name for name in whole if not store.is_forgotten(name))],
        copies=copies,
        copies_taken=taken,
        unsearched=unsearched,
        group_taken=grouped,
    )


def members_of_groups(store: FeatureStore, named: Iterable[str]) -> dict[str, list[str]]:
    """The groups of ``named`` samples, which may have been forgotten before, with all samples that the store has of
    each; none without ``data.group``.

    The expression is searched as training does it: not where a stranger's store is only looked at.
    """
    groups = defaultdict[str, list[str]](list)
    with suppress(TaftcacheError):  # a store that no stage made may record anything
        data = recorded_recipe(store).data
        if data.group is not None and (wanted := {data.group_of(i) for i in named}):
            for one in every_sample(store):
                if (group := data.group_of(one.sample)) in wanted:
                    groups[group].append(one.sample)
    return dict(sorted(groups.items()))


def _parted(store: FeatureStore, named: Collection[str], leaving: Collection[str]) -> list[PartedGroup]:
    """The groups of ``named`` samples of which some stay when others are ``leaving``."""
    groups = members_of_groups(store, named)
    stay = {group: [i for i in members if i not in leaving] for group, members in groups.items()}
    return [PartedGroup(group=group, stays=ids, of=len(groups[group])) for group, ids in stay.items() if ids]


def _check_grouped(store: FeatureStore) -> DataSpec:
    data = recorded_recipe(store).data
    if data.group is None:
        raise RecipeError(
            f"nothing says which samples of {store.path} belong together: it was made without data.group",
            do="name them by a pattern of their ids: --match",
        )
    return data


def parted_notes(groups: Sequence[PartedGroup], *, dry_run: bool) -> list[str]:
    """Notes on groups that stay in part. No receipt has them, for they name what stays, and may leave later."""
    if not groups:
        return []
    how = "; to forget all of it: the same command with --with-group"
    if len(groups) > PARTED:
        some = first_few([f"{each.group} ({len(each.stays)} of {each.of})" for each in groups])
        return [f"{len(groups)} groups (data.group) stay in part, with so many of their samples: {some}{how}"]
    said = []
    for each in groups:
        stay = "would stay" if dry_run else "stays" if len(each.stays) == 1 else "stay"
        ids = first_few(told_apart(each.stays), 3)
        said.append(f"group {each.group}: {len(each.stays)} of {counted(each.of, 'sample')} {stay}: {ids}{how}")
    return said


def _imported(store: FeatureStore, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the components that are there, and what was forgotten before.

    Raises:
        RecipeError: one of a shard of the store. UnknownName: neither there nor forgotten before.
    """
    there, found, already = imported(store), list[str](), list[str]()
    for name in dict.fromkeys(map(component_of, names)):
        if name in there:
            found.append(name)
        elif name in store.objects() or store.has_shard(shard_of(name)):
            raise RecipeError(
                f"{name} was not imported: it is made from the rows of a shard of this store",
                got=name,
                do=f"forget shard {shard_of(name)} (--shard): those rows and what was made from them",
            )
        elif store.is_forgotten(COMPONENT + shard_of(name)):
            already.append(f"component {shard_of(name)}")
        else:
            raise UnknownName(
                f"there is no component {shard_of(name)!r}",
                got=f"imported: {', '.join(map(shard_of, there)) or 'none'}",
                names=[shard_of(name)],
                do=f"taftcache inspect {typed(store.path)} lists the components",
            )
    return found, already


def _matched(store: FeatureStore, patterns: Sequence[str]) -> dict[str, list[str]]:
    """The ids that match each pattern; UnknownName lists the patterns that match none."""
    ids = [s.sample for s in every_sample(store)] if patterns else []
    composed = [normalize("NFC", i) for i in ids]  # é is one code point or two, which look alike
    matched = {
        pattern: [i for i, text in zip(ids, composed, strict=True) if fnmatchcase(text, normalize("NFC", pattern))]
        for pattern in patterns
    }
    if idle := [pattern for pattern, found in matched.items() if not found]:
        raise UnknownName(
            f"no sample's id matches {counted(len(idle), 'pattern')} of those given; nothing is changed",
            got=", ".join(map(repr, idle)),
            names=idle,
            do=f"taftcache inspect {typed(store.path)} --ids lists all ids; [[] matches a bracket; no id of a "
            "forgotten sample is kept",
        )
    return matched


def _named(
    store: FeatureStore, unfinished: Collection[str], shards: Sequence[str], classes: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """The samples of these shards and classes (a shard may be in ``unfinished`` alone); the names in the form that
    tombstones have them; and the names that were forgotten before."""
    wanted: list[str] = []
    asked: list[str] = []
    already: list[str] = []
    every = list(every_sample(store)) if shards or classes else []
    for name in dict.fromkeys(shards):
        if store.has_shard(name) or name in unfinished:
            wanted += [s.sample for s in every if s.shard == name]
            asked.append(SHARD + name)
        elif store.is_forgotten(SHARD + name):
            already.append(f"shard {name}")
        else:
            raise _no_shard(store, name, unfinished)
    for name in dict.fromkeys(classes):
        if name in store.classes:
            wanted += [s.sample for s in every if s.label == name]
            asked.append(CLASS + name)
        elif store.is_forgotten(CLASS + name):
            already.append(f"class {name}")
        else:
            raise no_class(store, name)
    return wanted, asked, already


def _no_shard(store: FeatureStore, name: str, unfinished: Collection[str]) -> UnknownName:
    """The held-out shard is not offered: whoever mistypes another would lose all that accuracies are measured on."""
    there = ", ".join(sorted({*(shard.name for shard in store.shards), *unfinished} - {HELD_OUT}))
    do = f"one of {there:.200}" if there else "taftcache extract"
    return UnknownName(f"there is no shard {name!r}; nothing is changed", names=[name], do=do)


def _leaving(store: FeatureStore, gone: set[str], asked: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Classes that have no row left once ``gone`` leave, and had one before or were named as such; and those that lose
    all training rows, with the held-out rows that stay."""
    before, after, held_out = Counter[int](), Counter[int](), Counter[int]()
    trained = set[int]()
    for shard in store.every_shard:
        stays = np.array([i not in gone for i in shard.sample_ids])
        before.update(shard.labels.tolist())
        after.update(left := shard.labels[stays].tolist())
        if shard.role == "train":
            trained.update(shard.labels.tolist())
        else:
            held_out.update(left)
    bare = [c for k, c in enumerate(store.classes) if not after[k] and (before[k] or CLASS + c in asked)]
    unlearned = {c: n for k, c in enumerate(store.classes) if k in trained and (n := after[k]) and n == held_out[k]}
    return bare, unlearned
