"""Finding and removing what lies in a store's folder and no manifest names."""

from __future__ import annotations

from collections.abc import Iterator

from taftcache.cache import layout, ledger, manifest
from taftcache.cache.files import Folder
from taftcache.cache.journal import Journal
from taftcache.cache.manifest import OBJECT_FOLDERS, Manifest, ShardRef
from taftcache.errors import StoreError

TRANSACTION = "staging/transaction"
LOCK = "lock"


def leftovers(root: Folder, named: Manifest) -> Iterator[str]:
    """Files and folders that the format owns and nothing names: of a crash, or of a commit just replaced."""
    for file in (f"{manifest.FILE}.partial", f"{ledger.KEY_FILE}.partial"):
        if root.exists(file):
            yield file
    if not named.tombstone_key and root.exists(ledger.KEY_FILE):
        yield ledger.KEY_FILE
    shards = {path for ref in named.shards for path in (ref.path, layout.manifest_file(ref.path))}
    yield from (path for path in _in(root, "shards") if path not in shards)
    objects = {ref.path for ref in named.objects.values()}
    for folder in OBJECT_FOLDERS:
        yield from (path for path in _in(root, folder) if path not in objects)
    try:
        chain = {file for file, _ in ledger.read_chain(root, named.ledger)}
    except StoreError:
        pass  # a damaged ledger is for verify to report: nothing of it may be removed
    else:
        yield from (path for path in _in(root, "ledger") if path not in chain)
    for path in _in(root, "staging"):
        if not _resumable(root, path, named):
            yield path


def sweep(root: Folder, named: Manifest) -> None:
    """Remove all `leftovers`, durably. What a ShardWriter can go on with stays."""
    _take_back(root, named)
    for path in list(leftovers(root, named)):
        root.remove(path)


def strays(root: Folder, named: Manifest) -> list[str]:
    """`leftovers`, and the files in the store's folder or in a shard's that are none of the format's business."""
    found = list(leftovers(root, named))
    known = {manifest.FILE, LOCK, ledger.KEY_FILE, "shards", "ledger", "staging", *OBJECT_FOLDERS}
    found += [path for path, _ in root.entries() if path not in known and path not in found]
    for ref in named.shards:
        try:
            made = layout.ShardManifest.decode(root.read(layout.manifest_file(ref.path), layout.MAX_BYTES), ref)
        except (OSError, StoreError):
            continue
        known = {f"{ref.path}/{name}" for name in made.objects}
        found += [path for path in root.walk(ref.path) if path not in known]
    return sorted(found)


def _in(root: Folder, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name, _ in root.entries(folder)]


def _resumable(root: Folder, path: str, named: Manifest) -> bool:
    """Whether ``path`` is a writer's unfinished work, free of forgotten samples."""
    header, lines, seal = Journal(root, path).read()
    if header is None or path != f"staging/shard-{header.name}":
        return False
    if seal is not None and _is_named(named, header.name, seal.digest) and not root.exists(f"{path}/group"):
        return False  # its commit went through
    if named.tombstones and not header.relearn:
        try:
            key = ledger.read_key(root, named)
        except StoreError:
            return False
        stones = set(named.tombstones)
        ids = (i for line in lines for i in (*line.ids, *(s.id for _, s in line.skipped)))
        return not any(ledger.tombstone(i, key) in stones for i in ids)
    return True


def _take_back(root: Folder, named: Manifest) -> None:
    """A finished group that was moved into place, but not named before the crash, goes back to its journal."""
    for path in _in(root, "staging"):
        header, _, seal = Journal(root, path).read()
        if header is None or seal is None or _is_named(named, header.name, seal.digest):
            continue
        placed = ShardRef.of(header.name, header.role, 0, seal.digest).path
        if not root.exists(f"{path}/group") and root.exists(placed):
            root.move(placed, f"{path}/group")


def _is_named(named: Manifest, name: str, digest: str) -> bool:
    return any(ref.name == name and ref.digest == digest for ref in named.shards)
