"""Which home an address names: a folder of this machine, or a prefix of a bucket."""

from __future__ import annotations

import os
import re
from pathlib import Path

from taftcache.cache.format.digest import SHORT, digest
from taftcache.cache.format.manifest import FILE, OBJECT_FOLDERS, Manifest
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.home import Home
from taftcache.cache.write.sweep import KEY_FILE, LOCK
from taftcache.errors import RecipeError, StoreError

# a path has lost one of the slashes
_BUCKET = re.compile(r"s3:/{1,2}([a-z0-9][a-z0-9.-]{1,62})(?:/(.*))?")
_OWN = {FILE, f"{FILE}.partial", LOCK, KEY_FILE, "shards", "ledger", "staging", *OBJECT_FOLDERS}


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """Whether an address is one in a bucket, as a path too."""
    return os.fspath(path).startswith("s3:")


def open_home(path: str | os.PathLike[str], *, make: bool = False) -> tuple[Home, Folder]:
    """The home at ``path``, and the desk on which changes to it are prepared.

    ``s3://bucket/prefix`` is a bucket; its desk is a folder in ``TAFTCACHE_STAGING`` (``~/.cache/taftcache`` by
    default). All else is a folder, which is its own desk. OSError when there is none and ``make`` does not ask for one.
    """
    if not is_bucket(path):
        if make:
            Path(path).mkdir(parents=True, exist_ok=True)
        folder = Folder(path)
        return folder, folder
    from taftcache.cache.place.bucket import Bucket

    text = os.fspath(path)
    match = _BUCKET.fullmatch(text)
    if match is None:
        raise RecipeError("A store in a bucket has the address s3://bucket/prefix.", got=text, do="Write it like that.")
    prefix = (match[2] or "").strip("/")
    root = Bucket(match[1], prefix)
    place = Path(os.environ.get("TAFTCACHE_STAGING") or Path.home() / ".cache" / "taftcache")
    place /= digest(f"{os.environ.get('AWS_ENDPOINT_URL', '')} {match[1]} {prefix}".encode())[:SHORT]
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return root, Folder(place)


def bring(path: str | os.PathLike[str], first: Manifest) -> None:
    """Make an empty store at ``path``, where nothing is yet: its root manifest is ``first``."""
    raw = first.encode()
    try:
        root, desk = open_home(path, make=True)
        there = [name for name, _ in root.entries() if name not in (LOCK, f"{FILE}.partial")]
    except OSError as error:
        raise StoreError(
            "A store can be made there.", got=f"{path}: {error.strerror}", do="Name another folder."
        ) from None
    try:
        if there:
            raise _taken(root, there)
        lock = desk.lock(LOCK)
        try:
            root.swap(FILE, raw)
        finally:
            os.close(lock)
    finally:
        root.close()
        desk.close()


def check_foreign(root: Home) -> None:
    """StoreError where anything lies that no store puts there."""
    if there := [name for name, _ in root.entries() if name not in _OWN]:
        raise _taken(root, there)


def _taken(root: Home, there: list[str]) -> StoreError:
    return StoreError(
        "A store is made in an empty folder.",
        got=f"{root.path} holds {', '.join(there[:3])}",
        do='Name another folder, or open the store that is there with mode="a".',
    )
