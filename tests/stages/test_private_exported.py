"""Claims of privacy in exported files and folders: derived again from what the file states, without its store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, RecipeError
from taftcache.model.component import Component
from taftcache.model.component_file import read_meta
from taftcache.model.description import DESCRIPTION
from taftcache.names import PRIVATE
from taftcache.privacy.statement import audit_statement
from tests.stages.forging import forge_meta
from tests.stages.making import open_store, settings

Said = dict[str, Any]
CARRIED = "the statements that it carries are not"


def forge_file(file: Path, change: Callable[[Said], Said]) -> None:
    """An exported component, or the description of a saved model, with another promise."""
    if file.name == DESCRIPTION:
        described = json.loads(file.read_text(encoding="utf-8"))
        described["component"][PRIVATE] = change(described["component"][PRIVATE])
        file.write_text(json.dumps(described))
    else:
        component = Component.decode(file.read_bytes())
        said = change(component.meta[PRIVATE])
        file.write_bytes(replace(component, meta={**component.meta, PRIVATE: said}).encode())


@pytest.fixture
def exported(private, tmp_path) -> dict[str, Path]:
    """Both kinds of files of a component and of the mean, by their names."""
    place = tmp_path / "exported"
    place.mkdir()
    for name in ("components/000", "models/mean"):
        leaf = name.partition("/")[2]
        taftcache.export_component(private, name, place / f"{leaf}.safetensors")
        taftcache.export_model(private, place / leaf, name)
    files = [place / f"{leaf}{end}" for leaf in ("000", "mean") for end in (".safetensors", f"/{DESCRIPTION}")]
    return {str(file.relative_to(place)): file for file in files}


@pytest.mark.parametrize("name", ["000.safetensors", "mean.safetensors", "000/taftcache.json", "mean/taftcache.json"])
def test_a_false_claim_in_an_exported_file_is_found_and_not_passed_on(private, exported, tmp_path, name):
    place = tmp_path / "exported"
    report = taftcache.audit(private, also=[place])
    assert report.findings == []
    assert [note for note in report.notes if str(place) in note] == []
    file = exported[name]
    forge_file(file, lambda said: {**said, "epsilon": 0.01})
    (found,) = taftcache.audit(private, also=[place]).findings
    assert (found.kind, found.where) == ("privacy statement", str(file))
    assert found.problem.startswith("it claims epsilon 0.01")
    assert "export it again" in found.do
    if file.name == DESCRIPTION:
        out = tmp_path / "program"
        for pass_on in (
            lambda: taftcache.export_model(file.parent, out, program=True),
            lambda: taftcache.push(file.parent, "me/model"),
        ):
            with pytest.raises(FormatError, match=r"does not follow from its noise\n +got: it claims epsilon 0.01"):
                pass_on()
        assert not out.exists()


def test_a_mean_says_from_what_its_epsilon_follows(private, exported):
    meta = read_meta(exported["mean.safetensors"])
    own = [read_meta(exported["000.safetensors"])[PRIVATE]]
    with FeatureStore(private) as store:
        own += [store.objects()["components/001"].meta[PRIVATE]]
    assert meta[PRIVATE]["members"] == [{k: v for k, v in said.items() if k != "not_covered"} for said in own]
    assert audit_statement(meta) == []
    first, second = meta[PRIVATE]["members"]
    less = {**first, "epsilon": 0.01}
    for change, words in (
        ({"epsilon": 0.01}, "it claims epsilon 0.01; its members give epsilon 7.99"),
        ({"delta": 1e-9}, "it claims delta 1e-09; its members give delta 1e-05"),
        ({"private": False}, "it claims private False; its members give private True"),
        ({"relation": "add-remove"}, "its members give relation replace-one"),
        ({"composition": "parallel, over 3 disjoint shards"}, "its members give composition parallel, over 2"),
        ({"tuning": "none"}, "it claims tuning none"),
        ({"largest": 1.5}, "it claims largest 1.5; its members give largest None"),
        ({"not_covered": []}, "leaves out what is not covered"),
        ({"not_covered": None}, "leaves out what is not covered"),
        ({"epsilon": 0.01, "members": [less, {**second, "epsilon": 0.01}]}, "000: it claims epsilon 0.01 at delta"),
        ({"epsilon": 0.01, "members": [less, {**less, "shards": ["001"]}]}, "001: it claims epsilon 0.01 at delta"),
        ({"members": [first], "composition": "parallel, over 1 disjoint shards"}, CARRIED + " of the components"),
        ({"members": [first, first]}, "the shards are not disjoint"),
        ({"members": [{**first, "not_covered": []}, second]}, CARRIED + " those of its members"),
        ({"members": [{**first, "rows": 30}, second]}, "not a privacy statement as taftcache writes it"),
        ({"members": []}, "not a privacy statement as taftcache writes it"),
        ({"members": "both"}, "not a privacy statement as taftcache writes it"),
        ({"members": None}, "not a privacy statement as taftcache writes it"),
    ):
        found = audit_statement({**meta, PRIVATE: {**meta[PRIVATE], **change}})
        assert any(words in problem for problem in found), (change, found)
    for coefficients in (None, 5, {"components/000": 1.0}):
        assert any(CARRIED in problem for problem in audit_statement({**meta, "coefficients": coefficients}))


@pytest.mark.parametrize("said", [None, 5, "composition", ["composition"], {}])
def test_what_is_no_statement_is_said_to_be_none(said):
    (problem,) = audit_statement({PRIVATE: said})
    assert problem.startswith("not a privacy statement as taftcache writes it: ")
    assert "\n" not in problem


def test_noise_that_no_training_would_have_is_a_finding(exported):
    meta = read_meta(exported["000.safetensors"])
    for release in ({"multiplier": 1e300}, {"multiplier": 1e200}):
        said = {**meta[PRIVATE], "relation": "add-remove", "sensitivity": 1.0, "releases": [release]}
        assert audit_statement({PRIVATE: said}) == ["no epsilon follows from the noise that it states"]
    for release in (
        {"multiplier": 0.03, "rate": 0.01, "steps": 1000},
        {"multiplier": 1.0, "rate": 0.01, "steps": 10**8},
    ):
        (problem,) = audit_statement({PRIVATE: {**said, "releases": [release]}})  # minutes, and gigabytes, otherwise
        assert problem.startswith("no epsilon is derived")


@pytest.mark.parametrize("forged", [True, False], ids=["others", "none"])
def test_in_its_store_a_mean_carries_what_the_members_there_state(private, forged):
    def other(meta: Said) -> Said:
        said = dict(meta[PRIVATE])
        first, *rest = said.pop("members")
        return {**meta, PRIVATE: {**said, "members": [{**first, "unit": 1.0}, *rest]} if forged else said}

    forge_meta(private, "models/mean", other)
    (found,) = taftcache.audit(private).findings
    assert (found.kind, found.problem) == ("privacy statement", CARRIED + " those of its members")
    with open_store(private) as store, pytest.raises(FormatError, match="does not follow"):
        taftcache.export_component(store, "models/mean", private.parent / "mean.safetensors")


def test_members_that_were_trained_again_are_carried_with_all_that_they_spent(store, tmp_path):
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened, budget=12.0))
        again = settings(opened, epsilon=4.0, budget=12.0, steps=2)
        taftcache.train_private(opened, again, shards=["001"])
        taftcache.compose(opened)
        taftcache.export_component(opened, "models/mean", tmp_path / "mean.safetensors")
    meta = read_meta(tmp_path / "mean.safetensors")
    assert audit_statement(meta) == []
    first, second = meta[PRIVATE]["members"]
    assert "in all" in second["tuning"]
    assert second["tuning"] in meta[PRIVATE]["tuning"]
    assert meta[PRIVATE]["epsilon"] == first["epsilon"] > second["epsilon"]
    meta[PRIVATE].pop("tuning")
    assert any("it claims tuning None" in problem for problem in audit_statement(meta))


def test_an_audit_without_the_extra_searches_on_and_notes_what_it_did_not_check(
    private, exported, tmp_path, monkeypatch
):
    def missing(meta):
        if PRIVATE in meta:
            raise RecipeError("dp-accounting is missing")
        return []

    monkeypatch.setattr("taftcache.stages.audit.byproducts.audit_statement", missing)
    report = taftcache.audit(private, also=[tmp_path / "exported"])
    assert report.findings == []
    assert any("is checked with" in note for note in report.notes)
