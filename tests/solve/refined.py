"""Optima in extended precision: the oracle of every solver's certificate, over rows as a store holds them.

The rows are features in one of a store's formats, so that J is known to the last bit. The optimum is found in float64
and refined by Newton steps whose gradients are sums of 80-bit numbers; what that leaves is a thousandth of what float64
rounds, so a bound that is false by more than rounding's own size shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import torch

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.loss import Loss
from taftcache.objective.named import named_loss
from taftcache.objective.objective import MOST, Objective
from taftcache.objective.problem import Problem
from taftcache.solve.head.choice import path_of
from taftcache.solve.head.terms import flat
from taftcache.solve.minimise import minimise
from taftcache.solve.proof import looked_at, prove
from taftcache.solve.settings import Goal
from taftcache.solve.solution import Solution
from taftcache.solve_stats import SolveStats
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec

Long = np.ndarray  # of np.longdouble
FORMATS = (np.float16, np.float32, np.float64)
TOLERANCES = (1e-2, 1e-5, 1e-8, 1e-11, 1e-14)
NODES, SHARES = np.polynomial.legendre.leggauss(5)


@dataclass(frozen=True)
class Drawn:
    """A small problem: ``distinct`` rows of features, of each so many ``copies``, a head, a loss, λ and R."""

    base: Base
    distinct: ArrayRows
    copies: np.ndarray
    loss: Loss
    ridge: float
    radius: float | None

    @property
    def rows(self) -> ArrayRows:
        """All of them, equal ones one after the other: what rounding does to a term it does to the next as well."""
        return ArrayRows(np.repeat(self.distinct.tokens, self.copies, 0), np.repeat(self.distinct.labels, self.copies))

    @property
    def objective(self) -> Objective:
        return Objective(loss=self.loss, ridge=self.ridge, radius=self.radius, train="head")


def draw(seed: int, kind: str, ball: bool, most_copies: int = 1) -> Drawn:
    """Rank-deficient, badly scaled rows of every format, for a loss of this kind.

    Cross-entropy's are scaled less and have a larger λ: where its rows are told apart without doubt, 80 bits do not
    find the optimum either.
    """
    g = np.random.default_rng((seed, len(kind), ball))
    n, classes, width = (int(g.integers(a, b)) for a, b in ((2, 9), (2, 5), (1, 6)))
    rank = g.integers(1, width + 1)
    smooth = kind == "cross_entropy"
    scale = 2.0 ** (g.integers(-8, 9, width) + g.integers(-4, 1 if smooth else 5))
    features = (g.normal(size=(n, rank)) @ g.normal(size=(rank, width)) * scale).clip(-6e4, 6e4)
    labels = g.integers(0, classes, n).astype(np.int64)
    loss = CrossEntropy() if smooth else named_loss(kind, [1.0, 0.5, 3.0][seed % 3], [1.0, 15.0][seed % 2])
    config = TailConfig(
        path="feature", start="feature", blocks=(), shape=(1, width), rows="feature",
        width=width, classes=classes, parameters=(),
    )  # fmt: skip
    head = {
        "head.weight": torch.from_numpy(g.normal(size=(classes, width)) / width).float(),
        "head.bias": torch.from_numpy(g.normal(size=classes)).float(),
    }
    base = Base(config, head, TangentSpec(blocks=0, train="head"))
    distinct = ArrayRows(features[:, None].astype(FORMATS[seed % 3]), labels)
    copies = np.random.default_rng(seed).integers(1, most_copies, n, endpoint=True)
    if not ball:
        return Drawn(base, distinct, copies, loss, float(10 ** g.uniform(-3 if smooth else -6, 2)), None)
    ridge = float(10 ** g.uniform(-2 if smooth else -4, 1))
    free = Refined(Drawn(base, distinct, copies, loss, ridge, None)).free()
    part = 10 ** g.uniform(-2, 0.3)  # of the norm without a ball: beyond one the ball does not bind
    radius = max(1 / MOST, part * float(np.sqrt(free @ free)))
    return Drawn(base, distinct, copies, loss, 0.0 if part < 0.3 and seed % 2 == 0 else ridge, radius)


class Refined:
    """F and its optimum Δw* [P] (the weight's rows, then the bias), in extended precision."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        x = np.asarray(drawn.distinct.tokens, np.longdouble)[:, 0]
        self.share = drawn.copies.astype(np.longdouble) / int(drawn.copies.sum())
        self.x = np.concatenate([x, np.ones_like(x[:, :1])], 1)
        start = [drawn.base.state[name].numpy() for name in ("head.weight", "head.bias")]
        self.start = np.concatenate([start[0], start[1][:, None]], 1).astype(np.longdouble)
        self.y = np.eye(len(self.start))[np.asarray(drawn.distinct.labels)].astype(np.longdouble)

    def matrix(self, flat: Long) -> Long:
        """[K,d+1] of Δw [P] as the solvers order it."""
        K, size = self.start.shape
        weight = flat[: K * (size - 1)].reshape(K, size - 1)
        return np.concatenate([weight, flat[K * (size - 1) :, None]], 1)

    def flat(self, matrix: Long) -> Long:
        return np.concatenate([matrix[:, :-1].ravel(), matrix[:, -1]])

    def gradient(self, flat: Long, extra: float | np.longdouble = 0.0) -> Long:
        """∇F [P], with a ridge of ``extra`` more."""
        z = self.x @ (self.start + self.matrix(flat)).T
        slope = self.flat((self.share[:, None] * self._slope(z)).T @ self.x)
        return slope + (np.longdouble(self.drawn.ridge) + extra) * flat

    def _slope(self, z: Long) -> Long:
        loss: Any = self.drawn.loss
        if isinstance(loss, CrossEntropy):
            e = np.exp(z - z.max(1, keepdims=True))
            others = e * (1 - self.y)  # p − 1 of a label without doubt would cancel: it is −Σ of the others
            return (others - self.y * others.sum(1, keepdims=True)) / e.sum(1, keepdims=True)
        return self._curvature() * (z - np.longdouble(getattr(loss, "kappa", 1.0)) * self.y)

    def _curvature(self) -> Long:
        loss: Any = self.drawn.loss
        own = np.longdouble(getattr(loss, "alpha", 1.0))
        return (1 + (own - 1) * self.y) * 2 / self.y.shape[1] * self._half(loss)

    @staticmethod
    def _half(loss: Any) -> float:
        probe = loss.hessian(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), torch.ones(1, 2))
        return float(probe[0, 1])  # of two classes 2/K is 1, so this is the loss's own convention

    def hessian(self, flat: Long, extra: float) -> np.ndarray:
        """H [P,P] in float64."""
        x, K = self.x.astype(float), len(self.start)
        if isinstance(self.drawn.loss, CrossEntropy):
            z = (self.x @ (self.start + self.matrix(flat)).T).astype(float)
            p = np.exp(z - z.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            D = np.einsum("nk,kl->nkl", p, np.eye(K)) - p[:, :, None] * p[:, None, :]
        else:
            D = np.einsum("nk,kl->nkl", self._curvature().astype(float), np.eye(K))
        H = np.einsum("n,nkl,ni,nj->kilj", self.share.astype(float), D, x, x)
        size = x.shape[1]
        order = np.r_[
            [k * size + i for k in range(K) for i in range(size - 1)], [k * size + size - 1 for k in range(K)]
        ]
        H = H.reshape(K * size, K * size)[np.ix_(order, order)]
        return H + (self.drawn.ridge + float(extra)) * np.eye(len(H))

    def free(self, extra: float | np.longdouble = 0.0, start: Long | None = None) -> Long:
        """The optimum with a ridge of ``extra`` more and no ball, by Newton steps that do not overshoot."""
        x, last = np.zeros(self.start.size, np.longdouble) if start is None else start, np.inf
        for _ in range(400):
            g = self.gradient(x, extra)
            step = np.linalg.solve(self.hessian(x, extra), g.astype(float)).astype(np.longdouble)
            length = np.longdouble(1)
            while self.gradient(x - length * step, extra) @ step < -0.5 * abs(g @ step) and length > 1e-18:
                length /= 2  # F rises there by more than it fell before
            x = x - length * step
            part = float(np.sqrt(step @ step) / max(np.sqrt(x @ x), 1e-300))
            if part <= 1e-18 or (part <= 1e-12 and part > last / 4):  # as small as 80 bits let it be
                return x
            last = part
        raise ArithmeticError("the oracle did not converge")

    def optimum(self, near: Long) -> Long:
        """Δw* from a point near it; on the ball's surface where that binds, by the root of 1/‖x(ν)‖ = 1/R."""
        radius = self.drawn.radius
        if radius is None:
            return self.free(0.0, near)
        R = np.longdouble(radius)
        if self.drawn.ridge and (x := self.free()) @ x <= R**2:
            return x
        g = self.gradient(near)
        multiplier = -(g @ near) / (near @ near) if near.any() else np.longdouble(0)
        x, nu, last = near, max(multiplier, np.longdouble(1e-12)), np.inf
        low, high = np.longdouble(0), np.longdouble(np.inf)
        for _ in range(400):
            x = self.free(nu, x)
            norm = np.sqrt(x @ x)
            low, high = (nu, high) if norm > R else (low, nu)
            inner = np.linalg.solve(self.hessian(x, nu), x.astype(float))
            new = nu + (norm / R - 1) * norm**2 / np.longdouble(x.astype(float) @ inner)
            part = float(abs(new - nu) / nu)
            if part <= 1e-18 or (part <= 1e-12 and part > last / 4):
                return x
            if not low < new < high:
                new = 2 * nu if high == np.inf else np.sqrt(max(low, high * 1e-6) * high)
            nu, last = new, part
        raise ArithmeticError("the oracle did not converge")

    def gap(self, flat: Long, optimum: Long) -> float:
        """F(Δw) − F(Δw*), the integral of ∇F·δ along the way: their difference itself would cancel."""
        delta = flat - optimum
        at = [
            (optimum + np.longdouble((1 + t) / 2) * delta, np.longdouble(w / 2))
            for t, w in zip(NODES, SHARES, strict=True)
        ]
        return float(sum(w * (self.gradient(point) @ delta) for point, w in at))


def _minimised(drawn: Drawn, tolerance: float, passes: int) -> Solution:
    goal = Goal(tolerance=tolerance, max_passes=passes)
    return minimise(drawn.base, [drawn.rows], drawn.objective, goal=goal)


def _certified(problem: Problem, value: torch.Tensor, tolerance: float) -> Solution:
    return prove(looked_at(problem, value, tolerance, SolveStats()), problem, tolerance)


def _problem(drawn: Drawn) -> Problem:
    operator = TangentOperator(drawn.base, [drawn.rows], trained=drawn.base.head_layout, dtype=torch.float64)
    return Problem.of(drawn.objective, operator)


def _path(drawn: Drawn, tolerance: float, passes: int) -> Solution:
    problem = _problem(drawn)
    return _certified(problem, flat(problem, path_of(problem).weights(drawn.ridge)), tolerance)


def _any(drawn: Drawn, tolerance: float, passes: int) -> Solution:
    """What Adam or anything else left: the optimum, moved by about the tolerance."""
    found = _minimised(drawn, 1e-14, 400).value
    noise = torch.from_numpy(np.random.default_rng(passes).normal(size=len(found)))
    moved = found + tolerance * found.norm() / len(found) ** 0.5 * noise
    return _certified(_problem(drawn), moved, tolerance)


SOLVERS: dict[str, tuple[str, bool, Callable[[Drawn, float, int], Solution]]] = {
    "head": ("rsl", False, _minimised),
    "head, squared error": ("mse", False, _minimised),
    "head, every λ": ("rsl", False, _path),
    "cross-entropy": ("cross_entropy", False, _minimised),
    "ball": ("rsl", True, _minimised),
    "ball, cross-entropy": ("cross_entropy", True, _minimised),
    "any change (Adam)": ("cross_entropy", False, _any),
}
"""Name → the loss, whether there is a ball, and how a problem is solved to a tolerance within so many passes."""


def breaches(solver: str, seed: int, tolerance: float | None = None, most_copies: int = 1) -> list[str] | None:
    """What a solver's certificate says of one problem that is not so; None where 80 bits do not find the optimum."""
    loss, ball, solve = SOLVERS[solver]
    drawn = draw(seed, loss, ball, most_copies)
    tolerance = TOLERANCES[seed % len(TOLERANCES)] if tolerance is None else tolerance
    solution = solve(drawn, tolerance, (30, 400)[seed % 2])
    oracle, c = Refined(drawn), solution.certificate
    x = solution.value.numpy().astype(np.longdouble)
    try:
        optimum, gradient = oracle.optimum(x), oracle.gradient(x)
    except (ArithmeticError, np.linalg.LinAlgError):
        return None
    claims = {"F − F*": (oracle.gap(x, optimum), c.gap)}
    if not ball:
        # That F is not negative bounds the gap by itself, even where another bound is closer.
        by_value = replace(c, gradient=inf, residual=None, tightened=None)
        claims["F − F*, by F"] = claims["F − F*"][0], by_value.gap
        norm, scale = float(np.sqrt(gradient @ gradient)), c.gradient_at_zero
        claims["‖∇F‖"] = norm, c.gradient + c.rounding
        claims["−‖∇F‖"] = -norm, c.rounding - c.gradient
        claims["‖Δw − Δw*‖"] = float(np.sqrt((x - optimum) @ (x - optimum))), c.distance
        if solution.converged:  # or the base point is the optimum, as far as float64 can tell
            claims["converged"] = norm, tolerance * scale if max(c.gradient, scale) > c.rounding else c.rounding
    return [
        f"{solver}, problem {seed}: {what} = {true:.3e} > {bound:.3e}"
        for what, (true, bound) in claims.items()
        if true > bound + 1e-12 * abs(bound)
    ]
