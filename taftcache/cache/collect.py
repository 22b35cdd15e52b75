"""Garbage: what lies in a store but nothing names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from taftcache.cache.format.manifest import PREVIOUS
from taftcache.cache.place.home import Home
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.sweep import foreign as foreign_files
from taftcache.cache.write.sweep import hopeless, leftovers, removed
from taftcache.cache.write.sweep import unfinished as unfinished_files
from taftcache.names import typed


@dataclass(frozen=True)
class Garbage:
    """``removed``: path -> bytes of what went (or would go). ``kept``: path -> bytes of what nothing names and stays:
    unfinished work, and files that the format does not own."""

    removed: dict[str, int]
    kept: dict[str, int]


def collect(
    store: FeatureStore, *, unfinished: bool = False, foreign: bool = False, older: float = 86400.0, dry: bool = False
) -> Garbage:
    """Remove what no manifest names, and the way back to the root manifest before the last commit.

    ``unfinished`` removes unfinished extractions too, ``foreign`` also files that are none of the format's business.
    ``dry`` only lists (a store open for reading will do). Where no lock keeps other writers out (a bucket), only files
    older than ``older`` seconds or than the root manifest, or with a forgotten sample's id, are removed: others may be
    a commit on its way.
    """
    if not dry:
        store.committer().check_no_writer("collect garbage")
    unnamed = list(leftovers(store.root, store.staging, store.manifest))
    work = [path for path in unfinished_files(store.staging) if path not in unnamed]
    odd = foreign_files(store.root, store.manifest)
    limit = time.time() - older
    placed = {path for path in unnamed if not path.startswith("staging/")}
    placed -= hopeless(store.root, store.manifest, placed)
    young = [path for path in placed if store.root.changed(path) > limit]
    wanted = [path for path in unnamed if path not in young]
    wanted += [PREVIOUS] if store.root.locked and store.root.exists(PREVIOUS) else []
    wanted += (work if unfinished else []) + (odd if foreign else [])
    kept = sorted({*work, *odd, *young} - {*wanted})
    gone = dict(store.swept)
    store.swept = []
    for path in wanted:
        gone[path] = _home(store, path).size(path) if dry else removed(_home(store, path), path)[1]
    return Garbage(gone, {path: _home(store, path).size(path) for path in kept})


def clearing(store: FeatureStore, paths: Sequence[str]) -> dict[str, str]:
    """Which command removes each of ``paths``, which are `FeatureStore.strays`."""
    command = f"taftcache gc {typed(store.path)}"
    odd, gone = set(foreign_files(store.root, store.manifest)), collect(store, dry=True).removed
    return {
        path: f"{command} --foreign" if path in odd else command if path in gone else f"{command} --hours 0"
        for path in paths
    }


def _home(store: FeatureStore, path: str) -> Home:
    return store.staging if path.startswith("staging/") else store.root
