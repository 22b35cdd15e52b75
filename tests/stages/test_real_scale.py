"""The real-scale recipe, on as many of its images as a short test allows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taftcache.cache.store import FeatureStore
from taftcache.recipe import load_recipe
from taftcache.stages.run import run

RECIPE = Path(__file__).parents[2] / "pipelines" / "caltech101.toml"
# Images of a fifth of the tokens: the position embeddings are fitted to them.
SMALLER = ["backbone.model_args={img_size=96}", "preprocess.input_size=[3,96,96]"]


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TAFTCACHE_DATA"), reason="TAFTCACHE_DATA names no folder with Caltech-101")
@pytest.mark.parametrize(
    ("rows", "more"),
    [
        pytest.param(101, ["objective.ridge=1e-2", "solver.tolerance=1e-2", *SMALLER], id="one-of-each-class"),
        pytest.param(160, [], id="the-ridge-chosen", marks=pytest.mark.full),
    ],
)
def test_caltech101_from_images_to_a_composed_model(tmp_path, rows, more):
    store = tmp_path / "store"
    short = [f"store.path={store}", f"data.limit={rows}", "store.shards=2", "solver.max_passes=30", "device=cpu", *more]
    report = run(load_recipe(RECIPE, short))
    assert sum(report.extract.shards.values()) == 2 * rows
    assert report.evaluate is not None
    accuracy = report.evaluate.accuracy
    assert accuracy["models/mean"] > 10 * accuracy["base model untouched"]
    with FeatureStore(store) as opened:
        assert len(opened.classes) == 101
        assert not opened.verify()
    assert run(load_recipe(RECIPE, short)).idle
