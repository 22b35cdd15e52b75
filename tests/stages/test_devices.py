"""Every stage with its tensors on a GPU: a real one, or a pretended one where the device of each is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import taftcache
from taftcache.backbone.forward import decoders
from taftcache.backbone.forward.processes import can_fork
from taftcache.cache.store import FeatureStore
from taftcache.model.component import read_base, read_component
from taftcache.model.predictor import TangentModel
from taftcache.recipe import Recipe
from taftcache.stages.look.head_path import GRID
from taftcache.view.atlas import Atlas
from tests.pretended import a_gpu, pretended_mps
from tests.stages.making import open_store, recipe, write_images

TOLERANCE = 1e-5 if torch.cuda.is_available() else 1e-6  # batches of another size round otherwise


def made(path: Path, device: str, **sections: Any) -> Recipe:
    store = {"shards": 2, "dtype": "float32"}
    tiny = recipe(path, store=store, data={"source": "digits", "limit": 24}, solver={"tolerance": 1e-4}, **sections)
    return msgspec.structs.replace(tiny, device=device)


def through(path: Path, device: str, **sections: Any) -> dict[str, np.ndarray]:
    """Rows and components of a store that was made, trained and forgotten from on ``device``."""
    asked, found = made(path, device, **sections), {}
    taftcache.extract(asked)
    with open_store(path) as store:
        taftcache.train(store)
        taftcache.compose(store)
        found["rows"] = np.concatenate([block.tokens for shard in store.shards for block in shard.blocks(64)])
        found["before"] = delta(store, asked, "components/000")
        taftcache.forget(store, [store.shards[0].sample_ids[0]])
        found["after"] = delta(store, asked, "components/000")
        found["mean"] = delta(store, asked, "models/mean")
        found["accuracy"] = np.array(list(taftcache.evaluate(store).accuracy.values()))
        files = sorted(write_images(path.parent / f"images-{device}", per_class=1).rglob("*.png"))
        found["logits"] = np.array([p.logits for p in TangentModel.load(store, device=device).predict(files, top=10)])
    return found


def delta(store: FeatureStore, asked: Recipe, name: str) -> np.ndarray:
    return read_component(store, name, read_base(store, asked.tangent)).delta.numpy()


@pytest.mark.parametrize(
    "sections",
    [
        {},
        pytest.param({"tangent": {"train": "head"}}, marks=pytest.mark.full),
        pytest.param({"objective": {"loss": "cross_entropy", "ridge": 1e-2}}, marks=pytest.mark.full),
        pytest.param({"objective": {"ridge": "auto"}}, marks=pytest.mark.full),
    ],
    ids=["default", "head", "cross-entropy", "ridge"],
)
def test_the_same_store_and_models(sections, tmp_path):
    here = through(tmp_path / "here", "cpu", **sections)
    with a_gpu():
        there = through(tmp_path / "there", "cuda", **sections)
    for name, expected in here.items():
        assert np.linalg.norm(there[name] - expected) <= 100 * TOLERANCE * np.linalg.norm(expected), name


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="MPS is there")
def test_a_device_without_float64(tmp_path):
    """What needs float64 is computed on the CPU, the path of the head too."""
    here = through(tmp_path / "here", "cpu")
    with pretended_mps():
        there = through(tmp_path / "there", "mps")
        with open_store(tmp_path / "there") as store:
            atlas = Atlas(store)
            atlas.work(skip=("predictions", "influence", "neighbours"))
            assert len(atlas.path) == len(GRID)
    for name, expected in here.items():
        assert np.linalg.norm(there[name] - expected) <= 100 * TOLERANCE * np.linalg.norm(expected), name


@pytest.mark.skipif(not can_fork(), reason="needs fork")
def test_those_that_decode_are_forked_once_for_all_shards(tmp_path, monkeypatch):
    forked, real = [], decoders.Processes
    monkeypatch.setattr(decoders, "PROCESSES_FROM", 1)
    monkeypatch.setattr(decoders, "Processes", lambda *a: forked.append(real(*a)) or forked[-1])
    asked = made(tmp_path / "store", "cuda", extract={"workers": 2})
    with a_gpu():
        assert len(taftcache.extract(asked).shards) == 3  # one of them held out, from the same source
    assert len(forked) == 1
