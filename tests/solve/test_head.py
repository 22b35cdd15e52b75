"""The head of few wide rows, in a basis of their own."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.objective import Objective
from taftcache.objective.problem import Problem
from taftcache.objective.rsl import RSL
from taftcache.objective.squared_error import SquaredError
from taftcache.objective.weights import RowWeights
from taftcache.solve.choosing import HEAD_GRID, choose_ridge, ridge_path
from taftcache.solve.head import moments as sums
from taftcache.solve.head.by_moments import ByMoments
from taftcache.solve.head.by_own_rows import PathByOwnRows
from taftcache.solve.head.by_rows import ByRows
from taftcache.solve.head.choice import every_head, groups_left_out, head_of, path_of
from taftcache.solve.head.path import PathByMoments, PathByRows, correct
from taftcache.solve.head.size import HeadSize
from taftcache.solve.head.terms import Seen, flat, seen, whole
from taftcache.solve.inverses.cholesky import cholesky, solved
from taftcache.solve.leave_one_out import LOST, leave_one_out, moves
from taftcache.solve.methods.decisive import typical
from taftcache.solve.methods.head import solve_head
from taftcache.solve.methods.newton import newton
from taftcache.solve.pair import ProblemPair
from taftcache.solve.settings import Goal
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec

D = 40


def problem(
    rows: int, alpha: float, weighted: bool = False, repeated: bool = False, classes: int = 3, lopsided: bool = False
) -> Problem:
    draw = np.random.default_rng(rows)
    features = draw.normal(size=(rows, 1, D)).astype(np.float32)
    if repeated:
        features[1:] = features[:1]
    state = {
        "head.weight": torch.from_numpy(draw.normal(size=(classes, D)).astype(np.float32)),
        "head.bias": torch.ones(classes),
    }
    base = Base(TailConfig.of_vectors(D, classes), state, TangentSpec(blocks=0, train="head"))
    labels = np.minimum(np.arange(rows) % (2 * classes), classes - 1) if lopsided else np.arange(rows) % classes
    operator = TangentOperator(base, [ArrayRows(features, labels)], dtype=torch.float64)
    weights = RowWeights(by_sample=torch.from_numpy(draw.uniform(size=rows))) if weighted else None
    return Problem(operator, RSL(alpha=alpha, kappa=5.0), 1e-3, weights=weights)


def dense(of: Problem) -> torch.Tensor:
    """Δw [P] from H and ∇F written out."""
    P = of.operator.layout.size
    zero = torch.zeros(P, dtype=torch.float64)
    H = torch.stack([of.hessian(unit) for unit in torch.eye(P, dtype=torch.float64)])
    return torch.linalg.solve(H, -of.evaluate(zero)[1])


CASES = [(9, 1.0, False), (9, 2.0, True), (20, 2.0, False), (1, 1.0, False)]
MOST = [(D + 1, 0.3, True), (D + 1, 100.0, False), (1, 2.0, False)]
of_cases = ("rows", "alpha", "weighted")


@pytest.mark.law("The head of rows that are fewer than their numbers is the dense solution, and so is all that follows")
@pytest.mark.parametrize(of_cases, CASES)
def test_a_head_of_few_rows_is_the_dense_solution(monkeypatch, rows, alpha, weighted):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    posed = problem(rows, alpha, weighted)
    exact = dense(posed)
    path = path_of(posed)
    assert path._values.shape[-1] == rows
    assert path._vectors.stride() == (rows * rows, 1, rows)  # what LAPACK writes over: else torch takes a copy
    solved = solve_head(posed)
    assert solved.converged
    for value in (solved.value, flat(posed, path.weights(posed.ridge))):
        assert (value - exact).norm() <= 1e-8 * exact.norm()


@pytest.mark.law(
    "A head in the space of its rows is the dense solution at every λ, and so is what each row is left out of"
)
@pytest.mark.parametrize(of_cases, CASES + MOST)
def test_a_head_in_the_space_of_its_rows_is_the_dense_solution(monkeypatch, rows, alpha, weighted):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    monkeypatch.setattr("taftcache.solve.head.by_rows.COLUMNS", 5)
    posed = problem(rows, alpha, weighted)
    found = ByRows(posed)
    for ridge in (1e-6, 1e-3, 1.0):
        exact = dense(replace(posed, ridge=ridge))
        assert (flat(posed, found.weights(ridge)) - exact).norm() <= 1e-8 * exact.norm()
    ridges = [1e-4, 1e-1]
    for path in path_of(posed), PathByMoments(posed):
        for ours, theirs in zip(found.leave_one_out(ridges), path.leave_one_out(ridges), strict=True):
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-7)
            assert torch.equal(ours.right, theirs.right)
            assert (ours.weight is None) == (theirs.weight is None)
            assert ours.weight is None or torch.equal(ours.weight, theirs.weight)


@pytest.mark.law("Where rows belong together, λ of a head is chosen by the exact solutions without each group")
@pytest.mark.parametrize("ridge", [1e-6, 1e-1])
@pytest.mark.parametrize(
    of_cases,
    [
        (12, 1.0, True),
        (12, 2.0, False),
        (D + 9, 1.0, False),
        (D + 9, 2.0, True),
        (299, 2.0, True),  # classes and groups of more rows than numbers
        (299, 1.0, True),
        (100, 0.3, True),  # classes of 16, 16 and 68
    ],
)
def test_leaving_groups_out_is_solving_without_each(monkeypatch, ridge, rows, alpha, weighted):
    monkeypatch.setattr("taftcache.solve.head.by_own_rows.BYTES", 8 * 3 * 20 * 41)  # a group or two at once
    posed = problem(rows, alpha, weighted, lopsided=rows == 100)
    groups = np.array([7, 1, 7, 4, 2])[np.arange(rows) % 5].astype(np.uint64)
    omega = torch.ones(rows, dtype=torch.float64) if posed.weights is None else posed.weights.by_sample
    losses, right = torch.empty(rows, dtype=torch.float64), torch.empty(rows, dtype=torch.bool)
    all_rows = Seen(*map(torch.cat, zip(*seen(posed), strict=True)))
    for group in set(groups.tolist()):
        own = torch.from_numpy(groups == group)
        left = RowWeights(by_sample=torch.where(own, 0.0, omega))  # with the same λN
        W = whole(posed, dense(replace(posed, ridge=ridge, weights=left)))
        z = all_rows.target + all_rows.away + all_rows.x @ W.T
        losses[own] = posed.loss.value(z, all_rows.labels)[own]
        right[own] = (z.argmax(1) == all_rows.labels)[own]
    for by_own_rows in (False, True) if alpha != 1 and rows > D + 1 else (False,):
        monkeypatch.setattr(HeadSize, "by_own_rows", lambda *_, by=by_own_rows: by)
        (found,) = groups_left_out(posed, [ridge], groups)
        assert found.loss == pytest.approx((omega * losses).mean().item(), rel=1e-7)
        assert torch.equal(found.right, right)
        assert found.weight is None or torch.equal(found.weight, omega)


@pytest.mark.parametrize("by", ["rows", "groups", "own rows"])
@pytest.mark.parametrize("rows", [400, 1000])
def test_what_leaving_out_takes_is_counted_by_what_it_multiplies(monkeypatch, rows, by):
    """A dry run counted decompositions alone: of 50,000 rows and 200 classes it said a fifth of what was measured."""
    monkeypatch.setattr("taftcache.solve.head.size.BATCHED", 1)  # as if small matrices were as fast as large ones
    monkeypatch.setattr("taftcache.solve.head.size.READ", 0)
    monkeypatch.setattr("taftcache.solve.head.size.DECOMPOSED", 0)  # nor is a decomposition counted here
    posed, ridges = problem(rows, 3.0, classes=rows // 40), [1e-3, 1e-2, 1e-1]
    groups = np.arange(rows) // 20
    size, sizes = HeadSize.of(posed), np.bincount(groups)
    split = torch.arange(rows).split(sizes.tolist())
    with FlopCounterMode(display=False) as counted:
        if by == "rows":
            found = size._rows_out(3)
            path_of(posed).leave_one_out(ridges)
        elif by == "groups":
            found = size._groups_out(3, sizes)
            path_of(posed).leave_groups_out(ridges, split)
        else:
            found = size._own_rows_out(3, sizes, 40)
            PathByOwnRows(posed).leave_groups_out(ridges, split)
    assert found == pytest.approx(counted.get_total_flops() / 2, rel=0.35)


def test_leaving_out_is_not_done_where_it_is_far_dearer_than_a_validation(monkeypatch):
    """What decides is a count of rows, numbers and classes: not how much memory is free, nor how fast a machine is."""
    loss = RSL(alpha=200**0.5, kappa=15.0)
    few, many = (HeadSize(loss, rows, 385, 200) for rows in (15_000, 50_000))
    assert few.left_out(10) is not None is many.left_out(10)
    for rows, numbers in ((1_000_000, 193), (50_000, 2_305)):  # CIFAR-10 as docs/results has it
        assert HeadSize(RSL(alpha=10**0.5, kappa=15.0), rows, numbers, 10).left_out(10) is not None
    assert HeadSize(RSL(), 10_000_000, 385, 200).left_out(10) is not None, "one matrix serves all classes"
    some, more = (np.full(rows // 25, 25) for rows in (4_000, 24_000))
    few, many = (HeadSize(loss, len(sizes) * 25, 385, 200) for sizes in (some, more))
    assert few.left_out(10, some, 30) is not None is many.left_out(10, more, 160)
    assert few.by_own_rows(10, some, 30)
    assert not few.by_own_rows(10, some, 385), "a class of many rows would make all classes' places as many"
    assert HeadSize(loss, 300, 385, 10).left_out(10, np.full(12, 25), 30) is not None
    posed, groups = problem(200, 3.0), np.arange(200, dtype=np.uint64) // 20
    said = {}
    for least, times in ((2**39, 6), (0, 0)):
        for name, value in (("ROWS_OUT", least), ("GROUPS_OUT", least), ("TIMES", times)):
            monkeypatch.setattr(f"taftcache.solve.head.size.{name}", value)
        for whose in (None, groups):
            base, rows, objective = (
                posed.operator.base,
                posed.operator.sources,
                Objective(loss=posed.loss, train="head"),
            )
            notes: list[str] = []
            choice = choose_ridge(base, rows, objective, groups=whose, note=notes.append)
            said[least > 0, whose is not None] = choice.method
            assert notes[0] == f"choosing λ: leaving each {'row' if whose is None else 'group'} out"
            assert notes[-1] == (notes[0] if least else "choosing λ: 10 of 10 validated")
    assert said == {
        (True, False): "leave-one-out",
        (True, True): "leave-one-group-out",
        (False, False): "validation",
        (False, True): "validation on whole groups",
    }


@pytest.mark.parametrize("apart", [1e-1, 1e-3])
@pytest.mark.parametrize("ridge", [1e-9, 1e-5])
def test_rows_that_are_nearly_alike_lose_nothing_to_rounding(apart, ridge):
    """What sets them apart is squared in their products; without a second solve 10⁻⁹ of the gradient was left."""
    posed = problem(20, 3.0)
    wide = posed.operator.sources[0]
    alike = ArrayRows(wide.tokens[:1] + np.float32(apart) * wide.tokens, wide.labels)
    posed = replace(posed, operator=posed.operator.over([alike]), ridge=ridge)
    closed = solve_head(posed)
    assert posed.evaluate(closed.value)[1].norm() <= 1e-12 * posed.evaluate(posed.zero)[1].norm()
    places = torch.arange(20)
    assert 1 / 1.6 < closed.stats.row_moves / typical(moves(posed)[places]) < 1.6


def test_a_head_in_the_space_of_its_rows_refuses_what_has_no_solution():
    posed = problem(9, 2.0, repeated=True)
    with pytest.raises(SolveError, match="rounding is larger than the ridge"):
        ByRows(posed).weights(1e-20)
    wide = posed.operator.sources[0]
    tokens = wide.tokens.copy()
    tokens[4, 0, 7] = np.inf
    with pytest.raises(SolveError, match="not finite"):
        ByRows(replace(posed, operator=posed.operator.over([ArrayRows(tokens, wide.labels)])))


def test_every_head_is_had_in_the_cheapest_way():
    assert isinstance(every_head(problem(D + 1, 2.0), 1e-8), ByRows)
    assert isinstance(every_head(problem(D + 2, 2.0), 1e-8), PathByMoments)
    assert isinstance(every_head(problem(D + 1, 1.0), 1e-8), PathByRows)


@pytest.mark.parametrize(("scale", "ridge"), [(1e5, 1e-8), (1e8, 1e-2)])
def test_products_of_which_rounding_leaves_little_are_not_taken_for_a_choice(scale, ridge):
    """A column far larger than the others: one λ was refused, and of another the factor was of rounding alone."""
    posed = problem(30, 2.0, repeated=True)
    wide = posed.operator.sources[0]
    tokens = wide.tokens.copy()
    tokens[:, 0, 3] = scale * np.random.default_rng(0).normal(size=30)
    posed = replace(posed, operator=posed.operator.over([ArrayRows(tokens, wide.labels)]))
    assert isinstance(every_head(posed, ridge), PathByRows)
    assert isinstance(every_head(posed, 1e9), ByRows)
    objective = Objective(loss=posed.loss, train="head")
    assert len(choose_ridge(posed.operator.base, posed.operator.sources, objective, grid=[ridge, 1.0]).curve) == 2


@pytest.mark.parametrize("outputs", [1, 3])
def test_values_are_fitted_in_the_space_of_the_rows_too(outputs):
    posed = problem(20, 1.0)
    wide = posed.operator.sources[0]
    values = np.random.default_rng(0).normal(size=(20, outputs)).astype(np.float32)
    config = TailConfig.of_vectors(D, outputs)
    state = {"head.weight": torch.zeros(outputs, D), "head.bias": torch.zeros(outputs)}
    base = Base(config, state, TangentSpec(blocks=0, train="head"))
    rows = ArrayRows(wide.tokens, values[:, 0] if outputs == 1 else values)
    fitted = Problem(TangentOperator(base, [rows], dtype=torch.float64), SquaredError(), 1e-3)
    assert (solve_head(fitted).value - dense(fitted)).norm() <= 1e-8 * dense(fitted).norm()


class OwnSquares:
    """Squares of a regression's errors, whose curvature has the form of the values."""

    quadratic = True

    def value(self, z, y):
        return (z - y).square().sum(1)

    def gradient(self, z, y):
        return 2 * (z - y)

    def hessian(self, z, y, v):
        return torch.full_like(y.reshape(z.shape), 2) * v

    def root(self, z, y, v):
        return 2**0.5 * v


@pytest.mark.parametrize("rows", [20, 60])
def test_a_curvature_is_asked_for_as_the_rows_targets_are(rows):
    wide = problem(rows, 1.0).operator
    values = np.random.default_rng(0).normal(size=(rows, 3))
    objective = Objective(loss=OwnSquares(), train="head")
    choice = choose_ridge(wide.base, [ArrayRows(wide.sources[0].tokens, values)], objective)
    assert choice.method == "leave-one-out"


def test_newtons_matrices_are_of_the_size_of_few_rows(monkeypatch):
    """Of 40 rows of 2,000 columns a fit took two seconds: an eigendecomposition of a matrix of the columns."""
    posed = replace(problem(9, 1.0, weighted=True), loss=CrossEntropy())
    pair = ProblemPair(replace(posed, operator=posed.operator.over(posed.operator.sources)), posed)
    elsewhere = torch.linspace(-1, 1, len(posed.zero), dtype=torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr("taftcache.solve.methods.newton.own_basis", lambda *_: None)
        wide = newton(pair, Goal(tolerance=1e-10))
    sizes: list[int] = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr("torch.linalg.eigh", lambda matrix: sizes.append(len(matrix)) or eigh(matrix))
    for start in (None, elsewhere):  # where no row sees all of it
        found = newton(pair, Goal(tolerance=1e-10), start=start)
        assert found.converged
        assert (found.value - wide.value).norm() <= found.certificate.distance + wide.certificate.distance
    assert set(sizes) == {9 + 1}


@pytest.mark.parametrize(of_cases, CASES[:-1])  # a row alone has nothing that it leaves
def test_what_follows_from_a_heads_decompositions(monkeypatch, rows, alpha, weighted):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    posed, ridges = problem(rows, alpha, weighted), [1e-4, 1e-1]
    found, whole = path_of(posed), PathByMoments(posed)
    assert whole._values.shape[-1] == D + 1
    other = problem(30, alpha).operator
    right, same = (correct(posed, torch.stack([path.weights(at) for at in ridges]), other) for path in (found, whole))
    assert torch.equal(right, same)
    assert right.sum() > 0
    for ours, theirs in zip(found.leave_one_out(ridges), whole.leave_one_out(ridges), strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-7)
        assert torch.equal(ours.right, theirs.right)


@pytest.mark.law("What a row decides of a head is the same from the rows' products as from the normal matrices")
@pytest.mark.parametrize(of_cases, [*CASES, *MOST, (100, 2.0, True), (150, 30.0, False), (150, 0.3, False)])
def test_what_each_row_decides_is_the_same_in_either_space(monkeypatch, rows, alpha, weighted):
    """Of classes of fewer rows than numbers, of more, and of both, a few at a time, and one of them alone."""
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 8 * 30 * (D + 1))
    posed = problem(rows, alpha, weighted, lopsided=rows == 100)  # 16, 16 and 68 rows, where a feature has 41 numbers
    full = torch.randn(3, D + 1, dtype=torch.float64, generator=torch.manual_seed(0))
    step = torch.randn(rows, 3, dtype=torch.float64, generator=torch.manual_seed(1))
    for ridge, only in (1e-4, None), (1e-1, None), (1e-4, [1]):
        asked = [0, 1, 2] if only is None else only
        found, same = ByRows(posed).at(ridge, only), ByMoments(posed).at(ridge, only)
        told, said = [], []
        ((rows_logits, y),), blocks = found.left_out_logits(said.append), list(same.left_out_logits(told.append))
        assert sum(said) == sum(told) == rows
        logits, labels = map(torch.cat, zip(*blocks, strict=True))
        assert torch.equal(y, labels)
        # Of more rows than numbers their products have eigenvalues that are rounding alone.
        digits = 1e-9 if rows <= D + 1 else 1e-6
        for ours, theirs, near in (
            (found.weights[asked], same.weights[asked], digits),
            (found.inverse(full)[asked], same.inverse(full)[asked], digits),
            (*(at.moved(0.1 * full, step) for at in (found, same)), digits),
            (found.along(full)[1][:, asked], same.along(full)[1][:, asked], digits),
            (rows_logits[:, asked], logits[:, asked], 1e-5),  # of leverages near 1 the others keep fewer digits
        ):
            assert (ours - theirs).abs().max() <= near * theirs.abs().max()


@pytest.mark.law("Leave-one-out is solving without the row")
@pytest.mark.parametrize("alpha", [1.0, 3.0])
@pytest.mark.parametrize("room", [1000, 512 << 20])
@pytest.mark.parametrize("rows", [2, 20, D + 1, 60, 100])
def test_how_far_a_head_moves_is_solving_without_the_row(monkeypatch, rows, room, alpha):
    """Also where there is no room for a matrix of each class."""
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", room)
    posed = problem(rows, alpha, lopsided=rows == 100)
    found, whole, source = moves(posed), solve_head(posed).value, posed.operator.sources[0]
    for n in (0, rows // 2, rows - 1):
        keep = np.delete(np.arange(rows), n)
        without = posed.operator.over([ArrayRows(source.tokens[keep], source.labels[keep])])
        moved = (solve_head(replace(posed, operator=without)).value - whole).norm()
        assert found[n].item() == pytest.approx(moved.item(), rel=1e-6)


def in_80_bits(of: Problem) -> tuple[np.ndarray, np.ndarray]:
    """What leaving each row out adds to W [N,K,d+1], and the row's logits then [N,K]."""
    rows = Seen(*map(torch.cat, zip(*seen(of), strict=True)))
    x, D, t, target = (np.asarray(part, np.longdouble) for part in (rows.x, rows.curvature, -rows.away, rows.target))

    def fit(keep: np.ndarray) -> np.ndarray:
        W = []
        for k in range(D.shape[1]):
            M = x[keep] @ x[keep].T + np.diag(np.longdouble(of.ridge) * len(keep) / D[keep, k])
            inverse, beta = np.linalg.inv(M.astype(float)), np.zeros(len(keep), np.longdouble)
            for _ in range(8):
                beta += inverse @ (t[keep, k] - M @ beta)
            W.append(beta @ x[keep])
        return np.array(W)

    each = np.arange(len(x))
    without = np.array([fit(np.delete(each, n)) for n in each])
    return without - fit(each), np.einsum("nkd,nd->nk", without, x) + target - t


@pytest.mark.law("Leave-one-out is solving without the row")
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no 80-bit numbers")
@pytest.mark.parametrize("ridge", [1e-4, 1e-6, 1e-8, 1e-10])
@pytest.mark.parametrize(
    ("way", "scale", "alpha", "least"),  # and the least λ at which there are figures
    [
        ("rows", 1.0, 3**0.5, 0.0),
        ("rows", 100.0, 3**0.5, 1e-6),
        ("moments", 1.0, 3**0.5, 0.0),
        ("moments", 1.0, 14.0, 1e-8),
        ("moments", 1.0, 300.0, 1e-6),
        ("kernel", 1.0, 3**0.5, 0.0),
    ],
)
def test_what_copies_of_a_row_change_is_right_at_any_ridge_or_not_given(monkeypatch, way, scale, alpha, least, ridge):
    """What was divided by λ was 5.6 instead of 1e-8; and a distance of 3.3 was 0.9."""
    posed = problem(D + 4 if way == "moments" else 14, alpha)
    rows = posed.operator.sources[0]
    tokens, labels = scale * rows.tokens, np.asarray(rows.labels).copy()
    tokens[[2, 4]], labels[2], labels[4] = tokens[[3, 5]], labels[3], (labels[5] + 1) % 3
    if way == "moments":
        tokens[9:] = tokens[8]  # the few that are left decide directions alone
    operator = posed.operator.over([ArrayRows(tokens, labels)])
    posed = replace(posed, operator=operator, ridge=ridge)
    if way == "kernel":
        monkeypatch.setattr("taftcache.solve.leave_one_out.is_closed", lambda problem: False)
    objective = Objective(loss=posed.loss, ridge=ridge, train="head")
    distances, delta = moves(posed), solve_head(posed).value
    (steps, unseen), lost = in_80_bits(posed), ridge < least
    for x in (tokens[7, 0], np.random.default_rng(0).normal(size=D) * scale):
        direction = torch.zeros(3, D + 1, dtype=torch.float64)
        direction[1] = torch.tensor([*x, 1.0])
        change, j = (steps * direction.numpy()).sum((1, 2)), flat(posed, direction)
        if lost:
            with pytest.raises(SolveError, match=r"λ is too small to tell(?s:.*)λ = 1e-(08|10)(?s:.*)ridge=1e-0"):
                leave_one_out(operator.base, operator.sources, objective, j, delta=delta)
            continue
        found = leave_one_out(operator.base, operator.sources, objective, j, delta=delta)
        assert np.abs(found.change.numpy() - change).max() <= min(LOST, found.residual) * np.abs(change).max()
    assert (distances is None) == (lost or (way == "kernel" and ridge < 1e-4))
    if distances is not None:
        moved = (steps**2).sum((1, 2)) ** 0.5
        assert np.abs(distances.numpy() - moved).max() <= LOST * moved.max()
    if way != "kernel":
        at = head_of(posed).at(ridge * (operator.rows - 1) / operator.rows)
        logits = torch.cat([z for z, _ in at.left_out_logits()]).numpy()
        assert np.abs(logits - unseen).max() <= max(1e-9, at.rounding) * np.abs(unseen).max()


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_a_row_alone_takes_all_with_it(alpha):
    posed = problem(1, alpha)
    assert moves(posed).tolist() == pytest.approx([solve_head(posed).value.norm().item()])


def test_rows_that_are_more_than_their_numbers_have_normal_matrices():
    assert isinstance(head_of(problem(D + 1, 3.0)), ByRows)
    assert isinstance(head_of(problem(D + 2, 1.0)), ByMoments)
    assert isinstance(head_of(problem(D + 2, 3.0)), ByMoments)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_many_rows_have_their_lower_triangle_alone(monkeypatch, weighted):
    """Rows of a class wait for others, for a matrix is read and written once for all of them; a few columns at a time
    below the diagonal are half of the work."""
    monkeypatch.setattr("taftcache.solve.head.moments.TOGETHER", 7)
    monkeypatch.setattr("taftcache.solve.head.moments.COLUMNS", 5)  # of 41
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    added = []
    real = sums._add_squares
    monkeypatch.setattr(sums, "_add_squares", lambda *given: added.append(len(given[2])) or real(*given))
    posed = problem(100, 3.0, weighted)
    exact = dense(posed)
    solved, path = solve_head(posed), path_of(posed)
    for value in (solved.value, flat(posed, path.weights(posed.ridge))):
        assert (value - exact).norm() <= 1e-8 * exact.norm()
    assert solved.converged
    own = added[13 : len(added) // 2]  # what follows 13 blocks of all classes
    assert sum(own) == 100
    assert sum(rows < 7 for rows in own) <= posed.operator.classes


@pytest.mark.parametrize(("alpha", "near"), [(1.0, 1.06), (3**0.5, 1.25)])
@pytest.mark.parametrize("rows", [20, 100, 400])
def test_what_a_typical_row_moves_is_estimated(monkeypatch, rows, alpha, near):
    """Where one matrix serves all classes, exact but for a λ that is N/(N − 1) times too large."""
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)
    posed = problem(rows, alpha)
    places = torch.arange(min(64, rows)) * rows // min(64, rows)
    exact = typical(moves(posed)[places])
    assert 1 / near < solve_head(posed).stats.row_moves / exact < near


def test_rows_without_weight_move_nothing():
    posed = problem(9, 2.0)
    for counted in (0, 5):  # of the others the least that moves is one that counts
        weights = RowWeights(by_sample=(torch.arange(9) < counted).double())
        moves = solve_head(replace(posed, weights=weights)).stats.row_moves
        assert moves is None if not counted else moves > 0.01


def test_rows_that_are_all_the_same_have_a_basis_too():
    posed = problem(9, 2.0, repeated=True)
    exact = dense(posed)
    assert (solve_head(posed).value - exact).norm() <= 1e-8 * exact.norm()


@pytest.mark.parametrize(("decomposed", "tolerance"), [(True, 1e-8), (False, 1e-6)])
def test_a_heads_path_has_the_solution_at_every_ridge(monkeypatch, decomposed, tolerance):
    """Of more rows than the space of the rows takes, small ridges all had what the first of them did; also where each
    class has its own D and there is no room for a decomposition each."""
    if not decomposed:
        monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 1000)
    posed, ridges = problem(200, 2.0), [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    assert (every_head(posed, ridges[0]) is not None) == decomposed
    objective = Objective(loss=posed.loss, train="head")
    found = ridge_path(posed.operator.base, posed.operator.sources, objective, ridges)
    start = posed.evaluate(torch.zeros_like(found[0], dtype=torch.float64))[1].norm()
    for ridge, delta in zip(ridges, found, strict=True):
        assert replace(posed, ridge=ridge).evaluate(delta.double())[1].norm() <= tolerance * start


@pytest.mark.parametrize("weighted", [False, True])
def test_what_a_classs_own_rows_change_in_the_common_matrix_gives_the_same_head(monkeypatch, weighted):
    """Classes of few rows beside a wide feature: one matrix is factored, and not one a class."""
    posed = problem(60, 3.0, weighted, classes=6)
    whole = solve_head(posed)
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 8 * 13 * D)  # a class or so at a time
    for name in ("own_normals", "swept"):
        monkeypatch.setattr(f"taftcache.solve.head.by_moments.{name}", None)
    found = solve_head(posed)
    assert found.converged
    assert (found.value - whole.value).norm() <= 1e-10 * whole.value.norm()
    objective = Objective(loss=posed.loss, weights=posed.weights, train="head")
    paths = ridge_path(posed.operator.base, posed.operator.sources, objective, [1e-4, 1e-3, 1e-1])
    assert (paths[1].double() - whole.value).norm() <= 1e-6 * whole.value.norm()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [0.3, 3.0, 100.0])
@pytest.mark.parametrize(("rows", "together"), [(200, 2), (200, 3)])
def test_a_sweep_over_ridges_is_near_every_solution(monkeypatch, rows, together, alpha, weighted):
    """Each class of many rows has its own matrix, of which none is summed here."""
    posed, ridges = problem(rows, alpha, weighted), [1.0, 1e-2, 1e-4]
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 8 * (D + 1) ** 2 * together)
    monkeypatch.setattr("taftcache.solve.head.by_moments.own_normals", None)
    before = posed.operator.passes
    found, passes = list(head_of(posed).near(ridges)), posed.operator.passes - before
    for ridge, W in zip(ridges, found, strict=True):
        exact = dense(replace(posed, ridge=ridge))
        assert (flat(posed, W) - exact).norm() <= 2e-5 * exact.norm()
    groups = -(-len(ridges) // together)
    assert passes <= 2 + groups * (12 if alpha < 100 else 35)


def test_a_choice_ends_where_rounding_is_larger_than_the_ridge(monkeypatch):
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 1000)
    posed = problem(200, 3.0)
    tokens = posed.operator.sources[0].tokens.copy()
    mixed = tokens[:2, 0].reshape(-1)[:51].reshape(3, 17)
    tokens[:, :, 3:20] = 1e6 * tokens[:, :, :3] @ mixed  # in products rounding is 10⁻⁴
    base, wide = posed.operator.base, [ArrayRows(tokens, posed.operator.sources[0].labels)]
    choice = choose_ridge(base, wide, Objective(loss=posed.loss, train="head"))
    assert 0 < len(choice.curve) < len(HEAD_GRID)
    assert choice.curve[-1].ridge == HEAD_GRID[-1]
    with pytest.raises(SolveError, match="rounding is larger than the ridge"):
        choose_ridge(base, wide, Objective(loss=posed.loss, train="head"), grid=[1e-8])
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 2 * 8 * (D + 1) ** 2)  # two λ at a time
    posed = replace(posed, operator=posed.operator.over(wide))
    swept = head_of(posed).near([1e4, 1e-8, 1e-9])
    exact = solve_head(replace(posed, ridge=1e4)).value
    assert (
        flat(posed, next(swept)) - exact
    ).norm() <= 1e-3 * exact.norm()  # near in the metric of a matrix of condition 10⁸
    with pytest.raises(SolveError, match="rounding is larger than the ridge"):
        next(swept)


def test_a_class_of_many_rows_or_of_a_smaller_curvature_has_a_matrix_of_its_own(monkeypatch):
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 8 * 13 * D)
    made: list[int] = []
    real = sums.own_normals
    monkeypatch.setattr(
        "taftcache.solve.head.by_moments.own_normals", lambda *given: made.extend(given[1]) or real(*given)
    )
    for posed, own in (
        (problem(60, 0.3, classes=6), list(range(6))),
        (problem(80, 3.0, classes=6), [0, 1]),  # 14 rows of 41 numbers, and 13 of the others
        (problem(80, 3.0, classes=6, lopsided=True), [5]),
    ):
        made.clear()
        assert (solve_head(posed).value - dense(posed)).norm() <= 1e-8 * solve_head(posed).value.norm()
        assert made == own * 2
        with monkeypatch.context() as patched:  # nor is it cheap at several λ
            patched.setattr("taftcache.solve.head.by_moments.swept", lambda *_: iter(["swept"]))
            assert list(head_of(posed).near([1.0])) == ["swept"]


class Matrices(TorchDispatchMode):
    """How many matrices [n,n] there are at once, at most, of those that torch hands out."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._n, self._seen, self.most = n, [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor) and t.shape[-2:] == (self._n, self._n)]
        self._seen = [each for each in self._seen if each() is not None] + [weakref.ref(t) for t in made]
        alive = [t for each in self._seen if (t := each()) is not None]
        sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}
        self.most = max(self.most, sum(sizes.values()) // (8 * self._n**2))
        return found


def every_ridge(posed):
    return path_of(posed).leave_one_out([1e-1, 1e-2])


@pytest.mark.parametrize(
    ("solve", "alpha", "most"),
    [
        (solve_head, 1.0, 1),
        (lambda posed: list(head_of(posed).near([1e-1, 1e-2, 1e-3])), 3.0, 2),
        (solve_head, 0.3, 2),  # a class's own beside the common one
        (every_ridge, 1.0, 1),
    ],
    ids=["one λ", "several", "a class each", "every λ"],
)
def test_matrices_as_wide_as_the_feature_are_no_more_than_there_must_be(monkeypatch, solve, alpha, most):
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 8 * 13 * D)
    posed = problem(60, alpha, classes=6)
    with Matrices(D + 1) as counted:
        solve(posed)
    assert counted.most == most
    every = solve is path_of
    assert HeadSize.of(posed).solve_bytes(chosen=every) == 8 * (D + 1) ** 2 * (
        most + 2 * every
    )  # LAPACK takes two more


@pytest.mark.parametrize(("alpha", "most"), [(1.0, 2), (0.3, 3), (3.0, 2)])
def test_what_leaves_rows_out_holds_few_matrices(monkeypatch, alpha, most):
    """The moments and what is inverted of them; a class's own, where it has one."""
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", 8 * 13 * D)
    posed = problem(60, alpha, classes=30)  # two rows each
    with Matrices(D + 1) as counted:
        at = head_of(posed).at(1e-2)
        list(at.left_out_logits())
        at.moved(at.weights, torch.ones(60, 30, dtype=torch.float64))
    assert counted.most == most
    own, size = 0 if alpha == 1 else D + 1, HeadSize.of(posed)
    of_rows = 24 * 60 * 30
    assert size.left_out_bytes(30) - of_rows == 8 * (D + 1) * (2 * (D + 1) + own) >= 8 * (D + 1) ** 2 * most
    assert size.own_columns == {1.0: 0, 0.3: 30 * (D + 1), 3.0: 60}[alpha]


def left_out(posed):
    at = head_of(posed).at(1e-2)
    return list(at.left_out_logits()), at.moved(at.weights, torch.ones(posed.operator.rows, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("solve", "alpha", "most"),
    [
        (solve_head, 1.0, 1),
        (solve_head, 3.0, 1),
        (every_ridge, 1.0, 2),
        (lambda posed: every_head(posed, 1e-8).leave_one_out([1e-1, 1e-2]), 3.0, 2),
        (left_out, 1.0, 2),
        (left_out, 3.0, 2),
    ],
)
def test_matrices_of_few_rows_are_no_more_than_there_must_be(monkeypatch, solve, alpha, most):
    monkeypatch.setattr("taftcache.solve.head.by_rows.COLUMNS", 7)
    monkeypatch.setattr("taftcache.solve.methods.head.SAMPLE", 5)
    posed = problem(30, alpha)
    with Matrices(30) as counted:
        solve(posed)
    assert counted.most == most
    size = HeadSize.of(posed)
    many = 8 * 30 * (D + 1 + (3 if alpha == 1 else 4) * 30)
    assert size.solve_bytes(chosen=True) == size.left_out_bytes(3) == many
    assert size.solve_bytes(chosen=False) == many - 2 * 8 * 30 * 30


def test_a_cholesky_factor_in_the_place_of_its_matrix_is_the_same():
    rows = torch.randn(200, 60, dtype=torch.float64, generator=torch.manual_seed(0))
    matrix = (rows.T @ rows).mT
    beside = cholesky(matrix, 1.0)
    assert cholesky(matrix, 1.0, out=matrix).data_ptr() == matrix.data_ptr()
    assert torch.equal(matrix, beside)
    right = torch.randn(60, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    assert torch.allclose(solved(matrix, right), torch.cholesky_solve(right, beside), rtol=1e-12)
    with pytest.raises(SolveError, match="rounding is larger"):
        cholesky(-beside @ beside.T, 1.0)
