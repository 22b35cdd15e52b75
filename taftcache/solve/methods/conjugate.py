"""Preconditioned conjugate gradients with float64 refinement, for quadratic objectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.solve.directions import Inverse, conjugate_directions
from taftcache.solve.settings import GOAL, Goal, OnPass
from taftcache.solve.solution import Certificate, Solution, Status

# The float32 product carries about six digits: an inner run asked for more would chase rounding.
INNER_REDUCTION = 1e-5


class Lazy:
    """A preconditioner that is made when it is first needed: after the rows proved finite, or never."""

    def __init__(self, make: Callable[[], Inverse]) -> None:
        self._make = make
        self._made: Inverse | None = None

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v."""
        if self._made is None:
            self._made = self._make()
        return self._made.apply(vector)


def pcg(
    problem: Problem,
    exact: Problem,
    preconditioner: Inverse,
    goal: Goal = GOAL,
    *,
    start: Tensor | None = None,
    on_pass: OnPass | None = None,
) -> Solution:
    """Solve ∇F(Δw) = 0 to ‖∇F(Δw)‖ ≤ tolerance·‖∇F(0)‖, F being quadratic: H p = −∇F, round by round.

    Conjugate gradients on ``problem`` (usually float32, vectors included) solve for a correction; the residual that
    starts each round, and the certificate that ends the solve, are ``exact``'s float64 gradient,
    recomputed from the rows. The recurrence's own residual never decides the status.

    Args:
        problem: products for the inner iterations.
        exact: the same problem in float64.
        preconditioner: approximate inverse Hessian.
        goal: tolerance, and limit on passes over the rows, float64 ones included.
        start: Δw to begin from; zero by default.
        on_pass: called after each pass.

    Raises:
        SolveError: a gradient that is not finite.
    """
    zero = torch.zeros(problem.operator.layout.size, dtype=torch.float64, device=problem.operator.device)
    x = zero if start is None else start.to(zero)
    passes = rounds = 0

    def evaluate(at: Tensor) -> tuple[float, Tensor]:
        nonlocal passes
        passes += 1
        objective, gradient = exact.evaluate(at)
        if not torch.isfinite(gradient).all():
            raise SolveError(
                "the gradient is not finite",
                got=f"F = {objective}",
                do="lower objective.kappa, or look for extreme activations with taftcache inspect",
            )
        return objective, gradient.to(zero)

    objective, gradient = evaluate(zero)
    at_zero = gradient
    scale = gradient.norm().item()
    target = goal.tolerance * scale
    status = Status.converged
    try:
        if start is not None:
            objective, gradient = evaluate(x)
        while (before := gradient.norm().item()) > target:
            if passes + 2 > goal.max_passes:
                status = Status.max_passes
                break
            rounds += 1
            correction = _Round(problem, preconditioner, gradient)
            reduction = max(0.5 * target / before, INNER_REDUCTION)
            try:
                for norm in correction.iterate(reduction, goal.max_passes - passes - 1):
                    passes += 1
                    if on_pass is not None:
                        on_pass(passes, norm / scale)
            except KeyboardInterrupt:
                status = Status.interrupted
            candidate = x + correction.p.to(x)
            new_objective, new_gradient = evaluate(candidate)
            # A quadratic falls along the whole of a CG run, though its gradient's norm need not.
            if new_objective < objective or new_gradient.norm().item() < before:
                x, objective, gradient = candidate, new_objective, new_gradient
            if status is Status.interrupted:
                break
            if (
                target < gradient.norm().item()
                and passes < goal.max_passes
                and new_gradient.norm().item() > 0.5 * before
            ):
                status = Status.stalled
                break
    except KeyboardInterrupt:
        status = Status.interrupted
    certificate = Certificate(gradient.norm().item(), scale, problem.ridge, objective, problem.operator.rows)
    stats = {"solver": "pcg", "passes": passes, "rounds": rounds}
    return Solution(x, status, certificate, stats, (at_zero, gradient))


class _Round:
    """One run of preconditioned CG on H p = −∇F in the products' precision; ``p`` is its last iterate at any time."""

    def __init__(self, problem: Problem, preconditioner: Inverse, gradient: Tensor) -> None:
        self._problem, self._preconditioner = problem, preconditioner
        self._r = -gradient.to(problem.operator.dtype)
        self.p = torch.zeros_like(self._r)

    def iterate(self, reduction: float, limit: int) -> Iterator[float]:
        """Run until the residual fell to ``reduction`` of its norm, or for ``limit`` passes; yields it after each."""
        r, product = self._r, torch.empty_like(self._r)
        goal = reduction * r.norm().item()
        directions = conjugate_directions(lambda d: self._problem.hessian(d, product), self._preconditioner, r)
        for at in islice(directions, limit):
            if not at.curvature > 0:  # rounding has left nothing of it: what is reached is all that the products give
                return
            self.p.add_(at.vector, alpha=at.step)
            r.sub_(at.product, alpha=at.step)
            norm = r.norm().item()
            yield norm
            if norm <= goal:
                return
