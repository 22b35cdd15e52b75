"""Decoding in forks: one that dies is said, none outlives its parent, and where none may be there are threads."""

from __future__ import annotations

import copyreg
import multiprocessing
import os
import signal
import threading
import time
import warnings
from contextlib import nullcontext
from multiprocessing.connection import Connection
from types import SimpleNamespace

import psutil
import pytest
import tblib.pickling_support

from taftcache.backbone.forward import decoders, processes
from taftcache.backbone.forward.decoders import Decoders
from taftcache.backbone.forward.engine import DeviceEngine, Work
from taftcache.backbone.forward.extract import extract
from taftcache.errors import BackboneError, DataError, UnreadableImage
from taftcache.terminal.console import ERR, note_warning
from tests import forked
from tests.backbone.registry import DeviceEngineAlone, MemorySink, NoiseSource, pieces

CUT, TRANSFORM = pieces()

pytestmark = pytest.mark.skipif(not processes.can_fork(), reason="needs fork")


def engine(source, workers=2, stop=True) -> DeviceEngineAlone:
    return DeviceEngineAlone(Work(CUT, TRANSFORM, source, 8, "float16"), workers, stop)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Processes for a few images already."""
    monkeypatch.setattr("taftcache.backbone.forward.decoders.PROCESSES_FROM", 1)


def lives(process: psutil.Process) -> bool:
    """It may end while it is looked at."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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


def test_the_same_forks_serve_shard_after_shard_once_there_were_many_images(monkeypatch):
    monkeypatch.setattr("taftcache.backbone.forward.decoders.PROCESSES_FROM", 10)
    source = Noted(20)
    work = Work(CUT, TRANSFORM, source, 8, "float16")
    decoders = Decoders(work.decode, work.pixels_shape, 8, 2)
    where = []
    for shard in (range(6), range(6, 12), range(12, 20)):
        before, sink = len(source.read_here), MemorySink()
        extract(CUT, TRANSFORM, source, shard, sink, batch=8, engine=DeviceEngine(work, decoders, True))
        assert len(sink.rows) == len(shard)
        where.append((len(source.read_here) - before, decoders._pool))
    decoders.close()
    assert [here for here, _ in where] == [6, 0, 0]
    assert isinstance(where[1][1], processes.Processes)
    assert where[1][1] is where[2][1]


def test_a_warning_in_a_fork_waits_for_no_lock_of_the_parent(monkeypatch, capfd):
    """The thread that draws a bar may hold the locks of the console as this process forks."""
    monkeypatch.setattr(warnings, "showwarning", note_warning)
    held, let_go = threading.Event(), threading.Event()

    def draw() -> None:
        with ERR._lock:
            held.set()
            let_go.wait()

    def decode(span, stop):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn_explicit("Corrupt\x1b EXIF", UserWarning, "a\x1b.py", 7)
        return SimpleNamespace(indexes=[], pixels=[], unreadable=[], stopped=None)

    drawing = threading.Thread(target=draw)
    drawing.start()
    held.wait()
    forks = processes.Processes(decode, (4, 4, 3), 1, 4, 2)
    let_go.set()
    drawing.join()
    try:
        forks.submit([0], False).found.result(timeout=20)
    finally:
        processes._kill(forks._pool._processes.values())
        forks.shutdown()
    assert capfd.readouterr().err == "a\\x1b.py:7: UserWarning: Corrupt\\x1b EXIF\n"


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

    before = set(psutil.Process().children())
    source, sink = Deadly(20), MemorySink()
    with pytest.raises(BackboneError, match="a process that decoded images has ended unexpectedly"):
        extract(CUT, TRANSFORM, source, range(20), sink, batch=4, engine=engine(source))
    left = set(psutil.Process().children()) - before  # those of earlier tests may be there
    assert list(filter(lives, left)) == []


def test_a_process_that_dies_is_said_where_the_next_span_is_asked_for():
    forks = processes.Processes(lambda span, stop: os.kill(os.getpid(), signal.SIGKILL), (1, 1, 3), 2, 1, 4)
    for _ in range(2):  # the first time of what was asked for, the second before anything is
        with pytest.raises(BackboneError, match="a process that decoded images has ended unexpectedly"):
            forks.submit([0], True).result()
    forks.shutdown()


def test_where_no_more_processes_are_to_be_had_there_are_threads(monkeypatch):
    made = []

    def fork(real=os.fork):
        if len(made) == 2:
            raise BlockingIOError("Resource temporarily unavailable")
        made.append(real())
        return made[-1]

    monkeypatch.setattr(os, "fork", fork)
    source, sink = Noted(20), MemorySink()
    extract(CUT, TRANSFORM, source, range(20), sink, batch=8, engine=engine(source, workers=3))
    assert sorted(source.read_here) == list(range(20))
    assert [pid for pid in made if psutil.pid_exists(pid)] == []  # such forks kept the program from ending


class Odd(Exception):
    """An error that is pickled, and cannot be made again."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


@pytest.fixture
def causes_travel():
    """As in a process that has imported Dask: errors are pickled with their causes."""
    table = dict(copyreg.dispatch_table)
    tblib.pickling_support.install()
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(table)


def test_a_sources_own_error_is_said_where_it_cannot_travel():
    copyreg.dispatch_table.pop(Odd, None)  # of a Dask that an earlier test has imported
    said_by(DataError, "Odd: no answer at the store")


def test_a_sources_own_error_is_said_where_it_can(causes_travel):
    said_by(Odd, "no answer at the store")


def said_by(error, text):
    """A run whose source raises ``Odd``."""

    class Failing(NoiseSource):
        def read(self, index):
            raise Odd("no answer", "the store")

    source = Failing(20)
    with pytest.raises(error, match=text):
        extract(CUT, TRANSFORM, source, range(20), MemorySink(), batch=8, engine=engine(source))


@pytest.mark.parametrize("unreadable", ["stop", "skip"])
def test_the_cause_of_an_unreadable_image_stays_behind(unreadable, causes_travel):
    class Failing(NoiseSource):
        def read(self, index):
            if index == 7:
                try:
                    raise Odd("no answer", "the store")
                except Odd as error:
                    raise UnreadableImage("the image 7 does not decode", got=str(error)) from error
            return super().read(index)

    source, sink = Failing(20), MemorySink()
    made = engine(source, stop=unreadable == "stop")
    with pytest.raises(UnreadableImage, match="no answer") if unreadable == "stop" else nullcontext():
        extract(CUT, TRANSFORM, source, range(20), sink, batch=8, engine=made, unreadable=unreadable)
    assert len(sink.rows) == (7 if unreadable == "stop" else 19)


def test_forks_end_when_they_are_told_to_however_their_parent_does():
    """The command line's handler raises KeyboardInterrupt: forks said so each, and went on after the span in hand."""

    def told(span, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        forks = processes.Processes(told, (1, 1, 3), 1, 1, 4)
        with pytest.raises(BackboneError, match="a process that decoded images has ended unexpectedly"):
            forks.submit([0], True).result()
        forks.shutdown()
    finally:
        signal.signal(signal.SIGTERM, before)


def decode_and_wait(line: Connection) -> None:
    decoders.PROCESSES_FROM = 1
    made = engine(NoiseSource(20))
    next(made.batches(range(20)))
    line.send("ready")
    time.sleep(60)


def test_none_outlives_a_parent_that_is_killed():
    line, end = multiprocessing.Pipe()
    parent = forked.context().Process(target=decode_and_wait, args=(end,))
    parent.start()
    end.close()
    assert line.recv() == "ready"
    forks = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.join()
    assert len(forks) >= 2
    until = time.monotonic() + 60
    while any(map(lives, forks)) and time.monotonic() < until:
        time.sleep(0.1)
    assert list(filter(lives, forks)) == []
