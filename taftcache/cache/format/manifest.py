"""The root manifest: the one file of a store that is ever replaced."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from taftcache.cache.format.digest import SHORT, canonical, digest, digest_without, plain
from taftcache.cache.format.fault import Fault
from taftcache.errors import FormatError, RecipeError, StoreError, StoreWriteError

T = TypeVar("T")
FILE = "manifest.json"
FORMAT = "taftcache-store"
VERSION = 1
MAX_BYTES = 32 << 20
MAX_OBJECT_BYTES = 1 << 30
MAX_CLASSES = 1 << 17
MAX_FREE_BYTES = 16 << 20
MAX_VALUES = 1 << 21
"""Values in the free-form parts of a manifest (identity, plan, recipe, the objects' meta) together: some 3,200
components whose curves have 200 points. The worst that such values take in memory is about 110 bytes each."""
ROLES = ("train", "held-out")
OBJECT_FOLDERS = ("base", "components", "models", "state")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z0-9]{1,16}")
_OWN_DIGEST = re.compile(rb'"digest":"([0-9a-f]{64})",?')

Hex = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
"""A digest's text; checked while a manifest is decoded, so that no other text of millions is kept."""


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


class ObjectRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file beside the shards (a component, a base): ``path`` is ``<folder>/<name>-<16 digits><suffix>``."""

    path: str
    digest: Hex
    size: int
    meta: dict[str, Any]


class LedgerRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ledger's length and the digest of its last entry, which names the one before it."""

    entries: int
    head: str


class Skipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample that was a candidate for ``shard`` and has no row, and why."""

    id: str
    reason: str
    shard: str = ""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a store holds. Never edited: ``replace`` gives the next one, sorted and with its digest.

    ``digest`` is the BLAKE3 of the canonical JSON of all other fields: the store's root digest.
    """

    format: str = FORMAT
    version: int = VERSION
    identity: dict[str, Any]
    classes: list[str]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    shards: list[ShardRef] = []
    objects: dict[str, ObjectRef] = {}
    skipped: list[Skipped] = []
    tombstones: list[Hex] = []
    tombstone_key: str = ""
    ledger: LedgerRef | None = None
    digest: str = ""

    def replace(self, **fields: Any) -> Manifest:
        """A copy with other ``fields``, in canonical order, with its digest."""
        new = msgspec.structs.replace(self, **fields)
        new = msgspec.structs.replace(
            new,
            identity=plain(new.identity, "identity"),
            classes=check_classes(new.classes),
            plan=plain(new.plan, "plan"),
            recipe=plain(new.recipe, "recipe"),
            shards=sorted(new.shards, key=lambda s: s.name),
            skipped=sorted(new.skipped, key=lambda s: (s.id, s.shard)),
            tombstones=sorted(set(new.tombstones)),
        )
        return msgspec.structs.replace(new, digest=_digest(msgspec.to_builtins(new)))

    @property
    def content_digest(self) -> str:
        """The digest of everything but what is remembered of erasures: equal for forgotten and never seen."""
        return self.replace(tombstones=[], tombstone_key="", ledger=None).digest

    def encode(self) -> bytes:
        """The file's bytes, which the reader's own code has taken: what it refuses must never become a root manifest.

        StoreWriteError says which limit of the format they would exceed.
        """
        raw = canonical(self)
        try:
            if len(raw) > MAX_BYTES:
                raise FormatError(f"{FILE} would have {len(raw)} bytes, and {MAX_BYTES} are read")
            Manifest.decode(raw)
        except StoreError as error:
            parts = _parts_by_size(raw)
            raise StoreWriteError(
                f"cannot commit, for the store could not be opened again: {error.fault}",
                got="; ".join(
                    [*([] if error.got is None else [str(error.got)]), *(f"{k}: {n} bytes" for k, n in parts[:3])]
                ),
                do=f"Nothing was changed. {_LESS.get(parts[0][0], 'Put less into it.')}",
            ) from error
        return raw

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """Read and check a manifest: IntegrityError for damage, FormatError for anything this version must refuse."""
        check_version(raw, FORMAT, VERSION, Fault(None, None, None, FILE, "it is not JSON"))
        # The canonical text without its digest is what the digest is of: nothing is decoded before that is so. The
        # first match is the manifest's own: only classes come before it, and texts in JSON have no bare quotes.
        own = _OWN_DIGEST.search(raw)
        if own is None or digest_without(raw, *own.span()) != own[1].decode():
            raise Fault(None, None, None, FILE, "its contents do not have the digest it carries").error()
        _bounded(raw)
        manifest = decode_strict(raw, cls, FILE)
        _check(manifest)
        return manifest


def check_version(raw: bytes, form: str, version: int, damage: Fault) -> None:
    """Refuse a JSON file whose ``format`` and ``version`` are not the ones expected; the rest of it is skipped over."""
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except msgspec.ValidationError:
        head = _Head()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise damage.error() from None
    if memoryview(head.format) != canonical(form):
        raise FormatError(
            f"{damage.file} does not have the format {form!r}",
            got=bytes(memoryview(head.format)[:80]).decode("utf-8", "replace") or "something else",
            do="Name a store's folder.",
        )
    if memoryview(head.version) != canonical(version):
        found = bytes(memoryview(head.version)[:40]).decode("utf-8", "replace")
        raise FormatError(
            f"{damage.file} is of version {found} of the format {form!r}, and only version {version} is read",
            do="Use the version of taftcache that wrote the store, or a newer one.",
        )


_LESS = {
    "tombstones": "`taftcache forget STORE --destroy-key` removes the tombstones and their key.",
    "objects": "Use fewer shards, or components with less in their meta.",
    "skipped": "Take the samples that cannot be used out of the data source.",
    "classes": "Use fewer classes, or shorter names.",
}


def _parts_by_size(raw: bytes) -> list[tuple[str, int]]:
    """(field, bytes) of a manifest, the largest first."""
    try:
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return [(FILE, len(raw))]
    return sorted(((name, len(part)) for name, part in parts.items()), key=lambda part: -part[1])


def _bounded(raw: bytes) -> None:
    """FormatError when the parts of a root manifest that may hold any JSON hold millions of values: an empty list
    takes two bytes of text and twenty times as many in memory."""
    try:
        free = msgspec.json.decode(raw, type=_Free)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{FILE} does not have the fields of its version", got=str(error), do=_AVOID) from None
    parts = [free.identity, free.plan, free.recipe, *(thing.meta for thing in free.objects.values())]
    where = f"{FILE}: identity, plan, recipe and the meta of {len(free.objects)} objects"
    size = sum(len(part) for part in parts)
    if size > MAX_FREE_BYTES:
        raise FormatError(
            f"the free parts of the manifest have {size} bytes, and {MAX_FREE_BYTES} are read", got=where, do=_AVOID
        )
    values = sum(bytes(part).count(mark) for part in parts for mark in (b",", b"[", b"{"))
    if values >= MAX_VALUES:
        raise FormatError(
            f"the free parts of the manifest hold {values} values, and fewer than {MAX_VALUES} are read",
            got=where,
            do=_AVOID,
        )
    # The list of classes ends where the manifest's own digest begins; in it, `","` stands between two names alone.
    classes = raw.count(b'","', 0, raw.find(b'"digest":')) + 1
    if classes > MAX_CLASSES:
        raise FormatError(f"the manifest has {classes} classes, and {MAX_CLASSES} are read", got=FILE, do=_AVOID)


_AVOID = "Do not use this store."


class _Head(msgspec.Struct):
    format: msgspec.Raw = msgspec.Raw(b"")
    version: msgspec.Raw = msgspec.Raw(b"")


class _FreeObject(msgspec.Struct):
    meta: msgspec.Raw = msgspec.Raw(b"")


class _Free(msgspec.Struct):
    identity: msgspec.Raw = msgspec.Raw(b"")
    plan: msgspec.Raw = msgspec.Raw(b"")
    recipe: msgspec.Raw = msgspec.Raw(b"")
    objects: dict[str, _FreeObject] = {}


def decode_strict(raw: bytes, kind: type[T], file: str) -> T:
    """Decode into ``kind``: no unknown or missing field, and the text must be the canonical one."""
    try:
        value = msgspec.json.decode(raw, type=kind)
        same = canonical(value) == raw
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{file} does not have the fields of its version", got=str(error), do=_AVOID) from None
    if not same:
        raise FormatError(f"{file} is not canonical JSON", do="Do not edit manifests by hand.")
    return value


def object_path(name: str, digest: str, suffix: str) -> str:
    """Where the object ``name`` (``components/000``) of that digest lies."""
    return f"{name}-{digest[:SHORT]}{suffix}"


def check_name(name: str) -> str:
    """The name of a shard, or of an object in its folder."""
    if not _NAME.fullmatch(name):
        raise RecipeError(
            "a name must have 1 to 64 of a-z, 0-9 and '-', and not begin with '-'", got=repr(name), do="Rename it."
        )
    return name


def check_object(name: str, suffix: str = ".safetensors") -> str:
    """The name of an object: ``<folder>/<name>``."""
    folder, _, leaf = name.partition("/")
    if folder not in OBJECT_FOLDERS or not _SUFFIX.fullmatch(suffix):
        raise RecipeError(
            f"an object must be in one of the folders {', '.join(OBJECT_FOLDERS)}, with a suffix like '.safetensors'",
            got=f"{name!r}, suffix {suffix!r}",
        )
    check_name(leaf)
    return name


def check_classes(classes: list[str]) -> list[str]:
    """Class names: at least one, all different."""
    classes = plain(list(classes), "classes")
    if not classes or len(set(classes)) != len(classes) or not all(isinstance(c, str) and c for c in classes):
        twice = sorted({repr(c) for c in classes if classes.count(c) > 1})[:5]
        raise RecipeError(
            "a store must have at least one class, and no name of a class twice or empty",
            got=f"{len(classes)} classes" + (f", twice: {', '.join(twice)}" if twice else ""),
        )
    return classes


_NO_DIGEST = "a digest does not have 64 hex digits"


def _digest(fields: dict[str, Any]) -> str:
    return digest(canonical({k: v for k, v in fields.items() if k != "digest"}))


def _check(manifest: Manifest) -> None:
    """The rules of FORMAT.md that types do not say. A digest only proves who wrote it, not that it may be trusted."""

    def require(holds: bool, fault: str, got: object) -> None:
        if not holds:
            raise FormatError(f"{FILE} is invalid: {fault}", got=got, do=_AVOID)

    names = [ref.name for ref in manifest.shards]
    require(len(set(names)) == len(names), "two shards have the same name", names)
    require(names == sorted(names), "its shards are not in the order of their names", names)
    for ref in manifest.shards:
        require(bool(_NAME.fullmatch(ref.name)), "a shard's name has other signs than a-z, 0-9 and '-'", repr(ref.name))
        require(bool(_DIGEST.fullmatch(ref.digest)), _NO_DIGEST, repr(ref.digest))
        require(
            ref.path == ShardRef.of(ref.name, "", 0, ref.digest).path, "a shard is not in its folder", repr(ref.path)
        )
        require(ref.role in ROLES, f"a shard's role is not one of {', '.join(ROLES)}", repr(ref.role))
        require(1 <= ref.rows < 2**31, "a shard does not have 1 to 2^31 - 1 rows", ref.rows)
    require(sum(ref.role == "held-out" for ref in manifest.shards) <= 1, "more than one shard is held out", names)
    for name, thing in manifest.objects.items():
        folder, _, leaf = name.partition("/")
        suffix = thing.path[len(name) + 1 + SHORT :]
        require(folder in OBJECT_FOLDERS and bool(_NAME.fullmatch(leaf)), "an object has a wrong name", repr(name))
        require(bool(_DIGEST.fullmatch(thing.digest)), _NO_DIGEST, repr(thing.digest))
        require(bool(_SUFFIX.fullmatch(suffix)), "an object's suffix is not like '.safetensors'", repr(suffix))
        require(
            thing.path == object_path(name, thing.digest, suffix), "an object is not in its place", repr(thing.path)
        )
        require(
            0 <= thing.size <= MAX_OBJECT_BYTES, f"an object does not have 0 to {MAX_OBJECT_BYTES} bytes", thing.size
        )
    for tombstone in manifest.tombstones:
        require(bool(_DIGEST.fullmatch(tombstone)), "a tombstone does not have 64 hex digits", repr(tombstone))
    key = manifest.tombstone_key
    require(not key or bool(_DIGEST.fullmatch(key)), _NO_DIGEST, repr(key))
    require(bool(key) or not manifest.tombstones, "it has tombstones without a key", len(manifest.tombstones))
    if manifest.ledger is not None:
        require(bool(_DIGEST.fullmatch(manifest.ledger.head)), _NO_DIGEST, repr(manifest.ledger.head))
        require(1 <= manifest.ledger.entries < 2**31, "its ledger is empty or too long", manifest.ledger.entries)
