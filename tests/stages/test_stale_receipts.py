"""What a receipt says of a removal where the models from before were made from other rows, or under other settings."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import taftcache
from taftcache.errors import SolveError
from taftcache.model.component import read_base, read_component
from taftcache.model.meta import ridge_of
from taftcache.names import is_model
from taftcache.recipe import Recipe
from taftcache.solve.choosing import RidgeChoice
from taftcache.stages.forget.renewal import certificate_of
from taftcache.stages.train import solving
from taftcache.terminal.forgetting import show_forget, show_receipts
from tests.stages.making import open_store, recipe

FEW = {"data": {"source": "digits", "limit": 80, "held_out": 0.2}}
EXACT = {"compose": {"mode": "exact"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Not to be written to."""
    path = tmp_path_factory.mktemp("made") / "store"
    taftcache.run(under(path, ridge=1e-1))
    return path


@pytest.fixture
def trained(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "store")


def under(path: Path, **objective: Any) -> Recipe:
    """The recipe with another objective."""
    return recipe(path, objective=objective, **FEW, **EXACT)


def unknown(report: taftcache.ForgetReport) -> dict[str, bool]:
    """Of each new model, whether its receipt leaves open what the removal moved."""
    for figures in report.certificates.values():
        assert (figures.moved is None) == (figures.decisive is None) == (figures.moved_at_least is None)
    return {name: figures.moved is None for name, figures in report.certificates.items()}


def choose_ten_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, rows choose ten times the λ that they would."""
    kept = solving.choose_ridge

    def ten_times(*arguments: Any, **options: Any) -> RidgeChoice:
        choice = kept(*arguments, **options)
        return replace(choice, ridge=10 * choice.ridge)

    monkeypatch.setattr(solving, "choose_ridge", ten_times)


@pytest.mark.law("A receipt takes no other change of a model for what the removal moved")
@pytest.mark.parametrize("mode", ["retrain", "resolve"])
def test_another_ridge_is_not_what_the_removal_moved(trained, mode):
    with open_store(trained) as store:
        other = under(trained, ridge=1e-4)
        taftcache.train(store, other, shards=["000"])
        first, second = (store.shard(name).sample_ids[1] for name in ("000", "001"))
        report = taftcache.forget(store, [second], mode=mode)
        assert unknown(report) == {"components/001": True, "models/head": False, "models/exact": True}
        assert "components/001" in report.notes[-1]
        assert any("is not known" in note for note in report.notes)
        assert any("was solved cold: it was made from other" in note for note in report.notes) == (mode == "resolve")
        # what is renewed now was solved with the store's settings
        report = taftcache.forget(store, [first, store.shard("001").sample_ids[1]], mode=mode)
        assert not any(unknown(report).values())
        assert report.notes == []


@pytest.mark.law("A receipt takes no other change of a model for what the removal moved")
def test_under_another_ridge_what_decides_is_what_a_row_moves(trained):
    with open_store(trained) as store:
        new = read_component(store, "models/exact", read_base(store, under(trained, ridge=1e-1).tangent))
    proven = new.meta["certificate"]
    old = replace(new, delta=2 * new.delta, meta={**new.meta, "certificate": {**proven, "ridge": 2 * proven["ridge"]}})
    assert certificate_of(new, replace(old, meta=new.meta)).decisive
    for times, decisive in ((5, False), (15, True), (None, None)):
        moves = None if times is None else times * proven["distance_bound"]
        solved = replace(new, meta={**new.meta, "stats": {**new.meta["stats"], "row_moves": moves}})
        assert certificate_of(solved, old).decisive is decisive


@pytest.mark.law("A receipt takes no other change of a model for what the removal moved")
def test_a_ridge_that_the_rows_that_stay_chose_is_said(tmp_path, monkeypatch, capsys):
    """Most of what has moved is its part then, and what decides is what a typical row would move."""
    taftcache.run(under(tmp_path / "store", ridge="auto"))
    with open_store(tmp_path / "store") as store:
        one, other = store.shard("000").sample_ids[:2]
        choose_ten_times(monkeypatch)
        report = taftcache.forget(store, [one])
        figures = report.certificates["models/exact"]
        assert figures.ridge == pytest.approx(10 * figures.ridge_before)
        assert 0 < figures.row_moves < 0.1 * figures.moved
        assert figures.decisive == (figures.distance_bound <= 0.1 * figures.row_moves)
        said = taftcache.receipts(store).receipts[0].certificates["models/exact"]
        assert (said.other_ridge, said.ridge, said.decisive) == (True, figures.ridge, figures.decisive)
        assert said.ridge_before is said.moved_at_least is None
        show_forget(report)
        show_receipts(taftcache.receipts(store))
        told = " ".join(capsys.readouterr().out.split())
        alike = sum(f"{each.ridge:.1e}" == f"{figures.ridge:.1e}" for each in report.certificates.values())
        assert told.count(f"with another λ: the rows that stay chose {figures.ridge:.1e}") == 2 * alike
        kept_ones = taftcache.receipts(store).receipts[0].certificates.values()
        moves = [f"about {each.row_moves:.1e}: decisive; the removal moved" for each in report.certificates.values()]
        moves += [f"about {each.row_moves:.1e}: decisive, with another λ" for each in kept_ones]
        for each in set(moves):
            assert told.count(f"removing a row moves it by {each}") == moves.count(each)
        again = taftcache.forget(store, [other])
        assert again.certificates["models/exact"].ridge_before is None
    assert taftcache.audit(tmp_path / "store").findings == []


@pytest.mark.law("A receipt takes no other change of a model for what the removal moved")
def test_a_ridge_that_changes_as_a_class_leaves_is_said(tmp_path, monkeypatch, capsys):
    """The column that leaves makes the models incomparable, but not their λ."""
    taftcache.run(under(tmp_path / "store", ridge="auto"))
    with open_store(tmp_path / "store") as store:
        before = {name: ridge_of(ref.meta) for name, ref in store.objects().items() if is_model(name)}
        choose_ten_times(monkeypatch)
        report = taftcache.forget(store, classes=["3"])
        (receipt,) = taftcache.receipts(store).receipts
        assert {"components/000", "models/head", "models/exact"} <= receipt.certificates.keys()
        show_forget(report)
        answer = " ".join(capsys.readouterr().out.split())
        show_receipts(taftcache.receipts(store))
        told = " ".join(capsys.readouterr().out.split())
        for name, figures in report.certificates.items():
            assert figures.moved is figures.moved_at_least is None
            assert figures.ridge != figures.ridge_before == before[name]
            assert receipt.certificates[name].other_ridge
            said = f"with another λ: the rows that stay chose {figures.ridge:.1e}"
            assert f"{said}, with these {figures.ridge_before:.1e}" in answer
            assert said in told
    assert taftcache.audit(tmp_path / "store").findings == []


@pytest.mark.law("A receipt takes no other change of a model for what the removal moved")
def test_rows_that_came_since_are_not_what_the_removal_moved(tmp_path, images):
    folder = shutil.copytree(images, tmp_path / "images")
    made = recipe(
        tmp_path / "store", objective={"ridge": 1e-1}, **EXACT, data={"source": "folder", "train": str(folder)}
    )
    taftcache.run(made)
    for digit in range(3):
        for k in range(3):
            Image.new("RGB", (8, 8), (80 * digit, 20 * k, 9)).save(folder / str(digit) / f"new{k}.png")
    taftcache.append(made)
    with open_store(tmp_path / "store") as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[0]], mode="resolve")
        assert any(unknown(report).values())
        assert any("is not known" in note for note in report.notes)


def test_a_ridge_below_rounding_is_refused(trained):
    with open_store(trained) as store, pytest.raises(SolveError, match="larger than the ridge"):
        taftcache.train(store, under(trained, ridge=1e-300))


def test_rows_of_no_weight_alone_are_solved_and_forgotten(trained):
    with open_store(trained) as store:
        weights = (np.arange(len(store.classes)) == 3).astype(float).tolist()
        only = under(trained, ridge=1e-2, class_weights=weights)
        taftcache.train(store, only)
        taftcache.compose(store, only)
        shard = store.shard("001")
        ids = [i for i, label in zip(shard.sample_ids, shard.labels, strict=True) if label == 3]
        assert ids
        report = taftcache.forget(store, ids)
        assert report.certificates["components/001"].distance_bound == 0
        assert report.certificates["components/001"].decisive


def test_the_optima_moved_at_least_what_both_bounds_leave(trained):
    """An old model that may itself be as far from its optimum says nothing of what the removal moved."""
    with open_store(trained) as store:
        new = read_component(store, "models/exact", read_base(store, under(trained, ridge=1e-1).tangent))
    proven, moved = new.meta["certificate"], new.delta.norm().item()
    for loose, decisive in ((0.0, True), (0.5 * moved, True), (moved, False)):
        said = {**new.meta, "certificate": {**proven, "distance_bound": loose}}
        figures = certificate_of(new, replace(new, delta=2 * new.delta, meta=said))
        assert figures.moved_at_least == pytest.approx(max(0.0, moved - loose - proven["distance_bound"]))
        assert figures.decisive is decisive
