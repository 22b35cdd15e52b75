"""Copies beside computation: the same bytes, and an order in which nothing is read before it is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from taftcache.tangent.device import AHEAD, Beside, InStep, transfer
from tests.pretended import a_gpu


class Recorded:
    """Streams and events that write down what is asked of them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._names: dict[int, str] = {}
        recorded = self

        class Stream:
            made = 0

            def __init__(self, device: Any = None, name: str = "") -> None:
                self.name = name or ("in", "out")[Stream.made % 2]
                Stream.made += not name

            def wait_stream(self, other: Stream) -> None:
                recorded.log.append(f"{self.name} waits for {other.name}")

        class Event:
            made = 0

            def __init__(self) -> None:
                self.number = Event.made
                Event.made += 1

            def record(self, stream: Stream) -> None:
                recorded.log.append(f"event {self.number} on {stream.name}")

            def synchronize(self) -> None:
                recorded.log.append(f"host waits for event {self.number}")

        self.Stream, self.Event, self._main = Stream, Event, Stream(name="main")

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append(f"copy on {stream.name}")
        yield

    def patched(self) -> Any:
        names = {name: getattr(self, name) for name in ("Stream", "Event", "stream")}
        return patch.multiple(torch.cuda, current_stream=lambda device: self._main, **names)


ARRAYS = [np.arange(6, dtype=kind).reshape(2, 3) for kind in ("uint8", "int64", "float16", "float32", "float64")]


@pytest.mark.parametrize("large", [64 << 20, 1], ids=["one thread", "several"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bytes_there_and_back(device, large, monkeypatch):
    monkeypatch.setattr("taftcache.tangent.device._LARGE", large)
    with a_gpu():
        way = transfer(device)
        assert type(way) is (Beside if device == "cuda" else InStep)
        for array in ARRAYS * 2:
            for given in (array, np.asfortranarray(array), np.broadcast_to(array[:1], (2, 3))):
                there = way.put(given)
                assert there.device.type == device
                assert there.is_contiguous()
                way.used()
                assert np.array_equal(way.fetch(there * 1)(), given)
                assert way.fetch(there)().dtype == given.dtype
        host = way.host((2, 2), torch.uint8)
        host.fill_(7)
        assert way.fetch(way.send(host))().tolist() == [[7, 7], [7, 7]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the order is looked at on a pretended device")
def test_the_order_of_copies_and_waits():
    with a_gpu():
        made = Recorded()
        with made.patched():
            way = transfer("cuda")
            for _ in range(AHEAD + 1):
                way.put(ARRAYS[0])
                way.used()
            there = way.put(ARRAYS[0])
            back = way.fetch(there)
            made.log.append("then")
            back()
    sent = ["copy on in", "main waits for in"]
    one = [step for k in range(AHEAD) for step in (*sent, f"event {k} on main")]
    more = ["host waits for event 0", *sent, f"event {AHEAD} on main", "host waits for event 1", *sent]
    end = ["out waits for main", "copy on out", "event 3 on out", "then", "host waits for event 3"]
    assert made.log == one + more + end
