"""A head's errors on whole groups of rows that are left out, where classes differ from each other in few rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from taftcache.objective.problem import Problem
from taftcache.solve.head.at_ridge import Unseen
from taftcache.solve.head.moments import head_moments
from taftcache.solve.head.path import NEARLY, decomposed, unseen_rows
from taftcache.solve.head.terms import Seen, common_diagonal, seen

BYTES = 16 << 20  # of what rows that are left out at once have of all classes' own rows


class PathByOwnRows:
    """The head at every λ for many rows, from one decomposition for all classes and each class's own rows.

    With C = VSVᵀ made of the D that all classes have in common, s = (S + λ)^-½ and U_k [m,n] the rows of class k, each
    times the root of what its own ωD/N has beyond that (σ = 1; short of it, σ = −1), turned by V,

        A_k⁻¹ = Vs(I − σB_kᵀB_k)sVᵀ        B_k = M⁻¹U_ks        MMᵀ = I + σU_ks²U_kᵀ

    so what a group has of its own predictions takes g·n·m operations for a class and λ in place of g²·n, beside N·n·N
    for all. I + σU_ks²U_kᵀ has eigenvalues from 1 to α only.

    Args:
        problem: one that is closed, of more rows than numbers; its own λ has no part in it.

    Raises:
        SolveError: features or logits that are not finite.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, moments = problem, head_moments(problem)
        values, vectors = decomposed(moments.normal.mT[None].mT)
        self._values = values[0]  # [n]
        rows = Seen(*map(torch.cat, zip(*seen(problem), strict=True)))
        self._rows = rows._replace(x=rows.x @ vectors[0])
        self._right = moments.right @ vectors[0]
        extra = rows.weight.gather(1, rows.labels[:, None]) - common_diagonal(rows.weight, rows.labels)
        self._sign = 1 if moments.above else -1
        own = (self._sign * extra).clamp_min_(0).sqrt_() * self._rows.x
        classes = [own[rows.labels == k] for k in range(problem.operator.classes)]
        self._own = pad_sequence(classes, batch_first=True)  # [K,m,n], filled up by zeros

    def leave_groups_out(self, ridges: Sequence[float], groups: Sequence[Tensor]) -> list[Unseen]:
        """As ``PathByMoments.leave_groups_out``."""
        together = [*self._together(groups)]
        changes = [self._without(ridge, together) for ridge in ridges]
        return unseen_rows(self._problem, self._rows, ridges, changes)

    def _without(self, ridge: float, together: Sequence[Tensor]) -> Tensor:
        """By how much predictions made without a row's group are off [N,K]."""
        scale, sign, (K, m, _) = (self._values + ridge).rsqrt(), self._sign, self._own.shape
        B, x, right = self._own * scale, self._rows.x * scale, self._right * scale
        inner = sign * B @ B.mT
        inner.diagonal(dim1=1, dim2=2).add_(1)
        B = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), B, upper=False)
        head = right - sign * ((B @ right[:, :, None]).mT @ B)[:, 0]
        change: Tensor = self._rows.away - x @ head.T
        every = B.flatten(0, 1).T
        for places in together:  # [G,g]
            some = x[places]
            turned = (some.flatten(0, 1) @ every).view(*places.shape, K, m).transpose(1, 2)  # [G,K,g,m]
            left = sign * (turned @ turned.mT) - (some @ some.mT)[:, None]
            left *= self._rows.weight[places].mT[:, :, None]
            left.diagonal(dim1=2, dim2=3).add_(1 + NEARLY)
            change[places] = torch.linalg.solve(left, change[places].mT[..., None])[..., 0].mT
        return change

    def _together(self, groups: Sequence[Tensor]) -> Iterator[Tensor]:
        """Places [G,g] of groups of the same size, as many as are left out at once."""
        K, m, _ = self._own.shape
        for size in sorted({len(rows) for rows in groups}):
            alike = torch.stack([rows for rows in groups if len(rows) == size])
            yield from alike.split(max(1, BYTES // (8 * K * size * max(m, size))))
