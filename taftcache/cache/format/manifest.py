"""The root manifest: the one file of a store that is ever replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any, Literal, Self, get_args

import msgspec

from taftcache.cache.format.digest import MAX_DEPTH, SHORT, canonical, digest_without, plain, too_deep
from taftcache.cache.format.fault import Fault
from taftcache.cache.format.naming import FILE as FILE
from taftcache.cache.format.naming import MAX_BYTES as MAX_BYTES
from taftcache.cache.format.naming import NAME, OBJECT_FOLDERS, SUFFIX, check_class_names, object_path
from taftcache.cache.format.parts import (
    MAX_PART_BYTES,
    Part,
    PartRef,
    Skipped,
    SkippedSamples,
    Tombstones,
    curve_part,
    curve_points,
    part_path,
)
from taftcache.cache.format.strict import Hex, check_version, decode_strict, decoded
from taftcache.cache.place.failure import AVOID
from taftcache.cache.place.home import Home
from taftcache.errors import FormatError, StoreError, StoreWriteError

PREVIOUS = "manifest.previous.json"
FORMAT = "taftcache-store"
VERSIONS = (1, 2)
"""The versions that are read; the last one is written."""
MAX_OBJECT_BYTES = 1 << 30
MAX_CLASSES = 1 << 17
MAX_FREE_BYTES = 16 << 20
MAX_VALUES = 1 << 21
"""The most values in the free-form parts of a manifest (identity, plan, recipe, the objects' meta) together. Each takes
at most about 110 bytes in memory."""
Role = Literal["train", "held-out"]
ROLES: tuple[Role, ...] = get_args(Role)
CURVE = "convergence"
"""The key, in an object's meta, of the curve of its solve, which is kept in a part."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_OWN_DIGEST = re.compile(rb'"digest":"([0-9a-f]{64}|)",?')


class ShardRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard: its folder ``path`` is ``shards/<name>-<16 digits of digest>``; ``digest`` is that of its manifest,
    ``<path>.json``."""

    name: str
    role: str
    rows: int
    path: str
    digest: Hex

    @classmethod
    def of(cls, name: str, role: str, rows: int, digest: str) -> ShardRef:
        return cls(name, role, rows, f"shards/{name}-{digest[:SHORT]}", digest)


@dataclass(frozen=True)
class ObjectRef:
    """One file beside the shards (a component, a base): ``path`` is ``<folder>/<name>-<16 digits><suffix>``. ``meta``
    is all that is recorded about it except its ``curve``."""

    path: str
    digest: str
    size: int
    meta: dict[str, Any]
    curve: Part | None = None

    @classmethod
    def of(cls, path: str, digest: str, size: int, meta: dict[str, Any]) -> Self:
        """Make one; if ``meta`` has a curve, it becomes a part of its own."""
        points = meta.get(CURVE)
        if not isinstance(points, list) or not points:
            return cls(path, digest, size, meta)
        rest = {key: value for key, value in meta.items() if key != CURVE}
        return cls(path, digest, size, rest, curve_part(points))

    def whole_meta(self) -> dict[str, Any]:
        """All that is recorded about it; the curve is read from its file."""
        return self.meta if self.curve is None else {**self.meta, CURVE: curve_points(self.curve)}


class LedgerRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ledger's length and the digest of its last entry, which names the one before it."""

    entries: int
    head: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a store holds. Never edited: ``replace`` gives the next one, sorted and with its digest.

    ``digest`` is the store's root digest: the BLAKE3 of the canonical JSON of all other fields, in which parts stand
    as their digests. ``version`` is that of the text that was read; ``replace`` gives the newest.
    """

    identity: dict[str, Any]
    classes: list[str]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    shards: list[ShardRef] = field(default_factory=list)
    objects: dict[str, ObjectRef] = field(default_factory=dict)
    skipped: SkippedSamples = field(default_factory=SkippedSamples)
    tombstones: Tombstones = field(default_factory=Tombstones)
    tombstone_key: str = ""
    ledger: LedgerRef | None = None
    version: int = VERSIONS[-1]
    digest: str = ""

    def replace(self, **fields: Any) -> Manifest:
        """A copy with these ``fields`` changed, in canonical order, with its digest.

        ``skipped`` and ``tombstones`` may be given as lists."""
        new = replaced(self, **{"version": VERSIONS[-1]} | fields)
        new = replaced(
            new,
            identity=plain(new.identity, "identity"),
            classes=check_class_names(new.classes),
            plan=plain(new.plan, "plan"),
            recipe=plain(new.recipe, "recipe"),
            shards=sorted(new.shards, key=lambda s: s.name),
            skipped=SkippedSamples.given(new.skipped),
            tombstones=Tombstones.of(new.tombstones),
            digest="",
        )
        raw = canonical(_text_of(new))
        own = _OWN_DIGEST.search(raw)
        assert own is not None, "every manifest has the field"
        return replaced(new, digest=digest_without(raw, *own.span()))

    @property
    def content_digest(self) -> str:
        """The digest of everything but the memory of erasures: the same for a sample forgotten and one never seen."""
        return self.replace(tombstones=[], tombstone_key="", ledger=None, version=self.version).digest

    def parts(self) -> dict[str, Part]:
        """The parts by their paths. In version 1 they are inline in the manifest and have no files."""
        curves = (thing.curve for thing in self.objects.values() if thing.curve is not None)
        own = [] if self.tombstones.part is None else [self.tombstones.part]
        return {part.ref.path: part for part in (*curves, *self.skipped.parts.values(), *own)}

    def files(self) -> set[str]:
        """Files and groups that this manifest names itself: all except the ledger and the tombstones' key."""
        shards = {path for ref in self.shards for path in (ref.path, f"{ref.path}.json")}
        parts = set(self.parts()) if self.version > 1 else set()
        return shards | parts | {ref.path for ref in self.objects.values()}

    def text(self) -> bytes:
        """The canonical JSON of this manifest."""
        return canonical(_text_of(self))

    def encode(self) -> bytes:
        """The file's bytes, accepted by the reader's own code: what that refuses must never become a root manifest.

        StoreWriteError says which limit of the format they would exceed.
        """
        return self.read_back()[0]

    def read_back(self, home: Home | None = None) -> tuple[bytes, Manifest]:
        """The bytes of `encode`, and this manifest as the reader's own code decodes them, its parts at ``home``."""
        for part in self.parts().values():
            part.check()
        raw = self.text()
        try:
            if len(raw) > MAX_BYTES:
                raise FormatError(f"{FILE} would have {len(raw)} bytes, and {MAX_BYTES} are read")
            return raw, Manifest.decode(raw, home)
        except StoreError as error:
            parts = _parts_by_size(raw)
            raise StoreWriteError(
                f"cannot commit, for the store could not be opened again: {error.fault}",
                got="; ".join(
                    [*([] if error.got is None else [str(error.got)]), *(f"{k}: {n} bytes" for k, n in parts[:3])]
                ),
                do=f"{_LESS.get(parts[0][0], 'put less into it')}; nothing was changed",
            ) from error

    @classmethod
    def decode(cls, raw: bytes, home: Home | None = None) -> Manifest:
        """Read and check a manifest: IntegrityError for damage, FormatError for anything this version must refuse.

        Its parts are read from the store at ``home`` when they are asked for.
        """
        version = check_version(raw, FORMAT, VERSIONS, Fault(file=FILE, problem="it is not JSON"))
        # The digest covers the canonical text without the digest itself; nothing is decoded before that is checked. The
        # first match is the manifest's own: only classes come before it, and texts in JSON have no bare quotes.
        own = _OWN_DIGEST.search(raw)
        if own is None or digest_without(raw, *own.span()) != own[1].decode():
            raise Fault(file=FILE, problem="its contents do not have the digest it carries").error()
        _bounded(raw)
        text = decode_strict(raw, _First, FILE) if version == 1 else decode_strict(raw, _Second, FILE)
        _check(text)
        return _manifest_of(text, home)


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields that both versions of the text share."""

    format: str = FORMAT
    version: int
    identity: dict[str, Any]
    classes: list[str]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    shards: list[ShardRef]
    tombstone_key: str
    ledger: LedgerRef | None
    digest: str


class _FirstObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    digest: Hex
    size: int
    meta: dict[str, Any]


class _First(_Text, frozen=True):
    """Version 1, in which parts are inline."""

    objects: dict[str, _FirstObject]
    skipped: list[Skipped]
    tombstones: list[Hex]


class _Object(_FirstObject, frozen=True):
    curve: PartRef | None


class _Second(_Text, frozen=True):
    """Version 2. ``skipped`` has the parts by shard name."""

    objects: dict[str, _Object]
    skipped: dict[str, PartRef]
    tombstones: PartRef | None


def _text_of(manifest: Manifest) -> _First | _Second:
    same = {name: getattr(manifest, name) for name in _Text.__struct_fields__ if name != "format"}
    objects, skipped, tombstones = manifest.objects.items(), manifest.skipped, manifest.tombstones
    if manifest.version == 1:
        return _First(
            objects={name: _FirstObject(o.path, o.digest, o.size, o.whole_meta()) for name, o in objects},
            skipped=sorted(skipped, key=lambda s: (s.id, s.shard)),
            tombstones=list(tombstones),
            **same,
        )
    return _Second(
        objects={n: _Object(o.path, o.digest, o.size, o.meta, o.curve.ref if o.curve else None) for n, o in objects},
        skipped={shard: part.ref for shard, part in skipped.parts.items()},
        tombstones=tombstones.part.ref if tombstones.part else None,
        **same,
    )


def _manifest_of(text: _First | _Second, home: Home | None) -> Manifest:
    same = {name: getattr(text, name) for name in _Text.__struct_fields__ if name != "format"}
    if isinstance(text, _First):
        return Manifest(
            objects={name: ObjectRef.of(o.path, o.digest, o.size, o.meta) for name, o in text.objects.items()},
            skipped=SkippedSamples.given(text.skipped),
            tombstones=Tombstones.of(text.tombstones),
            **same,
        )

    def part(kind: str, ref: PartRef | None) -> Part | None:
        return None if ref is None else Part(kind, ref, home=home)

    objects = text.objects.items()
    return Manifest(
        objects={n: ObjectRef(o.path, o.digest, o.size, o.meta, part("curve", o.curve)) for n, o in objects},
        skipped=SkippedSamples({shard: Part("skipped", ref, home=home) for shard, ref in text.skipped.items()}),
        tombstones=Tombstones(part("tombstones", text.tombstones)),
        **same,
    )


_LESS = {
    "objects": "use fewer shards, or components with less in their meta",
    "classes": "use fewer classes, or shorter names",
}


def _parts_by_size(raw: bytes) -> list[tuple[str, int]]:
    """(field, bytes) of a manifest, the largest first."""
    try:
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return [(FILE, len(raw))]
    return sorted(((name, len(part)) for name, part in parts.items()), key=lambda part: -part[1])


def _bounded(raw: bytes) -> None:
    """FormatError if the free-form parts of a root manifest hold millions of values: an empty list takes two bytes of
    text, and twenty times as many in memory."""
    free = decoded(raw, _Free, FILE)
    parts = [free.identity, free.plan, free.recipe, *(thing.meta for thing in free.objects.values())]
    where = f"{FILE}: identity, plan, recipe and the meta of {len(free.objects)} objects"
    text = b"".join(parts)
    size = len(text)
    if size > MAX_FREE_BYTES:
        raise FormatError(
            f"the free parts of the manifest have {size} bytes, and {MAX_FREE_BYTES} are read", got=where, do=AVOID
        )
    values = size - len(text.translate(None, delete=b",[{"))
    if values >= MAX_VALUES:
        raise FormatError(
            f"the free parts of the manifest hold {values} values, and fewer than {MAX_VALUES} are read",
            got=where,
            do=AVOID,
        )
    if too_deep(text):
        raise FormatError(f"lists and mappings are more than {MAX_DEPTH} deep", got=where, do=AVOID)
    # The list of classes ends where the manifest's own digest begins; in it, `","` can only stand between two names.
    classes = raw.count(b'","', 0, raw.find(b'"digest":')) + 1
    if classes > MAX_CLASSES:
        raise FormatError(f"the manifest has {classes} classes, and {MAX_CLASSES} are read", got=FILE, do=AVOID)


class _FreeObject(msgspec.Struct):
    meta: msgspec.Raw = msgspec.Raw(b"")


class _Free(msgspec.Struct):
    identity: msgspec.Raw = msgspec.Raw(b"")
    plan: msgspec.Raw = msgspec.Raw(b"")
    recipe: msgspec.Raw = msgspec.Raw(b"")
    objects: dict[str, _FreeObject] = {}


_NO_DIGEST = "a digest does not have 64 hex digits"


def _parts_of(text: _Second) -> Iterator[tuple[str, PartRef]]:
    yield from (("curve", thing.curve) for thing in text.objects.values() if thing.curve is not None)
    yield from (("skipped", part) for part in text.skipped.values())
    if text.tombstones is not None:
        yield "tombstones", text.tombstones


def _check(manifest: _First | _Second) -> None:
    """The rules of FORMAT.md that types do not express. A right digest shows no damage; it does not make a manifest
    trustworthy."""

    def require(holds: bool, fault: str, got: object) -> None:
        if not holds:
            raise FormatError(f"{FILE} is invalid: {fault}", got=repr(got), do=AVOID)

    names = [ref.name for ref in manifest.shards]
    require(len(set(names)) == len(names), "two shards have the same name", names)
    require(names == sorted(names), "its shards are not in the order of their names", names)
    for ref in manifest.shards:
        require(bool(NAME.fullmatch(ref.name)), "a shard's name has other signs than a-z, 0-9 and '-'", ref.name)
        require(bool(_DIGEST.fullmatch(ref.digest)), _NO_DIGEST, ref.digest)
        require(ref.path == ShardRef.of(ref.name, "", 0, ref.digest).path, "a shard is not in its folder", ref.path)
        require(ref.role in ROLES, f"a shard's role is not one of {', '.join(ROLES)}", ref.role)
        require(1 <= ref.rows < 2**31, "a shard does not have 1 to 2^31 - 1 rows", ref.rows)
    require(sum(ref.role == "held-out" for ref in manifest.shards) <= 1, "more than one shard is held out", names)
    for name, thing in manifest.objects.items():
        folder, _, leaf = name.partition("/")
        suffix = thing.path[len(name) + 1 + SHORT :]
        require(folder in OBJECT_FOLDERS and bool(NAME.fullmatch(leaf)), "an object has a wrong name", name)
        require(bool(_DIGEST.fullmatch(thing.digest)), _NO_DIGEST, thing.digest)
        require(bool(SUFFIX.fullmatch(suffix)), "an object's suffix is not like '.safetensors'", suffix)
        require(thing.path == object_path(name, thing.digest, suffix), "an object is not in its place", thing.path)
        require(
            0 <= thing.size <= MAX_OBJECT_BYTES, f"an object does not have 0 to {MAX_OBJECT_BYTES} bytes", thing.size
        )
    if isinstance(manifest, _First):
        for tombstone in manifest.tombstones:
            require(bool(_DIGEST.fullmatch(tombstone)), "a tombstone does not have 64 hex digits", tombstone)
    else:
        for kind, part in _parts_of(manifest):
            require(bool(_DIGEST.fullmatch(part.digest)), _NO_DIGEST, part.digest)
            require(part.path == part_path(kind, part.digest), "a list is not in its place", part.path)
            require(0 < part.count <= part.size <= MAX_PART_BYTES, "a list has a wrong size or count", part)
    key = manifest.tombstone_key
    require(not key or bool(_DIGEST.fullmatch(key)), _NO_DIGEST, key)
    require(bool(key) or not manifest.tombstones, "it has tombstones without a key", key)
    if manifest.ledger is not None:
        require(bool(_DIGEST.fullmatch(manifest.ledger.head)), _NO_DIGEST, manifest.ledger.head)
        require(1 <= manifest.ledger.entries < 2**31, "its ledger is empty or too long", manifest.ledger.entries)
