"""The conjugate directions of H p = r: one recurrence for every solver that takes one product with H a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import nan
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Inverse(Protocol):
    """An approximate inverse M⁻¹ of a Hessian."""

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v for v [P], in the precision of v; symmetric and positive definite."""
        ...


class Direction(NamedTuple):
    """One step of the recurrence; the next step overwrites its vectors.

    vector: d [P]. product: H d [P]. curvature: dᵀHd; not above 0 if rounding has left nothing of the direction.
    rho: rᵀM⁻¹r, before the step. ratio: ρ divided by that of the previous step, 0 at the first.
    """

    vector: Tensor
    product: Tensor
    curvature: float
    rho: float
    ratio: float

    @property
    def step(self) -> float:
        """ρ / dᵀHd: how far along d the quadratic has its least value."""
        return self.rho / self.curvature


def conjugate_directions(
    product: Callable[[Tensor], Tensor], inverse: Inverse | None, residual: Tensor
) -> Iterator[Direction]:
    """d₀ = M⁻¹r₀ and d = M⁻¹r + (ρ/ρ₋)d₋ after it, with their products H d (Hestenes and Stiefel 1952, preconditioned).

    Before it asks for the next direction, the caller moves its p along d and updates ``residual``:

        p ← p + γ d        r ← r − γ H d        γ = ρ / dᵀHd

    So the caller decides how this is rounded, how far a step goes, and when to stop. Each direction costs one product.

    Args:
        product: H v for v [P].
        inverse: M⁻¹; none for plain conjugate gradients.
        residual: r [P], kept up to date in place.
    """
    y = residual if inverse is None else inverse.apply(residual)
    d, rho, ratio = y.clone(), (residual @ y).item(), 0.0
    while True:
        Hd = product(d)
        yield Direction(d, Hd, (d @ Hd).item(), rho, ratio)
        y = residual if inverse is None else inverse.apply(residual)
        rho, before = (residual @ y).item(), rho
        ratio = rho / before if before else nan  # which ends the run: no curvature is above 0 any more
        d.mul_(ratio).add_(y)


def conjugate_solution(
    product: Callable[[Tensor], Tensor], inverse: Inverse, vector: Tensor, *, tolerance: float = 0.0, steps: int
) -> Tensor:
    """About H⁻¹v [P]: the p after ``steps`` conjugate directions, or as soon as ‖v − Hp‖ ≤ tolerance·‖v‖.

    Args:
        product, inverse: as in ``conjugate_directions``.
        vector: v [P].
    """
    p, r = torch.zeros_like(vector), vector.clone()
    goal = tolerance * vector.norm()
    for at in islice(conjugate_directions(product, inverse, r), steps):
        if not at.curvature > 0:
            break
        p.add_(at.vector, alpha=at.step)
        r.sub_(at.product, alpha=at.step)
        if r.norm() <= goal:
            break
    return p
