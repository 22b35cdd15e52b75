"""Workers to test with, and things that happen to them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from dask import config
from distributed import Worker
from distributed.utils import LoopRunner

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.recipe import Recipe, parse_recipe
from taftcache.remote.cluster import Cluster
from taftcache.stages.progress import Silent
from tests import forked
from tests.stages.making import recipe

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
UNLIMITED = ("--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--no-nanny")


MANY = 240


def many(path: Path) -> Recipe:
    """A recipe whose extraction takes eight tasks."""
    return recipe(path, data={"source": "digits", "limit": MANY})


@contextmanager
def forking() -> Iterator[None]:
    """Worker processes that are begun here are forked, which takes no seconds."""
    forked.context()
    with config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


def grow(cluster: Cluster, workers: int) -> Cluster:
    """The same cluster with so many workers."""
    cluster._own.scale(workers)
    cluster._client.wait_for_workers(workers)
    end = time.monotonic() + 30
    while len(cluster.workers()) != workers and time.monotonic() < end:
        time.sleep(0.05)
    assert len(cluster.workers()) == workers
    return cluster


def pids(cluster: Cluster) -> list[int]:
    """Process ids of the workers."""
    return sorted(cluster._client.run(os.getpid).values())


class At(Silent):
    """Progress during which something happens, once, when ``steps`` steps are done."""

    def __init__(self, steps: int, act: Callable[[], object]) -> None:
        self.steps, self._act = steps, act

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[At]:
        yield self

    def advance(self, steps: int = 1) -> None:
        before, self.steps = self.steps, self.steps - steps
        if before > 0 >= self.steps:
            self._act()


def lasting(go: Path) -> tuple[list[str]]:
    """What ``subprocess.call`` takes to last until the file is there, a minute at the most."""
    return (["sh", "-c", 'for n in $(seq 600); do test -e "$0" && exit; sleep 0.1; done', str(go)],)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def scheduler(**settings) -> Iterator[tuple[str, subprocess.Popen]]:
    """The address and process of one on this machine that answers."""
    port = free_port()
    with dask("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", **settings) as process:
        end = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, "the scheduler has ended"
            assert time.monotonic() < end, "the scheduler does not answer"
            time.sleep(0.1)
        yield f"tcp://127.0.0.1:{port}", process


@contextmanager
def dask(*arguments: str, prefix: tuple[str, ...] = (), **settings) -> Iterator[subprocess.Popen]:
    """A scheduler or a worker, as a shell starts it."""
    command = [*prefix, sys.executable, "-m", "dask", *arguments]
    settings.setdefault("env", ENVIRONMENT)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **settings)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def worker_here(address: str, memory: int = 0) -> Iterator[Worker]:
    """A worker in a thread of this process: for what would happen in any, begun in no time."""
    runner = LoopRunner()
    runner.start()

    async def begin() -> Worker:
        return await Worker(address, nthreads=1, memory_limit=memory, dashboard=False)

    worker = runner.run_sync(begin)
    try:
        yield worker
    finally:
        runner.run_sync(worker.close)
        runner.stop()


def turn(way: str, patch: pytest.MonkeyPatch) -> None:
    """Make the driver solve by ``way``: it, not a worker, chooses."""
    if way in ("rows", "iterations"):
        patch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    if way == "iterations":
        patch.setattr("taftcache.solve.inverses.class_kernel.LARGEST_LOGITS", 0)


def asking(opened: FeatureStore, way: str) -> Recipe:
    """The store's recipe with the exact composition, to be solved by ``way``."""
    settings = {**opened.manifest.recipe, "compose": {"mode": "exact"}}
    if way in ("iterations", "newton"):
        settings["solver"] = {"tolerance": 1e-2}
    if way == "newton":
        settings["objective"] = {"loss": "cross_entropy", "ridge": 1.0, "class_weights": "balanced"}
        taftcache.train(opened, parse_recipe(settings))
    return parse_recipe(settings)
