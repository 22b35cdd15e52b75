"""Small private problems and their dense form."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.privacy.descent import Descent, clipped_sum
from taftcache.privacy.grid import Grid
from taftcache.privacy.network import TangentNetwork
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.tangent.vits import make_case

K = 4


@cache
def base(vit: str = "narrow-mlp", spec: str = "keep") -> Base:
    """A random one-block base in float32."""
    return make_case(vit, spec, n=1, classes=K).base.to(torch.float32)


def rows(n: int, seed: int = 0, vit: str = "narrow-mlp") -> ArrayRows:
    """``n`` random rows with labels."""
    rng = np.random.default_rng(seed)
    t, d = base(vit).config.shape
    return ArrayRows(rng.normal(0.5, 2, (n, t, d)).astype(np.float32), rng.integers(0, K, n))


def take(source: ArrayRows, index: Any) -> ArrayRows:
    return ArrayRows(source.tokens[index], source.labels[index])


def network(
    source: ArrayRows,
    vit: str = "narrow-mlp",
    spec: str = "keep",
    train: Any = "full",
    dtype: torch.dtype = torch.float32,
) -> TangentNetwork:
    return TangentNetwork(base(vit, spec), [source], base(vit, spec).trained(train), dtype=dtype)


def direction(size: int, seed: int = 0, scale: float = 0.05) -> Tensor:
    """A Δw that is not zero."""
    return scale * torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def descent(clip: float = 1.0, multiplier: float = 2.0, factor: float = 1.0, **changes: Any) -> Descent:
    """``factor`` is 1 for adding and removing a row, 2 for replacing one."""
    settings: dict[str, Any] = {"steps": 3, "learning_rate": 0.1, "size": 10.0} | changes
    return Descent(Grid(clip, factor * clip, multiplier), **settings)


def total(source: ArrayRows, run: Descent, at: int = 0, **kind: Any) -> Tensor:
    """The clipped sum [P] in units, at ``direction(P, at)``."""
    net = network(source, **kind)
    return clipped_sum(net, CrossEntropy(), direction(net.layout.size, at), run)


def dense(
    source: ArrayRows, run: Descent, at: int = 0, vit: str = "narrow-mlp", spec: str = "keep", train: Any = "full"
) -> Tensor:
    """The same sum [P] in float64: each row's gradient formed by itself through the adjoint, clipped, added."""
    point = base(vit, spec)
    layout = point.trained(train)
    delta, out = direction(layout.size, at), torch.zeros(layout.size, dtype=torch.float64)
    for i in range(source.rows):
        operator = TangentOperator(point, [take(source, slice(i, i + 1))], trained=layout, dtype=torch.float64)

        def respond(f0: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            z = f0 if change is None else f0 + change
            return torch.softmax(z, 1) - torch.nn.functional.one_hot(labels, K)

        g = operator.accumulate(delta, respond)
        norm = g.norm()
        if not torch.isfinite(norm) or norm == 0:
            continue
        ratio = run.grid.clip / norm
        out += g * (ratio if run.clipping == "normalise" else ratio.clamp(max=1.0))
    return out
