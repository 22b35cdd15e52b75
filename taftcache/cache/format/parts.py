"""Parts: lists that would make a root manifest grow without end. Each has a file of its own, read when it is asked for.

They are the curve of a component's solve, the samples that a shard left out, and the tombstones. A part is named by its
digest: ``lists/<kind>-<16 digits><suffix>``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from taftcache.cache.format.digest import MAX_DEPTH, SHORT, canonical, digest, too_deep
from taftcache.cache.format.fault import Fault, read_named
from taftcache.cache.format.strict import Hex, decode_strict
from taftcache.cache.place.failure import AVOID
from taftcache.cache.place.home import Home
from taftcache.errors import FormatError, StoreError, StoreWriteError

FOLDER = "lists"
TOMBSTONE_BYTES = 32
MAX_TOMBSTONES = 1 << 22
MAX_SKIPPED = 1 << 20
MAX_SKIPPED_BYTES = 64 << 20
MAX_CURVE_BYTES = 16 << 20
MAX_CURVE_VALUES = 1 << 21
MAX_PART_BYTES = MAX_TOMBSTONES * TOMBSTONE_BYTES
_SUFFIXES = {"tombstones": "", "skipped": ".json", "curve": ".json"}
_LESS = {
    "tombstones": "`taftcache forget STORE --destroy-key` removes the tombstones and their key",
    "skipped": "take the samples that cannot be used out of the data source, or use more shards",
    "curve": "give it fewer points",
}


class PartRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the root manifest says of a part: ``count`` is how many points, samples or tombstones it has."""

    path: str
    digest: Hex
    size: int
    count: int


class Skipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample that was a candidate for ``shard`` and has no row, and why."""

    id: str
    reason: str
    shard: str = ""


class _LeftOut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A skipped sample in the file of its shard."""

    id: str
    reason: str


class Part:
    """One part: in memory until a commit has put it in its place, then in the store at ``home``."""

    def __init__(self, kind: str, ref: PartRef, *, home: Home | None = None, data: bytes | None = None) -> None:
        self.kind, self.ref = kind, ref
        self._home, self._data = home, data

    @classmethod
    def of(cls, kind: str, data: bytes, count: int) -> Part:
        """A new part, in memory."""
        return cls(kind, PartRef(part_path(kind, digest(data)), digest(data), len(data), count), data=data)

    def data(self) -> bytes:
        """Its bytes, verified: IntegrityError for damage, FormatError for what must be refused."""
        if self._data is not None:
            return self._data
        if self._home is None:
            raise StoreError(f"cannot read {self.ref.path}: its manifest was read without its store")
        return self._read(self._home)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and self.ref == other.ref

    def __hash__(self) -> int:
        return hash(self.ref)

    def check(self) -> None:
        """StoreWriteError if this part is only in memory and no reader would take it."""
        if self._data is None:
            return
        try:
            decode(self.kind, self._data, self.ref)
        except FormatError as error:
            raise StoreWriteError(
                f"cannot commit, for the store could not be read again: {error.fault}",
                got=error.got,
                do=f"{_LESS[self.kind]}; nothing was changed",
            ) from error

    def fault(self, home: Home) -> Fault | None:
        """What is wrong with its file in the store at ``home``; reads the file again."""
        return Fault.of(lambda: self._read(home), file=self.ref.path)

    def _read(self, home: Home) -> bytes:
        raw = read_named(home, self.ref.path, self.ref.size, self.ref.digest, "the root manifest")
        decode(self.kind, raw, self.ref)
        return raw


def part_path(kind: str, digest: str) -> str:
    """Where the part of that kind and digest lies."""
    return f"{FOLDER}/{kind}-{digest[:SHORT]}{_SUFFIXES[kind]}"


def decode(kind: str, data: bytes, ref: PartRef) -> Any:
    """What a part's bytes say: a curve's points, `_LeftOut` samples, or the bytes themselves; FormatError for what
    must be refused."""
    return {"tombstones": _sorted_digests, "skipped": _left_out, "curve": _points}[kind](data, ref)


class Tombstones(Collection[str]):
    """The tombstones of a store, 64 hex digits each, in ascending order. On the disk each takes 32 bytes; a binary
    search in those bytes finds one, so no set is built."""

    def __init__(self, part: Part | None = None) -> None:
        self.part = part
        self._bytes: bytes | None = None

    @classmethod
    def of(cls, hashes: Iterable[str]) -> Tombstones:
        """The given ``hashes``, each once."""
        return hashes if isinstance(hashes, Tombstones) else cls._sorted(bytes.fromhex("".join(hashes)))

    @classmethod
    def _sorted(cls, records: bytes) -> Tombstones:
        if not records:
            return cls()
        ordered = np.sort(np.frombuffer(records, _RECORD))  # np.unique hashes texts, and takes ten times as long
        raw = ordered[np.append(True, ordered[1:] != ordered[:-1])].tobytes()
        return cls(Part.of("tombstones", raw, len(raw) // TOMBSTONE_BYTES))

    def __len__(self) -> int:
        return self.part.ref.count if self.part else 0

    def __iter__(self) -> Iterator[str]:
        text = self._raw().hex()
        return (text[at : at + 64] for at in range(0, len(text), 64))

    def __contains__(self, tombstone: object) -> bool:
        if not isinstance(tombstone, str) or not len(self):
            return False
        raw, wanted = self._raw(), bytes.fromhex(tombstone)

        def record(k: int) -> bytes:
            return raw[k * TOMBSTONE_BYTES : (k + 1) * TOMBSTONE_BYTES]

        at = bisect_left(range(len(self)), wanted, key=record)
        return at < len(self) and record(at) == wanted

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Tombstones):
            return self._digest() == other._digest()
        return isinstance(other, list) and list(self) == other

    def __hash__(self) -> int:
        return hash(self._digest())

    def plus(self, hashes: Collection[str]) -> Tombstones:
        """These tombstones and ``hashes``."""
        new = [one for one in hashes if one not in self]
        return Tombstones._sorted(self._raw() + bytes.fromhex("".join(new))) if new else self

    def beyond(self, others: Tombstones) -> list[str]:
        """Those that ``others`` does not have."""
        if self == others or not len(self):
            return []
        own, known = (np.frombuffer(one._raw(), _RECORD) for one in (self, others))
        return list(Tombstones._sorted(np.setdiff1d(own, known, assume_unique=True).tobytes()))

    def _digest(self) -> str:
        return self.part.ref.digest if self.part else ""

    def _raw(self) -> bytes:
        if self._bytes is None:
            self._bytes = self.part.data() if self.part else b""
        return self._bytes


class SkippedSamples(Collection[Skipped]):
    """The skipped samples of a store, shard after shard, by id within a shard; each shard's in a part of its own."""

    def __init__(self, parts: Mapping[str, Part] | None = None) -> None:
        self.parts = dict(sorted((parts or {}).items()))

    @classmethod
    def given(cls, samples: Iterable[Skipped]) -> SkippedSamples:
        """The given ``samples``, of any shards."""
        if isinstance(samples, SkippedSamples):
            return samples
        shards: dict[str, list[Skipped]] = {}
        for sample in samples:
            shards.setdefault(sample.shard, []).append(sample)
        return cls({shard: _skipped_part(some) for shard, some in shards.items()})

    def of(self, shard: str) -> list[Skipped]:
        """Those of one shard."""
        part = self.parts.get(shard)
        found = decode("skipped", part.data(), part.ref) if part else []
        return [Skipped(sample.id, sample.reason, shard) for sample in found]

    def replaced(self, shard: str, samples: Iterable[Skipped]) -> SkippedSamples:
        """A copy with ``samples`` in place of those of ``shard``."""
        rest = {name: part for name, part in self.parts.items() if name != shard}
        return SkippedSamples(rest | SkippedSamples.given(samples).parts)

    def without(self, ids: Collection[str], shards: Collection[str]) -> SkippedSamples:
        """A copy without these ``ids`` and without all samples of these ``shards``. The parts of others stay."""
        left = {}
        for shard, part in self.parts.items():
            if shard in shards:
                continue
            some = self.of(shard) if ids else []
            kept = [sample for sample in some if sample.id not in ids]
            if len(kept) == len(some):
                left[shard] = part
            elif kept:
                left[shard] = _skipped_part(kept)
        return SkippedSamples(left)

    def __len__(self) -> int:
        return sum(part.ref.count for part in self.parts.values())

    def __iter__(self) -> Iterator[Skipped]:
        return (sample for shard in self.parts for sample in self.of(shard))

    def __contains__(self, sample: object) -> bool:
        return isinstance(sample, Skipped) and sample in self.of(sample.shard)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SkippedSamples):
            return self._refs() == other._refs()
        return isinstance(other, list) and list(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self._refs()))

    def _refs(self) -> dict[str, PartRef]:
        return {shard: part.ref for shard, part in self.parts.items()}


def curve_part(points: list[Any]) -> Part:
    """A part that holds a curve's points, which may be any JSON."""
    return Part.of("curve", canonical(points), len(points))


def curve_points(part: Part) -> list[Any]:
    """The points of a curve."""
    points: list[Any] = decode("curve", part.data(), part.ref)
    return points


def _skipped_part(samples: Iterable[Skipped]) -> Part:
    rows = sorted((sample.id, sample.reason) for sample in samples)
    return Part.of("skipped", canonical(rows), len(rows))


_RECORD = f"S{TOMBSTONE_BYTES}"


def _sorted_digests(data: bytes, ref: PartRef) -> bytes:
    if ref.count > MAX_TOMBSTONES:
        raise FormatError(
            f"the store has {ref.count} tombstones, and {MAX_TOMBSTONES} are read", got=ref.path, do=AVOID
        )
    if len(data) != ref.count * TOMBSTONE_BYTES:
        raise _not_counted(ref)
    records = np.frombuffer(data, _RECORD)
    if not (records[:-1] < records[1:]).all():
        raise FormatError("the tombstones are not in ascending order, each once", got=ref.path, do=AVOID)
    return data


def _left_out(data: bytes, ref: PartRef) -> list[_LeftOut]:
    # `["` stands only where a sample begins: texts in JSON have no bare quotes
    count = data.count(b'["')
    if len(data) > MAX_SKIPPED_BYTES or count > MAX_SKIPPED:
        raise FormatError(
            f"a shard has {count} skipped samples in {len(data)} bytes, and {MAX_SKIPPED} in {MAX_SKIPPED_BYTES} bytes "
            "are read",
            got=ref.path,
            do=AVOID,
        )
    found: list[_LeftOut] = _json(data, list[_LeftOut], ref)
    if any(a.id > b.id for a, b in pairwise(found)):
        raise FormatError("the skipped samples are not in the order of their ids", got=ref.path, do=AVOID)
    return found


def _points(data: bytes, ref: PartRef) -> list[Any]:
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if len(data) > MAX_CURVE_BYTES or values >= MAX_CURVE_VALUES:
        raise FormatError(
            f"a curve has {len(data)} bytes and {values} values, and {MAX_CURVE_BYTES} and {MAX_CURVE_VALUES} are read",
            got=ref.path,
            do=AVOID,
        )
    if too_deep(data):
        raise FormatError(f"lists and mappings are more than {MAX_DEPTH} deep", got=ref.path, do=AVOID)
    points: list[Any] = _json(data, list[Any], ref)
    return points


def _json(data: bytes, kind: Any, ref: PartRef) -> Any:
    value: Any = decode_strict(data, kind, ref.path)
    if len(value) != ref.count:
        raise _not_counted(ref)
    return value


def _not_counted(ref: PartRef) -> FormatError:
    return FormatError(f"a list of the store does not have {ref.count} entries, as named", got=ref.path, do=AVOID)
