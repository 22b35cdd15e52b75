"""What a ShardWriter has made durable: an append-only file, one checked line for each finished chunk."""

from __future__ import annotations

import errno
from typing import Annotated

import msgspec

from taftcache.cache.format.digest import SHORT, canonical, digest
from taftcache.cache.format.manifest import Manifest
from taftcache.cache.format.parts import Skipped
from taftcache.cache.place.failure import cannot
from taftcache.cache.place.folder import Folder
from taftcache.cache.write.group import ChunkRecord, ShardForm
from taftcache.errors import FormatError, StoreUnreachable

FILE = "journal"
MAX_BYTES = 4 << 30
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class Header(ShardForm, frozen=True, kw_only=True):
    """The shard's form, and what its rows were made from: a writer continues a journal only if all of it is the same.

    Unknown fields are ignored, because release 0.1.0 wrote one more.
    """

    identity: str
    candidates: str
    version: int = 1

    @staticmethod
    def made_from(named: Manifest) -> str:
        """A digest of what rows and labels mean in the store with the manifest ``named``."""
        return digest(canonical({"identity": named.identity, "classes": named.classes}))


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="chunk"):
    """One durable chunk: its rows' ids and labels, and for each row how many candidates are done with it.

    ``skipped`` are (row of the chunk that they come before, sample).
    """

    chunk: ChunkRecord
    ids: list[str]
    labels: list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]
    done: list[int]
    skipped: list[tuple[int, Skipped]]


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sealed"):
    """The group is finished, and the shard manifest has this digest."""

    digest: str


class Journal:
    """The journal below the staging folder ``at``."""

    def __init__(self, root: Folder, at: str) -> None:
        self._root, self._file = root, f"{at}/{FILE}"
        self._at = at

    def read(self) -> tuple[Header | None, list[Line], Seal | None]:
        """What is durable: up to the first line that is incomplete. (None, [], None) where there is no journal.

        Raises:
            StoreUnreachable: the system could not read it now. What it names is durable all the same, and stays.
        """
        header, lines, seal, _ = self._scan()
        return header, lines, seal

    def start(self, header: Header, lines: list[Line] | None = None) -> None:
        """Begin anew with ``header`` (and ``lines`` that are known to be durable)."""
        self._root.make(self._at)
        data = b"".join(_encode(item) for item in (header, *(lines or ())))
        self._root.swap(self._file, data)

    def cut_incomplete(self) -> None:
        """Cut off an incomplete last line, so that the next one can follow."""
        self._root.truncate(self._file, self._scan()[3])

    def append(self, *items: Line | Seal) -> None:
        """Add lines and make them durable."""
        self._root.append(self._file, b"".join(map(_encode, items)))

    def _scan(self) -> tuple[Header | None, list[Line], Seal | None, int]:
        try:
            raw = self._root.read(self._file, MAX_BYTES)
        except FormatError:
            return None, [], None, 0
        except OSError as error:
            if error.errno not in NO_FILE:
                raise cannot("read", f"{self._root.path}/{self._file}", error, StoreUnreachable) from error
            return None, [], None, 0
        header: Header | None = None
        lines: list[Line] = []
        at = 0
        while (end := raw.find(b"\n", at)) >= 0:
            check, _, text = raw[at:end].partition(b" ")
            if check.decode("ascii", "replace") != digest(text)[:SHORT]:
                break
            try:
                if header is None:
                    header = msgspec.json.decode(text, type=Header)
                else:
                    item = msgspec.json.decode(text, type=Line | Seal)
                    if isinstance(item, Seal):
                        return header, lines, item, end + 1
                    lines.append(item)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                break
            at = end + 1
        return header, lines, None, at


def _encode(item: Header | Line | Seal) -> bytes:
    text = canonical(item)
    return digest(text)[:SHORT].encode() + b" " + text + b"\n"
