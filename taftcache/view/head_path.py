"""The regularisation path of the head alone: every λ from one eigendecomposition of the features' second moment."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from taftcache.errors import SolveError
from taftcache.stages.look.row_table import RowTable
from taftcache.stages.look.scoring import Scorer

if TYPE_CHECKING:
    from torch import Tensor

# λ from 1e-8 to 1e2, four a decade.
GRID = tuple(10 ** (k / 4) for k in range(-32, 9))


class PathPoint(NamedTuple):
    """One λ: ‖Δw‖ of the head that minimises F over all shards, and its accuracy on training and held-out rows."""

    ridge: float
    norm: float
    train: float
    held_out: float | None


def head_path(table: RowTable, scorer: Scorer, stop: Event | None = None) -> list[PathPoint]:
    """Two passes over the features. With x̃ = [feature; 1] the head at λ is −R (A + λI)⁻¹, A = 2/(KN) Σ x̃x̃ᵀ.

    Raises:
        SolveError: another loss, or α ≠ 1, for which each class has its own A.
    """
    import torch

    from taftcache.objective.rsl import RSL

    if not isinstance(scorer.loss, RSL) or scorer.loss.alpha != 1 or not scorer.plain:
        raise SolveError("the head's path from one decomposition needs the square loss", got=f"{scorer.loss}")
    K, width = scorer.base.config.classes, scorer.base.config.width + 1
    held = int(table.held_out.sum())
    N = len(table) - held
    second = torch.zeros(width, width, dtype=torch.float64)
    right = torch.zeros(K, width, dtype=torch.float64)
    for role, x, z, labels in _features(table, scorer, stop):
        if role == "train":
            second += x.T @ x
            right -= scorer.loss.gradient(z, labels).T @ x
    values, axes = torch.linalg.eigh(second * (2 / (K * N)))
    along = (right / N) @ axes
    heads = torch.stack([(along / (values.clamp_min(0) + ridge)) @ axes.T for ridge in GRID])
    count = {role: torch.zeros(len(GRID), dtype=torch.float64) for role in ("train", "held-out")}
    for role, x, z, labels in _features(table, scorer, stop):
        for k, head in enumerate(heads):
            count[role][k] += ((z + x @ head.T).argmax(1) == labels).sum()
    if stop is not None and stop.is_set():
        return []
    norms = heads.flatten(1).norm(dim=1).tolist()
    rates = zip(GRID, norms, (count["train"] / N).tolist(), (count["held-out"] / max(held, 1)).tolist(), strict=True)
    return [PathPoint(ridge, norm, train, rate if held else None) for ridge, norm, train, rate in rates]


def _features(table: RowTable, scorer: Scorer, stop: Event | None) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """(role, x̃ [b,width], logits [b,K], labels [b]) of all rows, in float64."""
    import numpy as np
    import torch

    for _, shard, rows in table.steps():
        if stop is not None and stop.is_set():
            return
        state = scorer.state(table.reader.tokens(shard.name, rows))
        feature = state.feature.double().cpu()
        x = torch.cat([feature, torch.ones_like(feature[:, :1])], 1)
        labels = torch.from_numpy(np.asarray(shard.labels[rows], np.int64))
        yield shard.role, x, state.logits.double().cpu(), labels
