"""Stage 1: decode, run the frozen prefix and hand the tokens to a sink, all three at once.

A sample's tokens depend on nothing but the sample: every forward pass has the same number of
rows (a batch that is short, or has lost an unreadable image, repeats its first row), so a library
that picks kernels by size picks the same ones whatever else is in the batch, wherever a run was
resumed and however many threads work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Literal, NamedTuple, Protocol

import numpy as np

from taftcache.backbone.forward.engine import Engine, Engines, ImageBatch, Prefix
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Source
from taftcache.errors import BackboneError, DataError, RecipeError
from taftcache.tangent.device import full_float32

_WRITES_AHEAD = 2


class LeftOut(NamedTuple):
    """An image that has no row, and why."""

    id: str
    reason: str


class Sink(Protocol):
    """Where tokens go. ``consumed`` counts the entries of the order that are written or recorded as skipped."""

    @property
    def consumed(self) -> int: ...

    def append(
        self, tokens: np.ndarray, ids: Sequence[str], labels: Sequence[int], skipped: Sequence[LeftOut] = ()
    ) -> None:
        """Rows [n, t, d] with their ids and labels, in order, and the images left out among them."""
        ...


class RowCounts(NamedTuple):
    """How many samples became rows, and how many were left out because they could not be read."""

    rows: int
    skipped: int


def default_batch(cut: Prefix) -> int:
    """Rows of a forward pass. The model alone decides it, so every machine takes the same.

    About 2,048 tokens (a power of two from 4 to 64 rows), where one core's caches still hold a layer's
    activations: measured with DeiT-tiny on a CPU, batches of 8 took a sixth less processor time than
    batches of 32. GPUs get 128 rows.
    """
    if cut.device.type != "cpu":
        return 128
    height, width = cut.backbone.data_config["input_size"][1:]
    tokens = cut.shape[0] if len(cut.shape) == 2 else height * width / 256  # as many as patches of 16 pixels
    return 1 << max(2, min(6, round(math.log2(2048 / tokens))))


def extract(
    cut: Prefix,
    transform: Preprocess,
    source: Source,
    order: Sequence[int],
    sink: Sink,
    *,
    batch: int | None = None,
    workers: int | None = None,
    unreadable: Literal["stop", "skip"] = "stop",
    on_batch: Callable[[int], None] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    engine: Engine | None = None,
) -> RowCounts:
    """Append the tokens of ``source.items[k] for k in order`` to ``sink``, from ``sink.consumed`` on.

    batch: rows of every forward pass (``default_batch``); part of the result's identity wherever a
        processor's kernels round differently by size. workers: threads; on a CPU each decodes and runs whole
        batches on one core (default torch's number of threads), else they decode (default all cores).
    unreadable: "stop" raises UnreadableImage at the first such image in
        the order, once all before it are written; "skip" hands a LeftOut to the sink. on_batch: called in this
        thread with the number of entries of the order that were written since the last call.
    dtype: of the tokens handed over; float16 is rounded to nearest on the device.
    engine: what decodes and runs the model, closed at the end; by default an engine in this process.

    Anything raised by a reader, the model or the sink, and KeyboardInterrupt, ends the run: batches and
    appends that have begun are awaited, all others dropped, and no thread outlives the call except one that has been
    decoding an image for more than some seconds.
    """
    batch = default_batch(cut) if batch is None else batch
    _check(cut, transform, source, order, sink, batch, workers)
    if engine is None:
        with closing(Engines(cut, transform, batch, workers, dtype)) as engines:
            own = engines.engine(source, False, unreadable == "stop")
            return _run(cut, source, order, sink, own, on_batch)
    return _run(cut, source, order, sink, engine, on_batch)


def _run(
    cut: Prefix,
    source: Source,
    order: Sequence[int],
    sink: Sink,
    engine: Engine,
    on_batch: Callable[[int], None] | None,
) -> RowCounts:
    """See `extract`."""
    writer = _Writer(sink, source)
    rows = skipped = 0
    done: ImageBatch | None = None
    try:
        with full_float32(cut.device):
            for done in engine.batches(order[sink.consumed :]):
                writer.submit(done)
                rows, skipped = rows + len(done.indexes), skipped + len(done.unreadable)
                if on_batch is not None and (written := writer.written()):
                    on_batch(written)
                if done.stopped is not None:
                    break
            writer.finish()
            if on_batch is not None and (written := writer.written()):
                on_batch(written)
    finally:
        engine.close()
        writer.close()
    if done is not None and done.stopped is not None:
        raise done.stopped
    return RowCounts(rows, skipped)


class _Writer:
    """Appends in one thread, in order, a few batches behind; after a failure nothing more is appended."""

    def __init__(self, sink: Sink, source: Source) -> None:
        self._sink, self._source = sink, source
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="taftcache-append")
        self._pending: deque[Future[int]] = deque()
        self._failed = False
        self._written = 0

    def submit(self, batch: ImageBatch) -> None:
        """Queue one batch; raises what an earlier append raised."""
        if batch.indexes or batch.unreadable:
            self._pending.append(self._pool.submit(self._append, batch))
        while self._pending and (len(self._pending) > _WRITES_AHEAD or self._pending[0].done()):
            self._written += self._pending.popleft().result()

    def written(self) -> int:
        """Entries written since the last call."""
        count, self._written = self._written, 0
        return count

    def finish(self) -> None:
        while self._pending:
            self._written += self._pending.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _append(self, batch: ImageBatch) -> int:
        if self._failed:
            return 0
        items = [self._source.items[k] for k in batch.indexes]
        left_out = [LeftOut(self._source.items[k].id, str(e.got or e.fault)) for k, e in batch.unreadable]
        try:
            self._sink.append(batch.tokens(), [i.id for i in items], [i.label for i in items], left_out)
        except BaseException:
            self._failed = True
            raise
        return len(items) + len(left_out)


def _check(
    cut: Prefix,
    transform: Preprocess,
    source: Source,
    order: Sequence[int],
    sink: Sink,
    batch: int,
    workers: int | None,
) -> None:
    """Raise the error for arguments that are wrong or do not fit together."""
    if batch < 1 or (workers is not None and workers < 1):
        raise RecipeError(
            "batch and workers must be at least 1", got=f"batch = {batch}, workers = {workers}", do="give 1 or more"
        )
    if transform.image_shape != tuple(cut.backbone.data_config["input_size"]):
        raise BackboneError(
            "the preprocessing makes images of another size than the model takes",
            got=f"{transform.image_shape} for {tuple(cut.backbone.data_config['input_size'])}",
            do="build Preprocess from the same backbone",
        )
    if not 0 <= sink.consumed <= len(order):
        raise DataError(
            "the sink has consumed more entries than the order holds",
            got=f"{sink.consumed} of {len(order)}",
            do="extract into the store that this order was made for, or into a new one",
        )
    if len(order) and not (min(order) >= 0 and max(order) < len(source.items)):
        raise DataError(
            "the order has indexes outside the source's items",
            got=f"{min(order)} to {max(order)} for {len(source.items)} items",
            do="make the order from this source",
        )
