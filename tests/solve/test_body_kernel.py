"""What the kernel of the rows is made of, where one row of tokens reaches the logits and where all do."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from taftcache.backbone.cut.cut import Cut
from taftcache.objective.cotangent import Given, random_signs
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.solve.inverses.body_kernel import METRIC_ROWS, Kernels, class_metric, kernels
from taftcache.solve.inverses.class_kernel import ClassKernel, class_kernel_fits
from taftcache.solve.inverses.landmarks import Sketch
from taftcache.solve.inverses.row_basis import RowBasis, row_basis
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.backbone.registry import small_backbone
from tests.solve.problems import minimised

N, K = 30, 3
KINDS = {"one row": ("token", 1), "layers": ("token", 2), "pooled layers": ("avg", 1), "functional": ("map", 1)}
LANDMARKS = "taftcache.solve.inverses.landmarks.LANDMARKS"
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
    for row in range(len(r)):
        alone = torch.zeros(N, K, dtype=operator.dtype)
        alone[row] = r[row]
        written[row] = operator.accumulate(None, Given(values=alone))
    for name in head if head[0] in operator.layout else ():
        if name in operator.layout:
            written[:, operator.layout.slices[name]] = 0
    return written


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        pytest.param(kind, names, marks=[pytest.mark.full] if kind == "functional" and len(names) == 1 else [])
        for kind in KINDS
        for names in [(), ("head.bias",), ("head.weight",), ("head.weight", "head.bias")]
    ],
)
def test_kernel_and_metric_are_the_gradients_own(monkeypatch, kind, without):
    """A sketch of as many numbers as there are parameters leaves inner products as they are."""
    problem = problem_of(kind, without)
    for module in ("body_kernel", "landmarks"):
        monkeypatch.setattr(f"taftcache.solve.inverses.{module}.SKETCHED", problem.operator.layout.size)
    units = torch.eye(K, dtype=torch.float64)
    first = torch.stack([body_gradients(problem, unit.expand(METRIC_ROWS, K)) for unit in units], 1)
    metric = (first @ first.mT).mean(0)
    assert torch.allclose(class_metric(problem), metric, rtol=1e-10, atol=1e-12)

    found = kernels([problem], metric)
    head, body = found.head, found.body @ found.body.T
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


@each_kind
def test_landmarks_see_each_other_exactly_and_the_rest_of_the_rows_in_their_span(monkeypatch, kind):
    kappa = kernels_of_all(monkeypatch, kind)
    monkeypatch.setattr(LANDMARKS, 10)
    found = kernels([problem_of(kind)], torch.eye(K, dtype=torch.float64))
    body = found.body
    assert body.shape == (N, 10)
    known = torch.arange(10) * 3
    spanned = kappa[:, known] @ torch.linalg.solve(kappa[known][:, known], kappa[known])
    assert (body @ body.T - spanned).norm() <= 1e-8 * kappa.norm()
    assert (spanned - kappa).norm() > 1e-3 * kappa.norm()
    assert torch.allclose(found.unseen, (kappa - spanned).diagonal(), atol=1e-8 * kappa.trace().item())


@each_kind
@pytest.mark.parametrize("without", [(), ("head.weight", "head.bias")], ids=str)
def test_fewer_of_the_landmarks_see_what_they_would_alone(monkeypatch, kind, without):
    problem, metric = problem_of(kind, without), torch.eye(K, dtype=torch.float64)
    monkeypatch.setattr(LANDMARKS, 12)
    fewer = kernels([problem], metric).by_fewer(4)
    monkeypatch.setattr(LANDMARKS, 3)
    alone = kernels([problem], metric)
    assert fewer.body.shape == alone.body.shape
    assert torch.equal(fewer.landmarks, alone.landmarks)
    assert torch.equal(fewer.head, alone.head)
    assert torch.allclose(fewer.body @ fewer.body.T, alone.body @ alone.body.T, atol=1e-9 * alone.body.square().sum())
    assert torch.allclose(fewer.unseen, alone.unseen, atol=1e-9 * alone.body.square().sum())


def test_what_fewer_landmarks_know_of_all_rows_is_gone_before_the_rest_is_made(monkeypatch):
    made: list[weakref.ref[Tensor]] = []

    def watched(found: Kernels, row: Tensor, dtype: torch.dtype) -> RowBasis:
        assert all(rows() is None for rows in made)
        basis = row_basis(found, row, dtype)
        made.append(weakref.ref(basis.rows))
        return basis

    monkeypatch.setattr(LANDMARKS, 8)
    monkeypatch.setattr("taftcache.solve.inverses.class_kernel.row_basis", watched)
    scale = torch.full((N, K), N**-0.5, dtype=torch.float64)
    ClassKernel(problem_of("one row", ["head.weight", "head.bias"]), scale, sampled=torch.arange(3))
    assert len(made) == 2


def kernels_of_all(monkeypatch: pytest.MonkeyPatch, kind: str, without: Sequence[str] = ()) -> Tensor:
    """κ, for Ω = I."""
    monkeypatch.setattr(LANDMARKS, N)
    body = kernels([problem_of(kind, without)], torch.eye(K, dtype=torch.float64)).body
    return body @ body.T


@pytest.mark.parametrize("without", [(), ("head.weight", "head.bias")], ids=str)
@pytest.mark.parametrize("landmarks", [5, N])
def test_a_basis_of_the_rows_holds_both_kernels(monkeypatch, landmarks, without):
    monkeypatch.setattr(LANDMARKS, landmarks)
    found = kernels([problem_of("one row", without)], torch.eye(K, dtype=torch.float64))
    row = 1 + torch.arange(N, dtype=torch.float64)[:, None] / N
    rows, sigma, head, beyond = row_basis(found, row, torch.float64)
    assert rows.shape == (N, len(sigma))
    assert len(sigma) <= min(N, found.columns.shape[1])
    assert torch.allclose(rows.T @ rows, torch.eye(len(sigma), dtype=torch.float64), atol=1e-10)
    body = row * found.body
    assert torch.allclose(rows @ (sigma[:, None] * rows.T), body @ body.T, atol=1e-10 * body.square().sum().item())
    assert torch.allclose(rows @ head, row * found.head, atol=1e-10)
    whole = kernels_of_all(monkeypatch, "one row", without)
    left = (row.square() * (whole - found.body @ found.body.T).diagonal()[:, None]).sum().item()
    assert beyond * (N - len(sigma)) == pytest.approx(left, abs=1e-8 * whole.trace().item())
    assert (beyond > 0) == (landmarks < N)


@pytest.mark.parametrize(
    ("kind", "classes", "alpha"),
    [
        pytest.param(kind, classes, alpha, marks=[pytest.mark.full] if kind == "functional" and alpha < 3 else [])
        for kind, classes in [("layers", K), ("functional", K), ("one row", K), ("one row", 1)]
        for alpha in (0.5, 1.0, 3.0)
    ],
)
def test_directions_of_few_landmarks_have_the_inverse_of_all_directions(monkeypatch, kind, alpha, classes):
    """Beyond theirs, all directions have the same eigenvalue."""
    problem = replace(problem_of(kind), loss=RSL(alpha=alpha, kappa=5.0))
    labels = torch.cat([labels for _, labels in problem.operator.blocks()]) % classes
    scale = problem.diagonal(labels, torch.zeros((), dtype=torch.float64)).sqrt()
    dual = torch.randn(N, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def seen() -> tuple[list[Tensor], bool]:
        kernel = ClassKernel(problem, scale, part=0.0, sampled=torch.arange(N))
        inverse = torch.stack([kernel.apply(unit)[0].reshape(-1) for unit in torch.eye(N * K).double().view(-1, N, K)])
        assert torch.linalg.eigvalsh(inverse).min() > 0
        whole = kernel._all.whole
        return [inverse, kernel.moves(dual)[0], kernel.within(dual), torch.tensor(kernel.apply(dual)[1])], whole

    monkeypatch.setattr(LANDMARKS, 4)
    found, whole = seen()
    assert not whole

    def completed(found: Kernels, row: Tensor, dtype: torch.dtype) -> RowBasis:
        rows, sigma, head, beyond = row_basis(found, row, dtype)
        assert beyond > 1e-3 * sigma.median()
        others = torch.linalg.qr(rows, mode="complete").Q[:, len(sigma) :]
        flat = torch.full_like(others[0], beyond)
        return RowBasis(
            torch.cat([rows, others], 1), torch.cat([sigma, flat]), torch.cat([head, 0 * (others.T @ rows @ head)]), 0.0
        )

    monkeypatch.setattr("taftcache.solve.inverses.class_kernel.row_basis", completed)
    expected, whole = seen()
    assert whole
    for part, of_all in zip(found, expected, strict=True):
        assert (part - of_all).norm() <= 1e-8 * of_all.norm()


@each_kind
def test_rows_that_left_stand_behind_the_others(monkeypatch, kind):
    """And are landmarks too."""
    problem, metric = problem_of(kind), torch.eye(K, dtype=torch.float64)
    whole = kernels([problem], metric)
    kappa = whole.body @ whole.body.T
    gone = problem_of(kind)
    gone.operator.sources = [rows_of(gone.operator.base)[0]]
    gone.operator.rows = 5
    monkeypatch.setattr(LANDMARKS, 20)
    found = kernels([problem, gone], metric)
    units, zeros = torch.eye(5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    assert torch.allclose(found.across(N, units, zeros), whole.head @ whole.head[:5].T)
    assert torch.allclose(found.across(N, zeros, units), kappa[:, :5], atol=1e-8 * kappa.norm().item())
    assert torch.equal(found.first(N).head, whole.head)
    assert found.first(N).body.shape == (N, found.m)


class Largest(TorchDispatchMode):
    """How many numbers the largest result has."""

    numbers = 0

    def __torch_dispatch__(self, call, types, arguments=(), named=None):
        made = call(*arguments, **(named or {}))
        self.numbers = max(self.numbers, made.numel())
        return made


def test_no_number_is_made_for_each_row_that_stays_and_each_that_left():
    """Of 90,000 rows and a class of 10,000 they would be gigabytes."""
    columns, none = torch.randn(80, 5, generator=torch.Generator().manual_seed(0)), torch.zeros(80)
    found = Kernels(columns, 3, none, none, none, none)
    ones = torch.ones(40, K)
    with Largest() as largest:
        across = found.across(40, ones, 2 * ones)
    assert torch.allclose(
        across, (columns[:40, 3:] @ columns[40:, 3:].T + 2 * columns[:40, :3] @ columns[40:, :3].T) @ ones
    )
    assert 0 < largest.numbers < 40 * 40


def test_rows_leave_where_no_row_sees_what_is_below_the_head(monkeypatch):
    """Ω = 0, as of a key's bias, along which the softmax cancels."""
    monkeypatch.setattr("taftcache.solve.inverses.class_kernel.class_metric", lambda _: torch.zeros(K, K).double())
    problem = problem_of("layers")
    found = kernels([problem, problem], torch.zeros(K, K).double())
    ones = torch.ones(N, K, dtype=torch.float64)
    kernel = ClassKernel(problem, N**-0.5 * ones, found, carried=ones)
    assert torch.isfinite(kernel.without(ones)).all()


def test_limits_of_what_many_rows_are_seen_by(monkeypatch):
    limits = "taftcache.solve.inverses.class_kernel"
    for kind in KINDS:
        problem = problem_of(kind)
        P, width = problem.operator.layout.size, problem.operator.base.config.width
        assert class_kernel_fits(problem)
        for name, least in {
            "LARGEST_LOGITS": N * K,
            "LARGEST_BASIS": 4 * N * (1024 + width),
            "APPLY_EACH": N * K / P,
        }.items():
            with monkeypatch.context() as patch:
                patch.setattr(f"{limits}.{name}", least)
                assert class_kernel_fits(problem)
                patch.setattr(f"{limits}.{name}", least * 0.999)
                assert not class_kernel_fits(problem)
        with monkeypatch.context() as patch:  # an apply costs no more where landmarks are fewer than rows
            patch.setattr(f"{limits}.APPLY_EACH", (width + 10) * K / P)
            assert not class_kernel_fits(problem)
            patch.setattr(f"{limits}.LANDMARKS", 10)
            assert class_kernel_fits(problem)


@pytest.mark.law("Few landmarks cost passes, and no exactness")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.full] if kind == "functional" else []) for kind in KINDS]
)
def test_few_landmarks_lead_to_the_same_solution(monkeypatch, kind):
    base, loss, sources = base_of(kind), RSL(alpha=2.0, kappa=5.0), rows_of(base_of(kind))
    exact = minimised(base, sources, loss, 1e-3, tolerance=1e-9)
    monkeypatch.setattr("taftcache.solve.minimise.DIRECT", 0)
    monkeypatch.setattr(LANDMARKS, 6)
    found = minimised(base, sources, loss, 1e-3, tolerance=1e-7, max_passes=300)
    assert (found.stats.solver, found.converged) == ("row space", True)
    assert (found.value - exact.value).norm().item() <= found.certificate.distance <= 1e-3 * exact.value.norm().item()


@pytest.mark.law(
    "Where all tokens reach the logits, a solve takes less than a third of the passes of Kronecker factors"
)
@pytest.mark.parametrize("kind", ["layers", "pooled layers", pytest.param("functional", marks=pytest.mark.full)])
def test_tails_on_all_tokens_are_solved_in_the_space_of_the_rows(monkeypatch, kind):
    base, loss, sources = base_of(kind), RSL(alpha=2.0, kappa=5.0), rows_of(base_of(kind))
    exact = minimised(base, sources, loss, 1e-3, tolerance=1e-9)
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_WRITTEN", 0)  # or the exact kernel would do
    found = minimised(base, sources, loss, 1e-3, tolerance=1e-7)
    assert (exact.stats.solver, found.stats.solver) == ("pcg", "row space")
    assert exact.converged
    assert found.converged
    assert (found.value - exact.value).norm().item() <= found.certificate.distance <= 1e-3 * exact.value.norm().item()
    most = 3 * found.stats.passes
    factors = minimised(base, sources, loss, 1e-3, tolerance=1e-7, max_passes=most, method="conjugate")
    assert not factors.converged
