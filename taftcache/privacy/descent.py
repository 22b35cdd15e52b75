"""Private gradient descent: clipped sums on a grid, noise on the same grid, and nothing else that sees the rows.

    Δw ← Δw − η/N (Σ_n c_n g_n + σ ξ),   ξ discrete Gaussian

over all rows (DP-GD), or over rows that each take part with probability q (DP-SGD, with N q for N). N is a number that
may be known: the row count if neighbours replace a row, and a noisy count if they add or remove one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taftcache.objective.loss import Loss
from taftcache.privacy.clipping import ClippedSum, Clipping
from taftcache.privacy.grid import Grid
from taftcache.privacy.network import Network
from taftcache.privacy.noise import Bits, bernoulli, discrete_gaussian
from taftcache.tangent.parameters import Layout

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Descent:
    """The settings of private gradient descent: numbers that may be known.

    Args:
        grid: clip norm, sensitivity and noise of a step's sum.
        steps: T.
        learning_rate: η.
        size: N of the formula.
        rate: q; 1 for all rows at every step.
        momentum: heavy-ball momentum; it reads only what is released.
        clipping: "clip" or "normalise".
    """

    grid: Grid
    steps: int
    learning_rate: float
    size: float
    rate: float = 1.0
    momentum: float = 0.0
    clipping: Clipping = "clip"


class Whitening:
    """(A + λI)⁻¹ on the columns of the head's weight, for A a noisy, released second moment of its input.

    The eigenvalues are scaled to at most 1 after inversion, so that a learning rate means the same as without it.
    """

    def __init__(self, layout: Layout, weight: str, moment: Tensor, ridge: float) -> None:
        values, vectors = torch.linalg.eigh(moment)
        inverse = 1 / (values.clamp(min=0.0) + ridge)
        self._layout, self._weight = layout, weight
        self._matrix = (vectors * (inverse / inverse.max())) @ vectors.T

    def __call__(self, vector: Tensor) -> Tensor:
        """``vector`` [P] with the head's weight [K,d] multiplied."""
        view = self._layout.views(vector)[self._weight]
        view.copy_(view @ self._matrix)
        return vector


def descend(
    network: Network,
    loss: Loss,
    descent: Descent,
    bits: Bits,
    *,
    start: Tensor | None = None,
    whitening: Whitening | None = None,
    trace: list[Tensor] | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Δw [P] in float64 after ``descent.steps`` private steps from ``start`` (zero by default).

    Every step's noisy sum [P], in units, is appended to ``trace``: the guarantee covers all of them together.
    ``check_trained`` has already checked that the grid's integers can hold the rows.
    """
    size, grid = network.layout.size, descent.grid
    delta = torch.zeros(size, dtype=torch.float64) if start is None else start.to("cpu", torch.float64).clone()
    velocity = torch.zeros_like(delta)
    factor = -descent.learning_rate * grid.unit / (descent.size * descent.rate)

    def draw() -> Tensor:
        return torch.from_numpy(discrete_gaussian(size, grid.width, bits)) if grid.multiplier else torch.zeros(1)

    with ThreadPoolExecutor(1) as beside:  # noise depends on nothing else, so it is drawn while the rows are read
        for step in range(descent.steps):
            chosen = None if descent.rate == 1 else bernoulli(network.rows, descent.rate, bits)
            noise = beside.submit(draw)
            total = clipped_sum(network, loss, delta, descent, chosen)
            released = noise.result().add_(total) if grid.multiplier else total
            if trace is not None:
                trace.append(released)
            step_vector = released.double()
            if whitening is not None:
                step_vector = whitening(step_vector)
            velocity.mul_(descent.momentum).add_(step_vector, alpha=factor)
            delta.add_(velocity)
            if progress is not None:
                progress(step + 1)
    return delta


def clipped_sum(network: Network, loss: Loss, delta: Tensor, descent: Descent, chosen: Any = None) -> Tensor:
    """Σ_n c_n g_n at Δw in units of the grid: int64 [P], on the CPU. The only function of descent that reads rows."""
    total: ClippedSum | None = None
    for batch in network.batches(delta, chosen):
        r = loss.gradient(batch.logits, batch.labels)
        factors, direct = batch.factors(r)
        if total is None:
            total = ClippedSum(network.layout.size, descent.grid, r.device)
        total.add(factors, direct, batch.live, descent.clipping)
    return torch.zeros(network.layout.size, dtype=torch.int64) if total is None else total.total().cpu()
