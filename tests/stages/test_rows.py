"""Stores that cache less than the tokens: as exact for what they train, and refused for the rest."""

from __future__ import annotations

import pytest
import torch

from taftcache.cache.store import FeatureStore
from taftcache.errors import IdentityError, RecipeError
from taftcache.model.component import read_base, read_component
from taftcache.model.predictor import TangentModel
from taftcache.stages.extract.extraction import extract
from taftcache.stages.progress import Silent
from taftcache.stages.run import run
from taftcache.stages.train.training import train
from tests.stages.making import recipe

KINDS = {
    "attended": ["*.attn.proj.*", "*.mlp.*", "head.*"],
    "residual": ["*.mlp.*", "norm.*", "head.*"],
    "feature": "head",
}


class Listener(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("kind", ["attended", pytest.param("residual", marks=pytest.mark.full), "feature"])
def test_the_least_is_chosen_and_gives_the_component_of_the_tokens(kind, tmp_path):
    """Both solve the same problem; rows were rounded to float32 at another place of the network."""
    solver, tangent = (
        {"tolerance": 1e-9, "precision": "float64"},
        {"train": KINDS[kind], "reset_block": True, "seed": 3},
    )
    listener = Listener()
    deltas, predicted, sizes = [], [], []
    for cache in ("auto", "tokens"):
        store = {"cache": cache, "dtype": "float32", "shards": 1}
        data = {"source": "digits", "limit": 30}
        made = recipe(tmp_path / cache, data=data, tangent=tangent, solver=solver, store=store)
        run(made, progress=listener)
        with FeatureStore(tmp_path / cache) as store:
            assert store.identity["cut"]["rows"] == (kind if cache == "auto" else "tokens")
            base = read_base(store, made.tangent)
            deltas.append(read_component(store, "components/000", base).delta)
            sizes.append(store.shards[0].tokens(slice(0, 1)).nbytes)
            model = TangentModel.load(store, device="cpu")
            predicted.append(model(torch.zeros(2, 3, *model.transform.image_shape[1:])))
    assert torch.linalg.norm(deltas[0] - deltas[1]) <= 1e-4 * torch.linalg.norm(deltas[1])
    assert torch.allclose(*predicted, rtol=1e-3, atol=1e-3)
    assert sizes[0] < sizes[1]
    assert f"{sizes[0]:,} bytes" in listener.said[0]
    assert kind in listener.said[0]


@pytest.mark.law("What is cached less than whole is exact for what it serves, and refused for the rest")
def test_what_a_store_does_not_hold_is_refused_before_anything_changes(tmp_path):
    small = recipe(tmp_path / "s", tangent={"train": "head"})
    extract(small)
    for tangent, error in (({"train": "full"}, RecipeError), ({"train": "head", "reset_block": True}, IdentityError)):
        with pytest.raises(error):
            run(recipe(tmp_path / "s", tangent=tangent))
        with FeatureStore(tmp_path / "s", mode="a") as store:
            with pytest.raises(error):
                train(store, recipe(tmp_path / "s", tangent=tangent))
            assert store.objects().keys() == {"base/tail"}


def test_less_than_what_is_trained_needs_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="needs"):
        extract(recipe(tmp_path / "s", store={"cache": "residual"}, tangent={"train": "bitfit"}))
    assert not (tmp_path / "s").exists()
