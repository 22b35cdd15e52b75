"""Two models sample by sample are what each of them says of every row, in one store and in two."""

from __future__ import annotations

import base64
import shutil
from time import sleep

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.view.asked.comparing import Comparisons
from taftcache.view.atlas import Atlas
from taftcache.view.server import ViewServer
from tests.view.test_server import ask, at


def unpacked(found):
    return np.frombuffer(base64.b64decode(found["data"]), {"Int32Array": "<i4", "Float32Array": "<f4"}[found["type"]])


def compared(comparisons, before, after):
    for _ in range(3000):
        said = comparisons.ask(before, after)
        if said["state"] not in ("working", "busy"):
            assert said["state"] == "done", said
            return said
        sleep(0.01)
    raise AssertionError("the thread ended without an answer")


@pytest.fixture(scope="module")
def pair(seen, tmp_path_factory):
    """The store, and a copy that has forgotten two samples."""
    path = shutil.copytree(seen, tmp_path_factory.mktemp("pair") / "after")
    with FeatureStore(path, mode="a") as store:
        names = [store.shards[0].sample_ids[0], store.held_out.sample_ids[0]]
        taftcache.forget(store, names)
    return seen, path, names


@pytest.mark.law("Two models compared on the page are what each says of every sample")
def test_two_models_of_a_store(atlas):
    said = compared(Comparisons(atlas), "here:base", "here:models/exact")
    rows, table = unpacked(said["rows"]), atlas.table
    assert rows.tolist() == list(range(len(table)))
    for key, column in (("before", "base"), ("after", "model")):
        assert (unpacked(said[key]["class"]) == atlas.classes_by[column]).all()
    assert unpacked(said["after"]["margin"]) == pytest.approx(atlas.margin, abs=1e-4)
    held = said["groups"]["held-out"]
    with FeatureStore(atlas.store.path) as store:
        report = taftcache.evaluate(store)
    right = [round(report.accuracy[name] * report.rows) for name in ("base model untouched", "models/exact")]
    assert list(held["right"]) == right
    changed = (atlas.classes_by["base"] != atlas.classes_by["model"])[table.held_out]
    assert held["changed"] == changed.sum()
    assert held["interval"][0] <= changed.mean() <= held["interval"][1]
    assert said["groups"]["all"]["rows"] == len(table)


@pytest.mark.law("Two models compared on the page are what each says of every sample")
def test_before_and_after_forgetting(atlas, pair):
    before, after, gone = pair
    with FeatureStore(after) as store, FeatureStore(before) as old:
        mine = Atlas(store)
        comparisons = Comparisons(mine, old)
        offer = comparisons.offer()
        assert (offer["before"], offer["after"]) == ("there:models/exact", "here:models/exact")
        assert offer["rows"] == [len(mine.table), len(mine.table) + 2]
        assert offer["shared"] == len(mine.table)
        assert "before entry 2 of the ledger (forget of 2" in offer["receipt"]
        said = compared(comparisons, offer["before"], offer["after"])
        theirs = [atlas.table.places[name] for name in mine.table.ids]
        assert (unpacked(said["before"]["class"]) == atlas.classes_by["model"][theirs]).all()
        assert unpacked(said["before"]["margin"]) == pytest.approx(atlas.margin[theirs], abs=1e-4)
        back = Comparisons(Atlas(old), store)
        assert "after entry 2" in back.offer()["receipt"]
        other = compared(back, "here:models/exact", "there:models/exact")
        names = [atlas.table.ids[k] for k in unpacked(other["rows"])]
        assert not set(gone) & set(names)
        assert (unpacked(other["after"]["class"]) == unpacked(said["after"]["class"])).all()


def test_models_that_are_not_there(atlas):
    for name in ("here:nothing", "there:models/mean", "", "here:base/tail"):
        with pytest.raises(RecipeError, match="no such model"):
            Comparisons(atlas).ask("here:base", name)


@pytest.mark.law("A page that is open serves nothing of a store's earlier state")
def test_a_second_store_that_changed_is_not_served(seen, pair, tmp_path):
    path = shutil.copytree(pair[1], tmp_path / "second")
    with FeatureStore(seen) as store, FeatureStore(path) as other, ViewServer(Atlas(store), against=other) as server:
        assert ask(server, at(server, "comparable"))[0] == 200
        with FeatureStore(path, mode="a") as writing:
            taftcache.forget(writing, [writing.shards[0].sample_ids[0]])
        assert ask(server, at(server, "comparable"))[0] == 410
        assert ask(server, at(server, ""))[0] == 200
        assert ask(server, at(server, "comparable"))[0] == 200
