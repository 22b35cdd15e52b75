"""Check files outside the store that may hold forgotten rows: exports, reports, models, comparisons, copies."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from taftcache.backbone.files import file_digest
from taftcache.backbone.sources.folder import SUFFIXES
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.format.manifest import FILE
from taftcache.cache.kept_keys import TombstoneKeys, is_of_store
from taftcache.cache.place.lock import LOCK
from taftcache.cache.read.around import is_store
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.sweep import OWN
from taftcache.cache.write.tombstones import decoded_keys
from taftcache.errors import FormatError, RecipeError, StoreError, TaftcacheError, local_path
from taftcache.model.component import Component
from taftcache.model.component_file import numbers_digest
from taftcache.model.description import DESCRIPTION, read_description
from taftcache.model.members import MADE_AGAIN, ForgottenNumbers, forgotten_numbers, imported, withdrawn
from taftcache.model.saved import CARD, WEIGHTS, under
from taftcache.names import ROWS_OF, by_receipts, counted, first_few, is_model, told_apart
from taftcache.privacy.statement import audit_statement
from taftcache.stages.file_texts import FileTexts, read_texts
from taftcache.stages.forget.chain import DELETE, FORGOTTEN, KEPT, LEFT, LEFT_DO
from taftcache.stages.forget.finding import Findings
from taftcache.stages.forget.pin import is_pin
from taftcache.stages.forget.receipts import replaced_shards
from taftcache.stages.forget.traces import asking, own_words, texts_of
from taftcache.stages.texts import Number, is_surely_meant, listed, meant, names_in, texts_in
from taftcache.stages.train.private.claims import exported_meta

# In JSON, also within another text: the root digest that something was made from, and lists of shards' digests.
ROOT = re.compile(r'"(?:root_digest|store)\\*": ?\\*"([0-9a-f]{64})')
SHARDS = re.compile(r'\[\s*((?:\\*"[0-9a-f]{64}\\*",?\s*)+)\]')
DIGEST = re.compile(r"[0-9a-f]{64}")


def existing_folder(folder: Path | str) -> Path:
    """The folder; RecipeError where there is none."""
    path = local_path(folder)
    if not path.is_dir():  # raises what is wrong with its name, or with a folder above it
        raise RecipeError(
            f"cannot look through {path}: it is not a folder",
            got=str(path),
            do="name a folder of exports, models or reports",
        )
    return path


def check_folders(
    store: FeatureStore,
    keys: TombstoneKeys,
    folders: Sequence[Path],
    to: Findings,
    strict: bool = False,
    harmless: Sequence[str] = (),
) -> tuple[int, int]:
    """Look through all files below ``folders`` for what was made from forgotten rows. No links to folders are followed;
    those that lead out of all that is searched are named. Returns how many there is something to be said of, but are
    left out, because their path below a folder matches one of the patterns ``harmless``; and of how many others nothing
    here tells whether they were made from what was forgotten.

    Findings are unfinished files, forgotten ids in texts and files of rows and as names, other stores with rows of
    forgotten ids or with such ids in their texts, and whatever names this store, or its shards, as they were before a
    request; the key that the store destroyed, one of ``keys``; also a promise of privacy that does not follow from the
    noise that the file itself states. Notes name what cannot be judged, such as components that name no rows, and what
    was not searched; if ``strict``, these are findings too.
    """
    if not folders:
        return 0, 0
    known, searched = _Known.of(store, keys), [*map(os.path.realpath, (store.place, *map(str, folders)))]
    left_out, unsure = zip(*(_check_folder(known, at, searched, to, strict, harmless) for at in folders), strict=True)
    return sum(left_out), sum(unsure)


def _check_folder(
    known: _Known, folder: Path, searched: Sequence[str], to: Findings, strict: bool, harmless: Sequence[str]
) -> tuple[int, int]:
    found, noted = defaultdict[_Verdict, dict[Path, str]](dict), defaultdict[str, list[Path]](list)
    left_out = list[Path]()
    for path, verdict in _judged_below(known, folder, searched):
        claims = Findings(store=to.store)
        if not os.path.isdir(path) and not _checked_claim(path, claims):
            noted["unchecked"].append(path)
        if any(fnmatchcase(path.relative_to(folder).as_posix(), pattern) for pattern in harmless):
            left_out += [path] * (verdict.kind != "fine" or bool(claims.findings))
            continue
        to.findings.extend(claims.findings)
        if verdict.kind == "found":
            found[verdict][path] = verdict.at
        elif verdict.kind != "fine":
            noted[verdict.kind].append(path)
    for verdict, places in found.items():
        by_folder = {path.parent: [path] for path in places}.items() if verdict.of_student else _gathered([*places])
        for at, paths in by_folder:
            _add_finding(at, verdict, paths, places[paths[0]], to)
    for kind, paths in noted.items():
        what = "link" if kind == "linked" else "folder" if all(map(os.path.isdir, paths)) else "file"
        said = f"{counted(len(paths), what)} ({_named(paths, folder)}) {NOTES[kind]}"
        if strict:
            to.found("undecided", str(folder), said)
        else:
            to.notes.append(f"{folder}: {said}")
    if left_out:
        to.notes.append(f"{folder}: {counted(len(left_out), 'file')} ({_named(left_out, folder)}) {LEFT_OUT}")
    return len(left_out), len(noted["unsure"])


def _named(paths: list[Path], folder: Path) -> str:
    return first_few(told_apart([str(path.relative_to(folder)) for path in paths]))


def _gathered(paths: list[Path]) -> list[tuple[Path, list[Path]]]:
    """These paths one by one, but all below a folder together if more than ``SINGLY`` of what lies in it has some."""
    shared = Path(os.path.commonpath([path.parent for path in paths]))
    parts = defaultdict[str, list[Path]](list)
    for path in paths:
        parts[path.relative_to(shared).parts[0]].append(path)
    if len(parts) > SINGLY:
        return [(shared, paths)]
    if len(parts) == 1 and len(paths) > 1:  # one is the folder of the others
        own = shared / next(iter(parts))
        return [(own, [own]), *_gathered([path for path in paths if path != own])]
    return [each for of in parts.values() for each in (_gathered(of) if len(of) > 1 else [(of[0], of)])]


def _add_finding(at: Path, verdict: _Verdict, paths: list[Path], where: str, to: Findings) -> None:
    """Add what was found of one file, or of several below the folder ``at``; ``where``: the place in the first."""
    if verdict.of_student:  # one finding for its whole folder, whichever of its files are there
        do = "delete what teach or export-model wrote there, and make it again"
        to.found("by-product", str(at), f"a student, {verdict.text}", do)
    elif len(paths) > 1:
        which = f"{counted(len(paths), 'file')} ({_named(paths, at)}): {verdict.text}"
        to.found("by-product", str(at), f"{which}, the first{where}" if where else which, verdict.do)
    else:
        advice = verdict.do or (OTHER_STORE if FeatureStore.exists(at) else None)
        to.found("by-product", str(at), verdict.text + where, advice)


def _checked_claim(path: Path, to: Findings) -> bool:
    """Whether a promise of privacy in ``path`` could be checked; one that does not follow is a finding, and what cannot
    be read is named as not searched."""
    try:
        for false in audit_statement(exported_meta(path)):
            to.found("privacy statement", str(path), false, "delete it, and export it again from its store")
    except RecipeError:  # dp-accounting is an extra
        return False
    except (OSError, ValueError):
        return True
    return True


OTHER_STORE = "delete it if it is an old copy; else forget the same samples there: taftcache forget STORE --file FILE"
OTHER_COMPONENT = "delete it if it is an old copy; else forget them there: taftcache forget STORE --component NAME"
NOTES = {
    "unsure": "of rows or a state of a store that no receipt here names, as is one from before append, or a component "
    "exported before a request of an earlier release: whatever was made of this store before a request has what was "
    "forgotten; delete it, and export it again",
    "unread": "not searched: unreadable, packed (an archive or git's pack, say), too large, or cut off meanwhile "
    "(Parquet and Arrow take pip install 'taftcache[parquet]'); what was forgotten may be in there",
    "linked": "to folders elsewhere, not searched: name these folders, too (--also FOLDER); what was forgotten may be "
    "in there",
    "common": "with a forgotten id that may mean something else: a number, a date or a plain word where nothing says "
    "that it is an id, the name of a class or a shard, or a word of taftcache's own",
    "left": f"of tombstones: {LEFT}; {LEFT_DO}",
    "kept": f"with {KEPT}; it is of another store, which needs it no more after taftcache forget STORE --destroy-key",
    "unchecked": "promising privacy: whether their epsilon follows from their noise is checked with "
    "pip install 'taftcache[privacy]'",
}
LEFT_OUT = "left out of the verdict by --except, though there would be a finding or a note about each"
ONNX = ".onnx"
OWN_SUFFIXES = 16  # of ids, which are tried with the name of every file
PLACED = 64  # ids whose lines are looked for in a file
TEXT_AT = 4096  # bytes at the start of a file by which it is taken for text, which has lines
SINGLY = 5  # up to this many places of one problem are listed one by one


@dataclass(frozen=True)
class _Verdict:
    """What is to be said of a file or of another store.

    kind: "found" if it holds, or was made from, what was forgotten: ``text`` says how; the others but "fine" are notes.
    of_student: it is of a student, whose files are one finding. do: what to do; None for what is usual. at: how many
    ids, and where.
    """

    kind: Literal["fine", "unsure", "unread", "linked", "common", "left", "kept", "found"]
    text: str = ""
    of_student: bool = False
    do: str | None = None
    at: str = field(default="", compare=False)


FINE, UNSURE, UNREAD, COMMON = _Verdict("fine"), _Verdict("unsure"), _Verdict("unread"), _Verdict("common")
LINKED, KEPT_BY_STORE = _Verdict("linked"), _Verdict("kept")
KEY_LEFT = _Verdict("found", f"it has {KEPT}", do=DELETE)
BY_PATH = _Verdict(
    "found",
    "its path ends with a forgotten id",
    do="if it is the image itself, delete it, if that should go, too; if it only has that name, leave it out: "
    "--except PATTERN",
)
WITHDRAWN = "delete it; if its owner lets you keep it, leave it out: --except PATTERN"
OLD_SHARD = "delete the shard's folder, with the file of its name beside it"
LOOK = (
    "look at it: if that is the sample, take it out there, or delete the file; if it means something else, leave the "
    "file out: --except PATTERN"
)
IN_GIT = "take it out of the repository's history (git filter-repo), then git reflog expire and git gc --prune=now"
CUT_OFF = _Verdict("found", "what a copy that was cut off left; it may hold any row")


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Digests of the store and its shards as they are now, and keyed hashes of those from before each request.

    before, replaced: keyed hash → place of the request's receipt, for the store and for the shards that a request wrote
    anew or dropped; from receipts of earlier releases, ``before`` has plain digests. key: what the hashes are keyed
    with. held: the ids of its rows.
    """

    store: FeatureStore
    keys: TombstoneKeys
    now: frozenset[str]
    shards: frozenset[str]
    before: dict[str, str]
    replaced: dict[str, str]
    key: bytes
    is_own_word: Callable[[str], bool]
    is_forgotten: Callable[[str], bool]
    held: frozenset[str]

    @classmethod
    def of(cls, store: FeatureStore, keys: TombstoneKeys) -> _Known:
        requests, key = dict[str, dict[str, Any]](), b""
        with suppress(StoreError):  # `check_ledger` or `check_beside` reports it
            requests = {f"ledger/{e['seq']:06d}": e for e in store.ledger() if e.get("event") == FORGOTTEN}
            key = ledger.read_key(store.root, store.manifest) if store.manifest.tombstone_key else b""
        held = set[str]()
        for ref in store.manifest.shards:
            with suppress(StoreError):  # verify has said it
                held.update(store.shard(ref.name).sample_ids)
        return cls(
            store=store,
            keys=keys,
            now=frozenset({store.root_digest, store.manifest.content_digest}),
            shards=frozenset(ref.digest for ref in store.manifest.shards),
            before={str(entry.get("root_before")): place for place, entry in requests.items()},
            replaced={each: place for place, entry in requests.items() for each in replaced_shards(entry)},
            key=key,
            is_own_word=own_words(store),
            is_forgotten=asking(store),
            held=frozenset(held),
        )

    def judged(self, text: str) -> _Verdict | None:
        """The verdict on something that ``text`` describes; None if it does not name what it was made from."""
        if not self.before:
            return FINE
        roots, lists = set(ROOT.findall(text)), [set(DIGEST.findall(match[1])) for match in SHARDS.finditer(text)]
        if place := self._state_before(roots):
            return _Verdict("found", f"made from the store as it was before {place}")
        if place := self._shards_before(lists):
            return _Verdict("found", f"made from shards as they were before {place}")
        if any(named & self.shards and named - self.shards for named in lists):  # receipts of earlier releases
            return _Verdict("found", "made from shards as they were before rows left them")
        if lists and all(named <= self.shards for named in lists):
            return FINE
        if lists or roots - self.now:
            return UNSURE
        return FINE if roots else None

    def _state_before(self, roots: set[str]) -> str | None:
        """The first receipt of which one of these root digests was the state before; None if there is none."""
        old = roots - self.now
        return min((self.before[own] for own in (old | self._keyed(old)) & self.before.keys()), default=None)

    def _shards_before(self, lists: list[set[str]]) -> str | None:
        """The first receipt whose request wrote anew or dropped one of these shards; None if there is none."""
        gone = self._keyed(chain.from_iterable(lists)) & self.replaced.keys()
        return min((self.replaced[own] for own in gone), default=None)

    def _keyed(self, digests: Iterable[str]) -> set[str]:
        return {ledger.tombstone(own, self.key) for own in digests} if self.key else set()

    def of_tombstones(self, file: Path, held: Mapping[bytes, Collection[str]]) -> _Verdict:
        """The verdict on a file of tombstones with these keys, and the tombstones under each."""
        if self.keys.file is not None and os.path.realpath(file) == str(self.keys.file):
            return FINE
        states = {self.keys.state(digest(key), under) for key, under in held.items()}
        if "destroyed" in states:
            return KEPT_BY_STORE if is_of_store(file) else KEY_LEFT
        return _Verdict("left") if "present" in states and not is_of_store(file) else FINE

    def of_component(self, data: bytes) -> _Verdict:
        """The verdict on a file or object that may be a component."""
        own = _numbers(data)
        return FINE if own is None else self._of_numbers(own)

    def of_model(self, folder: Path, by_state: _Verdict) -> _Verdict:
        """The verdict on an exported model, of which the one ``by_state`` goes by what it names: it may be a component
        that was forgotten; and if it names the store as it is now, it must be the one of that name there."""
        named, weights = read_description(folder).model, folder / WEIGHTS
        if not weights.is_file():
            return UNSURE
        own = numbers_digest(save(under("delta", load_file(weights))))
        if (forgotten := self._of_numbers(own)).kind == "found":
            return forgotten
        there = is_model(named) and named in self.store.objects()
        if by_state != FINE or (there and _numbers(self.store.read_object(named)) == own):
            return by_state
        return _Verdict("found", "a model that names the store as it is now, but is not the model of its name there")

    def _of_numbers(self, own: str) -> _Verdict:
        """The verdict on numbers with the digest ``own``: what is no model of the store may be one that it forgot, or
        that was made from what it forgot."""
        if own in self._there:
            return FINE
        if (gone := self._forgotten(own)) is None:
            return UNSURE
        if gone.itself:
            text = f"it has the numbers of a component that was forgotten here {by_receipts(gone.receipts)}"
            return _Verdict("found", text, do=WITHDRAWN)
        return _Verdict("found", f"it has the numbers of {MADE_AGAIN} {by_receipts(gone.receipts)}")

    @cached_property
    def _forgotten(self) -> Callable[[str], ForgottenNumbers | None]:
        return forgotten_numbers(self.store)

    @cached_property
    def suffixes(self) -> frozenset[str]:
        """Those of images, and the commonest of the store's own ids: of ids like ``v1.0042``, each has another."""
        own = Counter(os.path.splitext(i)[1] for i in self.held)
        return SUFFIXES | {end for end, _ in own.most_common(OWN_SUFFIXES)} - {""}

    def listed(self, text: str) -> set[str]:
        """Forgotten ids in those columns and lists of a text that have ids of the store and nothing else."""
        lists = (each for each in listed(text) if all(i in self.held or self.is_forgotten(i) for i in each))
        return {i for each in lists for i in each if self.is_forgotten(i) and not self.is_own_word(i)}

    @cached_property
    def _there(self) -> frozenset[str | None]:
        gone = withdrawn(self.store)
        found = set[str | None]()
        for name in filter(is_model, self.store.objects().keys() - gone.stayed.keys() - gone.own.keys()):
            with suppress(StoreError):  # verify has said it
                found.add(_numbers(self.store.read_object(name)))
        return frozenset(found)


def _numbers(data: bytes) -> str | None:
    """The digest of a component's numbers as a store keeps them; None if the bytes are no component."""
    try:
        component = Component.decode(data)
    except FormatError:
        return None
    return component.numbers


def _judged_below(known: _Known, folder: Path, searched: Sequence[str]) -> Iterator[tuple[Path, _Verdict]]:
    """What lies below ``folder``, with the verdict on it. One item is each file, another store with all that its
    manifests name, what a copy that was cut off left, and a folder that has the name of a forgotten id or may not be
    read, or to which a link leads out of what is ``searched``; the store itself is none."""
    closed = list[OSError]()
    for at, folders, files in os.walk(folder, onerror=closed.append):
        here, names = Path(at), {*folders, *files}
        if _is_cut_off(names):
            folders.clear()
            yield here, CUT_OFF if known.before else FINE
            continue
        if FILE in files and (is_store(at) or {LOCK, "shards"} <= names):  # perhaps with a damaged manifest
            if os.path.realpath(here) == os.path.realpath(known.store.place):
                folders.clear()
                continue
            verdict, strays = _of_store(known, here)
            yield here, verdict
            if strays is not None:
                folders.clear()
                files = strays
        folders.sort()
        within = [here / name for name in sorted(files)]
        strange = [path for path in within if os.path.isdir(path) and not path.is_symlink()]
        for path in filter(_is_link, (*(here / name for name in folders), *within)):
            if known.before and not _is_below(path, searched):
                yield path, LINKED
        for path in (*(here / name for name in folders), *strange):
            if (named := _of_path(known, path, is_folder=True)) != FINE:
                yield path, named
        for path in strange:
            yield from _judged_below(known, path, searched)
        for path in filter(_may_be_file, within):
            yield path, _of_file(known, path)
    for error in closed:
        yield Path(error.filename), UNREAD if known.before else FINE


def _is_link(path: Path) -> bool:
    """Whether a path is a link to a folder."""
    return os.path.islink(path) and os.path.isdir(path)


def _is_below(path: Path, folders: Iterable[str]) -> bool:
    """Whether a link leads to one of the folders, or below it."""
    real = os.path.realpath(path)
    return any(os.path.commonpath((real, folder)) == folder for folder in folders)


def _may_be_file(path: Path) -> bool:
    """Whether a path is a file or, in a folder that may be listed but not entered, may be one. `Path.is_file` raises
    there, as it does for a link that leads there."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _is_cut_off(names: set[str]) -> bool:
    """Whether a folder with these names in it was left by a copy that was cut off."""
    return {LOCK, "shards"} <= names <= OWN - {FILE}


def _of_store(known: _Known, path: Path) -> tuple[_Verdict, list[str] | None]:
    """What is to be said of another store, and what lies in its folder but its manifests do not name; None if it cannot
    be opened."""
    unread, kept, strays, held, said, taken = False, False, None, set[str](), set[str](), list[_Verdict]()
    try:
        with FeatureStore(path, stale=True) as other:
            strays = other.strays()
            for ref in other.manifest.shards:
                try:
                    held.update(other.shard(ref.name).sample_ids)
                except TaftcacheError:
                    unread = True
            held.update(i for ids in other.staged_ids().values() for i in ids)
            held.update(skipped.id for skipped in other.manifest.skipped)
            said = _said_by(known, other)
            named = other.manifest
            kept = known.keys.state(named.tombstone_key, frozenset(named.tombstones)) == "destroyed"
            taken = [known.of_component(other.read_object(name)) for name in imported(other)]
    except (OSError, TaftcacheError):
        unread = True
    if count := sum(map(known.store.is_forgotten, held)):
        return _Verdict("found", f"a store with rows of forgotten ids: {count}"), strays
    if said:
        return _Verdict("found", f"a store that names forgotten ids: {len(said)}"), strays
    if known.before and (count := sum(verdict.kind == "found" for verdict in taken)):
        text = f"a store with components that were forgotten here: {count}"
        return _Verdict("found", text, do=OTHER_COMPONENT), strays
    if kept:
        return KEPT_BY_STORE, strays
    return (UNREAD if unread else UNSURE if UNSURE in taken else FINE) if known.before else FINE, strays


def _said_by(known: _Known, other: FeatureStore) -> set[str]:
    """Forgotten ids in the texts of another store; StoreError if its ledger is damaged."""
    other.ledger()
    is_own_word = own_words(other)
    files = (read_texts(other.path / ref.path).about for ref in other.objects().values())
    texts = (text for value in chain((value for _, value in texts_of(other)), files) for text in texts_in(value))
    found = {text for text in texts if not isinstance(text, Number) and known.is_forgotten(text)}
    return {text for text in found if not (known.is_own_word(text) or is_own_word(text))}


def _of_path(known: _Known, path: Path, is_folder: bool = False) -> _Verdict:
    """What the path of a file or folder tells: that of an image is often its id. Of folders, no number is an id; a file
    that has the name of an image but for its suffix may be of it."""
    whole = os.path.abspath(path)
    ids = {i for i in names_in(whole) if known.is_forgotten(i)}
    if any(is_surely_meant(i) and not known.is_own_word(i) for i in ids):
        return BY_PATH
    if is_folder:
        return COMMON if any(not isinstance(i, Number) for i in ids) else FINE
    stem = os.path.splitext(whole)[0]
    is_kin = any(known.is_forgotten(i + end) for i in meant([stem]) for end in known.suffixes)
    return COMMON if ids or is_kin else FINE


def _of_file(known: _Known, path: Path) -> _Verdict:
    """The verdict on a file, whatever is in it: none ends the audit of the others."""
    try:
        return _of_readable(known, path)
    except (OSError, ValueError, TaftcacheError, SafetensorError):
        return UNREAD if known.before else FINE


def _of_readable(known: _Known, path: Path) -> _Verdict:
    if path.name.endswith(".partial"):
        says = _Verdict("found", "what a write that was killed left; it may hold anything")
        return says if known.before else FINE
    named = _of_path(known, path)
    if named.kind == "found":
        return named
    read = read_texts(path)
    ids, numbers = read.forgotten(known.is_forgotten)
    sure = {i for i in ids if is_surely_meant(i) and not known.is_own_word(i)}
    if sure := sure or (known.listed(read.about) if ids else sure):
        return _of_ids(known, path, read, sure)
    if not read.whole:
        return _beside(known, path) or UNREAD if known.before else FINE
    if is_pin(read.about):
        return FINE
    if (held := decoded_keys(read.about.encode())) is not None:
        return known.of_tombstones(path, held)
    verdict = known.judged(read.about)
    if verdict is None and path.suffix == ONNX:  # of an earlier release, or of a model that must not say it
        return _beside(known, path) or UNREAD
    if verdict is None and "base_digest" in read.about:  # a component that was exported names neither
        return known.of_component(path.read_bytes())
    if verdict is None:
        return _beside(known, path) or COMMON if named == COMMON or ids or numbers else FINE
    if verdict in (FINE, UNSURE) and path.name == DESCRIPTION and known.before:
        return known.of_model(path.parent, verdict)
    is_student = verdict.kind == "found" and f'"{ROWS_OF}' in read.about
    return replace(verdict, of_student=True) if is_student else verdict


def _of_ids(known: _Known, path: Path, read: FileTexts, ids: set[str]) -> _Verdict:
    """The verdict on a file with these forgotten ids: it says where they stand, but not which they are."""
    arrays = {name for name in map(read.ids.get, ids) if name and not any(map(known.is_forgotten, names_in(name)))}
    places = [f"in {name}" for name in sorted(arrays)]
    with path.open("rb") as file:
        is_text = b"\0" not in file.read(TEXT_AT)
    if is_text:
        found = (
            re.search(rf"\b{i}\b", read.about) or re.search(i, read.about) for i in map(re.escape, sorted(ids)[:PLACED])
        )
        lines = {read.about.count("\n", 0, match.start()) + 1 for match in found if match}
        places += [f"line {line}" for line in sorted(lines)]
    at = f": {len(ids)}" + (f" ({first_few(places)})" if places else "")
    if path.parts[-2:] == ("sample_id", "c.0"):
        return _Verdict("found", "a shard without its store, with rows of forgotten ids", do=OLD_SHARD, at=at)
    is_export = known.judged(read.about) is not None or read.names >= {"identity", "plan", "recipe"}
    do = IN_GIT if read.of_git else None if is_export else LOOK
    return _Verdict("found", "it holds forgotten ids", do=do, at=at)


def _beside(known: _Known, path: Path) -> _Verdict | None:
    """The verdict on the model that ``path`` was exported with, if it is the model's card or listed in its
    description."""
    for folder in path.parents[:2]:  # its backbone lies in a folder of its own
        with suppress(OSError, TaftcacheError):
            files, name = read_description(folder).files, path.relative_to(folder).as_posix()
            if name == CARD or files.get(name) == file_digest(path):
                return known.judged((folder / DESCRIPTION).read_text("utf-8"))
    return None
