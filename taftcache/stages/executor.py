"""The interface of workers that compute for the stages in place of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.model.component import Component
from taftcache.recipe import Recipe
from taftcache.stages.progress import Task
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.spec import Train

if TYPE_CHECKING:  # imports timm, which solving does not need
    from taftcache.backbone.forward.engine import Engine
    from taftcache.backbone.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class Job:
    """A component to solve: its name, the shards whose rows it comes from, what is trained, and its key."""

    name: str
    shards: list[Shard]
    train: Train
    key: str


class RowEngines(Protocol):
    """The frozen layers of one recipe, ready to run."""

    def engine(self, source: Source, held_out: bool, stop: bool) -> Engine:
        """Runs batches of ``source``, the recipe's second one if ``held_out``; ``stop`` ends at an unreadable image."""
        ...


class Executor(Protocol):
    """Workers that compute for the stages; ``taftcache.remote.cluster.Cluster`` is one.

    What they return has the bytes that this process would have computed with ``threads`` threads.

    threads: how many each worker's linear algebra uses.
    """

    threads: int

    def workers(self) -> Mapping[str, int]:
        """Address → threads that take tasks, for the workers that are connected now."""
        ...

    def rows(
        self, recipe: Recipe, classes: Sequence[str], identity: dict[str, Any], known: Sequence[str]
    ) -> RowEngines:
        """The frozen layers that ``recipe`` and ``classes`` give, on the workers; they must have this ``identity``.
        ``known`` are ids that say how many digits numbers of rows have."""
        ...

    def components(
        self, store: FeatureStore, recipe: Recipe, base: Base, jobs: Sequence[Job], task: Task
    ) -> Iterator[tuple[Job, Component]]:
        """Each job with its component, in the order in which they are solved."""
        ...

    def operator(self, store: FeatureStore, recipe: Recipe, base: Base) -> Callable[..., TangentOperator]:
        """A function to call like ``TangentOperator``, for shards of ``store``; the passes run on the workers."""
        ...


@contextmanager
def same_threads(executor: Executor | None) -> Iterator[None]:
    """Give this process's linear algebra as many threads as the workers': their number decides the last digits."""
    if executor is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(executor.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
