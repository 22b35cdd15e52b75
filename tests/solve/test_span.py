"""Balls of several radii from one span of directions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from taftcache.errors import SolveError
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.solve.minimise import minimise, minimise_in_balls
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.solve.solution import Status
from tests.solve.problems import case, dense, rows

LOSS = RSL(alpha=1.0, kappa=5.0)
UNEVEN = RSL(alpha=3.0, kappa=5.0)
PARTS = [0.02, 0.2, 0.5, 0.95, 3.0]  # of the norm without a ball: the last does not bind
WAYS = {"rows": True, "kernel": False, "factors": False}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def one_thread():
    """As the products of forty rows are the fastest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def force(monkeypatch, way: str) -> None:
    """Iterate as rows that are more, or fewer, than these would have it."""
    monkeypatch.setattr("taftcache.solve.minimise.through_rows", lambda problem: WAYS[way])
    if way == "factors":
        monkeypatch.setattr("taftcache.solve.minimise.kernel_inverse_fits", lambda problem, parts=1: False)


def solved(radii, loss=LOSS, ridge=1e-3, **goal):
    objective = Objective(loss=loss, ridge=ridge)
    return list(minimise_in_balls(case().base, rows(), objective, radii, goal=Goal(**{"tolerance": 1e-6, **goal})))


@pytest.mark.law("Each of several radii gets its own ball's solution, whatever the radii before it left behind")
@every_way
@pytest.mark.parametrize("loss", [LOSS, pytest.param(UNEVEN, marks=pytest.mark.full)], ids=["even", "uneven"])
def test_every_radius_gets_its_own_solution(monkeypatch, way, loss):
    force(monkeypatch, way)
    whole = dense(loss=loss, ridge=1e-2)
    free = whole.solution.norm().item()
    for part, found in zip(PARTS, solved([part * free for part in PARTS], loss, 1e-2), strict=True):
        x, radius = whole.in_ball(part * free), part * free
        assert found.status is Status.converged
        assert found.value.norm() <= radius * (1 + 1e-12)
        assert (found.value - x).norm() <= 1e-3 * x.norm()
        assert whole.value(found.value) - whole.value(x) <= found.certificate.gap + 1e-12
        assert found.certificate.gap <= 1e-3 * whole.value(x)
        nu = -(whole.gradient(x) @ x / (x @ x)).item()
        assert found.stats.multiplier == pytest.approx(nu, rel=1e-2, abs=1e-6)
        assert found.stats.radius == radius


@pytest.mark.parametrize("way", ["rows", "kernel"])
def test_together_they_take_fewer_passes_than_alone(monkeypatch, way):
    force(monkeypatch, way)
    free = dense(loss=LOSS, ridge=1e-3).solution.norm().item()
    radii = [part * free for part in (0.1, 0.2, 0.4, 0.6, 0.8)]
    together = sum(found.stats.passes for found in solved(radii))
    alone = sum(solved([radius])[0].stats.passes for radius in radii)
    assert together <= 0.9 * alone


def test_a_coarse_solve_in_a_larger_ball_leaves_the_smaller_ones_surface(monkeypatch):
    """The gradient on a ball's surface may be below a coarse tolerance, which says nothing of a larger ball."""
    force(monkeypatch, "kernel")
    free = dense(loss=LOSS, ridge=1e-3).solution.norm().item()
    radii = [0.8 * free, 0.9 * free]
    assert [found.value.norm().item() for found in solved(radii, tolerance=0.1)] == pytest.approx(radii)


def test_of_a_head_too_each_radius_has_passes_of_its_own():
    """The passes of all radii before it were counted, so that the last of a choice's eight were left unsolved."""
    free = minimise(case().base, rows(), Objective(loss=LOSS, ridge=1e-4, train="head")).value.norm().item()
    objective, radii = Objective(loss=LOSS, ridge=1e-4, train="head"), [part * free for part in PARTS]
    together = list(minimise_in_balls(case().base, rows(), objective, radii, goal=Goal(tolerance=1e-6, max_passes=60)))
    alone = [minimise(case().base, rows(), replace(objective, radius=radius)) for radius in radii]
    assert [found.status for found in together] == [Status.converged] * len(radii)
    assert [found.stats.passes for found in together] == [found.stats.passes for found in alone]
    for found, other in zip(together, alone, strict=True):
        assert (found.value - other.value).norm() <= 1e-6 * other.value.norm()


def test_without_a_ridge_the_ball_alone_holds(monkeypatch):
    force(monkeypatch, "rows")
    whole = dense(loss=LOSS, ridge=1e-9)
    for radius, found in zip([0.05, 1.0], solved([0.05, 1.0], ridge=0.0), strict=True):
        assert found.status is Status.converged
        assert (found.value - whole.in_ball(radius)).norm() <= 1e-2 * radius


@pytest.mark.parametrize("way", ["rows", pytest.param("factors", marks=pytest.mark.full)])
def test_a_span_that_is_full_gives_up_its_oldest(monkeypatch, way):
    force(monkeypatch, way)
    free = dense(loss=LOSS, ridge=1e-3).solution.norm().item()
    radii = [0.3 * free, 0.9 * free]
    enough = [found.stats.directions for found in solved(radii)]
    monkeypatch.setattr("taftcache.solve.methods.span.MOST", 10)
    monkeypatch.setattr("taftcache.solve.methods.span.LEAST", 10)
    for radius, found in zip(radii, solved(radii, tolerance=1e-5), strict=True):  # so few may stall above 1e-6
        assert found.status is Status.converged
        assert found.stats.directions <= 10 < enough[-1]
        x = dense(loss=LOSS, ridge=1e-3).in_ball(radius)
        assert (found.value - x).norm() <= 1e-3 * x.norm()


def test_memory_changes_no_byte(monkeypatch):
    force(monkeypatch, "rows")
    runs = [
        list(
            minimise_in_balls(
                case().base, rows(), Objective(loss=LOSS, ridge=1e-3), [0.1, 1.0],
                goal=Goal(tolerance=1e-3), arithmetic=Arithmetic(memory=memory),
            )
        )
        for memory in (1 << 30, 0)
    ]  # fmt: skip
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one.value, other.value)


@pytest.mark.parametrize("limit", [3, 6, 9])
def test_a_solve_that_is_cut_short_stays_within_the_ball(monkeypatch, limit):
    force(monkeypatch, "rows")
    whole = dense(loss=LOSS, ridge=1e-3)
    for radius, found in zip([1.0, 1.5], solved([1.0, 1.5], tolerance=1e-9, max_passes=limit), strict=True):
        assert found.status is Status.max_passes
        assert found.stats.passes - found.stats.proof_passes <= limit
        assert found.value.norm() <= radius * (1 + 1e-12)
        assert whole.value(found.value) - whole.value(whole.in_ball(radius)) <= found.certificate.gap


@every_way
def test_an_interrupted_solve_keeps_what_it_has(monkeypatch, way):
    force(monkeypatch, way)

    def stop(passes: int, residual: float) -> None:
        if passes >= 5:
            raise KeyboardInterrupt

    objective, goal = Objective(loss=LOSS, ridge=1e-3, radius=1.0), Goal(tolerance=1e-12)
    found = minimise(case().base, rows(), objective, goal=goal, on_pass=stop, interrupted="keep")
    assert found.status is Status.interrupted
    assert 0 < found.value.norm() <= 1 + 1e-12
    assert found.certificate.objective < dense(loss=LOSS, ridge=1e-3).constant


@pytest.mark.parametrize("radii", [[], [0.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
def test_radii_that_do_not_increase_are_refused(radii):
    with pytest.raises(SolveError, match="do not increase"):
        solved(radii)


@pytest.mark.parametrize("radii", [[1e-300, 1.0], [1.0, 1e300]])
def test_radii_whose_numbers_do_not_fit_are_refused(radii):
    with pytest.raises(SolveError, match="radius must be a number from 1e-30 to 1e"):
        solved(radii)
