"""The exact inverse Hessian of a small problem, through the kernel of its rows.

With J̃ = √(D/N) J, which has M = N·K rows, H = J̃ᵀJ̃ + λI and by Woodbury

    H⁻¹ v = ( v − J̃ᵀ (J̃J̃ᵀ + λI)⁻¹ J̃ v ) / λ

so that one Cholesky of an M×M matrix replaces hundreds of passes. The kernel JJᵀ (the empirical tangent kernel) comes
from the rank-one factors of the rows' gradients, Σ (δ·δ')(x·x'), at a cost of M² times the width instead of M² times
the number of parameters. Where all rows of tokens reach the logits, or nothing is known of the gradients, they are
written out: that costs about K/2 passes and M·P numbers. If these are too many, some rows' gradients are held at a time
while those of the rows after them go by, for up to (C + 1)/2 times as many passes with C such parts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taftcache.objective.cotangent import unit
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.tangent.factors import Gradients, RankOne, joined
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSubset

LARGEST_KERNEL = 8192  # M: three matrices of 0.5 GB in float64, and a Cholesky of some seconds
LARGEST_WRITTEN = 2048  # M where gradients are written out, which takes a few seconds at most
LARGEST_FACTORS = 2 << 30  # bytes of the K·N rows' factors, or of their gradients
PARTS = 4  # times as many bytes of gradients if some are written out at a time: M²P ≤ 2·10¹² then, a minute at most
CANCELLED = 1e-10  # fraction of two steps' squares below which the square of their sum is rounding


def kernel_inverse_fits(problem: Problem, parts: int = 1) -> bool:
    """Whether H⁻¹ can be had exactly: the kernel of all rows and classes, and what it is made of, is within the limits
    above.

    Args:
        problem: of any loss.
        parts: in how many parts gradients may be written out.
    """
    operator = problem.operator
    rows = operator.rows * operator.classes
    if operator.tail.rank_one:
        return rows <= LARGEST_KERNEL and rows * operator.tail.factor_width * 8 <= LARGEST_FACTORS
    return rows <= LARGEST_WRITTEN and rows * operator.layout.size * 8 <= parts * LARGEST_FACTORS


def writing_cost(rows: int, classes: int, parameters: int) -> tuple[float, float]:
    """About how many passes, and how many multiplications in a product of matrices, ``kernel`` takes for gradients that
    are written out; zeros if they are too many."""
    logits, numbers = rows * classes, rows * classes * parameters
    if logits > LARGEST_WRITTEN or 8 * numbers > PARTS * LARGEST_FACTORS:
        return 0.0, 0.0
    parts = max(1, -(-8 * numbers // LARGEST_FACTORS))
    return classes * (parts + 1) / 4, logits * numbers * (1 if parts == 1 else (parts + 1) / (2 * parts))


class DualInverse:
    """H⁻¹ of a problem, exact up to float64 rounding; ``apply`` costs two passes.

    Args:
        problem: quadratic, in float64.
        matrix: its ``kernel``, which is written over.

    Raises:
        SolveError: a λ below what rounding takes from the kernel.
    """

    def __init__(self, problem: Problem, matrix: Tensor | None = None) -> None:
        self._problem = problem
        inner = kernel(problem) if matrix is None else matrix
        labels = torch.cat([labels for _, labels in problem.operator.blocks()])
        self._root = problem.diagonal(labels, inner).sqrt()  # √(ωD/N) [N,K]
        root = self._root.T.reshape(-1)
        inner.mul_(root[:, None]).mul_(root[None, :])
        self._trace = inner.diagonal().sum()
        inner.diagonal().add_(problem.ridge)
        self._factor = cholesky(inner, problem.ridge)

    def apply(self, vector: Tensor) -> Tensor:
        """H⁻¹ v [P]."""
        problem = self._problem
        back = problem.adjoint(self._root * self.solve(self._root * problem.forward(vector)))
        return ((vector - back) / problem.ridge).to(vector)

    def solve(self, values: Tensor) -> Tensor:
        """(J̃J̃ᵀ + λI)⁻¹ of ``values`` [N,K]."""
        N, K = self._root.shape
        return torch.cholesky_solve(values.T.reshape(-1, 1), self._factor).view(K, N).T

    def own(self) -> Tensor:
        """M_nn [N,K,K], each row's own block of M = (J̃J̃ᵀ + λI)⁻¹."""
        N, K = self._root.shape
        inverse = torch.cholesky_inverse(self._factor).view(K, N, K, N)
        return inverse.diagonal(dim1=1, dim2=3).permute(2, 0, 1).contiguous()

    def rounding(self, own: Tensor) -> float:
        """About what fraction of what a row decides rounding can take: what the kernel is rounded by, times the largest
        entry of its inverse; ``own``: as by ``own``."""
        largest = own.diagonal(dim1=1, dim2=2).max() * self._trace
        return float(torch.finfo(torch.float64).eps * largest)

    def moves(self, rows: Tensor, dual: Tensor, shift: Tensor | None = None) -> Tensor:
        """‖Δw₋ₙ − Δw‖ [n] for some ``rows``, from their a = (J̃J̃ᵀ + λI)⁻¹b [n,K]; see ``methods.decisive``.

        J̃ᵀ(J̃J̃ᵀ + λI)⁻¹ times a ``shift`` [N,K] is added to each Δw₋ₙ − Δw first; see ``solve.leave_one_out``.
        """
        N, K = self._root.shape
        n = len(rows)
        places = (rows[:, None] + N * torch.arange(K)).reshape(-1).to(self._factor.device)
        if n < N:
            units = self._factor.new_zeros(K * N, n * K)
            units[places, torch.arange(n * K)] = 1
            columns = torch.cholesky_solve(units, self._factor)
        else:  # at a third of the cost
            columns = torch.cholesky_inverse(self._factor)[:, places]
        own = columns[places].view(n, K, n, K).diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # M_nn [n,K,K]
        each = columns.view(K * N, n, K).transpose(0, 1)
        s = torch.linalg.solve(own, dual.to(own))
        inner = own - self._problem.ridge * (each.mT @ each)
        squares = torch.einsum("nk,nkl,nl->n", s, inner, s)
        if shift is not None:
            c = self.solve(shift)
            Gc = shift - self._problem.ridge * c
            squares = square_of_sum(squares + (c * Gc).sum(), (s * self.solve(Gc)[rows]).sum(1))
        return squares.clamp_min(0).sqrt()


def square_of_sum(squares: Tensor, product: Tensor) -> Tensor:
    """‖a + b‖² from ‖a‖² + ‖b‖² and a·b; 0 where they cancel to what rounding leaves."""
    whole = squares + 2 * product
    return torch.where(whole > CANCELLED * squares, whole, 0)


def kernel(problem: Problem) -> Tensor:
    """JJᵀ [K·N, K·N] in float64, class-major: entry (k·N + n, l·N + m) is J_k(x_n)·J_l(x_m)."""
    operator = problem.operator
    N, K = operator.rows, operator.classes
    if not operator.tail.rank_one:
        if not kernel_inverse_fits(problem):
            return _in_parts(operator)
        J = _jacobian(operator).flatten(0, 1)
        return J @ J.T
    blocks = list(operator.blocks())
    per_class: list[Gradients] = []
    for k in range(K):
        parts: list[Gradients] = []
        for state, _ in blocks:
            matrices, direct = operator.factors(state, unit(state.logits, k))
            parts.append(([m for m in matrices if isinstance(m, RankOne)], direct))
        per_class.append(joined(parts))
    total = torch.zeros(K * N, K * N, dtype=operator.dtype, device=operator.device)
    product = torch.empty_like(total)  # written over by every term: fresh pages would cost as much as the sums
    for same in zip(*(matrices for matrices, _ in per_class), strict=True):
        for h in range(same[0].out.shape[1]):
            fixed = same[0].into if same[0].follows == "out" else same[0].out
            rows = torch.cat([(m.out if m.follows == "out" else m.into)[:, h] for m in same])
            gram = fixed[:, h] @ fixed[:, h].T  # [N,N], the same for every pair of classes
            if same[0].bias is not None:
                gram += 1
            torch.mm(rows, rows.T, out=product)
            total.view(K, N, K, N).addcmul_(product.view(K, N, K, N), gram[None, :, None, :])
    for direct in zip(*(direct for _, direct in per_class), strict=True):
        rows = torch.cat([part.rows for part in direct])
        total.addmm_(rows, rows.T)
    return total


def _jacobian(operator: TangentOperator) -> Tensor:
    """J [K,N,P], written out."""
    shape = operator.classes, operator.rows, operator.layout.size
    found = torch.empty(shape, dtype=operator.dtype, device=operator.device)
    start = 0
    for state, labels in operator.blocks():
        for k in range(operator.classes):
            found[k, start : start + len(labels)] = operator.gradients(state, unit(state.logits, k))
        start += len(labels)
    return found


def _in_parts(operator: TangentOperator) -> Tensor:
    """JJᵀ as in ``kernel``, from the gradients of some rows at a time and, one class after the other, of those after
    them."""
    N, K = operator.rows, operator.classes
    total = torch.empty(K, N, K, N, dtype=operator.dtype, device=operator.device)
    each = max(1, LARGEST_FACTORS // (8 * K * operator.layout.size))
    for start in range(0, N, each):
        stop = min(start + each, N)
        held = _jacobian(operator.over([RowSubset(operator.sources, np.arange(start, stop))])).flatten(0, 1)
        total[:, start:stop, :, start:stop] = (held @ held.T).view(K, stop - start, K, stop - start)
        at = stop
        for state, labels in operator.over([RowSubset(operator.sources, np.arange(stop, N))]).blocks():
            rows = slice(at, at + len(labels))
            for k in range(K):
                products = held @ operator.gradients(state, unit(state.logits, k)).T
                total[:, start:stop, k, rows] = products.view(K, stop - start, len(labels))
            at = rows.stop
        total[:, stop:, :, start:stop] = total[:, start:stop, :, stop:].permute(2, 3, 0, 1)
        del held  # before the next part's are made beside it
    return total.view(K * N, K * N)
