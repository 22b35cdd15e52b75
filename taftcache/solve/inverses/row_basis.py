"""An orthonormal basis of the rows, or of what is seen of them, in which their kernel below the head is diagonal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.solve.inverses.body_kernel import Kernels

BLOCK = 4096  # rows that are in float64 at once
# The least eigenvalue that is kept, as a fraction of the largest: sums are in float64, of float32 numbers.
LEAST = 1e-8


class RowBasis(NamedTuple):
    """B = U diag(σ) Uᵀ and H = U h: ``rows`` U [N,r] in a problem's precision, ``sigma`` [r] and ``head`` [r,h].

    H sees nothing that is orthogonal to U, and B is ``beyond`` there, on average over all directions.
    """

    rows: Tensor
    sigma: Tensor
    head: Tensor
    beyond: float


def row_basis(kernels: Kernels, row: Tensor, dtype: torch.dtype) -> RowBasis:
    """For B = √D̄ κ √D̄ and H, √D̄ times the head's input, with √D̄ = ``row`` [N,1] in float64 and U in ``dtype``."""
    columns, m, unseen, *_ = kernels
    blocks = list(zip(columns.split(BLOCK), row.split(BLOCK), strict=True))
    if len(row) <= columns.shape[1]:
        body = kernels.body * row
        sigma, turn = torch.linalg.eigh(body @ body.T)
        return RowBasis(turn.to(dtype), sigma.clamp_min_(0), turn.T @ (kernels.head * row), 0.0)
    outer = torch.zeros(columns.shape[1], columns.shape[1], dtype=row.dtype, device=row.device)
    for part, weight in blocks:
        weighted = part * weight
        outer.addmm_(weighted.T, weighted)
    # H's columns may be far shorter than F's, and would be cut off together with F's rounding.
    sizes = outer.diagonal().sqrt().clamp_min_(1e-300)
    sizes[:m] = sizes[:m].amax() if m else 1
    squares, directions = torch.linalg.eigh(outer / sizes / sizes[:, None])
    seen = squares > LEAST * squares[-1]
    across = directions[:, seen] / squares[seen].sqrt() / sizes[:, None]  # from all columns to the basis
    inside = across.T @ outer[:, :m]
    sigma, turn = torch.linalg.eigh(inside @ inside.T)
    across = across @ turn
    rows = columns.new_empty(len(row), len(sigma), dtype=dtype)
    for onto, (part, weight) in zip(rows.split(BLOCK), blocks, strict=True):
        onto.copy_((part * weight) @ across)  # of large numbers that cancel
    beyond = (unseen * row[:, 0].square()).sum().item() / (len(row) - len(sigma))
    return RowBasis(rows, sigma.clamp_min_(0), across.T @ outer[:, m:], beyond)
