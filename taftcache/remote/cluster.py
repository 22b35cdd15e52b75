"""Workers as the stages ask for them: the ``Executor`` that runs on Dask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from taftcache.cache.store import FeatureStore
from taftcache.model.component import Component
from taftcache.recipe import Recipe
from taftcache.remote.components import components, solve_job
from taftcache.remote.connection import Connection
from taftcache.remote.operator import RemoteOperator
from taftcache.remote.rows import RemoteRows
from taftcache.stages.executor import Job
from taftcache.stages.progress import Task
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator


class Cluster(Connection):
    """Workers that extract, train and compose: what a verb takes as ``cluster``.

    ``Cluster.local(workers=2)`` or ``Cluster.at("tcp://host:8786")``, in a ``with`` statement.
    """

    def rows(
        self, recipe: Recipe, classes: Sequence[str], identity: dict[str, Any], known: Sequence[str]
    ) -> RemoteRows:
        """Extraction by the model that ``recipe`` and ``classes`` make; every worker checks it against ``identity``.
        ``known`` are ids that say how many digits numbers of rows have."""
        return RemoteRows(self, recipe, classes, identity, known)

    def components(
        self, store: FeatureStore, recipe: Recipe, base: Base, jobs: Sequence[Job], task: Task
    ) -> Iterator[tuple[Job, Component]]:
        """Each job with its component, in the order in which workers finish."""
        return components(self, store, recipe, base, jobs, task)

    def operator(self, store: FeatureStore, recipe: Recipe, base: Base) -> Callable[..., TangentOperator]:
        """``TangentOperator`` for shards of ``store``, with its passes on the workers."""
        return partial(RemoteOperator, self, solve_job(self, store, recipe, base))
