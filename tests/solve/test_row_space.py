"""Solving in the space of the rows, and the kernel that it is preconditioned with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from math import inf

import numpy as np
import pytest
import torch

from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.objective.squared_error import SquaredError
from taftcache.objective.weights import RowWeights
from taftcache.solve.choosing import STEPS
from taftcache.solve.inverses.class_kernel import LITTLE, ROUNDING, ClassKernel, class_kernel_fits, kernel_product
from taftcache.solve.methods.basis import Basis
from taftcache.solve.methods.gauge import CHECK, Gauge
from taftcache.solve.methods.many_ridges import ridge_deltas
from taftcache.solve.methods.refinement import refine
from taftcache.solve.methods.row_space import Restart, RowSpace
from taftcache.solve.pair import ProblemPair
from taftcache.solve.solution import Status
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from tests.solve.problems import K, N, case, dense, jacobian, labels, make_problem, minimised, tokens
from tests.solve.problems import rows as data

CASES = [("narrow-mlp", "keep"), ("all", "class-token"), ("plain", "reset-block")]
every_case = pytest.mark.parametrize(("vit", "spec"), CASES)
LOSS = RSL(alpha=1.0, kappa=5.0)


def space(vit="narrow-mlp", spec="keep", *, loss=LOSS, ridge=1e-2, max_passes=400, **changes) -> RowSpace:
    pair = ProblemPair(
        *(
            replace(make_problem(vit, spec, loss=loss, ridge=ridge, dtype=dtype), **changes)
            for dtype in (torch.float32, torch.float64)
        )
    )
    return RowSpace(pair, max_passes)


def inverse_of(kernel: ClassKernel) -> torch.Tensor:
    """(K̂ + τI)⁻¹ [N·K,N·K], written out."""
    units = torch.eye(N * K, dtype=torch.float64).view(-1, N, K)
    return torch.stack([kernel.apply(unit)[0].reshape(-1) for unit in units])


@pytest.mark.parametrize(
    ("vit", "spec"), [("narrow-mlp", "keep"), pytest.param("plain", "reset-block", marks=pytest.mark.full)]
)
@pytest.mark.parametrize(("alpha", "ridge"), [(1.0, 1e-2), (3.0, 1e-2), (1.0, 1e-4)])
def test_solution_is_the_dense_one(vit, spec, alpha, ridge):
    loss = RSL(alpha=alpha, kappa=5.0)
    rows, whole = space(vit, spec, loss=loss, ridge=ridge), dense(vit, spec, loss=loss, ridge=ridge)
    solution = rows.solution(rows.run(1e-8))
    assert solution.converged
    c, optimum = solution.certificate, whole.solution
    energy = whole.gradient(solution.value) @ (solution.value - optimum)
    assert energy.clamp_min(0).sqrt().item() <= c.residual * (1 + 1e-6) + 1e-12
    assert (solution.value - optimum).norm().item() <= c.distance * (1 + 1e-6)
    assert (solution.value - optimum).norm() <= 1e-3 * optimum.norm()
    assert c.energy < c.gradient / ridge**0.5  # not the bound that every solver has


@pytest.mark.law("A true class that weighs ten times as much costs less than twice the passes")
def test_weighing_the_true_class_is_cheap():
    even, uneven = (space("plain", "reset-block", loss=RSL(alpha=a, kappa=5.0), ridge=1e-3) for a in (1.0, 10.0))
    assert even.run(1e-4) is uneven.run(1e-4) is Status.converged
    assert uneven.passes < 2 * even.passes


def test_conjugate_gradients_go_on_where_rounding_stops_it(monkeypatch):
    """The class token's kernel is a hundred thousand times the ridge."""
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    monkeypatch.setattr("taftcache.solve.minimise.class_kernel_fits", lambda problem: True)
    sources = data("all", "class-token")
    told: list[int] = []

    def on_pass(passes: int, residual: float) -> None:
        told.append(passes)

    solution = minimised(case("all", "class-token").base, sources, LOSS, 1e-2, tolerance=1e-6, on_pass=on_pass)
    whole = dense("all", "class-token", loss=LOSS, ridge=1e-2)
    assert solution.converged
    assert solution.stats.solver == "row space, pcg"
    assert told == sorted(told)
    assert (solution.value - whole.solution).norm() <= 1e-3 * whole.solution.norm()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_solve_that_rounding_stops_goes_on_under_a_larger_shift_and_then_in_float64(monkeypatch, times):
    shifts: list[float] = []

    def stopped(solve, *arguments, **settings):
        solve._gather()
        shifts.append(solve.kernel._part * (solve.kernel._coupling or 0))
        return Status.stalled if len(shifts) <= times else refine(solve, *arguments, **settings)

    monkeypatch.setattr("taftcache.solve.methods.row_space.ClassKernel", partial(ClassKernel, part=0.0))
    monkeypatch.setattr("taftcache.solve.methods.row_space.refine", stopped)
    rows, whole = space(ridge=1e-3), dense(loss=LOSS, ridge=1e-3)
    status = rows.run(1e-6)
    assert status is (Status.converged if times < 3 else Status.stalled)
    assert shifts[0] == 0 < shifts[1]
    assert len(shifts) == min(times + 1, 3)
    assert ("float64" in rows.solution(status).stats.solver) == (times > 1)
    away = rows.point.value - whole.solution
    assert (away.norm() <= 1e-3 * whole.solution.norm()) == (times < 3)


def test_a_solve_that_is_to_decide_goes_on_in_float64_too(monkeypatch):
    """It asks what a row moves before its first round there, when the kernel in float64 is not made yet."""
    calls = []

    def stopped(solve, far, wanted, *arguments, **settings):
        calls.append(solve.kernel.dtype == solve.inner.operator.dtype)
        wanted()
        return Status.stalled if len(calls) < 3 else refine(solve, far, wanted, *arguments, **settings)

    monkeypatch.setattr("taftcache.solve.methods.row_space.ClassKernel", partial(ClassKernel, part=0.0))
    monkeypatch.setattr("taftcache.solve.methods.row_space.refine", stopped)
    rows, whole = space(ridge=1e-3), dense(loss=LOSS, ridge=1e-3)
    solution = rows.solution(rows.decide())
    assert calls == [True, True, False]
    assert solution.converged
    assert solution.stats.solver == "row space, float64"
    assert solution.certificate.distance <= 0.1 * solution.stats.row_moves
    assert (solution.value - whole.solution).norm() <= solution.certificate.distance


def test_the_shift_is_at_least_what_rounding_does_to_the_largest_eigenvalues():
    """With less, a direction is mostly rounding, and a round of 1,430 digits at λ = 10⁻⁶ was lost."""
    rows = space(ridge=1e-9)
    pair = rows.inner, rows.exact
    of = [ClassKernel(p, torch.full((N, K), 0.1, dtype=p.operator.dtype), part=0.0) for p in pair]
    (_, least), (largest, as_it_is) = (1 / torch.linalg.eigvalsh(inverse_of(kernel).double())[[0, -1]] for kernel in of)
    assert 1 <= (least - as_it_is) / (ROUNDING * torch.finfo(torch.float32).eps * largest) <= 1.5


@pytest.mark.parametrize("passes", [8, 14, 25])
def test_the_residual_bounds_the_gap_on_the_way(passes):
    rows, whole = space(max_passes=passes), dense(loss=LOSS, ridge=1e-2)
    solution = rows.solution(rows.run(1e-12))
    assert solution.status is Status.max_passes
    assert solution.stats.passes <= passes
    gap = whole.value(solution.value) - whole.value(whole.solution)
    assert 0 < gap <= solution.certificate.gap
    assert solution.certificate.gap <= 30 * gap


def test_rows_of_weight_zero_have_no_part():
    weights = torch.ones(N, dtype=torch.float64)
    weights[::4] = 0
    rows = space(weights=RowWeights(by_sample=weights), max_passes=900)
    solution = rows.solution(rows.run(1e-7))
    assert solution.converged
    assert rows.point.dual[::4].abs().max() < 1e-12 * rows.point.dual.abs().max()


@every_case
def test_products_and_pulls_are_the_jacobians(vit, spec):
    J, _ = jacobian(vit, spec)
    problem = make_problem(vit, spec, loss=LOSS)
    scale = torch.rand(N, K, dtype=torch.float64)
    z = torch.randn(N, K, dtype=torch.float64)
    scaled = scale.reshape(-1, 1) * J
    assert torch.allclose(problem.adjoint(z), J.T @ z.reshape(-1), rtol=1e-10, atol=1e-10)
    product = kernel_product(problem, scale, z)
    assert torch.allclose(product.reshape(-1), scaled @ (scaled.T @ z.reshape(-1)), rtol=1e-9, atol=1e-9)


@every_case
@pytest.mark.parametrize("alpha", [1.0, 6.0])
def test_the_kernel_is_symmetric_positive_and_near(vit, spec, alpha):
    problem = make_problem(vit, spec, loss=RSL(alpha=alpha, kappa=5.0))
    diagonal = problem.diagonal(torch.from_numpy(labels()), torch.zeros((), dtype=torch.float64))
    scale, even = diagonal.sqrt(), diagonal.mean(1, keepdim=True).sqrt().expand(N, K)
    eye = torch.eye(N * K, dtype=torch.float64)
    units = eye.view(-1, N, K)

    kernel = ClassKernel(problem, scale, part=0.0)
    inverse = inverse_of(kernel)
    assert torch.allclose(inverse, inverse.T, atol=1e-9 * inverse.abs().max().item())
    values = torch.linalg.eigvalsh(inverse)
    assert values[0] > 0
    J, _ = jacobian(vit, spec)
    scaled = scale.reshape(-1, 1) * J
    true = scaled @ scaled.T
    energies = torch.tensor([kernel.apply(unit)[1] for unit in units], dtype=torch.float64)
    of_even = torch.linalg.inv(inverse_of(ClassKernel(problem, even, part=0.0))) - problem.ridge * eye
    uneven = (scale / even).square().reshape(-1)
    assert torch.allclose(energies, uneven * of_even.diagonal(), rtol=1e-5, atol=1e-7)
    apart = torch.linalg.inv(inverse) - problem.ridge * eye
    # Uneven weights in a row are undone but for what couples the true entries of rows of different classes.
    assert torch.allclose(energies, apart.diagonal(), rtol=1e-5 if alpha == 1 else 0.05, atol=1e-7)
    assert (apart - true).norm() < 0.7 * true.norm()  # coarse at a width of twelve
    assert apart.trace().item() == pytest.approx(true.trace().item(), rel=0.5)


@pytest.mark.parametrize("alpha", [0.1, 10.0])
def test_under_a_large_ridge_uneven_weights_are_undone(alpha):
    loss = RSL(alpha=alpha, kappa=5.0)
    problem = replace(space(loss=loss).exact, ridge=10.0)
    scale = problem.diagonal(torch.from_numpy(labels()), torch.zeros((), dtype=torch.float64)).sqrt()
    kernel = ClassKernel(problem, scale, part=0.0)
    units = torch.eye(N * K, dtype=torch.float64).view(-1, N, K)
    products = [kernel_product(problem, scale, kernel.apply(unit)[0]) + 10.0 * kernel.apply(unit)[0] for unit in units]
    values = torch.linalg.eigvals(torch.stack(products).view(N * K, N * K)).real
    assert 0.8 < values.min() < values.max() < 1.25


def test_every_ridge_of_a_path_minimises_over_the_same_subspace():
    ridges = [1e-3, 1e-2, 1e-1, 1.0]
    rows = space(ridge=ridges[0])
    for ridge, delta in zip(ridges, ridge_deltas(ProblemPair(rows.inner, rows.exact), ridges, 40), strict=True):
        whole = dense(loss=LOSS, ridge=ridge)
        gap = whole.value(delta) - whole.value(whole.solution)
        assert gap <= 1e-2 * (whole.constant - whole.value(whole.solution))


def test_logits_may_be_more_than_parameters(monkeypatch):
    """What the rows' logits have beyond the parameters is in no product with their kernel, and in ρ all the same."""
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    base, train = case().base, ["norm.*", "head.*"]
    solution = minimised(base, data(), LOSS, 1e-3, train=train, tolerance=1e-8)
    P = len(solution.value)
    assert solution.stats.solver == "row space"
    assert 2 * P < N * K < 4 * P
    operator = TangentOperator(base, data(), trained=base.trained(train), dtype=torch.float64)
    whole = Problem(operator, LOSS, 1e-3)
    H = torch.stack([whole.hessian(unit) for unit in torch.eye(P, dtype=torch.float64)])
    optimum = torch.linalg.solve(H, -whole.evaluate(torch.zeros(P, dtype=torch.float64))[1])
    certificate, away = solution.certificate, solution.value - optimum
    assert away.norm() <= 1e-6 * optimum.norm()
    assert away.norm().item() <= certificate.distance
    assert (away @ H @ away).sqrt().item() <= certificate.energy < certificate.gradient / 1e-3**0.5


def test_a_full_basis_gives_up_its_oldest():
    basis = Basis(3, 6, torch.float64, torch.device("cpu"))
    for unit in torch.eye(6, dtype=torch.float64)[:5]:
        assert basis.add(unit, 2 * unit, 1.0)
    assert basis.known[0].shape == (3, 6)
    assert not basis.add(basis.last[0], basis.last[1], 1.0)


def test_a_fresh_class_token_is_solved_elsewhere():
    assert class_kernel_fits(make_problem(loss=LOSS))
    assert not class_kernel_fits(make_problem("all", "class-token", loss=LOSS))


@pytest.mark.parametrize("at", [6, 11])
def test_interruption_keeps_the_best_iterate(at):
    def interrupt(passes: int, residual: float) -> None:
        if passes > at:
            raise KeyboardInterrupt

    pair = ProblemPair(*(make_problem(loss=LOSS, dtype=dtype) for dtype in (torch.float32, torch.float64)))
    rows = RowSpace(pair, 100, interrupt)
    rows.begin()
    zero = rows.point.objective
    solution = rows.solution(rows.run(1e-10))
    assert solution.status is Status.interrupted
    assert solution.certificate.objective < zero
    assert solution.value.norm() > 0


def leaving(gone: list[int], ridge: float = 1e-2, loss: RSL = LOSS) -> tuple[RowSpace, torch.Tensor, torch.Tensor]:
    """The problem without some rows, which rows stay [N], and its optimum [P] from the dense Hessian."""
    stays = torch.ones(N, dtype=torch.bool)
    stays[gone] = False
    keep = stays.numpy()
    left = [ArrayRows(tokens()[keep], labels()[keep])]
    narrow, wide = (
        replace(p, operator=TangentOperator(p.operator.base, left, dtype=dtype))
        for dtype in (torch.float32, torch.float64)
        for p in [make_problem(loss=loss, ridge=ridge)]
    )
    J = jacobian()[0].view(N, K, -1)[stays].reshape(-1, wide.operator.layout.size)
    D = wide.diagonal(torch.from_numpy(labels()[keep]), J).reshape(-1, 1)
    H = J.T @ (D * J) + ridge * torch.eye(J.shape[1], dtype=torch.float64)
    _, slope = wide.evaluate(torch.zeros(J.shape[1], dtype=torch.float64))
    return RowSpace(ProblemPair(narrow, wide), 400), stays, -torch.linalg.solve(H, slope)


def going_on(whole: RowSpace, stays: torch.Tensor, goal: float) -> Restart:
    """From where a solve of all rows ended."""
    found = whole.solution(Status.converged)
    assert found.dual is not None
    return Restart(whole.inner.operator.sources, found.value, found.dual, stays, lambda moved: goal)


@pytest.mark.law("Dual vectors from before bring a solve without rows as near as asked for, with no false bound")
@pytest.mark.parametrize("landmarks", [1024, 12])
@pytest.mark.parametrize("gone", [[], [3], [0, 7, 8, 39]])
def test_a_restart_comes_as_near_as_was_asked_for(monkeypatch, gone, landmarks):
    monkeypatch.setattr("taftcache.solve.inverses.landmarks.LANDMARKS", landmarks)
    whole = space()
    whole.run(1e-9)
    dual = whole.solution(Status.converged).dual
    assert torch.allclose(whole.exact.adjoint(dual), whole.point.value)
    rows, stays, optimum = leaving(gone)
    moved = (whole.point.value - optimum).norm().item()
    goal = 0.1 * moved if gone else 1e-6
    solution = rows.solution(rows.restart(going_on(whole, stays, goal)))
    assert solution.converged
    assert solution.certificate.distance <= goal
    assert (solution.value - optimum).norm().item() <= solution.certificate.distance * (1 + 1e-6)
    cold, _, _ = leaving(gone)
    cold.restart(replace(going_on(whole, stays, goal), dual=torch.zeros_like(dual)))
    assert rows.passes < cold.passes
    if not gone:
        assert rows.rounds == 0


def test_a_restart_that_is_interrupted_before_it_stands_anywhere_is_at_zero(monkeypatch):
    whole = space()
    whole.run(1e-9)
    rows, stays, _ = leaving([3])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taftcache.solve.methods.row_space.kernels", interrupt)
    solution = rows.solution(rows.restart(going_on(whole, stays, 1e-7)))
    assert solution.status is Status.interrupted
    assert solution.value.norm() == 0


def test_rows_that_have_nothing_to_learn_without_the_others_come_back_to_zero():
    """No residual is relative to the gradient that they have there."""
    told: list[float] = []
    values = torch.zeros(N, K, dtype=torch.float64).numpy()
    values[3] = 1

    def problems(rows: list[int]) -> ProblemPair:
        sources = [ArrayRows(tokens()[rows], values[rows])]
        of = [make_problem(dtype=dtype) for dtype in (torch.float32, torch.float64)]
        return ProblemPair(
            *(replace(p, operator=p.operator.over(sources), loss=SquaredError(), jvp_only=True) for p in of)
        )

    whole = RowSpace(problems(list(range(N))), 400)
    whole.run(1e-9)
    rows = RowSpace(problems([n for n in range(N) if n != 3]), 400, lambda passes, residual: told.append(residual))
    solution = rows.solution(rows.restart(going_on(whole, torch.arange(N) != 3, 1e-6)))
    assert solution.converged
    assert solution.value.norm() <= solution.certificate.distance <= 1e-6
    assert set(told) == {inf}


def test_how_far_a_round_has_moved_takes_no_pass():
    whole = space(loss=RSL(alpha=6.0, kappa=5.0))
    whole.run(1e-9)
    rows, stays, _ = leaving([0, 7, 8, 39], loss=RSL(alpha=6.0, kappa=5.0))
    at, told = going_on(whole, stays, 1e-7), []

    def distance(moved: float) -> float:
        told.append((moved, (rows.current() - at.value).norm().item()))
        return 1e-7

    solution = rows.solution(rows.restart(replace(at, distance=distance)))
    assert solution.converged
    assert len(told) > 4
    assert max(moved for moved, _ in told) > 1.001 * min(moved for moved, _ in told)
    assert all(moved == pytest.approx(true, rel=1e-5) for moved, true in told)


@cache
def many_rows(ridge: float) -> ProblemPair:
    """300 rows in about the shape of the others, of random classes."""
    generator = np.random.default_rng(5)
    rows = tokens()[generator.integers(0, N, 300)]
    rows = (rows + 0.3 * generator.standard_normal(rows.shape)).astype(np.float32)
    sources = [ArrayRows(rows, generator.integers(0, K, 300))]
    problems = [
        make_problem(loss=RSL(alpha=2.0, kappa=5.0), ridge=ridge, dtype=d) for d in (torch.float32, torch.float64)
    ]
    return ProblemPair(*(replace(p, operator=p.operator.over(sources)) for p in problems))


@pytest.mark.law("Ten directions are near enough to choose λ by, at every λ")
@pytest.mark.parametrize("landmarks", [1024, 64])
def test_one_run_serves_every_ridge(monkeypatch, landmarks):
    monkeypatch.setattr("taftcache.solve.inverses.landmarks.LANDMARKS", landmarks)
    ridges = [10 ** (-6 + k / 2) for k in range(13)]
    pair = many_rows(ridges[0])
    for ridge, delta in list(zip(ridges, ridge_deltas(pair, ridges, STEPS), strict=True))[4:11:2]:
        exact = RowSpace(pair.at(ridge), 200)
        assert exact.run(1e-4) is Status.converged
        least, most = exact.point.objective, exact.exact.evaluate(torch.zeros_like(delta))[0]
        assert exact.exact.evaluate(delta)[0] - least <= 0.06 * (most - least)


def parted(monkeypatch) -> list[ClassKernel]:
    """In float32 and in float64, of more rows than the basis has directions, at λ = 10⁻⁶."""
    monkeypatch.setattr("taftcache.solve.inverses.landmarks.LANDMARKS", 128)
    pair = many_rows(1e-6)
    rows = RowSpace(pair, 10)
    rows.begin()
    scale = rows.scale
    made = [ClassKernel(problem, scale.to(problem.operator.dtype), part=0.0) for problem in pair]
    assert made[0]._all.rows.shape == made[1]._all.rows.shape
    assert made[0]._all.rows.shape[1] < 200
    return made


def test_what_is_left_out_beyond_the_basis_is_no_rounding(monkeypatch):
    narrow, wide = parted(monkeypatch)
    assert narrow._left_out() == pytest.approx(wide._left_out(), rel=1e-4)


def test_what_is_beyond_the_basis_does_not_drown_what_is_within(monkeypatch):
    """It weighs 1/λ, a million times as much as what leads."""
    made, found = parted(monkeypatch), []
    across = made[1]._all.rows[:, -1:].expand(-1, K).contiguous()
    for kernel in made:
        kernel._all.beyond.zero_()
        rows, v = made[1]._all.rows, across.to(kernel._all.rows)
        inverse = kernel._all.inverse(1e-6)
        out, left = kernel._solve_turned(inverse, v, v.T @ kernel._all.rows)
        found.append(rows[:, -1] @ (out.double() @ kernel._all.rows.T.double()).T + rows[:, -1] @ left.double())
    assert torch.allclose(*found, rtol=1e-3)


@pytest.mark.parametrize("ridge", [1e-2, 1e-4])
@pytest.mark.parametrize("apart", [1e-9, 1e-3, 1.0])
def test_a_bound_holds_for_dual_vectors_that_are_not_quite_those(apart, ridge):
    """Nobody takes it on trust that Δw = J̃ᵀa."""
    rows, whole = space(ridge=ridge), dense("narrow-mlp", "keep", loss=LOSS, ridge=ridge)
    rows.run(1e-10)
    found = rows.solution(Status.converged)
    noise = torch.randn(len(found.value), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    value = found.value + apart * noise / noise.norm()
    seen = space(ridge=ridge)
    seen.look(value, found.dual)
    c = seen.solution(Status.stalled).certificate
    error = value - whole.solution
    assert error.norm().item() <= c.residual / (2 * ridge**0.5) * (1 + 1e-6)
    assert (whole.gradient(value) @ error).clamp_min(0).sqrt().item() <= c.residual * (1 + 1e-6)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-10])
def test_float64_reads_the_rows_once_a_round(tolerance):
    rows = space()
    assert rows.run(tolerance) is Status.converged
    assert rows.exact.operator.passes == rows.rounds
    rows.solution(Status.converged)
    assert rows.exact.operator.passes == rows.rounds


@pytest.mark.parametrize(("goal", "max_passes"), [(float("inf"), 400), (0.0, 5)], ids=["at once", "too few passes"])
def test_a_restart_without_a_round_is_certified_in_float64_too(goal, max_passes):
    """Its start is computed in float32."""
    whole = space()
    whole.run(1e-9)
    rows, stays, _ = leaving([3])
    rows.max_passes = max_passes
    status = rows.restart(going_on(whole, stays, goal))
    found = rows.solution(status)
    objective, gradient = rows.exact.evaluate(found.value)
    assert found.certificate.gradient == pytest.approx(gradient.norm().item(), rel=1e-12)
    assert found.certificate.objective == pytest.approx(objective, rel=1e-14)
    assert torch.allclose(rows.exact.adjoint(found.dual), found.value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("goal", [float("inf"), 1e-7], ids=["at once", "after rounds"])
@pytest.mark.parametrize("gone", [[], [3]], ids=["all stay", "one left"])
def test_a_restart_counts_the_products_that_it_makes(monkeypatch, gone, goal):
    whole = space()
    whole.run(1e-3)
    rows, stays, _ = leaving(gone)
    at, halves = going_on(whole, stays, goal), 0

    def counted(product):
        def called(operator, state, *others):
            nonlocal halves
            halves += len(state.logits)
            return product(operator, state, *others)

        return called

    for name in ("tangent", "adjoint"):
        monkeypatch.setattr(TangentOperator, name, counted(getattr(TangentOperator, name)))
    rows.solution(rows.restart(at))
    halves //= rows.exact.operator.rows
    assert (rows.rounds == 0) == (goal == float("inf"))
    # The kernel takes a pass without a product; ∇F(0) and the rounding of the point before are half a pass each.
    assert 2 * (rows.passes - 1) - 1 <= halves <= 2 * (rows.passes - 1) + 1 + max(0, rows.rounds - 1)


@pytest.mark.parametrize("loss", [LOSS, RSL(alpha=6.0, kappa=5.0)], ids=["even", "uneven"])
def test_what_leaving_rows_carried_is_passed_on(loss):
    """The start is nearer than the others' dual vectors alone."""
    whole = space(loss=loss)
    whole.run(1e-9)
    dual = whole.solution(Status.converged).dual
    rows, stays, optimum = leaving([3], loss=loss)
    rows.restart(going_on(whole, stays, float("inf")))
    assert rows.rounds == 0
    assert (rows.point.value - optimum).norm() < 0.7 * (rows.exact.adjoint(dual[stays]) - optimum).norm()


@pytest.mark.parametrize("loss", [LOSS, RSL(alpha=6.0, kappa=5.0)], ids=["even", "uneven"])
def test_fewer_rows_weigh_more_each_whatever_the_others_carried(loss):
    """A row of no weight carries nothing, and the mean without it is another one all the same."""
    weights = torch.ones(N, dtype=torch.float64)
    weights[3] = 0
    whole = space(loss=loss, ridge=0.1, weights=RowWeights(by_sample=weights))
    whole.run(1e-9)
    rows, stays, _ = leaving([3], loss=loss, ridge=0.1)
    at = going_on(whole, stays, float("inf"))
    rows.restart(at)
    started = rows.point.value
    rows.restart(replace(at, distance=lambda moved: 1e-6))
    assert (started - rows.point.value).norm() < 0.4 * (at.value - rows.point.value).norm()


def test_a_norm_is_looked_at_now_and_then_whatever_its_estimate_says():
    """K̂ is blind to what J̃ᵀ takes to zero: by its estimate alone a solve that is done would not end."""
    residual = torch.ones(1)
    gauge = Gauge(lambda of: 0.5)
    assert [gauge.below(1.0, residual, 1e6) for _ in range(CHECK)] == [False] * (CHECK - 1) + [True]
    assert gauge.below(1.0, residual, 1e6)  # by the factor that was found


def test_the_noise_is_measured_where_the_shift_has_a_part_of_it():
    problem = make_problem(loss=LOSS, ridge=1e-3)
    scale = torch.full((N, K), 0.1, dtype=problem.operator.dtype)
    begun = problem.operator.passes
    little, some = (ClassKernel(problem, scale, part=part) for part in (0.5 * LITTLE, LITTLE))
    assert (little.passes, some.passes) == (1, 2)
    # Each reads the rows for the landmarks, which are all of them, and for κ; a product goes back and forward.
    assert problem.operator.passes - begun == 2 + 2 + 2
    assert little.steady()
    assert little.passes == 2
    assert little._now.fast.max() < some._now.fast.max()
