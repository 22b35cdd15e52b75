"""Find what should not be there: damage, leftover files, and forgotten rows, ids and classes, wherever they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from taftcache.cache.collect import clearing
from taftcache.cache.format.manifest import FILE
from taftcache.cache.format.naming import MAX_BYTES
from taftcache.cache.format.plan import MAX_ID_BYTES, shard_names
from taftcache.cache.place.address import is_bucket
from taftcache.cache.place.bucket import Bucket
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.group import mean_token_norm, token_norm_sum
from taftcache.cache.write.sweep import TRANSACTION
from taftcache.consent import grouping_recipe
from taftcache.errors import FormatError, RecipeError, StoreError
from taftcache.model.members import MADE_AGAIN, withdrawn
from taftcache.names import CLASS, COMPONENT, by_receipts, counted, is_from_macos, shard_of, them, typed
from taftcache.stages.extract.plan import forgotten_group
from taftcache.stages.file_texts import headers, read_texts
from taftcache.stages.forget.finding import UNFINISHED, Findings
from taftcache.stages.look.row_table import Sample, every_sample
from taftcache.stages.progress import Progress, noting
from taftcache.stages.texts import Number, is_said_anyway, texts_in

# Characters of a text that may be an id: one of two bytes is at most three when it is taken apart (NFD).
LONGEST_ID = MAX_ID_BYTES * 3 // 2
KEPT, OFTEN = 1 << 18, 128  # answers that are kept, and characters of a text that may come again: most words do


def check_damage(store: FeatureStore, progress: Progress, to: Findings) -> None:
    """Find bytes that do not have their digest, and statistics that are not those of the rows."""
    with progress.task("verify", None) as task:
        for fault in store.verify(noting(task, "MB", 1e6)):
            to.found("damage", fault.file, str(fault))
        for ref in store.manifest.shards:
            with suppress(StoreError):  # verify has said it
                if wrong := _wrong_statistics(store.shard(ref.name)):
                    to.found("statistics", f"shard {ref.name}", wrong)


def check_leftovers(store: FeatureStore, to: Findings) -> None:
    """Find files that no manifest names, and the rows of unfinished work.

    The next writer sweeps the leftovers that are the store's own; until then they may hold anything.
    """
    strays = store.strays()
    if strays and store.is_written:
        to.notes.append(f"another process writes to the store: {counted(len(strays), 'file')} of it are not audited")
        strays = []
    for path, command in clearing(store, strays).items():
        if path == TRANSACTION:  # without rows that were forgotten before; the next command that writes removes it
            to.found(UNFINISHED, path, "left by a command that was stopped; no part of the store", command)
        elif (data := _of_macos(store, path)) is not None:
            if _says_forgotten(store, data):
                to.found("leftover file", path, "a file of macOS with a forgotten id in it", command)
            else:
                to.notes.append(f"{path}: a file of macOS, only searched for texts; to remove it: {command}")
        else:
            to.found("leftover file", path, "no manifest names it", command)
    for name, ids in sorted(store.staged_ids().items()):
        where = f"staging, shard {name}"
        if forgotten := sum(map(store.is_forgotten, ids)):
            rows = f"{counted(forgotten, 'row')} of forgotten ids, of an extraction that was stopped"
            to.found("staged row", where, rows)
        elif ids:
            to.notes.append(
                f"{where}: {counted(len(ids), 'sample')} of an extraction that was stopped; audited once it is done"
            )
    if is_bucket(store.path):
        to.notes.append(
            "if a write was stopped on another machine, its rows lie there, in TAFTCACHE_STAGING: audited and removed "
            f"there alone, by taftcache audit and taftcache gc {typed(store.path)}"
        )
    if isinstance(store.root, Bucket) and store.root.is_versioned(FILE):
        to.notes.append("the bucket keeps old versions of objects, and forgotten rows in them: delete these there")


def _of_macos(store: FeatureStore, path: str) -> bytes | None:
    """The bytes of a file that macOS made, None of any other: told by its name and its first bytes, for under such a
    name anything may lie."""
    name = path.rpartition("/")[2]
    if is_from_macos(name):
        with suppress(OSError, FormatError):  # it is too large, or no plain file
            data = store.root.read(path, MAX_BYTES)
            return data if data.startswith(b"\0\5\x16\7" if name.startswith("._") else b"\0\0\0\1Bud1") else None
    return None


def _says_forgotten(store: FeatureStore, data: bytes) -> bool:
    """Whether a forgotten id is among the texts of a file in the store, which may lie in a bucket."""
    is_own_word = own_words(store)
    with NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        ids, _ = read_texts(Path(file.name)).forgotten(asking(store))
        return not all(map(is_own_word, ids))


def check_names(store: FeatureStore, to: Findings) -> None:
    """Find forgotten ids and classes, wherever a name may stand."""
    back = set(store.returned())  # `check_beside` reports these
    for ref in store.manifest.shards:
        with suppress(StoreError):  # verify has said it
            for i in store.shard(ref.name).sample_ids:
                if i not in back and store.is_forgotten(i):
                    to.found("forgotten row", f"shard {ref.name}", "a row of a forgotten id")
    for name in store.classes:
        if store.is_forgotten(CLASS + name):
            to.found("class", "manifest.json", "a class that left stands in the list")
    texts = list(texts_of(store))
    for name, thing in store.objects().items():
        with suppress(StoreError):  # verify has said it
            texts += [(thing.path, header) for header in headers(store.read_object(name))]
    is_own_word = own_words(store)
    is_forgotten = asking(store)
    for where, value in texts:
        found = {i for i in texts_in(value) if not isinstance(i, Number) and is_forgotten(i)}
        if not all(map(is_own_word, found)):
            to.found("forgotten id", where, "a forgotten id stands there in plain text")


def of_forgotten_groups(store: FeatureStore) -> list[Sample]:
    """Samples, with a row or without, that were not forgotten themselves, but whose group (``data.group``) was; of a
    stranger's store none."""
    if (recipe := grouping_recipe(store)) is not None:
        with suppress(StoreError, RecipeError):  # verify has said it, or the expression finds the empty text
            group_of = forgotten_group(recipe.data, store.is_forgotten)
            every = (s for s in every_sample(store) if group_of(s.sample) is not None)
            return [s for s in every if not store.is_forgotten(s.sample)]
    return []


def check_groups(store: FeatureStore, to: Findings) -> None:
    """Find samples of groups that were forgotten as a whole."""
    for shard, count in Counter(sample.shard for sample in of_forgotten_groups(store)).items():
        problem = f"{counted(count, 'sample')} of groups (data.group) that were forgotten as a whole"
        again = f"taftcache audit {typed(store.path)} --replay, which forgets {them(count)}"
        to.found("forgotten row", f"shard {shard}", problem, again)


def check_withdrawn(store: FeatureStore, to: Findings) -> list[str]:
    """Find components with the numbers of one that was forgotten under another name, or that the store made again.
    Returns those that were imported again since, whose owners may have changed their mind: a note names them."""

    def out(name: str) -> str:
        return f"taftcache forget {typed(store.path)} --component {shard_of(name)}"

    stayed, again, own = withdrawn(store)
    back = {name.removeprefix(COMPONENT) for name in store.returned()}  # `check_beside` reports these
    for name, receipts in (stayed | again).items():
        forgot = f"its numbers are those of a component that was forgotten here {by_receipts(receipts)}"
        if name in stayed and shard_of(name) not in back:
            to.found("forgotten component", name, forgot, f"{out(name)}; or, if it may stay, import its file again")
        elif name in again:
            to.notes.append(f"{name}: {forgot}, and it was imported again since; if that was not meant: {out(name)}")
    for name, receipts in own.items():
        of = f"its numbers are those of {MADE_AGAIN} {by_receipts(receipts)}"
        to.found("forgotten component", name, of, out(name))
    return [*again]


def texts_of(store: FeatureStore) -> Iterator[tuple[str, Any]]:
    """Where in a store texts stand, and the texts, but for those in the files of its objects; without what is
    damaged."""
    for name in ("identity", "plan", "recipe"):
        yield f"manifest.json, {name}", getattr(store.manifest, name)
    with suppress(StoreError):  # verify has said it
        yield "lists/skipped", [text for s in store.manifest.skipped for text in (s.id, s.reason)]
    for name in store.objects():
        with suppress(StoreError):  # verify has said it
            yield f"manifest.json, {name}", store.meta(name)
    with suppress(StoreError):  # `check_ledger` reports it
        yield from ((f"ledger/{entry['seq']:06d}", entry) for entry in store.ledger())


def asking(store: FeatureStore) -> Callable[[str], bool]:
    """`FeatureStore.is_forgotten` for all texts of many files: answers for short ones are kept, and a text too long for
    an id is not looked up."""
    asker = cache(store.asker)  # which needs the tombstones' key
    kept = lru_cache(KEPT)(lambda text: asker()(text))
    return lambda text: kept(text) if len(text) <= OFTEN else len(text) <= LONGEST_ID and asker()(text)


def own_words(store: FeatureStore) -> Callable[[str], bool]:
    """Whether a text is the name of a class or a shard, also of a shard that left, or taftcache's own word."""
    names = {*store.classes, *shard_names(store.manifest.plan.get("shards", 0))}
    names.update(ref.name for ref in store.manifest.shards)
    with suppress(StoreError):  # `check_ledger` reports it
        for entry in store.ledger():
            names.update(entry.get("shards", ()), entry.get("dropped_shards", ()))
    return lambda text: text in names or is_said_anyway(text)


def _wrong_statistics(shard: Shard) -> str:
    """What is wrong with a shard's recorded statistics; "" if they are those of its rows."""
    largest, norms = 0.0, []
    for block in shard.blocks(shard.chunk_rows):
        largest = max(largest, float(np.abs(block.tokens).max()))
        norms.append(token_norm_sum(block.tokens))
    mean = mean_token_norm(norms, shard.rows * shard.tokens_shape[0])
    recorded = shard.statistics
    if (recorded["max_abs"], recorded["mean_token_norm"]) != (largest, mean):
        return "max_abs and mean_token_norm are not those of its rows"
    return ""
