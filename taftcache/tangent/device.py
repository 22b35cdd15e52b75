"""The device that computes: float32 arithmetic that stays float32, and copies to and from the host meanwhile."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import pairwise
from threading import RLock
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LARGE, _COPIERS = 64 << 20, 4  # bytes; one thread copies 11 GB/s where an H100 takes 54
AHEAD = 2  # how many sent tensors may be in use on the device before the host waits; not measured on a GPU


class Transfer(Protocol):
    """Copies of tensors to one device and back. One thread may use it; if the device is the host's own, any may."""

    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory of the host, to be filled and given to ``send``."""
        ...

    def send(self, host: Tensor) -> Tensor:
        """``host`` on the device; ``host`` must not be written to again."""
        ...

    def put(self, array: NDArray[Any]) -> Tensor:
        """``array`` on the device, of the same shape and type; read-only arrays too."""
        ...

    def used(self) -> None:
        """Say that everything computed from the last tensor sent has been asked for."""
        ...

    def fetch(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        """A function that waits for ``tensor``'s numbers and returns them; any thread may call it."""
        ...


class InStep:
    """Each copy is done when the call returns."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device

    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See ``Transfer``."""
        return torch.empty(shape, dtype=dtype)

    def send(self, host: Tensor) -> Tensor:
        """See ``Transfer``."""
        return host.to(self._device)

    def put(self, array: NDArray[Any]) -> Tensor:
        """See ``Transfer``."""
        # A cache hands out read-only views of mapped files, but torch takes only memory that it may write.
        owned = np.ascontiguousarray(array) if array.flags.writeable else np.array(array, order="C")
        return torch.from_numpy(owned).to(self._device)

    def used(self) -> None:
        """See ``Transfer``."""

    def fetch(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        """See ``Transfer``."""
        array = tensor.cpu().numpy()
        return lambda: array


class Beside:
    """On CUDA: copies run on streams of their own, while kernels work on what was sent before.

    Host memory is pinned; torch keeps it and reuses it once the copies from it are done.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._in, self._out = torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)
        self._in_use: deque[torch.cuda.Event] = deque()

    def host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See ``Transfer``."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def send(self, host: Tensor) -> Tensor:
        """See ``Transfer``; waits while the tensor sent ``AHEAD`` calls ago is in use."""
        if len(self._in_use) >= AHEAD:
            self._in_use.popleft().synchronize()
        with torch.cuda.stream(self._in):
            there = host.to(self._device, non_blocking=True)
        now = torch.cuda.current_stream(self._device)
        now.wait_stream(self._in)
        there.record_stream(now)  # its memory is not reused before the work that now uses it is done
        return there

    def put(self, array: NDArray[Any]) -> Tensor:
        """See ``Transfer``."""
        host = self.host(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
        _copy(host.numpy(), array)
        return self.send(host)

    def used(self) -> None:
        """See ``Transfer``."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._in_use.append(event)

    def fetch(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        """See ``Transfer``."""
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        host = self.host(tuple(tensor.shape), tensor.dtype)
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._out)
        done = torch.cuda.Event()
        done.record(self._out)

        def wait() -> NDArray[Any]:
            done.synchronize()
            return host.numpy()

        return wait


def _copy(into: NDArray[Any], array: NDArray[Any]) -> None:
    """Copy ``array`` into host memory; a large one by several threads, because a device takes more than one copies."""
    if array.nbytes < _LARGE:
        np.copyto(into, array)
        return
    cuts = np.linspace(0, len(array), _COPIERS + 1).astype(int)
    with ThreadPoolExecutor(_COPIERS) as pool:
        list(pool.map(lambda at: np.copyto(into[at[0] : at[1]], array[at[0] : at[1]]), pairwise(cuts.tolist())))


def transfer(device: torch.device | str) -> Transfer:
    """The way to and from ``device``."""
    return Beside(device) if torch.device(device).type == "cuda" else InStep(device)


def on_the_cpu() -> AbstractContextManager[Any]:
    """Inside, tensors without a named device are made on the CPU, whatever default a program has set."""
    if torch.get_default_device().type == "cpu":  # setting it again would slow down each of torch's calls
        return nullcontext()
    return torch.device("cpu")


@contextmanager
def full_float32(device: torch.device | str) -> Iterator[None]:
    """Products in float32 proper: no TF32, no bfloat16 shortcuts and no autocast, restored afterwards.

    cuDNN convolutions use TF32 by default, and a program may have lowered the precision of matrix
    products; either would put rounding of 1e-3 into features that are stored for good. cuDNN kernels that sum in no
    fixed order are excluded too, so that the same run gives the same bytes. Inside, ``on_the_cpu`` also holds.
    """
    with torch.autocast(torch.device(device).type, enabled=False), on_the_cpu():
        _exact.enter()
        try:
            yield
        finally:
            _exact.leave()


def lowered() -> bool:
    """Whether a program has asked for products on a CPU in less than float32."""
    return torch.is_autocast_enabled("cpu") or torch.get_float32_matmul_precision() != "highest"


def process_lock() -> AbstractContextManager[bool]:
    """A lock that the thread which has it may take again, and that a fork waits for.

    So a child never finds it taken by a thread that it does not have, nor what it guards half done. Of two locks, the
    one made later has to be taken first, as a fork does.
    """
    lock = RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class _Exact:
    """The settings of ``full_float32``, which belong to the whole process. The earlier ones come back only when the
    last thread is done: restored by the first, they would change under threads that are still at work."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = process_lock(), 0, ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._before.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
                torch.set_float32_matmul_precision("highest")
                self._before.enter_context(
                    torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
                )
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.close()


_exact = _Exact()
