"""A second writer: it is refused at once, or waits as long as it was told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from taftcache.cache.format.manifest import FILE
from taftcache.cache.place.address import open_home
from taftcache.cache.place.lock import WriterLock, waiting
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError, StoreLocked
from tests.cache.making import create, tree
from tests.cli.making import refused


@contextmanager
def another_writer(path: Path, seconds: float) -> Iterator[int]:
    """A process that holds the lock of ``path`` for so long."""
    pipe, end = os.pipe()
    child = get_context("fork").Process(target=_hold, args=(path, end, seconds))
    child.start()
    assert os.read(pipe, 1) == b"!"
    try:
        yield child.pid or 0
    finally:
        child.kill()
        child.join()
        os.close(pipe)
        os.close(end)


def _hold(path: Path, pipe: int, seconds: float) -> None:
    with WriterLock(open_home(path, make=True)[1]):
        os.write(pipe, b"!")
        time.sleep(seconds)


@pytest.fixture
def empty(tmp_path) -> Path:
    create(tmp_path / "store").close()
    return tmp_path / "store"


@pytest.mark.law("A second writer is refused, or waits as long as it was told to")
def test_a_command_waits_for_another_writer(cli, empty):
    with another_writer(empty, 60) as pid:
        refused(cli("gc", empty), 9, f"process {pid} writes to it", "taftcache --wait SECONDS")
        late = cli("--wait", "0.2", "gc", empty)
        assert (late.code, late.err.count("waiting for up to 0.2 s")) == (9, 1)
    with another_writer(empty, 0.5) as pid:
        waited = cli("--wait", "60", "gc", empty, "--json")
    assert waited.code == 0
    assert waited.err == f"taftcache: cannot write to {empty}: process {pid} writes to it; waiting for up to 60 s\n"
    assert waited.json["removed"] == {}
    with another_writer(empty, 60):
        refused(cli("gc", empty), 9)  # the time was that command's alone


def test_who_waits_can_be_killed(empty):
    before = tree(empty, but=("lock",))
    with another_writer(empty, 60):
        child = get_context("fork").Process(target=_wait, args=(empty,))
        child.start()
        time.sleep(0.3)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
    assert tree(empty, but=("lock",)) == before
    FeatureStore(empty, mode="a").close()


def _wait(path: Path) -> None:
    with waiting(60, print):
        FeatureStore(path, mode="a")


def test_a_store_that_came_while_its_maker_waited_is_kept(tmp_path):
    """The one who held the lock has made a store there: it is not made again in its place."""
    path = tmp_path / "store"

    def made(_: str) -> None:
        (path / FILE).write_bytes(b"another's")

    with another_writer(path, 0.4), waiting(60, made), pytest.raises(StoreError) as refusal:
        create(path)
    assert not isinstance(refusal.value, StoreLocked)
    assert (path / FILE).read_bytes() == b"another's"
