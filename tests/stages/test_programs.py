"""Programs of models that need torch alone, and copies of models: for every kind of tail the model's own logits."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from taftcache.backbone.sources.rgb import open_rgb
from taftcache.errors import ArgumentError, BackboneError, DataError, UnreadableImage
from taftcache.model import programs
from taftcache.model.folder import save_model
from tests.backbone.making import deep_grey
from tests.stages.test_hub import RESNET, VIT, small

DEEP = VIT | {"patch_size": 8, "embed_dim": 24, "depth": 3}
TAILS: dict[str, tuple[str, int | str, dict[str, Any]]] = {
    "feature": ("resnet18", 0, RESNET),
    "class row": ("vit_tiny_patch16_224", 1, DEEP),
    "layers": ("vit_tiny_patch16_224", 2, DEEP),
    "average pooling": ("vit_tiny_patch16_224", 1, DEEP | {"global_pool": "avg"}),
    "rotary": ("vit_small_patch16_dinov3", 1, DEEP),
    "EVA-02": ("eva02_tiny_patch14_224", 2, DEEP),
    "mixed rotary, all blocks": ("vit_small_patch16_rope_mixed_ape_224", "blocks.0", DEEP),
}
QUICK = ("feature", "layers")
marked = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in TAILS]


def made(tail: str) -> Any:
    name, blocks, options = TAILS[tail]
    return small(name, blocks, **options)


@pytest.mark.law("A saved model gives the store's own logits, and needs neither store nor solver")
@pytest.mark.parametrize("tail", marked)
def test_a_program_gives_the_models_logits_for_any_number_of_images(tail, tmp_path):
    model, file = made(tail), tmp_path / "model" / "program.pt2"
    save_model(model, file.parent, name="models/mean", program=True)
    assert str(Path(torch.__file__).parent).encode() not in file.read_bytes()
    exported = torch.export.load(file)
    program = exported.module()
    for n in (1, 3):
        x = torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(n))
        assert torch.allclose(program(x), model(x), rtol=1e-5, atol=1e-5)
    graphs = [module.graph for module in exported.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    attentions = [n for graph in graphs for n in graph.nodes if "scaled_dot_product_attention" in str(n.target)]
    frozen = sum(type(module).__name__.endswith("Block") for module in model.backbone.modules()) - len(model.cut.blocks)
    assert tail == "feature" or len(attentions) == frozen, "the model's own tail is not computed"


FUNCTIONAL = {
    "attention pooling": ("vit_tiny_patch16_224", 1, DEEP | {"global_pool": "map"}),
    "a forward method of the module's own": ("fasternet_t0", 1, {"embed_dim": 8}),
}


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("tail", [*marked, *FUNCTIONAL])
def test_a_copy_of_a_model_predicts_the_same_and_is_one_of_its_own(tail, how):
    name, blocks, options = (TAILS | FUNCTIONAL)[tail]
    model, x = small(name, blocks, **options), torch.randn(2, 3, 32, 32)
    expected = model(x)
    copied = how(model)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    assert torch.equal(copied(x), expected)
    assert copied.backbone is copied.cut.backbone.model


def saved() -> Iterator[str]:
    """The kind of each of some images, saved as image.jpg in turn: wide, high, small, deep grey, and turned."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in [(50, 71), (97, 41), (32, 32)]]
    grey = rng.integers(0, 1 << 16, (50, 72), np.uint16)
    for image in map(Image.fromarray, [*pixels, grey]):
        image.save("image.jpg", format="PNG")
        yield image.mode
    for kind, content in deep_grey(grey).items():
        Path("image.jpg").write_bytes(content)
        yield kind
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    Image.fromarray(pixels[0][:, :, 0]).save("image.jpg", format="TIFF", exif=turned)
    yield "TIFF, turned"


@pytest.mark.parametrize("temperature", [pytest.param(None, marks=pytest.mark.full), 2.5])
def test_the_card_and_the_onnx_file_say_what_becomes_of_an_image(tmp_path, monkeypatch, capsys, temperature):
    """The card's snippet, which needs onnxruntime alone, says what the model does."""
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = small("vit_tiny_patch16_224", 1, **DEEP | {"depth": 2})
    model.transform.config["crop_pct"] = 0.8
    model.transform = type(model.transform)(model.cut.backbone)
    model.temperature = temperature
    save_model(model, tmp_path / "model", name="models/mean", onnx=True)
    meta = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx")).get_modelmeta().custom_metadata_map
    assert json.loads(meta["classes"]) == model.classes
    assert json.loads(meta["preprocessing"]) == model.transform.description()
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "resized to 40 pixels on its short side; of that the middle 32 x 32 (bi" in text
    assert str(model.transform.description()["mean"]) in text
    written = pytest.importorskip("onnx").load(tmp_path / "model" / "model.onnx")
    assert f"to know opset {written.opset_import[0].version} and IR version {written.ir_version}." in text
    assert "All, in the order of the logits: `classes` in `taftcache.json`." in text
    blocks = [block.split("```")[0] for block in text.split("```python")[1:]]
    (snippet,) = [block for block in blocks if "onnxruntime" in block]
    monkeypatch.chdir(tmp_path / "model")
    for _ in saved():
        found: dict[str, Any] = {}
        exec(snippet, found)
        (expected,) = model.predict(["image.jpg"], top=len(model.classes))
        ordered = np.argsort(-found["logits"][0], kind="stable")
        assert [model.classes[k] for k in ordered] == expected.labels
        assert np.allclose(found["logits"][0][ordered], expected.logits, rtol=1e-4, atol=1e-4)
        label, *likely = capsys.readouterr().out.split()
        assert label == expected.labels[0]
        assert [float(each) for each in likely] == pytest.approx((expected.probabilities or [])[:1], rel=1e-4)
        assert len(likely) == (temperature is not None)


def test_a_temperature_that_is_none_is_refused_where_it_is_set():
    """Not by a TypeError once the model predicts; ``evaluate``'s calibration is a dict by model."""
    model = made("feature")
    image = np.zeros((40, 40, 3), np.uint8)
    for wrong in ({"models/exact": 1.0}, 0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(ArgumentError, match=r"above 0.*\n.*\n.*calibration\["):
            model.temperature = wrong
    assert model.temperature is None
    assert model.predict([image])[0].probabilities is None
    for right in (2, np.float32(0.5)):
        model.temperature = right
        assert sum(model.predict([image])[0].probabilities) == pytest.approx(1)


def test_a_model_is_described_in_one_line():
    text = repr(made("layers"))
    assert "\n" not in text
    assert "classes=3, trained=" in text


@pytest.mark.parametrize(
    ("mode", "interpolation"), [("center", "bicubic"), ("squash", "bilinear"), ("border", "bicubic")]
)
def test_the_cards_preprocessing_is_the_models_own(tmp_path, monkeypatch, mode, interpolation):
    """Bit for bit, of images that are wide, high, of sides that leave a fraction of a pixel, and of 16-bit grey."""
    model = made("feature")
    model.transform.config.update(crop_pct=0.9, crop_mode=mode, interpolation=interpolation, mean=(0.1, 0.2, 0.3))
    model.transform = type(model.transform)(model.cut.backbone)
    save_model(model, tmp_path / "model", name="models/mean")
    (text,) = [
        part.split("```")[0]
        for part in (tmp_path / "model" / "README.md").read_text(encoding="utf-8").split("```python")
        if "preprocess = " in part
    ]
    assert ("torchvision" in text) == (mode != "border")
    monkeypatch.chdir(tmp_path)
    for _ in saved():
        found: dict[str, Any] = {}
        exec(text, found)
        assert torch.equal(found["x"][0], model.transform(open_rgb("image.jpg")))


def test_predict_takes_what_an_estimator_does(tmp_path):
    model, pixels = made("feature"), np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), np.uint8)
    file = tmp_path / "0.png"
    Image.fromarray(pixels[0]).save(file)
    given = [file, str(file), Image.open(file), pixels[0], Image.fromarray(pixels[0]).convert("RGBA")]
    named, text, *others = model.predict(given, batch=2)
    assert named.image == text.image == str(file)
    assert [p.image for p in others] == ["at index 2", "at index 3", "at index 4"]
    assert all(p.logits == named.logits for p in others)
    assert np.array_equal(model.tokens(given[:1]), model.tokens(pixels[:1]))
    assert model.predict(pixels)[0].labels == named.labels
    assert model.predict([]) == []
    for one in (str(file), file, Image.fromarray(pixels[0])):
        with pytest.raises(DataError, match=r"images are not given as a list\n  got: .*\n  try: put it into a list"):
            model.predict(one)
    with pytest.raises(UnreadableImage, match="at index 3 cannot be read\n  got: float64"):
        model.predict([*pixels, pixels[0] / 255], batch=2)
    with pytest.raises(UnreadableImage, match=r"none\.png is missing"):
        model.predict([tmp_path / "none.png"])


@pytest.mark.full
@pytest.mark.parametrize("tail", TAILS)
def test_onnx_gives_the_models_logits(tail, tmp_path):
    pytest.importorskip("onnxscript")
    model = made(tail)
    assert "model.onnx" in save_model(model, tmp_path / "model", name="models/mean", onnx=True)
    _, run = programs._runner(tmp_path / "model" / "model.onnx")
    assert programs.difference(model, run) < 1e-5


def test_a_model_that_cannot_be_traced_is_said_to_be_one(tmp_path, monkeypatch):
    model = made("layers")
    own = model.backbone.patch_embed.forward
    monkeypatch.setattr(model.backbone.patch_embed, "forward", lambda x: own(x) if x.sum() < 1 else own(x) + 1)
    with pytest.raises(
        BackboneError, match=r"cannot trace vit_tiny_patch16_224\n  got: .+\n  try: save the model without"
    ):
        save_model(model, tmp_path / "model", name="models/mean", program=True)
    assert not (tmp_path / "model").exists()


def test_an_onnx_that_cannot_be_written_is_said_to_be_one(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(
        BackboneError, match=r"cannot be written in ONNX\n  got: RuntimeError: no such operator\n  try: "
    ):
        save_model(made("feature"), tmp_path / "model", name="models/head", onnx=True)
