"""What an audit says of each file, folder and other store below a folder."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from safetensors import SafetensorError

from taftcache.backbone.files import file_digest
from taftcache.cache.format.manifest import FILE
from taftcache.cache.place.lock import LOCK
from taftcache.cache.read.around import is_store
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.sweep import OWN
from taftcache.cache.write.tombstones import decoded_keys
from taftcache.errors import TaftcacheError
from taftcache.model.description import DESCRIPTION, read_description
from taftcache.model.members import imported
from taftcache.model.saved import CARD
from taftcache.names import ROWS_OF, first_few
from taftcache.stages.audit.known import FINE, KEPT_BY_STORE, UNSURE, Known, Verdict
from taftcache.stages.audit.pin import is_pin
from taftcache.stages.audit.traces import own_words, texts_of
from taftcache.stages.file_texts import FileTexts, read_texts
from taftcache.stages.texts import Number, is_surely_meant, meant, names_in, texts_in

UNREAD, COMMON, LINKED = Verdict("unread"), Verdict("common"), Verdict("linked")
BY_PATH = Verdict(
    "found",
    "its path ends with a forgotten id",
    do="if it is the image itself, delete it, if that should go, too; if it only has that name, leave it out: "
    "--except PATTERN",
)
OLD_SHARD = "delete the shard's folder, with the file of its name beside it"
LOOK = (
    "look at it: if that is the sample, take it out there, or delete the file; if it means something else, leave the "
    "file out: --except PATTERN"
)
IN_GIT = "take it out of the repository's history (git filter-repo), then git reflog expire and git gc --prune=now"
CUT_OFF = Verdict("found", "what a copy that was cut off left; it may hold any row")
ONNX = ".onnx"
PLACED = 64  # ids whose lines are looked for in a file
TEXT_AT = 4096  # bytes at the start of a file by which it is taken for text, which has lines
OTHER_COMPONENT = "delete it if it is an old copy; else forget them there: taftcache forget STORE --component NAME"


def judged_below(known: Known, folder: Path, searched: Sequence[str]) -> Iterator[tuple[Path, Verdict]]:
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
            yield from judged_below(known, path, searched)
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


def _of_store(known: Known, path: Path) -> tuple[Verdict, list[str] | None]:
    """What is to be said of another store, and what lies in its folder but its manifests do not name; None if it cannot
    be opened."""
    unread, kept, strays, held, said, taken = False, False, None, set[str](), set[str](), list[Verdict]()
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
        return Verdict("found", f"a store with rows of forgotten ids: {count}"), strays
    if said:
        return Verdict("found", f"a store that names forgotten ids: {len(said)}"), strays
    if known.before and (count := sum(verdict.kind == "found" for verdict in taken)):
        text = f"a store with components that were forgotten here: {count}"
        return Verdict("found", text, do=OTHER_COMPONENT), strays
    if kept:
        return KEPT_BY_STORE, strays
    return (UNREAD if unread else UNSURE if UNSURE in taken else FINE) if known.before else FINE, strays


def _said_by(known: Known, other: FeatureStore) -> set[str]:
    """Forgotten ids in the texts of another store; StoreError if its ledger is damaged."""
    other.ledger()
    is_own_word = own_words(other)
    files = (read_texts(other.path / ref.path).about for ref in other.objects().values())
    texts = (text for value in chain((value for _, value in texts_of(other)), files) for text in texts_in(value))
    found = {text for text in texts if not isinstance(text, Number) and known.is_forgotten(text)}
    return {text for text in found if not (known.is_own_word(text) or is_own_word(text))}


def _of_path(known: Known, path: Path, is_folder: bool = False) -> Verdict:
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


def _of_file(known: Known, path: Path) -> Verdict:
    """The verdict on a file, whatever is in it: none ends the audit of the others."""
    try:
        return _of_readable(known, path)
    except (OSError, ValueError, TaftcacheError, SafetensorError):
        return UNREAD if known.before else FINE


def _of_readable(known: Known, path: Path) -> Verdict:
    if path.name.endswith(".partial"):
        says = Verdict("found", "what a write that was killed left; it may hold anything")
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


def _of_ids(known: Known, path: Path, read: FileTexts, ids: set[str]) -> Verdict:
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
        return Verdict("found", "a shard without its store, with rows of forgotten ids", do=OLD_SHARD, at=at)
    is_export = known.judged(read.about) is not None or read.names >= {"identity", "plan", "recipe"}
    do = IN_GIT if read.of_git else None if is_export else LOOK
    return Verdict("found", "it holds forgotten ids", do=do, at=at)


def _beside(known: Known, path: Path) -> Verdict | None:
    """The verdict on the model that ``path`` was exported with, if it is the model's card or listed in its
    description."""
    for folder in path.parents[:2]:  # its backbone lies in a folder of its own
        with suppress(OSError, TaftcacheError):
            files, name = read_description(folder).files, path.relative_to(folder).as_posix()
            if name == CARD or files.get(name) == file_digest(path):
                return known.judged((folder / DESCRIPTION).read_text("utf-8"))
    return None
