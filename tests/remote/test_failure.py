"""What may go wrong costs at most what was under way: workers, scheduler, driver and links that end or stand still."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from io import StringIO
from pathlib import Path
from subprocess import call
from threading import Event

import pytest
from dask import config
from distributed import Client

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import ClusterError, IntegrityError, RecipeError, StoreError
from taftcache.recipe import parse_recipe
from taftcache.remote.cluster import Cluster
from taftcache.remote.components import solve
from taftcache.remote.connection import Connection
from taftcache.remote.jobs import SolveJob
from taftcache.remote.operator import shard_sums
from taftcache.remote.worker import versions
from tests.remote.making import (
    ENVIRONMENT,
    MANY,
    UNLIMITED,
    At,
    asking,
    dask,
    forking,
    free_port,
    lasting,
    many,
    pids,
    scheduler,
    worker_here,
)
from tests.stages.making import open_store, recipe, toml, tree
from tests.stages.test_damage import chunk_of, flip


@pytest.fixture(autouse=True)
def forked_workers(request):
    """Workers begin with the libraries loaded; in one test, and on a user's machine, they load them."""
    loading = request.function is test_a_worker_that_stands_still_while_it_starts_is_said_to_be_waited_for
    with nullcontext() if loading else forking():
        yield


@pytest.fixture
def ours(tmp_path):
    """Two workers that may be broken."""
    with Cluster.local(2, threads=1, timeout=60) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def address():
    """That of a scheduler as a shell starts it, which nobody breaks; workers come and go with the tests."""
    with scheduler() as (address, _):
        yield address


@pytest.fixture
def outside(request):
    """The address and process of a scheduler as a shell starts it, and its worker: in a process, or in this one."""
    with ExitStack() as stack:
        address, process = stack.enter_context(scheduler())
        far = getattr(request, "param", "here") == "process"
        worker = stack.enter_context(dask("worker", address, *UNLIMITED) if far else worker_here(address))
        yield address, process, worker


@pytest.mark.law("A lost worker, scheduler, driver or link costs what was under way")
@pytest.mark.full
def test_a_killed_worker_costs_its_tasks_alone(ours, extracted, finished, tmp_path):
    progress = At(100, lambda: os.kill(pids(ours)[0], signal.SIGKILL))
    taftcache.extract(many(tmp_path / "many"), progress=progress, cluster=ours)
    assert progress.steps <= 0
    assert tree(tmp_path / "many") == tree(extracted)
    taftcache.extract(recipe(tmp_path / "store"))
    with open_store(tmp_path / "store") as store:
        taftcache.train(store, progress=At(1, lambda: os.kill(pids(ours)[-1], signal.SIGKILL)), cluster=ours)
        taftcache.compose(store)
    assert tree(tmp_path / "store") == tree(finished)


@pytest.mark.law("A lost worker, scheduler, driver or link costs what was under way")
@pytest.mark.full
def test_killed_workers_take_their_shards_along_and_the_sum_has_the_same_bytes(
    ours,
    exact,
    store,
    monkeypatch,
):
    """Both at once: what was sent to them for the pass is gone too, and is sent again."""
    expected = exact("iterations", monkeypatch)
    killed = pids(ours)

    def kill() -> None:
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    with open_store(store) as opened:
        taftcache.compose(opened, asking(opened, "iterations"), progress=At(4, kill), cluster=ours)
    assert tree(store) == tree(expected)
    assert not set(killed) & set(pids(ours))


@pytest.mark.law("A lost worker, scheduler, driver or link costs what was under way")
@pytest.mark.full
def test_a_worker_that_stands_still_is_left_behind(extracted, tmp_path):
    with Cluster.local(2, threads=1, timeout=3) as cluster:
        still = pids(cluster)[0]
        try:
            taftcache.extract(
                many(tmp_path / "store"), progress=At(100, lambda: os.kill(still, signal.SIGSTOP)), cluster=cluster
            )
        finally:
            with suppress(ProcessLookupError):
                os.kill(still, signal.SIGKILL)
    assert tree(tmp_path / "store") == tree(extracted)


@pytest.mark.law("A lost worker, scheduler, driver or link costs what was under way")
@pytest.mark.full
def test_a_killed_driver_leaves_no_process_and_goes_on_where_it_was(cluster, extracted, tmp_path):
    path = tmp_path / "store"
    toml(tmp_path / "tiny.toml", path, data={"source": "digits", "limit": MANY})
    code = "from taftcache.cli import main; main()"
    command = [sys.executable, "-c", code, "extract", str(tmp_path / "tiny.toml"), "--workers", "1"]
    driver = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    while not any(map(_begun, path.glob("staging/shard-*/journal"))) and driver.poll() is None:
        time.sleep(0.005)
    below = _below(driver.pid)
    driver.kill()
    driver.wait()
    assert below, "it had workers"
    end = time.monotonic() + 60
    while any(_alive(pid) for pid in below) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in below if _alive(pid)]
    with FeatureStore(path) as store:
        assert store.verify() == []
    resumed = taftcache.extract(many(path), cluster=cluster)
    assert resumed.images < MANY
    assert tree(path) == tree(extracted)


def _begun(journal: Path) -> bool:
    """Whether a chunk is in it."""
    return b'"type":"chunk"' in journal.read_bytes()


def _below(pid: int) -> list[int]:
    children = [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]
    return children + [further for child in children for further in _below(child)]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_stands_still_while_it_starts_is_said_to_be_waited_for(tmp_path):
    go = tmp_path / "go"
    (tmp_path / "start.py").write_text(
        f"import os, time\nfor _ in range(600):\n    time.sleep(0 if os.path.exists({str(go)!r}) else 0.05)\n"
    )
    said: list[str] = []

    def let_go(text: str) -> None:
        said.append(text)
        go.touch()

    with (
        config.set({"distributed.worker.preload": [str(tmp_path / "start.py")]}),
        Cluster.local(1, threads=1, timeout=1, say=let_go) as cluster,
    ):
        assert cluster.call(abs, -1) == 1
    assert said[0] == "0 of 1 worker started in 1 s; waiting for the rest"


def test_a_command_that_waits_for_such_a_worker_can_be_interrupted(tmp_path):
    begun, through = tmp_path / "begun", tmp_path / "through"
    (tmp_path / "start.py").write_text(
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(60)\nopen({str(through)!r}, 'w').close()\n"
    )

    def interrupted(text: str) -> None:
        end = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        raise KeyboardInterrupt

    with (
        config.set({"distributed.worker.preload": [str(tmp_path / "start.py")]}),
        pytest.raises(KeyboardInterrupt),
    ):
        Cluster.local(1, threads=1, timeout=1, say=interrupted)
    assert not through.exists(), "it was waited for"


def test_workers_of_a_command_that_cannot_start_or_start_again(tmp_path):
    """Dask gives up a worker that ends while it starts: nobody waits for it, and nobody is asked to start it."""
    full = tmp_path / "no memory is left"
    (tmp_path / "start.py").write_text(f"import os\nif os.path.exists({str(full)!r}):\n    os._exit(1)\n")
    with config.set({"distributed.worker.preload": [str(tmp_path / "start.py")]}):
        with Cluster.local(1, threads=1, timeout=60) as cluster:
            cluster.timeout = 2
            full.touch()
            os.kill(pids(cluster)[0], signal.SIGKILL)
            with pytest.raises(ClusterError, match=r"from the workers for 2 seconds\n.*\n  try: run the same"):
                cluster.call(abs, -1)
        with pytest.raises(ClusterError, match=r"[12] of 2 workers ended while starting"):
            Cluster.local(2, threads=1, timeout=60)


def test_a_worker_that_ends_is_said(tmp_path):
    """Once, as the next work begins or while results are waited for; what it did is done by another."""
    said: list[str] = []
    go = tmp_path / "go"

    def let_go(text: str) -> None:
        said.append(text)
        go.touch()

    with Cluster.local(2, threads=1, timeout=60, say=let_go) as cluster:
        first, second = pids(cluster)
        os.kill(first, signal.SIGKILL)
        assert [n for n, _ in cluster.results(call, [lasting(go)] * 4)] == [0, 1, 2, 3]
        assert said == ["1 of 2 workers ended; others do what it had; ask for fewer workers if memory is short"]
        cluster._client.wait_for_workers(2, timeout=60)  # once it has been started again
        cluster.workers()
        go.unlink()
        results = cluster.results(call, [(["true"],), *[lasting(go)] * 3])
        next(results)
        os.kill(second, signal.SIGKILL)
        assert [n for n, _ in results] == [1, 2, 3]
    assert said == said[:1] * 2


def test_workers_that_the_driver_cannot_send_to_are_said(address, monkeypatch):
    """They reach the scheduler, and it them: each look finds them, and nothing goes on."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Timed out trying to connect to tcp://10.0.0.2:41000 after 30 s")

    with worker_here(address), Connection.at(address, timeout=60) as connection:
        connection.timeout = 1
        monkeypatch.setattr(connection._client, "scatter", refuse)
        begin = time.monotonic()
        with pytest.raises(ClusterError, match=r"no answer from .* for 1 seconds\n  got: Timed out .*\n  try: start"):
            list(connection.mapped(abs, 1, [()], [""], ["one"]))
        assert 1 < time.monotonic() - begin < 30


def test_a_worker_that_goes_after_busy_seconds_is_waited_for(address, monkeypatch):
    """While results came, and while they were worked on, nobody looked: those seconds are none without an answer."""
    with worker_here(address), Connection.at(address, timeout=60) as connection:
        connection.timeout = 5
        monkeypatch.setattr("taftcache.remote.connection._LOOK", 0.1)
        monkeypatch.setattr(connection, "_answered", time.monotonic() - 60)  # a minute of results, one after the other
        gone, looked = [1, 1, 1], connection._looked
        monkeypatch.setattr(connection, "_looked", lambda: {} if gone and gone.pop() else looked())
        monkeypatch.setattr(connection, "workers", lambda: {"one": 1})
        assert connection.call(slowly, 1) == 1
        assert not gone


def slowly(value: int) -> int:
    time.sleep(1)
    return value


@pytest.mark.parametrize("work", ["images", *(pytest.param(w, marks=pytest.mark.full) for w in ("component", "shard"))])
def test_a_task_that_ends_its_workers_is_said_by_what_it_works_on(extracted, store, tmp_path, work):
    """Not by Dask's key for it: all images of a span, a component, a shard."""
    (tmp_path / "start.py").write_text(
        "import os\nfrom taftcache.remote import components, operator, rows\n"
        "rows.compute = components.solve = operator.shard_sums = lambda *_: os._exit(1)\n"
    )
    crashing = {"distributed.worker.preload": [str(tmp_path / "start.py")], "distributed.scheduler.allowed-failures": 0}
    with (
        config.set(crashing),
        Cluster.local(2, threads=1, timeout=60) as cluster,
        open_store(extracted if work == "images" else store) as opened,
    ):
        settings = parse_recipe({**opened.manifest.recipe, "objective": {"ridge": 1e-2}})
        does = {
            "images": lambda: taftcache.extract(many(tmp_path / "many"), cluster=cluster),
            "component": lambda: taftcache.train(opened, settings, cluster=cluster),
            "shard": lambda: list(cluster.mapped(shard_sums, None, [()], [""], ["shard 001"])),
        }[work]
        with pytest.raises(ClusterError, match="a task was given up: 1 worker ended at it\n") as ended:
            does()
    got, do = str(ended.value.got), str(ended.value.do)
    if work == "images":
        with open_store(extracted) as whole:
            known = {id for shard in whole.shards for id in shard.sample_ids}
        counted, _, ids = got.partition(": ")
        assert counted == f"{len(ids.split(', '))} images"
        assert set(ids.split(", ")) <= known
        assert do.startswith("open each with Pillow")
    else:
        assert re.fullmatch({"component": r"components/\d+|models/\w+", "shard": "shard 001"}[work], got)
        assert do.startswith("ask for fewer workers")


def test_a_scheduler_that_is_not_there():
    begin = time.monotonic()
    with pytest.raises(ClusterError, match="the scheduler does not answer"):
        Cluster.at(f"tcp://127.0.0.1:{free_port()}", timeout=1)
    assert time.monotonic() - begin < 25  # Dask's own patience is 30 s


@pytest.mark.parametrize(
    "wrong", ["localhost:8786", "tcp://", "tcp://host", "tcp://:8786", "tcp://a:b:1", "tcp://h:99999", "tcp://h:1/x"]
)
def test_what_is_no_address_is_not_tried(wrong):
    """Dask's client, begun with one, waits for a minute when it is collected, and leaves a traceback."""
    with pytest.raises(RecipeError, match="tcp://host:8786"):
        Cluster.at(wrong)


def test_tls_without_certificates(tmp_path):
    with pytest.raises(RecipeError, match="tls:// needs certificates, and Dask has none"):
        Cluster.at("tls://127.0.0.1:1")
    (tmp_path / "no.pem").write_text("none")
    named = dict.fromkeys(("ca-file", "client.cert", "client.key"), str(tmp_path / "no.pem"))
    with (
        config.set({f"distributed.comm.tls.{key}": file for key, file in named.items()}),
        pytest.raises(RecipeError, match="cannot use Dask's certificates"),
    ):
        Cluster.at("tls://127.0.0.1:1")


def test_a_scheduler_without_workers(address):
    with pytest.raises(ClusterError, match="the scheduler has no workers"):
        Cluster.at(address, timeout=2)


@pytest.mark.law("A lost worker, scheduler, driver or link costs what was under way")
@pytest.mark.parametrize(
    ("outside", "lost"),
    [
        ("here", "scheduler"),
        *(pytest.param("process", lost, marks=pytest.mark.full) for lost in ("scheduler", "worker", "stalled")),
    ],
    indirect=["outside"],
)
def test_when_nobody_is_left_the_run_ends_and_can_go_on(outside, extracted, tmp_path, lost):
    address, process, worker = outside
    path = tmp_path / "store"

    since = []

    def lose() -> None:
        since.append(time.monotonic())
        if lost == "stalled":
            process.send_signal(signal.SIGSTOP)
        else:
            {"scheduler": process, "worker": worker}[lost].kill()

    says = "no answer from scheduler and workers for 2 seconds"
    if lost == "scheduler":  # while a task was under way, or between two
        says += "|the scheduler was lost"
    try:
        with Cluster.at(address, threads=1, timeout=60) as cluster:
            cluster.timeout = 2
            with pytest.raises(ClusterError, match=says) as ended:
                taftcache.extract(many(path), progress=At(100, lose), cluster=cluster)
            assert time.monotonic() - since[0] < 30
            assert ended.value.exit_code == 8
            assert "\n" not in str(ended.value.got)
    finally:
        process.send_signal(signal.SIGCONT)
    with open_store(path) as store:
        assert store.verify() == []
        assert store.strays() == []
    assert taftcache.extract(many(path)).images < MANY
    assert tree(path) == tree(extracted)


def test_a_lost_scheduler_leaves_no_traceback_of_dasks(outside):
    """The client's log has a level of its own, and is as it was when the connection ends."""
    address, process, _ = outside
    log, told = logging.getLogger("distributed.client"), logging.StreamHandler(StringIO())
    before, own = list(log.filters), log.level
    log.filters.clear()  # of connections that other tests keep
    log.addHandler(told)
    try:
        says = "the scheduler was lost\n  got: scheduler-connection-lost\n  try: start"
        with Cluster.at(address, threads=1, timeout=60) as cluster:
            results = cluster.results(time.sleep, [(0.1,)] * 100)
            next(results)
            process.kill()
            with pytest.raises(ClusterError, match=says):
                list(results)
        assert (log.filters, log.level) == ([], own)
    finally:
        log.removeHandler(told)
        log.filters[:] = before
    assert told.stream.getvalue() == ""


def test_an_interrupt_leaves_nothing_running(cluster, extracted, tmp_path):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        taftcache.extract(many(tmp_path / "store"), progress=At(100, interrupt), cluster=cluster)
    end = time.monotonic() + 60
    while any(cluster._client.processing().values()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(cluster._client.processing().values())
    taftcache.extract(many(tmp_path / "store"), cluster=cluster)
    assert tree(tmp_path / "store") == tree(extracted)


def test_an_error_on_a_worker_is_the_error_of_the_run(cluster, store):
    chunk = chunk_of(store, "001")
    flip(chunk)
    with open_store(store) as opened:
        settings = {**opened.manifest.recipe, "objective": {"ridge": 1e-2}}
        with pytest.raises(IntegrityError, match=chunk.name):
            taftcache.train(opened, parse_recipe(settings), cluster=cluster)
    flip(chunk)
    with open_store(store) as opened:
        assert opened.verify() == []
        assert taftcache.train(opened, parse_recipe(settings), cluster=cluster).trained


def test_a_store_that_workers_do_not_see(cluster, tmp_path):
    job = SolveJob(store="/not/there", recipe={}, base="", threads=1)
    with pytest.raises(ClusterError, match="does not find the store"):
        cluster.call(solve, job, "components/000", [], "full")
    (tmp_path / "manifest.json").write_text("{}")  # a store that only the driver can open
    job = SolveJob(store=str(tmp_path), recipe={}, base="", threads=1)
    with pytest.raises(StoreError, match="a worker cannot open the store: "):
        cluster.call(solve, job, "components/000", [], "full")


def test_workers_of_another_version_are_refused(address, monkeypatch):
    monkeypatch.setattr("taftcache.remote.connection.versions", lambda: {**versions(), "torch": "0"})
    with (
        worker_here(address),
        pytest.raises(ClusterError, match=r"torch .* instead of 0"),
        Cluster.at(address, timeout=60) as cluster,
    ):
        cluster.call(abs, -1)


def test_a_worker_of_another_version_that_joins_later_is_refused(address, monkeypatch):
    monkeypatch.setattr("taftcache.remote.connection.versions", lambda: {**versions(), "torch": "0"})
    asked, await_workers = Event(), Cluster._await_workers
    monkeypatch.setattr(Cluster, "_await_workers", lambda self: (asked.set(), await_workers(self)))
    with ThreadPoolExecutor(1) as beside:
        connecting = beside.submit(Cluster.at, address, timeout=60)
        assert asked.wait(60)
        with (
            worker_here(address),
            pytest.raises(ClusterError, match=r"torch .* instead of 0"),
            connecting.result() as cluster,
        ):
            cluster.call(abs, -1)


@pytest.mark.law("Workers write no row to their disks")
def test_workers_that_would_write_rows_to_their_disk_are_refused(address):
    with (
        worker_here(address, memory=1 << 30),
        pytest.raises(ClusterError, match="--memory-limit 0"),
        Cluster.at(address, timeout=60) as cluster,
    ):
        cluster.call(abs, -1)


def test_without_dask_the_error_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    """``--workers`` is a wrong option on a machine without Dask, not a traceback."""
    toml(tmp_path / "tiny.toml", tmp_path / "store")
    before = {name: module for name, module in sys.modules.items() if name.startswith("taftcache.remote.")}
    for name in before:  # imported again, without Dask
        monkeypatch.delitem(sys.modules, name)
    for name in ("dask", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as ended:
        main(["extract", str(tmp_path / "tiny.toml"), "--workers", "1"])
    assert not [name for name in sys.modules if name.startswith("taftcache.remote.") and name not in before]
    assert ended.value.code == RecipeError.exit_code
    said = capsys.readouterr().err
    assert "workers need Dask, which is not installed" in said
    assert "taftcache[dask]" in said
    assert "Traceback" not in said


def test_so_many_workers_that_none_would_get_on_are_refused(tmp_path, monkeypatch, capsys):
    """None is started; eight may be asked for on any machine, and four a core."""

    def started(workers, *others):
        raise ClusterError(f"{workers} started")

    monkeypatch.setattr("taftcache.remote.connection.processes", started)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    toml(tmp_path / "tiny.toml", tmp_path / "store")
    for count, says in {8: "8 started", 12: "12 started", 13: "this machine has 3 cores", 10**9: "3 cores"}.items():
        for command in ("extract", "run"):
            with pytest.raises(SystemExit):
                main([command, str(tmp_path / "tiny.toml"), "--workers", str(count)])
            first, *more = capsys.readouterr().err.splitlines()
            assert says in first
            assert ("  try: --workers 12, which is the most here, or --workers 0" in more) == (count > 12)
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    with pytest.raises(ClusterError, match="8 started"):
        Cluster.local(8)
    with pytest.raises(RecipeError, match="this machine has 1 core\n"):
        Cluster.local(9)


def test_both_ways_of_asking_at_once(tmp_path):
    toml(tmp_path / "tiny.toml", tmp_path / "store")
    arguments = ["extract", str(tmp_path / "tiny.toml"), "--workers", "1", "--scheduler", "tcp://127.0.0.1:1"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        main([*arguments[:2], "--scheduler", "somewhere"])
    assert ended.value.code == 2


def lacking(library: str, folder: Path) -> dict[str, object]:
    """What starts a process that cannot import ``library``."""
    (folder / library).mkdir()
    (folder / library / "__init__.py").write_text("raise ImportError('nothing here')")
    path = os.pathsep.join([str(folder), ENVIRONMENT["PYTHONPATH"]])
    return {"env": {**ENVIRONMENT, "PYTHONPATH": path}, "cwd": folder}


@pytest.mark.parametrize("library", ["taftcache", "torch"])
def test_workers_that_cannot_load_taftcache_are_named(address, tmp_path, library):
    """One where it is not installed at all, and one where something that it needs cannot be imported."""
    with dask("worker", address, *UNLIMITED, **lacking(library, tmp_path)):
        with Client(address, set_as_default=False) as there:
            there.wait_for_workers(1, timeout=60)
        with (
            pytest.raises(ClusterError, match=r"a worker cannot load taftcache\n  got: .*nothing here"),
            Cluster.at(address, timeout=60) as cluster,
        ):
            cluster.call(
                solve, SolveJob(store="/not/there", recipe={}, base="", threads=1), "components/000", [], "full"
            )


def test_a_scheduler_that_cannot_load_taftcache_is_named(tmp_path):
    with (
        scheduler(**lacking("taftcache", tmp_path)) as (address, _),
        worker_here(address),
        pytest.raises(ClusterError, match="the scheduler cannot load taftcache"),
        Cluster.at(address, timeout=60) as cluster,
    ):
        cluster.call(abs, -1)
