"""Training by workers: a task solves one component from the store, which every worker reads for itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import ClusterError, IntegrityError, StoreNotFound
from taftcache.recipe import Recipe, parse_recipe
from taftcache.remote.connection import Cluster
from taftcache.remote.task import anywhere, portable
from taftcache.stages.progress import Task

if TYPE_CHECKING:
    from taftcache.model.component import Component
    from taftcache.stages.train.training import Job
    from taftcache.tangent.base import Base
    from taftcache.tangent.spec import Train


@dataclass(frozen=True)
class SolveJob:
    """What a worker solves from: the ``store``'s address, a recipe's values, and the digest of the base point."""

    store: str
    recipe: dict[str, Any]
    base: str
    threads: int

    @classmethod
    def of(cls, cluster: Cluster, store: FeatureStore, recipe: Recipe, base: Base) -> SolveJob:
        """The job of solving in ``store`` around ``base``."""
        return cls(anywhere(str(store.path)), portable(recipe), base.digest, cluster.threads)


def components(
    cluster: Cluster,
    store: FeatureStore,
    recipe: Recipe,
    base: Base,
    jobs: Sequence[Job],
    keys: Mapping[str, str],
    task: Task,
) -> Iterator[tuple[Job, Component]]:
    """Each job with its component, in the order in which workers finish."""
    from taftcache.model.component import Component

    job = SolveJob.of(cluster, store, recipe, base)
    calls = [(job, name, _named(sources), mode) for name, sources, mode in jobs]
    cluster.watch(lambda key, text: task.note(f"{key}: {text}"))
    try:
        for number, data in cluster.results(solve, calls, ordered=False):
            component = Component.decode(data, base)
            component.meta["key"] = keys[jobs[number][0]]  # a worker may know the teachers' stores by other paths
            task.advance()
            yield jobs[number], component
    finally:
        cluster.watch(None)


def solve(job: SolveJob, name: str, shards: list[tuple[str, str]], mode: Train) -> bytes:
    """On a worker: the component's bytes."""
    import torch

    from taftcache.stages.train.settings import Settings
    from taftcache.stages.train.solving import solve_component

    torch.set_num_threads(job.threads)
    with opened(job) as (store, base):
        sources = [named_shard(store, *shard) for shard in shards]
        settings = Settings(recipe=parse_recipe(job.recipe), base=base)
        return solve_component(settings, sources, mode, _Told(), label=name).encode()


@contextmanager
def opened(job: SolveJob) -> Iterator[tuple[FeatureStore, Base]]:
    """On a worker: the store, and its base point, which is the driver's."""
    from taftcache.model.component import read_base

    try:
        store = FeatureStore(job.store)
    except StoreNotFound as error:
        raise ClusterError(
            "every worker reaches the store at the driver's address",
            got=str(error.got),
            do="put the store on a folder that all hosts mount alike, or in a bucket",
        ) from None
    with store:
        base = read_base(store, parse_recipe(job.recipe).tangent)
        if base.digest != job.base:
            raise ClusterError(
                "every worker makes the driver's base point",
                got=f"{base.digest[:16]} instead of {job.base[:16]}",
                do="install the same versions of torch and timm there",
            )
        yield store, base


def named_shard(store: FeatureStore, name: str, digest: str) -> Shard:
    """The shard of that name, with the rows of that digest."""
    shard = store.shard(name)
    if shard.digest != digest:
        raise IntegrityError(
            "a worker solves from the rows that the driver sees",
            got=f"shard {name}: digest {shard.digest[:16]}, expected {digest[:16]}",
        )
    return shard


def _named(shards: Sequence[Shard]) -> list[tuple[str, str]]:
    return [(shard.name, shard.digest) for shard in shards]


class _Told:
    """Progress that is told to the driver."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    @contextmanager
    def task(self, name: str, total: int | None) -> Iterator[_Told]:
        """One solve."""
        yield _Told(name.removeprefix("solve "))

    def say(self, text: str) -> None:
        """Sentences stay on the worker."""

    def advance(self, steps: int = 1) -> None:
        """Passes are in the note."""

    def note(self, text: str) -> None:
        """Passes and residual."""
        from taftcache.remote.worker import tell

        tell(self._name, text)
