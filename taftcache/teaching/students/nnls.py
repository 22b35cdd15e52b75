"""Non-negative least squares from its normal equations: min_{q ≥ 0} qᵀAq − 2bᵀq for A positive semidefinite.

Block principal pivoting (Júdice and Pires 1994; Kim and Park 2011): guess which entries are positive, solve for them
exactly, exchange all that have the wrong sign, and if that goes in circles exchange one at a time. A handful of
Cholesky factorisations leads to the exact optimum, with exact zeros. At the end, the optimality conditions are
recomputed from A and b and reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taftcache.errors import SolveError

# Copies of a feature make A singular. This is added to its (unit) diagonal: so little that one refinement removes its
# effect on a regular problem, and enough for copies to share their total weight equally.
JITTER = 1e-11
REFINEMENTS = 2
SIGN = 1e-12  # a dual entry above minus this, relative to the largest of b, counts as zero
PATIENCE = 3  # block exchanges allowed without progress
LIMIT = 2000
MOST_VIOLATED = 1e-4  # allowed in the conditions, relative to the largest of b: rounding on copies stays far below


@dataclass(frozen=True)
class NonNegative:
    """The minimiser q [p] in float64, and how far the optimality conditions are from holding.

    violation: max over features of −(Aq − b)_a where q_a = 0 and |(Aq − b)_a| where q_a > 0, relative to max |b|.
    support: number of positive entries. factorisations: Cholesky factorisations made.
    """

    q: Tensor
    violation: float
    support: int
    factorisations: int


def nnls(A: Tensor, b: Tensor) -> NonNegative:
    """Solve min_{q ≥ 0} qᵀAq − 2bᵀq.

    Args:
        A: [p,p], symmetric and positive semidefinite.
        b: [p].

    Raises:
        SolveError: numbers that are not finite, or conditions that are not met where the exchanges end.
    """
    A, b = A.double(), b.double()
    if not (torch.isfinite(A).all() and torch.isfinite(b).all()):
        raise SolveError("the moments of the features are not finite", got="NaN or infinity among them")
    size = A.diagonal().clamp_min(0).sqrt()
    alive = size > 0
    unit = torch.where(alive, 1 / torch.where(alive, size, torch.ones_like(size)), torch.zeros_like(size))
    scaled, right = A * unit[:, None] * unit[None, :], b * unit
    x, count = _pivot(scaled, right)
    q = x * unit
    gradient = A @ q - b
    worst = torch.where(q > 0, gradient.abs(), (-gradient).clamp_min(0))
    violation = worst.max().item() / max(b.abs().max().item(), 1e-300) if len(b) else 0.0
    if violation > MOST_VIOLATED:
        raise SolveError(
            "the features' weights in closed form were not found",
            got=f"conditions off by {violation:.1e} after {count} factorisations",
            do='teach.prior = "aft", which learns them',
        )
    return NonNegative(q, violation, int((q > 0).sum()), count)


def _pivot(A: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """The solution for an A with unit diagonal, and how many factorisations it took."""
    floor = SIGN * max(b.abs().max().item(), 1e-300) if len(b) else 0.0
    positive = b > floor
    best, patience = len(b) + 1, PATIENCE
    x = torch.zeros_like(b)
    for count in range(1, LIMIT + 1):
        x = _solve(A, b, positive)
        gradient = A @ x - b
        wrong = torch.where(positive, x <= 0, gradient < -floor)
        number = int(wrong.sum())
        if number == 0:
            return x, count
        if number < best:
            best, patience = number, PATIENCE
            exchange = wrong
        elif patience > 0:
            patience -= 1
            exchange = wrong
        else:  # exchanging only the last wrong entry cannot go in circles
            exchange = torch.zeros_like(wrong)
            exchange[int(wrong.nonzero()[-1])] = True
        positive = positive ^ exchange
    return x.clamp_min(0), LIMIT


def _solve(A: Tensor, b: Tensor, positive: Tensor) -> Tensor:
    """x with A_PP x_P = b_P, zero elsewhere."""
    x = torch.zeros_like(b)
    P = positive.nonzero()[:, 0]
    if not len(P):
        return x
    part, right = A[P][:, P], b[P]
    factor = part.clone()
    factor.diagonal().add_(JITTER)
    factor, failed = torch.linalg.cholesky_ex(factor)
    if failed:
        factor = part.clone()
        factor.diagonal().add_(1e3 * JITTER * max(1, len(P)))
        factor = torch.linalg.cholesky(factor)
    solved = torch.zeros_like(right)
    for _ in range(1 + REFINEMENTS):
        solved = solved + torch.cholesky_solve((right - part @ solved)[:, None], factor)[:, 0]
    x[P] = solved
    return x
