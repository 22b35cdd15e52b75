"""Preprocessing in two halves has timm's bits."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from taftcache.backbone.files import BUNDLED
from taftcache.backbone.model import load_backbone, wrap_model
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.errors import BackboneError, UnreadableImage
from tests.backbone.registry import SMALL

CONFIGS = {
    "model's own": PreprocessSpec(),
    "squash": PreprocessSpec(crop_mode="squash", crop_pct=0.875),
    "border": PreprocessSpec(crop_mode="border", interpolation="bilinear"),
    "other numbers": PreprocessSpec(mean=(0.1, 0.5, 0.9), std=(0.3, 0.2, 0.07), interpolation="lanczos", crop_pct=1.0),
}


@pytest.mark.parametrize("spec", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_two_halves_are_timms_transform(spec):
    backbone = wrap_model(timm.create_model("vit_tiny_patch16_224", **SMALL), "small", spec)
    ours, theirs = Preprocess(backbone), create_transform(**backbone.data_config, is_training=False)
    generator = np.random.default_rng(0)
    for height, width in ((32, 32), (8, 8), (300, 200), (31, 97), (1, 5)):
        image = Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
        assert torch.equal(ours(image), theirs(image))
    described = json.loads(json.dumps(ours.description()))
    assert described == {k: list(v) if isinstance(v, tuple) else v for k, v in backbone.data_config.items()}


def test_a_transform_takes_what_predict_takes(tmp_path):
    """Any but PIL's RGB ended in an error of torch's or numpy's."""
    transform = Preprocess(wrap_model(timm.create_model("vit_tiny_patch16_224", **SMALL), "small"))
    gray = Image.effect_noise((40, 30), 80)
    rgb = gray.convert("RGB")
    rgb.save(file := tmp_path / "i.png")
    given = [gray, rgb.convert("RGBA"), gray.convert("P"), np.asarray(gray), np.asarray(rgb), file, str(file)]
    assert all(torch.equal(transform(image), transform(rgb)) for image in given)
    for wrong, said in (
        (tmp_path / "none.png", "none.png is missing"),
        (np.zeros((3, 8, 8)), "^the image cannot be read"),
    ):
        with pytest.raises(UnreadableImage, match=said):
            transform(wrong)


def test_a_thin_strip_is_refused_before_it_fills_the_memory():
    backbone = wrap_model(timm.create_model("vit_tiny_patch16_224", **SMALL), "small")
    with pytest.raises(ValueError, match="too long"):
        Preprocess(backbone).pixels(Image.new("RGB", (1, 200_000)))


@pytest.mark.parametrize(
    "said",
    [{"mean": "x"}, {"mean": {"a": 1}}, {"std": [1]}, {"interpolation": "x"}, {"crop_pct": float("nan")}],
    ids=str,
)
def test_a_folder_of_weights_that_says_nonsense_of_its_preprocessing(tmp_path, said):
    folder = shutil.copytree(BUNDLED, tmp_path / "w")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["pretrained_cfg"] |= said
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BackboneError, match="cannot be built"):
        Preprocess(load_backbone(BackboneSpec(weights=f"local-dir:{folder}")))
