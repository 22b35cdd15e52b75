"""A quadratic problem at several λ, near enough to choose by, but not solved: in one run in the space of the rows; for
a head with many rows whose classes each have their own D, in runs that share their passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.solve.inverses.class_kernel import ClassKernel, kernel_product
from taftcache.solve.inverses.head_moments import HeadMoments, flat, groups, head_moments, own_rows
from taftcache.solve.methods.basis import Basis
from taftcache.solve.methods.row_space import row_residual
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import check_finite

# At which places of the sorted λ directions are made, and what fraction of them. Directions made under the least λ
# alone do not serve the larger ones: for 1,145 rows of digits the loss at 10⁻³ came out as 19.4, where it is 12.4. Made
# like this it comes out as 13.0, and at 10⁻⁶ as 7.2, where it is 6.4.
MADE_AT = ((2 / 3, 0.2), (1 / 3, 0.4), (1 / 6, 0.4))
NEAR = 1e-6  # relative norm of what is left of a head's ∇F, in the metric of the common matrix
STEPS = 60  # of conjugate gradients for a head, at most; α = 100 takes half of them


def ridge_deltas(pair: ProblemPair, ridges: Sequence[float], steps: int) -> list[Tensor]:
    """Δw(λ) [P] for every λ from ``steps`` directions: each minimises its own F over the same subspace.

    One pass for each direction, however many λ there are, and half a pass for each λ to form Δw.

    Args:
        pair: the problem; its own λ should be the least.
        ridges: λ > 0, increasing.
        steps: directions.
    """
    inner, exact = pair
    blocks = [(exact.logits(state.logits, None), labels) for state, labels in exact.operator.blocks()]
    wide, b = row_residual(exact, *(torch.cat(parts) for parts in zip(*blocks, strict=True)))
    check_finite(b, "logits of the base point")
    dtype, ridge = inner.operator.dtype, inner.ridge
    scale, residual = wide.to(dtype), b.to(dtype)
    turns = [ridges[round(where * (len(ridges) - 1))] for where, part in MADE_AT for _ in range(round(part * steps))]
    kernel = ClassKernel(replace(inner, ridge=turns[0]), scale, part=1.0)
    basis = Basis(steps, residual.numel(), dtype, residual.device)
    rounded = residual.reshape(-1).double().clone()
    for last, at in pairwise([turns[0], *turns]):
        if at != last:
            kernel.shift(at)
        direction, _ = kernel.apply(residual)
        if not basis.add(direction, kernel_product(inner, scale, direction), ridge):
            break
        z, y = basis.last
        residual.view(-1).sub_(y + ridge * z, alpha=torch.dot(y.double(), residual.reshape(-1).double()).item())
    z, y = basis.known
    outer, crossed = y.double() @ y.double().T, z.double() @ y.double().T
    duals = [
        torch.linalg.lstsq(outer + 0.5 * at * (crossed + crossed.T), (y.double() @ rounded)[:, None]).solution[:, 0]
        for at in ridges
    ]
    return [inner.adjoint(scale * (c.to(dtype) @ z).view_as(scale)).double() for c in duals]


def swept_heads(problem: Problem, ridges: Sequence[float]) -> Iterator[Tensor]:
    """Δw(λ) [P] for one λ after another, without the matrix [n,n] that ``solve_head`` sums and factors for each class.

    Class k's normal matrix is LLᵀ + E_k, where L is the Cholesky factor of λI plus what all classes have in common, and
    E_k is what the class's own D adds in the class's own rows. Conjugate gradients on I + L⁻¹E_kL⁻ᵀ, whose eigenvalues
    lie between 1 and α, take one pass a step for all classes and for as many λ as GROUP_BYTES holds factors of.

    Args:
        problem: of a quadratic loss over the head alone; its own λ has no part in it.
        ridges: in the order in which they are yielded.

    Raises:
        SolveError: as ``solve_head``, at the first λ that it refuses.
    """
    moments = head_moments(problem)
    for group in groups(len(ridges), len(moments.normal)):
        roots, refused = moments.normal.mT.repeat(group.stop - group.start, 1, 1).mT, None
        for k, ridge in enumerate(ridges[group]):
            roots[k].diagonal().add_(ridge)
            try:
                cholesky(roots[k], ridge, out=roots[k])
            except SolveError as error:  # the λ before it are solved all the same
                roots, refused = roots[:k], error
                break
        if len(roots):
            for found in _conjugate(problem, moments, roots):
                yield flat(problem, found)
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
