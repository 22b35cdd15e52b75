"""Who decodes for a device: threads of this process, and where images are many processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from taftcache.backbone.forward.processes import Decoded, Processes, can_fork
from taftcache.backbone.pool import end_threads

_GROUP = 8
PROCESSES_FROM = 512  # images, not measured on a GPU: to fork a process with a model takes some hundredths of a second


class Coming(Protocol):
    """A ``Future`` of a part of a batch, or what is used like one."""

    def result(self) -> Any: ...


Submit = Callable[[Sequence[int], bool], Coming]


class Decoders:
    """``workers`` threads that ``decode`` spans of one source's images [h,w,c]; forks, once it has had many to decode.

    They serve shard after shard, so that what a fork costs is paid once.

    group: images of a span at most. depth: spans under way that keep all workers busy.
    """

    def __init__(
        self, decode: Callable[[Sequence[int], bool], Decoded], shape: tuple[int, ...], batch: int, workers: int | None
    ) -> None:
        self._decode, self._shape, self._workers = decode, shape, workers or os.cpu_count() or 1
        # Several images a task where images are small: a task costs about 50 microseconds by itself.
        self.group = max(1, min(_GROUP, batch // self._workers))
        self.depth = max(self._workers, -(-2 * batch // self.group))
        self._slots = self.depth + -(-batch // self.group)
        self._images = 0
        self._pool: _Threads | Processes | None = None
        self._may_fork = self._workers > 1 and can_fork()

    def ready(self, images: int) -> Submit:
        """What asks for a span of the next so many ``images``."""
        self._images += images
        if self._may_fork and self._images >= PROCESSES_FROM:
            self._may_fork = False  # they are there, or cannot be
            self._fork()
        if self._pool is None:
            self._pool = _Threads(self._decode, self._workers)
        return self._pool.submit

    def close(self) -> None:
        """Wait for what has begun, but no more than some seconds, drop the rest, and end them."""
        if self._pool is not None:
            self._pool.shutdown()

    def _fork(self) -> None:
        """Forks in place of threads, unless the system gives no more: threads do the same, more slowly."""
        try:
            forks = Processes(self._decode, self._shape, self._workers, self.group, self._slots)
        except OSError:
            return
        self.close()
        self._pool = forks


class _Threads:
    """As ``Processes``, in this one."""

    def __init__(self, decode: Callable[[Sequence[int], bool], Decoded], workers: int) -> None:
        self._decode = decode
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="taftcache-decode")

    def submit(self, span: Sequence[int], stop: bool) -> Coming:
        return self._pool.submit(self._decode, span, stop)

    def shutdown(self) -> None:
        end_threads(self._pool)
