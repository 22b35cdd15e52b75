"""A problem in the two precisions of a solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.solve.settings import Arithmetic
from taftcache.tangent.base import Base
from taftcache.tangent.rows import RowSource


class ProblemPair(NamedTuple):
    """One problem twice.

    inner: products for the inner iterations, usually in float32.
    exact: in float64, for F, ∇F and what decides where a solve ends.
    """

    inner: Problem
    exact: Problem

    def at(self, ridge: float) -> ProblemPair:
        """The same under another λ."""
        return ProblemPair(replace(self.inner, ridge=ridge), replace(self.exact, ridge=ridge))


def pose(
    base: Base, sources: Sequence[RowSource], objective: Objective, how: Arithmetic, dtype: torch.dtype
) -> Problem:
    """The problem in ``dtype``, whatever the precision of ``how``; in float32 it is prepared for many passes."""
    layout, repeated = base.trained(objective.train), dtype == torch.float32
    J = how.operator(
        base, sources, trained=layout, dtype=dtype, device=how.device, memory=how.memory, repeated=repeated
    )
    return Problem.of(objective, J)
