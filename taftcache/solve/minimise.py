"""The one verb: minimise the objective over rows, by the method that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any, Literal

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.loss import Loss
from taftcache.objective.problem import Problem
from taftcache.objective.weights import RowWeights
from taftcache.solve.inverses.class_kernel import class_kernel_fits
from taftcache.solve.inverses.dual import DualInverse, dual_fits
from taftcache.solve.inverses.inverse import approximate_inverse
from taftcache.solve.methods.adam import PRESETS, adam
from taftcache.solve.methods.ball import solve_in_ball
from taftcache.solve.methods.conjugate import Lazy, Progress, pcg
from taftcache.solve.methods.head import solve_head
from taftcache.solve.methods.newton import newton
from taftcache.solve.methods.projected import projected_gradient
from taftcache.solve.methods.row_space import Restart, RowSpace
from taftcache.solve.proof import prove
from taftcache.solve.solution import Solution, Status
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSource
from taftcache.tangent.spec import Train

Method = Literal["auto", "conjugate", "projected", "accelerated", "paper", "release", "adamw"]
# M of a kernel whose Cholesky costs about what the space of the rows does; at three times as much it costs ten times.
DIRECT = 2048


def through_rows(problem: Problem) -> bool:
    """Whether a quadratic problem is solved in the space of its rows, from zero: where that fits and costs less."""
    few = problem.operator.rows * problem.operator.classes <= DIRECT
    return class_kernel_fits(problem) and not (few and kernel_inverse_fits(problem))


def kernel_inverse_fits(problem: Problem) -> bool:
    """Whether H⁻¹ can be had exactly, from a Cholesky of the kernel of all rows and classes."""
    return problem.operator.tail.factored and dual_fits(problem)


def minimise(
    base: Base,
    sources: Sequence[RowSource],
    loss: Loss,
    ridge: float,
    *,
    train: Train = "full",
    weights: RowWeights | None = None,
    jvp_only: bool = False,
    radius: float | None = None,
    method: Method = "auto",
    tolerance: float = 1e-6,
    max_passes: int = 1000,
    proof_passes: int = 0,
    precision: Literal["float32", "float64"] = "float32",
    memory: int = 2 << 30,
    device: torch.device | str = "cpu",
    start: Tensor | None = None,
    restart: Restart | None = None,
    progress: Progress | None = None,
    operator: Callable[..., TangentOperator] = TangentOperator,
) -> Solution:
    """The change Δw of the base's weights that minimises mean loss + ridge over all rows of ``sources``.

    A quadratic loss over the head alone is solved in closed form. Any other parameters are solved by conjugate
    gradients: with the exact inverse Hessian where the kernel of all rows and classes is cheap to factorise, in the
    space of the rows where there are fewer logits than parameters, else with a Kronecker-factored preconditioner made
    from the same rows, or a probed diagonal where a tail has no factored gradients. Cross-entropy is solved by
    Newton's method; a ball by accelerated projected gradient or, for a quadratic, by the ridge that puts the solution
    on its surface. The certificate is a float64 gradient recomputed from the rows. The result depends on nothing but
    the arguments.

    Args:
        base: the expansion point.
        sources: the rows, read in the order given.
        loss: ℓ. ridge: λ > 0, or 0 with a ``radius``.
        train: which parameters move, as ``TangentSpec.train``.
        weights: of classes and rows.
        jvp_only: leave the base model's logits out.
        radius: R, of the ball ‖Δw‖ ≤ R.
        method: "conjugate" without the row space; "projected" the paper's projected gradient, "accelerated" its
            accelerated form with restarts, both for any loss, with or without a ball; "paper", "release" and "adamw"
            are Adam's schedules (``adam.PRESETS``), which end where they end.
        tolerance: on the float64 gradient norm, relative to its norm at Δw = 0.
        max_passes: limit on passes over the rows, one JᵀDJ·v each.
        proof_passes: spent after the solve on a closer bound (quadratic, no ball).
        precision: of the inner products. memory: bytes in which prepared rows stay between passes.
        device: where they run. start: Δw to begin from, zero by default. restart: dual vectors to go on from in the
            space of the rows, and the certified distance to reach instead of ``tolerance``. progress: told after each
            pass.
        operator: makes J over the rows; another one computes the same bits elsewhere.

    Raises:
        SolveError: no rows, weights that do not fit, neither ridge nor radius, a gradient that is not finite, or a
            ``restart`` where the solve does not go through the space of the rows.
    """
    rows = sum(source.rows for source in sources)
    if rows == 0:
        raise SolveError("a solve needs at least one row", got="sources without rows")
    if not (ridge > 0 or (ridge == 0 and radius is not None)) or (radius is not None and not radius > 0):
        raise SolveError("a solve has a ridge above 0, or a radius", got=f"ridge {ridge}, radius {radius}")
    layout = base.trained(train)
    if torch.device(device).type == "mps":  # it has no float64, in which sums and certificates are kept
        device = "cpu"

    def problem(dtype: torch.dtype, memory: int = 0) -> Problem:
        J = operator(base, sources, trained=layout, dtype=dtype, device=device, memory=memory)
        return Problem(J, loss, ridge, weights, jvp_only)

    # In float64: tokens and half as much for all else; of the head alone, its input and logits.
    row = 12 * prod(base.config.shape) if layout != base.head_layout else 8 * (base.config.width + base.config.classes)
    whole = rows * row
    few = whole <= memory // 4  # then what float64 prepares once serves the gradients and the proof too
    exact = problem(torch.float64, whole if few else 0)
    memory -= whole if few else 0
    if weights is not None:
        weights.check(exact.operator.rows, exact.operator.classes)
    limits: dict[str, Any] = {"tolerance": tolerance, "max_passes": max_passes, "progress": progress}
    if method in ("projected", "accelerated"):
        return projected_gradient(exact, radius=radius, start=start, accelerate=method == "accelerated", **limits)
    if method in PRESETS:
        if radius is not None:
            raise SolveError("Adam knows no ball", got=f"radius {radius}", do='method = "projected"')
        return adam(problem(torch.float32), exact, PRESETS[method], tolerance=tolerance, progress=progress)
    wide = torch.float64 if precision == "float64" else torch.float32
    if not loss.quadratic:
        if radius is not None:
            return projected_gradient(exact, radius=radius, start=start, accelerate=True, **limits)
        return newton(problem(wide, memory), exact, start=start, **limits)
    if radius is not None:
        return solve_in_ball(problem(wide, memory), exact, radius, **limits)
    if layout == base.head_layout:
        return solve_head(exact, tolerance)
    from_zero = method == "auto" and start is None and through_rows(exact)
    small = not from_zero and kernel_inverse_fits(exact)
    inner = problem(torch.float64 if small else wide, memory)
    inverse = Lazy(lambda: DualInverse(inner) if small else approximate_inverse(inner))
    if from_zero:
        space = RowSpace(inner, exact, max_passes, progress)
        if restart is not None:
            solution = space.solution(space.restart(restart))
            tolerance = inf  # the distance that was asked for is another goal
        else:
            solution = space.solution(space.run(tolerance))
        if restart is None and solution.status is Status.stalled:
            # Kernels of very unlike sizes drown λ in float32.
            solution = _gone_on(solution, inner, exact, inverse, **limits)
    elif restart is not None:
        raise SolveError("dual vectors are gone on from in the space of the rows", got="a problem solved elsewhere")
    else:
        solution = pcg(inner, exact, inverse, start=start, **limits)
    return prove(solution, exact, inverse, tolerance, proof_passes)


def _gone_on(
    solution: Solution, inner: Problem, exact: Problem, inverse: Lazy, max_passes: int, **limits: Any
) -> Solution:
    """Conjugate gradients from where the row space ended."""
    before = solution.stats["passes"]
    further = pcg(inner, exact, inverse, start=solution.value, max_passes=max(3, max_passes - before), **limits)
    stats = {**further.stats, "solver": "row space, pcg", "passes": before + further.stats["passes"]}
    return replace(further, stats=stats)
