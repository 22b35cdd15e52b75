"""Stage 1: decode, run the frozen prefix and hand the tokens to a sink, all three at once.

A sample's tokens depend on nothing but the sample: every forward pass has the same number of
rows (a short last batch repeats its first row), so the kernels that a library picks by size are
the same whoever else is in the batch, wherever a run was resumed and however many threads decode.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from taftcache.backbone.cut import Cut
from taftcache.backbone.device import full_float32
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.base import unreadable as unreadable_image
from taftcache.errors import BackboneError, DataError, RecipeError, UnreadableImage

_WRITES_AHEAD = 2
_GROUP = 8


class LeftOut(NamedTuple):
    """An image that is not among the rows, and why."""

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


@dataclass(frozen=True)
class ExtractStats:
    """What a run did, and where its time went (seconds; decoding and writing overlap with the rest).

    decode_seconds adds up all threads; wait_seconds is how long the forward pass had no batch to run.
    """

    resumed_at: int
    images: int
    skipped: int
    batches: int
    seconds: float
    decode_seconds: float
    forward_seconds: float
    write_seconds: float
    wait_seconds: float

    @property
    def images_per_s(self) -> float:
        """Images written per second."""
        return self.images / self.seconds if self.seconds > 0 else 0.0


def extract(
    cut: Cut,
    transform: Preprocess,
    source: Source,
    order: Sequence[int],
    sink: Sink,
    *,
    batch: int = 32,
    workers: int | None = None,
    device: torch.device | str | None = None,
    unreadable: Literal["stop", "skip"] = "stop",
    on_batch: Callable[[int], None] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
) -> ExtractStats:
    """Append the tokens of ``source.items[k] for k in order`` to ``sink``, from ``sink.consumed`` on.

    batch: rows of every forward pass; part of the result's identity where a CPU's or GPU's kernels
        differ by size. workers: decoding threads, all cores by default. device: None or where the cut is.
    unreadable: "stop" raises UnreadableImage at the first such image in the order, once all before it
        are written; "skip" hands (id, reason) to the sink. on_batch: called in this thread with the
        number of entries of the order that have been written since the last call.
    dtype: of the tokens handed over; float16 is rounded to nearest on the device.

    Anything raised by a reader, the model or the sink ends the run; no thread outlives it.
    """
    _check(cut, transform, source, order, sink, batch, workers, device)
    begin, start = time.perf_counter(), sink.consumed
    on_batch = on_batch or (lambda entries: None)
    reader = _Reader(transform, source, batch, workers or os.cpu_count() or 1)
    writer = _Writer(sink)
    pass_ = _Forward(cut, transform, batch, torch.float16 if dtype == "float16" else torch.float32)
    images = skipped = batches = 0
    forward = wait = 0.0
    stopped: UnreadableImage | None = None
    try:
        with torch.inference_mode(), full_float32(cut.device):
            entries = reader.entries(order[start:])
            while stopped is None:
                mark = time.perf_counter()
                rows, left_out, stopped = _gather(entries, source, batch, unreadable == "stop")
                wait += time.perf_counter() - mark
                if not rows and not left_out:
                    break
                items = [source.items[index] for index, _ in rows]
                mark = time.perf_counter()
                tokens = pass_([pixels for _, pixels in rows])
                forward += time.perf_counter() - mark
                writer.submit(tokens, [item.id for item in items], [item.label for item in items], left_out)
                images, skipped, batches = images + len(rows), skipped + len(left_out), batches + 1
                if written := writer.written():
                    on_batch(written)
            writer.finish()
            if written := writer.written():
                on_batch(written)
    finally:
        # Also on KeyboardInterrupt: what has not begun is cancelled, what runs (one image, one append) is awaited.
        reader.close()
        writer.close()
    if stopped is not None:
        raise stopped
    return ExtractStats(
        start, images, skipped, batches, time.perf_counter() - begin, reader.seconds, forward, writer.seconds, wait
    )


class _Reader:
    """Decodes ahead in threads, two batches at most, and yields in order."""

    def __init__(self, transform: Preprocess, source: Source, batch: int, workers: int) -> None:
        self._transform, self._source = transform, source
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="taftcache-decode")
        # Several images a task where images are small: a task costs about 50 microseconds by itself.
        self._group = max(1, min(_GROUP, batch // workers))
        self._ahead = max(workers, -(-2 * batch // self._group))
        self.seconds = 0.0

    def entries(self, order: Sequence[int]) -> Iterator[tuple[int, Tensor | UnreadableImage]]:
        groups = (order[k : k + self._group] for k in range(0, len(order), self._group))
        pending: deque[Future[tuple[list[Tensor | UnreadableImage], float]]] = deque()
        names: deque[Sequence[int]] = deque()
        while True:
            for group in islice(groups, self._ahead - len(pending)):
                pending.append(self._pool.submit(self._decode, group))
                names.append(group)
            if not pending:
                return
            decoded, seconds = pending.popleft().result()
            self.seconds += seconds
            yield from zip((int(k) for k in names.popleft()), decoded, strict=True)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _decode(self, group: Sequence[int]) -> tuple[list[Tensor | UnreadableImage], float]:
        begin = time.thread_time()
        return [self._one(int(k)) for k in group], time.thread_time() - begin

    def _one(self, index: int) -> Tensor | UnreadableImage:
        try:
            image = self._source.read(index)
        except UnreadableImage as error:
            return error
        try:
            return self._transform.pixels(image)
        except (ValueError, OSError) as error:
            return unreadable_image(self._source.items[index].id, error)


class _Forward:
    """The prefix on exactly ``batch`` rows, and the tokens on their way to the host."""

    def __init__(self, cut: Cut, transform: Preprocess, batch: int, dtype: torch.dtype) -> None:
        self._cut, self._transform, self._dtype = cut, transform, dtype
        self._cuda = cut.device.type == "cuda"
        self._shape = (batch, *transform.image_shape)

    def __call__(self, rows: list[Tensor]) -> Callable[[], np.ndarray]:
        """A function that waits for and returns the tokens [len(rows), t, d]."""
        n = len(rows)
        if n == 0:
            empty = np.empty((0, *self._cut.tokens_shape), str(self._dtype).removeprefix("torch."))
            return lambda: empty
        pixels = torch.empty(self._shape, dtype=torch.uint8, pin_memory=self._cuda)
        torch.stack(rows, out=pixels[:n])
        pixels[n:] = pixels[0]
        tokens = self._cut.prefix(self._transform.normalise(pixels.to(self._cut.device, non_blocking=True)))
        tokens = tokens[:n].to(self._dtype)
        if not self._cuda:
            array = tokens.cpu().numpy()
            return lambda: array
        # The copy runs behind the kernels; the writer's thread waits for it while the next batch is launched.
        host = torch.empty(tokens.shape, dtype=self._dtype, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

        def wait() -> np.ndarray:
            done.synchronize()
            return host.numpy()

        return wait


class _Writer:
    """Appends in one thread, in order, a few batches behind; after a failure nothing more is appended."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="taftcache-append")
        self._pending: deque[Future[int]] = deque()
        self._failed = False
        self._written = 0
        self.seconds = 0.0

    def submit(
        self, tokens: Callable[[], np.ndarray], ids: list[str], labels: list[int], skipped: list[LeftOut]
    ) -> None:
        self._pending.append(self._pool.submit(self._append, tokens, ids, labels, skipped))
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

    def _append(
        self, tokens: Callable[[], np.ndarray], ids: list[str], labels: list[int], skipped: list[LeftOut]
    ) -> int:
        if self._failed:
            return 0
        begin = time.perf_counter()
        try:
            self._sink.append(tokens(), ids, labels, skipped)
        except BaseException:
            self._failed = True
            raise
        self.seconds += time.perf_counter() - begin
        return len(ids) + len(skipped)


def _gather(
    entries: Iterator[tuple[int, Tensor | UnreadableImage]], source: Source, batch: int, stop: bool
) -> tuple[list[tuple[int, Tensor]], list[LeftOut], UnreadableImage | None]:
    """Up to ``batch`` rows, what was left out among them, and the image to stop at."""
    rows: list[tuple[int, Tensor]] = []
    left_out: list[LeftOut] = []
    # zip would drop an entry when the batch is full.
    while len(rows) < batch and (entry := next(entries, None)) is not None:
        index, result = entry
        if not isinstance(result, UnreadableImage):
            rows.append((index, result))
        elif stop:
            return rows, left_out, result
        else:
            left_out.append(LeftOut(source.items[index].id, str(result.got or result.rule)))
    return rows, left_out, None


def _check(
    cut: Cut,
    transform: Preprocess,
    source: Source,
    order: Sequence[int],
    sink: Sink,
    batch: int,
    workers: int | None,
    device: torch.device | str | None,
) -> None:
    """What can be wrong with the arguments."""
    if batch < 1 or (workers is not None and workers < 1):
        raise RecipeError("Batch and workers are at least 1.", got=f"batch = {batch}, workers = {workers}")
    if device is not None and torch.empty(0, device=device).device != torch.empty(0, device=cut.device).device:
        raise BackboneError(
            "Extraction runs where the model is.",
            got=f"device {device}, the model is on {cut.device}",
            do="load the backbone with that device",
        )
    if transform.image_shape != tuple(cut.backbone.data_config["input_size"]):
        raise BackboneError(
            "The preprocessing must make images of the model's size.",
            got=f"{transform.image_shape} for {tuple(cut.backbone.data_config['input_size'])}",
            do="build Preprocess from the same backbone",
        )
    if not 0 <= sink.consumed <= len(order):
        raise DataError(
            "A sink cannot have consumed more entries than the order holds.",
            got=f"{sink.consumed} of {len(order)}",
            do="extract into the store that this order was made for, or into a new one",
        )
    if len(order) and not (min(order) >= 0 and max(order) < len(source.items)):
        raise DataError(
            "The order holds indexes into the source's items.",
            got=f"{min(order)} to {max(order)} for {len(source.items)} items",
            do="make the order from this source",
        )
