"""Threads that each run torch on one core, and how long to wait for them when a pool is ended.

One batch at a time with each product split over all cores makes every core wait for the slowest at each of some
hundred barriers a batch. Whole batches, one a thread, have none.
"""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor

import torch

PATIENCE = 5.0  # seconds for what has begun when a pool is ended: a decoder may hang for ever
_LIBRARIES = ctypes.CDLL(torch._C.__file__)  # torch's own, with all that they have loaded


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
    """A pool of ``workers`` threads in which torch's kernels are not split; no other thread's setting changes."""
    return ThreadPoolExecutor(workers, thread_name_prefix=name, initializer=_on_one_core)


def _on_one_core() -> None:
    """One core for this thread alone: ``torch.set_num_threads`` also sets the number of all threads that have not asked
    for theirs yet, so this calls the two functions with which it sets the thread's own."""
    torch.get_num_threads()  # the first call in a thread sets its number
    for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
        if hasattr(_LIBRARIES, name):  # elsewhere kernels stay split, which costs time alone
            getattr(_LIBRARIES, name)(1)
