"""What every worker is checked for before it computes anything, and how it reports to the driver."""

from __future__ import annotations

import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from taftcache.errors import ClusterError
from taftcache.remote.resident import forget_residents

# Their versions decide bytes, or whether two processes understand each other.
LIBRARIES = ("taftcache", "torch", "torchvision", "timm", "pillow", "numpy")
TOPIC = "taftcache"
_EVERY = 0.5  # seconds between two reports of one task

_reported: dict[str, float] = {}  # task → when its last line was sent
_fit_for: dict[str, str] | None = None


def versions() -> dict[str, str]:
    """Versions of the libraries that must be the same on a worker and its driver."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


class Admission(WorkerPlugin):
    """Turns away a run with a worker that is not ``fit``, before it begins."""

    name = "taftcache"

    def __init__(self, wanted: dict[str, str]) -> None:
        self._wanted = wanted

    def setup(self, worker: Worker) -> None:
        """Raises ClusterError for a worker that is not fit."""
        forget_residents()  # those of a driver that was killed
        fit(worker, self._wanted)

    def teardown(self, worker: Worker) -> None:
        """Nothing stays when the driver leaves."""
        forget_residents()


def admitted(wanted: dict[str, str], module: str, function: str, *args: Any) -> Any:
    """A task: ``function(*args)``, if this worker is fit. Checked here too, because if a worker joins later, Dask only
    logs its plugin's error.

    The function goes by name, so that its module is imported here, in the task's thread. Scheduler and workers unpickle
    tasks in the thread that answers requests, which must not wait while torch is imported.
    """
    global _fit_for
    if wanted != _fit_for:
        fit(get_worker(), wanted)
        _fit_for = wanted
    return getattr(import_module(module), function)(*args)


def fit(worker: Worker, wanted: dict[str, str]) -> None:
    """ClusterError unless the worker has the driver's libraries and never spills to disk."""
    here = versions()
    if different := [f"{n} {here[n]} instead of {v}" for n, v in wanted.items() if here[n] != v]:
        raise ClusterError(
            "a worker's libraries have other versions than the driver's, which round differently",
            got=f"{worker.address}: {', '.join(different)}",
            do="install the same versions there",
        )
    memory = worker.memory_manager
    if memory.memory_limit and (memory.memory_target_fraction or memory.memory_spill_fraction):
        raise ClusterError(
            "a worker must not write rows to its disk: they would outlive a request to forget them",
            got=f"{worker.address} spills above {memory.memory_limit:,} bytes",
            do="start it with: dask worker … --memory-limit 0",
        )


def report(key: str, text: str) -> None:
    """A line about a task under way, for whoever watches the driver; at most two a second."""
    now = time.monotonic()
    if now - _reported.get(key, 0.0) >= _EVERY:
        _reported[key] = now
        get_worker().log_event(TOPIC, {"key": key, "text": text})
