"""The Cholesky factor of a matrix that a ridge makes definite."""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.errors import SolveError


def cholesky(matrix: Tensor, ridge: float, *, out: Tensor | None = None) -> Tensor:
    """L [..,n,n] with LLᵀ = ``matrix``, whose eigenvalues are at least ``ridge`` up to rounding.

    Args:
        matrix: only its lower triangle is read.
        ridge: λ.
        out: where L is written; ``matrix`` itself, if stored column by column, saves a copy.

    Raises:
        SolveError: rounding took more than λ from an eigenvalue, or a number is not finite.
    """
    largest = matrix.diagonal(dim1=-2, dim2=-1).abs().max()  # of all entries too, if no eigenvalue is below 0
    failed = torch.empty(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)
    factor = torch.empty_like(matrix.mT).mT if out is None else out
    torch.linalg.cholesky_ex(matrix, out=(factor, failed))
    if bool((failed != 0).any()):
        raise below_rounding(ridge, largest.item())
    return factor


def below_rounding(ridge: float, largest: float) -> SolveError:
    """The error for a ``ridge`` that is lost in the rounding of the matrix's ``largest`` entry."""
    return SolveError(
        "rounding is larger than the ridge: what is to be solved is not positive definite",
        got=f"ridge {ridge:.2g} beside entries of up to {largest:.2g}",
        do="raise the ridge, or lower alpha and the weights of classes",
    )


def solved(root: Tensor, right: Tensor) -> Tensor:
    """(LLᵀ)⁻¹ times ``right`` [..,n,m] for L = ``root`` [..,n,n], which ``torch.cholesky_solve`` would copy first."""
    turned = torch.linalg.solve_triangular(root, right, upper=False)
    found: Tensor = torch.linalg.solve_triangular(root.mT, turned, upper=True, out=turned)
    return found
