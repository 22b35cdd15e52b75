"""What outlives a store, in a file beside its folder: its tombstones, so that an old copy put back is noticed, and
what was released privately, so that no store at its place begins with a fresh budget."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.ledger import Charge
from taftcache.cache.format.manifest import FILE
from taftcache.cache.format.parts import Tombstones
from taftcache.cache.place.address import is_bucket
from taftcache.cache.place.failure import advice, cause, too_large
from taftcache.cache.place.folder import PRIVATE, Folder, writing
from taftcache.cache.read.around import REMEMBERED
from taftcache.errors import FormatError, IntegrityError, StoreError, StoreWriteError
from taftcache.names import typed

FORMAT = "taftcache-forgotten"
VERSIONS = (2, 3)
MAX_BYTES = 1 << 30
READABLE = (
    "let its owner change the file's mode (chmod g+r), which later writes keep, where others read the store: the file "
    "tells an old copy of it from the present one"
)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_Contents = tuple[dict[bytes, frozenset[str]], dict[str, Charge]]


class _UnderKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tombstones under one key (hex)."""

    key: str
    tombstones: list[str]


class _Head(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Version 3, and 2 where there are no charges. ``digest`` is that of the canonical JSON of all other fields."""

    digest: str
    format: str
    version: int
    keys: list[_UnderKey]
    charges: list[Charge] = []

    @classmethod
    def of(cls, keys: list[_UnderKey], charges: list[Charge]) -> _File:
        version = 3 if charges else 2
        rest = {"format": FORMAT, "version": version, "keys": keys} | ({"charges": charges} if charges else {})
        return cls(digest(canonical(rest)), FORMAT, version, keys, charges)


_Found = tuple[_File, os.stat_result]


class TombstoneFile:
    """``<store>.forgotten``: the keyed hashes of what a store at this place has forgotten, their keys, and what private
    trainings released about its rows.

    A copy of the store from before a request has neither the tombstones nor the receipt, so it cannot tell that rows
    were forgotten since. A copy from before a private training, or a new store, does not know what was spent. This file
    lies outside the folder, so that restoring the folder leaves it as it is. It is named after the real folder,
    whatever links a path goes through. A file beside a link, left from where the folder lay before, is read too, and
    merged into this one at the next write. A store in a bucket has no such file: only this object remembers what is
    added. ``add``, ``destroy_key`` and ``destroy_keys`` write at once; what ``merge``, ``consider`` and ``add_charges``
    take in waits for the next write. Whoever may write to the folder around the store may put such a file there, with a
    key of his own: `check_owner` comes before its keys are used.

    Raises:
        IntegrityError: the file is damaged. FormatError: it is of another version. StoreError: it cannot be read.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self.file: Path | None = None
        self._by_key: dict[bytes, frozenset[str]] = {}
        self.unsaved: StoreError | None = None  # why the last `save` failed, if any did
        self._earlier: Path | None = None  # a file that goes once its tombstones are in this one
        self._charges: dict[str, Charge] = {}
        self._saved: _Contents | None = {}, {}  # what the file has; None: it must be rewritten
        self._mode = PRIVATE
        self._stranger = "", ""  # a file that others may have written, and who
        if is_bucket(store):
            return
        real = Path(os.path.realpath(store))
        self.file = _beside(real)
        by_link = _beside(Path(os.path.abspath(store)))
        by_link = Path(os.path.realpath(by_link.parent)) / by_link.name
        if by_link != self.file and (found := _read(by_link)) is not None:
            self._earlier = by_link
            self._take(found, by_link, real)
        if (found := _read(self.file)) is not None:
            self._take(found, self.file, real)
            self._saved = dict(self._by_key), dict(self._charges)
            self._mode = stat.S_IMODE(found[1].st_mode)
        if self._earlier is not None:
            self._saved = None

    @property
    def key(self) -> bytes:
        """The newest key; empty when nothing was ever forgotten here."""
        return list(self._by_key)[-1] if self._by_key else b""

    @property
    def charges(self) -> list[Charge]:
        """What private trainings at this place have released, of all stores that were here."""
        return list(self._charges.values())

    def add_charges(self, charges: Iterable[Charge]) -> None:
        """Remember ``charges``; the next `save` writes them."""
        for charge in charges:
            self._charges.setdefault(charge.entry, charge)

    @property
    def newest(self) -> frozenset[str]:
        """The tombstones under the newest key."""
        return self.under(self.key)

    def under(self, key: bytes) -> frozenset[str]:
        """The tombstones under ``key``."""
        return self._by_key.get(key, frozenset())

    def holds(self, name: str) -> bool:
        """Whether ``name`` was forgotten here, under the newest key."""
        return bool(self._by_key) and ledger.forgotten_form(name, self.key, self.newest) is not None

    def more_than(self, known: Iterable[str]) -> bool:
        """Whether anything was forgotten here that is not among the ``known`` tombstones."""
        there = frozenset().union(*self._by_key.values())
        return bool(there) and not _same(there, known) and not there <= frozenset(known)

    def match(self, ids: Iterable[str], known: Iterable[str]) -> list[str]:
        """Those of ``ids`` that were forgotten here, by tombstones that are not in ``known``."""
        news = self.beyond(known)
        return [i for i in ids if is_among(i, news)] if news else []

    def beyond(self, known: Iterable[str]) -> dict[bytes, frozenset[str]]:
        """Key -> the tombstones under it that are not ``known``."""
        if not self.more_than(known):
            return {}
        known = frozenset(known)
        return {key: hashes - known for key, hashes in self._by_key.items() if hashes - known}

    def add(self, key: bytes, tombstones: Iterable[str]) -> None:
        """Remember ``tombstones`` under ``key``; writes only what changes."""
        before = self._by_key.get(key, frozenset())
        if not _same(before, tombstones) and (after := before.union(tombstones)) != before:
            self._by_key[key] = after
        self.save()

    def merge(self, other: TombstoneFile) -> None:
        """Count in what ``other`` remembers; its keys are older than those known here. The next write includes it."""
        merged = dict(other._by_key)
        for key, hashes in self._by_key.items():
            merged[key] = merged.pop(key, frozenset()) | hashes
        self._by_key = merged
        self.add_charges(other.charges)

    def consider(self, key: bytes, tombstones: Iterable[str]) -> None:
        """Count in ``tombstones`` under ``key``, the newest key from now on; the next write includes them."""
        self._by_key[key] = self._by_key.pop(key, frozenset()) | frozenset(tombstones)

    def destroy_key(self, key_digest: str) -> None:
        """Forget the key of that digest and all that is remembered under it."""
        self._by_key = {key: hashes for key, hashes in self._by_key.items() if digest(key) != key_digest}
        self.save()

    def destroy_keys(self) -> None:
        """Forget all keys and what is remembered under them, including those of earlier stores at this place."""
        self._by_key = {}
        self.save()

    def covers(self, key: bytes, tombstones: Iterable[str]) -> bool:
        """Whether all of ``tombstones`` are remembered."""
        return self.under(key) >= frozenset(tombstones)

    def check_owner(self) -> None:
        """StoreError if others than those who write to the store may have written the file, and so know its keys."""
        file, who = self._stranger
        if who:
            store = typed(file.removesuffix(REMEMBERED))
            raise StoreError(
                f"cannot trust the tombstones beside the store: {who}, so others may know the key in their file",
                got=file,
                do="if it is a colleague's, put a copy of your own in its place (cp, chmod 600, mv -f); else move it "
                f"away and, if the store may have its key, taftcache forget {store} --destroy-key: then forgotten "
                "samples may come back",
            )

    def _take(self, found: _Found, file: Path, store: Path) -> None:
        contents, made = found
        for under in contents.keys:
            self.consider(bytes.fromhex(under.key), under.tombstones)
        self.add_charges(contents.charges)
        if who := _written_by_others(made, file, store):
            self._stranger = str(file), who

    @property
    def is_saved(self) -> bool:
        """Whether the file has all of it; True in a bucket, where there is no file."""
        return self.file is None or (self._by_key, self._charges) == self._saved

    def save(self) -> None:
        """Write what the file does not have yet; a StoreError is also kept as ``unsaved``."""
        if self.file is None or self.is_saved:
            return
        try:
            self._write(self.file)
        except StoreError as error:
            self.unsaved = error
            raise

    def _write(self, file: Path) -> None:
        self.check_owner()  # else keys of theirs came into a file of ours
        keys = [_UnderKey(key.hex(), sorted(hashes)) for key, hashes in self._by_key.items()]
        raw = canonical(_File.of(keys, self.charges))
        if len(raw) > MAX_BYTES:
            raise StoreWriteError(
                f"the file of tombstones would have {len(raw)} bytes, and only {MAX_BYTES} are read", got=str(file)
            )
        with writing(file.parent):
            os.makedirs(file.parent, exist_ok=True)  # missing if the store is yet to be made
            with closing(Folder(file.parent)) as folder:
                folder.swap(file.name, raw, mode=self._mode)
        self._saved = dict(self._by_key), dict(self._charges)
        self._remove_earlier()

    def _remove_earlier(self) -> None:
        """Remove the file beside a link: it says no more than this one, and would keep a key that is destroyed here."""
        if self._earlier is None:
            return
        with writing(self._earlier.parent), closing(Folder(self._earlier.parent)) as folder:
            folder.remove(self._earlier.name)
        self._earlier = None


def is_among(name: str, by_key: Mapping[bytes, frozenset[str]]) -> bool:
    """Whether ``name`` has one of these tombstones, in one of its forms."""
    return any(ledger.forgotten_form(name, key, hashes) is not None for key, hashes in by_key.items())


def _same(hashes: frozenset[str], others: Iterable[str]) -> bool:
    """Whether ``others`` are a manifest's tombstones, equal to ``hashes``. Compared as they lie on the disk, so that no
    set of 500,000 is built."""
    return isinstance(others, Tombstones) and len(hashes) == len(others) and Tombstones.of(hashes) == others


def _beside(store: Path) -> Path:
    return store.with_name(store.name + REMEMBERED)


def _written_by_others(made: os.stat_result, file: Path, store: Path) -> str:
    """How others than those who may write to the ``store`` may have written the ``file`` beside it, whose status was
    ``made``; "" if they may not.

    Where several write to one store, the file is that of one who has made a commit.
    """
    around, there = file.parent.stat(), None
    with suppress(FileNotFoundError):
        there = store.stat()
    # Anyone may write to the store; or there are no modes, which only the folder around tells if it is yet to be made.
    if (there or around).st_mode & (stat.S_IWOTH if there else stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        return ""
    if made.st_mode & stat.S_IWOTH:
        return "anyone may write to them"
    writers = {os.geteuid(), 0, around.st_uid} | ({there.st_uid} if there is not None else set())
    commits = (own.stat().st_uid for name in (FILE, "ledger/*.json", "shards/*.json") for own in store.glob(name))
    if made.st_uid in writers or made.st_uid in commits:
        return ""
    try:
        name = pwd.getpwuid(made.st_uid).pw_name
    except KeyError:
        name = str(made.st_uid)
    return f"they belong to another user ({name})"


def _read(file: Path) -> _Found | None:
    """The file, and its status; None where there is none."""
    try:
        with closing(Folder(file.parent)) as folder:
            fd, size = folder.open(file.name)
            with os.fdopen(fd, "rb") as opened:
                if size > MAX_BYTES:
                    raise too_large(file.name, size, MAX_BYTES)
                raw, made = opened.read(size), os.fstat(fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if isinstance(error, PermissionError) and not os.path.lexists(file):  # a folder that may not be listed
            return None
        raise StoreError(
            f"cannot read the tombstones beside the store: {cause(error)}",
            got=str(file),
            do=READABLE if isinstance(error, PermissionError) else advice(error),
        ) from None
    return _decode(raw, file), made


def read_keys(file: Path) -> dict[bytes, frozenset[str]]:
    """The keys in a `TombstoneFile` of any store, with the tombstones under each; none where there is no file. The
    errors are those of `TombstoneFile`."""
    found = _read(file)
    return {} if found is None else _by_key(found[0])


def decoded_keys(raw: bytes) -> dict[bytes, frozenset[str]] | None:
    """The same from the bytes of such a file; None for any others. It has keyed hashes, and nothing from rows."""
    try:
        return _by_key(_decode(raw, Path()))
    except (FormatError, IntegrityError):
        return None


def _by_key(contents: _File) -> dict[bytes, frozenset[str]]:
    return {bytes.fromhex(under.key): frozenset(under.tombstones) for under in contents.keys}


def _decode(raw: bytes, file: Path) -> _File:
    try:
        head = msgspec.json.decode(raw, type=_Head)
        if head.format == FORMAT and head.version not in VERSIONS:
            raise FormatError(
                f"the tombstones beside the store are of version {head.version}, and versions"
                f" {' and '.join(map(str, VERSIONS))} are read",
                got=str(file),
                do="use the version of taftcache that wrote the file",
            )
        found = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(file, str(error)) from None
    if canonical(found) != raw or found != _File.of(found.keys, found.charges):
        raise _damaged(file, "its contents do not have the digest or the format that it names")
    if not all(_is_key(under.key) and all(map(_DIGEST.fullmatch, under.tombstones)) for under in found.keys):
        raise _damaged(file, "a key or a tombstone in it does not have 64 hex digits")
    if not all(_DIGEST.fullmatch(text) for charge in found.charges for text in (charge.entry, charge.chain)):
        raise _damaged(file, "a digest in it does not have 64 hex digits")
    return found


def _damaged(file: Path, what: str) -> IntegrityError:
    return IntegrityError(
        f"the tombstones beside the store are damaged: {what}",
        got=str(file),
        do="restore it from a copy: without it, an old copy of the store brings forgotten rows back unseen",
    )


def _is_key(text: str) -> bool:
    return len(text) == 2 * ledger.KEY_BYTES and _DIGEST.fullmatch(text) is not None
