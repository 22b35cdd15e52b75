"""A graph gives what the function gives, batch after batch; what cannot be captured, or gives other bits, is called."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

from taftcache.backbone.forward.replay import Replayed, replayed
from tests.pretended import DEVICE, pretended_cuda

current: list[Any] = ["default"]
CALLED, REPLAYED = 4, 3  # of six batches: two first, one to compare with, one captured; and what is left


class Recorded:
    """A function, and what stands for CUDA's graph of it: ``replay`` writes over its output as a graph does."""

    def __init__(self, off: float = 0.0, refused: bool = False, empty: bool = False) -> None:
        self.off, self.refused, self.empty = off, refused, empty
        self.calls, self.replays, self.capturing = 0, 0, False

    def __call__(self, given: Tensor) -> Tensor:
        self.calls += 1
        found = given * 2 + 1
        if self.capturing:
            if self.refused:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.given, self.found = given, found
        return found

    def replay(self) -> None:
        self.replays += 1
        if self.empty:
            return
        self.found.copy_(self.given * 2 + 1 + self.off)

    @contextmanager
    def graph(self, graph: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert graph is self
        assert stream == f"a stream of {DEVICE}"
        assert capture_error_mode == "thread_local"
        self.capturing = True
        current.append(stream)
        try:
            yield
            current.pop()  # as torch does: not where the capture fails
        finally:
            self.capturing = False


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """As ``torch.cuda.stream``: the streams before are current again, whatever has become of them inside."""
    before = list(current)
    current.append(stream)
    try:
        yield
    finally:
        current[:] = before


def outputs(function: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six batches through it, each as it should be, and still so when all are done; the stream is the one before."""
    replayed = Replayed(function)
    with pretended_cuda():
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: function)
        monkeypatch.setattr(torch.cuda, "graph", function.graph)
        monkeypatch.setattr(torch.cuda, "Stream", "a stream of {}".format)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
        monkeypatch.setattr(torch.cuda, "stream", on_stream)
        batches = [torch.full((2, 3), float(k), device="cuda") for k in range(6)]
        found = [replayed(batch) for batch in batches]
        monkeypatch.undo()
    assert current == ["default"]
    found, batches = [rows.cpu() for rows in found], [batch.cpu() for batch in batches]
    for batch, rows in zip(batches, found, strict=True):
        assert torch.equal(rows, batch * 2 + 1)


def test_a_graph_takes_the_place_of_the_function(monkeypatch):
    function = Recorded()
    outputs(function, monkeypatch)
    assert (function.calls, function.replays) == (CALLED, 1 + REPLAYED)


@pytest.mark.parametrize(
    "function",
    [Recorded(off=1e-3), Recorded(refused=True), Recorded(empty=True)],
    ids=["other bits", "no capture", "empty"],
)
def test_what_cannot_be_replayed_is_called(function, monkeypatch):
    outputs(function, monkeypatch)
    assert function.replays == (0 if function.refused else 1)


def test_another_shape_is_no_matter_of_the_graph():
    function = Recorded()
    replayed = Replayed(function)
    replayed._calls, replayed._graph, replayed._given = 3, function, torch.zeros(2, 3)
    assert torch.equal(replayed(torch.ones(1, 3)), torch.full((1, 3), 3.0))
    assert function.replays == 0


def test_a_model_has_one_and_is_not_kept_by_it():
    class Model:
        def prefix(self, images: Tensor) -> Tensor:
            return images + 1

    model = Model()
    one = replayed(model)
    assert replayed(model) is one
    assert replayed(Model()) is not one
    assert torch.equal(one(torch.zeros(1)), torch.ones(1))
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_of_a_real_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).cuda()
    replayed = Replayed(model)
    with torch.inference_mode():
        batches = [torch.randn(16, 8, device="cuda") for _ in range(6)]
        found = [replayed(batch) for batch in batches]
        assert replayed._graph is not None
        assert all(torch.equal(rows, model(batch)) for rows, batch in zip(found, batches, strict=True))
