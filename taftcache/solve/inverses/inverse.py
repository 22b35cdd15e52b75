"""The approximate inverse of a Hessian that a tail allows."""

from __future__ import annotations

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.inverses.probed import ProbedPreconditioner


def approximate_inverse(problem: Problem) -> KroneckerPreconditioner | ProbedPreconditioner:
    """Kronecker factors where rows have factored gradients, a probed diagonal where they have not."""
    made_by = KroneckerPreconditioner if problem.operator.tail.factored else ProbedPreconditioner
    return made_by(problem)
