"""A second writer: it is refused at once, or waits as long as it was told to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread

import pytest

import taftcache
from taftcache.cache.format.manifest import FILE
from taftcache.cache.place.address import open_home
from taftcache.cache.place.lock import WriterLock, waiting
from taftcache.cache.store import FeatureStore
from taftcache.errors import ArgumentError, StoreError, StoreLocked
from taftcache.terminal.console import note
from tests.cache.making import create, tree
from tests.cli.making import refused

FORKS = get_context("fork")


@contextmanager
def another_writer(path: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """A process that holds the lock of ``path``: its number, and what lets the lock go."""
    held, go = FORKS.Event(), FORKS.Event()
    child = FORKS.Process(target=_hold, args=(path, held, go))
    child.start()
    try:
        assert held.wait(60)
        yield child.pid or 0, go.set
    finally:
        child.kill()
        child.join()


def _hold(path: Path, held: Event, go: Event) -> None:
    path.mkdir(exist_ok=True)
    with WriterLock(open_home(path)[1]):
        held.set()
        go.wait()


@pytest.fixture
def empty(tmp_path) -> Path:
    create(tmp_path / "store").close()
    return tmp_path / "store"


@pytest.mark.law("A second writer is refused, or waits as long as it was told to")
def test_a_command_waits_for_another_writer(cli, empty, monkeypatch):
    with another_writer(empty) as (pid, _):
        refused(cli("gc", empty), 9, f"process {pid} writes to it", "taftcache --wait SECONDS")
        late = cli("--wait", "0.2", "gc", empty)
        assert (late.code, late.err.count("waiting for up to 0.2 s")) == (9, 1)
    with another_writer(empty) as (pid, let_go):
        monkeypatch.setattr("taftcache.cli.note", lambda text: (note(text), let_go()))
        waited = cli("--wait", "60", "gc", empty, "--json")
    assert waited.code == 0
    assert waited.err == f"taftcache: cannot write to {empty}: process {pid} writes to it; waiting for up to 60 s\n"
    assert waited.json["removed"] == {}
    with another_writer(empty):
        refused(cli("gc", empty), 9)  # the time was that command's alone


def test_python_waits_for_another_writer(empty):
    with another_writer(empty) as (_, let_go):
        with pytest.raises(StoreLocked, match="process"), taftcache.waiting(0.05):
            taftcache.gc(empty)
        said: list[str] = []
        with taftcache.waiting(60, lambda text: (said.append(text), let_go())):
            assert taftcache.gc(empty).removed == {}
    assert len(said) == 1
    for wrong in (-1, None, "60"):
        with pytest.raises(ArgumentError, match="at least 0"), taftcache.waiting(wrong):
            pass


def test_a_thread_does_not_wait_for_itself(empty):
    """As a notebook's cell that is run again: nothing could close the store meanwhile, and it waited all the time."""
    said: list[str] = []
    for _ in range(2):
        told = pytest.raises(StoreLocked, match=r"this process has it open for writing\n.*close that FeatureStore")
        with FeatureStore(empty, mode="a"), taftcache.waiting(300, said.append), told:
            FeatureStore(empty, mode="a")
        assert taftcache.gc(empty).removed == {}, "and the lock is let go"
    assert said == []


def test_a_fork_waits_for_who_forked_it(empty, monkeypatch):
    """Its first thread may have that one's number."""
    said, own = list[str](), os.getpid()
    with FeatureStore(empty, mode="a"), taftcache.waiting(0.05, said.append):
        monkeypatch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(StoreLocked):
            FeatureStore(empty, mode="a")
        monkeypatch.undo()
    assert len(said) == 1


def test_one_thread_waits_for_another(empty):
    """The text for a store that this process has open said to close it, though waiting helps where a thread does."""
    other, done = FeatureStore(empty, mode="a"), list[bool]()
    with pytest.raises(StoreLocked, match=r"this process .*\n.*wait, if another thread has it \(taftcache.waiting"):
        taftcache.gc(empty)

    def collect() -> None:
        with taftcache.waiting(60, lambda _: other.close()):
            done.append(taftcache.gc(empty).removed == {})

    thread = Thread(target=collect)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_wait_may_end_in_another_context():
    """As a generator does that a web framework closes from another thread: there, nothing was set."""
    block = waiting(1)
    copy_context().run(block.__enter__)
    block.__exit__(None, None, None)


def test_who_waits_can_be_killed(empty):
    before = tree(empty, but=("lock",))
    waits = FORKS.Event()
    with another_writer(empty):
        child = FORKS.Process(target=_wait, args=(empty, waits))
        child.start()
        assert waits.wait(60)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
    assert tree(empty, but=("lock",)) == before
    FeatureStore(empty, mode="a").close()


def _wait(path: Path, waits: Event) -> None:
    with waiting(60, lambda _: waits.set()):
        FeatureStore(path, mode="a")


def test_a_store_that_came_while_its_maker_waited_is_kept(tmp_path):
    """The one who held the lock has made a store there: it is not made again in its place."""
    path = tmp_path / "store"

    def made(_: str) -> None:
        (path / FILE).write_bytes(b"another's")
        let_go()

    with another_writer(path) as (_, let_go), waiting(60, made), pytest.raises(StoreError) as refusal:
        create(path)
    assert not isinstance(refusal.value, StoreLocked)
    assert (path / FILE).read_bytes() == b"another's"


def test_a_store_that_another_process_makes_meanwhile_is_opened(cli, finished, tmp_path, monkeypatch):
    line = ["convert", finished, tmp_path / "small", "--chunk-rows", "8"]
    assert cli(*line).code == 0
    tried, there, make = [], FeatureStore.exists, FeatureStore.create
    monkeypatch.setattr(FeatureStore, "create", lambda *place, **said: (tried.append(place), make(*place, **said))[1])
    monkeypatch.setattr(FeatureStore, "exists", lambda place: bool(tried) and there(place))
    late = cli(*line)
    assert (late.code, len(tried)) == (0, 1)
    assert "there is one by now: once more" in late.err
    tried.clear()
    with FeatureStore(tmp_path / "small", mode="a"):
        refused(cli(*line), 9, "this process has it open for writing")
