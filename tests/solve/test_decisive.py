"""What a typical row moves, and solving until a certificate is tighter than that."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights
from taftcache.solve.leave_one_out import moves
from taftcache.solve.methods.decisive import SHARE
from taftcache.solve.solution import Status
from taftcache.tangent.base import make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec
from tests.solve.problems import K, N, case, dense, jacobian, labels, make_problem, minimised, rows, tokens

SPEC = ("plain", "reset-block")
CONJUGATE = ("Kronecker factors", "a sample")
WAYS = {
    "the exact kernel": ({}, (0.9, 1.1)),
    "the space of the rows": ({"taftcache.solve.minimise.DIRECT": 0}, (0.7, 1.5)),
    "the space of the rows by landmarks": (
        {
            "taftcache.solve.minimise.DIRECT": 0,
            "taftcache.solve.inverses.landmarks.LANDMARKS": 8,
            "taftcache.solve.methods.row_space.LANDMARKS": 8,
        },
        (0.3, 1.2),  # 1.37 by the eight alone
    ),
    "Kronecker factors": ({"taftcache.solve.inverses.dual.LARGEST_KERNEL": 0}, (0.1, 1.5)),
    "a sample": (
        {
            "taftcache.solve.inverses.dual.LARGEST_KERNEL": 0,
            "taftcache.solve.inverses.sampled.LEAST_ROWS": 1,
            "taftcache.solve.inverses.sampled.GRADIENTS": 8,
        },
        (0.1, 1.5),
    ),
}


def solve(loss: RSL, ridge: float, method: str = "auto", **more):
    return minimised(case(*SPEC).base, rows(*SPEC), loss, ridge, method=method, decisive=True, **more)


@pytest.mark.law("A decisive solve is certified to a tenth of what taking out a typical row moves, by an estimate")
@pytest.mark.parametrize("ridge", [1e-1, pytest.param(1e-3, marks=pytest.mark.full)])
@pytest.mark.parametrize("alpha", [3.0, pytest.param(1.0, marks=pytest.mark.full)])
@pytest.mark.parametrize("way", WAYS)
def test_the_certified_distance_is_below_what_a_row_moves(monkeypatch, way, alpha, ridge):
    limits, (least, most) = WAYS[way]
    loss = RSL(alpha=alpha, kappa=5.0)
    each = moves_of(loss, ridge)
    for name, value in limits.items():
        monkeypatch.setattr(name, value)
    found = solve(loss, ridge, "conjugate" if way in CONJUGATE else "auto")
    estimated = found.stats.row_moves
    assert found.converged
    assert least <= estimated / np.quantile(each, 0.1) <= most
    assert found.certificate.distance <= 0.1 * estimated
    assert (found.value - dense(*SPEC, loss=loss, ridge=ridge).solution).norm() <= found.certificate.distance
    assert found.certificate.distance > 0.01 * SHARE * estimated or way == "the exact kernel"  # and not far beyond it


def moves_of(loss: RSL, ridge: float) -> np.ndarray:
    exact = moves(make_problem(*SPEC, loss=loss, ridge=ridge))
    assert exact is not None
    return exact.numpy()


def test_a_decisive_model_decides_of_a_row(monkeypatch):
    """Both models solved so, the removal is proven though the tolerance was never said."""
    monkeypatch.setattr("taftcache.solve.minimise.DIRECT", 0)
    loss, row = RSL(alpha=1.0, kappa=5.0), 7
    keep = np.delete(np.arange(N), row)
    old = solve(loss, 1e-2)
    left = [ArrayRows(tokens(*SPEC)[keep], labels()[keep])]
    new = minimised(case(*SPEC).base, left, loss, 1e-2, decisive=True)
    moved = (new.value - old.value).norm().item() - new.certificate.distance - old.certificate.distance
    assert new.certificate.distance <= 0.1 * moved


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_no_weight_have_no_part_in_the_estimate(monkeypatch, way):
    """They move nothing, which no certificate is tighter than: the solve would never end."""
    omega = torch.ones(N, dtype=torch.float64)
    omega[::2] = 0
    for name, value in WAYS[way][0].items():
        monkeypatch.setattr(name, value)
    method = "conjugate" if way in CONJUGATE else "auto"
    found = solve(RSL(alpha=1.0), 1e-2, method, weights=RowWeights(by_sample=omega))
    assert found.converged
    assert found.certificate.distance <= 0.1 * found.stats.row_moves


@pytest.mark.law("A solve that goes on until it decides does so where the estimate is good, and is else as it was")
@pytest.mark.parametrize("way", [way for way in WAYS if way != "a sample"])  # of eight gradients is no way to go on
def test_beyond_its_tolerance_it_goes_on_until_it_decides(monkeypatch, way):
    for name, value in WAYS[way][0].items():
        monkeypatch.setattr(name, value)
    asked = {"loss": RSL(alpha=1.0, kappa=5.0), "ridge": 1e-3}
    asked["method"] = "conjugate" if way in CONJUGATE else "auto"
    base, sources = case(*SPEC).base, rows(*SPEC)
    loose, near = (minimised(base, sources, tolerance=t, until_decisive=True, **asked) for t in (0.3, 1e-9))
    plain, tight = (minimised(base, sources, tolerance=t, **asked) for t in (0.3, 1e-9))
    assert loose.converged
    assert near.converged
    assert torch.equal(near.value, tight.value)  # it decided before
    if way == "Kronecker factors":
        assert torch.equal(loose.value, plain.value)
        assert loose.stats.row_moves is near.stats.row_moves is None
        return
    moves = loose.stats.row_moves
    assert loose.certificate.distance <= 0.1 * moves
    assert way == "the exact kernel" or plain.certificate.distance > 0.1 * moves
    assert moves == pytest.approx(near.stats.row_moves, rel=0.3)
    if way == "the space of the rows":  # where it costs no pass, whatever ends the solve
        assert tight.stats.row_moves == pytest.approx(moves, rel=0.3)


def test_what_is_converged_stays_so_where_it_does_not_decide(monkeypatch):
    """With as many passes again at most: here none, and a solve that was near enough is not called stalled."""
    monkeypatch.setattr("taftcache.solve.minimise.DIRECT", 0)
    monkeypatch.setattr("taftcache.solve.methods.row_space.RowSpace.decide", lambda self: Status.max_passes)
    loss = RSL(alpha=1.0, kappa=5.0)
    found = minimised(case(*SPEC).base, rows(*SPEC), loss, 1e-3, tolerance=0.3, until_decisive=True)
    assert found.converged
    assert found.certificate.relative_gradient <= 0.3


@pytest.mark.parametrize("more", [{"radius": 1.0}, {"loss": CrossEntropy(), "radius": 1.0}])
def test_where_nothing_is_estimated_nothing_more_is_asked(more):
    asked = {"loss": RSL(alpha=1.0), "ridge": 1e-1, "tolerance": 1e-2, **more}
    found, plain = (minimised(case(*SPEC).base, rows(*SPEC), until_decisive=u, **asked) for u in (True, False))
    assert torch.equal(found.value, plain.value)


def solve_cross_entropy(ridge: float, keep: np.ndarray | None = None, **goal):
    some = slice(None) if keep is None else keep
    left = [ArrayRows(tokens(*SPEC)[some], labels()[some])]
    return minimised(case(*SPEC).base, left, CrossEntropy(), ridge, **goal)


def cross_entropys_moves(ridge: float, train: str) -> tuple[torch.Tensor, np.ndarray]:
    """Δw* = Jᵀα and how far each row's removal moves it, by Newton's method on λα + (softmax(f₀ + JJᵀα) - y)/n = 0."""
    J, f0 = jacobian(*SPEC, head=train == "head")
    G, y = J @ J.T, torch.nn.functional.one_hot(torch.from_numpy(labels()), K).double()

    def optimum(stays: torch.Tensor, dual: torch.Tensor) -> torch.Tensor:
        some = stays.repeat_interleave(K)
        kernel, n = G[some][:, some], int(stays.sum())

        def value(dual: torch.Tensor) -> torch.Tensor:
            logits = f0[stays] + (kernel @ dual).view(n, K)
            fit = torch.nn.functional.cross_entropy(logits, y[stays])
            return fit + 0.5 * ridge * dual @ kernel @ dual

        at = dual[some]
        for _ in range(50):
            p = (f0[stays] + (kernel @ at).view(n, K)).softmax(1)
            curvature = torch.block_diag(*(torch.diag_embed(p) - p[:, :, None] * p[:, None]))
            left = ridge * at + (p - y[stays]).flatten() / n
            if left.norm() < 1e-12:
                break
            step = torch.linalg.solve(ridge * torch.eye(n * K) + curvature @ kernel / n, left)
            length = next(t for t in 0.5 ** np.arange(30.0) if t < 1e-6 or value(at - t * step) <= value(at) + 1e-14)
            at = at - length * step
        return torch.zeros_like(dual).masked_scatter(some, at)

    every = torch.ones(N, dtype=torch.bool)
    best = optimum(every, torch.zeros(N * K, dtype=torch.float64))
    apart = [optimum(torch.arange(N) != row, best) - best for row in range(N)]
    return J.T @ best, np.array([(change @ G @ change).sqrt().item() for change in apart])


@pytest.mark.law("A decisive solve is certified to a tenth of what taking out a typical row moves, by an estimate")
@pytest.mark.parametrize(
    ("ridge", "train"),
    [
        (1e-3, "full"),
        (1e-1, "head"),
        *(pytest.param(*p, marks=pytest.mark.full) for p in ((1e-1, "full"), (1e-3, "head"))),
    ],
)
def test_under_cross_entropy_too(ridge, train):
    best, moves = cross_entropys_moves(ridge, train)
    truth = np.quantile(moves, 0.1)
    found = solve_cross_entropy(ridge, decisive=True, train=train)
    assert found.converged
    assert 0.5 <= found.stats.row_moves / truth <= 1.5
    assert found.certificate.distance <= 0.1 * found.stats.row_moves
    assert (found.value - best).norm() <= found.certificate.distance


@pytest.mark.parametrize("seed", [0, 1])
def test_equal_rows_of_other_labels_move_little_and_are_among_those_that_count(seed):
    """Each pulls hard, against the others: a removal of one moves the optimum by a thirtieth of what others do."""
    some = np.random.default_rng(seed)
    features, classes = some.normal(size=(30, 1, 40)), 4
    features[:12] = features[0]
    y = some.integers(0, classes, 30)
    spec = TangentSpec(blocks=0, train="head", init="zero")
    base = make_base({}, TailConfig.of_vectors(40, classes), classes, spec)

    def of(keep: np.ndarray, **goal):
        return minimised(base, [ArrayRows(features[keep], y[keep])], CrossEntropy(), 1e-3, train="head", **goal)

    every = np.arange(30)
    best = of(every, tolerance=1e-8).value
    without = (of(np.delete(every, n), tolerance=1e-6).value for n in range(12))
    truth = min((value - best).norm().item() for value in without)  # that of a tenth of all rows, and more
    found = of(every, decisive=True)
    assert 0.5 <= found.stats.row_moves / truth <= 1.2
    assert found.certificate.distance <= 0.1 * truth


@pytest.mark.parametrize("train", ["full", "head"])
@pytest.mark.parametrize("loss", [CrossEntropy(), RSL(alpha=1.0), RSL(alpha=2.0)], ids=["ce", "rsl", "rsl of a class"])
@pytest.mark.parametrize("more", [{"until_decisive": True}, {"decisive": True}], ids=["beyond", "instead"])
def test_of_rows_that_are_all_the_same_none_moves_anything(loss, train, more):
    """The mean over one less is the same mean: nothing is said of a removal, and the tolerance is met."""
    same = np.zeros(6, int)
    left = [ArrayRows(tokens(*SPEC)[same], labels()[same])]
    found = minimised(case(*SPEC).base, left, loss, 0.1, train=train, **more)
    assert found.converged
    assert found.certificate.relative_gradient <= 1e-6
    assert found.stats.row_moves is None


def test_cross_entropy_goes_on_beyond_its_tolerance_until_it_decides():
    found, plain = (solve_cross_entropy(1e-3, tolerance=1e-2, until_decisive=u) for u in (True, False))
    assert found.converged
    assert found.certificate.distance <= 0.1 * found.stats.row_moves < plain.certificate.distance
    few = solve_cross_entropy(1e-3, tolerance=1e-2, until_decisive=True, max_passes=plain.stats.passes)
    assert few.converged  # as many passes as there are, and a solve that was near enough is not called stalled
    assert few.certificate.relative_gradient <= 1e-2


def test_a_row_alone_moves_nothing_that_could_be_compared():
    found, plain = (solve_cross_entropy(1e-2, np.arange(1), decisive=d) for d in (True, False))
    assert found.converged
    assert found.certificate.relative_gradient <= 1e-6
    assert found.stats.row_moves is plain.stats.row_moves is None


def test_of_more_logits_than_fit_a_decision_is_refused(monkeypatch):
    monkeypatch.setattr("taftcache.solve.methods.span_newton.LARGEST_LOGITS", N)
    with pytest.raises(SolveError, match="not estimated"):
        solve_cross_entropy(1e-2, decisive=True)


def test_rows_of_no_weight_have_no_part_in_that_of_cross_entropy():
    omega = torch.ones(N, dtype=torch.float64)
    omega[::2] = 0
    found = solve_cross_entropy(1e-2, decisive=True, weights=RowWeights(by_sample=omega))
    assert found.converged
    assert found.certificate.distance <= 0.1 * found.stats.row_moves


def test_an_interrupt_while_it_estimates_keeps_what_was_solved(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    monkeypatch.setattr("taftcache.solve.methods.decisive.conjugate_solution", interrupted)
    found = solve(RSL(alpha=1.0), 1e-2, "conjugate", interrupted="keep")
    assert found.status is Status.interrupted
    assert found.certificate.relative_gradient <= 1e-2


def test_what_cannot_be_reached_is_said(monkeypatch):
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_KERNEL", 0)
    found = solve(RSL(alpha=1.0), 1e-3, "conjugate", max_passes=6)
    assert found.status is Status.max_passes
    assert found.stats.row_moves > 0


def test_a_goal_without_an_estimate_is_refused():
    with pytest.raises(SolveError, match="not estimated"):
        minimised(case(*SPEC).base, rows(*SPEC), RSL(alpha=1.0), 1e-2, decisive=True, radius=1.0)
