"""Objectives and solvers that a recipe asks for, through the stages."""

from __future__ import annotations

import pytest

import taftcache
from taftcache.baselines.tangent_training import PRESETS
from taftcache.errors import RecipeError
from taftcache.recipe import parse_recipe
from taftcache.solve.solution import Status
from taftcache.terminal.inspection import show_inspect
from tests.stages.making import open_store, recipe, values

OBJECTIVES = {
    "mse": {"loss": "mse"},
    "cross-entropy": {"loss": "cross_entropy", "ridge": 1e-1},
    "ball": {"radius": 0.5},
    "balanced": {"class_weights": "balanced"},
    "listed": {"class_weights": [1.0] * 10},
    "jvp": {"jvp_only": True},
    "auto": {"ridge": "auto"},
}


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_every_objective_trains_and_predicts(store, objective, capsys, monkeypatch):
    monkeypatch.setattr("taftcache.solve.choosing.GRID", [1e-9, 1e-8])  # the better one lies at an end
    with open_store(store) as opened:
        report = taftcache.train(opened, recipe(store, objective=objective, solver={"tolerance": 1e-3}))
        assert all("that was tried" in note for note in report.notes)
        assert bool(report.notes) == (objective.get("ridge") == "auto")
        assert set(report.trained) == {"components/000", "components/001", "models/head"}
        taftcache.compose(opened)
        assert taftcache.evaluate(opened).accuracy["models/mean"] > 0.15  # ten classes, sixty images
        shown = taftcache.inspect(opened)
        show_inspect(shown)
    if objective.get("ridge") == "auto":
        choices = [m["ridge_choice"] for m in shown.models if "ridge_choice" in m]
        assert [c["method"] for c in choices] == ["validation", "validation", "leave-one-out"]
        assert all(c["ridge"] in [point["ridge"] for point in c["curve"]] for c in choices)
        said = " ".join(capsys.readouterr().out.split())
        for choice in choices:
            assert f"λ {choice['ridge']:.1e} by {choice['method']}; mean loss at" in said
            loss = next(point["loss"] for point in choice["curve"] if point["ridge"] == choice["ridge"])
            assert f"{choice['ridge']:.1e}: {loss:.4g} (taken)" in said


@pytest.mark.parametrize("method", PRESETS)
def test_adams_schedules_train_and_are_certified(store, method):
    objective = {"class_weights": "balanced", "jvp_only": True}
    with open_store(store) as opened:
        report = taftcache.train(opened, recipe(store, objective=objective, solver={"method": method}))
        assert set(report.trained) == {"components/000", "components/001", "models/head"}
        for name in report.trained:
            meta = opened.objects()[name].meta
            assert meta["stats"]["solver"] == "adam"
            assert meta["stats"]["passes"] == PRESETS[method].schedule.epochs + 4
            assert meta["status"] == Status.max_passes.value
            assert 1e-6 < meta["certificate"]["relative_gradient"] < 1
        with pytest.raises(RecipeError, match="keeps to no ball"):
            taftcache.train(opened, recipe(store, objective={"radius": 1.0}, solver={"method": method}))


@pytest.mark.parametrize(
    "objective",
    [{"loss": "hinge"}, {"ridge": "often"}, {"ridge": 0}, {"radius": -1.0}, {"class_weights": [-1.0]}],
)
def test_what_a_recipe_cannot_ask_for(tmp_path, objective):
    with pytest.raises(RecipeError):
        parse_recipe(values(tmp_path, objective=objective))


@pytest.mark.law("An interrupted solve is kept, marked, and solved again")
def test_an_interrupted_solve_is_kept_marked_and_solved_again(store, monkeypatch):
    from taftcache.solve import minimise as module
    from taftcache.solve.methods.conjugate import pcg

    def stopped(*args, on_pass=None, **options):
        def interrupt(passes: int, residual: float) -> None:
            raise KeyboardInterrupt

        return pcg(*args, on_pass=interrupt, **options)

    settings = recipe(store, objective={"kappa": 3.0})
    with open_store(store) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(module, "pcg", stopped)
            with pytest.raises(KeyboardInterrupt):
                taftcache.train(opened, settings)
        kept = opened.objects()["components/000"].meta
        assert "interrupted" in kept["status"]
        assert not kept["converged"]
        assert kept["norm"] > 0
        report = taftcache.train(opened, settings)
        assert "components/000" in report.trained
        assert opened.objects()["components/000"].meta["converged"]
