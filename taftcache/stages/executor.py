"""Who computes a stage where it is not this process: what the stages ask of workers, whoever they are."""

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

if TYPE_CHECKING:  # timm, which who solves does not need
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
        """Batches of ``source``, the recipe's second one where ``held_out``; ``stop`` at an unreadable image."""
        ...


class Executor(Protocol):
    """Workers that compute for the stages; ``taftcache.remote.cluster.Cluster`` is one.

    What they return has the bytes that this process would have computed with ``threads`` threads.

    threads: of each worker's linear algebra.
    """

    threads: int

    def workers(self) -> Mapping[str, int]:
        """Address → threads that take tasks, of the workers that are there now."""
        ...

    def rows(self, recipe: Recipe, classes: Sequence[str], identity: dict[str, Any]) -> RowEngines:
        """Extraction by the model that ``recipe`` and ``classes`` make; ``identity`` is what it must prove to be."""
        ...

    def components(
        self, store: FeatureStore, recipe: Recipe, base: Base, jobs: Sequence[Job], task: Task
    ) -> Iterator[tuple[Job, Component]]:
        """Each job with its component, in the order in which they are solved."""
        ...

    def operator(self, store: FeatureStore, recipe: Recipe, base: Base) -> Callable[..., TangentOperator]:
        """What is called as ``TangentOperator`` is, for shards of ``store``: its passes run on the workers."""
        ...


@contextmanager
def same_threads(executor: Executor | None) -> Iterator[None]:
    """This process's linear algebra with as many threads as the workers', for they decide the last digits."""
    if executor is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(executor.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
