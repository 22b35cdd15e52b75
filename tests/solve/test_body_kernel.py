"""What the kernel of the rows is made of, where one row of tokens reaches the logits and where all do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from taftcache.backbone.cut.cut import Cut
from taftcache.objective.cotangent import Given, random_signs
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.inverses.body_kernel import METRIC_ROWS, Sketch, class_metric, kernels, rank_of_many
from taftcache.solve.inverses.class_kernel import ClassKernel, class_kernel_fits
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.backbone.registry import small_backbone
from tests.solve.problems import minimised

N, K = 30, 3
KINDS = {"one row": ("token", 1), "layers": ("token", 2), "pooled layers": ("avg", 1), "functional": ("map", 1)}
each_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def base_of(kind: str) -> Base:
    """The end of a small ViT: its last block, its last two, one with all tokens to the head, one by torch.func."""
    pool, blocks = KINDS[kind]
    cut = Cut(small_backbone(depth=2, embed_dim=12, global_pool=pool), blocks)
    return make_base(cut.tail_state(), cut.tail_config(), K, module=cut.module())


def rows_of(base: Base) -> list[ArrayRows]:
    drawn = torch.randn(N, 17, 12, generator=torch.Generator().manual_seed(2)).numpy()
    return [ArrayRows(part, np.arange(len(part)) % K) for part in (drawn[:5], drawn[5:])]


def problem_of(kind: str, without: Sequence[str] = (), dtype: torch.dtype = torch.float64) -> Problem:
    base = base_of(kind)
    layout = base.layout.named(name for name in base.layout if name not in without)
    operator = TangentOperator(base, rows_of(base), trained=layout, dtype=dtype)
    return Problem(operator, RSL(alpha=2.0, kappa=5.0), 1e-3)


def body_gradients(problem: Problem, r: Tensor) -> Tensor:
    """Jᵀ r of each row [n,P] with zeros for the head's weight, and its bias beside it, for r [n,K]; row by row."""
    operator, head = problem.operator, problem.operator.base.config.head_names
    written = torch.zeros(len(r), operator.layout.size, dtype=operator.dtype)
    for row, gradient in enumerate(written):
        alone = torch.zeros(N, K, dtype=operator.dtype)
        alone[row] = r[row]
        operator.accumulate(None, Given(values=alone), onto=gradient)
    for name in head if head[0] in operator.layout else ():
        if name in operator.layout:
            written[:, operator.layout.slices[name]] = 0
    return written


@each_kind
@pytest.mark.parametrize("without", [(), ("head.bias",), ("head.weight",), ("head.weight", "head.bias")], ids=str)
def test_kernel_and_metric_are_the_gradients_own(monkeypatch, kind, without):
    """A sketch of as many numbers as there are parameters leaves inner products as they are."""
    problem = problem_of(kind, without)
    monkeypatch.setattr("taftcache.solve.inverses.body_kernel.SKETCHED", problem.operator.layout.size)
    units = torch.eye(K, dtype=torch.float64)
    first = torch.stack([body_gradients(problem, unit.expand(METRIC_ROWS, K)) for unit in units], 1)
    metric = (first @ first.mT).mean(0)
    assert torch.allclose(class_metric(problem), metric, rtol=1e-10, atol=1e-12)

    head, body, factored = kernels([problem], metric)
    assert not factored
    probe = random_signs(metric[0], seed=0)
    written = body_gradients(problem, probe.expand(N, K))
    assert torch.allclose(body, written @ written.T / (probe @ metric @ probe), rtol=1e-10, atol=1e-12)
    feature = torch.cat([state.feature for state, _ in problem.operator.blocks()])
    inputs = [feature] if "head.weight" not in without else []
    ones = [torch.ones(N, 1, dtype=torch.float64)] if inputs and "head.bias" not in without else []
    assert torch.equal(head, torch.cat([feature[:, :0], *inputs, *ones], 1))


@each_kind
def test_a_sketch_keeps_inner_products_about(kind):
    problem = problem_of(kind)
    assert problem.operator.layout.size > 1000
    r = torch.randn(N, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sketch, written = Sketch(problem.operator, 500), body_gradients(problem, r)
    found = torch.cat([sketch(state, r[:5] if len(y) == 5 else r[5:]) for state, y in problem.operator.blocks()])
    lengths = written.norm(dim=1)
    away = (found @ found.T - written @ written.T) / (lengths[:, None] * lengths)
    assert found.shape == (N, 500)
    assert 0 < away.square().mean().sqrt() < 2 * (2 / 500) ** 0.5


@pytest.mark.parametrize("kind", ["layers", "functional"])
@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_factors_of_many_rows_have_the_inverse_of_their_kernel(monkeypatch, kind, alpha):
    problem = replace(problem_of(kind), loss=RSL(alpha=alpha, kappa=5.0))
    labels = torch.cat([labels for _, labels in problem.operator.blocks()])
    scale = problem.diagonal(labels, torch.zeros((), dtype=torch.float64)).sqrt()
    rows = torch.arange(N)
    dual = torch.randn(N, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def seen(part: float) -> list[Tensor]:
        kernel = ClassKernel(problem, scale, part=part)
        inverse = torch.stack([kernel.apply(unit)[0].reshape(-1) for unit in torch.eye(N * K).double().view(-1, N, K)])
        assert torch.linalg.eigvalsh(inverse).min() > 0
        assert kernel._whole == (kernel._rows.shape[1] == N)
        return [inverse, kernel.moves(rows)(dual), kernel.within(dual), torch.tensor(kernel.apply(dual)[1])]

    parts = "taftcache.solve.inverses.body_kernel"
    monkeypatch.setattr(f"{parts}.LEAST_RANK", 1)
    for numbers in (12, 200):
        monkeypatch.setattr(f"{parts}.SKETCHED", numbers)
        monkeypatch.setattr(f"{parts}.LARGEST_RANK", numbers)
        monkeypatch.setattr(f"{parts}.LARGEST_ROWS", N)
        matrix = seen(part=0.0)
        monkeypatch.setattr(f"{parts}.LARGEST_ROWS", N - 1)
        for found, expected in zip(seen(part=0.0), matrix, strict=True):
            assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_rows_that_left_stand_behind_the_others(monkeypatch):
    problem, metric = problem_of("layers"), torch.eye(K, dtype=torch.float64)
    parts = "taftcache.solve.inverses.body_kernel"
    for name in ("SKETCHED", "LARGEST_RANK", "LEAST_RANK"):
        monkeypatch.setattr(f"{parts}.{name}", 50)
    matrix = kernels([problem, problem], metric)
    monkeypatch.setattr(f"{parts}.LARGEST_ROWS", N - 1)
    factors = kernels([problem, problem], metric)
    assert (matrix.factored, factors.factored) == (False, True)
    first = factors.first(N)
    assert torch.allclose(first.body @ first.body.T, matrix.first(N).body, rtol=1e-10, atol=1e-12)
    assert torch.equal(first.head, matrix.first(N).head)
    for crossing, of_matrix in zip(factors.between(N), matrix.between(N), strict=True):
        assert torch.allclose(crossing, of_matrix, rtol=1e-10, atol=1e-12)
    assert torch.allclose(factors.between(N)[1], matrix.first(N).body, rtol=1e-10, atol=1e-12)  # here the same rows


def test_rows_leave_where_no_row_sees_what_is_below_the_head(monkeypatch):
    """Ω = 0, as of a key's bias, along which the softmax cancels."""
    monkeypatch.setattr("taftcache.solve.inverses.class_kernel.class_metric", lambda _: torch.zeros(K, K).double())
    problem = problem_of("layers")
    kernel = ClassKernel(problem, torch.full((N, K), N**-0.5, dtype=torch.float64), gone=problem)
    assert torch.isfinite(kernel.without(torch.ones(N, K, dtype=torch.float64))).all()


def test_limits_of_what_many_rows_are_seen_by(monkeypatch):
    monkeypatch.setattr("taftcache.solve.inverses.class_kernel.LARGEST_ROWS", N - 1)
    assert class_kernel_fits(problem_of("layers"))
    assert not class_kernel_fits(problem_of("one row"))
    monkeypatch.setattr("taftcache.solve.inverses.body_kernel.LARGEST_BASIS", 4 * N * 1024 - 1)
    assert not class_kernel_fits(problem_of("layers"))
    monkeypatch.setattr("taftcache.solve.inverses.class_kernel.LARGEST_ROWS", N)
    assert class_kernel_fits(problem_of("layers"))


@pytest.mark.parametrize(("rows", "rank"), [(5000, 4096), (32768, 4096), (50000, 2684), (131072, 1024), (131073, None)])
def test_more_rows_are_seen_by_less_each(rows, rank):
    assert rank_of_many(rows) == rank


@pytest.mark.law(
    "Where all tokens reach the logits, a solve takes less than a third of the passes of Kronecker factors"
)
@pytest.mark.parametrize("kind", ["layers", "pooled layers", "functional"])
def test_tails_on_all_tokens_are_solved_in_the_space_of_the_rows(monkeypatch, kind):
    base, loss, sources = base_of(kind), RSL(alpha=2.0, kappa=5.0), rows_of(base_of(kind))
    exact = minimised(base, sources, loss, 1e-3, tolerance=1e-9)
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_WRITTEN", 0)  # or the exact kernel would do
    found = minimised(base, sources, loss, 1e-3, tolerance=1e-7)
    assert (exact.stats["solver"], found.stats["solver"]) == ("pcg", "row space")
    assert exact.converged
    assert found.converged
    assert (found.value - exact.value).norm().item() <= found.certificate.distance <= 1e-3 * exact.value.norm().item()
    most = 3 * found.stats["passes"]
    factors = minimised(base, sources, loss, 1e-3, tolerance=1e-7, max_passes=most, method="conjugate")
    assert not factors.converged
