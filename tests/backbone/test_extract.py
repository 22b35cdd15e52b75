"""Extraction: a sample's bytes depend on the sample alone, runs resume, and every failure surfaces."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taftcache.backbone import preprocess
from taftcache.backbone.forward import engine
from taftcache.backbone.forward.engine import CpuEngine
from taftcache.backbone.forward.extract import default_batch, extract
from taftcache.backbone.model import load_backbone
from taftcache.backbone.pool import one_core_pool
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import BackboneSpec, DataSpec
from taftcache.errors import BackboneError, DataError, RecipeError, UnreadableImage
from tests.backbone.registry import DeviceEngineAlone, MemorySink, NoiseSource, pieces
from tests.threads import at_once

CUT, TRANSFORM = pieces()
N = 37
SOURCE = NoiseSource(N)


def run(order=range(N), sink=None, source=SOURCE, **options):
    sink = sink or MemorySink()
    stats = extract(CUT, TRANSFORM, source, order, sink, **({"batch": 8, "workers": 2} | options))
    return sink, stats


WHOLE, _ = run()
ENGINES = ["cpu", "threads", "processes"]


@pytest.fixture(autouse=True, params=[None, 1 << 20, 1], ids=ENGINES)
def each_engine(request, monkeypatch):
    """Every test here runs with both engines, decoding in processes too; the one for other devices works on a CPU."""
    if request.param:
        monkeypatch.setattr("taftcache.backbone.forward.engine.CpuEngine", DeviceEngineAlone)
        monkeypatch.setattr("taftcache.backbone.forward.decoders.PROCESSES_FROM", request.param)
    before = set(threading.enumerate())
    yield
    assert [t.name for t in set(threading.enumerate()) - before if t.name.startswith("taftcache")] == []


def test_the_sink_gets_what_the_prefix_computes():
    x = torch.stack([TRANSFORM(SOURCE.read(k)) for k in range(N)])
    tokens = CUT.prefix(x).numpy().astype(np.float16)
    assert list(WHOLE.rows) == [item.id for item in SOURCE.items]
    assert WHOLE.labels == [item.label for item in SOURCE.items]
    assert all(WHOLE.rows[item.id] == tokens[k].tobytes() for k, item in enumerate(SOURCE.items))


def test_stats_and_progress():
    seen = []
    sink, stats = run(on_batch=seen.append)
    assert stats == (N, 0)
    assert sum(seen) == N
    assert sink.calls == [8, 8, 8, 8, 5]


@pytest.mark.law("A sample's tokens depend on nothing but the sample")
@settings(max_examples=10)
@given(
    order=st.permutations(range(N)),
    keep=st.integers(1, N),
    batch=st.sampled_from([1, 2, 3, 7, 8, 16, 64]),
    workers=st.integers(1, 4),
)
@example(order=[*range(N)], keep=1, batch=64, workers=3)
def test_bytes_depend_neither_on_neighbours_nor_on_workers(order, keep, batch, workers):
    """The batch is part of the law's premise elsewhere; here not even it matters (checked per machine below)."""
    sink, _ = run(order[:keep], batch=batch, workers=workers)
    assert list(sink.rows) == [SOURCE.items[k].id for k in order[:keep]]
    assert sink.rows == {id: WHOLE.rows[id] for id in sink.rows}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bytes_do_not_depend_on_torchs_threads_which_stay_as_they_were(threads, monkeypatch, each_engine):
    inside, prefix = set(), type(CUT).prefix
    monkeypatch.setattr(type(CUT), "prefix", lambda self, x: inside.add(torch.get_num_threads()) or prefix(self, x))
    torch.set_num_threads(threads)
    try:
        assert run(workers=None)[0].rows == WHOLE.rows
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), elsewhere) == (threads, [threads])
        assert inside == {1 if engine.CpuEngine is CpuEngine else threads}
    finally:
        torch.set_num_threads(1)


@pytest.mark.law("Threads that call models at once get the bits that each gets alone, and keep their torch settings")
def test_pools_that_begin_at_once_leave_all_other_threads_as_they_were():
    def ask(_: int) -> tuple[int, ...]:
        inside = set()
        for _ in range(5):
            with one_core_pool(3, "test") as pool:
                inside.update(pool.map(lambda _: torch.get_num_threads(), range(6)))
        return *inside, torch.get_num_threads()

    torch.set_num_threads(4)
    try:
        assert at_once(8, ask) == [(1, 4)] * 8
        assert at_once(1, lambda _: torch.get_num_threads()) == [4]
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(1)


def test_determinism_of_the_bundled_backbone():
    from taftcache.backbone.cut.cut import Cut

    backbone = load_backbone(BackboneSpec())
    cut, transform = Cut(backbone), Preprocess(backbone)
    source, _ = open_source(DataSpec(source="digits", limit=24))
    sinks = [MemorySink(), MemorySink()]
    extract(cut, transform, source, range(24), sinks[0], batch=16, workers=1)
    extract(cut, transform, source, list(reversed(range(1, 24))), sinks[1], batch=16, workers=3)
    assert all(sinks[0].rows[id] == row for id, row in sinks[1].rows.items())


def test_every_forward_pass_has_the_same_number_of_rows(monkeypatch):
    shapes = []
    prefix = type(CUT).prefix
    monkeypatch.setattr(type(CUT), "prefix", lambda self, x: shapes.append(tuple(x.shape)) or prefix(self, x))
    run(source=NoiseSource(N, broken=[3, 30]), unreadable="skip")
    run([5])
    assert set(shapes) == {(8, 3, 32, 32)}


def test_a_run_killed_in_the_middle_is_resumed():
    for crash_after in range(5):
        sink = MemorySink(crash_after)
        with pytest.raises(RuntimeError, match="on fire"):
            run(sink=sink)
        assert sink.consumed == 8 * crash_after  # nothing is appended behind a failed append
        _, stats = run(sink=sink)
        assert stats.rows == N - 8 * crash_after
        assert list(sink.rows.items()) == list(WHOLE.rows.items())
        assert sink.labels == WHOLE.labels


@pytest.mark.parametrize("start", [1, 5, 8, 36])
def test_resuming_anywhere_gives_the_same_bytes(start):
    sink = MemorySink()
    sink.rows = dict(list(WHOLE.rows.items())[:start])
    run(sink=sink)
    assert sink.rows == WHOLE.rows


def test_a_finished_run_does_nothing():
    sink = MemorySink()
    sink.rows = dict(WHOLE.rows)
    _, stats = run(sink=sink)
    assert (stats, sink.calls) == ((0, 0), [])
    assert run([])[1] == (0, 0)


def test_unreadable_images_are_skipped_in_place():
    broken = [0, 7, 8, 20, 36]
    sink, stats = run(source=NoiseSource(N, broken), unreadable="skip")
    assert [id for id, _ in sink.skipped] == [SOURCE.items[k].id for k in broken]
    assert sink.skipped[0].id == "noise/000"
    assert sink.skipped[0].reason == "broken on purpose"
    assert (stats.skipped, stats.rows, sink.consumed) == (5, N - 5, N)
    assert sink.rows == {id: row for id, row in WHOLE.rows.items() if int(id[-3:]) not in broken}


def test_all_images_unreadable():
    sink, stats = run(source=NoiseSource(N, range(N)), unreadable="skip")
    assert (stats.rows, stats.skipped, len(sink.skipped), sink.rows) == (0, N, N, {})


@pytest.mark.parametrize("bad", [0, 12, 36])
def test_stop_writes_all_before_the_first_unreadable_image_and_names_it(bad):
    sink = MemorySink()
    with pytest.raises(UnreadableImage, match=f"noise/{bad:03d}"):
        run(source=NoiseSource(N, [bad, 36]), sink=sink)
    assert list(sink.rows) == [item.id for item in SOURCE.items[:bad]]


def test_an_image_that_cannot_be_resized_is_unreadable_too(monkeypatch):
    monkeypatch.setattr(preprocess, "_MOST_PIXELS", 0)
    with pytest.raises(UnreadableImage, match="noise/000"):
        run()


def test_an_image_that_memory_has_no_room_to_resize_is_named(monkeypatch):
    def full(self, image):
        raise MemoryError

    monkeypatch.setattr(Preprocess, "pixels", full)
    with pytest.raises(MemoryError, match="the image noise/000"):
        run(unreadable="skip")


def test_other_errors_of_a_reader_surface_as_they_are():
    class Broken(NoiseSource):
        def read(self, index):
            if index == 20:
                raise ZeroDivisionError("in a decoding thread")
            return super().read(index)

    for unreadable in ("stop", "skip"):
        with pytest.raises(ZeroDivisionError):
            run(source=Broken(N), unreadable=unreadable)


def test_errors_of_the_model_and_of_progress_surface(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        run(on_batch=lambda n: 1 // 0)
    monkeypatch.setattr(type(CUT), "prefix", lambda self, x: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run()


@pytest.mark.parametrize("where", ["decode", "append"])
def test_an_interrupt_ends_the_run_and_leaves_a_resumable_sink(where):
    here = os.getpid()  # decoding may be in another process
    gc.collect()  # Python loses an interrupt that comes within the destructor of what an earlier test left

    class Slow(NoiseSource):
        def read(self, index):
            if index == 24 and where == "decode":
                os.kill(here, signal.SIGINT)
                time.sleep(0.05)
            return super().read(index)

    class SlowSink(MemorySink):
        def append(self, *arguments):
            if len(self.calls) == 2 and where == "append":
                os.kill(here, signal.SIGINT)
                time.sleep(0.05)
            super().append(*arguments)

    sink = SlowSink()
    with pytest.raises(KeyboardInterrupt):
        run(source=Slow(N), sink=sink)
    assert list(sink.rows) == [item.id for item in SOURCE.items[: sink.consumed]]
    where = ""
    run(sink=sink)
    assert sink.rows == WHOLE.rows


@pytest.mark.parametrize("when", ["handing it over", "later"])
def test_an_interrupt_does_not_wait_for_a_decoder_that_stands_still(monkeypatch, when):
    """What was written stays, and nothing of the image comes later."""
    for pool in (ThreadPoolExecutor, ProcessPoolExecutor) if when == "handing it over" else ():
        monkeypatch.setattr(pool, "submit", lambda *args, at=pool.submit: (at(*args), time.sleep(0.1))[0])
    monkeypatch.setattr("taftcache.backbone.pool.PATIENCE", 0.2)
    here, go_on = os.getpid(), threading.Event()
    gc.collect()  # as above
    before = set(threading.enumerate())

    class Still(NoiseSource):
        def read(self, index):
            if index == 24:
                time.sleep(0.3 * (when == "later"))  # Python sees no interrupt that comes just before it begins to wait
                os.kill(here, signal.SIGINT)
                go_on.wait(60)
            return super().read(index)

    sink, begin = MemorySink(), time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(source=Still(N), sink=sink)
        assert time.monotonic() - begin < 30
        left = list(sink.rows)
    finally:
        go_on.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
    assert left == list(sink.rows) == [item.id for item in SOURCE.items[: sink.consumed]]
    run(sink=sink)
    assert sink.rows == WHOLE.rows


def test_a_slow_sink_bounds_what_is_in_memory():
    read, release, most = multiprocessing.Value("i"), threading.Event(), []

    class Counting(NoiseSource):
        def read(self, index):
            with read.get_lock():
                read.value += 1
            return super().read(index)

    class Held(MemorySink):
        def append(self, *arguments):
            release.wait(10)
            most.append(read.value)
            super().append(*arguments)

    timer = threading.Timer(0.5, release.set)
    timer.start()
    run(order=range(200), source=Counting(200), sink=Held(), batch=4)
    timer.join()
    # One batch at the sink, two waiting, one in the forward pass, two decoded ahead, and a group in progress.
    assert most[0] <= 4 * 6 + 2 * 2


def test_float16_on_the_device_is_what_a_store_rounds_to():
    assert run(dtype="float16")[0].rows == WHOLE.rows


def test_the_batch_comes_from_the_model_alone():
    assert default_batch(CUT) == 64
    assert run(batch=None)[0].rows == WHOLE.rows
    assert default_batch(pieces(img_size=128)[0]) == 8
    assert default_batch(pieces(img_size=64)[0]) == 32


def test_arguments_that_cannot_be():
    for options in ({"batch": 0}, {"workers": 0}):
        with pytest.raises(RecipeError):
            run(**options)
    sink = MemorySink()
    sink.rows = dict(WHOLE.rows)
    with pytest.raises(DataError, match="consumed"):
        run(range(5), sink=sink)
    for order in ([N], [-1]):
        with pytest.raises(DataError, match="items"):
            run(order)
    other = pieces(img_size=40)[1]
    with pytest.raises(BackboneError, match="size"):
        extract(CUT, other, SOURCE, [0], MemorySink())
