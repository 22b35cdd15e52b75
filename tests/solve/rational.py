"""Small quadratic problems whose optimum is known exactly: rational arithmetic on the very floats of the problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.tangent.operator import RowSum


class Layout:
    def __init__(self, size: int) -> None:
        self.size = size


class Table:
    """An operator whose J [N,K,P] is a table; two blocks of rows."""

    def __init__(self, J: Tensor, logits: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
        self.J, self.f0, self.y = J.to(dtype), logits.to(dtype), labels
        self.rows, self.classes, P = J.shape
        self.layout, self.dtype, self.device, self.passes = Layout(P), dtype, "cpu", 0

    def _parts(self) -> Iterator[slice]:
        half = max(1, self.rows // 2)
        yield from (part for part in (slice(0, half), slice(half, self.rows)) if part.start < part.stop)

    def accumulate(self, vector, respond, onto=None):
        return self.sums(RowSum(vector, respond, onto))[0]

    def sums(self, *asked):
        self.passes += 1
        return [self._sum(*each) for each in asked]

    def _sum(self, vector, respond, onto):
        onto = torch.zeros(self.layout.size, dtype=self.dtype) if onto is None else onto
        for part in self._parts():
            change = None if vector is None else self.J[part] @ vector.to(self.dtype)
            onto += torch.einsum("nkp,nk->p", self.J[part], respond(self.f0[part], change, self.y[part]))
        return onto


@dataclass
class Exact:
    """F(Δw) = ½ΔwᵀHΔw + gᵀΔw + const with rational entries."""

    H: list[list[Fraction]]
    g: list[Fraction]

    def gradient(self, x: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, x, strict=True)), g) for row, g in zip(self.H, self.g, strict=True)]

    def solve(self, right: list[Fraction]) -> list[Fraction]:
        """H⁻¹ right by elimination."""
        rows = [[*row, value] for row, value in zip(self.H, right, strict=True)]
        for i in range(len(rows)):  # H is positive definite: no pivot is zero
            for j in range(i + 1, len(rows)):
                factor = rows[j][i] / rows[i][i]
                rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
        x: list[Fraction] = [Fraction(0)] * len(rows)
        for i in reversed(range(len(rows))):
            known = sum((rows[i][j] * x[j] for j in range(i + 1, len(rows))), Fraction(0))
            x[i] = (rows[i][-1] - known) / rows[i][i]
        return x


def norm(x: list[Fraction]) -> float:
    return root(sum((v * v for v in x), Fraction(0)))


def root(square: Fraction) -> float:
    """√ to double precision even where the square under- or overflows a float."""
    if square == 0:
        return 0.0
    shift = (square.denominator.bit_length() - square.numerator.bit_length()) // 2
    return sqrt(float(square * Fraction(4) ** shift)) * 2.0**-shift


def fractions(vector: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in vector.tolist()]


def draw(seed: int) -> tuple[Problem, Problem, Exact]:
    """A problem in float32 and in float64, and in rationals: rank-deficient, badly scaled, from a float16 cache."""
    g = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=g, dtype=torch.float64).item()

    N, K, P = (int(torch.randint(a, b, (), generator=g)) for a, b in ((1, 6), (2, 4), (1, 7)))
    rank = int(torch.randint(1, P + 1, (), generator=g))
    J = torch.randn(N, K, rank, generator=g, dtype=torch.float64) @ torch.randn(rank, P, generator=g).double()
    J = J.to(torch.float16).double() * 2.0 ** round(uniform(-20, 20))  # 1e±6, exact as floats
    if seed % 3 == 0:
        J = J * 2.0 ** torch.randint(-10, 11, (P,), generator=g).double()  # columns of unlike scales
    logits = torch.randn(N, K, generator=g).to(torch.float16).double()
    labels = torch.randint(0, K, (N,), generator=g)
    loss = RSL(alpha=[1.0, 0.5, 4.0][seed % 3], kappa=[1.0, 15.0][seed % 2])
    ridge = 10 ** uniform(-8, 0)
    problems = [Problem(Table(J, logits, labels, d), loss, ridge) for d in (torch.float32, torch.float64)]
    D = [[Fraction(2 * loss.alpha if k == y else 2) / K / N for k in range(K)] for y in labels.tolist()]
    rows = [[fractions(J[n, k]) for k in range(K)] for n in range(N)]
    miss = [
        [Fraction(logits[n, k].item()) - (Fraction(loss.kappa) if k == labels[n] else 0) for k in range(K)]
        for n in range(N)
    ]
    at = [(n, k) for n in range(N) for k in range(K)]
    H = [
        [sum((D[n][k] * rows[n][k][i] * rows[n][k][j] for n, k in at), Fraction(ridge) * (i == j)) for j in range(P)]
        for i in range(P)
    ]
    gradient = [sum((D[n][k] * rows[n][k][i] * miss[n][k] for n, k in at), Fraction(0)) for i in range(P)]
    return *problems, Exact(H, gradient)
