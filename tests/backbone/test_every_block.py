"""A head that reads every block: what the feature is, and that everything a store does works on it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import timm
import torch
from torch.nn.functional import layer_norm

import taftcache
from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import Backbone, load_backbone, with_features, wrap_model
from taftcache.backbone.spec import BackboneSpec
from taftcache.cache.store import FeatureStore
from taftcache.consent import recorded_recipe
from taftcache.errors import BackboneError, CompositionError, RecipeError
from taftcache.model.predictor import TangentModel
from taftcache.names import UNTOUCHED, tail_text
from taftcache.stages.look.inside.stores import inspect
from taftcache.stages.look.scoring import Scorer
from taftcache.terminal.inspection import show_inspect
from tests.stages.making import recipe

WIDE = {"weights": "bundled", "features": "every block"}
HEAD = {"blocks": 0, "init": "zero"}
MODELS = {
    "vit": ("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 28, "depth": 2}),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 32, "depth": 2}),
    "no class token": ("vit_base_patch16_clip_224", {"img_size": 32, "depth": 2, "class_token": False}),
    "relative positions": ("vit_relpos_small_patch16_224", {"img_size": 32, "depth": 2}),
    "convolutions": ("convnext_atto", {"depths": (1, 1, 1, 1)}),
}


def wide(name: str, options: dict) -> tuple[torch.nn.Module, Backbone]:
    torch.manual_seed(0)
    args = {**options, "global_pool": "avg"} if options.get("class_token") is False else options
    model = timm.create_model(name, num_classes=0, **args).eval()
    return model, with_features(wrap_model(model, name), "every block")


@pytest.mark.parametrize("kind", MODELS)
def test_the_feature_is_what_hooks_on_the_blocks_see(kind):
    model, backbone = wide(*MODELS[kind])
    seen: list[torch.Tensor] = []
    blocks = model.stages if kind == "convolutions" else model.blocks
    for block in blocks:
        block.register_forward_hook(lambda _, args, out: seen.append(out.detach().clone()))
    cut = Cut(backbone, 0)
    images = torch.randn(3, *backbone.data_config["input_size"], generator=torch.manual_seed(1))
    seen.clear()
    found = cut.prefix(images)
    assert found.shape == (3, 1, cut.tokens_shape[1])
    parts = []
    for out in seen:
        if kind == "convolutions":
            parts.append(out.mean((2, 3)))
            continue
        if model.cls_token is not None:
            parts.append(out[:, 0])
        parts.append(out[:, model.num_prefix_tokens :].mean(1))
    assert len(seen) == len(blocks)
    expected = torch.cat([layer_norm(part, part.shape[1:]) for part in parts], 1)
    assert torch.allclose(found[:, 0], expected, atol=1e-5)


def test_a_tail_between_the_blocks_and_such_a_head_is_refused():
    with pytest.raises(RecipeError, match=r"(?s)trained alone.*tangent\.blocks = 0"):
        Cut(load_backbone(BackboneSpec(**WIDE)), 1)


@pytest.mark.parametrize("blocks", ["1", "9", "blocks.3"])
def test_a_store_of_it_has_no_tail_to_train(store, blocks):
    """It would train the head all the same, and record a recipe that no extraction takes."""
    for more in ("init=torch", "train=head"):
        with pytest.raises(RecipeError, match=r"(?s)head that is trained alone.*tangent\.blocks = 0"):
            taftcache.train(store, overrides=[f"tangent.blocks={blocks}", f"tangent.{more}"])
    with FeatureStore(store) as opened:
        assert recorded_recipe(opened).tangent.blocks == 0


def test_a_model_whose_blocks_cannot_be_looked_at_is_refused():
    with pytest.raises(BackboneError, match=r'leave backbone\.features at "last"'):
        with_features(_plain(), "every block")


def test_a_model_that_fails_as_its_blocks_are_looked_at_is_refused(monkeypatch):
    def failing(*_, **__):
        raise UnboundLocalError("prefix_tokens")

    _, backbone = wide(*MODELS["vit"])
    monkeypatch.setattr(backbone.network, "forward_intermediates", failing)
    with pytest.raises(BackboneError, match=r"(?s)forward_intermediates.*UnboundLocalError.*features = \"last\""):
        Cut(backbone, 0)


def _plain() -> Backbone:
    backbone = load_backbone(BackboneSpec())
    return Backbone(torch.nn.Linear(2, 2), "linear", "", backbone.data_config, backbone.config)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "store"
    taftcache.run(recipe(path, backbone=WIDE, tangent=HEAD))
    return path


def test_a_store_of_it_trains_forgets_and_gives_its_model_away(store, tmp_path):
    with FeatureStore(store) as opened:
        assert opened.identity["backbone"]["features"] == "every block"
        assert opened.shards[0].tokens_shape == (1, 6 * 2 * 96)
        taftcache.export_model(opened, tmp_path / "model", program=True)
    model = TangentModel.load(store, device="cpu")
    images = torch.rand(3, 3, 32, 32, generator=torch.manual_seed(2))
    assert json.loads((tmp_path / "model" / "taftcache.json").read_text(encoding="utf-8"))["features"] == "every block"
    assert torch.equal(taftcache.open_model(tmp_path / "model", device="cpu")(images), model(images))
    program = torch.export.load(tmp_path / "model" / "program.pt2").module()
    assert torch.allclose(program(images), model(images), atol=1e-4)
    with pytest.raises(CompositionError, match="reads what timm's model does not give it"):
        model.merged()
    with FeatureStore(store) as opened:
        sample = opened.shards[0].sample_ids[0]
    taftcache.forget(store, samples=[sample])
    assert not taftcache.audit(store).findings


def test_a_head_alone_is_described_in_words(store, tmp_path, capsys):
    """It begins at no module, whose name would be shown."""
    words = "a head on every block (1152 numbers a sample)"
    with FeatureStore(store) as opened:
        show_inspect(inspect(opened))
        said = " ".join(capsys.readouterr().out.split())
        data = "data digits, at most 60, 0.2 held out"
        assert f", {words} {data} input " in said
        assert " cached the feature of a sample, 1×1152 float16;" in said
        _, why = Scorer(opened).attention(opened.shards[0].tokens(slice(1)))
        assert why == "the store caches the feature of a sample, which holds no attention over the image"
        assert inspect(opened).cut["tail"] == words
        taftcache.export_model(opened, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert f"`; what is trained is {words}.\n" in card
    assert "last block" not in card
    assert tail_text({"features": "last"}, "", 1) == "a head on the model's last features (1 number a sample)"


def test_a_head_that_begins_at_zero_is_not_scored_beside_models(store, tmp_path):
    """It gives every image the first class."""
    assert UNTOUCHED not in taftcache.evaluate(store).accuracy
    taftcache.extract(recipe(tmp_path / "store", backbone=WIDE, tangent=HEAD))
    assert list(taftcache.evaluate(tmp_path / "store").accuracy) == [UNTOUCHED]


def test_recipes_that_do_not_say_it_are_kept_as_before(tmp_path):
    taftcache.extract(recipe(tmp_path / "store", tangent={"blocks": 0}))
    with FeatureStore(tmp_path / "store") as opened:
        assert "features" not in opened.identity["backbone"]
        assert "features" not in opened.manifest.recipe["backbone"]


def test_an_estimator_with_it_is_saved_and_loaded(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(24) % 3
    spec = taftcache.TangentSpec(**HEAD)
    made = taftcache.TangentClassifier(BackboneSpec(**WIDE), tangent=spec, ridge=1e-2, device="cpu")
    made.fit(list(images), labels).save(tmp_path / "saved")
    again = taftcache.TangentClassifier.load(tmp_path / "saved")
    assert np.array_equal(again.decision_function(list(images)), made.decision_function(list(images)))
