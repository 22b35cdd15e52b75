"""Private training of a store: statements, the budget, what is dropped, composed and forgotten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import taftcache
from taftcache.cli import main
from taftcache.errors import CompositionError, RecipeError, SolveError
from taftcache.names import PRIVATE
from taftcache.privacy.budget import EVENT
from taftcache.privacy.statement import audit_statement, not_covered
from taftcache.recipe import parse_recipe, recipe_values
from taftcache.stages.train import compositions
from tests.seeded import seeded_noise
from tests.stages.making import PRIVACY, open_store, settings


def test_every_shard_gets_a_component_that_says_what_it_promises(store):
    with open_store(store) as opened:
        recipe = settings(opened, train="full")
        weighted = parse_recipe(opened.manifest.recipe | {"compose": {"mode": "weighted"}})
        assert "models/weighted" in taftcache.compose(opened, weighted).models
        report = taftcache.train_private(opened, recipe)
        assert report.trained == ["components/000", "components/001"]
        assert {"models/head", "models/mean", "models/weighted", "components/000"} <= set(report.dropped)
        for name, said in report.statements.items():
            meta = opened.objects()[name].meta
            assert said == meta[PRIVATE]
            assert audit_statement(meta) == []
            assert said["private"]
            assert 8.0 * 0.998 <= said["epsilon"] <= 8.0
        assert recipe_values(recipe)["privacy"] == opened.manifest.recipe["privacy"]
        again = taftcache.train_private(opened, recipe)
        assert again.kept == report.trained
        assert again.trained == []
        entries = [entry for entry in opened.ledger() if entry.get("event") == EVENT]
        assert [entry["shards"] for entry in entries] == [["000"], ["001"]]

        taftcache.compose(opened, recipe)
        composed = opened.objects()["models/mean"].meta[PRIVATE]
        assert composed["epsilon"] == max(said["epsilon"] for said in report.statements.values())
        assert "models/mean" in taftcache.evaluate(opened).accuracy
    assert taftcache.audit(store).findings == []


def test_components_that_learned_next_to_nothing_compose(store):
    """Each takes the head away and puts nothing in its place: the logits are near zero, and the terms are not."""
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened, learning_rate=1e-9))
        assert taftcache.compose(opened).identity_error < 1e-12


@pytest.mark.parametrize(
    ("section", "key", "value", "fault"),
    [
        ("privacy", "multiplier", 2.4e-10, "sampled releases need noise"),
        ("objective", "alpha", 1e100, "alpha of the rescaled square loss is above"),
    ],
)
def test_settings_that_no_training_can_follow(store, section, key, value, fault):
    with open_store(store) as opened:
        before = opened.root_digest
        asked = settings(opened, mechanism="sampled-descent", relation="add-remove", loss="rsl")
        with pytest.raises(SolveError, match=fault):
            taftcache.train_private(opened, asked, overrides={f"{section}.{key}": value})
        assert opened.root_digest == before


def test_what_could_not_be_composed_is_not_charged(store, monkeypatch):
    monkeypatch.setattr(compositions, "PROOF_TOLERANCE", -1.0)
    with open_store(store) as opened:
        before = opened.root_digest
        with pytest.raises(CompositionError, match=r"was not kept: [^0-9]*$"):  # no number of what is not charged
            taftcache.train_private(opened, settings(opened))
        assert opened.root_digest == before


@pytest.mark.law("A promise follows from the noise, and the budget of a shard is kept")
def test_a_second_training_is_refused_when_the_budget_is_spent(store):
    with open_store(store) as opened:
        first = taftcache.train_private(opened, settings(opened, budget=15.0))
        more = taftcache.train_private(opened, settings(opened, clip=2.0), shards=["000"])
        assert first.spent["000"] < 8.0 < more.spent["000"] <= 15.0
        before = opened.root_digest
        for shards, clip in ((["000"], 3.0), (None, 2.0)):
            with pytest.raises(RecipeError, match="of its budget of 15"):
                taftcache.train_private(opened, settings(opened, clip=clip, epsilon=14.0), shards=shards)
        assert opened.objects()["components/001"].meta[PRIVATE] == first.statements["components/001"]
        assert opened.root_digest == before


def test_an_edited_statement_is_found(store):
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened), shards=["000"])
        ref = opened.objects()["components/000"]
        with opened.transaction() as change:
            said = {**ref.meta[PRIVATE], "epsilon": 1.0}
            change.put("components/000", opened.read_object("components/000"), {**ref.meta, PRIVATE: said})
    assert any("its noise gives" in finding.problem for finding in taftcache.audit(store).findings)


def test_an_exact_model_beside_private_components_is_refused(store):
    with open_store(store) as opened:
        recipe = parse_recipe(recipe_values(settings(opened)) | {"compose": {"mode": "exact"}})
        with pytest.raises(RecipeError, match="would not be private"):
            taftcache.train_private(opened, recipe)


def test_noise_of_a_seed_makes_a_component_that_is_not_private(store):
    with open_store(store) as opened:
        with seeded_noise():
            report = taftcache.train_private(opened, settings(opened))
        assert not any(said["private"] for said in report.statements.values())
        assert all("not private" in said["noise"] for said in report.statements.values())
        taftcache.compose(opened)
        assert not opened.objects()["models/mean"].meta[PRIVATE]["private"]


def test_noise_of_a_seed_is_not_kept_where_privacy_is_asked_for(store):
    with open_store(store) as opened:
        with seeded_noise():
            taftcache.train_private(opened, settings(opened, budget=20.0), shards=["000"])
        report = taftcache.train_private(opened, settings(opened, budget=20.0), shards=["000"])
        assert report.trained == ["components/000"]
        assert report.statements["components/000"]["private"]
        assert 8.0 < report.spent["000"] <= 20.0, "the other is charged all the same"


def test_a_forgotten_sample_of_a_private_component(store):
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened))
        taftcache.compose(opened)
        before = opened.objects()["components/000"].digest
        sample = opened.shard("000").sample_ids[0]
        report = taftcache.forget(opened, [sample])
        assert not opened.holds(sample)
        assert opened.objects()["components/000"].digest == before
        assert "components/000" not in report.renewed
        (note,) = (text for text in opened.ledger()[-1]["notes"] if text.startswith("components/000"))
        assert "epsilon" in note
        assert "Erasure" in note
    assert taftcache.audit(store).findings == []


def test_tuning_is_charged(store):
    with open_store(store) as opened:
        report = taftcache.train_private(opened, settings(opened), shards=["000"], rates=[0.5, 2.0])
        said = report.statements["components/000"]
        assert len(said["releases"]) == 2
        assert said["epsilon"] <= 8.0
        assert report.spent["000"] == pytest.approx(said["epsilon"])
        assert said["tuning"].endswith("all of them are charged")
        assert taftcache.evaluate(opened).notes[-1].startswith("these rows chose the learning rate of components/000,")
        assert audit_statement(opened.objects()["components/000"].meta) == []


@pytest.mark.parametrize(
    "mechanism", ["sampled-descent", "least-squares", pytest.param("covariance", marks=pytest.mark.full)]
)
def test_other_mechanisms(store, mechanism):
    with open_store(store) as opened:
        recipe = settings(opened, mechanism=mechanism, relation="add-remove", loss="rsl")
        report = taftcache.train_private(opened, recipe, shards=["000"])
        assert report.statements["components/000"]["mechanism"] == mechanism
        assert audit_statement(opened.objects()["components/000"].meta) == []
        if mechanism != "sampled-descent":
            with pytest.raises(RecipeError, match="head alone"):
                taftcache.train_private(opened, settings(opened, train="full", mechanism=mechanism), shards=["001"])


def test_commands(store: Path, capsys):
    sets = [f"--set=privacy.{key}={value}" for key, value in PRIVACY.items()] + ['--set=tangent.train="head"']
    with pytest.raises(SystemExit, match="0"):
        main(["train", str(store), "--private", *sets, "--set=privacy.budget=100", "--json"])
    assert json.loads(capsys.readouterr().out)["statements"]["components/001"]["private"]
    with pytest.raises(SystemExit, match="0"):
        main(["train", str(store), "--private", "--rate", "0.5", "--rate", "1"])
    assert "not covered" in capsys.readouterr().out


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_labels_that_ids_name_are_not_covered_by_replacing(photographed, store, tmp_path, relation):
    """Another label is another id there, and so no neighbour's."""
    folder = shutil.copytree(photographed, tmp_path / "folder")
    for path, named in ((folder, True), (store, False)):
        with open_store(path) as opened:
            report = taftcache.train_private(opened, settings(opened, relation=relation))
            taftcache.compose(opened)
            told = ["does not protect labels" in note for note in report.notes]
            assert told == [True] * (named and relation == "replace-one")
            for said in (opened.objects()["models/mean"].meta[PRIVATE], *report.statements.values()):
                assert said["not_covered"] == not_covered(relation)
        assert taftcache.audit(path).findings == []
