"""A prefix of an S3-compatible bucket as a store's home; the only user of obstore."""

from __future__ import annotations

import errno
import html
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from taftcache.cache.place.failure import INTACT, forestalled, too_large
from taftcache.cache.place.folder import Folder, parts_of
from taftcache.errors import StoreError, StoreNotFound, StoreUnreachable, StoreWriteError

T = TypeVar("T")
RETRIES: Any = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=5), "base": 2},
}
"""How often, and for how long, a request is repeated after a dropped connection or a 5xx answer."""
CLIENT: Any = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=5)}
READS: Any = {"read_timeout": timedelta(seconds=30)}
"""The longest time between two arrivals of bytes, after which an answer that hangs is asked for again. Not for
puts: there the time to send the object's own bytes counts too, and over a slow line that alone may take longer."""
LARGE, SLOW = 64 << 20, {"timeout": timedelta(minutes=30)}
"""An object of more bytes gets more time: enough for 1 GiB in one request at 5 Mbit/s. Ctrl-C waits for what hangs."""
_NO_BUCKET = "<Code>NoSuchBucket</Code>"
_NO_CREDENTIALS = re.compile("Missing (AccessKey|SecretAccessKey)|/latest/(api/token|meta-data/)|//169.254.170.2/")
"""Half a pair of keys is missing; or the library found none and asked for the role of this machine or container."""
_EXPIRED = re.compile("<Code>(ExpiredToken|TokenRefreshRequired|RequestTimeTooSkewed)</Code>")
_REFUSED = re.compile("AccessDenied|status:? 403|403 Forbidden")
"""A list that was refused, and objects that were not deleted, are no errors of their own kinds in the library."""
_ELSEWHERE = re.compile("AuthorizationHeaderMalformed|PermanentRedirect|incorrectly configured region")
_PASSWORD = re.compile(r"//[^/\s]*@")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_MESSAGE = re.compile("<Message>(.*?)</Message>", re.DOTALL)


class Url(type(Path())):  # type: ignore[misc]
    """``s3://bucket/prefix`` where a path is asked for: the two slashes survive."""

    def __str__(self) -> str:
        return str(super().__str__()).replace(":/", "://", 1)


class Bucket:
    """Objects below ``s3://bucket/prefix``. Credentials, region and endpoint come from the usual ``AWS_*`` variables.

    An object is there as a whole or not at all, so nothing is staged here: work in progress lies in a
    staging folder of this machine. There is no lock; instead the root manifest is put on the condition that it is still
    the one that was read (If-Match), or that there is none (If-None-Match): of two writers one wins, and the other gets
    StoreLocked. An object that nothing names may be the other's upload, so it is removed only if it is older than the
    root manifest or has a forgotten sample's id, or by ``taftcache gc`` according to its age.

    Reads raise FileNotFoundError for what is not there, StoreNotFound if there is no such bucket, and StoreUnreachable
    if the service still does not answer, or refuses, after the retries; writes raise StoreWriteError.
    """

    stable = False
    locked = False

    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError:
            raise StoreError(
                "a store in a bucket needs the package obstore",
                got=f"s3://{bucket}/{prefix}",
                do="pip install 'taftcache[s3]'",
            ) from None
        self.path: Path = Url(f"s3:/{bucket}/{prefix}".rstrip("/"))
        self._api, self._bucket, self._prefix, self.opened = obstore, bucket, prefix, ""
        self._seen: dict[str, str | None] = {}  # files that may be swapped -> their version when last read
        options = CLIENT | _plain_http()

        def client(more: Any) -> Any:
            return S3Store(bucket, prefix=prefix or None, retry_config=RETRIES, client_options=options | more)

        self._store: Any = self._ask("the bucket", lambda: client(READS))
        self._writing: Any = client({})
        self._writing_large: Any = client(SLOW)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self._bucket, self._prefix), {"opened": self.opened}

    def close(self) -> None:
        """Nothing to release."""

    def is_versioned(self, name: str) -> bool:
        """Whether the service keeps, or once kept, old versions of the object ``name``."""
        found = self._head(name)
        return found is not None and found["version"] is not None

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of ``name``; FormatError, before they are fetched, when there are more than ``limit``."""

        def get() -> bytes:
            found = self._api.get(self._store, _checked(name))
            if found.meta["size"] > limit:
                raise too_large(name, found.meta["size"], limit)
            data = bytes(found.bytes())
            self._seen[name] = found.meta["e_tag"]
            return data

        return self._ask(name, get)

    def view(self, name: str, size: int) -> tuple[int, Any]:
        """How many bytes ``name`` has, and those bytes, fetched (None when they are not ``size``)."""

        def get() -> tuple[int, Any]:
            found = self._api.get(self._store, _checked(name))
            return found.meta["size"], found.bytes() if found.meta["size"] == size else None

        return self._ask(name, get)

    def size(self, name: str) -> int:
        """Bytes of the object ``name``, or of all objects below it."""
        return sum(meta["size"] for meta in self._below(name))

    def changed(self, name: str) -> float:
        """When the object ``name``, or the newest below it, was put: seconds since 1970; 0 if there is none."""
        return max((meta["last_modified"].timestamp() for meta in self._below(name)), default=0.0)

    def entries(self, name: str = "") -> list[tuple[str, bool]]:
        """(name, is a folder) of what lies directly below ``name``, sorted."""
        found = self._ask(name, lambda: self._api.list_with_delimiter(self._store, name or None))
        folders = {path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]}
        files = {meta["path"].rpartition("/")[2] for meta in found["objects"]}
        return sorted([(leaf, True) for leaf in folders] + [(leaf, False) for leaf in files - folders])

    def walk(self, name: str = "") -> Iterator[str]:
        """Every object below ``name``, sorted."""
        yield from sorted(meta["path"] for meta in self._listed(name))

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name, or any below it."""
        return self._head(name) is not None or bool(self._listed(name))

    def put(self, name: str, data: Any, *, mode: int | None = None) -> None:
        """Put the object ``name``: as a whole, and durable once the service has said so. Objects have no ``mode``.

        In one request, however large: parts of a killed upload would stay in the bucket without appearing in the lists
        of objects by which forgotten rows are found and removed.
        """
        raw = memoryview(data).cast("B")
        to = self._writing_large if len(raw) > LARGE else self._writing
        self._ask(name, lambda: self._api.put(to, _checked(name), raw, use_multipart=False), writes=True)

    def place(self, staging: Folder, staged: str, name: str) -> None:
        """Upload the file or folder ``staged`` of the staging folder, where it stays until its commit is through."""
        files = list(staging.walk(staged)) if staging.is_folder(staged) else [staged]
        for file in files:
            self.put(f"{name}{file.removeprefix(staged)}", staging.view(file, staging.size(file))[1])

    def swap(self, name: str, data: bytes) -> None:
        """Replace the object ``name`` if it is still what was last read here, or create it if none was read.

        StoreLocked if another writer was faster. A lost answer is no failure: what the bucket then holds decides.
        """
        errors = self._api.exceptions
        seen = self._seen.get(name)
        mode: Any = "create" if seen is None else {"e_tag": seen}
        try:
            found = self._api.put(self._writing, _checked(name), data, mode=mode, use_multipart=False)
        except (errors.BaseError, FileNotFoundError) as error:
            try:
                there = self.read(name, max(len(data), 64 << 20))
            except (OSError, StoreError):
                there = b""
            if there == data:
                return
            if isinstance(error, errors.AlreadyExistsError | errors.PreconditionError):
                raise forestalled(self.path) from None
            raise self._failed(name, error) from None
        self._seen[name] = found["e_tag"]
        if seen is None:
            self._check_conditions(name, data)

    def _check_conditions(self, name: str, data: bytes) -> None:
        """StoreWriteError, and nothing stays, from a service that puts ``name``, new and with ``data``, once more on
        conditions that do not hold. It would let two writers undo each other's commits, erasures too, unnoticed."""
        errors = self._api.exceptions
        modes: list[Any] = ["create", {"e_tag": '"00000000000000000000000000000000"'}]
        for mode in modes:
            with suppress(errors.BaseError):
                self._api.put(self._writing, _checked(name), data, mode=mode, use_multipart=False)
                self.remove(name)
                raise StoreWriteError(
                    f"cannot keep a store in {self.path}: the object store ignores the conditions of a write",
                    got="it replaced an object that was to be new, or another one (If-None-Match, If-Match)",
                    do="use an object store that honours If-None-Match and If-Match, or a folder",
                )

    def remove(self, name: str) -> None:
        """Delete the object ``name`` and all below it."""
        # Backwards: if only some go, the ids in a shard, by which a leftover is known, go after its tokens.
        files = sorted((meta["path"] for meta in self._below(name)), reverse=True)
        for at in range(0, len(files), 1000):
            some = files[at : at + 1000]
            self._ask(name, lambda some=some: self._api.delete(self._store, some), writes=True)  # type: ignore[misc]
            for file in some:
                self._seen.pop(file, None)

    def _below(self, name: str) -> list[Any]:
        """Size, date and so on of the object ``name`` and of all objects below it."""
        own = self._head(name) if name else None
        return self._listed(name) + ([own] if own is not None else [])

    def sizes(self, name: str) -> dict[str, int]:
        """The bytes of every object below ``name``, by its name from the root."""
        return {meta["path"]: meta["size"] for meta in self._listed(name)}

    def _listed(self, name: str) -> list[Any]:
        return list(self._ask(name, lambda: self._api.list(self._store, name or None, chunk_size=1000).collect()))

    def _head(self, name: str) -> Any:
        try:
            return self._ask(name, lambda: self._api.head(self._store, _checked(name)))
        except FileNotFoundError:
            return None

    def _ask(self, name: str, ask: Callable[[], T], writes: bool = False) -> T:
        """What ``ask`` returns; it may be called several times. The library repeats requests without an answer, but not
        all whose answer was cut off: these fail within a second, and are repeated here."""
        errors = self._api.exceptions
        begin = time.monotonic()
        for attempt in count():
            try:
                return ask()
            except (errors.BaseError, FileNotFoundError) as error:
                lost = _NO_BUCKET in str(error)
                if isinstance(error, errors.NotFoundError | FileNotFoundError) and not lost:
                    raise FileNotFoundError(errno.ENOENT, "No such object", name) from None
                if isinstance(error, errors.GenericError) and not lost and attempt < 4 and time.monotonic() - begin < 1:
                    continue
                if writes:
                    raise self._failed(name, error) from None
                cause, do = self._why(error)
                kind = StoreNotFound if lost else StoreUnreachable
                raise kind(f"cannot read {self.path}: {cause}", got=_got(name, error), do=do) from None
        raise AssertionError

    def _failed(self, name: str, error: Exception) -> StoreWriteError:
        cause, do = self._why(error)
        return StoreWriteError(
            f"cannot write to {self.path}: {cause}",
            got=_got(name, error),
            do=f"{do}{INTACT}",
        )

    def _why(self, error: Exception) -> tuple[str, str]:
        """What went wrong, and what to do about it."""
        said = str(error)
        errors = self._api.exceptions
        if _NO_BUCKET in said:
            return f"there is no bucket named {self._bucket}", "correct the bucket's name, or make the bucket"
        if _EXPIRED.search(said):
            return (
                f"the credentials for the bucket {self._bucket} have expired, or this machine's clock is wrong",
                "renew the credentials (AWS_SESSION_TOKEN and the keys), or set the clock",
            )
        if _ELSEWHERE.search(said):
            return f"the bucket {self._bucket} is in another region", "set AWS_REGION to the region of the bucket"
        if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError) or _REFUSED.search(said):
            return (
                f"the object store refused the credentials for the bucket {self._bucket}",
                "look at the credentials (AWS_*): they must allow to read, list, write and delete in that bucket",
            )
        if _NO_CREDENTIALS.search(_short(error)):
            return (
                f"no credentials are set for the bucket {self._bucket}",
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (the files in ~/.aws are not read)",
            )
        return (
            "the object store does not answer, or answers with an error",
            "look at the endpoint, the region and whether the credentials have expired (AWS_*), or try again later",
        )


def _plain_http() -> Any:
    """The option that allows HTTP without TLS, if the endpoint asks for it, as on test servers and in clusters."""
    return {"allow_http": True} if any(place.startswith("http://") for place in endpoints()) else {}


def endpoints() -> list[str]:
    """The endpoints that the environment names instead of Amazon's."""
    return [place for name in _ENDPOINTS if (place := os.environ.get(name))]


def _checked(name: str) -> str:
    return "/".join(parts_of(name))


def _got(name: str, error: Exception) -> str:
    return f"{name}: {_short(error)}" if name else _short(error)


def _short(error: Exception) -> str:
    """The message in the service's answer, or the error's first line: the rest is the library's own representation."""
    said = _MESSAGE.search(str(error))
    return _PASSWORD.sub("//", html.unescape(said[1]) if said else str(error)).strip().split("\n")[0][:300]
