"""Which threads and processes decode, and which run the model.

On a CPU every thread takes whole batches, from file to tokens, and runs the model on its one core.
The usual way, one batch at a time with each product split over all cores, makes every core wait
for the slowest at each of some hundred barriers a batch; a decoding thread or another program
holds all of them up (on two cores shared with another job it was measured 2 to 15 times slower).
Whole batches have no barriers, and decoding fills the time that is left. The bytes are the same.

On other devices threads or processes decode to bytes, and the caller's thread sends whole batches to the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.backbone.forward.decoders import Coming, Decoders
from taftcache.backbone.forward.replay import replayed
from taftcache.backbone.model import Backbone
from taftcache.backbone.pool import end_threads, one_core_pool
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Source, no_memory, unreadable
from taftcache.errors import UnreadableImage
from taftcache.tangent.device import transfer


def _none() -> np.ndarray:  # a named function, so that it can travel between processes
    return np.empty(0)


@dataclass
class ImageBatch:
    """What became of one span of the order.

    indexes: those of the rows of ``tokens()`` [n, t, d], which waits for the device. pixels: uint8 [h,w,c] for each,
    until there are tokens. unreadable: indexes without a row. stopped: the image at which the run ends; the other
    fields then hold the span up to it.
    """

    indexes: list[int] = field(default_factory=list)
    pixels: list[NDArray[np.uint8]] = field(default_factory=list)
    unreadable: list[tuple[int, UnreadableImage]] = field(default_factory=list)
    stopped: UnreadableImage | None = None
    tokens: Callable[[], np.ndarray] = _none

    def extend(self, other: ImageBatch) -> None:
        """Add the decoded part that follows; after a stop it is ignored."""
        if self.stopped is None:
            self.indexes += other.indexes
            self.pixels += other.pixels
            self.unreadable += other.unreadable
            self.stopped = other.stopped


class Prefix(Protocol):
    """The frozen layers: a ``Cut``, or something that keeps less of a sample than a cut does."""

    @property
    def backbone(self) -> Backbone: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def tokens_shape(self) -> tuple[int, int]: ...

    def prefix(self, images: Tensor) -> Tensor:
        """Rows [n, *tokens_shape] of preprocessed images [n,3,h,w]; called by several threads at once."""
        ...


class Work:
    """The two halves of the work on a span: decoding, and the prefix on exactly ``batch`` rows."""

    def __init__(
        self, cut: Prefix, transform: Preprocess, source: Source, batch: int, dtype: Literal["float32", "float16"]
    ) -> None:
        self.cut, self.batch = cut, batch
        self._transform, self._source = transform, source
        self._dtype = torch.float16 if dtype == "float16" else torch.float32
        self._transfer = transfer(cut.device)
        colours, height, width = transform.image_shape
        self.pixels_shape = height, width, colours  # PIL's layout
        self._prefix = replayed(cut) if cut.device.type == "cuda" else cut.prefix

    def decode(self, span: Sequence[int], stop: bool) -> ImageBatch:
        """Pixels of the images that decode; with ``stop``, of those before the first that does not."""
        done = ImageBatch()
        for index in map(int, span):
            result = self._pixels(index)
            if not isinstance(result, UnreadableImage):
                done.indexes.append(index)
                done.pixels.append(result.permute(1, 2, 0).numpy())  # PIL's layout
            elif stop:
                done.stopped = result
                break
            else:
                done.unreadable.append((index, result))
        return done

    def forward(self, done: ImageBatch) -> None:
        """Replace the pixels by tokens."""
        n = len(done.pixels)
        if n == 0:
            empty = np.empty((0, *self.cut.tokens_shape), str(self._dtype).removeprefix("torch."))
            done.tokens = lambda: empty
            return
        with torch.inference_mode():
            pixels = self._transfer.host((self.batch, *self.pixels_shape), torch.uint8)
            # With numpy: torch's threads would wait for each other while decoding has the cores. Beside 16 decoding
            # processes on 16 cores, torch's ``stack`` took 80 ms, most of the time of an extraction on an H200.
            filled = pixels.numpy()
            np.stack(done.pixels, out=filled[:n])
            filled[n:] = filled[0]
            done.pixels = []
            there = self._transfer.send(pixels).permute(0, 3, 1, 2)
            tokens = self._prefix(self._transform.normalise(there))
            done.tokens = self._transfer.fetch(tokens[:n].to(self._dtype))
            self._transfer.used()

    def _pixels(self, index: int) -> Tensor | UnreadableImage:
        try:
            image = self._source.read(index)
        except UnreadableImage as error:
            return error
        try:
            return self._transform.pixels(image)
        except MemoryError as error:
            raise no_memory(self._source.items[index].id) from error
        except (ValueError, OSError) as error:
            return unreadable(self._source.items[index].id, error)


class Engine(Protocol):
    """Turns an order into batches, in order, a few at a time."""

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]: ...

    def close(self) -> None:
        """End the threads; wait at most some seconds for what has begun."""
        ...


class CpuEngine:
    """``workers`` threads (torch's number by default), each of which runs whole batches on one core."""

    def __init__(self, work: Work, workers: int | None, stop: bool) -> None:
        self._work, self._stop = work, stop
        self._workers = workers or torch.get_num_threads()
        self._pool = one_core_pool(self._workers, "taftcache-batch")

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]:
        return _ahead(
            lambda span: self._pool.submit(self._whole, span), _spans(order, self._work.batch), self._workers + 1
        )

    def close(self) -> None:
        end_threads(self._pool)

    def _whole(self, span: Sequence[int]) -> ImageBatch:
        done = self._work.decode(span, self._stop)
        self._work.forward(done)
        return done


class DeviceEngine:
    """``decoders`` decode, and outlive the engine; the caller's thread launches the forward passes."""

    def __init__(self, work: Work, decoders: Decoders, stop: bool) -> None:
        self._work, self._decoders, self._stop = work, decoders, stop

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]:
        batch, group = self._work.batch, self._decoders.group
        ask = self._decoders.ready(len(order))
        parts = (part for span in _spans(order, batch) for part in _spans(span, group))
        decoded = _ahead(lambda part: ask(part, self._stop), parts, self._decoders.depth)
        for span in _spans(order, batch):
            done = ImageBatch()
            for _ in range(-(-len(span) // group)):
                done.extend(next(decoded))
            self._work.forward(done)
            yield done

    def close(self) -> None:
        """There is nothing to end: the decoders stay."""


class Engines:
    """The engines of the device that the model is on, for one order after another.

    batch: rows of every forward pass. workers: threads; on a CPU each decodes and runs whole batches on one core
    (default torch's number of threads), else they decode (default all cores). dtype: of the rows.
    """

    def __init__(
        self,
        cut: Prefix,
        transform: Preprocess,
        batch: int,
        workers: int | None,
        dtype: Literal["float32", "float16"] = "float32",
    ) -> None:
        self._cut, self._transform, self._batch, self._workers, self._dtype = cut, transform, batch, workers, dtype
        self._decoders: dict[bool, Decoders] = {}

    def engine(self, source: Source, held_out: bool, stop: bool) -> Engine:
        """An engine for ``source`` (the second of two if ``held_out``); with ``stop``, a batch ends at an image that
        does not decode."""
        work = Work(self._cut, self._transform, source, self._batch, self._dtype)
        if self._cut.device.type == "cpu":
            return CpuEngine(work, self._workers, stop)
        if held_out not in self._decoders:
            self._decoders[held_out] = Decoders(work.decode, work.pixels_shape, self._batch, self._workers)
        return DeviceEngine(work, self._decoders[held_out], stop)

    def close(self) -> None:
        """End the decoders."""
        for decoders in self._decoders.values():
            decoders.close()


def _ahead(
    submit: Callable[[Sequence[int]], Coming], tasks: Iterator[Sequence[int]], depth: int
) -> Iterator[ImageBatch]:
    """The results of ``tasks`` in order, with up to ``depth`` of them under way."""
    pending: deque[Coming] = deque()
    for task in tasks:
        pending.append(submit(task))
        if len(pending) >= depth:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _spans(order: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    return (order[k : k + length] for k in range(0, len(order), length))
