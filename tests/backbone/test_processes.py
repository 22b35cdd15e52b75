"""Decoding in forks: one that dies is said, none outlives its parent, and where none may be there are threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from taftcache.backbone import processes
from taftcache.backbone.engine import DeviceEngine, Work
from taftcache.backbone.extract import extract
from taftcache.errors import BackboneError
from tests.backbone.registry import MemorySink, NoiseSource, pieces

CUT, TRANSFORM = pieces()

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="needs fork")


def engine(source, workers=2) -> DeviceEngine:
    return DeviceEngine(Work(CUT, TRANSFORM, source, 8, "float16"), workers, True)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Processes for a few images already."""
    monkeypatch.setattr("taftcache.backbone.engine.PROCESSES_FROM", 1)


class Noted(NoiseSource):
    """A source whose images are read into a list of this process."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.read_here: list[int] = []

    def read(self, index):
        self.read_here.append(index)
        return super().read(index)


def test_images_are_decoded_elsewhere():
    source, sink = Noted(20), MemorySink()
    extract(CUT, TRANSFORM, source, range(20), sink, batch=8, engine=engine(source))
    assert len(sink.rows) == 20
    assert source.read_here == []


def test_a_daemon_decodes_in_threads(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    source, sink = Noted(20), MemorySink()
    extract(CUT, TRANSFORM, source, range(20), sink, batch=8, engine=engine(source))
    assert sorted(source.read_here) == list(range(20))


def test_a_process_that_dies_is_said():
    class Deadly(NoiseSource):
        def read(self, index):
            if index == 11:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().read(index)

    source, sink = Deadly(20), MemorySink()
    with pytest.raises(BackboneError, match="a process that decoded images has died"):
        extract(CUT, TRANSFORM, source, range(20), sink, batch=4, engine=engine(source))
    assert psutil.Process().children() == [] or all(child.status() == "zombie" for child in psutil.Process().children())


KILLED = """
import time
from taftcache.backbone import engine
from taftcache.backbone.engine import DeviceEngine, Work
from tests.backbone.registry import NoiseSource, pieces
engine.PROCESSES_FROM = 1
cut, transform = pieces()
made = DeviceEngine(Work(cut, transform, NoiseSource(20), 4, "float16"), 2, True)
next(made.batches(range(20)))
print("ready", flush=True)
time.sleep(60)
"""


def test_none_outlives_a_parent_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        forks = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert len(forks) >= 2
    until = time.monotonic() + 20
    while any(fork.is_running() and fork.status() != "zombie" for fork in forks) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [fork for fork in forks if fork.is_running() and fork.status() != "zombie"]
