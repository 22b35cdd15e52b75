"""Functions of a store take it open, or its place."""

from __future__ import annotations

import os
import shutil

import pytest

import taftcache
from tests.stages.making import open_store

READ = ("evaluate", "inspect", "outliers", "duplicates", "suspects", "receipts")
WRITE = ("train", "compose", "forget", "destroy_key", "train_private", "trust")
MORE = {
    "export_model": ["folder"],
    "export_component": ["components/000", "file"],
    "import_component": ["file"],
    "sample_influence": ["digits/0000"],
    "query_influence": ["digits/0000"],
    "inspect_recipe": [],
    "weighted_sum": [{"000": 1}],
    "inspect_sample": ["digits/0000"],
    "inspect_shard": ["000"],
    "inspect_class": ["7"],
    "read_base": [None],
    "list_samples": [],
    "write_report": ["page.html"],
    "StoreView": [],
}
PLACES: dict[str, list[str]] = {
    "verify": [],
    "audit": [],
    "gc": [],
    "export": ["rows.h5"],
    "copy": ["copy"],
    "convert": ["converted"],
}

NAMED = {"convert": {"chunk_rows": 16}}


@pytest.mark.parametrize("name", READ)
def test_what_reads_says_the_same_of_a_place(solved, name):
    of = getattr(taftcache, name)
    with taftcache.FeatureStore(solved) as store:
        open_ = of(store)
    for place in (solved, str(solved)):
        assert of(place).root_digest == open_.root_digest
        assert str(of(store=place).store) == str(open_.store)


def test_what_writes_opens_for_writing_and_lets_go(solved, tmp_path):
    place = shutil.copytree(solved, tmp_path / "store")
    with taftcache.FeatureStore(place) as store:
        sample = store.shard("000").sample_ids[0]
    before = taftcache.inspect(place).root_digest
    assert taftcache.forget(str(place), [sample], dry_run=True).root_digest == before
    with open_store(place), pytest.raises(taftcache.StoreLocked):
        taftcache.forget(place, [sample])
    with open_store(place):  # a dry run asks for no lock
        taftcache.forget(place, [sample], dry_run=True)
    report = taftcache.forget(place, [sample])
    assert report.root_digest == taftcache.inspect(place).root_digest != before
    with open_store(place):
        pass


@pytest.mark.parametrize("name", ["FeatureStore", "audit", "gc", "verify", "convert", "export"])
@pytest.mark.parametrize("wrong", [3, None, b"stores/quickstart"], ids=["int", "None", "bytes"])
def test_what_is_no_place_is_named(name, wrong, tmp_path):
    more = {"convert": [tmp_path / "new"], "export": [tmp_path / "rows.h5"]}.get(name, [])
    with pytest.raises(taftcache.ArgumentError, match="the place of a store is not a path"):
        getattr(taftcache, name)(wrong, *more, **NAMED.get(name, {}))


@pytest.mark.parametrize("name", [*READ, *WRITE, *MORE])
@pytest.mark.parametrize("wrong", [3, None, {"path": "stores/quickstart"}], ids=["int", "None", "dict"])
def test_what_is_no_store_is_named(name, wrong):
    with pytest.raises(taftcache.ArgumentError, match="not given a store"):
        getattr(taftcache, name)(wrong, *MORE.get(name, []))


@pytest.mark.parametrize("name", [*READ, *WRITE, *MORE, *PLACES])
def test_a_place_without_a_store_is_named(name, tmp_path):
    with pytest.raises(taftcache.StoreNotFound):
        getattr(taftcache, name)(tmp_path / "none", *MORE.get(name, PLACES.get(name, [])), **NAMED.get(name, {}))


@pytest.mark.parametrize("name", PLACES)
def test_what_takes_a_place_takes_an_open_store(solved, tmp_path, name):
    with taftcache.FeatureStore(solved) as store:
        assert os.fspath(store) == str(solved)
        report = getattr(taftcache, name)(store, *(tmp_path / f for f in PLACES[name]), **NAMED.get(name, {}))
    assert report
