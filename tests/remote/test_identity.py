"""Whoever computes, the store has the bytes that one process gives it."""

from __future__ import annotations

import shutil
import time
from subprocess import call

import pytest

import taftcache
from taftcache.errors import UnreadableImage
from taftcache.remote.task import portable
from taftcache.tangent.operator import TangentOperator
from tests.remote.making import asking, grow, lasting, many
from tests.stages.making import open_store, recipe, tree


@pytest.mark.law("A store made by workers has the bytes of one made by one process")
@pytest.mark.parametrize("workers", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3))])
def test_a_store_made_by_workers_has_the_bytes_of_one_made_alone(cluster, finished, extracted, tmp_path, workers):
    grow(cluster, workers)
    taftcache.run(recipe(tmp_path / "store"), cluster=cluster)
    assert tree(tmp_path / "store") == tree(finished)
    taftcache.extract(many(tmp_path / "many"), cluster=cluster)
    assert tree(tmp_path / "many") == tree(extracted)


@pytest.mark.law("A store made by workers has the bytes of one made by one process")
@pytest.mark.parametrize(
    ("way", "workers"),
    [
        ("kernel", 2),
        ("iterations", 2),
        ("newton", 2),
        # Each takes seconds.
        pytest.param("rows", 2, marks=pytest.mark.full),
        pytest.param("kernel", 1, marks=pytest.mark.full),
        pytest.param("iterations", 3, marks=pytest.mark.full),
    ],
)
def test_the_exact_composition_has_the_same_bytes(cluster, exact, store, monkeypatch, way, workers):
    """Where blocks need not be looked at one by one, the driver reads no row."""
    expected, read, sums = exact(way, monkeypatch), [], TangentOperator.sums
    monkeypatch.setattr(TangentOperator, "sums", lambda *asked: read.append(asked) or sums(*asked))
    grow(cluster, workers)
    with open_store(store) as opened:
        report = taftcache.compose(opened, asking(opened, way), cluster=cluster)
    assert report.passes > 3
    assert tree(store) == tree(expected)
    assert not (way == "iterations" and read)


@pytest.mark.parametrize("source", ["folder", "table", "npz", "hdf5"])
def test_workers_are_told_places_in_full(tmp_path, monkeypatch, source):
    """Which are in the driver's folder, and not in theirs."""
    monkeypatch.chdir(tmp_path)
    weights = {"weights": "local-dir:nets/mine"}
    sent = portable(recipe(tmp_path / "store", data={"source": source, "train": "a/b", "test": "c"}, backbone=weights))
    assert (sent["data"]["train"], sent["data"]["test"]) == (str(tmp_path / "a/b"), str(tmp_path / "c"))
    assert sent["backbone"]["weights"] == str(tmp_path / "nets/mine")


def test_workers_are_told_names_as_they_are(tmp_path):
    named = {"source": "timm", "train": "torch/cifar10", "root": "~/data"}
    sent = portable(recipe(tmp_path / "store", data=named))
    assert (sent["data"]["train"], sent["data"]["root"]) == ("torch/cifar10", "~/data")
    assert sent["backbone"]["weights"] == "bundled"


@pytest.mark.parametrize("unreadable", ["skip", pytest.param("stop", marks=pytest.mark.full)])
def test_an_image_that_does_not_decode_ends_as_it_does_alone(cluster, images, tmp_path, unreadable):
    bad = shutil.copytree(images, tmp_path / "images")
    sorted(bad.glob("1/*.png"))[5].write_bytes(b"no image")
    outcomes = []
    for name, by in (("alone", None), ("workers", cluster)):
        data = {"source": "folder", "train": str(bad), "unreadable": unreadable}
        asked = recipe(tmp_path / name, data=data)
        if unreadable == "skip":
            taftcache.extract(asked, cluster=by)
            outcomes.append(tree(tmp_path / name))
        else:
            with pytest.raises(UnreadableImage) as stopped:
                taftcache.extract(asked, cluster=by)
            outcomes.append(str(stopped.value))
    assert outcomes[0] == outcomes[1]


@pytest.mark.law("Memory does not grow with the number of tasks")
def test_calls_are_drawn_no_faster_than_results_are_taken(cluster):
    drawn = 0

    def calls():
        nonlocal drawn
        for _ in range(200):
            drawn += 1
            yield (0.0,)

    ahead = 2 * len(cluster.workers())
    results = cluster.results(time.sleep, calls())
    for taken, _ in zip(range(1, 21), results, strict=False):
        time.sleep(0.01)
        assert drawn <= taken + ahead
    results.close()
    assert drawn <= 20 + ahead


def test_results_come_in_order_or_as_they_end(cluster, tmp_path):
    grow(cluster, 2)
    naps = [(0.5,), (0.0,), (0.0,), (0.0,)]
    assert [n for n, _ in cluster.results(time.sleep, naps)] == [0, 1, 2, 3]
    calls = [lasting(tmp_path / "go"), (["true"],), (["true"],), (["true"],)]
    results = cluster.results(call, calls, ordered=False)
    assert next(results)[0] != 0
    (tmp_path / "go").touch()
    assert 0 in [n for n, _ in results]
