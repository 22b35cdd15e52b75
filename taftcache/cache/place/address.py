"""Which home an address names: a folder of this machine, or a prefix of a bucket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from blake3 import blake3

from taftcache.cache.place.bucket import Bucket, Url, endpoints
from taftcache.cache.place.failure import cannot
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.home import Home
from taftcache.errors import RecipeError, StoreWriteError, check_path, is_address

_BUCKET = re.compile(r"s3:/{1,2}([a-z0-9][a-z0-9.-]{1,62})(?:/(.*))?")


def is_bucket(path: str | os.PathLike[str]) -> bool:
    """As ``is_address``, of a store's place; ArgumentError as ``check_path``."""
    check_path("the place of a store", path)
    return is_address(path)


def spelled(path: str | os.PathLike[str]) -> str:
    """An address as text, that of a bucket in one spelling: with both slashes, of which a Path drops one, and none at
    its end. ArgumentError as ``check_path``."""
    text = os.fspath(path)
    if not is_bucket(path):
        return text
    match = _BUCKET.fullmatch(text)
    if match is None:
        return text if "://" in text else text.replace(":/", "://", 1)
    return f"s3://{match[1]}/{(match[2] or '').strip('/')}".rstrip("/")


def as_path(path: str | os.PathLike[str]) -> Path:
    """An address as a path, of which a bucket's keeps both slashes."""
    return Url(spelled(path)) if is_bucket(path) else Path(path)


class Homes(NamedTuple):
    """Where a store lies, and the staging folder in which changes to it are prepared; open until ``with`` ends."""

    root: Home
    staging: Folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.root.close()
        self.staging.close()


@contextmanager
def new_home(path: str | os.PathLike[str], what: str, check: Callable[[Home], None]) -> Iterator[Homes]:
    """The home at ``path`` to make ``what``, once ``check`` has looked what is there. Folders made for it go where it
    fails, if nothing is in them.

    StoreWriteError where it cannot be made; whatever ``check`` raises.
    """
    place = Path(path)
    new = [] if is_bucket(path) else [folder for folder in (place, *place.parents) if not os.path.lexists(folder)]
    try:
        try:
            if not is_bucket(path):
                place.mkdir(parents=True, exist_ok=True)
            homes = open_home(path)
        except OSError as error:
            raise cannot(what, path, error) from None
        with homes:
            check(homes.root)  # before a lock file is left among someone's files
            yield homes
    except BaseException:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
        raise


def open_home(path: str | os.PathLike[str]) -> Homes:
    """The home at ``path``, and its staging folder.

    ``s3://bucket/prefix`` is a bucket; its staging folder lies in ``TAFTCACHE_STAGING`` (``~/.cache/taftcache`` by
    default). Anything else is a folder, which stages in itself. OSError if it does not exist;
    RecipeError for what is meant to be a bucket's address and is not; StoreWriteError without a staging folder.
    """
    if not is_bucket(path):
        folder = Folder(path)
        return Homes(folder, folder)
    text = os.fspath(path)
    match = _BUCKET.fullmatch(text)
    if match is None:
        raise _no_address(text)
    prefix = (match[2] or "").strip("/")
    try:
        root = Bucket(match[1], prefix)
    except ValueError:  # from the library, for a prefix such as a/../b
        raise _no_address(text) from None
    return Homes(root, _staging(match[1], prefix))


def _staging(bucket: str, prefix: str) -> Folder:
    """The staging folder of a store in a bucket, made if need be; StoreWriteError where it cannot be."""
    try:
        place = Path(os.environ.get("TAFTCACHE_STAGING") or Path.home() / ".cache" / "taftcache")
    except RuntimeError:
        raise StoreWriteError(
            "there is no folder for work in progress on a store in a bucket: this user has no home",
            got=f"s3://{bucket}/{prefix}",
            do="name a folder in TAFTCACHE_STAGING, or set HOME",
        ) from None
    place /= blake3(f"{' '.join(endpoints())} {bucket} {prefix}".encode()).hexdigest()[:16]
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Folder(place)
    except OSError as error:  # not the caller's to explain, who takes it for the bucket's
        what, then = "use the folder for work in progress", "; TAFTCACHE_STAGING names another folder"
        raise cannot(what, place, error, got=f"s3://{bucket}/{prefix}", then=then) from None


def _no_address(text: str) -> RecipeError:
    return RecipeError(
        f"{spelled(text)!r} is not the address of a store in a bucket",
        do="write it as s3://bucket/prefix, s3:// and the bucket in small letters, without . or .. in the prefix",
    )
