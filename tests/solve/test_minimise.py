"""The one verb, and the head's closed form, against dense solves."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan

import msgspec
import numpy as np
import pytest
import torch

from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.objective.squared_error import SquaredError
from taftcache.solve.methods.head import solve_head
from taftcache.solve.minimise import minimise
from taftcache.solve_stats import SolveStats
from taftcache.tangent.rows import ArrayBlock, ArrayRows
from tests.solve.problems import K, N, case, dense, labels, make_problem, minimised, rows, tokens

LOSSES = [RSL(alpha=1.0, kappa=5.0), RSL(alpha=3.0, kappa=15.0), RSL(alpha=0.4, kappa=1.0)]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.alpha}-{loss.kappa}")


@every_loss
@pytest.mark.parametrize("ridge", [1e-5, 1e-2, 1.0])
def test_head_is_the_dense_solution(loss, ridge):
    whole = dense(loss=loss, ridge=ridge, head=True)
    solution = solve_head(make_problem(loss=loss, ridge=ridge, head=True))
    assert solution.converged
    assert (solution.value - whole.solution).norm() <= 1e-8 * whole.solution.norm()
    assert solution.certificate.relative_gradient <= 1e-10
    assert solution.certificate.objective == pytest.approx(whole.value(whole.solution), rel=1e-9)
    assert solution.certificate.gradient_at_zero == pytest.approx(whole.g.norm().item(), rel=1e-9)


@pytest.mark.parametrize("classes_a_group", [1, 3])
def test_head_in_groups_of_classes(monkeypatch, classes_a_group):
    loss = RSL(alpha=3.0, kappa=5.0)
    whole = solve_head(make_problem(loss=loss, head=True))
    monkeypatch.setattr("taftcache.solve.head.size.GROUP_BYTES", classes_a_group * 8 * 13 * 13)
    parts = solve_head(make_problem(loss=loss, head=True))
    assert parts.stats.passes - whole.stats.passes == -(-K // classes_a_group) - 1
    assert (parts.value - whole.value).norm() <= 1e-13 * whole.value.norm()


def test_figures_that_a_solver_does_not_have_are_left_out_of_the_json():
    stats = SolveStats(solver="pcg", passes=3, rounds=0).with_proof(2)
    assert msgspec.json.encode(stats) == b'{"solver":"pcg","passes":5,"rounds":0,"proof_passes":2}'


@pytest.fixture(params=["kernel", "iterations"])
def method(request, monkeypatch):
    """The exact inverse of a small problem, and conjugate gradients as for a large one."""
    if request.param == "iterations":
        monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    return request.param


@every_loss
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("train", ["full", "head"])
def test_minimise_is_the_dense_solution(method, loss, precision, train):
    whole = dense(loss=loss, ridge=1e-2, head=train == "head")
    solution = minimised(case().base, rows(), loss, 1e-2, train=train, precision=precision, tolerance=1e-9)
    assert solution.converged
    assert (solution.value - whole.solution).norm() <= 1e-6 * whole.solution.norm()


@pytest.mark.law("A solve's bytes depend on neither memory nor who sums a shard")
@pytest.mark.parametrize("train", ["full", "head"])
@pytest.mark.parametrize("sizes", [(N,), (8, 16, 16)])
def test_bytes_do_not_depend_on_memory(method, monkeypatch, train, sizes):
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 8)

    def solved(memory: int) -> torch.Tensor:
        options = {"train": train, "memory": memory, "max_passes": 12}
        return minimised(case().base, rows(sizes=sizes), LOSSES[0], 1e-3, **options).value

    first = solved(1 << 30)
    assert torch.equal(first, solved(0))
    assert torch.equal(first, solved(300_000))


WRONG = {
    "a loss by name": (rows, {"loss": "rsl"}, {}, "the loss is no object"),
    "a kind of loss": (rows, {"loss": RSL}, {}, "the loss is no object"),
    "a ridge by name": (rows, {"ridge": "auto"}, {}, "ridge must be a number from 0"),
    "an endless ridge": (rows, {"ridge": inf}, {}, "ridge must be a number from 0"),
    "a ridge beyond float32": (rows, {"ridge": 1e40, "loss": CrossEntropy()}, {}, "ridge must be a number from 0"),
    "a negative ridge": (rows, {"ridge": -1.0, "radius": 1.0}, {}, "ridge must be a number from 0"),
    "a ridge that is none": (rows, {"ridge": nan}, {}, "ridge must be a number from 0"),
    "neither ridge nor ball": (rows, {"ridge": 0.0}, {}, "a solve needs a ridge above 0"),
    "an endless ball": (rows, {"ridge": 0.0, "radius": inf}, {}, "radius must be a number from 1e-30"),
    "a ball whose square is beyond float64": (rows, {"radius": 1e200}, {}, "radius must be a number from 1e-30"),
    "a ball of nothing": (rows, {"radius": 0.0}, {}, "radius must be a number from 1e-30"),
    "a ball whose ridge is beyond float32": (
        rows,
        {"radius": 1e-300, "loss": CrossEntropy()},
        {},
        "radius must be a number from 1e-30",
    ),
    "classes for values": (rows, {"loss": SquaredError()}, {}, "other values than the model has outputs"),
    "one source": (lambda: rows()[0], {}, {}, "must be a list of sources"),
    "a short start": (rows, {}, {"start": torch.zeros(3)}, "the start does not fit the"),
}


@pytest.mark.parametrize("what", WRONG)
def test_arguments_that_cannot_be_meant(what):
    sources, asked, more, says = WRONG[what]
    with pytest.raises(SolveError, match=says):
        minimise(case().base, sources(), Objective(**{"loss": RSL(), "ridge": 1e-2, **asked}), **more)


@pytest.mark.parametrize("given", [{"objective": RSL()}, {"goal": None}, {"arithmetic": None}, {"arithmetic": "cpu"}])
def test_arguments_of_another_class(given):
    (name,) = given
    with pytest.raises(SolveError, match=f"{name} must be an? {name.capitalize()}"):
        minimise(case().base, rows(), **{"objective": Objective(loss=RSL(), ridge=1e-2), **given})


LABELS = {
    "below zero": (lambda y: np.where(np.arange(len(y)) == len(y) - 1, -1, y), "is not a class of the model"),
    "a further class": (lambda y: np.where(np.arange(len(y)) == len(y) - 1, y.max() + 1, y), "is not a class of the m"),
    "a further class first": (lambda y: np.where(np.arange(len(y)) == 0, y.max() + 1, y), "is not a class of the m"),
    "beyond int64": (lambda y: y.astype(np.uint64) + np.uint64(2**63), "is not a class of the model"),
    "texts": (lambda y: y.astype(str), "not one class for each row"),
    "one-hot": (lambda y: np.eye(y.max() + 1, dtype=int)[y], "not one class for each row"),
    "values": (lambda y: y.astype(float), "the loss is of classes and cannot take floating labels"),
}


@pytest.mark.parametrize("loss", [RSL(), CrossEntropy()])
@pytest.mark.parametrize("what", LABELS)
def test_labels_that_are_no_classes(what, loss):
    made, says = LABELS[what]
    source = ArrayRows(rows()[0].tokens, made(rows()[0].labels))
    for train in ("full", "head"):
        with pytest.raises(SolveError, match=says):
            minimise(case().base, [source], Objective(loss=loss, ridge=1e-2, train=train))


def test_classes_of_any_integer_type():
    (source,) = rows()
    whole = minimised(case().base, [source], LOSSES[0], 1e-2, train="head").value
    for kind in (np.uint8, np.int16, np.int64):
        again = ArrayRows(source.tokens, source.labels.astype(kind))
        assert torch.equal(minimised(case().base, [again], LOSSES[0], 1e-2, train="head").value, whole)


def test_no_rows():
    with pytest.raises(SolveError, match="at least one row"):
        minimised(case().base, [ArrayRows(rows()[0].tokens[:0], rows()[0].labels[:0])], LOSSES[0], 1e-2)


class Broken(ArrayRows):
    """Rows in blocks that are not those asked for."""

    def __init__(self, how: str) -> None:
        super().__init__(tokens(), labels())
        self.how, self.read = how, 0

    @property
    def rows(self) -> int:
        return N + {"fewer": 10, "more": -10}.get(self.how, 0)

    def blocks(self, size: int, start: int = 0) -> Iterator[ArrayBlock]:
        self.read += 1
        if self.how == "once" and self.read > 2:  # the first reading is of one row
            return iter(())
        blocks = ArrayRows(self.tokens, self.labels).blocks(7 if self.how == "its own" else size, start)
        return (ArrayBlock(x[1:], y) for x, y in blocks) if self.how == "fewer tokens" else blocks


@pytest.mark.parametrize("loss", [RSL(kappa=5.0), CrossEntropy()], ids=["quadratic", "cross-entropy"])
@pytest.mark.parametrize("train", ["full", "head"])
@pytest.mark.parametrize("how", ["its own", "once", "fewer", "more", "fewer tokens"])
def test_blocks_that_were_not_asked_for_are_refused(monkeypatch, how, train, loss):
    """A sum over other rows than N was certified as the optimum over N."""
    monkeypatch.setattr("taftcache.tangent.operator.BLOCK_ROWS", 16)
    with pytest.raises(SolveError, match="does not give its rows in the blocks that were asked for"):
        minimised(case().base, [Broken(how)], loss, 1e-2, train=train, memory=0)


@pytest.mark.parametrize("strange", [tokens()[:, :, :-1], tokens().reshape(N, -1)], ids=["narrower", "flat"])
def test_rows_of_another_width_are_refused(strange):
    source = ArrayRows(tokens(), labels())
    source.tokens = strange
    with pytest.raises(SolveError, match="do not fit the tail"):
        minimised(case().base, [source], LOSSES[0], 1e-2)


@pytest.mark.parametrize("train", ["full", "head"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_rows_that_are_not_finite(method, train, poison):
    (source,) = rows()
    source.tokens[3, 2, 1] = poison
    with pytest.raises(SolveError):
        minimised(case().base, [source], LOSSES[0], 1e-2, train=train)


@pytest.mark.parametrize("train", ["full", "head"])
def test_one_row_and_one_class(train):
    (source,) = rows()
    solution = minimised(case().base, [ArrayRows(source.tokens[:1], source.labels[:1])], LOSSES[0], 1e-2, train=train)
    assert solution.converged


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (LOSSES[0], {"method": "conjugate"}),
        (CrossEntropy(), {}),
    ],
    ids=["conjugate", "newton"],
)
def test_a_start_that_is_too_large_is_refused(loss, settings, value):
    base = case().base
    start = torch.full((base.layout.size,), value, dtype=torch.float64)
    with pytest.raises(SolveError, match="finite"):
        minimised(base, rows(), loss, 1e-2, start=start, **settings)


@pytest.mark.law("A solve's bytes depend on nothing that a program has set around it")
@pytest.mark.parametrize(
    ("loss", "settings"), [(LOSSES[1], {}), (CrossEntropy(), {"train": "head"})], ids=["square", "cross-entropy"]
)
def test_bytes_do_not_depend_on_the_precision_around(method, loss, settings):
    def solved() -> tuple[torch.Tensor, int]:
        found = minimised(case().base, rows(), loss, 1e-3, tolerance=1e-5, **settings)
        return found.value, found.stats.passes

    value, passes = solved()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            lowered = solved()
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(lowered[0], value)
    assert lowered[1] == passes
