"""Worker processes of this machine, each with a GPU of its own where there are GPUs."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import dask
from distributed import LocalCluster, Security, Status

from taftcache.errors import ClusterError
from taftcache.names import counted

FEWER = "ask for fewer workers if memory is short"
_LOOK = 0.5  # seconds between two checks whether a worker has ended instead of starting


class _Pinned(LocalCluster):
    """A local cluster whose worker k sees only GPU k, also after a restart."""

    gpus: Sequence[str] = ()

    def new_worker_spec(self) -> dict[Any, Any]:
        """The next worker's name and options."""
        ((name, spec),) = super().new_worker_spec().items()
        seen = {"CUDA_VISIBLE_DEVICES": self.gpus[name % len(self.gpus)]} if self.gpus else {}
        options = {**spec["options"], "env": {**spec["options"]["env"], **seen}}
        return {name: {**spec, "options": options}}

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Ignore a worker that left before it was announced: Dask's own method fails there, and closing with it."""
        if op != "remove" or msg in self.scheduler_info["workers"]:
            super()._update_worker_status(op, msg)


def processes(
    workers: int, threads: int, gpus: Sequence[str], say: Callable[[str], object], patience: float
) -> LocalCluster:
    """``workers`` processes with one task at a time each, on the loopback interface, under TLS made for this run.

    ``say`` is told, once, that some have not started in ``patience`` seconds; they are waited for all the same.

    No memory limit: mapped chunks of a store count as memory for Dask, and a worker near its limit would write
    what it holds to disk. No web pages: Dask would serve them over plain HTTP to anybody on this machine, under any
    host name. And workers do not give memory back as soon as it is free, as Dask would have it: a forward pass would
    then spend as long on getting it again as on its products.
    """
    number = str(threads)
    settings: dict[str, list[str] | None] = {
        "distributed.scheduler.http.routes": [],
        "distributed.worker.http.routes": [],
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    }
    with dask.config.set(settings):
        cluster = _Pinned(
            n_workers=0,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            security=Security.temporary(),
            dashboard_address="127.0.0.1:0",  # else Dask asks for one port, and warns if two clusters want it
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
            env={"OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": number},
        )
        cluster.gpus = gpus
        try:
            _start(cluster, workers, say, patience)
        except BaseException:
            _kill_unstarted(cluster)
            cluster.close()
            raise
    return cluster


def _kill_unstarted(cluster: LocalCluster) -> None:
    """End the workers that have not started: Dask waits for them before it closes, and one may hang."""
    for nanny in list(cluster._created):
        if nanny.status != Status.running and nanny.pid:
            with suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)


def _start(cluster: LocalCluster, workers: int, say: Callable[[str], object], patience: float) -> None:
    """Wait until all have started; ClusterError if one ends before that, because Dask does not start it again."""
    cluster.scale(workers)
    begin, said = time.monotonic(), False
    while True:
        with suppress(TimeoutError):
            cluster.wait_for_workers(workers, timeout=_LOOK)
            return
        states = [worker.status for worker in cluster.workers.values()]
        if ended := states.count(Status.failed):
            raise ClusterError(
                f"{ended} of {counted(workers, 'worker')} ended while starting",
                do=f"run the same command again; {FEWER}",
            )
        if not said and time.monotonic() - begin > patience:
            there = len(cluster.scheduler_info["workers"])
            say(f"{there} of {counted(workers, 'worker')} started in {patience:g} s; waiting for the rest")
            said = True
