"""J over shards that workers keep: a pass is one sum a shard, computed where the shard's rows already are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taftcache.backbone.device import resolve_device
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import ClusterError
from taftcache.objective.cotangent import Cotangent
from taftcache.recipe import Recipe, parse_recipe
from taftcache.remote.components import named_shard, opened, solve_job
from taftcache.remote.connection import Connection
from taftcache.remote.jobs import PassJob, SolveJob
from taftcache.remote.resident import resident
from taftcache.remote.task import processor
from taftcache.stages.memory import memory_of
from taftcache.tangent.base import Base
from taftcache.tangent.operator import CotangentRule, TangentOperator

Note = tuple[float, "np.ndarray | None", np.ndarray]
_alone = Lock()  # an operator's rows, and a functional tail's one module, serve one pass at a time


def remote_operator(
    cluster: Connection, store: FeatureStore, recipe: Recipe, base: Base
) -> Callable[..., TangentOperator]:
    """``TangentOperator`` for shards of ``store``, with its passes on the workers of ``cluster``."""
    return partial(RemoteOperator, cluster, solve_job(cluster, store, recipe, base))


class RemoteOperator(TangentOperator):
    """The operator over several shards; workers sum a shard each, and the driver adds those sums up in order.

    What looks at single blocks (a preconditioner made from the first rows, a kernel of all rows where they are few)
    reads them here. ``memory`` is each worker's.
    """

    def __init__(self, cluster: Connection, solve: SolveJob, base: Base, sources: list[Shard], **settings: Any) -> None:
        memory = min(settings.pop("memory", 0), memory_of(parse_recipe(solve.recipe)))
        super().__init__(base, sources, **settings)
        self._cluster = cluster
        self._shards = [shard for shard in sources if shard.rows]
        there = list(cluster.workers())
        share = -(-len(self._shards) // max(1, len(there)))
        self._homes = [there[k % len(there)] for k in range(len(self._shards))] if there else []
        dtype = str(self.dtype).removeprefix("torch.")
        self._job = PassJob(
            solve=solve,
            trained=tuple(self.layout.shapes),
            dtype=dtype,
            memory=memory // max(1, share),
            shards=2 * share,
            repeated=self.ready is not None,
        )

    def accumulate(self, vector: Tensor | None, cotangent: CotangentRule, onto: Tensor | None = None) -> Tensor:
        """See ``TangentOperator``; on workers where the cotangent can travel and there are several shards."""
        if not isinstance(cotangent, Cotangent) or len(self._shards) < 2:
            return super().accumulate(vector, cotangent, onto)
        self.passes += 1
        if onto is None:
            onto = torch.zeros(self.layout.size, dtype=self.dtype, device=self.device)
        start, parts = 0, []
        for shard in self._shards:
            parts.append((cotangent.part(start, shard.rows),))
            start += shard.rows
        for total, notes in self._mapped(shard_sum, vector, parts):
            onto.add_(torch.from_numpy(total).to(self.device))
            cotangent.notes += [(value, _tensor(z, self.device), _tensor(y, self.device)) for value, z, y in notes]
        return onto

    def matvec(self, vector: Tensor) -> Iterator[Tensor]:
        """J v block by block, each [b,K]."""
        if len(self._shards) < 2:
            yield from super().matvec(vector)
            return
        self.passes += 1
        for blocks in self._mapped(shard_tangents, vector, [() for _ in self._shards]):
            yield from (torch.from_numpy(block).to(self.device) for block in blocks)

    def _mapped(
        self, function: Callable[..., Any], vector: Tensor | None, more: list[tuple[Any, ...]]
    ) -> Iterator[Any]:
        sent = None if vector is None else vector.to("cpu", self.dtype).numpy()
        alike = ""
        calls = [(self._job, shard.name, shard.digest, *rest) for shard, rest in zip(self._shards, more, strict=True)]
        for made_by, result in self._cluster.mapped(function, sent, calls, self._homes):
            alike = alike or made_by
            if made_by != alike:
                raise ClusterError(
                    "workers with different processors cannot share a sum: they round differently",
                    got=f"a worker with {made_by} beside {alike}",
                    do="start workers on one kind of machine, or set the recipe's device",
                )
            yield result


def shard_sum(
    vector: np.ndarray | None, job: PassJob, name: str, digest: str, cotangent: Cotangent
) -> tuple[str, tuple[np.ndarray, list[Note]]]:
    """On a worker: Σ Jᵀ cotangent(f₀, J v, labels) over a shard [P], and the cotangent's notes."""
    with _alone:
        operator = _operator(job, name, digest)
        total = operator.accumulate(None if vector is None else _tensor(vector, operator.device), cotangent)
        notes = [
            (float(value), None if z is None else z.cpu().numpy(), y.cpu().numpy()) for value, z, y in cotangent.notes
        ]
        return processor(torch.device(operator.device)), (total.cpu().numpy(), notes)


def shard_tangents(vector: np.ndarray, job: PassJob, name: str, digest: str) -> tuple[str, list[np.ndarray]]:
    """On a worker: J v of a shard's blocks, each [b,K]."""
    with _alone:
        operator = _operator(job, name, digest)
        blocks = [block.cpu().numpy() for block in operator.matvec(_tensor(vector, operator.device))]
        return processor(torch.device(operator.device)), blocks


def _operator(job: PassJob, name: str, digest: str) -> TangentOperator:
    """Over one shard, kept from pass to pass with as many prepared rows as ``job.memory`` holds."""
    torch.set_num_threads(job.solve.threads)
    key = (job.solve.store, job.solve.base, job.dtype)

    def load() -> tuple[FeatureStore, Base, torch.device]:
        device = resolve_device(parse_recipe(job.solve.recipe).device)
        if device.type == "mps":  # it has no float64
            device = torch.device("cpu")
        with opened(job.solve) as (store, base):
            return store, base.to(getattr(torch, job.dtype), device), device

    def make() -> TangentOperator:
        store, base, device = resident(f"base {job.dtype}", key, load, most=1)
        shard = named_shard(store, name, digest)
        settings: dict[str, Any] = {"dtype": getattr(torch, job.dtype), "device": device, "memory": job.memory}
        return TangentOperator(base, [shard], trained=base.named(job.trained), repeated=job.repeated, **settings)

    return resident(f"rows {job.dtype}", (*key, digest, job.trained, job.repeated), make, most=job.shards)


def _tensor(array: Any, device: Any) -> Any:
    """A tensor that may be written to: what comes over a wire may not."""
    return None if array is None else torch.tensor(array, device=device)
