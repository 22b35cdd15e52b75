"""The frozen layers on CUDA as one launch: a graph of what a forward pass launches, since passes all have one shape.

Otherwise Python holds the interpreter between launches of small kernels, and decoding threads wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

_BEFORE = 2  # passes before a graph: libraries settle on their kernels, and a shorter run need not pay for a graph


class Model(Protocol):
    """What has frozen layers."""

    def prefix(self, images: Tensor) -> Tensor:
        """Rows of preprocessed images [n,3,h,w]."""
        ...


def replayed(model: Model) -> Replayed:
    """The ``prefix`` of ``model`` with one graph, kept from shard to shard because all batches have the same shape."""
    with _making:
        if model not in _made:
            weak = ref(model)  # the graph must not keep its model alive

            def prefix(images: Tensor) -> Tensor:
                there = weak()
                assert there is not None
                return there.prefix(images)

            _made[model] = Replayed(prefix)
        return _made[model]


class Replayed:
    """``function`` [n,…] → [n,…] of tensors on a CUDA device, to the bit: by a graph for inputs of the first's shape.

    A function is called as it is if it cannot be captured, because it waits for the device or allocates outside torch,
    or if its graph gives other bits.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function, self._calls, self._lock = function, 0, Lock()
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, given: Tensor) -> Tensor:
        with self._lock:
            self._calls += 1
            if self._calls == _BEFORE + 1:
                return self._captured(given)
            if self._graph is None or given.shape != self._given.shape:
                return self._function(given)
            self._given.copy_(given)
            self._graph.replay()
            return self._found.clone()  # the next replay writes over it

    def _captured(self, given: Tensor) -> Tensor:
        found = self._function(given)
        try:
            self._given, graph = given.clone(), torch.cuda.CUDAGraph()
            # Torch's own stream for captures may belong to another device, whose graph would be empty; and a failed
            # capture leaves it the current one. The writer's thread waits for copies meanwhile, which a capture of
            # all threads would not allow.
            with (
                torch.cuda.stream(torch.cuda.current_stream(given.device)),
                torch.cuda.graph(graph, stream=torch.cuda.Stream(given.device), capture_error_mode="thread_local"),
            ):
                self._found = self._function(self._given)
            self._found.zero_()  # so that what is there after the replay comes from the graph
            graph.replay()
            if torch.equal(self._found, found):
                self._graph = graph
        except RuntimeError:
            torch.cuda.synchronize(given.device)
        return found


_made: WeakKeyDictionary[Model, Replayed] = WeakKeyDictionary()
_making = Lock()
