"""Training by workers: a task solves one component from the store, which every worker reads for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from msgspec.structs import replace

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.errors import ClusterError, IntegrityError, StoreError, StoreNotFound
from taftcache.model.component import Component, read_base
from taftcache.recipe import Recipe, parse_recipe
from taftcache.remote.connection import Connection
from taftcache.remote.jobs import SolveJob
from taftcache.remote.task import portable
from taftcache.remote.worker import report
from taftcache.stages.executor import Job
from taftcache.stages.memory import memory_of
from taftcache.stages.progress import Silent, Task
from taftcache.stages.train.settings import Settings
from taftcache.stages.train.solving import solve_component
from taftcache.tangent.base import Base
from taftcache.tangent.spec import Train


def components(
    cluster: Connection, store: FeatureStore, recipe: Recipe, base: Base, jobs: Sequence[Job], task: Task
) -> Iterator[tuple[Job, Component]]:
    """Each job with its component, in the order in which workers finish."""
    place = solve_job(cluster, store, recipe, base)
    calls = [(place, job.name, [(s.name, s.digest) for s in job.shards], job.train) for job in jobs]
    cluster.watch(lambda key, text: task.note(f"{key}: {text}"))
    try:
        for number, data in cluster.results(solve, calls, ordered=False, what=lambda k: jobs[k].name):
            component = Component.decode(data, base)
            component.meta["key"] = jobs[number].key  # a worker may know the teachers' stores by other paths
            task.advance()
            yield jobs[number], component
    finally:
        cluster.watch(None)


def solve_job(cluster: Connection, store: FeatureStore, recipe: Recipe, base: Base) -> SolveJob:
    """The job of solving in ``store`` around ``base``; if the recipe leaves memory open, the workers share it."""
    if recipe.solver.memory == "auto":
        share = memory_of(recipe) // max(1, len(cluster.workers()))
        recipe = replace(recipe, solver=replace(recipe.solver, memory=str(share)))
    return SolveJob(store=store.place, recipe=portable(recipe), base=base.digest, threads=cluster.threads)


def solve(job: SolveJob, name: str, shards: list[tuple[str, str]], mode: Train) -> bytes:
    """On a worker: the component's bytes."""
    torch.set_num_threads(job.threads)
    with opened(job) as (store, base):
        sources = [named_shard(store, *shard) for shard in shards]
        settings = Settings(recipe=parse_recipe(job.recipe), base=base)
        return solve_component(settings, sources, mode, _Reporting(), label=name).encode()


@contextmanager
def opened(job: SolveJob) -> Iterator[tuple[FeatureStore, Base]]:
    """On a worker: the store and its base point; ClusterError if that is not the driver's."""
    try:
        store = FeatureStore(job.store)
    except StoreNotFound as error:
        raise ClusterError(
            "a worker does not find the store at the driver's address",
            got=error.fault,
            do="put the store in a folder that all hosts mount at the same path, or in a bucket",
        ) from None
    except StoreError as error:  # the driver could open it
        error.fault = f"a worker cannot open the store: {error.fault}"
        raise
    with store:
        # the driver has read the base already, so the user has allowed it
        base = read_base(store, parse_recipe(job.recipe).tangent, consent=Consent(hub=True))
        if base.digest != job.base:
            raise ClusterError(
                "a worker makes another base point than the driver",
                got=f"{base.digest[:16]} instead of {job.base[:16]}",
                do="install the same versions of torch and timm there",
            )
        yield store, base


def named_shard(store: FeatureStore, name: str, digest: str) -> Shard:
    """The shard of that name; IntegrityError if it has another digest."""
    shard = store.shard(name)
    if shard.digest != digest:
        raise IntegrityError(
            "a worker reads other rows than the driver",
            got=f"shard {name}: digest {shard.digest[:16]}, expected {digest[:16]}",
        )
    return shard


class _Reporting(Silent):
    """Reports notes, which are passes and residual, to the driver; sentences stay on the worker."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[_Reporting]:
        """One solve."""
        yield _Reporting(name.removeprefix("solve "))

    def note(self, text: str) -> None:
        """See ``Task``."""
        report(self._name, text)
