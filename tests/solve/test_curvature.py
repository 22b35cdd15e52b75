"""The largest curvature of F, against the eigenvalues of its dense Hessian."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.rsl import RSL
from taftcache.solve import curvature
from taftcache.solve.curvature import largest_curvature
from tests.solve.problems import make_problem

QUADRATIC = RSL(alpha=1.0, kappa=5.0)


def largest_of(problem, delta):
    """By the dense Hessian, column by column."""
    at = problem if problem.loss.quadratic else problem.at(delta)[2]
    columns = [at.hessian(row) for row in torch.eye(problem.operator.layout.size, dtype=torch.float64)]
    return torch.linalg.eigvalsh(torch.stack(columns))[-1].item()


@pytest.mark.parametrize("loss", [QUADRATIC, CrossEntropy()], ids=["rsl", "cross-entropy"])
@pytest.mark.parametrize("head", [True, pytest.param(False, marks=pytest.mark.full)], ids=["head", "block"])
def test_the_largest_eigenvalue_lies_between_the_bounds(loss, head):
    problem = make_problem(loss=loss, head=head)
    delta = torch.linspace(-1, 1, problem.operator.layout.size, dtype=torch.float64)
    largest = largest_of(problem, delta)
    found = largest_curvature(problem, delta)
    assert found.largest <= largest * (1 + 1e-12)
    assert found.largest == pytest.approx(largest, rel=curvature.ACCURACY)
    assert largest <= found.at_most < 1.2 * largest
    assert found.passes <= curvature.STEPS + 2


def test_gradient_descent_falls_with_steps_of_one_over_l_and_not_with_three():
    """What L is for: at 1/L every step takes F down, above 2/L it runs away."""
    problem = make_problem(head=True)
    found = largest_curvature(problem, torch.zeros(problem.operator.layout.size))

    def values(step):
        delta = torch.zeros(problem.operator.layout.size, dtype=torch.float64)
        for _ in range(30):
            value, gradient = problem.evaluate(delta)
            yield value
            delta = delta - step * gradient

    assert (np.diff(list(values(1 / found.at_most))) < 0).all()
    far = list(values(3 / found.largest))
    assert far[-1] > far[0]
