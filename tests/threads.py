"""A fixture for packages of small problems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
def one_thread() -> Iterator[None]:
    """A package of such tests."""
    with in_one_thread():
        yield
