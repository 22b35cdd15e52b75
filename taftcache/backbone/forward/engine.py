"""Who decodes and who runs the model.

On a CPU every thread takes whole batches, from file to tokens, and runs the model on its one core.
The usual way, one batch at a time with each product split over all cores, makes every core wait
for the slowest at each of some hundred barriers a batch; a decoding thread or another program beside it
holds all of them up (on two cores shared with another job it was measured 2 to 15 times slower).
Whole batches have no barriers, and decoding fills what time the cores have. The bytes are the same.

On other devices threads, or where images are many processes, decode to bytes, and the caller's thread sends whole
batches to the device.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from taftcache.backbone.forward.pool import one_core_pool
from taftcache.backbone.forward.processes import Processes, can_fork
from taftcache.backbone.forward.replay import replayed
from taftcache.backbone.model import Backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Source, unreadable
from taftcache.errors import UnreadableImage
from taftcache.tangent.device import transfer

_GROUP = 8
PROCESSES_FROM = 512  # images of a run: to fork a process that holds a model takes some hundredths of a second


def _none() -> np.ndarray:  # named, and so may travel between processes
    return np.empty(0)


@dataclass
class ImageBatch:
    """What became of one span of the order.

    indexes: of the rows of ``tokens()`` [n, t, d], which waits for the device. unreadable: indexes without a row.
    stopped: the image at which the run ends, with the span up to it in the other fields.
    """

    indexes: list[int] = field(default_factory=list)
    pixels: list[Tensor] = field(default_factory=list)
    unreadable: list[tuple[int, UnreadableImage]] = field(default_factory=list)
    stopped: UnreadableImage | None = None
    tokens: Callable[[], np.ndarray] = _none

    def extend(self, other: ImageBatch) -> None:
        """Add the decoded part that follows; nothing counts after a stop."""
        if self.stopped is None:
            self.indexes += other.indexes
            self.pixels += other.pixels
            self.unreadable += other.unreadable
            self.stopped = other.stopped


class Prefix(Protocol):
    """The frozen layers: a ``Cut``, or what keeps less of a sample than a cut does."""

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
        self.pixels_shape = height, width, colours  # of an image as PIL has it
        self._prefix = replayed(cut) if cut.device.type == "cuda" else cut.prefix

    def decode(self, span: Sequence[int], stop: bool) -> ImageBatch:
        """Pixels of the images that decode; with ``stop``, of those before the first that does not."""
        done = ImageBatch()
        for index in map(int, span):
            result = self._pixels(index)
            if not isinstance(result, UnreadableImage):
                done.indexes.append(index)
                done.pixels.append(result)
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
            torch.stack([image.permute(1, 2, 0) for image in done.pixels], out=pixels[:n])  # as PIL has them
            done.pixels = []
            pixels[n:] = pixels[0]
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
        except (ValueError, OSError) as error:
            return unreadable(self._source.items[index].id, error)


class Engine(Protocol):
    """Turns an order into batches, in order, a few at a time."""

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]: ...

    def close(self) -> None:
        """Wait for what has begun and end the threads."""
        ...


class CpuEngine:
    """``workers`` threads (torch's number by default), each with whole batches on one core."""

    def __init__(self, work: Work, workers: int | None, stop: bool) -> None:
        self._work, self._stop = work, stop
        self._workers = workers or torch.get_num_threads()
        self._pool = one_core_pool(self._workers, "taftcache-batch")

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]:
        return _ahead(
            lambda span: self._pool.submit(self._whole, span), _spans(order, self._work.batch), self._workers + 1
        )

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _whole(self, span: Sequence[int]) -> ImageBatch:
        done = self._work.decode(span, self._stop)
        self._work.forward(done)
        return done


class DeviceEngine:
    """``workers`` decoding threads, or processes of many images (all cores by default); the forward passes are launched
    by the caller."""

    def __init__(self, work: Work, workers: int | None, stop: bool) -> None:
        self._work, self._stop = work, stop
        self._workers = workers or os.cpu_count() or 1
        self._decoders: ThreadPoolExecutor | Processes | None = None

    def batches(self, order: Sequence[int]) -> Iterator[ImageBatch]:
        batch, workers = self._work.batch, self._workers
        # Several images a task where images are small: a task costs about 50 microseconds by itself.
        group = max(1, min(_GROUP, batch // workers))
        depth, each = max(workers, -(-2 * batch // group)), -(-batch // group)
        many = workers > 1 and len(order) >= PROCESSES_FROM and can_fork()
        submit = (self._forks(group, slots=depth + each) if many else None) or self._threads()
        decoded = _ahead(submit, (part for span in _spans(order, batch) for part in _spans(span, group)), depth)
        for span in _spans(order, batch):
            done = ImageBatch()
            for _ in range(-(-len(span) // group)):
                done.extend(next(decoded))
            self._work.forward(done)
            yield done

    def _forks(self, group: int, slots: int) -> Submit | None:
        """Asks forks for a span; None where the system gives no more of them, and threads do the same, more slowly."""
        try:
            forks = Processes(self._work.decode, self._work.pixels_shape, self._workers, group, slots)
        except OSError:
            return None
        self._decoders = forks
        return lambda part: forks.submit(part, self._stop)

    def _threads(self) -> Submit:
        self._decoders = pool = ThreadPoolExecutor(self._workers, thread_name_prefix="taftcache-decode")
        return lambda part: pool.submit(self._work.decode, part, self._stop)

    def close(self) -> None:
        if self._decoders is not None:
            self._decoders.shutdown(wait=True, cancel_futures=True)


class Coming(Protocol):
    """A ``Future`` of a part of a batch, or what is used like one."""

    def result(self) -> ImageBatch: ...


Submit = Callable[[Sequence[int]], Coming]


def _ahead(submit: Submit, tasks: Iterator[Sequence[int]], depth: int) -> Iterator[ImageBatch]:
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
