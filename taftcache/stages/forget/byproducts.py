"""Check files outside the store that may hold forgotten rows: exports, reports, models, comparisons, copies."""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.files import file_digest
from taftcache.backbone.sources.columns import arrow_table, parquet_batches
from taftcache.backbone.sources.npz import FAULTS, read_header, read_member
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest
from taftcache.cache.format.manifest import FILE
from taftcache.cache.hdf5 import FeatureFile, fields_of
from taftcache.cache.place.lock import LOCK
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.sweep import OWN
from taftcache.cache.write.tombstones import are_tombstones
from taftcache.errors import FormatError, RecipeError, StoreError, TaftcacheError, local_path
from taftcache.model.component import Component
from taftcache.model.description import DESCRIPTION, read_description
from taftcache.names import ROWS_OF, counted, first_few, is_model, told_apart
from taftcache.privacy.statement import audit_statement
from taftcache.stages.forget.chain import FORGOTTEN
from taftcache.stages.forget.finding import Findings
from taftcache.stages.forget.pin import is_pin
from taftcache.stages.forget.receipts import replaced_shards
from taftcache.stages.forget.traces import WORDS, headers, texts_in
from taftcache.stages.train.private.claims import exported_meta

MAX_TEXT = 256 << 20
CELLS = re.compile(r"[\t\r\n,]")
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
DOUBLED = re.compile(r'"((?:[^"]|"")*)"')  # a quoted cell of a CSV file, in which quotes are doubled
DEFUSED = ("'=", "'+", "'-", "'@")  # how the CSV of a report's page begins a text that a spreadsheet would compute
BEGINNING = 512  # bytes at the start of a file: they tell what it is, whatever its name
HDF5, NPY, ZIP, PARQUET = b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"PK\x03\x04", b"PAR1"
ARROW = b"\xff\xff\xff\xff"  # before each message of a stream
MARKS = {
    BOM_UTF8: "utf-8-sig",
    BOM_UTF32_LE: "utf-32",
    BOM_UTF32_BE: "utf-32",
    BOM_UTF16_LE: "utf-16",
    BOM_UTF16_BE: "utf-16",
}
LONGEST, DEEPEST = 4096, 64  # characters of a path, and how many of its endings are tried
# gzip, bzip2, xz, zstandard, 7-Zip, SQLite, pickle: their contents are not searched, and a note says so.
PACKED: tuple[bytes, ...] = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ\0",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf\x27\x1c",
    b"SQLite format 3\0",
)
# Arrow files and Feather, too: they are usually compressed, and Arrow would unpack them to any size.
PACKED += (b"ARROW1", b"FEA1")
PACKED += tuple(bytes([0x80, version]) for version in range(2, 6))
TAR_AT, TAR = 257, b"ustar"
# In JSON, also within another text: the root digest that something was made from, and lists of shards' digests.
ROOT = re.compile(r'"(?:root_digest|store)\\*": ?\\*"([0-9a-f]{64})')
SHARDS = re.compile(r'\[\s*((?:\\*"[0-9a-f]{64}\\*",?\s*)+)\]')
DIGEST = re.compile(r"[0-9a-f]{64}")


def existing_folder(folder: Path | str) -> Path:
    """The folder; RecipeError where there is none."""
    path = local_path(folder)
    if not path.is_dir():
        raise RecipeError(
            f"cannot look through {path}: it is not a folder",
            got=str(path),
            do="name a folder of exports, models or reports",
        )
    return path


def check_folder(store: FeatureStore, folder: Path, to: Findings, strict: bool = False) -> None:
    """Look through all files below ``folder`` for what was made from forgotten rows; links are not followed.

    Findings are unfinished files, forgotten ids in texts and files of rows, other stores with rows of forgotten ids,
    and whatever names this store, or its shards, as they were before a request; also a promise of privacy that does not
    follow from the noise that the file itself states. Notes name what cannot be judged, such as components that name no
    rows, and what was not searched; if ``strict``, these are findings too.
    """
    known = _Known.of(store)
    found, noted = defaultdict[tuple[Path, str], list[Path]](list), defaultdict[str, list[Path]](list)
    for path in _things(folder, Path(store.path)):
        problem = _of_store(known, path) if path.is_dir() else _of_file(known, path)
        if not path.is_dir() and not _checked_claim(path, to):
            noted[UNCHECKED].append(path)
        if problem in NOTES:
            noted[problem].append(path)
        elif problem:
            found[path.parent, problem].append(path)
    for (parent, problem), paths in found.items():
        if problem.startswith(A_STUDENT):  # one finding for its whole folder, whichever of its files are there
            to.found(
                "by-product", str(parent), problem, "delete what teach or export-model wrote there, and make it again"
            )
        elif len(paths) > SINGLY:
            to.found("by-product", str(parent), f"{counted(len(paths), 'file')}, {paths[0].name} the first: {problem}")
        else:
            for path in paths:
                to.found("by-product", str(path), problem, OTHER_STORE if FeatureStore.exists(path) else None)
    for problem, paths in noted.items():
        which = first_few(told_apart([str(path.relative_to(folder)) for path in paths]))
        said = f"{counted(len(paths), 'file')} ({which}) {NOTES[problem]}"
        if strict:
            to.found("undecided", str(folder), said)
        else:
            to.notes.append(f"{folder}: {said}")


def _checked_claim(path: Path, to: Findings) -> bool:
    """Whether a promise of privacy in ``path`` could be checked; one that does not follow is a finding."""
    try:
        for false in audit_statement(exported_meta(path)):
            to.found("privacy statement", str(path), false, "delete it, and export it again from its store")
    except RecipeError:  # dp-accounting is an extra
        return False
    return True


OTHER_STORE = "delete it if it is an old copy; else forget the same samples there: taftcache forget STORE --file FILE"
A_STUDENT = "a student, "
UNSURE, UNREAD, UNCHECKED = "unsure", "not searched", "not checked"
NOTES = {
    UNSURE: "of rows or a state of a store that no receipt here names, as is one from before append: whatever was made "
    "of this store before a request has what was forgotten; delete it, and export it again",
    UNREAD: "not searched: unreadable, packed (an archive, say), or too large (Parquet and Arrow take pip install "
    "'taftcache[parquet]'); what was forgotten may be in there",
    UNCHECKED: "promising privacy: whether their epsilon follows from their noise is checked with "
    "pip install 'taftcache[privacy]'",
}
SINGLY = 5  # up to this many files of one folder with the same problem are listed one by one


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Digests of the store and its shards as they are now, and keyed hashes of those from before each request.

    before, replaced: keyed hash → place of the request's receipt, for the store and for the shards that a request wrote
    anew or dropped; from receipts of earlier releases, ``before`` has plain digests. key: what the hashes are keyed
    with.
    """

    store: FeatureStore
    now: frozenset[str]
    shards: frozenset[str]
    before: dict[str, str]
    replaced: dict[str, str]
    key: bytes

    @classmethod
    def of(cls, store: FeatureStore) -> _Known:
        requests, key = dict[str, dict[str, Any]](), b""
        with suppress(StoreError):  # `check_ledger` or `check_beside` reports it
            requests = {f"ledger/{e['seq']:06d}": e for e in store.ledger() if e.get("event") == FORGOTTEN}
            key = ledger.read_key(store.root, store.manifest) if store.manifest.tombstone_key else b""
        return cls(
            store=store,
            now=frozenset({store.root_digest, store.manifest.content_digest}),
            shards=frozenset(ref.digest for ref in store.manifest.shards),
            before={str(entry.get("root_before")): place for place, entry in requests.items()},
            replaced={each: place for place, entry in requests.items() for each in replaced_shards(entry)},
            key=key,
        )

    def problem(self, text: str) -> str | None:
        """What is wrong with something that ``text`` describes: "" if it was made from what the store holds now, or if
        there was no request; None if it does not name what it was made from."""
        if not self.before:
            return ""
        lists = [set(DIGEST.findall(match[1])) for match in SHARDS.finditer(text)]
        found = set(ROOT.findall(text))
        roots = found - self.now
        for root in (roots | self._keyed(roots)) & self.before.keys():
            return f"made from the store as it was before {self.before[root]}"
        if gone := self._keyed(chain.from_iterable(lists)) & self.replaced.keys():
            return f"made from shards as they were before {min(self.replaced[own] for own in gone)}"
        if any(named & self.shards and named - self.shards for named in lists):  # receipts of earlier releases
            return "made from shards as they were before rows left them"
        if lists and all(named <= self.shards for named in lists):
            return ""
        return UNSURE if roots or lists else "" if found else None

    def _keyed(self, digests: Iterable[str]) -> set[str]:
        return {ledger.tombstone(own, self.key) for own in digests} if self.key else set()

    def is_strange(self, data: bytes) -> bool:
        """Whether a file is a component whose numbers match no component of the store."""
        own = _numbers(data)
        return own is not None and own not in self._there

    @cached_property
    def _there(self) -> frozenset[str | None]:
        found = set[str | None]()
        for name in filter(is_model, self.store.objects()):
            with suppress(StoreError):  # verify has said it
                found.add(_numbers(self.store.read_object(name)))
        return frozenset(found)


def _numbers(data: bytes) -> str | None:
    """A digest of a component's numbers without its description; None if the bytes are no component."""
    try:
        component = Component.decode(data)
    except FormatError:
        return None
    return digest(component.delta.numpy().tobytes())


def _things(folder: Path, own: Path) -> Iterator[Path]:
    """Files below ``folder``. Another store, or what a copy that was cut off left, is one item; the store itself is
    none."""
    for at, folders, files in os.walk(folder):
        here = Path(at)
        if FeatureStore.exists(here) or _is_cut_off({*folders, *files}):
            folders.clear()
            if os.path.realpath(here) != os.path.realpath(own):
                yield here
            continue
        folders.sort()
        yield from (here / name for name in sorted(files) if (here / name).is_file())


def _is_cut_off(names: set[str]) -> bool:
    """Whether a folder with these names in it was left by a copy that was cut off."""
    return {LOCK, "shards"} <= names <= OWN - {FILE}


def _of_store(known: _Known, path: Path) -> str:
    if not FeatureStore.exists(path):
        return "what a copy that was cut off left; it may hold any row" if known.before else ""
    unread, held = False, list[str]()
    try:
        with FeatureStore(path, stale=True) as other:
            for ref in other.manifest.shards:
                try:
                    held += other.shard(ref.name).sample_ids
                except TaftcacheError:
                    unread = True
            held += [i for ids in other.staged_ids().values() for i in ids]
            held += [skipped.id for skipped in other.manifest.skipped]
            count = sum(map(known.store.is_forgotten, set(held)))
            taken = [name for name, ref in other.objects().items() if is_model(name) and ref.meta.get("imported")]
            strange = not count and any(known.is_strange(other.read_object(name)) for name in taken)
    except TaftcacheError:
        return UNREAD if known.before else ""
    if count:
        return f"a store with rows of forgotten ids: {count}"
    if not known.before:
        return ""
    return UNREAD if unread else UNSURE if strange else ""


def _of_file(known: _Known, path: Path) -> str:
    if path.name.endswith(".partial"):
        return "what a write that was killed left; it may hold anything" if known.before else ""
    read, unread = _Texts(), False
    try:
        _read(path, read)
    except (*FAULTS, KeyError, ImportError, TaftcacheError):
        unread = True
    text = read.about
    if count := len({i for i in _meant(chain(read.ids, _candidates(text))) if known.store.is_forgotten(i)}):
        return f"it holds forgotten ids: {count}"
    if unread:
        return _of_unread(known, path) if known.before else ""
    if is_pin(text) or are_tombstones(text.encode()):
        return ""
    says = known.problem(text)
    if says is None:  # a component that was exported, say, names neither
        return UNSURE if "base_digest" in text and known.is_strange(path.read_bytes()) else ""
    return A_STUDENT + says if says and says not in NOTES and f'"{ROWS_OF}"' in text else says


def _of_unread(known: _Known, path: Path) -> str:
    """What is wrong with the model that ``path`` was exported with, if that model's description lists this file."""
    with suppress(OSError, TaftcacheError):
        if read_description(path.parent).files.get(path.name) == file_digest(path):
            says = known.problem(path.with_name(DESCRIPTION).read_text("utf-8"))
            return UNREAD if says is None else says
    return UNREAD


def _meant(texts: Iterable[str]) -> Iterator[str]:
    """Each text; without the apostrophe that keeps a spreadsheet from computing it; and, of a path, its endings."""
    for text in texts:
        yield text
        if text.startswith(DEFUSED):
            yield text[1:]
        if len(text) <= LONGEST:
            path = text.replace("\\", "/")
            at = path.rfind("/")
            for _ in range(DEEPEST):
                if at < 0:
                    break
                yield path[at + 1 :]
                at = path.rfind("/", 0, at)


def _candidates(text: str) -> Iterator[str]:
    """What may be an id in a text: lines, words, cells of a table, and quoted strings as JSON and CSV write them."""
    yield text
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        yield from {line, *WORDS.split(line), *line.split("\t"), *CELLS.split(line)}  # a set: each is hashed only once
    for quoted in QUOTED.finditer(text):
        with suppress(ValueError):
            yield json.loads(quoted[0]).encode("utf-8", "replace").decode()  # a lone surrogate is in no id
    yield from (cell[1].replace('""', '"') for cell in DOUBLED.finditer(text) if '""' in cell[1])


@dataclass
class _Texts:
    """The texts of a file: those that may be ids, and other text (``about``). Keeps what was read before a fault."""

    ids: set[str] = field(default_factory=set)
    about: str = ""

    def take(self, array: NDArray[Any]) -> None:
        """Add every text of an array and of its fields; ValueError if there is more than ``MAX_TEXT``."""
        for name in array.dtype.names or ():
            self.take(array[name])
        if array.dtype.kind in "OSU":
            if array.nbytes > MAX_TEXT:
                raise ValueError(array.nbytes)
            self.ids.update(texts_in(array.ravel().tolist()))


def _read(path: Path, to: _Texts) -> None:
    """Add the texts of a file; its first bytes, or else its suffix, tell what it is.

    Raises:
        ValueError, KeyError, OSError, TaftcacheError, ImportError and others: it cannot be searched, or only in part.
    """
    with path.open("rb") as file:
        begin = file.read(BEGINNING)
    # A safetensors file begins with its header's size, whose bytes may be those of a pickle: 640 is 80 02.
    size = int.from_bytes(begin[:8], "little")
    headed = begin[8:9] == b"{" and size <= path.stat().st_size - 8
    if not headed and (begin.startswith(PACKED) or begin[TAR_AT:].startswith(TAR)):
        raise ValueError(path)
    if begin.startswith(HDF5) or path.suffix in (".h5", ".hdf5"):
        _hdf5(path, to)
    elif begin.startswith(ZIP) or path.suffix == ".npz":
        _npz(path, to)
    elif begin.startswith(NPY):
        to.take(np.load(path, mmap_mode="r", allow_pickle=False))
    elif begin.startswith(PARQUET) or path.suffix in (".parquet", ".pq"):
        _parquet(path, to)
    elif begin.startswith(ARROW) or path.suffix == ".arrow":
        _arrow(path, to)
    elif headed or path.suffix == ".safetensors":
        with path.open("rb") as file:
            to.about = "".join(headers(file.read(8 + min(size, MAX_TEXT))))
    elif path.stat().st_size > MAX_TEXT:
        raise ValueError(path)
    else:
        form = next((form for mark, form in MARKS.items() if begin.startswith(mark)), "utf-8")
        to.about = path.read_bytes().decode(form, "replace")


def _hdf5(path: Path, to: _Texts) -> None:
    with FeatureFile(path) as file:
        if file.is_export:
            to.ids.update(s.id for s in file.skipped)
        for array in file.texts():
            to.take(array)


def _npz(path: Path, to: _Texts) -> None:
    """Add every array of texts; ValueError if an array holds Python objects, or an entry is not an array."""
    with ZipFile(path) as archive:
        strange, size = False, 0
        for entry in archive.infolist():
            with archive.open(entry) as member:
                dtype = read_header(member)[2]
            strange |= dtype.hasobject
            if dtype.hasobject or not any(kind.kind in "SU" for kind in fields_of(dtype)):
                continue
            size += entry.file_size
            if size > MAX_TEXT:
                raise ValueError(path)
            array = read_member(archive, entry)
            to.take(array)
            if entry.filename == "about.npy":
                to.about = str(array)
        if strange:
            raise ValueError(path)


def _arrow(path: Path, to: _Texts) -> None:
    """Add every text in an Arrow stream; ValueError if it is compressed or damaged, or is no such stream."""
    import pyarrow as pa

    try:
        table = arrow_table(path)
        texts = [k for k, kind in enumerate(table.schema.types) if re.search("string|binary", str(kind))]
        _take(path, table.select(texts).to_batches(), to)
    except pa.ArrowException as error:
        raise ValueError(path) from error


def _parquet(path: Path, to: _Texts) -> None:
    """Add the texts of a Parquet file: every column that has any, and what taftcache wrote into its schema.

    Raises:
        ImportError: pyarrow is not installed. ValueError: not a Parquet file, or more text than ``MAX_TEXT``.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema
            texts = [k for k in range(len(schema)) if schema.column(k).physical_type.endswith("BYTE_ARRAY")]
            names = sorted({schema.column(k).path for k in texts})
            to.about = ((file.schema_arrow.metadata or {}).get(b"taftcache") or b"").decode("utf-8", "replace")
            _take(path, parquet_batches(path, file, names) if names else (), to)
    except pa.ArrowException as error:
        raise ValueError(path) from error


def _take(path: Path, batches: Iterable[Any], to: _Texts) -> None:
    """Add the texts of Arrow's batches; ValueError if they are larger than ``MAX_TEXT``."""
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > MAX_TEXT:
            raise ValueError(path)
        for column in batch.columns:
            to.ids.update(texts_in(column.to_pylist()))
