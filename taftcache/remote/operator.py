"""J over shards that workers keep: a pass is one sum a shard, computed where the shard's rows already are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taftcache.backbone.device import float64_device
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.objective.cotangent import Cotangent
from taftcache.recipe import parse_recipe
from taftcache.remote.components import named_shard, opened
from taftcache.remote.connection import Connection
from taftcache.remote.jobs import PassJob, SolveJob
from taftcache.remote.resident import resident
from taftcache.remote.task import check_alike, rounding_of
from taftcache.stages.memory import memory_of
from taftcache.tangent.base import Base
from taftcache.tangent.operator import RowSum, TangentOperator

Note = tuple[float, "np.ndarray | None", np.ndarray]
_alone = Lock()  # an operator's rows serve one pass at a time


class RemoteOperator(TangentOperator):
    """The operator over several shards; each worker sums over a shard, and the driver adds those sums up in order.

    Code that looks at single blocks (for a preconditioner made from the first rows, or a kernel of all rows if they are
    few) reads them in this process. ``memory`` is each worker's.
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

    def sums(self, *asked: RowSum) -> list[Tensor]:
        """See ``TangentOperator``; on workers if the cotangents can travel and there are several shards."""
        cotangents = [each.cotangent for each in asked if isinstance(each.cotangent, Cotangent)]
        if len(cotangents) < len(asked) or len(self._shards) < 2:
            return super().sums(*asked)
        self.passes += 1
        found = [self._zeros() if each.onto is None else each.onto for each in asked]
        moving = [each.vector is not None for each in asked]
        start, parts = 0, []
        for shard in self._shards:
            own = [cotangent.part(start, shard.rows) for cotangent in cotangents]
            parts.append((list(zip(moving, own, strict=True)),))
            start += shard.rows
        for answers in self._mapped(shard_sums, [each.vector for each in asked if each.vector is not None], parts):
            for onto, cotangent, (total, notes) in zip(found, cotangents, answers, strict=True):
                onto.add_(torch.from_numpy(total).to(self.device))
                cotangent.notes += [(value, _tensor(z, self.device), _tensor(y, self.device)) for value, z, y in notes]
        return found

    def matvec(self, vector: Tensor) -> Iterator[Tensor]:
        """J v block by block, each [b,K]."""
        if len(self._shards) < 2:
            yield from super().matvec(vector)
            return
        self.passes += 1
        for blocks in self._mapped(shard_tangents, [vector], [() for _ in self._shards]):
            yield from (torch.from_numpy(block).to(self.device) for block in blocks)

    def _mapped(
        self, function: Callable[..., Any], vectors: list[Tensor], more: list[tuple[Any, ...]]
    ) -> Iterator[Any]:
        sent = torch.stack([vector.to("cpu", self.dtype) for vector in vectors]).numpy() if vectors else None
        alike = ""
        calls = [(self._job, shard.name, shard.digest, *rest) for shard, rest in zip(self._shards, more, strict=True)]
        names = [f"shard {shard.name}" for shard in self._shards]
        for made_by, result in self._cluster.mapped(function, sent, calls, self._homes, names):
            alike = alike or made_by
            check_alike(made_by, alike, "share a sum")
            yield result


def shard_sums(
    vectors: np.ndarray | None, job: PassJob, name: str, digest: str, asked: list[tuple[bool, Cotangent]]
) -> tuple[str, list[tuple[np.ndarray, list[Note]]]]:
    """On a worker: for each cotangent Σ Jᵀ cotangent(f₀, J v, labels) over a shard [P], and its notes.

    ``asked`` has, with each cotangent, whether it is one of a change: then v is the next of ``vectors`` [m,P], else 0.
    """
    with _alone:
        operator = _operator(job, name, digest)
        given = iter(() if vectors is None else _tensor(vectors, operator.device))
        totals = operator.sums(*(RowSum(next(given) if moving else None, cotangent) for moving, cotangent in asked))
        notes = [
            [(float(value), None if z is None else z.cpu().numpy(), y.cpu().numpy()) for value, z, y in cotangent.notes]
            for _, cotangent in asked
        ]
        answers = [total.cpu().numpy() for total in totals]
        return rounding_of(torch.device(operator.device)), list(zip(answers, notes, strict=True))


def shard_tangents(vectors: np.ndarray, job: PassJob, name: str, digest: str) -> tuple[str, list[np.ndarray]]:
    """On a worker: J v of a shard's blocks, each [b,K], for ``vectors`` [1,P]."""
    with _alone:
        operator = _operator(job, name, digest)
        blocks = [block.cpu().numpy() for block in operator.matvec(_tensor(vectors[0], operator.device))]
        return rounding_of(torch.device(operator.device)), blocks


def _operator(job: PassJob, name: str, digest: str) -> TangentOperator:
    """The operator over one shard, kept from pass to pass with as many prepared rows as ``job.memory`` holds."""
    torch.set_num_threads(job.solve.threads)
    key = (job.solve.store, job.solve.base, job.dtype)

    def load() -> tuple[FeatureStore, Base, torch.device]:
        device = float64_device(parse_recipe(job.solve.recipe).device)
        with opened(job.solve) as (store, base):
            return store, base.to(getattr(torch, job.dtype), device), device

    def make() -> TangentOperator:
        store, base, device = resident(f"base {job.dtype}", key, load, most=1)
        shard = named_shard(store, name, digest)
        settings: dict[str, Any] = {"dtype": getattr(torch, job.dtype), "device": device, "memory": job.memory}
        return TangentOperator(base, [shard], trained=base.named(job.trained), repeated=job.repeated, **settings)

    return resident(f"rows {job.dtype}", (*key, digest, job.trained, job.repeated), make, most=job.shards)


def _tensor(array: Any, device: Any) -> Any:
    """A tensor that may be written to, unlike arrays that come from another process."""
    return None if array is None else torch.tensor(array, device=device)
