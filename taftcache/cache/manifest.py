"""The root manifest: the one file of a store that is ever replaced."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from taftcache.cache.digest import SHORT, canonical, digest, plain
from taftcache.cache.fault import Fault
from taftcache.errors import FormatError, RecipeError

T = TypeVar("T")
FILE = "manifest.json"
FORMAT = "taftcache-store"
VERSION = 1
MAX_BYTES = 64 << 20
ROLES = ("train", "held-out")
OBJECT_FOLDERS = ("base", "components", "models", "state")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[a-z0-9]{1,16}")


class ShardRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard: its folder ``path`` is ``shards/<name>-<16 digits of digest>``; ``digest`` is that of its manifest,
    ``<path>.json``."""

    name: str
    role: str
    rows: int
    path: str
    digest: str

    @classmethod
    def of(cls, name: str, role: str, rows: int, digest: str) -> ShardRef:
        return cls(name, role, rows, f"shards/{name}-{digest[:SHORT]}", digest)


class ObjectRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file beside the shards (a component, a base): ``path`` is ``<folder>/<name>-<16 digits><suffix>``."""

    path: str
    digest: str
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
    tombstones: list[str] = []
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

    def encode(self) -> bytes:
        """The file's bytes."""
        return canonical(self)

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """Read and check a manifest: IntegrityError for damage, FormatError for anything this version must refuse."""
        fields = decode_versioned(raw, FORMAT, VERSION, Fault(None, None, None, FILE, "it is not JSON"))
        if fields.get("digest") != _digest(fields):
            raise Fault(None, None, None, FILE, "its contents do not have the digest it carries").error()
        manifest = decode_strict(raw, cls, FILE)
        _check(manifest)
        return manifest


def decode_versioned(raw: bytes, form: str, version: int, damage: Fault) -> dict[str, Any]:
    """The fields of a JSON file whose ``format`` and ``version`` are the ones expected."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise damage.error() from None
    if not isinstance(fields, dict) or fields.get("format") != form:
        got = fields.get("format") if isinstance(fields, dict) else type(fields).__name__
        raise FormatError(
            f"The file {damage.file} has the format {form!r}.", got=repr(got), do="Name a store's folder."
        )
    if fields.get("version") != version:
        raise FormatError(
            f"This version of taftcache reads version {version} of the format {form!r}.",
            got=f"{damage.file}: version {fields.get('version')!r}",
            do="Use the version of taftcache that wrote the store, or a newer one.",
        )
    return fields


def decode_strict(raw: bytes, kind: type[T], file: str) -> T:
    """Decode into ``kind``: no unknown or missing field, and the text must be the canonical one."""
    try:
        value = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError("A manifest has exactly the fields of its version.", got=f"{file}: {error}") from None
    if canonical(value) != raw:
        raise FormatError("A manifest is written in canonical JSON.", got=file, do="Do not edit manifests by hand.")
    return value


def object_path(name: str, digest: str, suffix: str) -> str:
    """Where the object ``name`` (``components/000``) of that digest lies."""
    return f"{name}-{digest[:SHORT]}{suffix}"


def check_name(name: str) -> str:
    """The name of a shard, or of an object in its folder."""
    if not _NAME.fullmatch(name):
        raise RecipeError(
            "A name has 1 to 64 of a-z, 0-9 and '-', and does not begin with '-'.", got=repr(name), do="Rename it."
        )
    return name


def check_object(name: str, suffix: str = ".safetensors") -> str:
    """The name of an object: ``<folder>/<name>``."""
    folder, _, leaf = name.partition("/")
    if folder not in OBJECT_FOLDERS or not _SUFFIX.fullmatch(suffix):
        raise RecipeError(
            f"An object lies in one of the folders {', '.join(OBJECT_FOLDERS)} and its suffix is like '.safetensors'.",
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
            "A store has at least one class, and each has a name of its own.",
            got=f"{len(classes)} classes" + (f", twice: {', '.join(twice)}" if twice else ""),
        )
    return classes


def _digest(fields: dict[str, Any]) -> str:
    return digest(canonical({k: v for k, v in fields.items() if k != "digest"}))


def _check(manifest: Manifest) -> None:
    """The rules of FORMAT.md that types do not say. A digest only proves who wrote it, not that it may be trusted."""

    def require(holds: bool, rule: str, got: object) -> None:
        if not holds:
            raise FormatError(rule, got=f"{FILE}: {got}", do="Do not use this store.")

    names = [ref.name for ref in manifest.shards]
    require(len(set(names)) == len(names), "A shard is named once.", names)
    require(names == sorted(names), "Shards are listed in the order of their names.", names)
    for ref in manifest.shards:
        require(bool(_NAME.fullmatch(ref.name)), "A shard's name has only a-z, 0-9 and '-'.", repr(ref.name))
        require(bool(_DIGEST.fullmatch(ref.digest)), "A digest has 64 hex digits.", repr(ref.digest))
        require(
            ref.path == ShardRef.of(ref.name, "", 0, ref.digest).path, "A shard lies where it should.", repr(ref.path)
        )
        require(ref.role in ROLES, f"A shard's role is one of {', '.join(ROLES)}.", repr(ref.role))
        require(1 <= ref.rows < 2**31, "A shard has from 1 to 2^31 - 1 rows.", ref.rows)
    require(sum(ref.role == "held-out" for ref in manifest.shards) <= 1, "At most one shard is held out.", names)
    for name, thing in manifest.objects.items():
        folder, _, leaf = name.partition("/")
        suffix = thing.path[len(name) + 1 + SHORT :]
        require(folder in OBJECT_FOLDERS and bool(_NAME.fullmatch(leaf)), "An object's name is a good one.", repr(name))
        require(bool(_DIGEST.fullmatch(thing.digest)), "A digest has 64 hex digits.", repr(thing.digest))
        require(bool(_SUFFIX.fullmatch(suffix)), "An object's suffix is like '.safetensors'.", repr(suffix))
        require(
            thing.path == object_path(name, thing.digest, suffix), "An object lies where it should.", repr(thing.path)
        )
        require(thing.size >= 0, "An object's size is not negative.", thing.size)
    for stone in manifest.tombstones:
        require(bool(_DIGEST.fullmatch(stone)), "A tombstone has 64 hex digits.", repr(stone))
    key = manifest.tombstone_key
    require(not key or bool(_DIGEST.fullmatch(key)), "A digest has 64 hex digits.", repr(key))
    require(bool(key) or not manifest.tombstones, "Tombstones have a key.", len(manifest.tombstones))
    if manifest.ledger is not None:
        require(
            bool(_DIGEST.fullmatch(manifest.ledger.head)), "A digest has 64 hex digits.", repr(manifest.ledger.head)
        )
        require(1 <= manifest.ledger.entries < 2**31, "A ledger has entries.", manifest.ledger.entries)
