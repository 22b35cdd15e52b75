"""Kernels of a batch and how far two of them are apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

SMALL = 1e-8  # added under the roots, as the authors of AFT do


def cosine_rows(features: Tensor) -> Tensor:
    """Rows [b,d] centred over the batch, each of length one."""
    return unit_rows(features - features.mean(0))


def unit_rows(features: Tensor) -> Tensor:
    """Each row brought to length one; a row of zeros stays."""
    return features / (features.square().sum(1, keepdim=True) + SMALL**2).sqrt()


def root_mean_square(a: Tensor, b: Tensor) -> Tensor:
    """√(mean (a − b)² + 1e-8)."""
    return ((a - b).square().mean() + SMALL).sqrt()


def cosine_distance(phi: Tensor, target: Tensor) -> Tensor:
    """The authors' R: √(mean_ij (K_φ − K_T)² + 1e-8) between cosine kernels of φ [b,d] and T [b,p]."""
    one, two = cosine_rows(phi), cosine_rows(target)
    return root_mean_square(one @ one.T, two @ two.T)


def gaussian_distance(phi: Tensor, target: Tensor) -> Tensor:
    """The same between exp(cos − 1), the Gaussian kernel of width 1 on rows of length one."""
    one, two = cosine_rows(phi), cosine_rows(target)
    return root_mean_square((one @ one.T - 1).exp(), (two @ two.T - 1).exp())


def relations(phi: Tensor, psi: Tensor) -> Tensor:
    """Relational distillation (Park et al. 2019): distances once and angles twice, as published (25 : 50).

    Distances are relative to their mean over the batch; angles are cosines at each vertex of each triple. Both are
    compared by the Huber loss.
    """
    return smooth_l1_loss(_distances(phi), _distances(psi)) + 2 * smooth_l1_loss(_angles(phi), _angles(psi))


def _distances(x: Tensor) -> Tensor:
    squares = x.square().sum(1)
    # Zeros on the diagonal are kept from the root, whose derivative at 0 is infinite.
    away = torch.eye(len(x), dtype=x.dtype, device=x.device)
    d = ((squares[:, None] + squares[None, :] - 2 * x @ x.T).clamp_min(SMALL) + away).sqrt() * (1 - away)
    return d / d.sum().clamp_min(SMALL) * (len(x) * (len(x) - 1))


def _angles(x: Tensor) -> Tensor:
    """cos of the angle at i between j and k, [b,b,b], from the Gram matrix alone."""
    gram = x @ x.T
    own = gram.diagonal()
    # (x_j − x_i)·(x_k − x_i) for every i, j, k
    dots = gram[None] - gram[:, :, None] - gram[:, None, :] + own[:, None, None]
    length = (dots.diagonal(dim1=1, dim2=2).clamp_min(0) + SMALL).sqrt()
    return dots / (length[:, :, None] * length[:, None, :])
