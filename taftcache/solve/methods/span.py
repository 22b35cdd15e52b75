"""The quadratic F in balls ‖Δw‖ ≤ R of growing radii, from the span of all directions so far.

Every radius asks for the same curve w(s) = (H₀ + sI)⁻¹b, H₀ = JᵀDJ/N and s = λ + ν, at the s ≥ λ with ‖w(s)‖ = R.
Directions and their products with H₀, which are what costs a pass, depend on neither s nor R. So they are kept, and
the problem of each radius is solved exactly in their span (a dense secular equation in s); what is left of the whole
problem's condition there is known without a pass, and gives the next direction under an inverse shifted to that s
(Davidson's method; of a trust region Gould, Lucidi, Roma and Toint 1999). The next radius begins with all of it.

Iterates are known in coordinates x: Δw itself, or dual vectors with Δw = J̃ᵀx, whose residual ρ = b − K̃x − sx is that
of (K̃ + sI)x = b. With z a direction, y its product and t = z (t = y for dual vectors) F's quadratic form is t·y, and
the inner product of two Δw is t·z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.solve.methods.ball import at_ball
from taftcache.solve.methods.basis import TINY
from taftcache.solve.methods.coordinates import Coordinates
from taftcache.solve.methods.refinement import REDUCTION, refine
from taftcache.solve.proof import constrained_gap, multiplier, reached
from taftcache.solve.settings import Goal, OnPass
from taftcache.solve.solution import Solution, Status
from taftcache.solve_stats import SolveStats

IDLE = 32  # directions without progress after which rounding is taken to have used them up
# Directions that are kept, and their bytes: not ``Arithmetic.memory``, on which no digit of a result may depend.
MOST, LEAST, BYTES = 96, 12, 512 << 20
APART = 2.0  # the factor by which s may be off before the inverse is shifted


class _Point(NamedTuple):
    """The start of a round, in float64: x, Δw [P], F, ∇F, b − H₀x in the coordinates of x, and ‖Δw‖."""

    x: Tensor
    value: Tensor
    objective: float
    gradient: Tensor
    rest: Tensor
    norm: float

    def best_shift(self, ridge: float) -> float:
        """The s ≥ λ that fits the point best."""
        return ridge + multiplier(self.gradient, self.value)


class Span:
    """Directions z and products y [k,n] in the products' precision, with t·y and t·z [k,k] in float64.

    Args:
        length: n.
        dual: whether t = y.
    """

    def __init__(self, length: int, dual: bool, dtype: torch.dtype, device: torch.device | str) -> None:
        size = max(LEAST, min(MOST, BYTES // (2 * length * dtype.itemsize)))
        self._z = torch.empty(size, length, dtype=dtype, device=device)
        self._y = torch.empty_like(self._z)
        self._curved = torch.zeros(size, size, dtype=torch.float64)
        self._metric = torch.zeros_like(self._curved)
        self._dual, self.count = dual, 0

    @property
    def full(self) -> bool:
        """Whether there is no place for another direction."""
        return self.count == len(self._z)

    def combined(self, along: Tensor) -> tuple[Tensor, Tensor]:
        """Σ cᵢzᵢ and Σ cᵢyᵢ [n] for c [k]."""
        c = along.to(self._z)
        return c @ self._z[: self.count], c @ self._y[: self.count]

    def tested(self, vector: Tensor) -> Tensor:
        """t·v [k], in float64."""
        tests = self._y if self._dual else self._z
        return (tests[: self.count] @ vector.to(tests)).double().cpu()

    def add(self, direction: Tensor, product: Tensor, s: float) -> bool:
        """Keep a direction, orthogonal to the others in the form t·y + s t·z; False if only rounding is left of it."""
        k, z, y = self.count, direction, product
        before = self._square(z, y, s)
        if k:
            form = torch.linalg.cholesky_ex(self._form(s)).L
            for _ in range(2):  # twice, because the first projection leaves its own rounding
                along = torch.cholesky_solve((self.tested(y) + s * self.tested(z))[:, None], form)[:, 0]
                of_z, of_y = self.combined(along)
                z, y = z - of_z, y - of_y
        after = self._square(z, y, s)
        if not after > TINY * before:
            return False
        self._z[k], self._y[k] = z / sqrt(after), y / sqrt(after)
        self.count += 1
        for matrix, vector in ((self._curved, self._y[k]), (self._metric, self._z[k])):
            matrix[k, : k + 1] = matrix[: k + 1, k] = self.tested(vector)
        return True

    def compress(self, along: Tensor) -> None:
        """Keep Σ cᵢzᵢ and the newest quarter of the directions."""
        newest = max(2, self.count // 4)
        chosen = torch.zeros(newest + 1, self.count, dtype=torch.float64)
        chosen[0] = along
        chosen[1:, -newest:] = torch.eye(newest, dtype=torch.float64)
        first = self.combined(along)
        for kept, one in zip((self._z, self._y), first, strict=True):
            kept[1 : newest + 1] = kept[self.count - newest : self.count].clone()
            kept[0] = one
        for matrix in (self._curved, self._metric):
            matrix[: newest + 1, : newest + 1] = chosen @ matrix[: self.count, : self.count] @ chosen.T
        self.count = newest + 1

    def best(self, point: _Point, radius: float, ridge: float, near: float) -> tuple[Tensor, float]:
        """c [k] and s ≥ λ: the least F over the point plus the span, within the ball.

        Args:
            point: x, from which c leads.
            radius: R.
            ridge: λ.
            near: an s > 0 not far from the one sought.
        """
        at = point.best_shift(ridge)
        residual, ahead = self.tested(point.rest - at * point.x), self.tested(point.x)
        values, vectors = torch.linalg.eigh(self._form(near))
        known = values > 1e-13 * values.amax()
        turn = vectors[:, known] / values[known].sqrt()
        metric = turn.T @ self._metric[: self.count, : self.count] @ turn
        theta, basis = torch.linalg.eigh(0.5 * (metric + metric.T))
        theta, turn = theta.clamp(0, 1 / near), turn @ basis
        # In NumPy, whose calls on a few numbers cost a tenth of what torch's do.
        r, h, form = (turn.T @ residual).numpy(), (turn.T @ ahead).numpy(), theta.numpy()

        def along(s: float) -> NDArray[np.float64]:
            found: NDArray[np.float64] = (r - (s - at) * h) / np.maximum(1 + (s - near) * form, 1e-15)
            return found

        def outside(s: float) -> bool:
            c = along(s)
            return bool(point.norm**2 + 2 * (c @ h) + form @ (c * c) > radius**2)

        s = _least(outside, ridge, near)
        return turn @ torch.from_numpy(along(s)), s

    def _form(self, s: float) -> Tensor:
        k = self.count
        return self._curved[:k, :k] + s * self._metric[:k, :k]

    def _square(self, z: Tensor, y: Tensor, s: float) -> float:
        y, z = y.double(), z.double()
        t = y if self._dual else z
        return (t @ y + s * (t @ z)).item()


def _least(outside: Callable[[float], bool], ridge: float, near: float) -> float:
    """The least s ≥ λ that is not outside."""
    if not outside(ridge):
        return ridge
    high = max(near, ridge)
    while outside(high) and high < 1e30 * near:
        high *= 4
    low = max(ridge, high / 4)
    while low > ridge and low > 1e-30 * near and not outside(low):
        low, high = max(ridge, low / 4), low
    for _ in range(50):
        middle = sqrt(low * high) if low else high / 2
        low, high = (middle, high) if outside(middle) else (low, middle)
    return high


class SpanSolver:
    """Balls of one problem, smallest first.

    Args:
        coordinates: of the iterates; the problem's own λ may be zero.
        goal: its tolerance is on the condition ∇F + νΔw = 0, relative to ‖∇F(0)‖; its passes are for each radius.
        on_pass: called after each pass.
    """

    def __init__(self, coordinates: Coordinates, goal: Goal, on_pass: OnPass | None = None) -> None:
        inner, exact = coordinates.inner, coordinates.exact
        self._to, self._exact, self._goal, self._on_pass = coordinates, exact, goal, on_pass
        objective, gradient, rest = coordinates.look(zero := exact.zero)
        self._at_zero, self._norm_at_zero = gradient, gradient.norm().item()
        self.point = _Point(torch.zeros_like(rest), zero, objective, gradient, rest, 0.0)
        self._span = Span(rest.numel(), coordinates.dual, inner.operator.dtype, inner.operator.device)
        self._s = self._near = self._shift = 0.0  # the last s, the last above 0, and that of the inverse; none yet
        self._before = 0  # passes for earlier radii
        self._radius = inf  # of the ball that is being solved
        self._along: Tensor | None = None  # where the round's directions lead, once it has ended by itself

    def solve(self, radii: Sequence[float]) -> Iterator[Solution]:
        """The solution within each of the increasing ``radii``, not proven yet; the first counts the passes that all
        share."""
        for radius in radii:
            if not self._near:
                self._s = self._near = max(self._exact.ridge, self._norm_at_zero / radius)  # ‖Δw(s)‖ ≤ ‖∇F(0)‖/s
            status = self._run(radius)
            yield self._solution(radius, status)
            self._before = self._to.passes

    def _run(self, radius: float) -> Status:
        """Rounds until the float64 condition is small enough, or for as long as passes and rounding allow."""
        # If the last ball was binding, a small residual says nothing about this larger one: one round is due at least.
        held = self.point.norm > 0 and self._s > self._exact.ridge
        target, self._radius = self._goal.tolerance * self._norm_at_zero, radius
        return refine(
            self, self._left, lambda: target, self._propose,
            max_passes=self._goal.max_passes, least=5, at_least=int(held),
        )  # fmt: skip

    @property
    def passes(self) -> int:
        """Passes for this radius."""
        return self._to.passes - self._before

    def _left(self, point: _Point) -> float:
        return constrained_gap(self._exact.ridge, point.gradient, point.value, self._radius)[1]

    def _propose(self, target: float, before: float) -> None:
        """Directions from the point until what is left seems small enough."""
        self._along = None
        self._along = self._directions(self._radius, max(0.5 * target, REDUCTION * before))

    def arrive(self) -> _Point:
        """Where the directions lead, also those of an interrupted round."""
        radius, along = self._radius, self._best(self._radius) if self._along is None else self._along
        x = self.point.x + self._span.combined(along)[0].to(self.point.x)
        value = self._to.value(x)
        norm = value.norm().item()
        if norm > radius or (norm > 0 and self._s > self._exact.ridge):  # on the surface, and not next to it
            x, value, norm = x * (radius / norm), value * (radius / norm), radius
        objective, gradient, rest = self._to.look(value)
        return _Point(x, value, objective, gradient, rest, norm)

    def _best(self, radius: float) -> Tensor:
        if not self._span.count:
            return torch.zeros(0, dtype=torch.float64)
        along, self._s = self._span.best(self.point, radius, self._exact.ridge, self._near)
        self._near = self._s or self._near / 10
        return along

    def _directions(self, radius: float, goal: float) -> Tensor:
        """Add directions; returns the c [k] to which the last one leads."""
        least, since, steps = inf, 0, 0
        while True:
            along = self._best(radius)
            s, at = self._s, self.point
            of_z, of_y = self._span.combined(along)
            residual = at.rest - s * at.x - (of_y + s * of_z).to(at.x)
            if not self._shift / APART <= self._near <= self._shift * APART:
                self._to.shift(self._near)
                self._shift = self._near
            direction, left = self._to.direction(residual)
            if left < 0.9 * least:
                least, since = left, steps
            ended = self.passes + 3 >= self._goal.max_passes or steps - since > IDLE
            if (steps + self._span.count and self._to.small(residual, goal)) or ended:
                return along
            product = self._to.product(direction)
            steps += 1
            if self._on_pass is not None:
                self._on_pass(self._to.passes, left / self._norm_at_zero)
            if self._span.full:
                self._span.compress(along)
            if not self._span.add(direction, product, self._near):
                return self._best(radius)

    def _solution(self, radius: float, status: Status) -> Solution:
        at, exact = self.point, self._exact
        taken = SolveStats(solver="one span", passes=self.passes, directions=self._span.count)
        stats = at_ball(taken, at.gradient, at.value, radius)
        gradients = self._at_zero, at.gradient
        return reached(exact, at.value, at.objective, gradients, status, stats, left=self._left(at))
