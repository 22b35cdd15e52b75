"""The exact inverse of the curvature of a sample of the rows: a preconditioner for many rows.

With a random vector of signs ξ for each row, the gradients g = Jᵀ√D ξ have E[g gᵀ] = JᵀDJ. So n gradients G [n,P] of a
sample of rows estimate the Hessian, and the estimate's inverse comes, as in ``DualInverse``, from their kernel:

    Ĥ = GᵀG/n + σI        Ĥ⁻¹ v = ( v − Gᵀ (GGᵀ/n + σI)⁻¹ Gv / n ) / σ

Kronecker factors have the eigenvalues of H right on average and lose the many small ones; a sample has them right if
they stand above its own error. σ exceeds λ by that error: the part of a gradient that n others do not span, of mean
square t, is spread over all directions by the true H and is missing here, t/n for each of n. The pivots of a Cholesky
measure it, because each is what the gradients before it leave of one gradient. The exact kernel has one gradient for
each class of a row; with random signs instead, a kernel of the same size sees K times as many rows.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from taftcache.objective.cotangent import random_signs
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.tangent.factors import Direct, RankOne, add_gram
from taftcache.tangent.rows import RowSubset

GRADIENTS = 8192  # n at most: a kernel of 256 MB, and a Cholesky of a few seconds on two cores
PROBES = 2  # gradients for each row, at least: two of one row do nearly what those of two rows do, at half the price
# Rows of the problem for each gradient, at least. What is built must cost less than the passes it saves: at 5,000 to
# 16,000 rows of ten classes a solve with a gradient for two rows takes half to two thirds as long as with one for four.
ROWS_EACH = 2
# For a head, n³ over rows times weights, at most: its passes are so cheap that a kernel costs more than it saves. On
# 16,000 to 50,000 rows of 3 to 192 columns and 3 to 60 classes, fits took 1.5 to 3 times as long with 100, and 15 times
# with 8,192 gradients for any head.
OF_HEAD = 20
LEAST_ROWS = 4096
LARGEST_FACTORS = LARGEST_STATES = 1 << 30  # bytes of the gradients' factors; of prepared rows, kept between products


def sampled_fits(problem: Problem) -> bool:
    """Whether there are many rows, and each one's gradient is a few outer products."""
    tail = problem.operator.tail
    return tail.rank_one and problem.operator.rows >= LEAST_ROWS


class SampledInverse:
    """(Ĥ + σI)⁻¹ from a few thousand gradients; ``apply`` costs two half passes over the rows of the sample.

    Deterministic: signs come from a fixed seed, and the sample is spread evenly over the rows in their order.

    Args:
        problem: with λ > 0.
        gradients: n, by default from the number of rows.

    ``sample`` is the problem of the rows that were taken, ``probes`` the vectors √D ξ, each [m,K] for its m rows, and
    ``sigma`` is σ.
    """

    def __init__(self, problem: Problem, gradients: int | None = None) -> None:
        operator = problem.operator
        n = gradients or _count(problem)
        rows = min(n // PROBES, operator.rows, LARGEST_STATES // (6 * prod(operator.base.config.shape)))
        self.sample = _picked(problem, np.arange(rows) * operator.rows // rows)
        generator = torch.Generator().manual_seed(0)
        parts: list[tuple[list[RankOne], list[Direct]]] = []
        self.probes: list[Tensor] = []
        for _ in range(n // rows):
            start, probes = 0, []
            for state, labels in self.sample.operator.blocks():
                signs = random_signs(state.logits, generator)
                probes.append(self.sample.root(state.logits, labels, start, signs))
                matrices, small = self.sample.operator.factors(state, probes[-1])
                parts.append(([m for m in matrices if isinstance(m, RankOne)], small))
                start += len(labels)
            self.probes.append(torch.cat(probes))
        n = rows * len(self.probes)
        self._kernel = self.probes[0].new_zeros(n, n)
        add_gram(self._kernel, parts)
        self._kernel.div_(n)
        self.shift(problem.ridge)

    def shift(self, ridge: float) -> None:
        """Take another λ, for the price of a Cholesky."""
        kernel = self._kernel
        rounding = 4 * torch.finfo(kernel.dtype).eps * kernel.trace().item()
        self.sigma = ridge + rounding + _missed(kernel, ridge + rounding)
        shifted = kernel.clone()
        shifted.diagonal().add_(self.sigma)
        self._root = cholesky(shifted, self.sigma)

    def apply(self, vector: Tensor) -> Tensor:
        """(Ĥ + σI)⁻¹ v [P]."""
        operator = self.sample.operator
        v = vector.to(operator.device, operator.dtype)
        change = self.sample.forward(v)  # [m,K]
        image = torch.cat([(change * probe).sum(1) for probe in self.probes])
        solved = torch.cholesky_solve(image[:, None].to(self._root), self._root).to(v) / len(self._root)
        values = sum(a * probe for a, probe in zip(solved.split(len(change)), self.probes, strict=True))
        return ((v - self.sample.adjoint(values)) / self.sigma).to(vector)


def _count(problem: Problem) -> int:
    """n, a power of two, from the number of rows, the memory that their gradients' factors take, and a head's size."""
    operator = problem.operator
    held = LARGEST_FACTORS // (4 * operator.tail.factor_width)
    if operator.head_alone:
        held = min(held, int((OF_HEAD * operator.rows * operator.layout.size) ** (1 / 3)))
    return 1 << min(GRADIENTS, operator.rows // ROWS_EACH, held).bit_length() - 1


def _picked(problem: Problem, index: np.ndarray) -> Problem:
    """The problem of some rows, which stay in memory; with their weights, at their point."""
    whole = problem.operator
    operator = whole.over([RowSubset(whole.sources, index)], memory=LARGEST_STATES, repeated=True)
    weights, point = problem.weights, problem.point
    if weights is not None and weights.by_sample is not None:
        weights = replace(weights, by_sample=weights.by_sample[index])
    if point is not None:
        point = point[torch.from_numpy(index).to(whole.device)]
    return replace(problem, operator=operator, weights=weights, point=point)


def _missed(kernel: Tensor, ridge: float) -> float:
    """t/n: what half of the gradients leave of the others, from the pivots of ``kernel`` = GGᵀ/n."""
    half = len(kernel) // 2
    part = kernel[:half, :half].clone()
    part.diagonal().add_(ridge)
    pivots = cholesky(part, ridge).diagonal().double().square() - ridge
    return max(0.0, float(pivots[-half // 2 :].mean()))
