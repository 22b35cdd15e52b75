"""What lies outside of the store and may hold forgotten rows: exports, reports, models, comparisons, copies."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from taftcache.cache.columns import Columns
from taftcache.cache.hdf5 import FeatureFile
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError, StoreError, TaftcacheError
from taftcache.names import counted
from taftcache.stages.forget.finding import Findings
from taftcache.stages.forget.pin import is_pin
from taftcache.stages.forget.traces import headers, texts_in

MAX_TEXT = 256 << 20
PARQUET_ROWS = 4096
# In JSON, also within another text: the root digest that something was made from, and lists of shards' digests.
ROOT = re.compile(r'"(?:root_digest|store)\\*": ?\\*"([0-9a-f]{64})')
SHARDS = re.compile(r'\[\s*((?:\\*"[0-9a-f]{64}\\*",?\s*)+)\]')
DIGEST = re.compile(r"[0-9a-f]{64}")
CELLS = re.compile(r"[\t\r\n,]")
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def existing_folder(folder: Path | str) -> Path:
    """The folder; RecipeError where there is none."""
    path = Path(folder)
    if not path.is_dir():
        raise RecipeError(f"cannot look through {path}: it is not a folder", got=str(path))
    return path


def check_folder(store: FeatureStore, folder: Path, to: Findings) -> None:
    """Look through all files below ``folder``, links not followed, for what was made of rows that are forgotten.

    Found are unfinished files, forgotten ids in texts, HDF5 and npz files, other stores with rows of forgotten ids, and
    what names this store, or its shards, as they were before a request. A note says of what it cannot be told,
    and what was not searched.
    """
    known = _Known.of(store)
    found, noted = defaultdict[tuple[Path, str], list[Path]](list), defaultdict[str, list[Path]](list)
    for path in _things(folder, Path(store.path)):
        problem = _of_store(store, path) if path.is_dir() else _of_file(store, known, path)
        if problem in NOTES:
            noted[problem].append(path)
        elif problem:
            found[path.parent, problem].append(path)
    for (parent, problem), paths in found.items():
        if len(paths) > SINGLY:
            to.found("by-product", str(parent), f"{len(paths)} files, {paths[0].name} the first: {problem}")
        else:
            for path in paths:
                to.found("by-product", str(path), problem)
    for problem, paths in noted.items():
        to.notes.append(
            f"{folder}: {counted(len(paths), 'file')} ({paths[0].name}{', …' * (len(paths) > 1)}) {NOTES[problem]}"
        )


UNSURE, UNREAD = "unsure", "not searched"
NOTES = {
    UNSURE: "of rows or a state of a store that no receipt here names; where that was this store, before "
    "a request, what was forgotten is in there",
    UNREAD: "not searched: unreadable, or too large (Parquet takes pip install "
    "'taftcache[parquet]'); what was forgotten may be in there",
}
SINGLY = 5  # so many files of one folder with the same problem are listed one by one


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Digests: of the store and its shards as they are, and of the store before each request, by the request."""

    now: frozenset[str]
    shards: frozenset[str]
    before: dict[str, str]

    @classmethod
    def of(cls, store: FeatureStore) -> _Known:
        requests = []
        with suppress(StoreError):  # the chain's own finding says it
            requests = [entry for entry in store.ledger() if entry.get("event") == "forget"]
        return cls(
            now=frozenset({store.root_digest, store.manifest.content_digest}),
            shards=frozenset(ref.digest for ref in store.manifest.shards),
            before={str(entry.get("root_before")): f"ledger/{entry['seq']:06d}" for entry in requests},
        )

    def problem(self, text: str) -> str:
        """What is wrong with something whose description ``text`` is; "" where it was made from what is there."""
        if not self.before:
            return ""
        lists = [set(DIGEST.findall(match[1])) for match in SHARDS.finditer(text)]
        roots = set(ROOT.findall(text)) - self.now
        for root in roots & self.before.keys():
            return f"made from the store as it was before {self.before[root]}"
        if any(named & self.shards and named - self.shards for named in lists):
            return "made from shards as they were before rows left them"
        if lists and all(named <= self.shards for named in lists):
            return ""
        return UNSURE if roots or lists else ""


def _things(folder: Path, own: Path) -> Iterator[Path]:
    """Files below ``folder``, and folders of other stores in one piece; not the store itself."""
    for at, folders, files in os.walk(folder):
        here = Path(at)
        if FeatureStore.exists(here):
            folders.clear()
            if here.resolve() != own.resolve():
                yield here
            continue
        folders.sort()
        yield from (here / name for name in sorted(files) if (here / name).is_file())


def _of_store(store: FeatureStore, path: Path) -> str:
    with suppress(TaftcacheError), FeatureStore(path, stale=True) as other:
        held = (i for ref in other.manifest.shards for i in other.shard(ref.name).sample_ids)
        if count := sum(map(store.is_forgotten, held)):
            return f"a store with rows of forgotten ids: {count}"
    return ""


def _of_file(store: FeatureStore, known: _Known, path: Path) -> str:
    if path.name.endswith(".partial"):
        return "what a write that was killed left; it may hold anything" if known.before else ""
    try:
        ids, text = _read(path)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, ImportError, TaftcacheError):
        return UNREAD if known.before else ""
    if count := len({i for i in (*ids, *_candidates(text)) if store.is_forgotten(i)}):
        return f"it holds forgotten ids: {count}"
    return "" if is_pin(text) else known.problem(text)


def _candidates(text: str) -> Iterator[str]:
    """What may be an id in a text: words, cells of a table, and JSON's strings, in which other signs may be escaped."""
    yield from texts_in(text)
    yield from CELLS.split(text)
    for quoted in QUOTED.finditer(text):
        with suppress(ValueError):
            yield json.loads(quoted[0]).encode("utf-8", "replace").decode()  # half of a pair is no id


def _read(path: Path) -> tuple[list[str], str]:
    """Ids that a file of rows has, and what else is text in it."""
    if path.suffix in (".h5", ".hdf5"):
        with FeatureFile(path) as file:
            if not file.is_export:
                ids = Columns().within(file).ids
                return ([str(i) for i in file.column(ids).tolist()] if ids in file else []), ""
            return [*(i for shard in file.shards.values() for i in shard.ids), *(s.id for s in file.skipped)], ""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return [str(i) for i in arrays["ids"]], str(arrays["about"]) if "about" in arrays else ""
    if path.suffix in (".parquet", ".pq"):
        return _parquet(path)
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return [], "".join(headers(size.to_bytes(8, "little") + file.read(min(size, MAX_TEXT))))
    if path.stat().st_size > MAX_TEXT:
        raise ValueError(path)
    return [], path.read_bytes().decode("utf-8", "replace")


def _parquet(path: Path) -> tuple[list[str], str]:
    """Every text in the columns of a Parquet file that have any, whatever they are called; and what its schema says.

    Raises:
        ImportError: pyarrow is not installed. ValueError: no such file, or more text than is looked through.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            made = file.metadata
            groups = [made.row_group(k) for k in range(made.num_row_groups)]
            columns = [group.column(k) for group in groups for k in range(group.num_columns)]
            texts = [column for column in columns if column.physical_type == "BYTE_ARRAY"]
            if sum(column.total_uncompressed_size for column in texts) > MAX_TEXT:
                raise ValueError(path)
            names = sorted({column.path_in_schema for column in texts})
            ids = {
                text
                for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=names)
                for column in batch.columns
                for text in texts_in(column.to_pylist())
            }
            about = file.schema_arrow.metadata or {}
            return list(ids), about.get(b"taftcache", b"").decode("utf-8", "replace")
    except pa.ArrowException as error:
        raise ValueError(path) from error
