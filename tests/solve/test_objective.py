"""The loss and the objective against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from taftcache.objective.rsl import RSL
from tests.solve.problems import K, N, case, dense, labels, make_problem, tokens

LOSSES = [RSL(alpha=1.0, kappa=1.0), RSL(alpha=1.0, kappa=15.0), RSL(alpha=3.0, kappa=0.5), RSL(alpha=0.2, kappa=7.0)]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.alpha}-{loss.kappa}")


def written_out(loss: RSL, z: Tensor, y: Tensor) -> Tensor:
    """1/K [ α (z_y − κ)² + Σ_{i≠y} z_i² ], term by term."""
    return torch.stack(
        [
            sum(loss.alpha * (z[n, i] - loss.kappa) ** 2 if i == y[n] else z[n, i] ** 2 for i in range(z.shape[1]))
            / z.shape[1]
            for n in range(len(z))
        ]
    )


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(6, 3, dtype=torch.float64, generator=generator) * 4
    return z, torch.tensor([0, 1, 2, 2, 0, 1])


@every_loss
def test_value_gradient_and_curvature(loss):
    z, y = drawn()
    assert torch.allclose(loss.value(z, y), written_out(loss, z, y), rtol=1e-14)
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(written_out(loss, leaf, y).sum(), leaf)
    assert torch.allclose(loss.gradient(z, y), gradient, rtol=1e-13)
    full = torch.autograd.functional.hessian(lambda at: written_out(loss, at, y).sum(), z).reshape(18, 18)
    assert torch.allclose(torch.diag(loss.curvature(z, y).reshape(-1)), full, rtol=1e-13)


def test_alpha_and_kappa_one_are_the_mean_squared_error():
    z, y = drawn()
    mse = torch.nn.functional.mse_loss(z, torch.nn.functional.one_hot(y, 3).double())
    assert torch.allclose(RSL(alpha=1.0, kappa=1.0).value(z, y).mean(), mse, rtol=1e-14)


@every_loss
@pytest.mark.parametrize(("vit", "spec"), [("narrow-mlp", "keep"), ("all", "class-token")])
def test_objective_is_autograds_on_the_linearised_model(vit, spec, loss):
    made, ridge = case(vit, spec), 0.03
    layout, y = made.base.layout, torch.from_numpy(labels())
    made.tokens.copy_(torch.from_numpy(tokens(vit, spec)))  # float16, as the operator gets them
    problem = make_problem(vit, spec, loss=loss, ridge=ridge)
    delta = 0.1 * torch.randn(layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def F(at: Tensor) -> Tensor:
        z, change = torch.func.jvp(made.forward, (made.base.state,), (layout.views(at),))
        return written_out(loss, z + change, y).mean() + ridge / 2 * (at @ at)

    leaf = delta.clone().requires_grad_()
    oracle = F(leaf)
    (gradient,) = torch.autograd.grad(oracle, leaf)
    value, mine = problem.evaluate(delta)
    assert value == pytest.approx(oracle.item(), rel=1e-12)
    assert (mine - gradient).norm() <= 1e-11 * gradient.norm()


@every_loss
def test_hessian_is_the_gradients_slope_and_the_dense_one(loss):
    problem, whole = make_problem(loss=loss, ridge=0.03), dense(loss=loss, ridge=0.03)
    generator = torch.Generator().manual_seed(2)
    u, v = (torch.randn(problem.operator.layout.size, dtype=torch.float64, generator=generator) for _ in "uv")
    product = problem.hessian(v)
    slope = problem.evaluate(u + v)[1] - problem.evaluate(u)[1]
    assert (product - slope).norm() <= 1e-11 * product.norm()
    assert (product - whole.H @ v).norm() <= 1e-11 * product.norm()
    used = torch.full_like(v, 7.0)
    assert problem.hessian(v, used).data_ptr() == used.data_ptr()
    assert torch.equal(used, product)
    assert problem.evaluate(u)[0] == pytest.approx(whole.value(u), rel=1e-11)


def test_ridge_means_the_same_when_rows_are_removed():
    """The loss is a mean: every row twice is the same objective."""
    once, twice = make_problem(), make_problem()
    twice.operator.sources.extend(once.operator.sources)
    twice.operator.rows = 2 * N
    delta = torch.ones(once.operator.layout.size, dtype=torch.float64)
    assert twice.evaluate(delta)[0] == pytest.approx(once.evaluate(delta)[0], rel=1e-13)
    assert once.operator.classes == K
