"""Writing one shard in a way that survives kill -9: what is once durable is never computed again."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taftcache.cache.format import layout
from taftcache.cache.format.manifest import ShardRef
from taftcache.cache.format.parts import Skipped
from taftcache.cache.format.plan import check_ids
from taftcache.cache.write.commit import Committer
from taftcache.cache.write.group import ChunkRecord, GroupWriter, to_stored
from taftcache.cache.write.journal import Header, Journal, Line, Seal
from taftcache.errors import DataError, IntegrityError, StoreError
from taftcache.names import counted

_THREADS = max(2, min(8, (os.cpu_count() or 1) // 2))
"""Threads that hash and write chunks: several files reach the disk sooner together than one after the other."""
_QUEUE = 2 * _THREADS
"""Chunks that may wait for the disk before `ShardWriter.append` does."""


class ShardWriter:
    """Rows in, one committed shard out.

    Chunks are hashed, written and fsynced by a few threads, and entered in the journal in order by one more, while the
    caller computes the next rows. Leaving the ``with`` block without `commit` keeps what is durable, and the next
    writer of the same shard, made with the same arguments, goes on after ``consumed`` candidates (rows and skipped
    samples, in the candidates' order).
    """

    def __init__(
        self, committer: Committer, header: Header, candidates: Sequence[str], labels: Mapping[str, int]
    ) -> None:
        self.name = header.name
        self._committer, self._header = committer, header
        self._candidates = list(candidates)
        self._at = f"staging/shard-{header.name}"
        self._group_at = f"{self._at}/group"
        staging = committer.staging
        self._journal = Journal(staging, self._at)
        self._ids: list[str] = []
        self._labels: list[int] = []
        self._done: list[int] = []
        self._skipped: list[tuple[int, Skipped]] = []  # (row of the shard it comes before, sample)
        self._chunks: list[ChunkRecord] = []
        self._flushed = 0  # rows handed to the thread
        self._closed = False
        self._failure: Exception | None = None  # what every further call raises
        self._pending: deque[Future[None]] = deque()
        self._written: deque[tuple[Future[ChunkRecord], Callable[[ChunkRecord], Line]]] = deque()
        self._spare: list[NDArray[Any]] = []
        self._broken = False
        found, lines, seal = self._journal.read()
        if found != header or any(
            labels.get(i, k) != k for line in lines for i, k in zip(line.ids, line.labels, strict=True)
        ):
            staging.remove(self._at)
            lines = []
            self._start_anew()
        elif seal is not None:
            self._journal.start(header, lines)
        else:
            self._journal.cut_incomplete()
        self._group = GroupWriter(staging, self._group_at, header)
        self._buffer = self._group.buffer()
        self._resume(lines)
        self._seen = set(self._ids) | {s.id for _, s in self._skipped}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"taftcache-{header.name}")
        self._disk = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"taftcache-{header.name}-chunk")
        committer.start_writer(header.name, self.close)

    def append(
        self,
        tokens: ArrayLike,
        ids: Sequence[str],
        labels: ArrayLike,
        skipped: Sequence[Skipped | tuple[str, str]] = (),
    ) -> None:
        """Add the rows ``tokens`` [b, t, d] (any float dtype, b ≥ 0) and ``skipped`` samples (id, reason) among them.

        Rows, and calls, follow the order of the candidates. DataError, before anything is taken, for NaN, Inf or
        overflow, an id that is there already or was forgotten, a label outside the classes, or a row out of order.
        StoreWriteError when the disk fails; what was durable stays so.
        """
        self._usable()
        ids = list(ids)
        left_out = [s if isinstance(s, Skipped) else Skipped(*s) for s in skipped]
        classes = np.asarray(labels)
        self._check(ids, classes, left_out)
        stored = to_stored(tokens, self._header.dtype, self._header.tokens_shape, ids)
        done, before = self._places(ids, left_out)
        first = len(self._ids)
        with self._to_the_end():
            self._skipped += [(first + place, Skipped(s.id, s.reason, self.name)) for place, s in before]
            self._done += done
            self._ids += ids
            self._labels += classes.tolist()
            self._seen.update(ids, (s.id for s in left_out))
            self.consumed += len(ids) + len(left_out)
            c, at = self._header.chunk_rows, 0
            while at < len(ids):
                filled = first + at - self._flushed
                take = min(len(ids) - at, c - filled)
                self._buffer[filled : filled + take] = stored[at : at + take]
                at += take
                if filled + take == c:
                    self._flush()

    def commit(self, *, plan: dict[str, Any] | None = None, expect: str | None = None) -> None:
        """Make the shard part of the store: all of its rows, or (after any failure) none of them.

        A shard of that name is replaced, with its skipped samples; ``plan`` becomes the store's in the same step.
        DataError if there are no rows, or candidates are left; IntegrityError if the shard's digest is not ``expect``.
        """
        self._usable()
        if self.consumed != len(self._candidates):
            raise DataError(
                f"cannot commit shard {self.name}: not every candidate is a row or skipped",
                got=f"{self.consumed} of {len(self._candidates)} candidates",
            )
        if not self._ids:
            raise DataError(
                f"cannot commit shard {self.name}: it has no rows",
                got=f"{counted(len(self._skipped), 'sample')} skipped",
                do="look at the reasons for which its samples were skipped, or use fewer shards",
            )
        with self._to_the_end():
            while self._pending:
                self._pending.popleft().result()
        chunks = list(self._chunks)
        if rest := len(self._ids) - self._flushed:
            chunks.append(self._group.put_rest(len(chunks), self._buffer, rest))
        ref = self._group.finish(chunks, self._ids, np.asarray(self._labels, np.int32))
        if expect is not None and ref.digest != expect:
            raise IntegrityError(
                f"the rows of shard {self.name} are not those that the digest was made from",
                got=f"digest {ref.digest[:16]}, expected {expect[:16]}",
            )
        self._journal.append(Seal(ref.digest))
        self._publish(ref, plan)
        self.close()

    @property
    def rows(self) -> int:
        """How many rows there are so far."""
        return len(self._ids)

    def discard(self) -> None:
        """Let go, and throw away what is durable."""
        self.close()
        self._committer.staging.remove(self._at)

    def close(self) -> None:
        """Let go without committing; the durable chunks stay in ``staging/`` for the next writer of this shard."""
        if not self._closed:
            self._failure = self._failure or StoreError(
                f"the writer of shard {self.name} is closed and takes no more rows"
            )
            self._disk.shutdown(wait=True)
            self._thread.shutdown(wait=True)
            # If the wait is interrupted, the writer stays open, and so do the store and its lock, because the threads
            # still write. Closing it again waits again.
            self._closed = True
            self._committer.end_writer(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _publish(self, ref: ShardRef, plan: dict[str, Any] | None) -> None:
        self._committer.check_no_transaction("commit a shard")
        named = self._committer.manifest
        new = named.replace(
            shards=[s for s in named.shards if s.name != ref.name] + [ref],
            skipped=named.skipped.replaced(ref.name, [s for _, s in self._skipped]),
            plan=named.plan if plan is None else plan,
        )
        self._committer.publish(new, groups=[(self._group_at, ref.path)])
        self._committer.staging.remove(self._at)

    def _check(self, ids: list[str], labels: np.ndarray[Any, Any], skipped: list[Skipped]) -> None:
        everyone = [*ids, *(s.id for s in skipped)]
        check_ids(everyone)
        for i in everyone:
            if i in self._seen or self._committer.contents.shard_of(i) not in (None, self.name):
                place = f"shard {self.name}" if i in self._seen else "another shard"
                raise DataError(f"sample {i!r} is in {place} already")
            if self._committer.contents.is_forgotten(i):
                raise DataError(
                    f"sample {i!r} was forgotten and must not come back", do="leave it out, or make a store elsewhere"
                )
        n = len(self._committer.manifest.classes)
        if labels.shape != (len(ids),) or not (labels.size == 0 or np.issubdtype(labels.dtype, np.integer)):
            raise DataError("every row must have one class index", got=f"{labels.dtype} {list(labels.shape)}")
        if labels.size and not (labels.min() >= 0 and labels.max() < n):
            row = int(np.flatnonzero((labels < 0) | (labels >= n))[0])
            raise DataError(f"a class index must be 0 to {n - 1}", got=f"sample {ids[row]!r}: {labels[row]}")

    def _places(self, ids: list[str], skipped: list[Skipped]) -> tuple[list[int], list[tuple[int, Skipped]]]:
        """For each row, how many candidates are done after it; for each skipped sample, the row that follows it."""
        base = self.consumed
        reasons = {s.id: s for s in skipped}
        due = self._candidates[base : base + len(ids) + len(skipped)]
        if [i for i in due if i not in reasons] != ids or len(due) != len(ids) + len(skipped):
            raise DataError(
                "rows and skipped samples are not in the order of the candidates",
                got=f"shard {self.name}, after {base} candidates: {', '.join(map(repr, (*ids, *reasons))):.200}",
            )
        done: list[int] = []
        before: list[tuple[int, Skipped]] = []
        for place, i in enumerate(due):
            if i in reasons:
                before.append((len(done), reasons[i]))
            else:
                done.append(base + place + 1)
        return done, before

    def _flush(self) -> None:
        start, stop = self._flushed, self._flushed + self._header.chunk_rows
        index, buffer = start // self._header.chunk_rows, self._buffer
        ids, labels, done = self._ids[start:stop], self._labels[start:stop], self._done[start:stop]
        skipped = [(place - start, s) for place, s in self._skipped if start <= place < stop]
        self._flushed = stop

        def put() -> ChunkRecord:
            record = self._group.put_chunk(index, buffer, len(ids))
            self._spare.append(buffer)
            return record

        self._written.append((self._disk.submit(put), lambda record: Line(record, ids, labels, done, skipped)))
        self._pending.append(self._thread.submit(self._enter))
        while len(self._pending) > _QUEUE or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()
        self._buffer = self._spare.pop() if self._spare else self._group.buffer()

    def _enter(self) -> None:
        """Enter the next chunk in the journal, along with those after it that are written by now. After a failure enter
        nothing more: a journal with a chunk left out would give rows the ids of others."""
        if self._broken or not self._written:
            return  # an earlier call has entered this chunk too
        self._broken = True  # until all of this is done
        records: list[ChunkRecord] = []
        lines: list[Line] = []
        failure: BaseException | None = None
        while self._written and failure is None and (not lines or self._written[0][0].done()):
            future, line = self._written.popleft()
            if (failure := future.exception()) is None:
                records.append(future.result())
                lines.append(line(records[-1]))
        if lines:
            self._group.sync_names()
            self._journal.append(*lines)
            self._chunks += records
        if failure is not None:
            raise failure
        self._broken = False

    @contextmanager
    def _to_the_end(self) -> Iterator[None]:
        """If the block does not finish, some of its rows are missing: then the writer takes no more."""
        try:
            yield
        except BaseException as error:
            self._failure = (
                error
                if isinstance(error, Exception)
                else StoreError(
                    f"the writer of shard {self.name} was interrupted and takes no more rows",
                    do="close it and write the shard again, which goes on after what is durable",
                )
            )
            raise

    def _usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _start_anew(self) -> None:
        """Begin the journal; what a full disk kept from beginning leaves nothing, for an audit would report it."""
        try:
            self._journal.start(self._header)
        except BaseException:
            with suppress(StoreError):
                self._committer.staging.remove(self._at)
            raise

    def _resume(self, lines: list[Line]) -> None:
        """Take up the durable rows, which are whole chunks."""
        root, c, count = self._committer.staging, self._header.chunk_rows, len(lines)
        seen: set[str] = set()
        for index, line in enumerate(lines):
            if not seen.isdisjoint(line.ids):  # two writers wrote at once, after a lock file was removed
                lines = lines[:index]
                break
            seen.update(line.ids)
        for index, line in enumerate(lines):
            # only the last may have been replaced since its line was written; hashing all again would take too long
            if self._group.get_chunk(index, line.chunk, sure=index == len(lines) - 1) is None:
                lines = lines[:index]
                break
        if len(lines) < count:
            self._journal.start(self._header, lines)
        for index, line in enumerate(lines):
            self._skipped += [(index * c + place, s) for place, s in line.skipped]
            self._ids += line.ids
            self._labels += line.labels
            self._done += line.done
        self._chunks = [line.chunk for line in lines]
        self._flushed = len(lines) * c
        self.consumed = self._done[-1] if self._done else 0
        dtype = self._header.dtype
        durable = {f"{self._group_at}/{name}" for i in range(len(lines)) for name in layout.chunk_names(i, dtype)}
        for file in list(root.walk(self._group_at)):
            if file not in durable:
                root.remove(file)
