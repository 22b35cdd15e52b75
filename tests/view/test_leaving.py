"""Leaving one sample out on the page is what ``taftcache influence`` and ``forget`` do, whatever the recipe asks."""

from __future__ import annotations

import json
from threading import Event
from time import sleep

import msgspec
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import SolveError, StoreError
from taftcache.stages.train import without as stage
from taftcache.view import payload
from taftcache.view.asked.leaving import SideSolves
from taftcache.view.atlas import Atlas
from taftcache.view.pictures import Pictures
from tests.stages.making import open_store, recipe
from tests.teaching.making import extract_features, teacher_recipe

SETTINGS = {
    "conjugate": {"solver": {"method": "conjugate"}},
    "newton": {"objective": {"loss": "cross_entropy", "ridge": 1.0}, "solver": {"tolerance": 1e-3}},
    "balanced": {"objective": {"class_weights": "balanced"}},
    "prior": {},
}


@pytest.fixture(scope="module", params=SETTINGS)
def asked(request, tmp_path_factory):
    """(setting, store): sixty digits in two shards, trained as the setting says; not to be written to."""
    place = tmp_path_factory.mktemp(request.param)
    sections = dict(SETTINGS[request.param])
    if request.param == "prior":
        teacher = extract_features(place / "teacher", shards=2, limit=40, model_args={"embed_dim": 12})
        student = teacher_recipe(place / "student", model_args={"embed_dim": 12})
        sections = {
            "backbone": msgspec.to_builtins(student.backbone),
            "data": {"source": "digits", "limit": 40},
            "objective": {"ridge": 10.0},  # with a weak prior: a solve takes a second, not a minute
            "solver": {"tolerance": 1e-4, "max_passes": 5000},
            "prior": {"teachers": [str(teacher)], "sparsity": 0.2, "beta": 0.01},
        }
    settings = recipe(place / "store", **sections)
    taftcache.extract(settings)
    with open_store(place / "store") as store:
        taftcache.train(store, settings)
        taftcache.compose(store)
    return request.param, place / "store"


def answered(leaving, name):
    """The page's answer, once the thread is done."""
    for _ in range(3000):
        said = leaving.ask(name)
        if said["state"] != "working":
            return said
        sleep(0.02)
    raise AssertionError("the thread ended without an answer")


def test_the_page_says_what_influence_says(asked, monkeypatch):
    """One solve each, of the same problem by the same method: not a digit differs."""
    setting, path = asked
    methods = []
    solve = stage.solve_component
    monkeypatch.setattr(
        stage, "solve_component", lambda *a, **k: methods.append(a[0].recipe.solver.method) or solve(*a, **k)
    )
    with FeatureStore(path) as store:
        shard = store.shards[0]
        name, part = shard.sample_ids[1], f"components/{shard.name}"
        said = answered(SideSolves(Atlas(store)), name)
        report = taftcache.sample_influence(store, name, model=part)
    assert said["state"] == "done", said
    assert said["moved"] == report.moved > 0
    assert said["distance_bound"] == report.distance_bound
    assert said["passes"] == report.passes
    assert said["after"]["component"] == pytest.approx(own_logits(said, report), abs=1e-3)
    assert methods == ["conjugate" if setting == "conjugate" else "auto"] * 2


def own_logits(said, report):
    """The page's logits with that of the sample's own class as influence says it."""
    want = list(said["after"]["component"])
    want[int(report.label)] = report.own_logit_without
    return want


def test_it_is_what_forgetting_does(asked, tmp_path):
    path = asked[1]
    with FeatureStore(path) as store:
        shard = store.shards[0]
        name, part = shard.sample_ids[1], f"components/{shard.name}"
        said = answered(SideSolves(Atlas(store)), name)
        taftcache.copy(path, tmp_path / "copy")
    with open_store(tmp_path / "copy") as copy:
        certificate = taftcache.forget(copy, [name]).certificates[part]
    assert abs(said["moved"] - certificate.moved) <= said["distance_bound"] + certificate.distance_bound
    assert said["moved"] == pytest.approx(certificate.moved, rel=1e-2)


def test_a_page_says_where_there_is_no_bound(asked):
    """JSON knows no NaN: what is not known is null."""
    setting, path = asked
    with FeatureStore(path) as store:
        atlas = Atlas(store)
        shown = payload.sample(atlas, store.shards[0].sample_ids[0], Pictures(store))
        influence = shown["forget"]
    json.dumps(shown, default=float, allow_nan=False)
    assert influence["moved"] is None
    assert (influence["bound"] is None) == (influence["composed_bound"] is None) == (setting in ("balanced", "prior"))


def test_a_prediction_under_a_prior_has_no_closed_form(asked):
    setting, path = asked
    if setting != "prior":
        return
    with FeatureStore(path) as store, pytest.raises(SolveError, match="no prior"):
        taftcache.query_influence(store, store.held_out.sample_ids[0])


def test_what_cannot_be_left_out(atlas):
    leaving, store = SideSolves(atlas), atlas.store
    with pytest.raises(StoreError, match="is held out"):
        leaving.ask(store.held_out.sample_ids[0])


def test_a_solve_says_which_one_goes_first(atlas, monkeypatch):
    """Of several samples it has no id to say."""
    go, (name, other) = Event(), atlas.store.shards[0].sample_ids[:2]
    for work in ("without_row", "without_rows"):
        monkeypatch.setattr(f"taftcache.view.asked.leaving.{work}", lambda *_: go.wait(60) and None)
    one, several = SideSolves(atlas), SideSolves(atlas)
    assert one.ask(name)["state"] == several.ask_many([0, 1])["state"] == "working"
    assert one.ask(other) == one.ask_many([0, 1]) == {"state": "busy", "with": name}
    assert several.ask(name) == several.ask_many([0, 2]) == {"state": "busy", "with": ""}
    go.set()
