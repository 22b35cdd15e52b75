"""A network without a closed form through every stage: extracted, trained without its weights, composed, forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import RecipeError
from taftcache.model.component import read_base, read_component
from taftcache.model.predictor import TangentModel
from taftcache.recipe import Recipe
from taftcache.stages.look.inside.samples import inspect_sample
from tests.stages.making import open_store, recipe, settings
from tests.threads import at_once

ARGS: dict[str, Any] = {"layers": [1, 1, 1, 2], "channels": [8, 8, 12, 16], "num_classes": 10}


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    save_file(timm.create_model("resnet18", **ARGS).state_dict(), file)
    return file


def resnet(path: Path, weights: Path, **sections: dict[str, Any]) -> Recipe:
    return recipe(
        path,
        backbone={"model": "resnet18", "weights": str(weights), "model_args": ARGS},
        preprocess={"input_size": [3, 32, 32]},
        data={"source": "digits", "limit": 24},
        **sections,
    )


def delta(store: FeatureStore, made: Recipe, name: str) -> torch.Tensor:
    return read_component(store, name, read_base(store, made.tangent)).delta


def test_every_stage(weights, tmp_path):
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(weights.read_bytes())
    made = resnet(tmp_path / "store", mine, solver={"tolerance": 1e-4})
    taftcache.extract(made)
    mine.unlink()
    with open_store(tmp_path / "store") as store:
        config = store.objects()["base/tail"].meta
        assert (config["path"], config["start"], config["shape"]) == ("functional", "layer4.1", [16, 1, 1])
        report = taftcache.train(store)
        assert all(c.relative_gradient <= 1e-4 for c in report.certificates.values())
        taftcache.compose(store)
        taftcache.evaluate(store)
        before = delta(store, made, "components/000")
        taftcache.forget(store, [store.shards[0].sample_ids[0]])
        assert not torch.equal(delta(store, made, "components/000"), before)
        assert taftcache.train(store).trained == []


def test_what_is_asked_of_single_rows(weights, tmp_path, monkeypatch):
    """Influence, proven labels and a row's weight come from products alone where the rows are too many for a kernel."""
    monkeypatch.setattr("taftcache.solve.inverses.dual.LARGEST_WRITTEN", 0)
    made = resnet(tmp_path / "store", weights, solver={"tolerance": 1e-8}, objective={"ridge": 1e-2})
    taftcache.extract(made)
    with open_store(tmp_path / "store") as store:
        taftcache.train(store)
        taftcache.compose(store)
        sample = store.shards[0].sample_ids[0]
        asked = taftcache.query_influence(store, sample, top=1)
        (row,) = (one for one in asked.samples if one.solved is not None)
        assert abs(row.solved - row.change) <= 0.3 * abs(row.solved) + row.bound
        assert 0 < (inspect_sample(store, sample).moved_bound or 0) < np.inf
        assert set(taftcache.evaluate(store, proven=True).proven) == {"models/head", "models/mean"}
        assert taftcache.forget(store, [sample]).forgotten == [sample]


def test_the_head_alone_is_trained_privately(weights, tmp_path):
    """Gradients of single rows are to be had of no functional tail, and a row that is not clipped is not covered."""
    taftcache.extract(resnet(tmp_path / "store", weights))
    with open_store(tmp_path / "store") as store:
        before = store.root_digest
        for train in ("full", "bitfit"):
            with pytest.raises(RecipeError, match="head alone can be trained privately") as refused:
                taftcache.train_private(store, settings(store, train))
            assert refused.value.do == 'set tangent.train = "head"'
        assert store.root_digest == before
        assert len(taftcache.train_private(store, settings(store, "head")).trained) == 2


def test_a_prediction_is_what_the_store_says(weights, tmp_path):
    """The backbone's own tail and the one rebuilt from the store give the same logits, for cached rows or images."""
    made = resnet(tmp_path / "store", weights, solver={"tolerance": 1e-4}, store={"dtype": "float32"})
    taftcache.extract(made)
    with open_store(tmp_path / "store") as store:
        taftcache.train(store)
        taftcache.compose(store)
        model = TangentModel.load(store, device="cpu")
        base = read_base(store, made.tangent)
        x = torch.randn(3, 3, 32, 32)
        tail, w = base.tail, base.tail.bind(base.state)
        state = tail.value(w, model.cut.prefix(x))
        change = tail.tangent(w, state, tail.bind(base.layout.views(delta(store, made, "models/mean").float())))
        assert torch.allclose(model(x), state.logits + change, rtol=1e-5, atol=1e-5)
        both, alone = (model, TangentModel.load(store, device="cpu")), model(x)  # as while a service reloads
        assert all(torch.equal(z, alone) for z in at_once(4, lambda k: both[k % 2](x)))


def test_the_head_alone_needs_no_code(weights, tmp_path, monkeypatch):
    made = resnet(tmp_path / "store", weights, tangent={"train": "head"})
    taftcache.extract(made)
    monkeypatch.setattr("taftcache.backbone.cut.architecture.tail_module", None)
    with open_store(tmp_path / "store") as store:
        assert store.identity["cut"]["rows"] == "feature"
        taftcache.train(store)
