"""Threads that each run torch on one core, and how long to wait for them when a pool is ended.

One batch at a time with each product split over all cores makes every core wait for the slowest at each of some
hundred barriers a batch. Whole batches, one a thread, have none.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

PATIENCE = 5.0  # seconds for what has begun when a pool is ended: a decoder may hang for ever


def end_threads(pool: ThreadPoolExecutor) -> None:
    """Drop what has not begun, and abandon a thread that does not end in ``PATIENCE`` seconds.

    This waits for the threads, not for futures: an interrupt may come after a task was handed over but before its
    future was kept.
    """
    pool.shutdown(wait=False, cancel_futures=True)
    latest = time.monotonic() + PATIENCE
    for thread in list(pool._threads):
        thread.join(max(0.0, latest - time.monotonic()))


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
