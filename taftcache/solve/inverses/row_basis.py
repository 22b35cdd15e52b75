"""The rows' kernel below the head, diagonal: an orthonormal basis of the rows, or of the part of them that it sees."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.solve.inverses.body_kernel import Kernels

ROUNDING = 1e-6  # of the trace, in an eigendecomposition in float32


class RowBasis(NamedTuple):
    """B = U diag(σ) Uᵀ and H = U h: ``rows`` U [N,r] in a problem's precision, ``sigma`` [r] and ``head`` [r,h].

    What is orthogonal to U is seen by neither B nor H.
    """

    rows: Tensor
    sigma: Tensor
    head: Tensor


def row_basis(kernels: Kernels, row: Tensor, dtype: torch.dtype, least: float = 0.0) -> RowBasis:
    """Of √D̄ κ √D̄ and of √D̄ times the head's input, for √D̄ = ``row`` [N,1] in float64.

    Args:
        kernels: of N rows.
        row: what each counts.
        dtype: of U.
        least: eigenvalues below this have no part in anything: where those of a matrix κ have smaller errors in
            float32, it is decomposed in that, in half the time.
    """
    if kernels.factored:
        joined = torch.cat([kernels.body, kernels.head], 1).mul_(row.to(kernels.body))
        return _of_factors(joined, kernels.body.shape[1], dtype)
    body = kernels.body.double().mul_(row).mul_(row.T)
    if body.trace() * ROUNDING < least:
        body = body.float()
    sigma, rows = (found.double() for found in torch.linalg.eigh(body))
    return RowBasis(rows.to(dtype), sigma.clamp_min_(0), rows.T @ (row * kernels.head.double()))


def _of_factors(joined: Tensor, m: int, dtype: torch.dtype) -> RowBasis:
    """B = FFᵀ for ``joined`` = F [N,m] and H beside it: first a basis of all their columns, and in it B again."""
    outer = (joined.T @ joined).double()
    # H's columns may be far shorter than F's, and would be cut off with what is rounding of theirs.
    sizes = outer.diagonal().sqrt().clamp_min(1e-300)
    part = torch.cat([sizes.new_full((m,), sizes[:m].max().item()), sizes[m:]])
    squares, directions = torch.linalg.eigh(outer / part / part[:, None])
    seen = squares > 10 * torch.finfo(joined.dtype).eps * squares[-1]
    squares, directions = squares[seen], directions[:, seen]
    across = directions / squares.sqrt() / part[:, None]  # the basis is joined @ across
    inside = across.T @ outer[:, :m]
    sigma, turn = torch.linalg.eigh(inside @ inside.T)
    across = across @ turn
    rows = joined @ across.to(joined)
    return RowBasis(rows.to(dtype), sigma.clamp_min_(0), across.T @ outer[:, m:])
