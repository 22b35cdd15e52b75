"""Two models sample by sample are what each of them says of every row, in one store and in two."""

from __future__ import annotations

import base64
import json
import re
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
from tests.stages.making import recipe
from tests.view.test_server import ask, at

KINDS = {"Int32Array": "<i4", "Float32Array": "<f4", "Uint8Array": "u1"}


def unpacked(found):
    return np.frombuffer(base64.b64decode(found["data"]), KINDS[found["type"]])


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
    comparisons = Comparisons(atlas)
    offer = comparisons.offer()
    assert (offer["before"], offer["after"]) == ("here:models/mean", "here:models/exact")
    assert "base" in offer["sides"]["here"]["models"]  # its head is drawn
    said = compared(comparisons, "here:base", "here:models/exact")
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


def test_what_one_store_trained_on_is_not_held_out(tmp_path):
    """Classes that no vector says anything of: a model is right on what it saw alone."""
    rng, stores = np.random.default_rng(0), [tmp_path / name for name in ("here", "there")]
    x, y = rng.standard_normal((120, 300)), rng.integers(0, 2, 120)
    for seed, path in enumerate(stores):
        taftcache.import_vectors(x, y, path, overrides=[f"store.seed={seed}", "store.shards=1", "objective.ridge=1e-6"])
        taftcache.train(path)
    with FeatureStore(stores[0]) as store, FeatureStore(stores[1]) as other:
        here, there = ({name: shard.role for shard in (*one.shards, one.held_out) for name in shard.sample_ids}
                       for one in (store, other))  # fmt: skip
        atlas = Atlas(store)
        said = compared(Comparisons(atlas, other), "there:components/000", "here:components/000")
    names = [atlas.table.ids[k] for k in unpacked(said["rows"])]
    roles = [(here[name], there[name]) for name in names]
    for group, role in (("held-out", "held-out"), ("training", "train")):
        both = [pair == (role, role) for pair in roles]
        assert unpacked(said["in"][group]).tolist() == both
        assert said["groups"][group]["rows"] == sum(both) > 0
    assert said["held_out_once"] == sum(a != b for a, b in roles) > 0
    assert said["groups"]["training"]["right"] == (said["groups"]["training"]["rows"],) * 2
    assert max(said["groups"]["held-out"]["right"]) < said["groups"]["held-out"]["rows"]
    assert unpacked(said["in"]["all"]).all()


def test_what_one_store_trained_on_other_rows_of_the_group_of_is_not_held_out(photographed, images, tmp_path):
    """Unless the store may not open its images here: a stranger's expression may take for ever."""
    pattern, here = "[0-9]/0[0-9]{2}", tmp_path / "here"
    data = {"source": "folder", "train": str(images), "held_out": 0.7, "group": pattern}
    taftcache.extract(recipe(here, data=data))
    shutil.copytree(here, tmp_path / "elsewhere")
    for path in (here, tmp_path / "elsewhere"):
        with FeatureStore(path) as store, FeatureStore(photographed) as other:
            held = {*store.held_out.sample_ids} & {*other.held_out.sample_ids}
            trained = [{re.search(pattern, i)[0] for i in one.sample_ids()} for one in (store, other)]
            known = {i for i in held if re.search(pattern, i)[0] in trained[0] ^ trained[1] and path == here}
            atlas = Atlas(store)
            said = compared(Comparisons(atlas, other), "there:models/mean", "here:base")
            ids = [atlas.table.ids[k] for k in unpacked(said["rows"])]
        assert said["known"] == len(known)
        assert {i for i, one in zip(ids, unpacked(said["in"]["held-out"]), strict=True) if one} == held - known
        assert not {i for i, one in zip(ids, unpacked(said["in"]["training"]), strict=True) if one} & held
        assert len(held) > len(known) > 0 or path != here


def test_models_that_are_not_there(atlas):
    for name in ("here:nothing", "there:models/mean", "", "here:base/tail"):
        with pytest.raises(RecipeError, match="no such model"):
            Comparisons(atlas).ask("here:base", name)


@pytest.mark.law("A page that is open serves nothing of a store's earlier state")
def test_a_second_store_that_changed_is_not_served(seen, pair, tmp_path):
    path = shutil.copytree(pair[1], tmp_path / "second")
    with FeatureStore(seen) as store, FeatureStore(path) as other, ViewServer(Atlas(store), against=other) as server:
        assert ask(server, at(server, "comparable"))[0] == 200
        root = json.loads(ask(server, at(server, "overview"))[1])["root"]
        assert ask(server, at(server, f"comparable?root={root}"))[0] == 200
        with FeatureStore(path, mode="a") as writing:
            taftcache.forget(writing, [writing.shards[0].sample_ids[0]])
        assert ask(server, at(server, "comparable"))[0] == 410
        assert ask(server, at(server, ""))[0] == 200
        assert ask(server, at(server, "comparable"))[0] == 200
        assert ask(server, at(server, f"comparable?root={root}"))[0] == 410  # of a page that another made old
        root = json.loads(ask(server, at(server, "overview"))[1])["root"]
        assert ask(server, at(server, f"comparable?root={root}"))[0] == 200
