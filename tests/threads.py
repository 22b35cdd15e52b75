"""Tests in one thread, or in several at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch


@contextmanager
def in_one_thread() -> Iterator[None]:
    """The models and problems of most tests are so small that two threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package", autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """A package of such tests, whose ``conftest.py`` imports this: imported anywhere else, it would last for all."""
    assert isinstance(request.node, pytest.Package)
    with in_one_thread():
        yield


def at_once(threads: int, ask: Callable[[int], Any]) -> list[Any]:
    """``ask(k)`` for each of new ``threads`` that begin together."""
    ready = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda k: ready.wait() * 0 or ask(k), range(threads)))
