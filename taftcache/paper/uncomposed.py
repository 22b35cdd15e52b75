"""What composed models are compared with: the exact model and the exact head of all rows, and the mean of heads."""

from __future__ import annotations

from taftcache.paper.trial import Setting
from taftcache.paper.workbench import Workbench

EXACT, HEAD, HEADS = "Exact", "Head, exact", "Heads, mean"


def of_all_rows(work: Workbench) -> dict[str, Setting]:
    """By name, what is solved over all (remaining) rows at once, as chosen for one shard; none without "exact"."""
    if "exact" not in work.spec.presets:
        return {}
    return {EXACT: work.tuned("TAFT", "exact", tokens=work.tokens()), HEAD: _head(work, 1)}


def of_shards(work: Workbench, shards: int) -> dict[str, Setting]:
    """By name, what is solved shard by shard besides TAFT; none without "exact"."""
    return {HEADS: _head(work, shards)} if "exact" in work.spec.presets else {}


def _head(work: Workbench, shards: int) -> Setting:
    """The head alone, with the loss of the composed models."""
    spec = work.recipe.objective
    at = Setting("FC", 0.0, loss=spec.loss, kappa=spec.kappa)
    return work.tuned("FC", "exact", shards, template=at, resets=(False,))
