"""A connection to Dask: workers of this machine, or those of a scheduler elsewhere."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import torch

from taftcache.backbone.forward.processes import usable_cores
from taftcache.errors import ClusterError, RecipeError, TaftcacheError, first_line
from taftcache.names import counted

try:
    import dask
    from distributed import CancelledError, Client, Future, LocalCluster, Security
    from distributed.scheduler import KilledWorker
except ImportError as missing:  # whoever imports this room asks for workers
    raise RecipeError(
        "workers need Dask, which is not installed",
        got=str(missing),
        do="pip install 'taftcache[dask]', or leave --workers and --scheduler out",
    ) from None

from taftcache.remote.processes import FEWER, processes
from taftcache.remote.worker import TOPIC, Admission, admitted, versions

AHEAD = 2  # tasks in flight for each thread of a worker: one is computed, the next is ready
_A_CORE, _FEWEST = 4, 8  # workers that may be asked for: this many for each core, and this many on any machine
_TRIES = 3
_SCHEDULER_LOST = "scheduler-connection-lost"  # in Dask's words
_CLIENT_LOG = logging.getLogger("distributed.client")
_CERTIFICATES = "name them in Dask's configuration: distributed.comm.tls.ca-file, .client.cert and .client.key"
_LOOK = 0.5  # seconds between two checks that there still are workers


class _LostValue(Exception):
    """Workers were lost, and with them a value that only the driver can send again."""


class Connection:
    """Workers that compute functions of what they are sent; a context manager.

    Made by ``local`` or ``at``. The driver alone writes: what workers return passes through it, at most a few results
    at a time. If a worker dies, another does its work; ClusterError if for ``timeout`` seconds the scheduler does not
    answer, or there is no worker.

    Attributes:
        threads: of each worker's linear algebra. One number for all of them, because it decides the last digits.
    """

    def __init__(
        self,
        client: Client,
        threads: int,
        timeout: float,
        own: LocalCluster | None = None,
        say: Callable[[str], object] = str,
    ) -> None:
        self._client, self._own, self.threads, self.timeout = client, own, threads, timeout
        # A filter, because if two connections changed the logger's level, neither would know which one to restore.
        self._quiet = logging.Filter("taftcache")
        _CLIENT_LOG.addFilter(self._quiet)
        self._answered = time.monotonic()
        self._wanted = versions()
        self._say, self._there = say, frozenset[str]()
        try:
            self._admit()
            self._await_workers()
        except BaseException:
            self.close()
            raise

    @classmethod
    def local(
        cls,
        workers: int | None = None,
        *,
        threads: int | None = None,
        timeout: float | None = None,
        say: Callable[[str], object] = str,
    ) -> Self:
        """Processes of this machine, one a GPU where there are GPUs; ended with the connection.

        They and this process authenticate each other with a certificate made for this run, so that nobody else on the
        machine can give them work.

        Args:
            workers: by default as many as GPUs, or else as processor cores; RecipeError for more than the largest of
                eight, four per core and the number of GPUs.
            threads: by default ``OMP_NUM_THREADS`` if that is set, else the cores divided by the workers.
            timeout: seconds without scheduler or workers until the run gives up; by default Dask's own for connecting
                (distributed.comm.timeouts.connect, 30 s).
            say: is told, once, if workers have not started after ``timeout`` seconds, and later of workers that ended.
        """
        timeout = _timeout(timeout)
        gpus = _gpus()
        cores = usable_cores()
        if workers is None:
            workers = len(gpus) or cores
        if workers < 1:
            raise RecipeError("workers must be 1 or more", got=f"--workers {workers}", do="--workers 2, say")
        if workers > (most := max(_FEWEST, _A_CORE * cores, len(gpus))):  # each takes memory and seconds to start
            raise RecipeError(
                f"cannot start {workers} workers: this machine has {counted(cores, 'core')}",
                got=f"--workers {workers}",
                do=f"--workers {most}, which is the most here, or --workers 0",
            )
        threads = threads or _pinned() or max(1, cores // workers)
        with dask.config.set({"distributed.scheduler.worker-ttl": f"{timeout}s"}):
            own = processes(workers, threads, gpus, say, timeout)
        try:
            client = Client(own, direct_to_workers=True, set_as_default=False)
        except BaseException:
            own.close()
            raise
        return cls(client, threads, timeout, own, say)

    @classmethod
    def at(
        cls,
        scheduler: str,
        *,
        threads: int | None = None,
        timeout: float | None = None,
        say: Callable[[str], object] = str,
    ) -> Self:
        """The workers of a running scheduler: ``tcp://host:port``, or ``tls://`` with Dask's own configuration.

        ``threads`` is by default ``OMP_NUM_THREADS`` if that is set, else 1 as in Dask's workers. ``say`` is told of
        workers that left.

        Raises:
            RecipeError: the address is invalid, or Dask has no certificates for it.
            ClusterError: the scheduler does not answer, has no workers, or has some that are not fit.
        """
        timeout = _timeout(timeout)
        _check_address(scheduler)
        try:
            client = Client(
                scheduler, timeout=timeout, direct_to_workers=True, set_as_default=False, name="taftcache-driver"
            )
        except OSError as error:
            raise ClusterError(
                "the scheduler does not answer", got=f"{scheduler}: {error}", do="start it with: dask scheduler"
            ) from None
        return cls(client, threads or _pinned() or 1, timeout, say=say)

    def describe(self) -> str:
        """One line for the user."""
        there = self.workers()
        hosts = {address.rpartition(":")[0] for address in there}
        return (
            f"{counted(len(there), 'worker')} on {counted(len(hosts), 'host')}, {counted(self.threads, 'thread')} each"
        )

    def workers(self) -> dict[str, int]:
        """Address → threads that take tasks, of the workers that are there now, sorted."""
        try:
            return self._looked()
        except OSError as error:
            raise self._lost(str(error)) from None

    def results(
        self,
        function: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        *,
        homes: Sequence[str] | None = None,
        ordered: bool = True,
        what: Callable[[int], str] | None = None,
        do: str = FEWER,
    ) -> Generator[tuple[int, Any]]:
        """(number of the call, what ``function(*call)`` returned), in the order of the calls or as they end.

        ``function`` stands in a module that workers can import.

        Calls are drawn from the iterable no faster than results are taken: results that wait for an earlier one count
        as in flight. Ending the iteration early cancels what is under way.

        Args:
            homes: for each call, the worker that should compute it; another does if that one is gone.
            what: number of a call -> what it works on, for the error if it ended one worker after another.
            do: what helps against that.

        Raises:
            ClusterError: nobody is left to compute, or a call ended one worker after another. Whatever ``function``
                raised.
        """
        pending: dict[Future[Any], int] = {}
        ended: SimpleQueue[Future[Any]] = SimpleQueue()
        done: dict[int, Any] = {}
        source, number, due = iter(calls), 0, 0
        name = function.__module__, function.__name__
        most = AHEAD * max(1, sum(self.workers().values()))
        try:
            while True:
                while len(pending) + len(done) < most and (call := next(source, None)) is not None:
                    where: dict[str, Any] = {}
                    if homes is not None:
                        where = {"workers": [homes[number]], "allow_other_workers": True}
                    future = self._client.submit(admitted, self._wanted, *name, *call, pure=False, **where)
                    pending[future] = number
                    future.add_done_callback(ended.put)
                    number += 1
                if not pending:
                    return
                future = self._next(ended)
                try:
                    result = self._result(future)
                except KilledWorker as error:  # Dask gives up the tasks that were ready behind it, too
                    first = min(k for other, k in pending.items() if other.status == "error")
                    raise self._given_up(error, what(first) if what else None, do) from None
                done[pending.pop(future)] = result
                if not ordered:
                    yield done.popitem()
                while due in done:
                    yield due, done.pop(due)
                    due += 1
        finally:
            self._cancel(list(pending))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``, computed by any worker."""
        ((_, result),) = self.results(function, [args])
        return result

    def mapped(
        self,
        function: Callable[..., Any],
        value: Any,
        calls: Sequence[tuple[Any, ...]],
        homes: Sequence[str],
        names: Sequence[str],
    ) -> Generator[Any]:
        """``function(value, *call)`` of each call in order; ``value`` goes to every worker once.

        See ``results``; ``names`` says what each call works on. When all workers that hold ``value`` are lost it is
        sent again, and what was returned until then is not computed twice.
        """
        taken = tries = 0
        while taken < len(calls):
            try:
                shared = self._share(value)
                rest = ((shared, *call) for call in calls[taken:])
                named = names[taken:].__getitem__
                for _, result in self.results(function, rest, homes=homes[taken:], what=named):
                    taken += 1
                    yield result
            except _LostValue as error:
                tries += 1
                if tries > _TRIES:
                    raise self._lost(str(error)) from None

    def watch(self, listener: Callable[[str, str], None] | None) -> None:
        """Call ``listener(key, text)`` with what workers ``report``, from another thread; None ends it."""
        if listener is None:
            with suppress(ValueError):
                self._client.unsubscribe_topic(TOPIC)
        else:
            self._client.subscribe_topic(TOPIC, lambda event: listener(event[1]["key"], event[1]["text"]))

    def close(self) -> None:
        """Let workers forget what they keep, and end those that are this connection's own."""
        with suppress(OSError, ValueError, RuntimeError):
            if self._own is None and self._client.status == "running":
                leave = self._client.scheduler.unregister_worker_plugin  # type: ignore[union-attr]
                self._client.sync(leave, name=Admission.name, callback_timeout=5)
        with suppress(OSError):
            self._client.close(timeout=5)
        if self._own is not None:
            with suppress(OSError):
                self._own.close(timeout=5)
        _CLIENT_LOG.removeFilter(self._quiet)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _looked(self) -> dict[str, int]:
        """What ``workers`` returns; first tells the user of workers that left since the last look, because Dask's own
        events for that break off while rows are sent."""
        ask = self._client.scheduler.ncores  # type: ignore[union-attr]
        there = dict(sorted(self._client.sync(ask, callback_timeout=self.timeout).items()))
        before, self._there = self._there, frozenset(there)
        if gone := before - self._there:
            how = "left" if self._own is None else "ended"
            self._say(f"{len(gone)} of {counted(len(before), 'worker')} {how}; others do what it had; {FEWER}")
        return there

    def _share(self, value: Any) -> Future[Any]:
        """``value`` on every worker; ClusterError if workers are there, but have not taken it for too long."""
        since: float | None = None
        while True:
            try:
                shared: Future[Any] = self._client.scatter(value, broadcast=True, hash=False)
                return shared
            except (OSError, CancelledError) as error:
                if since is None:
                    self._answered = since = time.monotonic()
                self._look()
                if time.monotonic() - since > self.timeout:
                    raise self._lost(first_line(error)) from None
                time.sleep(_LOOK)

    def _next(self, ended: SimpleQueue[Future[Any]]) -> Future[Any]:
        """The next call to end; ClusterError if no worker is left that could end one."""
        self._answered = time.monotonic()  # the scheduler was not asked while results came in or were worked on
        while True:
            try:
                return ended.get(timeout=_LOOK)
            except Empty:
                self._look()

    def _result(self, future: Future[Any]) -> Any:
        try:
            return future.result(timeout=self.timeout)
        except CancelledError as error:
            why = getattr(error, "reason", first_line(error))
            if self._client.status != "running" or why == _SCHEDULER_LOST:  # it may be back, but without our tasks
                raise self._gone(why) from None
            raise _LostValue(str(error)) from None
        except OSError as error:
            self._look()
            raise self._lost(str(error)) from None
        except ImportError as error:
            raise _unfit("a worker", error) from None
        except RuntimeError as error:
            if "deserialization of the task graph" not in str(error):  # the scheduler's error if it lacks our modules
                raise
            raise _unfit("the scheduler", error) from None

    def _given_up(self, error: KilledWorker, what: str | None, do: str) -> ClusterError:
        _, last, failures = error.args
        if self._own is None:  # the connection's own workers have no output that a user sees
            do = f"look at the output of {last.address}, the last of them; {do}"
        return ClusterError(f"a task was given up: {counted(failures + 1, 'worker')} ended at it", got=what, do=do)

    def _look(self) -> None:
        """ClusterError when the scheduler has not answered, or has had no worker, for too long."""
        why = "the scheduler does not answer"
        try:
            if self._client.status == "running":
                if self._looked():
                    self._answered = time.monotonic()
                    return
                why = "there is no worker"
        except OSError:
            pass
        if self._client.status in ("closed", "closing"):
            raise self._gone(why)
        if time.monotonic() - self._answered > self.timeout:
            raise self._lost(why)

    def _lost(self, why: str) -> ClusterError:
        who = "scheduler and workers" if self._own is None else "the workers"
        return ClusterError(f"no answer from {who} for {self.timeout:g} seconds", got=why, do=self._again())

    def _gone(self, why: str) -> ClusterError:
        return ClusterError("the scheduler was lost", got=why, do=self._again())

    def _again(self) -> str:
        if self._own is None:
            return "start them again; the same command resumes from what was committed"
        return f"run the same command again: it resumes from what was committed; {FEWER}"  # which starts new workers

    def _admit(self) -> None:
        """ClusterError for a worker that is not fit, or that cannot even say so."""
        try:
            self._client.register_plugin(Admission(self._wanted))
        except TaftcacheError:
            raise
        except OSError as error:
            raise self._lost(str(error)) from None
        except Exception as error:  # whatever unpickling raised there; Dask makes it an Exception with its text
            raise _unfit("a worker", error) from None

    def _await_workers(self) -> None:
        end = time.monotonic() + self.timeout
        while not self.workers():
            if time.monotonic() > end:
                raise ClusterError(
                    "the scheduler has no workers",
                    got=f"none for {self.timeout:g} seconds",
                    do="start some with: dask worker ADDRESS --nthreads 1 --memory-limit 0",
                )
            time.sleep(0.1)

    def _cancel(self, futures: list[Future[Any]]) -> None:
        if futures and self._client.status == "running":
            with suppress(OSError, RuntimeError):
                self._client.cancel(futures, force=True)
        for future in futures:
            future.release()


def _unfit(who: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"{who} cannot load taftcache",
        got=first_line(error),
        do="install the same versions there, and look at its output",
    )


def _pinned() -> int | None:
    """``OMP_NUM_THREADS``, if it is a positive number."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _check_address(scheduler: str) -> None:
    """RecipeError for an invalid address: Dask would try it all the same, and its client would not end."""
    try:
        parts = urlsplit(scheduler)
        whole = scheduler.startswith(("tcp://", "tls://")) and parts.hostname and parts.port and not parts.path
    except ValueError:
        whole = False
    if not whole:
        raise RecipeError(
            "the scheduler's address must be tcp:// or tls://, a host and a port",
            got=scheduler,
            do="write it like tcp://host:8786",
        )
    if scheduler.startswith("tls://"):
        try:
            context = Security().get_connection_args("client")["ssl_context"]
        except OSError as error:
            raise RecipeError(f"cannot use Dask's certificates: {first_line(error)}", do=_CERTIFICATES) from None
        if context is None:
            raise RecipeError("tls:// needs certificates, and Dask has none", got=scheduler, do=_CERTIFICATES)


def _gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be set to for each GPU in turn."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return [str(k) for k in range(torch.cuda.device_count())]


def _timeout(seconds: float | None) -> float:
    """Seconds to wait, by default those in Dask's configuration; also silences Dask's own log."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if seconds is not None:
        return seconds
    return float(dask.utils.parse_timedelta(dask.config.get("distributed.comm.timeouts.connect")))
