"""Check files outside the store that may hold forgotten rows: exports, reports, models, comparisons, copies."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from taftcache.cache.kept_keys import TombstoneKeys
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, local_path
from taftcache.names import counted, first_few, told_apart
from taftcache.privacy.statement import audit_statement
from taftcache.stages.audit.judging import judged_below
from taftcache.stages.audit.known import Known, Verdict
from taftcache.stages.forget.chain import KEPT, LEFT, LEFT_DO
from taftcache.stages.forget.finding import Findings
from taftcache.stages.train.private.claims import exported_meta

OTHER_STORE = "delete it if it is an old copy; else forget the same samples there: taftcache forget STORE --file FILE"
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
SINGLY = 5  # up to this many places of one problem are listed one by one


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
    known, searched = Known.of(store, keys), [*map(os.path.realpath, (store.place, *map(str, folders)))]
    left_out, unsure = zip(*(_check_folder(known, at, searched, to, strict, harmless) for at in folders), strict=True)
    return sum(left_out), sum(unsure)


def _check_folder(
    known: Known, folder: Path, searched: Sequence[str], to: Findings, strict: bool, harmless: Sequence[str]
) -> tuple[int, int]:
    found, noted = defaultdict[Verdict, dict[Path, str]](dict), defaultdict[str, list[Path]](list)
    left_out = list[Path]()
    for path, verdict in judged_below(known, folder, searched):
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


def _add_finding(at: Path, verdict: Verdict, paths: list[Path], where: str, to: Findings) -> None:
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
