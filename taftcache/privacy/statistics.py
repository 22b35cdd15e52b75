"""Noisy sufficient statistics for the head: features' second moment and class sums, in one release.

With x′ = x/F cut to norm 1, A = Σ x′x′ᵀ [d,d] and B = Σ e_y x′ᵀ [K,d] are all that least squares needs (DP-LS), and A
alone preconditions descent (DP-FC; both Mehta, Krichene et al., 2023). A row adds an outer product to each, so they are
a clipped sum like any other: of the vector (√a A, √(1−a) B), to which each row contributes a norm of at most 1.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from taftcache.privacy.clipping import ClippedSum
from taftcache.privacy.grid import Grid
from taftcache.privacy.network import TangentNetwork
from taftcache.privacy.noise import Bits, discrete_gaussian
from taftcache.tangent.base import Base
from taftcache.tangent.factors import RankOne


def feature_norm(base: Base) -> float:
    """F = √(Σγ² + Σβ²), about the norm of the head's input, from the final LayerNorm's public affine."""
    config = base.config
    if not config.final_norms:
        return sqrt(config.width)
    return sqrt(sum(base.state[name].double().square().sum().item() for name in config.final_norms))


def statistics_sum(
    network: TangentNetwork, grid: Grid, norm: float, second_moment: float
) -> tuple[ClippedSum, int, int]:
    """The clipped sum [d² + K·d] of √a A and √(1−a) B in units of ``grid``, whose C is 1; with d and K.

    second_moment: a; 1 leaves B out.
    """
    config = network.operator.base.config
    d, K = config.width, config.classes
    total = ClippedSum(d * d + K * d, grid, network.operator.device)
    eye = torch.eye(K, dtype=torch.float64, device=network.operator.device)
    for state, labels, live in network.states():
        x = state.feature.double() / norm
        x = (x / x.norm(dim=1, keepdim=True).clamp(min=1.0))[:, None]
        outer = [RankOne(slice(0, d * d), None, x * sqrt(second_moment), x)]
        if second_moment < 1:
            outer.append(RankOne(slice(d * d, d * d + K * d), None, eye[labels][:, None] * sqrt(1 - second_moment), x))
        total.add(outer, [], live)
    return total, d, K


def release_statistics(
    network: TangentNetwork, grid: Grid, norm: float, bits: Bits, second_moment: float
) -> tuple[Tensor, Tensor]:
    """Noisy A [d,d], made symmetric, and B [K,d], in float64."""
    total, d, K = statistics_sum(network, grid, norm, second_moment)
    exact = total.total().cpu()
    noisy = (exact + torch.from_numpy(discrete_gaussian(len(exact), grid.width, bits))).double() * grid.unit
    A = noisy[: d * d].view(d, d) / sqrt(second_moment)
    B = noisy[d * d :].view(K, d) / (sqrt(1 - second_moment) if second_moment < 1 else 1.0)
    return (A + A.T) / 2, B


def noise_level(grid: Grid, d: int, second_moment: float) -> float:
    """About the spectral norm of the noise in A: σ √(2d) for a symmetric matrix whose entries have variance σ²/2."""
    return grid.multiplier * grid.sensitivity * sqrt(2 * d / second_moment)


def least_squares(A: Tensor, B: Tensor, ridge: float) -> Tensor:
    """W = B (A + ridge·I)⁻¹ [K,d], with the eigenvalues of A that noise made negative set to zero."""
    values, vectors = torch.linalg.eigh(A)
    weight: Tensor = (B @ vectors) / (values.clamp(min=0.0) + ridge) @ vectors.T
    return weight
