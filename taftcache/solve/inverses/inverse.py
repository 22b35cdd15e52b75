"""The approximate inverse of a Hessian that a problem allows, and of the same rows' under one λ after another."""

from __future__ import annotations

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.inverses.probed import ProbedPreconditioner
from taftcache.solve.inverses.sampled import SampledInverse, sampled_fits


def approximate_inverse(problem: Problem) -> SampledInverse | KroneckerPreconditioner | ProbedPreconditioner:
    """A sample's exact inverse where rows are many, else ``inverse_by_weights``."""
    return SampledInverse(problem) if sampled_fits(problem) else inverse_by_weights(problem)


def inverse_by_weights(problem: Problem) -> KroneckerPreconditioner | ProbedPreconditioner:
    """One weight after the other: Kronecker factors, or a probed diagonal without factors. Right on average."""
    return KroneckerPreconditioner(problem) if problem.operator.tail.factored else ProbedPreconditioner(problem)


class ShiftedInverse:
    """``approximate_inverse`` of problems that differ by λ alone: a sample of the rows is taken once and serves all."""

    def __init__(self) -> None:
        self._made: SampledInverse | KroneckerPreconditioner | ProbedPreconditioner | None = None

    def at(self, problem: Problem) -> SampledInverse | KroneckerPreconditioner | ProbedPreconditioner:
        """That of the problem; what it gave before is not to be used any more."""
        if isinstance(self._made, SampledInverse):
            self._made.shift(problem.ridge)
        else:
            self._made = approximate_inverse(problem)
        return self._made
