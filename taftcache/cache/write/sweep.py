"""Finding and removing what lies in a store's folder but no manifest names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from numpy.typing import NDArray

from taftcache.cache.format import layout, ledger, manifest, parts
from taftcache.cache.format.fault import intact, is_changed
from taftcache.cache.format.manifest import Manifest, ShardRef
from taftcache.cache.format.naming import OBJECT_FOLDERS
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.home import Home
from taftcache.cache.place.lock import LOCK
from taftcache.cache.write.group import GroupWriter
from taftcache.cache.write.journal import Header, Journal, Line
from taftcache.errors import FormatError, StoreError

TRANSACTION = "staging/transaction"
_PARTIAL = tuple(f"{file}.partial" for file in (manifest.FILE, manifest.PREVIOUS, ledger.KEY_FILE))
OWN = {manifest.FILE, manifest.PREVIOUS, ledger.KEY_FILE, *_PARTIAL, LOCK}
OWN |= {"shards", "ledger", "staging", parts.FOLDER, *OBJECT_FOLDERS}
"""What the format puts directly into a store's folder."""
LOST = "lost+found"  # in the top folder of some file systems, which the system alone may read


def leftovers(root: Home, staging: Folder, named: Manifest) -> Iterator[str]:
    """Files and folders that the format owns but nothing names: left by a crash, or by the commit before."""
    for file in _PARTIAL:
        if root.exists(file):
            yield file
    if not named.tombstone_key and root.exists(ledger.KEY_FILE):
        yield ledger.KEY_FILE
    files = named.files()
    for folder in ("shards", *OBJECT_FOLDERS, parts.FOLDER):
        yield from (path for path in _in(root, folder) if path not in files)
    yield from _unchained(root, named)
    yield from (path for path in _in(staging, "staging") if not _resumable(root, staging, path, named))


def sweep(root: Home, staging: Folder, named: Manifest, before: Manifest) -> list[tuple[str, int]]:
    """Remove what nothing names, durably; (path, bytes) of each. What a ShardWriter can go on with stays.

    Where no lock keeps other writers out, a file that nothing names may be another writer's upload. There, only what
    the manifest ``before`` named and the present one does not is removed, and what is `hopeless`; `taftcache gc`
    removes the rest.
    """
    _take_back(staging, named)
    replaced = before.files() | ({ledger.KEY_FILE} if before.tombstone_key else set())
    unnamed = list(leftovers(root, staging, named))
    work = [removed(staging, path) for path in unnamed if path.startswith("staging/")]
    gone = replaced | hopeless(root, named, unnamed)
    return _removed_from(root, [path for path in unnamed if path in gone]) + work


def disown(root: Home, staging: Folder, named: Manifest) -> None:
    """After a commit that another writer forestalled with ``named``: remove the transaction in ``staging``, where other
    shards may be in the middle of being written, and what is `hopeless` in the store."""
    staging.remove(TRANSACTION)
    unnamed = list(leftovers(root, staging, named))
    gone = hopeless(root, named, unnamed)
    _removed_from(root, [path for path in unnamed if path in gone])


def hopeless(root: Home, named: Manifest, unnamed: Collection[str]) -> set[str]:
    """Those paths of ``unnamed``, which are in the store and the present manifest ``named`` does not name, that no
    other writer can still commit: where no lock keeps others out, what is `outdated` or has a forgotten sample's id.

    Files are named by their content, so another writer may be about to name the very file that a refused one left:
    both may have trained the same component, say. Only what nobody can name is removed. A writer that is not refused
    goes on from the present manifest or a later one, keeps its tombstones, and so has no row of theirs in any shard and
    no id of theirs in any list. This holds until a commit destroys the key: so nothing goes if the manifest changed.
    """
    placed = [path for path in unnamed if not path.startswith("staging/")]
    late = {path for path in placed if outdated(root, path)}
    rest = [path for path in placed if path not in late] if named.tombstones else []
    ids = {path: found for path in rest if (found := _ids_in(root, path))}
    if not ids or (key := intact(lambda: ledger.read_key(root, named))) is None:
        return late

    def is_lost(sample: str) -> bool:
        return ledger.forgotten_form(sample, key, named.tombstones) is not None

    lost = {path for path, found in ids.items() if any(is_lost(i) for i in found)}
    return late if is_changed(root) else late | lost


def outdated(root: Home, path: str) -> bool:
    """Whether no other writer can still commit ``path``, which nothing names. Where no lock keeps others out, it must
    be older than the root manifest: whoever put it had read the manifest before, and will be refused."""
    return root.locked or root.changed(path) < root.changed(manifest.FILE)


def removed(home: Home, path: str) -> tuple[str, int]:
    """Remove a file or folder; its path and its bytes."""
    size = home.size(path)
    home.remove(path)
    return path, size


def staged_rows(staging: Folder, named: Manifest) -> dict[str, dict[str, int]]:
    """Shard -> ids, with their labels, of samples whose extraction stopped: they are only in ``staging/``.

    The label is -1 for a sample that was skipped, or if the journal has another list of classes than the store.
    ``staging/`` may also hold rows that no journal names yet, from the last chunks on their way to the disk.
    """
    found: dict[str, dict[str, int]] = {}
    for path in _in(staging, "staging"):
        header, lines, _ = Journal(staging, path).read()
        if header is not None:
            rows = found.setdefault(header.name, {})
            rows.update(dict.fromkeys(_ids(lines), -1))
            if header.identity == Header.made_from(named):
                rows.update((i, label) for line in lines for i, label in zip(line.ids, line.labels, strict=False))
    return found


def staged_tokens(staging: Folder) -> Iterator[tuple[str, list[str], NDArray[Any] | None]]:
    """(shard, ids, tokens [n, t, d]) for each chunk of such rows; None for the tokens of a damaged chunk."""
    for path in _in(staging, "staging"):
        header, lines, _ = Journal(staging, path).read()
        if header is not None and staging.exists(f"{path}/group"):  # else its commit went through
            group = GroupWriter(staging, f"{path}/group", header)
            for index, line in enumerate(lines):
                tokens = group.get_chunk(index, line.chunk)
                yield header.name, line.ids, None if tokens is None else tokens[: len(line.ids)]


def unfinished(staging: Folder) -> list[str]:
    """Work in progress that a ShardWriter could go on with."""
    return _in(staging, "staging")


def foreign(root: Home, named: Manifest) -> list[str]:
    """Files in the store's folder or in a shard's that are none of the format's business."""
    found = [path for path, _ in root.entries() if path not in {*OWN, LOST}]
    for ref in named.shards:
        try:
            made = layout.ShardManifest.decode(root.read(layout.manifest_file(ref.path), layout.MAX_BYTES), ref)
        except (OSError, StoreError):
            continue
        files = {f"{ref.path}/{name}" for name in made.objects}
        found += [path for path in root.walk(ref.path) if path not in files]
    return found


def strays(root: Home, staging: Folder, named: Manifest) -> list[str]:
    """`leftovers` and what is `foreign`."""
    return sorted([*leftovers(root, staging, named), *foreign(root, named)])


def _unchained(root: Home, named: Manifest) -> list[str]:
    """Entry files that are not the ledger's. The ledger is read only if their numbers are not exactly its own."""
    there = _in(root, "ledger")
    count = named.ledger.entries if named.ledger else 0
    numbers = [path.partition("-")[0] for path in sorted(there)]
    if len(there) == count and numbers == [f"ledger/{k:06d}" for k in range(1, count + 1)]:
        return []
    chain = intact(lambda: dict(ledger.read_chain(root, named.ledger)))
    # A damaged ledger is for verify to report: nothing of it may be removed.
    return [] if chain is None else [path for path in there if path not in chain]


def _removed_from(root: Home, paths: list[str]) -> list[tuple[str, int]]:
    # Backwards: a shard's folder, with the ids by which it is known, outlives the manifest beside it.
    return [removed(root, path) for path in reversed(paths)][::-1]


def _ids_in(root: Home, path: str) -> list[str]:
    """The ids in a shard's folder, or the one that the shard manifest ``path`` lies beside, or in a list of skipped
    samples, all unverified; none in other files."""
    with suppress(OSError, FormatError, msgspec.MsgspecError, UnicodeDecodeError):
        if path.startswith("shards/"):
            raw = root.read(f"{path.removesuffix('.json')}/sample_id/c.0", manifest.MAX_OBJECT_BYTES)
            return layout.decode_ids(raw, int.from_bytes(raw[:4], "little")) or []
        if path.startswith(f"{parts.FOLDER}/skipped-"):
            raw = root.read(path, parts.MAX_SKIPPED_BYTES)
            return [sample_id for sample_id, _ in msgspec.json.decode(raw, type=list[tuple[str, str]])]
    return []


def _in(root: Home, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name, _ in root.entries(folder)]


def _resumable(root: Home, staging: Folder, path: str, named: Manifest) -> bool:
    """Whether ``path`` is a writer's unfinished work, with the store's list of classes and no forgotten sample."""
    header, lines, seal = Journal(staging, path).read()
    if header is None or path != f"staging/shard-{header.name}" or header.identity != Header.made_from(named):
        return False
    if seal is not None and _is_named(named, header.name, seal.digest) and not staging.exists(f"{path}/group"):
        return False  # its commit went through
    if named.tombstones:

        def free() -> bool:
            key = ledger.read_key(root, named)
            return all(ledger.forgotten_form(i, key, named.tombstones) is None for i in _ids(lines))

        return bool(intact(free))
    return True


def _ids(lines: list[Line]) -> Iterator[str]:
    return (i for line in lines for i in (*line.ids, *(s.id for _, s in line.skipped)))


def _take_back(staging: Folder, named: Manifest) -> None:
    """Move a finished group back to its journal if a crash came between its move into place and the commit."""
    for path in _in(staging, "staging"):
        header, _, seal = Journal(staging, path).read()
        if header is None or seal is None or _is_named(named, header.name, seal.digest):
            continue
        placed = ShardRef.of(header.name, header.role, 0, seal.digest).path
        if not staging.exists(f"{path}/group") and staging.exists(placed):
            staging.move(placed, f"{path}/group")


def _is_named(named: Manifest, name: str, digest: str) -> bool:
    return any(ref.name == name and ref.digest == digest for ref in named.shards)
