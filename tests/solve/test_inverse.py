"""Preconditioners: symmetric, positive definite, and the inverse Hessian itself where they say so."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from taftcache.backbone.cut.cut import Cut
from taftcache.objective.cotangent import Given
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights
from taftcache.solve.inverses.dual import DualInverse, kernel, kernel_inverse_fits
from taftcache.solve.inverses.inverse import approximate_inverse
from taftcache.solve.inverses.kronecker import KroneckerPreconditioner
from taftcache.solve.inverses.sampled import SampledInverse
from taftcache.solve.minimise import through_rows
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec
from tests.backbone.registry import small_backbone
from tests.solve.problems import K, N, case, jacobian, make_problem, minimised, rows

CASES = [("narrow-mlp", "keep"), ("all", "class-token"), ("plain", "reset-block")]
every_case = pytest.mark.parametrize(("vit", "spec"), CASES)


def draw(problem: Problem, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    size = problem.operator.layout.size
    return [torch.randn(size, dtype=torch.float64, generator=generator) for _ in range(count)]


@every_case
@pytest.mark.parametrize("make", [KroneckerPreconditioner, DualInverse, SampledInverse])
@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_symmetric_and_positive_definite(vit, spec, make, alpha):
    problem = make_problem(vit, spec, loss=RSL(alpha=alpha, kappa=5.0))
    M = make(problem)
    u, v = draw(problem, 2)
    assert (u @ M.apply(v)).item() == pytest.approx((v @ M.apply(u)).item(), rel=1e-8)
    assert u @ M.apply(u) > 0


@every_case
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize(("alpha", "ridge"), [(1.0, 1e-2), (3.0, 1e-5)])
def test_dual_is_the_inverse_hessian(vit, spec, head, alpha, ridge):
    problem = make_problem(vit, spec, loss=RSL(alpha=alpha, kappa=5.0), ridge=ridge, head=head)
    (v,) = draw(problem, 1)
    product = problem.hessian(v)
    assert (DualInverse(problem).apply(product) - v).norm() <= 1e-11 * product.norm() / ridge


@every_case
@pytest.mark.parametrize("head", [False, True])
def test_kernel_is_the_jacobians(vit, spec, head):
    J, _ = jacobian(vit, spec, head)
    by_class = J.view(N, K, -1).transpose(0, 1).reshape(N * K, -1)
    expected = by_class @ by_class.T
    assert (kernel(make_problem(vit, spec, head=head)) - expected).norm() <= 1e-11 * expected.norm()


@cache
def beyond_one_row(pool: str) -> Base:
    """The last two blocks of a small ViT, or one that pools by attention, whose tail is functional."""
    cut = Cut(small_backbone(depth=2, embed_dim=12, global_pool=pool), 2 if pool == "token" else 1)
    return make_base(cut.tail_state(), cut.tail_config(), 3, module=cut.module())


def many_tokens(base: Base) -> list[ArrayRows]:
    drawn = torch.randn(7, 17, 12, generator=torch.Generator().manual_seed(2)).numpy()
    return [ArrayRows(part, np.arange(len(part)) % 3) for part in (drawn[:4], drawn[4:])]


@pytest.mark.parametrize("together", [7, 3], ids=["at once", "in parts"])
@pytest.mark.parametrize("pool", ["token", "map"])
def test_the_kernel_of_any_tail_is_its_jacobians(pool, together, monkeypatch):
    """Where no row's gradient is an outer product for each matrix."""
    base = beyond_one_row(pool)
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_FACTORS", together * 3 * 8 * base.layout.size)
    assert base.config.path == ("layers" if pool == "token" else "functional")
    operator = TangentOperator(base, many_tokens(base), dtype=torch.float64)
    loss = RSL(alpha=3.0, kappa=5.0)
    problem = Problem(operator, loss, 1e-3)
    J = torch.stack(
        [operator.accumulate(None, Given(values=unit)) for unit in torch.eye(21, dtype=torch.float64).view(21, 7, 3)]
    )
    by_class = J.view(7, 3, -1).transpose(0, 1).flatten(0, 1)
    expected = by_class @ by_class.T
    assert (kernel(problem) - expected).norm() <= 1e-12 * expected.norm()
    (v,) = draw(problem, 1)
    product = problem.hessian(v)
    assert (DualInverse(problem).apply(product) - v).norm() <= 1e-10 * product.norm() / problem.ridge
    solution = minimised(base, many_tokens(base), loss, 1e-3, tolerance=1e-9)
    assert solution.converged
    assert solution.stats.passes < 8 or together < 7  # those of the rows are solved in their space then


def test_a_fresh_class_token_under_several_blocks_is_solved_by_gradients_written_out_in_parts(monkeypatch):
    """No other kernel fits one: 93 rows of digits were left unsolved after 1,002 passes."""
    cut = Cut(small_backbone(depth=2, embed_dim=12), 2)
    spec = TangentSpec(blocks=2, class_token="reset", reset_block=True)
    base = make_base(cut.tail_state(), cut.tail_config(), 3, spec)
    loss, bytes_of_all = RSL(alpha=3.0, kappa=5.0), 21 * 8 * base.layout.size
    found = {}
    for part, limit in {"at once": bytes_of_all, "in parts": bytes_of_all // 2, "not": bytes_of_all // 5}.items():
        monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_FACTORS", limit)
        found[part] = minimised(base, many_tokens(base), loss, 1e-5, tolerance=1e-9, max_passes=40)
    assert [each.converged for each in found.values()] == [True, True, False]
    assert found["in parts"].stats.passes < 8
    assert (found["at once"].value - found["in parts"].value).norm() <= 2 * found["in parts"].certificate.distance


def test_limits_of_gradients_that_are_written_out(monkeypatch):
    base = beyond_one_row("token")
    problem = Problem(TangentOperator(base, many_tokens(base), dtype=torch.float64), RSL(), 1e-3)
    assert kernel_inverse_fits(problem)
    for limit, value in (("LARGEST_WRITTEN", 20), ("LARGEST_FACTORS", 21 * base.layout.size * 8 - 1)):
        with monkeypatch.context() as patched:
            patched.setattr(f"taftcache.solve.inverses.dual.{limit}", value)
            assert not kernel_inverse_fits(problem)
            assert kernel_inverse_fits(problem, parts=2) == (limit == "LARGEST_FACTORS")


def test_kernel_over_several_blocks(monkeypatch):
    whole = kernel(make_problem())
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    assert (kernel(make_problem()) - whole).norm() <= 1e-12 * whole.norm()


def test_kroneckers_head_is_exact_when_alpha_is_one():
    """The head's curvature is the same at every row, so its Kronecker pair is no approximation."""
    problem = make_problem(loss=RSL(alpha=1.0, kappa=5.0), head=True)
    (v,) = draw(problem, 1)
    assert (KroneckerPreconditioner(problem).apply(problem.hessian(v)) - v).norm() <= 1e-9 * v.norm()


def test_the_heads_input_is_taken_apart_once_for_every_ridge_and_point(monkeypatch):
    """And gives the bytes of what was taken apart for that problem alone."""
    problem, calls, real = replace(make_problem(head=True), loss=CrossEntropy()), [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda factor: calls.append(factor) or real(factor))
    v, moved = draw(problem, 2)
    for at in (problem, replace(problem, ridge=0.3), problem.at(moved)[2]):
        alone = KroneckerPreconditioner(replace(at, operator=make_problem(head=True).operator))
        assert torch.equal(KroneckerPreconditioner(at).apply(v), alone.apply(v))
    assert len(calls) == 1 + 3


@every_case
@pytest.mark.parametrize("head", [False, True])
def test_sampled_is_the_inverse_of_its_samples_curvature(vit, spec, head):
    """Gradient by gradient: G from products with Jᵀ of one row and one probe, the inverse from a dense solve."""
    inverse = SampledInverse(make_problem(vit, spec, head=head), 24)
    operator = inverse.sample.operator
    assert [len(probe) for probe in inverse.probes] == [12, 12]
    G = []
    for probe in inverse.probes:
        for row in range(len(probe)):
            alone = torch.zeros_like(probe)
            alone[row] = probe[row]
            G.append(operator.accumulate(None, Given(values=alone)))
    stacked = torch.stack(G)
    whole = stacked.T @ stacked / len(G) + inverse.sigma * torch.eye(operator.layout.size, dtype=torch.float64)
    (v,) = draw(inverse.sample, 1)
    assert (whole @ inverse.apply(v) - v).norm() <= 1e-10 * v.norm()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_sampled_curvature_is_that_of_all_rows_on_average(weighted, moved):
    """vᵀJᵀDJv from the probes of every row: with the rows' weights, and where cross-entropy's curvature is taken."""
    problem = make_problem(head=True)
    if moved:
        problem = replace(problem, loss=CrossEntropy())
    if weighted:
        by_sample = torch.arange(N, dtype=torch.float64) % 3
        problem = replace(problem, weights=RowWeights(torch.tensor([1.0, 4.0, 1.0, 2.0]), by_sample))
    if moved:
        problem = problem.at(3 * draw(problem, 1)[0])[2]
    inverse = SampledInverse(problem, N * 50)
    (v,) = draw(problem, 1)
    change = inverse.sample.forward(v)
    squares = torch.stack([(change * probe).sum(1).square() for probe in inverse.probes])
    true = v @ problem.hessian(v) - problem.ridge * v @ v
    assert squares.mean().item() == pytest.approx(true.item(), rel=0.1)


def test_a_sample_spreads_over_all_sources_whatever_their_sizes_and_takes_another_ridge():
    (v,) = draw(make_problem(), 1)
    whole, parts = (SampledInverse(make_problem(sizes=sizes), 32) for sizes in [(N,), (3, 17, 20)])
    assert torch.equal(whole.apply(v), parts.apply(v))
    other = SampledInverse(make_problem(ridge=1.0), 32)
    assert not torch.equal(whole.apply(v), other.apply(v))
    whole.shift(1.0)
    assert torch.equal(whole.apply(v), other.apply(v))
    halves = [SampledInverse(make_problem(), n).sample.operator.sources[0].index for n in (16, 80)]
    assert [list(index) for index in halves] == [list(range(0, N, 5)), list(range(N))]


def test_a_head_has_a_kernel_that_is_worth_its_cheap_passes(monkeypatch):
    def gradients(head):
        return sum(map(len, SampledInverse(make_problem(head=head)).probes))

    assert gradients(True) == gradients(False) == 1 << (N // 2).bit_length() - 1
    monkeypatch.setattr("taftcache.solve.inverses.sampled.OF_HEAD", 0.1)
    size = make_problem(head=True).operator.layout.size
    assert gradients(True) == 1 << int((0.1 * N * size) ** (1 / 3)).bit_length() - 1 < gradients(False)


def test_many_rows_are_solved_under_a_sample(monkeypatch):
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    monkeypatch.setattr("taftcache.solve.inverses.class_kernel.LARGEST_LOGITS", 0)
    solve = partial(minimised, case().base, rows(), RSL(alpha=1.0, kappa=5.0), 1e-2, tolerance=1e-6)
    factors = solve()
    monkeypatch.setattr("taftcache.solve.inverses.sampled.LEAST_ROWS", N)
    monkeypatch.setattr("taftcache.solve.inverses.sampled.ROWS_EACH", 1)
    assert isinstance(approximate_inverse(make_problem()), SampledInverse)
    sampled = solve()
    assert sampled.converged
    assert (sampled.value - factors.value).norm() <= sampled.certificate.distance + factors.certificate.distance


def test_small_parameters_of_very_unlike_sizes_are_inverted_in_float32_too():
    problem = make_problem("all", "class-token", dtype=torch.float32, ridge=1e-7)
    base = problem.operator.base
    assert base.state[base.config.token_name].abs().max() < 1e-4  # LayerNorm multiplies what it moves
    vector = torch.ones(problem.operator.layout.size)
    assert torch.isfinite(KroneckerPreconditioner(problem).apply(vector)).all()


def test_limits_decide_which_is_used(monkeypatch):
    problem = make_problem()
    assert kernel_inverse_fits(problem)
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", N * K - 1)
    assert not kernel_inverse_fits(problem)


def test_the_space_of_the_rows_is_taken_where_a_factorisation_costs_more(monkeypatch):
    problem = make_problem()
    solve = partial(minimised, case().base, rows(), problem.loss, problem.ridge, tolerance=1e-10)
    assert kernel_inverse_fits(problem)
    assert not through_rows(problem)
    direct = solve()
    monkeypatch.setattr("taftcache.solve.minimise.DIRECT", N * K - 1)
    assert through_rows(problem)
    by_rows = solve()
    assert [direct.stats.solver, by_rows.stats.solver] == ["pcg", "row space"]
    assert (direct.value - by_rows.value).norm() <= direct.certificate.distance + by_rows.certificate.distance
    assert solve(start=by_rows.value).stats.solver == "pcg"  # a start that is not zero
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", N * K - 1)
    assert not kernel_inverse_fits(problem)
    assert through_rows(problem)
