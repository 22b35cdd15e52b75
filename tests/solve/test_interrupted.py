"""What Ctrl-C leaves of a solve: KeyboardInterrupt for whoever did not ask for its best iterate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.objective import Objective
from taftcache.objective.rsl import RSL
from taftcache.solve.choosing import choose_ridge, ridge_path
from taftcache.solve.leave_one_out import leave_one_out
from taftcache.solve.methods.row_space import Restart
from taftcache.solve.minimise import minimise, minimise_in_balls, resume
from taftcache.solve.solution import Status
from tests.solve.problems import Passes, case, minimised, rows

SQUARE, RIDGE, GRID = RSL(alpha=1.0, kappa=5.0), 1e-3, [1e-3, 1e-2, 1e-1]
ASKED = Objective(loss=SQUARE, ridge=RIDGE)


def resumed() -> object:
    base = case().base
    before = minimise(base, rows(), ASKED)
    assert before.dual is not None
    stays = torch.ones(len(before.dual), dtype=torch.bool)
    restart = Restart(rows(), torch.zeros_like(before.value), 0 * before.dual, stays, lambda _: 1e-6)
    return resume(base, rows(), ASKED, restart)


def left_out() -> object:
    base = case().base
    zero = torch.zeros(base.layout.size, dtype=torch.float64)
    return leave_one_out(base, rows(), ASKED, zero + 1, delta=zero)


CALLS: dict[str, Callable[[], object]] = {
    "minimise": lambda: minimised(case().base, rows(), SQUARE, RIDGE),
    "in a ball": lambda: minimised(case().base, rows(), SQUARE, RIDGE, radius=1.0),
    "in balls": lambda: list(minimise_in_balls(case().base, rows(), ASKED, [0.5, 1.0])),
    "resume": resumed,
    "ridge by newton": lambda: choose_ridge(case().base, rows(), Objective(loss=CrossEntropy()), grid=GRID),
    "ridge of a head": lambda: choose_ridge(
        case().base, rows(), Objective(loss=CrossEntropy(), train="head"), grid=GRID
    ),
    "ridge by conjugate gradients": lambda: choose_ridge(case().base, rows(), Objective(loss=SQUARE), grid=GRID),
    "path": lambda: ridge_path(case().base, rows(), Objective(loss=CrossEntropy()), GRID),
    "leave one out": left_out,
}


@pytest.mark.law("An interrupted solve raises KeyboardInterrupt, or is kept as asked, marked, and solved again")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("many", [pytest.param(4, id="short"), pytest.param(400, id="long", marks=pytest.mark.full)])
def test_nothing_is_made_of_a_solve_that_was_interrupted(monkeypatch, call, many):
    for module in ("choosing", "minimise", "leave_one_out"):
        name = {"choosing": "class_kernel_fits"}.get(module, "kernel_inverse_fits")
        monkeypatch.setattr(f"taftcache.solve.{module}.{name}", lambda problem, parts=1: False)
    monkeypatch.setattr("taftcache.solve.choosing.span_fits", lambda problem: False)
    begun = Passes(monkeypatch)
    call()
    passes = begun.count
    assert passes > 4
    for at in sorted({1 + k * (passes - 1) // many for k in range(many)}):
        begun.interrupt(at)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert begun.count <= at + 4  # to look where the round leads, and where it began if that is nowhere better


@pytest.mark.parametrize("more", [{}, {"radius": 1.0}], ids=["plain", "ball"])
def test_who_asks_for_the_best_iterate_has_it(more):
    def stop(passes: int, residual: float) -> None:
        if passes >= 2:
            raise KeyboardInterrupt

    asked = dict(tolerance=1e-12, on_pass=stop, **more)
    found = minimised(case().base, rows(), SQUARE, RIDGE, interrupted="keep", **asked)
    assert found.status is Status.interrupted
    with pytest.raises(KeyboardInterrupt):
        minimised(case().base, rows(), SQUARE, RIDGE, **asked)
