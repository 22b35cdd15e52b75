"""A head at several λ where each class has its own D and many rows: near enough to choose λ by, and no solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.solve.inverses.head_moments import HeadMoments, flat, groups, head_moments, in_full, own_rows

NEAR = 1e-6  # of what is left of ∇F, in the metric of the common matrix
STEPS = 60  # of conjugate gradients at most; α = 100 takes 50


def swept_heads(problem: Problem, ridges: Sequence[float]) -> Iterator[Tensor]:
    """Δw(λ) [P] for one λ after another, without the matrix [n,n] that ``solve_head`` sums and factors for each class.

    Class k's normal matrix is LLᵀ + E_k, with L the Cholesky factor of what all classes have in common and λI, and E_k
    what the class's own D adds in the class's own rows. Conjugate gradients on I + L⁻¹E_kL⁻ᵀ, whose eigenvalues lie
    between 1 and α, take a pass over the rows each step for all classes and as many λ as GROUP_BYTES has factors of.

    Args:
        problem: of a quadratic loss over the head alone; its own λ has no part in it.
        ridges: in the order in which they are yielded.

    Raises:
        SolveError: as ``solve_head``.
    """
    moments = head_moments(problem)
    for group in groups(len(ridges), len(moments.normal)):
        some = ridges[group]
        roots = moments.normal.mT.repeat(len(some), 1, 1).mT
        for root, ridge in zip(roots, some, strict=True):
            root.diagonal().add_(ridge)
            cholesky(root, ridge, out=root)
        for found in _conjugate(problem, moments, roots):
            yield flat(problem, in_full(found, moments.basis))


def _conjugate(problem: Problem, moments: HeadMoments, roots: Tensor) -> Tensor:
    """W [L,K,n] for L = ``roots`` [L,n,n]."""
    residual = torch.linalg.solve_triangular(roots, -moments.right.T.expand(len(roots), -1, -1), upper=False)  # [L,n,K]
    direction, found = residual.clone(), torch.zeros_like(residual)
    square = residual.square().sum(1, keepdim=True)  # [L,1,K]
    enough = NEAR**2 * square
    for _ in range(STEPS):
        if bool((square <= enough).all()):
            break
        turned = torch.linalg.solve_triangular(roots.mT, direction, upper=True)
        product = torch.zeros_like(turned)
        for k, extra, x in own_rows(problem, range(problem.operator.classes), moments.basis):
            product[:, :, k] += (extra * (x @ turned[:, :, k].T)).T @ x
        product = torch.linalg.solve_triangular(roots, product, upper=False).add_(direction)
        step = torch.where(square > enough, square / (direction * product).sum(1, keepdim=True), 0.0)
        found.addcmul_(step, direction)
        residual.addcmul_(step, product, value=-1)
        last, square = square, residual.square().sum(1, keepdim=True)
        direction.mul_(torch.where(last > enough, square / last, 0.0)).add_(residual)
    heads: Tensor = torch.linalg.solve_triangular(roots.mT, found, upper=True).mT
    return heads
