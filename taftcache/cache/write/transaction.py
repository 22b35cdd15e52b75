"""Several changes to a store that become visible together, in one swap of the root manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from taftcache.cache.format import ledger
from taftcache.cache.format.digest import digest, plain
from taftcache.cache.format.manifest import MAX_OBJECT_BYTES, Manifest, ObjectRef, ShardRef
from taftcache.cache.format.naming import check_object, object_path
from taftcache.cache.format.parts import Tombstones
from taftcache.cache.place.folder import PRIVATE
from taftcache.cache.read.shard import Shard
from taftcache.cache.write.commit import Committer
from taftcache.cache.write.group import GroupWriter, ShardForm
from taftcache.cache.write.sweep import TRANSACTION
from taftcache.errors import DataError, RecipeError, StoreError, UnknownName
from taftcache.names import counted

_UPDATES = ("identity", "classes", "plan", "recipe")


class Transaction:
    """Erasures, objects, ledger entries and changed fields, staged until `commit`.

    As a context manager it commits on success and discards on an exception. A failure at any point leaves the last
    commit as it was and gives the space back.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer, self._staging = committer, committer.staging
        self._moves: list[tuple[str, str]] = []  # staged -> its place
        self._shards: dict[str, Shard] = {}
        self._dropped: set[str] = set()
        self._erased: set[str] = set()
        self._adopted: frozenset[str] = frozenset()
        self._objects = dict(committer.manifest.objects)
        self._entries: list[dict[str, Any]] = []
        self._fields: dict[str, Any] = {}
        self._secret = b""
        self._forget_key = False
        self._count = 0
        self._open = True
        committer.start_transaction(self.discard)

    def erase(self, sample_ids: Iterable[str]) -> dict[str, Shard]:
        """Write the shards that hold ``sample_ids`` anew without them, as if those samples had never been extracted.

        Returns the new shards by name; they can be read before the commit. Ids of skipped samples are forgotten too.
        UnknownSample for an id of neither kind; DataError when a shard would be left empty.
        """
        self._usable()
        self._committer.check_no_writer("erase rows")
        wanted = set(sample_ids)
        places: dict[str, set[str]] = {}
        noted = {s.id for s in self._committer.manifest.skipped}
        for sample_id in sorted(wanted - self._erased):
            if sample_id in noted and not self._committer.contents.holds(sample_id):
                continue
            places.setdefault(self._committer.contents.locate(sample_id)[0].name, set()).add(sample_id)
        new: dict[str, Shard] = {}
        for name, ids in sorted(places.items()):
            if name in self._dropped:
                continue
            old = self._shards.get(name) or self._committer.contents.shard(name)
            keep = np.array([i not in ids for i in old.sample_ids])
            if not keep.any():
                raise DataError(
                    f"the erasure would leave shard {name} empty",
                    got=f"it takes all it has, {counted(len(old), 'row')}",
                    do=f"drop the shard: Transaction.drop_shard({name!r})",
                )
            new[name] = self._rewrite(old, keep, old.labels[keep])
        self._shards |= new
        self._erased |= wanted
        return new

    def drop_shard(self, name: str) -> None:
        """Leave the whole shard out, with its skipped samples."""
        self._usable()
        self._committer.check_no_writer("drop a shard")
        self._committer.contents.shard(name)
        self._dropped.add(name)
        self._shards.pop(name, None)

    def add_tombstones(self, names: Iterable[str]) -> None:
        """Add tombstones for ids whose rows leave with their whole shard, or for `classes` and `shards` themselves."""
        self._usable()
        self._erased |= set(names)

    def adopt_tombstones(self) -> dict[str, Any]:
        """Take over the tombstones of the file beside the store: what an earlier store at this place forgot.

        Those under this store's key, or under the newest if it has none. Returns the entry that says so, for `record`.
        """
        self._usable()
        self._adopted = self._committer.tombstone_file.under(self._key())
        return {"event": ledger.ADOPT, **self.commitment()}

    def relabel(self, classes: Sequence[str]) -> dict[str, Shard]:
        """Make ``classes`` the store's classes, and rewrite shards so that their labels index them.

        Returns the rewritten shards by name: if no class is dropped, a shard whose labels stay keeps its files.
        DataError if a row that stays has a dropped class.
        """
        self._usable()
        self._committer.check_no_writer("relabel the store")
        index = {name: k for k, name in enumerate(classes)}
        place = np.array([index.get(name, -1) for name in self._committer.manifest.classes], np.int32)
        new: dict[str, Shard] = {}
        for ref in self._committer.manifest.shards:
            if ref.name in self._dropped:
                continue
            old = self._shards.get(ref.name) or self._committer.contents.shard(ref.name)
            if (place[old.labels] < 0).any():
                raise DataError(f"cannot drop a class: shard {ref.name} has rows of it left")
            if (place >= 0).all() and (place[old.labels] == old.labels).all():
                continue
            new[ref.name] = self._rewrite(old, np.ones(len(old), np.bool_), place[old.labels])
        self._shards |= new
        self.update(classes=list(classes))
        return new

    def correct(self, name: str, labels: Mapping[str, int]) -> Shard:
        """Write the shard ``name`` anew with these labels of some of its samples, as if they had been extracted so.

        What an interrupted writer left of the shard is thrown away, because its rows have the old labels.
        Returns the new shard. DataError for a sample that is not in it, or a label outside the classes.
        """
        self._usable()
        self._committer.check_no_writer("correct labels")
        old = self._shards.get(name) or self._committer.contents.shard(name)
        classes = len(self._committer.manifest.classes)
        if strange := [i for i, k in labels.items() if not 0 <= k < classes] or sorted({*labels} - {*old.sample_ids}):
            raise DataError(
                f"cannot correct labels of shard {name}: a sample is not in it, or its label is none of the classes",
                got=f"{strange[0]!r}: {labels[strange[0]]}",
            )
        corrected = [labels.get(i, k) for i, k in zip(old.sample_ids, old.labels.tolist(), strict=True)]
        self._staging.remove(f"staging/shard-{name}")
        new = self._rewrite(old, np.ones(len(old), np.bool_), np.array(corrected, np.int32))
        self._shards[name] = new
        return new

    def tombstones(self, names: Iterable[str]) -> list[str]:
        """The keyed hashes that stand for ``names`` in tombstones and receipts, sorted."""
        return ledger.tombstones_of(names, self._key())

    def commitment(self) -> dict[str, Any]:
        """What a ledger's entry says of the tombstones that the store will have if nothing more changes."""
        return ledger.commitment(self._tombstones())

    def content_digest(self) -> str:
        """The `Manifest.content_digest` that the store will have if nothing more changes."""
        return self._next().content_digest

    def replaced(self) -> list[str]:
        """Digests of the store's shards that will be rewritten or dropped."""
        stays = {ref.digest for ref in self._next().shards}
        return [ref.digest for ref in self._committer.manifest.shards if ref.digest not in stays]

    def destroy_key(self) -> None:
        """Drop the tombstones and their key, beside the store too: nobody can ask about a forgotten id any more."""
        self._usable()
        self._forget_key = True

    def put(self, name: str, data: bytes, meta: dict[str, Any] | None = None, *, suffix: str = ".safetensors") -> None:
        """Store ``data`` as the object ``name`` ("components/000"), in place of one of that name."""
        self._usable()
        check_object(name, suffix)
        if len(data) > MAX_OBJECT_BYTES:
            raise DataError(f"object {name} has {len(data)} bytes, more than the {MAX_OBJECT_BYTES} that can be stored")
        ref = ObjectRef.of(object_path(name, digest(data), suffix), digest(data), len(data), plain(meta or {}, name))
        self._stage(data, ref.path)
        self._objects[name] = ref

    def drop(self, name: str) -> None:
        """Leave the object ``name`` out; UnknownName where there is none."""
        self._usable()
        if self._objects.pop(name, None) is None:
            raise UnknownName(f"cannot drop the object {name!r}: there is none", names=[name])

    def drop_curve(self, name: str) -> None:
        """Leave the curve of the object ``name`` out; the object stays."""
        self._usable()
        self._objects[name] = replace(self._objects[name], curve=None)

    def record(self, entry: dict[str, Any]) -> None:
        """Append ``entry`` to the ledger, which adds ``seq`` and ``previous``. It must not name a forgotten sample."""
        self._usable()
        entry = plain(entry, "entry")
        if clash := set(entry) & set(ledger.RESERVED):
            raise RecipeError(
                "a ledger entry must not set the fields that the ledger sets",
                got=", ".join(sorted(clash)),
                do="give the fields other names",
            )
        self._entries.append(entry)

    def update(self, **fields: Any) -> None:
        """Change ``identity``, ``classes``, ``plan`` or ``recipe``."""
        self._usable()
        if unknown := set(fields) - set(_UPDATES):
            raise RecipeError(
                f"a transaction cannot update {', '.join(sorted(unknown))}", do=f"update {', '.join(_UPDATES)} only"
            )
        Manifest(**{k: getattr(self._committer.manifest, k) for k in _UPDATES} | fields).replace()
        self._fields |= fields

    def commit(self) -> None:
        """Make all of it visible at once, then remove what it replaced."""
        self._usable()
        named = self._committer.manifest
        tombstones, key_digest = self._tombstones(), named.tombstone_key
        if self._erased or self._adopted:
            key = self._key()
            key_digest = digest(key)
            if not named.tombstone_key:
                self._stage(key, ledger.KEY_FILE, PRIVATE)
        if self._forget_key:
            key_digest = ""
        end = named.ledger
        for entry in self._entries:
            raw, end = ledger.encode_entry(entry, end)
            self._stage(raw, ledger.entry_path(end.entries, end.head))
        new = self._next(tombstones=tombstones, tombstone_key=key_digest, ledger=end)
        paths = {ref.name: ref.path for ref in new.shards}
        groups = [(shard.at, paths[name]) for name, shard in self._shards.items()]
        self._open = False
        shards = list(self._shards.values())
        self._committer.publish(new, groups=groups, files=self._moves, shards=shards, destroy_keys=self._forget_key)

    def discard(self) -> None:
        """Give everything up; the store stays as it is."""
        if self._open:
            self._open = False
            self._committer.end_transaction()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.discard()
        elif self._open:
            try:
                self.commit()
            except BaseException:
                self.discard()
                raise

    def _next(self, **remembered: Any) -> Manifest:
        """The manifest to come; of its fields about erasures, those not given in ``remembered`` stay as they are."""
        named = self._committer.manifest
        refs = {ref.name: ref for ref in named.shards if ref.name not in self._dropped}
        refs |= {name: ShardRef.of(name, s.role, s.rows, s.digest) for name, s in self._shards.items()}
        return named.replace(
            shards=list(refs.values()),
            objects=self._objects,
            skipped=named.skipped.without(self._erased, self._dropped),
            **self._fields,
            **remembered,
        )

    def _tombstones(self) -> Tombstones:
        """The tombstones of the manifest to come."""
        if self._forget_key:
            return Tombstones()
        news = self._adopted | set(self.tombstones(self._erased) if self._erased else ())
        return self._committer.manifest.tombstones.plus(news)

    def _key(self) -> bytes:
        if not self._secret:
            named = self._committer.manifest
            if named.tombstone_key:
                self._secret = ledger.read_key(self._committer.root, named)
            else:
                beside = self._committer.tombstone_file.key or ledger.unnamed_key(self._committer.root)
                self._secret = beside or os.urandom(ledger.KEY_BYTES)
        return self._secret

    def _rewrite(self, old: Shard, keep: NDArray[np.bool_], labels: NDArray[np.int32]) -> Shard:
        """The shard's rows where ``keep``, under these ``labels``."""

        def rows() -> Iterator[NDArray[Any]]:
            for block in old.blocks(old.chunk_rows):
                yield block.tokens[keep[block.start : block.start + len(block.tokens)]]

        self._count += 1
        at = f"{TRANSACTION}/{self._count}"
        made = old.manifest
        form = ShardForm(
            name=old.name,
            role=old.role,
            tokens_shape=made.tokens_shape,
            dtype=made.dtype,
            chunk_rows=made.chunk_rows,
        )
        group = GroupWriter(self._staging, at, form)
        ids = [i for i, kept in zip(old.sample_ids, keep, strict=True) if kept]
        return Shard(self._staging, group.put_all(rows(), ids, labels), at)

    def _stage(self, data: bytes, place: str, mode: int | None = None) -> None:
        self._count += 1
        staged = f"{TRANSACTION}/{self._count}"
        self._staging.write(staged, data, mode=mode)
        self._moves.append((staged, place))

    def _usable(self) -> None:
        if not self._open:
            raise StoreError("the transaction has ended and takes no more changes", got=str(self._committer.root.path))
