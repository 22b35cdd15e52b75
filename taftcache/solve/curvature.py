"""How curved F is at most: the smoothness constant L of gradient descent's rates, and the condition number L/λ."""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from taftcache.objective.problem import Problem

STEPS = 24  # Lanczos vectors, each of P numbers in float64
ACCURACY = 1e-2  # of the eigenvalue
CHANCE = 1e-3  # of the first vector being so unlucky that the upper bound is false


class Curvature(NamedTuple):
    """The largest eigenvalue of H = JᵀDJ/N + λI lies from ``largest`` to ``at_most``.

    ``largest`` is a Rayleigh quotient, so a bound from below; ``at_most`` holds but for one first vector in 1,000.
    """

    largest: float
    at_most: float
    passes: int


def largest_curvature(problem: Problem, delta: torch.Tensor) -> Curvature:
    """L of F: its gradient changes by at most L times a step, and plain gradient descent with steps 1/L converges.

    Lanczos from a random vector (SciPy's eigsh). With ε = (ln(1.648 √P / chance) / (2k − 1))², k steps leave the
    eigenvalue more than 1/(1 − ε) above the quotient with that chance at most (Kuczyński and Woźniakowski 1992).

    Args:
        problem: F, without a ball.
        delta: Δw [P] at which H is taken, of a loss that is not quadratic.
    """
    at = problem if problem.loss.quadratic else problem.at(delta)[2]
    size, passes = problem.operator.layout.size, 0 if at is problem else 1

    def product(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal passes
        passes += 1
        found: NDArray[np.float64] = at.hessian(torch.from_numpy(vector.reshape(-1))).cpu().double().numpy()
        return found

    steps = min(size, STEPS)
    hessian = LinearOperator((size, size), matvec=product, dtype=np.float64)
    first = np.random.default_rng(0).standard_normal(size)
    found = eigsh(hessian, k=1, which="LA", ncv=steps, tol=ACCURACY, v0=first, return_eigenvectors=False)
    largest = float(found[0])
    root = log(1.648 * sqrt(size) / CHANCE) / (2 * steps - 1)
    # With as many steps as parameters nothing is left to chance.
    above = largest if steps == size else largest / (1 - root**2)
    return Curvature(largest, above, passes)
