"""Workers beyond this process: the only part that knows Dask, which does the scheduling, the retries and the wires."""

from __future__ import annotations

from taftcache.cluster.connection import Cluster

__all__ = ["Cluster"]
