"""What decodes for a device: threads of this process or, for many images, processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from taftcache.backbone.forward.processes import Decoded, Processes, can_fork, usable_cores
from taftcache.backbone.pool import end_threads

_GROUP = 8
PROCESSES_FROM = 512  # images; not measured on a GPU: forking a process with a model takes some hundredths of a second


class Coming(Protocol):
    """A ``Future`` of a part of a batch, or something used like one."""

    def result(self) -> Any: ...


Submit = Callable[[Sequence[int], bool], Coming]


class Decoders:
    """``workers`` threads that ``decode`` spans of one source's images [h,w,c]; forks, once there are many to decode.

    They serve shard after shard, so that the cost of forking is paid once.

    group: most images in a span. depth: how many spans under way keep all workers busy.
    """

    def __init__(
        self, decode: Callable[[Sequence[int], bool], Decoded], shape: tuple[int, ...], batch: int, workers: int | None
    ) -> None:
        self._decode, self._shape, self._workers = decode, shape, workers or usable_cores()
        # Several images a task, because a task costs about 50 microseconds by itself.
        self.group = max(1, min(_GROUP, batch // self._workers))
        self.depth = max(self._workers, -(-2 * batch // self.group))
        self._slots = self.depth + -(-batch // self.group)
        self._images = 0
        self._pool: _Threads | Processes | None = None
        self._may_fork = self._workers > 1 and can_fork()

    def ready(self, images: int) -> Submit:
        """The function that asks for a span, for the next ``images`` images."""
        self._images += images
        if self._may_fork and self._images >= PROCESSES_FROM:
            self._may_fork = False  # either they exist now, or they cannot be had
            self._fork()
        if self._pool is None:
            self._pool = _Threads(self._decode, self._workers)
        return self._pool.submit

    def close(self) -> None:
        """End the workers: wait at most some seconds for what has begun, and drop the rest."""
        if self._pool is not None:
            self._pool.shutdown()

    def _fork(self) -> None:
        """Replace threads by forks, unless the system gives no more: threads do the same, more slowly."""
        try:
            forks = Processes(self._decode, self._shape, self._workers, self.group, self._slots)
        except OSError:
            return
        self.close()
        self._pool = forks


class _Threads:
    """The same as ``Processes``, in this process."""

    def __init__(self, decode: Callable[[Sequence[int], bool], Decoded], workers: int) -> None:
        self._decode = decode
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="taftcache-decode")

    def submit(self, span: Sequence[int], stop: bool) -> Coming:
        return self._pool.submit(self._decode, span, stop)

    def shutdown(self) -> None:
        end_threads(self._pool)
