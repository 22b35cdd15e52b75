"""The Cholesky factor of a matrix that a ridge makes definite."""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.errors import SolveError


def cholesky(matrix: Tensor, ridge: float) -> Tensor:
    """L [..,n,n] with LLᵀ = ``matrix``, whose eigenvalues are ``ridge`` at least but for rounding.

    Raises:
        SolveError: rounding took more than that from it, or a number is not finite.
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool((failed != 0).any()):
        raise SolveError(
            "rounding is larger than the ridge: what is to be solved is not positive definite",
            got=f"ridge {ridge:.2g} beside entries of up to {matrix.abs().max().item():.2g}",
            do="raise the ridge, or lower alpha and the weights of classes",
        )
    return factor
