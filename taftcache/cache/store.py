"""The feature store: one folder for one dataset, backbone and cut."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

from taftcache.cache.format import ledger
from taftcache.cache.format.identity import differences
from taftcache.cache.format.layout import resolve_chunk_rows
from taftcache.cache.format.manifest import FILE, MAX_BYTES, ROLES, Manifest, ObjectRef, ShardRef, Skipped, check_name
from taftcache.cache.format.plan import check_ids
from taftcache.cache.place.address import bring, open_home
from taftcache.cache.place.folder import write_all
from taftcache.cache.read.nearest import nearest
from taftcache.cache.read.shard import Shard
from taftcache.cache.read.verify import Fault, Progress, read_object, verify
from taftcache.cache.write.commit import commit
from taftcache.cache.write.repair import Maker, Outcome, repair
from taftcache.cache.write.sweep import LOCK, TRANSACTION, staged_ids, strays, sweep
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.cache.write.transaction import Transaction
from taftcache.cache.write.writer import ShardWriter, header_of
from taftcache.errors import (
    IdentityError,
    IntegrityError,
    RecipeError,
    StaleStore,
    StoreError,
    StoreLocked,
    StoreNotFound,
    UnknownSample,
)


class FeatureStore:
    """An open store. ``mode="r"`` reads; ``mode="a"`` also takes the writer lock and sweeps what a crash left behind.

    ``expect`` is the root digest that the caller knows: IntegrityError when the store has another, so that an old copy
    put in a newer one's place is noticed. StaleStore when it holds rows that were forgotten at this place, which is
    noticed without it; ``stale`` opens it all the same, to forget them again. StoreNotFound, FormatError,
    IntegrityError and StoreLocked say what else can be wrong. A context manager; `close` lets the lock go.
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
            raise RecipeError('A store is opened with mode "r" or "a".', got=repr(mode))
        self.mode = mode
        self._lock = -1
        self._writers: dict[str, ShardWriter] = {}
        self._transaction: Transaction | None = None
        self._cache: dict[str, Shard] = {}
        self._where: dict[str, tuple[str, int]] | None = None
        self._forgotten: tuple[bytes, frozenset[str]] | None = None
        try:
            self.root, self.desk = open_home(path)
        except OSError as error:
            raise StoreNotFound("A store is a folder.", got=f"{path}: {error.strerror}", do=_HOW) from None
        self.path = self.root.path
        self.swept: list[tuple[str, int]] = []
        try:
            if mode == "a":
                if not self.root.exists(FILE):
                    raise StoreNotFound(f"A store has a {FILE}.", got=str(self.path), do=_HOW)
                self._take_lock()
            self.manifest = self._read_manifest()
            if expect is not None and expect != self.manifest.digest:
                raise IntegrityError(
                    "The store is the one that was expected.",
                    got=f"{self.path}: root digest {self.manifest.digest}, expected {expect}",
                    do="Look whether an older copy was put in its place.",
                )
            self.tombstone_file = TombstoneFile(path)
            if not stale and (back := self.returned()):
                raise StaleStore(
                    "A forgotten sample does not come back with an old copy of the store.",
                    got=f"{self.path} holds {len(back)} rows that were forgotten here, by {self.tombstone_file.file}",
                    do=f"taftcache audit {self.path} --replay, which forgets them again",
                )
            if mode == "a":
                self.swept = sweep(self.root, self.desk, self.manifest, self.manifest)
                if self.tombstone_file.newest and not self.manifest.shards and not self.manifest.tombstone_key:
                    with self.transaction() as change:  # a store made anew where one had forgotten
                        change.adopt_tombstones()
                self._remember(self.manifest)
        except BaseException:
            self.close()
            raise

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
        """Make an empty store in a folder that is empty or not there yet, and open it for writing."""
        first = Manifest(identity=identity, classes=list(classes), plan=plan, recipe=recipe).replace()
        bring(path, first)
        return cls(path, mode="a")

    @staticmethod
    def exists(path: str | os.PathLike[str]) -> bool:
        """Whether there is a store at ``path``, whatever its state."""
        try:
            root, desk = open_home(path)
        except OSError:
            return False
        try:
            return root.exists(FILE)
        finally:
            root.close()
            desk.close()

    @property
    def identity(self) -> dict[str, Any]:
        """What the features were made from; opaque here."""
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
        return [self._shard(ref) for ref in self.manifest.shards if ref.role == "train"]

    @property
    def held_out(self) -> Shard | None:
        """The shard kept for testing."""
        return next((self._shard(ref) for ref in self.manifest.shards if ref.role == "held-out"), None)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards and objects."""
        shards = sum(self._shard(ref).nbytes for ref in self.manifest.shards)
        return shards + sum(ref.size for ref in self.manifest.objects.values())

    def shard(self, name: str) -> Shard:
        """One shard by name, training or held-out; StoreError names those there are."""
        for ref in self.manifest.shards:
            if ref.name == name:
                return self._shard(ref)
        there = ", ".join(ref.name for ref in self.manifest.shards) or "none"
        raise StoreError("A shard is asked for by its name.", got=f"{name!r}; there are: {there:.200}")

    def has_shard(self, name: str) -> bool:
        """Whether there is a shard of that name."""
        return any(ref.name == name for ref in self.manifest.shards)

    def sample_ids(self) -> list[str]:
        """The ids of all training shards, shard after shard in row order."""
        return [i for shard in self.shards for i in shard.sample_ids]

    def locate(self, sample_id: str) -> tuple[Shard, int]:
        """The shard (held-out included) and the row of a sample; UnknownSample names the nearest ids."""
        if not self.holds(sample_id):
            close = nearest(sample_id, self._places())
            raise UnknownSample(
                "A sample is asked for by its id.",
                got=f"{sample_id!r}" + (", which was forgotten" if self.is_forgotten(sample_id) else ""),
                do=f"Nearest: {', '.join(map(repr, close))}." if close else None,
            )
        name, row = self._places()[sample_id]
        return self.shard(name), row

    def holds(self, sample_id: str) -> bool:
        """Whether a shard has a row of that id."""
        return sample_id in self._places()

    def objects(self, prefix: str = "") -> dict[str, ObjectRef]:
        """The objects whose names begin with ``prefix`` ("components/"), by name."""
        return {name: ref for name, ref in sorted(self.manifest.objects.items()) if name.startswith(prefix)}

    def read_object(self, name: str) -> bytes:
        """The verified bytes of an object."""
        ref = self.manifest.objects.get(name)
        if ref is None:
            there = ", ".join(sorted(self.manifest.objects)) or "none"
            raise StoreError("An object is asked for by its name.", got=f"{name!r}; there are: {there:.200}")
        return read_object(self.root, ref)

    def ledger(self) -> list[dict[str, Any]]:
        """The ledger's entries, oldest first, the chain verified."""
        return [entry for _, entry in ledger.read_chain(self.root, self.manifest.ledger)]

    def is_forgotten(self, sample_id: str) -> bool:
        """Whether a sample of that id was erased, and not learned again since."""
        if not self.manifest.tombstones:
            return False
        if self._forgotten is None:
            key = ledger.read_key(self.root, self.manifest)
            self._forgotten = key, frozenset(self.manifest.tombstones)
        key, forgotten = self._forgotten
        return ledger.tombstone(sample_id, key) in forgotten

    def returned(self, there: TombstoneFile | None = None) -> list[str]:
        """Ids of rows that were forgotten at this place (or another: ``there``), though this copy of the store does
        not know of it."""
        there = there or self.tombstone_file
        known = self.manifest.tombstones
        held = (i for ref in self.manifest.shards for i in self._shard(ref).sample_ids)
        return there.match(held, known) if there.more_than(known) else []

    def check_identity(self, identity: dict[str, Any]) -> None:
        """IdentityError, naming what differs, unless the store was made from exactly ``identity``."""
        different = sorted(differences("", self.identity, identity))
        if different:
            raise IdentityError(
                "A store is used with what it was made from.",
                got="; ".join(different[:8]) + (f"; and {len(different) - 8} more" if len(different) > 8 else ""),
                do="Use another folder for these features, or the settings that the store was made with.",
            )

    def verify(self, progress: Progress | None = None) -> list[Fault]:
        """Read every object again and return what is damaged, missing or another; an empty list is a whole store."""
        return verify(self.root, self.manifest, progress)

    def strays(self) -> list[str]:
        """What lies in the folder and no manifest names: leftovers of a crash, or someone else's files. No faults."""
        return strays(self.root, self.desk, self.manifest)

    def staged_ids(self) -> dict[str, list[str]]:
        """Shard -> ids of samples in unfinished work, of an extraction that was stopped: no manifest names them yet."""
        return staged_ids(self.desk)

    def repair(self, faults: Sequence[Fault], maker: Maker | None) -> Outcome:
        """Mend damaged files with bytes that ``maker`` makes again, where those have the digest that is named."""
        self._writable()
        self._no_transaction("Repair")
        return repair(self, faults, maker)

    def writer(
        self,
        name: str,
        role: str,
        *,
        chunk_rows: int | Literal["auto"] = "auto",
        dtype: str = "float16",
        tokens_shape: tuple[int, int],
        candidates: Sequence[str] | None = None,
        relearn: bool = False,
    ) -> ShardWriter:
        """Write the shard ``name`` (role "train" or "held-out"), or go on where a killed run stopped.

        ``candidates``, the ids that are to become rows or be skipped, in order, make resuming exact and let the commit
        refuse a shard with some missing. Durable chunks of other candidates, shape or identity are thrown away.
        ``relearn`` allows ids that were forgotten.
        """
        self._writable()
        check_name(name)
        t, d = (int(n) for n in tokens_shape)
        if role not in ROLES:
            raise RecipeError(f"A shard's role is one of {', '.join(ROLES)}.", got=repr(role))
        if role == "held-out" and self.held_out is not None and self.held_out.name != name:
            raise StoreError("At most one shard is held out.", got=f"{name!r} beside {self.held_out.name!r}")
        if name in self._writers:
            raise StoreError("A shard has one writer at a time.", got=name)
        self._no_transaction("Writing a shard")
        if candidates is not None:
            check_ids(candidates)
        rows = resolve_chunk_rows(chunk_rows, (t, d), dtype)
        writer = ShardWriter(self, header_of(self, name, role, (t, d), dtype, rows, candidates, relearn), candidates)
        self._writers[name] = writer
        return writer

    def transaction(self) -> Transaction:
        """Changes that become visible together; one at a time."""
        self._writable()
        self._no_transaction("A second transaction")
        self._transaction = Transaction(self)
        return self._transaction

    def close(self) -> None:
        """Close writers, give an open transaction up, and let the lock go. Shards in hand can still be read."""
        for writer in list(self._writers.values()):
            writer.close()
        if self._transaction is not None:
            self._transaction.discard()
        if self._lock >= 0:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1
        self.mode = "r"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FeatureStore {self.path}: {len(self.manifest.shards)} shards, {self.root_digest[:16]}>"

    # ---- for ShardWriter and Transaction ----

    def ids_outside(self, name: str) -> set[str]:
        """The ids of all shards but ``name``."""
        return {i for i, (shard, _) in self._places().items() if shard != name}

    def no_writers(self, what: str) -> None:
        """StoreError while a ShardWriter is open: its rows are in no manifest yet."""
        if self._writers:
            raise StoreError(f"{what} waits until every writer is closed.", got=", ".join(sorted(self._writers)))

    def release(self, writer: ShardWriter) -> None:
        """A writer has closed."""
        if self._writers.get(writer.name) is writer:
            del self._writers[writer.name]

    def abandon(self) -> None:
        """The transaction has ended without a commit."""
        self._transaction = None
        self.desk.remove(TRANSACTION)

    def publish_shard(
        self,
        ref: ShardRef,
        group: str,
        ids: list[str],
        skipped: list[Skipped],
        relearn: bool,
        plan: dict[str, Any] | None,
    ) -> None:
        """Commit a finished group as the shard ``ref``."""
        self._writable()
        self._no_transaction("Committing a shard")
        named = self.manifest
        tombstones = set(named.tombstones)
        if relearn and tombstones:
            key = ledger.read_key(self.root, named)
            tombstones -= {ledger.tombstone(i, key) for i in (*ids, *(s.id for s in skipped))}
        new = named.replace(
            shards=[s for s in named.shards if s.name != ref.name] + [ref],
            skipped=[s for s in named.skipped if s.shard != ref.name] + skipped,
            tombstones=list(tombstones),
            plan=named.plan if plan is None else plan,
        )
        self.publish(new, [(group, ref.path)], [], [])
        self.desk.remove(f"staging/shard-{ref.name}")

    def publish(
        self, new: Manifest, groups: list[tuple[str, str]], files: list[tuple[str, str]], shards: list[Shard]
    ) -> None:
        """Put staged groups and files in their places, make ``new`` the root manifest, and sweep what it replaced."""
        old = self.manifest
        if not self.desk.has_lock(LOCK, self._lock):
            # Whoever holds another lock file works in the same staging folder: nothing there may be touched now.
            raise StoreLocked(
                "the store's lock file was removed while it was held: another process may be writing",
                got=str(self.path),
                do="Nothing was committed. Run the same command again once no other process writes to the store.",
            )
        try:
            commit(self.root, self.desk, new, groups, files)
        except BaseException:
            self._recover(old)
            raise
        self._adopt(new)
        self._remember(old)
        for shard in shards:
            shard.moved_to(self.root, ShardRef.of(shard.name, shard.role, shard.rows, shard.digest).path)
            self._cache[shard.digest] = shard
        sweep(self.root, self.desk, new, old)

    def _recover(self, old: Manifest) -> None:
        """After a failed commit: take up what the disk says, and give the space back if that is the last commit.

        When only the last fsync failed the new manifest is there, perhaps not durably: then both stay, and the next
        writable open, which can tell, sweeps.
        """
        self._transaction = None
        try:
            found = self._read_manifest()
            if found.digest == old.digest:
                sweep(self.root, self.desk, old, old)
            else:
                self._adopt(found)
        except (OSError, StoreError):
            pass  # the error that brought us here says more

    def _adopt(self, new: Manifest) -> None:
        self.manifest = new
        self._transaction = None
        self._where = self._forgotten = None
        named = {ref.digest for ref in new.shards}
        self._cache = {digest: shard for digest, shard in self._cache.items() if digest in named}

    def _remember(self, old: Manifest) -> None:
        """Keep the file beside the store in step with the manifest; `taftcache audit` reports one that is not."""
        new = self.manifest
        try:
            if old.tombstone_key and old.tombstone_key != new.tombstone_key:
                self.tombstone_file.destroy_key(old.tombstone_key)
            if new.tombstone_key:
                key = ledger.read_key(self.root, new)
                self.tombstone_file.add(key, new.tombstones, set(old.tombstones) - set(new.tombstones))
        except StoreError:
            pass

    def _shard(self, ref: ShardRef) -> Shard:
        if ref.digest not in self._cache:
            self._cache[ref.digest] = Shard(self.root, ref)
        return self._cache[ref.digest]

    def _places(self) -> dict[str, tuple[str, int]]:
        if self._where is None:
            self._where = {
                i: (ref.name, row) for ref in self.manifest.shards for row, i in enumerate(self._shard(ref).sample_ids)
            }
        return self._where

    def _read_manifest(self) -> Manifest:
        try:
            raw = self.root.read(FILE, MAX_BYTES)
        except FileNotFoundError:
            raise StoreNotFound(f"A store has a {FILE}.", got=str(self.path), do=_HOW) from None
        except OSError as error:
            raise Fault(None, None, None, FILE, f"it cannot be read: {error.strerror}").error() from None
        return Manifest.decode(raw)

    def _take_lock(self) -> None:
        self._lock = self.desk.lock(LOCK)
        try:
            os.ftruncate(self._lock, 0)
            write_all(self._lock, f"{os.getpid()}\n".encode())
        except OSError:
            pass  # the number only helps who waits; a full disk must not keep anyone from erasing

    def _writable(self) -> None:
        if self.mode != "a":
            raise StoreError(
                "A store is changed through one opened for writing.", got=str(self.path), do='Use mode="a".'
            )

    def _no_transaction(self, what: str) -> None:
        if self._transaction is not None:
            raise StoreError(f"{what} waits until the transaction has ended.", got=str(self.path))


_HOW = "Name a store's folder, or make one first with `taftcache extract`."
