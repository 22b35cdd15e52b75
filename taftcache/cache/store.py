"""The feature store: one folder for one dataset, backbone and cut."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from numpy.typing import NDArray

from taftcache.cache.arrays import DaskRows, RowDataset, ShardRows
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import canonical, check_root, digest
from taftcache.cache.format.fault import Fault, changed, is_changed
from taftcache.cache.format.identity import differences
from taftcache.cache.format.layout import resolve_chunk_rows
from taftcache.cache.format.manifest import FILE, MAX_BYTES, ROLES, Manifest, ObjectRef
from taftcache.cache.format.naming import check_name
from taftcache.cache.format.plan import check_ids
from taftcache.cache.place.address import open_home
from taftcache.cache.place.failure import cannot
from taftcache.cache.place.folder import Folder
from taftcache.cache.place.lock import LOCK, WriterLock, not_copied
from taftcache.cache.read.contents import MAKE, OF_A_MODEL, Contents, no_store, read_manifest
from taftcache.cache.read.shard import Shard
from taftcache.cache.read.verify import OnProgress, check_files, read_object, verify
from taftcache.cache.write.commit import Committer, create
from taftcache.cache.write.journal import Header
from taftcache.cache.write.previous import unlawful
from taftcache.cache.write.sweep import staged_rows, staged_tokens, strays
from taftcache.cache.write.tombstones import TombstoneFile, is_among
from taftcache.cache.write.transaction import Transaction
from taftcache.cache.write.writer import ShardWriter
from taftcache.errors import (
    ArgumentError,
    FormatError,
    IdentityError,
    IntegrityError,
    RecipeError,
    StaleStore,
    StoreError,
    StoreNotFound,
    UnknownName,
)
from taftcache.names import COMPONENT, COMPONENTS, counted, shard_of, typed

OFTEN = 0.05  # seconds in which no commit is looked for anew: many ids are asked for in a row, and a bucket is far


class FeatureStore:
    """An open store. ``mode="r"`` reads; ``mode="a"`` also takes the writer lock and sweeps what a crash left behind.

    ``expect`` is the root digest that the caller knows, or its first 16 digits or more: IntegrityError if the store has
    another, so that an old copy put in a newer one's place is noticed; RecipeError for something that is no digest.
    StaleStore if it holds rows that were forgotten at this place, which is noticed even without ``expect``; ``stale``
    opens it all the same, to forget them again. StoreNotFound, FormatError, IntegrityError and StoreLocked say what
    else can be wrong. It is a context manager; `close` releases the lock. Threads may share a store that is open for
    reading; a copy of it, in another process too, opens the place anew, or raises StoreChanged. One that is open for
    writing belongs to one thread, and to the process that opened it, and is not copied.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["r", "a"] = "r",
        expect: str | None = None,
        stale: bool = False,
    ) -> None:
        if mode not in ("r", "a"):
            raise ArgumentError(f"a store cannot be opened with mode {mode!r}", do='use one of "r", "a"')
        check_root(expect)
        self.mode = mode
        self._lock: WriterLock | None = None
        self._committer: Committer | None = None
        self._later: tuple[Manifest, dict[bytes, frozenset[str]]] | None = None  # what only the file beside has
        self._looked = -OFTEN  # when `holds` last looked whether the rows are still these
        self._readable: tuple[Manifest, set[str]] | None = None  # ids, for `knows`
        try:
            self.root, self.staging = open_home(path)
        except OSError as error:
            raise _not_opened(path, error) from None
        self.path = self.root.path
        self.swept: list[tuple[str, int]] = []
        try:
            if mode == "a":
                if not self.root.exists(FILE):
                    raise no_store(self.root)
                self._lock = WriterLock(self.staging)
            self._contents = Contents(self.root, read_manifest(self.root))
            if expect is not None and not self.root_digest.startswith(expect):
                raise _unexpected(self._contents, expect)
            self.tombstone_file = TombstoneFile(path)
            if mode == "a":
                self.tombstone_file.check_owner()
            if not stale and (back := self.returned()):
                self.check_current()  # if another process has just forgotten them, this is no old copy
                raise StaleStore(
                    f"{self.path} is an old copy: {len(back)} of its samples and components forgotten here since",
                    got=f"tombstones in {self.tombstone_file.file}",
                    do=f"taftcache audit {typed(self.path)} --replay, which forgets them again",
                )
            if self._lock is not None:
                self._start(self._lock)
        except BaseException:
            self.close()
            raise

    def _start(self, lock: WriterLock) -> None:
        """Get ready for changes: sweep what a crash left behind, and take up what was forgotten at this place."""
        self._committer = Committer(self.root, self.staging, lock, self._contents, self.tombstone_file)
        self.swept = self._committer.sweep()
        named = self.manifest
        if self.tombstone_file.newest and not named.shards and not named.tombstone_key:
            with self.transaction() as change:  # a new store where an earlier one had forgotten samples
                change.record(change.adopt_tombstones())
        self._committer.remember(self.manifest)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        identity: dict[str, Any],
        classes: Sequence[str],
        plan: dict[str, Any],
        recipe: dict[str, Any],
    ) -> FeatureStore:
        """Make an empty store in a new or empty folder, and open it for writing."""
        first = Manifest(identity=identity, classes=list(classes), plan=plan, recipe=recipe).replace()
        create(path, first)
        return cls(path, mode="a")

    @staticmethod
    def exists(path: str | os.PathLike[str]) -> bool:
        """Whether there is a store at ``path``, whatever its state."""
        try:
            homes = open_home(path)
        except OSError:
            return False
        with homes as (root, _):
            return root.exists(FILE)

    @property
    def manifest(self) -> Manifest:
        """The root manifest of the last commit."""
        return self._contents.manifest

    @property
    def identity(self) -> dict[str, Any]:
        """What the features were made from; opaque to the store."""
        return self.manifest.identity

    @property
    def classes(self) -> list[str]:
        """Class names; a label is an index into them."""
        return self.manifest.classes

    @property
    def root_digest(self) -> str:
        """BLAKE3 over everything the store holds, by way of the manifests."""
        return self.manifest.digest

    @property
    def shards(self) -> list[Shard]:
        """The training shards, in the order of their names."""
        return [self._contents.open(ref) for ref in self.manifest.shards if ref.role == "train"]

    @property
    def held_out(self) -> Shard | None:
        """The shard kept for testing."""
        return next((self._contents.open(ref) for ref in self.manifest.shards if ref.role == "held-out"), None)

    @property
    def every_shard(self) -> list[Shard]:
        """The training shards, then the one kept for testing, if there is one."""
        return self.shards + ([self.held_out] if self.held_out is not None else [])

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, objects and lists."""
        named = self.manifest
        shards = sum(shard.nbytes for shard in self.every_shard)
        lists = sum(part.ref.size for path, part in named.parts().items() if path in named.files())
        return shards + sum(ref.size for ref in named.objects.values()) + lists

    def shard(self, name: str) -> Shard:
        """One shard by name, training or held-out; StoreError names those there are."""
        return self._contents.shard(name)

    def has_shard(self, name: str) -> bool:
        """Whether there is a shard of that name."""
        return self._contents.has_shard(name)

    def to_dask(self, shards: Sequence[str] | None = None) -> DaskRows:
        """Rows of the training shards, or of those named, as Dask arrays: nothing is read before it is computed.

        Tokens are float32, whatever the store keeps, because Dask adds up in the dtype of its blocks. A block is a
        chunk of a shard, opened and verified by the process that computes it.

        Raises:
            StoreChanged: when a block is computed, if a commit has changed its shard since. RecipeError: Dask is not
                installed.
        """
        return self._rows(shards).to_dask()

    def to_xarray(self, shards: Sequence[str] | None = None) -> Any:
        """`to_dask` as an ``xarray.Dataset`` of tokens [sample, token, feature], with ids, labels and shards.

        RecipeError: xarray or Dask is not installed.
        """
        return self._rows(shards).to_xarray()

    def dataset(self, shards: Sequence[str] | None = None) -> RowDataset:
        """Rows of the training shards, or of those named, as a map-style dataset for torch's ``DataLoader``.

        Items are (tokens float32 [t,d], label, id), whatever the store keeps; a slice gives a list of them.
        StoreChanged if a commit changes a shard before it is first read.
        """
        rows = self._rows(shards)
        return RowDataset(rows.parts, rows.classes)

    def _rows(self, names: Sequence[str] | None) -> ShardRows:
        if names is not None and (isinstance(names, str) or not names):
            there = [ref.name for ref in self.manifest.shards]
            raise RecipeError(
                f"no list of shards of {self.path} is named",
                got=repr(names),
                do=f"leave it out for all training shards, or list some of {', '.join(there)}",
            )
        shards = self.shards if names is None else [self.shard(name) for name in names]
        if not shards:
            held = self.held_out is not None
            hint = 'name the held-out rows: ["held-out"]' if held else "taftcache extract, or taftcache import"
            raise StoreError(f"{self.path} has no training rows", do=hint)
        return ShardRows(shards, self.place, self.classes, self.root_digest)

    @property
    def place(self) -> str:
        """The store's whole place, also for processes that have another current folder."""
        return self.root.whole if isinstance(self.root, Folder) else str(self.path)

    def sample_ids(self) -> list[str]:
        """The ids of all training shards, shard after shard in row order."""
        return [i for shard in self.shards for i in shard.sample_ids]

    @property
    def every_id(self) -> set[str]:
        """The ids of all rows, held out or not."""
        return {i for shard in self.every_shard for i in shard.sample_ids}

    def locate(self, sample_id: str) -> tuple[Shard, int]:
        """The shard (held-out included) and the row of a sample; UnknownSample names the nearest ids."""
        return self._contents.locate(sample_id)

    def holds(self, sample_id: str) -> bool:
        """Whether a shard has a row of that id.

        Raises:
            StoreChanged: rows came or left since this store was opened, so the answer may be another by now.
        """
        if self.mode == "r" and time.monotonic() - self._looked > OFTEN:
            if (now := self._now()) is not None and now.shards != self.manifest.shards:
                raise changed(self.root)
            self._looked = time.monotonic()
        return self._contents.holds(sample_id)

    def knows(self, sample_id: str) -> bool:
        """Whether a shard whose ids can be read has a row of that id, or had one that was forgotten."""
        if self._readable is None or self._readable[0] is not self.manifest:
            self._readable = self.manifest, set()
            for shard in self.every_shard:
                with suppress(StoreError):  # what needs its rows reports it
                    self._readable[1].update(shard.sample_ids)
        return sample_id in self._readable[1] or self.is_forgotten(sample_id)

    def objects(self, prefix: str = "") -> dict[str, ObjectRef]:
        """The objects whose names begin with ``prefix`` ("components/"), by name."""
        return {name: ref for name, ref in sorted(self.manifest.objects.items()) if name.startswith(prefix)}

    def meta(self, name: str) -> dict[str, Any]:
        """All that is recorded about an object; `objects` leaves out the curve of its solve, which is a file of its
        own."""
        return self._object(name).whole_meta()

    def read_object(self, name: str) -> bytes:
        """The verified bytes of an object."""
        return read_object(self.root, self._object(name))

    def _object(self, name: str) -> ObjectRef:
        ref = self.manifest.objects.get(name)
        if ref is None:
            there = ", ".join(sorted(self.manifest.objects)) or "none"
            raise UnknownName(f"there is no object {name!r}", got=f"the store has: {there:.200}", names=[str(name)])
        return ref

    def ledger(self) -> list[dict[str, Any]]:
        """The ledger's entries as of the commit that was opened, oldest first, the chain verified."""
        return self._contents.ledger()

    def is_forgotten(self, sample_id: str) -> bool:
        """Whether a sample with that id, or with its NFC or NFD form, was erased here, and not learned again since; if
        this is an old copy, also by a later state of the store."""
        if self._contents.is_forgotten(sample_id):
            return True
        if self._later is None or self._later[0] is not self.manifest:
            self._later = self.manifest, self.tombstone_file.beyond(self.manifest.tombstones)
        return is_among(sample_id, self._later[1])

    def asker(self) -> Callable[[str], bool]:
        """``is_forgotten`` of the state as it is now, for millions of texts; keeps every tombstone in memory."""
        by_key = {
            key: set(map(bytes.fromhex, more))
            for key, more in self.tombstone_file.beyond(self.manifest.tombstones).items()
        }
        if self.manifest.tombstones:
            own = by_key.setdefault(ledger.read_key(self.root, self.manifest), set())
            own.update(map(bytes.fromhex, self.manifest.tombstones))
        several = [*by_key.items()]

        def is_forgotten(text: str) -> bool:
            for key, hashes in several:
                if ledger.tombstone_bytes(text, key) in hashes:
                    return True
            return not text.isascii() and self.is_forgotten(text)  # in another form

        return is_forgotten

    def returned(self, there: TombstoneFile | None = None) -> list[str]:
        """Ids of rows and skipped samples, and components by their tombstone's text, that were forgotten at this place
        (or at ``there``), although this copy of the store does not know it."""
        there = there or self.tombstone_file
        known: Collection[str] = self.manifest.tombstones
        try:
            more = there.more_than(known)
        except (IntegrityError, FormatError):  # damaged tombstones, for verify to report: look up every row instead
            more, known = True, ()
        if not more:
            return []
        held = [i for shard in self.every_shard for i in shard.sample_ids]
        with suppress(IntegrityError, FormatError):
            held += [left_out.id for left_out in self.manifest.skipped]
        held += [COMPONENT + shard_of(name) for name in self.objects(COMPONENTS)]
        return there.match(held, known)

    def lost_tombstones(self) -> frozenset[str]:
        """What is remembered at this place under the store's key (the newest, if it has none), but not in the store.

        StoreError for a key that cannot be read.
        """
        named, beside = self.manifest, self.tombstone_file
        key = ledger.read_key(self.root, named) if named.tombstone_key else beside.key
        return beside.under(key) - frozenset(named.tombstones)

    def lost_charges(self, entries: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
        """What entries say private trainings at this place released, but the ledger with these ``entries`` does not
        have: from a later state of it, if this is an old copy, and from each other ledger of stores that were here
        before."""
        known = ledger.digests(entries, self.manifest.ledger)
        by_chain: dict[str, list[dict[str, Any]]] = {}
        for charge in self.tombstone_file.charges:
            if charge.entry not in known:
                by_chain.setdefault(charge.chain, []).append(charge.said)
        own = by_chain.pop(known[0], []) if known else []
        return own, list(by_chain.values())

    def check_identity(self, identity: dict[str, Any]) -> None:
        """Raise IdentityError, which names what differs, unless the store was made from exactly ``identity``."""
        different = sorted(differences("", self.identity, identity))
        if different:
            raise IdentityError(
                "the store was made from other data, weights or settings",
                got="; ".join(different[:8]) + (f"; and {len(different) - 8} more" if len(different) > 8 else ""),
                do="use another folder for these features, or the settings that the store was made with",
            )

    def verify(self, progress: OnProgress | None = None) -> list[Fault]:
        """Read every object again and return those that are damaged, missing or swapped; an empty list means a whole
        store."""
        return verify(self.root, self.manifest, progress)

    def check_files(self, shards: Iterable[Shard] = (), objects: Iterable[str] = ()) -> None:
        """IntegrityError if a file of these shards, or of the objects of these names, is missing or has another size:
        for whatever keeps something without reading it. `verify` also notices changed bytes."""
        check_files(self.root, shards, [self._object(name) for name in objects])

    def strays(self) -> list[str]:
        """What lies in the folder but no manifest names: leftovers of a crash, or someone else's files. They are not
        faults."""
        return strays(self.root, self.staging, self.manifest) + unlawful(self.root, self.manifest)

    @property
    def is_written(self) -> bool:
        """Whether another process holds the writer's lock; some of `strays` are its unfinished work then."""
        return self._lock is None and self.staging.is_locked(LOCK)

    def check_current(self) -> None:
        """Raise StoreChanged if another process has committed since this store was opened."""
        if is_changed(self.root):
            raise changed(self.root)

    def check_may_leave(self) -> None:
        """Raise StoreChanged if another process has written to the ledger since this store was opened: what was read
        from it and is about to leave may be forgotten by now."""
        if (now := self._now()) is not None and now.ledger != self.manifest.ledger:
            raise changed(self.root)

    def _now(self) -> Manifest | None:
        """The manifest that another process has committed since this store was opened; None if there is none."""
        return Manifest.decode(self.root.read(FILE, MAX_BYTES), self.root) if is_changed(self.root) else None

    def staged_ids(self) -> dict[str, list[str]]:
        """Shard -> ids of samples in the unfinished work of an extraction that was stopped; no manifest names them
        yet."""
        return {name: list(rows) for name, rows in self.staged_rows().items()}

    def staged_rows(self) -> dict[str, dict[str, int]]:
        """`staged_ids` with their labels, -1 if none is known, as for a sample that was skipped."""
        return staged_rows(self.staging, self.manifest)

    def staged_tokens(self) -> Iterator[tuple[str, list[str], NDArray[Any] | None]]:
        """(shard, ids, tokens [n, t, d]) for each chunk in unfinished work; None for tokens that are damaged."""
        return staged_tokens(self.staging)

    def committer(self) -> Committer:
        """What commits changes to this store; StoreError if it was not opened for writing."""
        if self._committer is None:
            raise StoreError(f"cannot change {self.path}: it is not opened for writing", do='open it with mode="a"')
        return self._committer

    def writer(
        self,
        name: str,
        role: str,
        *,
        chunk_rows: int | Literal["auto"] = "auto",
        dtype: str = "float16",
        tokens_shape: tuple[int, int],
        candidates: Sequence[str],
        labels: Mapping[str, int] | None = None,
        pad: bool = False,
    ) -> ShardWriter:
        """Write the shard ``name`` (role "train" or "held-out"), or resume where a killed run stopped.

        ``candidates`` are the ids that are to become rows or be skipped, in order. Durable chunks of other candidates,
        shape or identity are thrown away, and so are those whose rows have other labels than ``labels`` by id, if
        given. A shard of fewer rows than ``chunk_rows`` has one chunk of just these, or with ``pad`` a whole one, as
        earlier releases wrote it.
        """
        committer = self.committer()
        check_name(name)
        t, d = (int(n) for n in tokens_shape)
        if role not in ROLES:
            raise RecipeError(f"a shard cannot have the role {role!r}", do=f"use one of {', '.join(ROLES)}")
        if role == "held-out" and self.held_out is not None and self.held_out.name != name:
            raise StoreError(f"cannot hold out shard {name!r}: shard {self.held_out.name!r} is held out already")
        committer.check_no_writer_of(name)
        committer.check_no_transaction("write a shard")
        check_ids(candidates)
        rows = resolve_chunk_rows(chunk_rows, (t, d), dtype)
        header = Header(
            name=name,
            role=role,
            tokens_shape=(t, d),
            dtype=dtype,
            chunk_rows=rows,
            pad=pad,
            identity=Header.made_from(self.manifest),
            candidates=digest(canonical(list(candidates))),
        )
        return ShardWriter(committer, header, candidates, labels or {})

    def transaction(self) -> Transaction:
        """Changes that become visible together; only one can be open at a time."""
        return Transaction(self.committer())

    def close(self) -> None:
        """Close writers, abandon an open transaction, and release the lock. Shards already opened can still be read."""
        if self._committer is not None:
            self._committer.close()
            self._committer = None
        if self._lock is not None:
            self._lock.close()
        self.mode = "r"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.mode == "a":
            raise not_copied(self.path)
        return _reopened, (self.place, self.root_digest)

    def __fspath__(self) -> str:
        return self.place  # the current folder may be another one by now

    def __repr__(self) -> str:
        return f"<FeatureStore {self.path}: {counted(len(self.manifest.shards), 'shard')}, {self.root_digest[:16]}>"


def _reopened(place: str, root: str) -> FeatureStore:
    """A copy of an open store: the store at its place, which must have the same root digest."""
    store = FeatureStore(place)
    if store.root_digest != root:
        error = changed(store.root)
        store.root.close()  # the error keeps this frame
        raise error
    return store


def _unexpected(contents: Contents, expect: str) -> IntegrityError:
    """The error for a store with another root digest than ``expect``, which a receipt may name as the one before it."""
    manifest = contents.manifest
    error = IntegrityError(
        f"{contents.root.path} is not the store that was expected",
        got=f"root digest {manifest.digest}, expected {expect}",
        do="if it was changed since that was noted (trained, appended to, forgotten in), note its present root; if not,"
        " look whether an older copy was put in its place",
    )
    with suppress(StoreError):  # a damaged ledger, or no key, tells nothing
        key = ledger.read_key(contents.root, manifest) if manifest.tombstone_key else b""
        for entry in contents.ledger():
            if ledger.names_state(entry.get("root_before"), expect, key):
                error.got = (
                    f"{error.got}, its root before the removal of ledger entry {entry['seq']}, {entry.get('time')}"
                )
                error.do = "the store has moved on since: note its present root"
    return error


def _not_opened(path: str | os.PathLike[str], error: OSError) -> StoreError:
    if error.errno == errno.ENOENT:
        return StoreNotFound(f"no store at {path}: there is no such folder", do=MAKE)
    above = os.path.dirname(path) or "."
    if os.path.isfile(path) and any(os.path.exists(os.path.join(above, name)) for name in (FILE, *OF_A_MODEL)):
        return StoreNotFound(
            f"no store or model at {path}: it is a file, and each of them is a folder",
            do=f"name the folder that it is in, {above}",
        )
    return cannot("open", path, error, StoreNotFound)
