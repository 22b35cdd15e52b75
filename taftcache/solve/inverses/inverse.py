"""The approximate inverse Hessian that a problem allows, and the same for one λ after another."""

from __future__ import annotations

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.inverses.probed import ProbedPreconditioner
from taftcache.solve.inverses.sampled import SampledInverse, sampled_fits


def approximate_inverse(problem: Problem) -> SampledInverse | KroneckerPreconditioner | ProbedPreconditioner:
    """The exact inverse for a sample if there are many rows, else ``inverse_by_weights``."""
    return SampledInverse(problem) if sampled_fits(problem) else inverse_by_weights(problem)


def inverse_by_weights(problem: Problem) -> KroneckerPreconditioner | ProbedPreconditioner:
    """Each weight by itself: by Kronecker factors, or a probed diagonal if there are no factors. Right on average."""
    return KroneckerPreconditioner(problem) if problem.operator.tail.factored else ProbedPreconditioner(problem)


class ShiftedInverse:
    """``approximate_inverse`` for problems that differ only in λ: one sample of the rows serves all."""

    def __init__(self) -> None:
        self._made: SampledInverse | KroneckerPreconditioner | ProbedPreconditioner | None = None

    def at(self, problem: Problem) -> SampledInverse | KroneckerPreconditioner | ProbedPreconditioner:
        """The inverse for ``problem``; do not use an earlier one after this."""
        if isinstance(self._made, SampledInverse):
            self._made.shift(problem.ridge)
        else:
            self._made = approximate_inverse(problem)
        return self._made
