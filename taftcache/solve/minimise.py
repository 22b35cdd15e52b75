"""The one verb: minimise the objective over rows, by the method that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.dual import DualInverse, dual_fits
from taftcache.solve.head import solve_head
from taftcache.solve.kronecker import KroneckerPreconditioner
from taftcache.solve.pcg import Lazy, Progress, pcg
from taftcache.solve.probed import ProbedPreconditioner
from taftcache.solve.solution import Solution
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSource
from taftcache.tangent.spec import Train


def minimise(
    base: Base,
    sources: Sequence[RowSource],
    loss: RSL,
    ridge: float,
    *,
    train: Train = "full",
    tolerance: float = 1e-6,
    max_passes: int = 1000,
    precision: Literal["float32", "float64"] = "float32",
    memory: int = 2 << 30,
    device: torch.device | str = "cpu",
    start: Tensor | None = None,
    progress: Progress | None = None,
) -> Solution:
    """The change Δw of the base's weights that minimises mean loss + ridge over all rows of ``sources``.

    train: which parameters move, as ``TangentSpec.train``. The head alone is solved in closed form, anything else
    by conjugate gradients: with the exact inverse Hessian where the kernel of all rows and classes is small enough to
    factorise, else with a Kronecker-factored preconditioner made from the same rows, or a probed diagonal where a tail
    has no factored gradients. The certificate is a float64 gradient recomputed from the rows. The result depends on
    nothing but the arguments.

    Raises:
        SolveError: no rows, or a gradient that is not finite.
    """
    if sum(source.rows for source in sources) == 0:
        raise SolveError("a solve needs at least one row", got="sources without rows")
    layout = base.trained(train)
    if torch.device(device).type == "mps":  # it has no float64, in which sums and certificates are kept
        device = "cpu"

    def problem(dtype: torch.dtype, memory: int = 0) -> Problem:
        operator = TangentOperator(base, sources, trained=layout, dtype=dtype, device=device, memory=memory)
        return Problem(operator, loss, ridge)

    exact = problem(torch.float64)
    if layout == base.head_layout:
        return solve_head(exact, tolerance)
    factored = exact.operator.tail.factored
    small = factored and dual_fits(exact)
    inner = problem(torch.float64 if small or precision == "float64" else torch.float32, memory)
    made_by = DualInverse if small else KroneckerPreconditioner if factored else ProbedPreconditioner
    preconditioner = Lazy(lambda: made_by(inner))
    return pcg(inner, exact, preconditioner, tolerance=tolerance, max_passes=max_passes, start=start, progress=progress)
