"""Decoding in separate processes, which write into memory that they share with this one.

Threads share one interpreter. Sixteen of them spent their time waiting for it: on 16 cores they decoded as many images
a second as four did, a fifth of what 16 processes do, and held up the threads that write the store.
"""

from __future__ import annotations

import copy
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from math import prod
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from taftcache.backbone import pool
from taftcache.errors import BackboneError, DataError, UnreadableImage

_WATCH = 1.0  # seconds between two checks that the parent process is still there


class Decoded(Protocol):
    """What became of a span: ``indexes`` of the ``pixels`` uint8 [h,w,c], unreadable images, and where it stopped."""

    indexes: list[int]
    pixels: list[NDArray[np.uint8]]
    unreadable: list[tuple[int, UnreadableImage]]
    stopped: UnreadableImage | None


class _Coming(NamedTuple):
    """A span under way, and where its images [n,h,w,c] will be."""

    found: Future[tuple[Decoded, int]]
    images: NDArray[np.uint8]

    def result(self) -> Any:
        """The span; its pixels are views of the shared memory."""
        with _deaths_said():
            done, count = self.found.result()
        done.pixels = list(self.images[:count])
        return done


@contextmanager
def _deaths_said() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise BackboneError(
            "a process that decoded images has ended unexpectedly",
            got=str(error),
            do="look whether the machine is short of memory; extract.workers is how many there are",
        ) from error


class Processes:
    """``workers`` forks of this process that run ``decode`` on spans of up to ``group`` images [h,w,c].

    A result's pixels are valid until ``slots`` further spans have been asked for. The forks have the source as it is
    now, and end with this process, however it ends.

    Raises:
        OSError: the system gives no more processes, or no memory for the images. BackboneError: a fork has died.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int], bool], Decoded],
        shape: tuple[int, ...],
        workers: int,
        group: int,
        slots: int,
    ) -> None:
        # Not in /dev/shm, which is small in containers.
        memory = mmap.mmap(-1, slots * group * prod(shape))
        self._images = np.frombuffer(memory, np.uint8).reshape(slots, group, *shape)
        context, self._asked = multiprocessing.get_context("fork"), 0
        self._pool = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin, initargs=(decode, self._images, os.getpid())
        )
        try:
            with _deaths_said(), warnings.catch_warnings():
                # the warning is about threads, and the present ones hold nothing that decoding needs
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pool.submit(int).result()  # forks all of them
        except BaseException:  # if one fork fails, nobody else ends those before it
            forks = list(self._pool._processes.values())
            _kill(forks)
            for fork in forks:
                fork.join()
            raise

    def submit(self, span: Sequence[int], stop: bool) -> _Coming:
        """See ``Work.decode``."""
        slot = self._asked % len(self._images)
        self._asked += 1
        with _deaths_said():
            found = self._pool.submit(_decode, [int(k) for k in span], stop, slot)
        return _Coming(found, self._images[slot])

    def shutdown(self) -> None:
        """Wait for the spans in hand, drop the rest, and end the forks; one that hangs is killed."""
        late = threading.Timer(pool.PATIENCE, _kill, [list(self._pool._processes.values())])
        late.daemon = True
        late.start()
        self._pool.shutdown(wait=True, cancel_futures=True)
        late.cancel()  # not reached if a second interrupt ends the wait: then the timer kills the forks


def _kill(forks: Iterable[BaseProcess]) -> None:
    for fork in forks:
        fork.kill()


def usable_cores() -> int:
    """How many processor cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether this process may fork: libraries on macOS do not survive a fork, and daemons may have no children."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


class _Here(NamedTuple):
    decode: Callable[[Sequence[int], bool], Decoded]
    images: NDArray[np.uint8]


_here: _Here


def _begin(decode: Callable[[Sequence[int], bool], Decoded], images: NDArray[np.uint8], parent: int) -> None:
    """In a fork, before its first span."""
    global _here
    _here = _Here(decode, images)
    for key in (signal.SIGINT, signal.SIGHUP):  # the parent ends its children when it is interrupted
        signal.signal(key, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler would interrupt one span, then go on
    sys.stdout, sys.stderr = _stream(1), _stream(2)  # a thread of the parent may have held the locks of the old ones
    torch.set_num_threads(1)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _stream(descriptor: int) -> Any:
    try:
        return open(descriptor, "w", buffering=1, closefd=False)
    except OSError:  # closed
        return None


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH)
    os._exit(1)


def _decode(span: Sequence[int], stop: bool, slot: int) -> tuple[Decoded, int]:
    """In a fork: decode the span and put its pixels into the slot; returns the rest, and how many pixels there are."""
    failure: Exception | None = None
    try:
        done = _here.decode(span, stop)
    except Exception as error:
        failure = error
    if failure is not None:  # raised outside of `except`, so that it carries no context along
        raise _portable(failure)
    for _, left_out in done.unreadable:
        _alone(left_out)
    if done.stopped is not None:
        _alone(done.stopped)
    for place, image in zip(_here.images[slot], done.pixels, strict=False):
        np.copyto(place, image)
    count, done.pixels = len(done.pixels), []
    return done, count


def _portable(error: Exception) -> Exception:
    """``error``, or a DataError with its text if the parent could not unpickle it and would believe this fork dead."""
    try:
        copy.copy(_alone(error))  # rebuilds it as unpickling would
    except Exception:
        return DataError(
            "decoding images failed",
            got=f"{type(error).__name__}: {error}",
            do="look at what the source of the images reads from",
        )
    return error


def _alone(error: Exception) -> Exception:
    """``error`` without its cause and context, which Python may pickle along with it for some libraries."""
    error.__cause__ = error.__context__ = None
    return error
