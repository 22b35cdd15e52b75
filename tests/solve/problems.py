"""Small problems, and their dense float64 form: the oracle of every solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taftcache.objective.loss import Loss
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.solve.solution import Solution
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource
from tests.tangent.vits import Case, make_case

N, K = 40, 4
SETTINGS = (Objective, Goal, Arithmetic)


@cache
def case(vit: str = "narrow-mlp", spec: str = "keep") -> Case:
    """One of the registry's ViTs with ``N`` rows."""
    return make_case(vit, spec, n=N, classes=K)


@cache
def labels() -> np.ndarray:
    """[N], every class there, none of them as often as another."""
    return np.repeat(np.arange(K), [4, 6, 10, 20])[np.random.default_rng(0).permutation(N)]


def tokens(vit: str = "narrow-mlp", spec: str = "keep") -> np.ndarray:
    """[N,t,d] float16, as a cache holds them."""
    return case(vit, spec).tokens.numpy().astype(np.float16)


def rows(vit: str = "narrow-mlp", spec: str = "keep", sizes: Sequence[int] = (N,)) -> list[ArrayRows]:
    """The rows, cut into sources of these sizes."""
    ends = np.cumsum(sizes)[:-1]
    parts = zip(np.split(tokens(vit, spec), ends), np.split(labels(), ends), strict=True)
    return [ArrayRows(x, y) for x, y in parts]


def make_problem(
    vit: str = "narrow-mlp",
    spec: str = "keep",
    *,
    loss: RSL | None = None,
    ridge: float = 1e-2,
    dtype: torch.dtype = torch.float64,
    head: bool = False,
    memory: int = 1 << 30,
    sizes: Sequence[int] = (N,),
    repeated: bool = False,
) -> Problem:
    base = case(vit, spec).base
    layout = base.head_layout if head else base.layout
    operator = TangentOperator(
        base, rows(vit, spec, sizes), trained=layout, dtype=dtype, memory=memory, repeated=repeated
    )
    return Problem(operator, loss or RSL(alpha=1.0, kappa=5.0), ridge)


class Passes:
    """How many passes have begun, of which one is interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._at, blocks = 0, 0, TangentOperator.blocks

        def counted(operator: TangentOperator) -> Iterator[Any]:
            self.count += 1
            if self.count == self._at:
                raise KeyboardInterrupt
            yield from blocks(operator)

        monkeypatch.setattr(TangentOperator, "blocks", counted)

    def interrupt(self, at: int) -> None:
        """Count from here on, and interrupt number ``at``."""
        self.count, self._at = 0, at


def minimised(base: Base, sources: Sequence[RowSource], loss: Loss, ridge: float = 0.0, **options: Any) -> Solution:
    """``minimise`` with its settings named one by one."""
    parts = {kind: {f.name: options.pop(f.name) for f in fields(kind) if f.name in options} for kind in SETTINGS}
    objective = Objective(loss=loss, ridge=ridge, **parts[Objective])
    return minimise(
        base, sources, objective, goal=Goal(**parts[Goal]), arithmetic=Arithmetic(**parts[Arithmetic]), **options
    )


@cache
def jacobian(vit: str = "narrow-mlp", spec: str = "keep", head: bool = False) -> tuple[Tensor, Tensor]:
    """J [N·K,P] row by row from the operator's adjoint, and f₀ [N,K]."""
    operator = make_problem(vit, spec, head=head).operator
    logits: list[Tensor] = []

    def row(n: int, k: int) -> Tensor:
        def respond(f0: Tensor, change: Tensor | None, labels: Tensor) -> Tensor:
            logits[:] = [f0]
            out = torch.zeros_like(f0)
            out[n, k] = 1
            return out

        return operator.accumulate(None, respond)

    return torch.stack([row(n, k) for n in range(N) for k in range(K)]), logits[0]


@dataclass(frozen=True)
class Dense:
    """F as numbers: ∇F(Δw) = H Δw + g."""

    H: Tensor
    g: Tensor
    constant: float

    @cached_property
    def solution(self) -> Tensor:
        """Δw*."""
        return torch.linalg.solve(self.H, -self.g)

    @cached_property
    def largest(self) -> float:
        """H's largest eigenvalue."""
        return torch.linalg.matrix_norm(self.H, 2).item()

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """H's eigenvalues and eigenvectors."""
        return tuple(torch.linalg.eigh(self.H))

    def in_ball(self, radius: float) -> Tensor:
        """Δw* within ‖Δw‖ ≤ R, by bisection on the ridge in the basis of H's eigenvectors."""
        values, basis = self.spectrum
        g, x = basis.T @ self.g, self.solution
        if x.norm() <= radius:
            return x
        low, high = 1e-12, 1e6
        for _ in range(100):
            middle = (low * high) ** 0.5
            x = -basis @ (g / (values + middle))
            low, high = (middle, high) if x.norm() > radius else (low, middle)
        return x

    def gradient(self, at: Tensor) -> Tensor:
        return self.H @ at + self.g

    def value(self, at: Tensor) -> float:
        return (0.5 * at @ self.H @ at + self.g @ at).item() + self.constant


@cache
def dense(vit: str = "narrow-mlp", spec: str = "keep", *, loss: RSL, ridge: float, head: bool = False) -> Dense:
    """The same F without operator, loss class or streaming."""
    J, f0 = jacobian(vit, spec, head)
    y = torch.nn.functional.one_hot(torch.from_numpy(labels()), K).double()
    D = ((2 / K) * (1 + (loss.alpha - 1) * y)).reshape(-1)
    residual = (f0 - loss.kappa * y).reshape(-1)
    H = J.T @ (D[:, None] * J) / N + ridge * torch.eye(J.shape[1], dtype=torch.float64)
    return Dense(H, J.T @ (D * residual) / N, 0.5 * (D * residual**2).sum().item() / N)
