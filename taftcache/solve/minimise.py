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
from taftcache.solve.pcg import Progress, pcg
from taftcache.solve.solution import Solution
from taftcache.tangent.base import Base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSource


def minimise(
    base: Base,
    sources: Sequence[RowSource],
    loss: RSL,
    ridge: float,
    *,
    train: Literal["full", "head"] = "full",
    tolerance: float = 1e-6,
    max_passes: int = 1000,
    precision: Literal["float32", "float64"] = "float32",
    memory: int = 2 << 30,
    device: torch.device | str = "cpu",
    start: Tensor | None = None,
    progress: Progress | None = None,
) -> Solution:
    """The change Δw of the base's weights that minimises mean loss + ridge over all rows of ``sources``.

    train = "head" is solved in closed form; "full" (last block, final norm, head) by conjugate gradients
    with a Kronecker-factored preconditioner made from the same rows. Either way the certificate is
    a float64 gradient recomputed from the rows. The result depends on nothing but the arguments.

    Raises:
        SolveError: no rows, or a gradient that is not finite.
    """
    if sum(source.rows for source in sources) == 0:
        raise SolveError("a solve needs at least one row", got="sources without rows")
    layout = base.head_layout if train == "head" else base.layout
    certifier = "cpu" if str(device).startswith("mps") else device  # MPS has no float64
    exact = Problem(TangentOperator(base, sources, trained=layout, dtype=torch.float64, device=certifier), loss, ridge)
    if train == "head":
        return solve_head(exact)
    if dual_fits(exact):
        held = Problem(
            TangentOperator(base, sources, trained=layout, dtype=torch.float64, device=certifier, memory=memory),
            loss,
            ridge,
        )
        return pcg(
            held, exact, DualInverse(held), tolerance=tolerance, max_passes=max_passes, start=start, progress=progress
        )
    if precision == "float64":
        problem = Problem(
            TangentOperator(base, sources, trained=layout, dtype=torch.float64, device=certifier, memory=memory),
            loss,
            ridge,
        )
    else:
        problem = Problem(TangentOperator(base, sources, trained=layout, device=device, memory=memory), loss, ridge)
    return pcg(
        problem,
        exact,
        KroneckerPreconditioner(problem),
        tolerance=tolerance,
        max_passes=max_passes,
        start=start,
        progress=progress,
    )
