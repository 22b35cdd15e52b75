"""Finding and removing what lies in a store's folder and no manifest names."""

from __future__ import annotations

from collections.abc import Iterator

from taftcache.cache.format import layout, ledger, manifest
from taftcache.cache.format.manifest import OBJECT_FOLDERS, Manifest, ShardRef
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.home import Home
from taftcache.cache.write.journal import Journal, Line
from taftcache.errors import StoreError, StoreUnreachable

TRANSACTION = "staging/transaction"
LOCK = "lock"
KEY_FILE = ledger.KEY_FILE


def leftovers(root: Home, desk: Folder, named: Manifest) -> Iterator[str]:
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
    except StoreUnreachable:
        raise
    except StoreError:
        pass  # a damaged ledger is for verify to report: nothing of it may be removed
    else:
        yield from (path for path in _in(root, "ledger") if path not in chain)
    yield from (path for path in _in(desk, "staging") if not _resumable(root, desk, path, named))


def sweep(root: Home, desk: Folder, named: Manifest, before: Manifest) -> list[tuple[str, int]]:
    """Remove what nothing names, durably; (path, bytes) of each. What a ShardWriter can go on with stays.

    Where no lock keeps other writers out, what is not named may be another writer's upload: there only what the
    manifest ``before`` named and the present one does not is removed, and `taftcache gc` does the rest.
    """
    _take_back(desk, named)
    if root.locked:
        found = list(leftovers(root, desk, named))
    else:
        found = sorted(names(before) - names(named))
        found += [path for path in _in(desk, "staging") if not _resumable(root, desk, path, named)]
    return [removed(desk if path.startswith("staging/") else root, path) for path in found]


def removed(home: Home, path: str) -> tuple[str, int]:
    """Remove a file or folder; its path and its bytes."""
    size = home.size(path)
    home.remove(path)
    return path, size


def staged_ids(desk: Folder) -> dict[str, list[str]]:
    """Shard -> ids of samples, rows and skipped ones, whose extraction stopped: they are in ``staging/`` alone.

    Of the last chunks on their way to the disk there may be rows in ``staging/`` that no journal names yet.
    """
    found: dict[str, list[str]] = {}
    for path in _in(desk, "staging"):
        header, lines, _ = Journal(desk, path).read()
        if header is not None:
            found.setdefault(header.name, []).extend(_ids(lines))
    return found


def unfinished(desk: Folder) -> list[str]:
    """Work in progress that a ShardWriter could go on with."""
    return _in(desk, "staging")


def foreign(root: Home, named: Manifest) -> list[str]:
    """Files in the store's folder or in a shard's that are none of the format's business."""
    known = {manifest.FILE, f"{manifest.FILE}.partial", f"{ledger.KEY_FILE}.partial", LOCK, ledger.KEY_FILE}
    known |= {"shards", "ledger", "staging", *OBJECT_FOLDERS}
    found = [path for path, _ in root.entries() if path not in known]
    for ref in named.shards:
        try:
            made = layout.ShardManifest.decode(root.read(layout.manifest_file(ref.path), layout.MAX_BYTES), ref)
        except (OSError, StoreError):
            continue
        files = {f"{ref.path}/{name}" for name in made.objects}
        found += [path for path in root.walk(ref.path) if path not in files]
    return found


def strays(root: Home, desk: Folder, named: Manifest) -> list[str]:
    """`leftovers` and what is `foreign`."""
    return sorted([*leftovers(root, desk, named), *foreign(root, named)])


def names(named: Manifest) -> set[str]:
    """The files and groups that a root manifest names itself (the ledger but for its last entry, which never goes)."""
    shards = {path for ref in named.shards for path in (ref.path, layout.manifest_file(ref.path))}
    return shards | {ref.path for ref in named.objects.values()}


def _in(root: Home, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name, _ in root.entries(folder)]


def _resumable(root: Home, desk: Folder, path: str, named: Manifest) -> bool:
    """Whether ``path`` is a writer's unfinished work, free of forgotten samples."""
    header, lines, seal = Journal(desk, path).read()
    if header is None or path != f"staging/shard-{header.name}":
        return False
    if seal is not None and _is_named(named, header.name, seal.digest) and not desk.exists(f"{path}/group"):
        return False  # its commit went through
    if named.tombstones and not header.relearn:
        try:
            key = ledger.read_key(root, named)
        except StoreUnreachable:
            raise
        except StoreError:
            return False
        forgotten = set(named.tombstones)
        return not any(ledger.tombstone(i, key) in forgotten for i in _ids(lines))
    return True


def _ids(lines: list[Line]) -> Iterator[str]:
    return (i for line in lines for i in (*line.ids, *(s.id for _, s in line.skipped)))


def _take_back(desk: Folder, named: Manifest) -> None:
    """A finished group that was moved into place, but not named before the crash, goes back to its journal."""
    for path in _in(desk, "staging"):
        header, _, seal = Journal(desk, path).read()
        if header is None or seal is None or _is_named(named, header.name, seal.digest):
            continue
        placed = ShardRef.of(header.name, header.role, 0, seal.digest).path
        if not desk.exists(f"{path}/group") and desk.exists(placed):
            desk.move(placed, f"{path}/group")


def _is_named(named: Manifest, name: str, digest: str) -> bool:
    return any(ref.name == name and ref.digest == digest for ref in named.shards)
