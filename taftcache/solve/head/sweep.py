"""A head at several λ, near enough to choose by, but not solved: for many rows whose classes each have their own D, in
runs that share their passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.head.moments import HeadMoments, own_rows
from taftcache.solve.head.size import grouped
from taftcache.solve.inverses.cholesky import cholesky

NEAR = 1e-6  # relative norm of what is left of ∇F, in the metric of the common matrix
STEPS = 60  # of conjugate gradients, at most; α = 100 takes half of them


def swept(problem: Problem, moments: HeadMoments, ridges: Sequence[float]) -> Iterator[Tensor]:
    """W(λ) [K,n] for one λ after another, without a matrix [n,n] for each class.

    Class k's normal matrix is LLᵀ + E_k, where L is the Cholesky factor of λI plus what all classes have in common, and
    E_k is what the class's own D adds in the class's own rows. Conjugate gradients on I + L⁻¹E_kL⁻ᵀ, whose eigenvalues
    lie between 1 and α, take one pass a step for all classes and for as many λ as GROUP_BYTES holds factors of.

    Args:
        problem: of a quadratic loss over the head alone; its own λ has no part in it.
        moments: of its rows.
        ridges: in the order in which they are yielded.

    Raises:
        SolveError: as ``solve_head``, at the first λ that it refuses.
    """
    n = len(moments.normal)
    for group in grouped(dict.fromkeys(range(len(ridges)), n), n):
        roots, refused = moments.normal.mT.repeat(len(group), 1, 1).mT, None
        for k, place in enumerate(group):
            roots[k].diagonal().add_(ridges[place])
            try:
                cholesky(roots[k], ridges[place], out=roots[k])
            except SolveError as error:  # the λ before it are solved all the same
                roots, refused = roots[:k], error
                break
        if len(roots):
            yield from _conjugate(problem, moments, roots)
        if refused is not None:
            raise refused


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
        for k, extra, x in own_rows(problem, range(problem.operator.classes)):
            product[:, :, k] += (extra * (x @ turned[:, :, k].T)).T @ x
        product = torch.linalg.solve_triangular(roots, product, upper=False).add_(direction)
        step = torch.where(square > enough, square / (direction * product).sum(1, keepdim=True), 0.0)
        found.addcmul_(step, direction)
        residual.addcmul_(step, product, value=-1)
        last, square = square, residual.square().sum(1, keepdim=True)
        direction.mul_(torch.where(last > enough, square / last, 0.0)).add_(residual)
    heads: Tensor = torch.linalg.solve_triangular(roots.mT, found, upper=True).mT
    return heads
