"""Threads that each run torch on one core, and how long whoever ends a pool waits for what it does.

One batch at a time with each product split over all cores makes every core wait for the slowest at each of some
hundred barriers a batch. Whole batches, one a thread, have none.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

PATIENCE = 5.0  # seconds for what has begun when a pool is ended: a decoder may stand still for ever


class Begun:
    """The futures of a pool that are not done."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()

    def noted(self, future: Future[Any]) -> Future[Any]:
        """``future``, kept until it is done."""
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def stands_still(self) -> bool:
        """Drop what has not begun; whether something that has is not done in ``PATIENCE`` seconds."""
        begun = [future for future in list(self._futures) if not future.cancel()]
        return bool(wait(begun, PATIENCE).not_done)


def one_core_pool(workers: int, name: str) -> ThreadPoolExecutor:
    """A pool of ``workers`` threads in which torch's kernels are not split; the caller's setting stays as it is."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
    threads = torch.get_num_threads()
    # torch.set_num_threads concerns the calling thread and all that have not asked for their number yet, so
    # every worker asks, then sets its own, and when all have, this thread puts the number back for the rest.
    ready = threading.Barrier(workers + 1)
    try:
        for _ in range(workers):
            pool.submit(_single_threaded, ready)
        ready.wait()
    except BaseException:
        ready.abort()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        torch.set_num_threads(threads)
    return pool


def _single_threaded(ready: threading.Barrier) -> None:
    torch.get_num_threads()
    torch.set_num_threads(1)
    ready.wait()
