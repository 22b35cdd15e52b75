"""The approximate inverse of a Hessian that a problem allows."""

from __future__ import annotations

from taftcache.objective.problem import Problem
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.inverses.probed import ProbedPreconditioner
from taftcache.solve.inverses.sampled import SampledInverse, sampled_fits


def approximate_inverse(problem: Problem) -> SampledInverse | KroneckerPreconditioner | ProbedPreconditioner:
    """A sample's exact inverse where rows are many, else Kronecker factors, or a probed diagonal without factors."""
    if sampled_fits(problem):
        return SampledInverse(problem)
    return KroneckerPreconditioner(problem) if problem.operator.tail.factored else ProbedPreconditioner(problem)
