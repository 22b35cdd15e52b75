"""Copies and conversions of a real store, and the same in a bucket."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, IdentityError, RecipeError, StoreError
from tests.stages.making import recipe, tree


def shards(path) -> dict[str, bytes]:
    return {file: data for file, data in tree(path).items() if file.startswith("shards/")}


def test_a_copy_predicts_and_forgets_as_the_store_does(finished, tmp_path):
    report = taftcache.copy(finished, tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(finished)
    assert report.root_digest == FeatureStore(finished).root_digest
    assert taftcache.copy(finished, tmp_path / "copy").files == 0
    with FeatureStore(tmp_path / "copy", mode="a") as store:
        assert taftcache.train(store).trained == []
        taftcache.forget(store, [store.shards[0].sample_ids[0]])
    assert taftcache.verify(finished).faults == []


def test_float32_store_becomes_the_float16_one(finished, tmp_path):
    """The same bytes as an extraction in float16: rounding is the last step of both."""
    taftcache.extract(recipe(tmp_path / "wide", store={"dtype": "float32"}))
    report = taftcache.convert(tmp_path / "wide", tmp_path / "narrow", dtype="float16")
    assert report.dtype == "float16"
    assert shards(tmp_path / "narrow") == shards(finished)
    asked = recipe(tmp_path / "narrow")
    assert taftcache.extract(asked).images == 0
    run = taftcache.run(asked)
    assert len(run.train.trained) == 3
    assert tree(tmp_path / "narrow") == tree(finished)


def test_a_widened_store_is_not_taken_for_an_extraction_in_float32(finished, tmp_path):
    taftcache.convert(finished, tmp_path / "wide", dtype="float32")
    with pytest.raises(IdentityError, match="extracted in float16"):
        taftcache.extract(recipe(tmp_path / "wide", store={"dtype": "float32"}))
    with FeatureStore(tmp_path / "wide", mode="a") as store:
        assert taftcache.train(store).trained
    taftcache.convert(tmp_path / "wide", tmp_path / "back", dtype="float16")
    assert shards(tmp_path / "back") == shards(finished)
    assert taftcache.extract(recipe(tmp_path / "back")).images == 0


def test_other_chunks(finished, tmp_path):
    report = taftcache.convert(finished, tmp_path / "new", chunk_rows=3)
    assert set(report.chunk_rows.values()) == {3}
    taftcache.extract(recipe(tmp_path / "fresh", store={"chunk_rows": 3}))
    assert tree(tmp_path / "new") == tree(tmp_path / "fresh")
    with pytest.raises(RecipeError, match="changes nothing"):
        taftcache.convert(finished, tmp_path / "other")


@pytest.mark.parametrize("rows", [1 << 17, 10**9])
def test_chunks_that_are_too_large_are_refused_before_a_store_is_made(finished, tmp_path, rows):
    with pytest.raises(FormatError, match="at most 65536 rows"):
        taftcache.convert(finished, tmp_path / "new", chunk_rows=rows)
    with pytest.raises(FormatError, match="at most 65536 rows"):
        taftcache.import_vectors(np.eye(9), [0, 1, 2] * 3, tmp_path / "new", overrides=[f"store.chunk_rows={rows}"])
    with pytest.raises(FormatError, match="at most 65536 rows"):
        taftcache.extract(recipe(tmp_path / "new", store={"chunk_rows": rows}))
    assert not (tmp_path / "new").exists()


def test_a_whole_run_in_a_bucket(finished, tmp_path, monkeypatch):
    """Extract, train, forget and read in a bucket; its copy in a folder has the folder's bytes."""
    from tests.cache.s3 import make_bucket, reached_at, server

    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with server() as s3:
        make_bucket("bucket", s3.server_port)
        for name, value in reached_at(s3.server_port, tmp_path / "desk").items():
            monkeypatch.setenv(name, value)
        address = "s3://bucket/store"
        assert str(taftcache.estimate(recipe(address)).store) == address
        taftcache.run(recipe(address))
        assert taftcache.run(recipe(address)).idle
        with pytest.raises(StoreError, match=f"cannot import into {address}: its rows were made from images"):
            taftcache.import_vectors(np.eye(8), np.arange(8) % 2, address)
        assert taftcache.run(taftcache.inspect_recipe(address)).idle
        taftcache.copy(address, tmp_path / "copy")
        assert tree(tmp_path / "copy") == tree(finished)
        with FeatureStore(address, mode="a") as store:
            sample = store.shards[0].sample_ids[0]
            taftcache.forget(store, [sample])
        report = taftcache.verify(address)
        assert (report.faults, report.strays) == ([], [])
        far = taftcache.copy(address, tmp_path / "copy", update=True)
        assert 0 < far.files < 20
    local = shutil.copytree(finished, tmp_path / "local")
    with FeatureStore(local, mode="a") as store:
        taftcache.forget(store, [sample])
    assert shards(local) == shards(tmp_path / "copy")
