"""Reading every object of a store against its digest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from taftcache.cache.format import ledger
from taftcache.cache.format.fault import Fault, changed, read_named, unreadable
from taftcache.cache.format.manifest import FILE, MAX_BYTES, Manifest, ObjectRef
from taftcache.cache.place.home import Home
from taftcache.cache.read.shard import Shard
from taftcache.errors import FormatError, StoreError, StoreUnreachable

OnProgress = Callable[[int, int], None]
"""(bytes done, bytes in all), called after each object."""


def verify(root: Home, named: Manifest, progress: OnProgress | None = None, *, manifest: bool = True) -> list[Fault]:
    """Every fault of a store: the root manifest, each shard's files, the objects beside them, the ledger, the key.

    ``named`` is the manifest as it was opened: StoreChanged if the store has another by now. With ``manifest=False``,
    the files of the manifest and of the key are not in place yet, and not looked at.
    """
    faults: list[Fault] = []
    # fresh objects: what was verified earlier in this process is read again
    shards = [Shard(root, ref) for ref in named.shards]
    sizes: dict[str, int] = {}
    if manifest:
        faults += _root_faults(root, named)
    whole: list[Shard] = []
    for shard in shards:
        if lost := Fault.of(partial(getattr, shard, "listing"), shard=shard.name, file=shard.manifest_file):
            faults.append(lost)  # without the shard manifest nothing else of the shard can be judged
        else:
            sizes[shard.name] = shard.nbytes
            whole.append(shard)
    parts = [part for path, part in named.parts().items() if path in named.files()]
    total = sum(sizes.values()) + sum(ref.size for ref in named.objects.values()) + sum(p.ref.size for p in parts)
    done = 0
    seen: set[str] = set()
    for shard in whole:
        rest = sizes[shard.name]
        for name, part in shard.listing.objects.items():
            fault = shard.check(name)
            faults += [fault] if fault else []
            done, rest = done + part.size, rest - part.size
            if progress:
                progress(done, total)
        done += rest
        if not any(f.shard == shard.name for f in faults):
            faults += _consistent(shard, len(named.classes), seen)
    for size, check in (
        *(
            (ref.size, partial(Fault.of, partial(read_object, root, ref), file=ref.path))
            for ref in named.objects.values()
        ),
        *((part.ref.size, partial(part.fault, root)) for part in parts),
    ):
        fault = check()
        faults += [fault] if fault else []
        done += size
        if progress:
            progress(done, total)
    faults += _ledger_faults(root, named)
    if manifest and named.tombstone_key:
        lost = Fault.of(partial(ledger.read_key, root, named), file=ledger.KEY_FILE)
        faults += [lost] if lost else []
    return faults


def check_files(root: Home, shards: Iterable[Shard], objects: Iterable[ObjectRef]) -> None:
    """IntegrityError if a file of these shards or objects is missing, or has another size than its manifest names.

    Nothing but shard manifests is read, so that a file which was changed and kept its size is not noticed.
    """
    shards = list(shards)
    there = _sizes(root, "shards" if shards[1:] else shards[0].at) if shards else {}  # a bucket is asked once
    for shard in shards:
        for name, part in shard.listing.objects.items():
            if (problem := _misfit(root, there, f"{shard.at}/{name}", part.size)) is not None:
                raise shard.fault(name, problem).error()
    folders: dict[str, dict[str, int]] = {}
    for ref in objects:
        folder = ref.path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = _sizes(root, folder)
        if (problem := _misfit(root, folders[folder], ref.path, ref.size)) is not None:
            raise Fault(file=ref.path, problem=problem).error()


def _sizes(root: Home, folder: str) -> dict[str, int]:
    try:
        return root.sizes(folder)
    except OSError as error:
        raise Fault(file=folder, problem=unreadable(root, folder, error)).error() from None


def _misfit(root: Home, there: Mapping[str, int], file: str, size: int) -> str | None:
    """What is wrong with a file of which ``there`` has the size, if there is one; StoreChanged if a commit took it."""
    if file not in there:
        return unreadable(root, file, FileNotFoundError())
    return None if there[file] == size else f"it has {there[file]} bytes, and its manifest declares {size}"


def _ledger_faults(root: Home, named: Manifest) -> list[Fault]:
    """The fault of the ledger's newest damaged entry; the entries before that one cannot be judged."""
    end, file = named.ledger, ""
    try:
        head = end.head if end else ""
        for seq in range(end.entries if end else 0, 0, -1):
            file = ledger.entry_path(seq, head)
            head = ledger.read_entry(root, seq, head)["previous"]
    except StoreUnreachable:
        raise
    except StoreError as error:
        return [Fault.met(error, file=file)]
    return []


def _root_faults(root: Home, named: Manifest) -> list[Fault]:
    try:
        raw = root.read(FILE, MAX_BYTES)
        # a decoded manifest may take many times the memory of its file: decode it again only if that can tell something
        if named.text() != raw and Manifest.decode(raw).digest != named.digest:
            raise changed(root)
    except OSError as error:
        return [Fault(file=FILE, problem=unreadable(root, FILE, error))]
    except StoreUnreachable:
        raise
    except StoreError as error:
        return [Fault.met(error, file=FILE)]
    return []


def read_object(root: Home, ref: ObjectRef) -> bytes:
    """The bytes of an object, verified."""
    try:
        return read_named(root, ref.path, ref.size, ref.digest, "the root manifest")
    except FormatError as error:
        raise Fault.met(error, file=ref.path).error() from None


def _consistent(shard: Shard, classes: int, seen: set[str]) -> list[Fault]:
    """Whether labels, ids and statistics of a shard whose bytes are right also make sense beside the ids ``seen``."""
    labels, ids = shard.labels, shard.sample_ids
    file = shard.manifest_file
    found = []
    if labels.min() < 0 or labels.max() >= classes:
        found.append(shard.fault("labels/c.0", "a label is outside the classes"))
    if len(set(ids)) != len(ids) or seen & set(ids):
        found.append(shard.fault("sample_id/c.0", "a sample id comes twice"))
    seen.update(ids)
    per_class = {int(k): int((labels == k).sum()) for k in sorted(set(labels.tolist()))}
    if per_class != shard.statistics["rows_per_class"]:
        found.append(Fault(shard=shard.name, file=file, problem="the rows per class are not those of the labels"))
    return found
