"""The coordinates of the iterates of a solve that keeps its directions: Δw itself, or dual vectors of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Protocol

from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.directions import Inverse
from taftcache.solve.inverses.class_kernel import ClassKernel, kernel_product
from taftcache.solve.methods.gauge import Gauge
from taftcache.solve.methods.row_space import fitted
from taftcache.solve.pair import ProblemPair
from taftcache.solve.proof import check_finite


class Coordinates(Protocol):
    """Coordinates x [n] of Δw, for H₀Δw = b with H₀ the Hessian without a ridge."""

    inner: Problem
    exact: Problem
    dual: bool
    passes: int

    def value(self, x: Tensor) -> Tensor:
        """Δw [P] of x, in float64."""
        ...

    def look(self, value: Tensor) -> tuple[float, Tensor, Tensor]:
        """F and ∇F [P] at Δw = ``value``, and b − H₀x [n] at its x, in one float64 pass."""
        ...

    def shift(self, s: float) -> None:
        """Make ``direction`` use an approximate inverse of H₀ + sI."""
        ...

    def direction(self, residual: Tensor) -> tuple[Tensor, float]:
        """M⁻¹r [n] for r [n], and about the norm of the ∇F that belongs to r."""
        ...

    def product(self, direction: Tensor) -> Tensor:
        """H₀z [n], in one pass."""
        ...

    def small(self, residual: Tensor, goal: float) -> bool:
        """Whether the ∇F of r, for which ``direction`` was called last, has a norm of at most ``goal``."""
        ...


class Parameters:
    """``Coordinates`` x = Δw [P], preconditioned by an inverse that is made for each s.

    Args:
        pair: the problem.
        inverse: given another λ, makes an approximate inverse Hessian.
    """

    dual = False

    def __init__(self, pair: ProblemPair, inverse: Callable[[float], Inverse]) -> None:
        (self.inner, self.exact), self.passes, self._make = pair, 0, inverse
        self._plain = replace(pair.inner, ridge=0.0)

    def value(self, x: Tensor) -> Tensor:
        return x

    def look(self, value: Tensor) -> tuple[float, Tensor, Tensor]:
        objective, gradient = self.exact.evaluate(value)
        self.passes += 1
        check_finite(gradient, f"F = {objective}")
        return objective, gradient, self.exact.ridge * value - gradient

    def shift(self, s: float) -> None:
        self._inverse = self._make(s)

    def direction(self, residual: Tensor) -> tuple[Tensor, float]:
        return self._inverse.apply(residual.to(self.inner.operator.dtype)), residual.norm().item()

    def product(self, direction: Tensor) -> Tensor:
        self.passes += 1
        return self._plain.hessian(direction)

    def small(self, residual: Tensor, goal: float) -> bool:
        return bool(residual.norm().item() <= goal)


class Duals:
    """``Coordinates`` x = a [N·K] with Δw = J̃ᵀa, preconditioned by the ``pair``'s kernel taken apart by classes."""

    dual = True

    def __init__(self, pair: ProblemPair) -> None:
        (self.inner, self.exact), self.passes = pair, 0
        self._kernel: ClassKernel | None = None
        self._energy, self._gauge = 0.0, Gauge(self._gradient_norm)

    def value(self, x: Tensor) -> Tensor:
        """As in ``Coordinates``; counted as a pass, though it is half of one."""
        self.passes += 1
        return self.exact.adjoint(self._scale * x.view_as(self._scale))

    def look(self, value: Tensor) -> tuple[float, Tensor, Tensor]:
        objective, gradient, self._scale, short, _ = fitted(self.exact, value)
        self.passes += 1
        return objective, gradient, short.reshape(-1)

    def shift(self, s: float) -> None:
        if self._kernel is None:
            self._kernel = ClassKernel(self.inner, self._scale.to(self.inner.operator.dtype))
            self.passes += self._kernel.passes
        self._kernel.shift(s)

    def direction(self, residual: Tensor) -> tuple[Tensor, float]:
        """As in ``Coordinates``; the kernel knows the norm up to a factor."""
        assert self._kernel is not None
        direction, energy = self._kernel.apply(residual.to(self.inner.operator.dtype).view_as(self._scale))
        self._energy = sqrt(energy)
        return direction.reshape(-1), self._energy

    def product(self, direction: Tensor) -> Tensor:
        self.passes += 1
        scale = self._scale.to(direction)
        return kernel_product(self.inner, scale, direction.view_as(scale)).reshape(-1)

    def small(self, residual: Tensor, goal: float) -> bool:
        return self._gauge.below(goal, residual, self._energy)

    def _gradient_norm(self, residual: Tensor) -> float:
        """‖J̃ᵀρ‖, for half a pass, counted as one."""
        scale = self._scale.to(self.inner.operator.dtype)
        self.passes += 1
        return float(self.inner.adjoint(scale * residual.to(scale).view_as(scale)).norm().item())
