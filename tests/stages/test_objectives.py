"""Objectives and solvers that a recipe asks for, through the stages."""

from __future__ import annotations

import pytest

import taftcache
from taftcache.errors import CompositionError, RecipeError
from taftcache.model.component import read_base, read_component
from taftcache.names import EXACT, MEAN
from taftcache.recipe import parse_recipe
from taftcache.solve.minimise import minimise
from taftcache.stages.look.inside.shards import inspect_shard
from taftcache.stages.train import solving
from taftcache.terminal.inspection import show_inspect, show_shard
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
        replaced, *notes = report.notes
        assert "trained again in place of what was there" in replaced
        assert all("that was tried" in note for note in notes)
        assert bool(notes) == (objective.get("ridge") == "auto")
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
        assert f"λ {choices[0]['ridge']:.1e} by validation: components/000" in said
        assert f"λ {choices[2]['ridge']:.1e} by leave-one-out: models/head" in said
        with open_store(store) as opened:
            show_shard(inspect_shard(opened, "000"))
        said = " ".join(capsys.readouterr().out.split())
        assert f"λ {choices[0]['ridge']:.1e} by validation; mean loss at" in said
        loss = next(point["loss"] for point in choices[0]["curve"] if point["ridge"] == choices[0]["ridge"])
        assert f"{choices[0]['ridge']:.1e}: {loss:.4g} (taken)" in said


@pytest.mark.parametrize("mode", ["retrain", "resolve"])
def test_the_exact_model_of_cross_entropy_begins_at_zero_and_goes_on_from_dual_vectors(store, mode):
    """From where its solve takes a few passes, and from the mean or from the Δw before hundreds."""
    asked = recipe(
        store,
        objective={"loss": "cross_entropy", "ridge": 1e-4},
        compose={"mode": "exact"},
    )
    with open_store(store) as opened:
        taftcache.train(opened, asked)
        taftcache.compose(opened, asked)
        before = read_component(opened, EXACT, read_base(opened, asked.tangent)).meta
        assert before["start"] == "zero"
        receipt = taftcache.forget(opened, opened.sample_ids()[:1], mode=mode)
        after = read_component(opened, EXACT, read_base(opened, asked.tangent)).meta
    for made in (before, after):
        assert made["stats"]["solver"] == "span newton"
        assert made["stats"]["passes"] < 120
    assert receipt.certificates[EXACT].decisive
    if mode == "resolve":
        assert after["stats"]["passes"] < 0.7 * before["stats"]["passes"]
    assert taftcache.audit(store).findings == []


STARTS = {
    "closed form": ({"tangent": {"train": "head"}}, "zero"),
    "ball": ({"objective": {"radius": 0.5}}, "zero"),
    "conjugate": ({"solver": {"method": "conjugate"}}, MEAN),
}


@pytest.mark.parametrize("way", STARTS)
def test_the_exact_model_says_where_its_solve_began(store, way, monkeypatch):
    given, start = STARTS[way]
    begun = []
    monkeypatch.setattr(
        solving, "minimise", lambda *args, **more: begun.append(more["start"]) or minimise(*args, **more)
    )
    with open_store(store) as opened:
        asked = recipe(store, compose={"mode": "exact"}, **given)
        taftcache.train(opened, asked)
        begun.clear()
        taftcache.compose(opened, asked)
        exact = read_component(opened, EXACT, read_base(opened, asked.tangent)).meta
        assert exact["start"] == start
        assert [one is None for one in begun] == [start == "zero"]
        if way == "closed form":  # which goes on from nothing either
            taftcache.forget(opened, opened.sample_ids()[:1], mode="resolve")
            assert opened.objects()[EXACT].meta["start"] == "zero"


@pytest.mark.parametrize(
    "objective",
    [{"loss": "hinge"}, {"ridge": "often"}, {"ridge": 0}, {"radius": -1.0}, {"class_weights": [-1.0]}],
)
def test_what_a_recipe_cannot_ask_for(tmp_path, objective):
    with pytest.raises(RecipeError):
        parse_recipe(values(tmp_path, objective=objective))


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"solver": {"method": "adamw"}}, "solver.method is 'adamw'"),
        ({"objective": {"radius": [0.5, 2.0]}}, r"objective.radius is \[0.5, 2.0\]"),
    ],
    ids=["method", "radii"],
)
def test_a_record_that_only_earlier_checkouts_read_is_refused(store, section, says):
    with open_store(store) as opened:
        with opened.transaction() as change:
            change.update(recipe=opened.manifest.recipe | section)
        with pytest.raises(RecipeError, match=f"^{says}, but must be"):
            taftcache.train(opened)


@pytest.mark.law("An interrupted solve raises KeyboardInterrupt, or is kept as asked, marked, and solved again")
def test_an_interrupted_solve_is_kept_marked_and_solved_again(store, monkeypatch):
    from taftcache.solve.methods import decisive as module
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
        with pytest.raises(CompositionError, match="solved to its end"):
            taftcache.compose(opened)
        report = taftcache.train(opened, settings)
        assert "components/000" in report.trained
        assert opened.objects()["components/000"].meta["converged"]


def test_an_interrupt_while_lambda_is_chosen_leaves_nothing(store, monkeypatch):
    """A λ that was chosen by half a solve would stay, under the key of all runs after it."""
    from taftcache.solve.methods.newton import newton

    def stop(passes: int, residual: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taftcache.solve.choosing.span_fits", lambda problem: False)
    asked = recipe(store, objective={"loss": "cross_entropy", "ridge": "auto"})
    with open_store(store) as opened:
        before = {name: ref.digest for name, ref in opened.objects().items()}
        with monkeypatch.context() as patch:
            patch.setattr("taftcache.solve.choosing.newton", lambda *args, **more: newton(*args, on_pass=stop, **more))
            with pytest.raises(KeyboardInterrupt):
                taftcache.train(opened, asked)
        assert {name: ref.digest for name, ref in opened.objects().items()} == before
        report = taftcache.train(opened, asked)
        assert opened.objects()["components/000"].meta["converged"]
        assert "components/000" in report.trained
