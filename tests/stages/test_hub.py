"""Models that travel: what their cards say, and a model hub on this machine, there and back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from huggingface_hub import ModelCard, constants
from markdown_it import MarkdownIt
from PIL import Image

import taftcache
from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import wrap_model
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.spec import PreprocessSpec
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import BackboneError, CompositionError, FormatError, IntegrityError, RecipeError, StoreUnreachable
from taftcache.model import programs
from taftcache.model.card import Origin, card
from taftcache.model.component import Component
from taftcache.model.folder import as_network, open_model, save_model
from taftcache.model.predictor import TangentModel
from taftcache.tangent.base import make_base
from taftcache.tangent.spec import TangentSpec
from tests.stages.hub import TOKEN, Hub, asked, serve

VIT = {"img_size": 32, "patch_size": 16, "embed_dim": 12, "depth": 1, "num_heads": 2}
RESNET = {"layers": (1, 1, 1, 1), "channels": (4, 4, 8, 8), "stem_width": 4}


@pytest.fixture(scope="module")
def folders(finished, tmp_path_factory) -> dict[str, Path]:
    """A tangent model and one whose head alone has moved, exported. Not to be written to."""
    place = tmp_path_factory.mktemp("travelling")
    with FeatureStore(finished) as store:
        taftcache.export_model(store, place / "tangent")
        taftcache.export_model(store, place / "head", "models/head")
    return {"tangent": place / "tangent", "head": place / "head"}


def front_matter(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("---\n")[1])


def small(name: str = "vit_tiny_patch16_224", blocks: int | str = 0, **options: Any) -> TangentModel:
    """A small random model whose tail's Δw is random, with a preprocessing that is not timm's own for it."""
    torch.manual_seed(0)
    options = options or VIT
    made = timm.create_model(name, num_classes=4, **options)
    changed = PreprocessSpec(input_size=(3, 32, 32), crop_pct=0.6, mean=(0.1, 0.2, 0.3), interpolation="bilinear")
    cut = Cut(wrap_model(made, name, changed, model_args={"num_classes": 4, **options}), blocks)
    spec = TangentSpec(blocks=blocks, train="full" if blocks else "head")
    base = make_base(cut.tail_state(), cut.tail_config(), 3, spec, cut.module())
    delta = torch.randn(base.layout.size, dtype=torch.float64) / 4
    component = Component(base.digest, base.layout, delta, {"kind": "component", "rows": 2, "shards": []})
    return TangentModel(cut, Preprocess(cut.backbone), base, component, ["ant", "bee", "cow"])


@pytest.mark.law("A tangent model inside another module answers as it does alone, and is saved as it answers")
def test_another_module_changes_nothing_of_a_model_that_it_holds(tmp_path):
    """``train`` had it take each batch's statistics and write over its own; a state's Δw was not the one saved."""
    model = small("resnet18", **RESNET)
    images = torch.rand(4, *model.transform.image_shape)
    before = model(images)
    holder = torch.nn.ModuleDict({"teacher": model, "student": torch.nn.BatchNorm2d(3)}).train()
    assert holder["student"].training
    for step in (holder.eval, model.train, lambda: holder.load_state_dict(holder.double().float().state_dict())):
        assert torch.equal(model(images), before)
        step()
    state = holder.state_dict()
    for name in ("teacher.backbone.bn1.running_mean", "teacher._base.fc/weight", "teacher._delta.fc/weight"):
        with pytest.raises(CompositionError, match=f"weights cannot be replaced .*\n  got: another tensor as {name}"):
            holder.load_state_dict(state | {name: state[name] + 1})
    assert torch.equal(model(images), before)
    save_model(model, tmp_path / "model", name="models/head")
    assert torch.equal(open_model(tmp_path / "model", device="cpu")(images), before)


def test_a_component_of_another_base_point_makes_no_model():
    model = small()
    other = replace(model.component, base_digest="ab" * 32)
    with pytest.raises(CompositionError, match=r"around another base point\n  got: base abababababababab, the model's"):
        TangentModel(model.cut, model.transform, model.base, other, model.classes)


@pytest.mark.parametrize(
    ("name", "blocks", "options"),
    [("vit_tiny_patch16_224", 0, VIT), ("vit_tiny_patch16_224", 1, VIT), ("resnet18", "layer4.0", RESNET)],
)
def test_no_images_have_no_logits(name, blocks, options):
    model = small(name, blocks, **options)
    images = torch.rand(2, *model.transform.image_shape)
    assert model(images[:0]).shape == (0, 3)
    assert model.tokens([]).shape == (0, *model.cut.tokens_shape)
    assert model.logits([]).shape == (0, 3)


@pytest.mark.law("timm refuses a tangent model's folder; of one that it loads the logits agree")
@pytest.mark.parametrize(("name", "options"), [("vit_tiny_patch16_224", VIT), ("resnet18", RESNET)])
def test_timm_sees_and_answers_what_we_do(name, options, tmp_path):
    """With the preprocessing of the recipe, and the classes' names."""
    model = small(name, **options)
    save_model(model, tmp_path / "model", name="models/head")
    image = Image.effect_noise((50, 40), 80).convert("RGB")
    with torch.no_grad():
        ours = model(model.transform(image)[None])
        assert torch.equal(open_model(tmp_path / "model", device="cpu")(model.transform(image)[None]), ours)
        network: Any = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
        transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
        assert torch.allclose(network(transform(image)[None]), ours, rtol=1e-5, atol=1e-5)
        assert network.pretrained_cfg["label_names"] == ["ant", "bee", "cow"]


def test_a_network_that_answers_otherwise_is_no_merged_model(tmp_path, monkeypatch):
    model = small()
    merged = model.merged()
    with torch.no_grad():
        merged.head.bias += 0.1
    monkeypatch.setattr(model, "merged", lambda: merged)
    with pytest.raises(CompositionError, match="other logits"):
        as_network(model)
    save_model(model, tmp_path / "model", name="models/head")
    with pytest.raises(RuntimeError, match="a tangent model"):
        timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)


def test_the_card_says_what_hubs_read(finished, folders):
    with FeatureStore(finished) as store:
        report = taftcache.evaluate(store)
    for kind, name in (("tangent", "models/mean"), ("head", "models/head")):
        text = (folders[kind] / "README.md").read_text(encoding="utf-8")
        told = front_matter(text)
        assert told["library_name"] == {"tangent": "taftcache", "head": "timm"}[kind]
        assert "- Licence of the backbone's weights: `apache-2.0`." in text
        assert {"taftcache", "image-classification"} <= set(told["tags"])
        assert told["datasets"] == ["digits"]
        [result] = ModelCard(text).data.eval_results
        assert (result.metric_type, result.dataset_name) == ("accuracy", "digits")
        assert result.metric_value == pytest.approx(report.accuracy[name], abs=1e-6)
        assert result.metric_args["interval"] == pytest.approx(report.intervals[name], abs=1e-6)
        assert result.metric_args["rows"] == report.rows


@pytest.mark.law("What a store calls its classes is no markup of the card that leaves with its model")
def test_names_of_classes_are_no_markup():
    hostile = [
        "<script>x</script>",
        "![a](http://b/c.png)",
        "a\n\n# Trusted\n",
        "`[b](http://c)``",
        "---\nlicense: mit",
    ]
    model = small()
    model.classes = hostile
    text = card(Origin(name="models/head"), model, {}, native=False)
    line = next(line for line in text.splitlines() if line.startswith("- Classes (5)"))
    tokens = [child for token in MarkdownIt().parse(line) for child in token.children or []]
    assert {token.type for token in tokens} == {"text", "code_inline"}
    found = [token.content for token in tokens if token.type == "code_inline"]
    assert found == [name.replace("\n", "\\n") for name in hostile]
    assert "license" not in front_matter(text)


def test_published_weights_are_named_and_others_are_not(tmp_path):
    model = small()
    backbone: Any = model.cut.backbone
    backbone.model.pretrained_cfg = {**backbone.model.pretrained_cfg, "license": "cc-by-nc-4.0", "hf_hub_id": "timm/x"}
    for weights, name, said in (
        ("pretrained", "vit", True),
        ("file", "vit.published", True),
        ("file", "vit", False),
    ):
        model.cut.backbone = replace(backbone, name=name, config={**backbone.config, "weights": weights})
        save_model(model, tmp_path / f"{weights}-{name}", name="models/head")
        text = (tmp_path / f"{weights}-{name}" / "README.md").read_text(encoding="utf-8")
        told = front_matter(text)
        assert told.get("base_model") == ("timm/x" if said else None)
        assert ("- Licence of the backbone's weights: `cc-by-nc-4.0`." in text) == said
        assert "license" not in told  # a hub reads it as that of all that is in the folder


def test_no_path_and_no_private_accuracy_on_a_card(photographed, trained, tmp_path):
    for path, name in ((photographed, "models/mean"), (trained, "models/mean")):
        with FeatureStore(path) as store:
            taftcache.export_model(store, tmp_path / path.parent.name, name)
    text = (tmp_path / photographed.parent.name / "README.md").read_text(encoding="utf-8")
    assert "datasets" not in front_matter(text)
    assert "Top-1 accuracy" in text
    assert "/images" not in text
    text = (tmp_path / trained.parent.name / "README.md").read_text(encoding="utf-8")
    assert "model-index" not in front_matter(text)
    assert "accuracy on 15" not in text


def snippets(text: str) -> list[str]:
    """What the card's examples print, run one after the other."""
    said = []
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, "README.md", "exec", dont_inherit=True), {})
        said.append(out.getvalue().strip())
    return said


def test_the_snippets_run(folders, images, tmp_path, monkeypatch):
    shutil.copytree(folders["head"], tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    Image.open(next((images / "1").iterdir())).convert("RGB").save("image.jpg")
    one, other, _ = snippets(Path("README.md").read_text(encoding="utf-8"))
    assert one == f"['{other}']"
    [label] = open_model(".", device="cpu").predict(["image.jpg"], top=1)[0].labels
    assert label == other
    Image.fromarray(np.random.default_rng(0).integers(0, 1 << 16, (32, 40), np.uint16)).save("image.jpg", format="PNG")
    found: dict[str, Any] = {}
    exec(Path("README.md").read_text(encoding="utf-8").split("```python")[2].split("```")[0], found)
    (deep,) = open_model(".", device="cpu").predict(["image.jpg"], top=1)
    assert found["logits"].max().item() == pytest.approx(deep.logits[0], abs=1e-4), "16-bit grey"
    Image.fromarray(np.zeros((32, 40), np.float32)).save("image.jpg", format="TIFF")
    for block in Path("README.md").read_text(encoding="utf-8").split("```python")[2:]:
        with pytest.raises(ValueError, match="no agreed range"):
            exec(block.split("```")[0], found)
        found["image"].close()


@pytest.fixture
def hub(tmp_path) -> Iterator[Hub]:
    with asked(tmp_path) as hub:
        yield hub


@pytest.mark.law("What leaves for a model hub are the files of an exported model, verified, and no others")
def test_there_and_back(hub, folders, tmp_path, capsys):
    folder = shutil.copytree(folders["tangent"], tmp_path / "model")
    (folder / "rows.h5").write_text("nobody's business")
    (folder / "backbone" / "notes.txt").write_text("nobody's business")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["push", str(folder), "me/digits", "--private"])
    said = capsys.readouterr()
    assert TOKEN not in said.out
    assert said.err == ""
    assert 'taftcache.from_pretrained("me/digits")' in said.out
    repo = hub.repos["me/digits"]
    assert repo.private
    names = {p.relative_to(folders["tangent"]).as_posix() for p in folders["tangent"].rglob("*") if p.is_file()}
    assert set(repo.branches["main"]) == names | {".gitattributes"}
    card = repo.branches["main"]["README.md"].decode()
    assert 'from_pretrained("me/digits")' in card
    assert "open_model(" not in card
    model, x = taftcache.from_pretrained("me/digits", device="cpu"), torch.randn(2, 3, 32, 32)
    assert torch.equal(model(x), open_model(folder, device="cpu")(x))


def test_what_an_earlier_model_left_on_the_hub_goes(hub, folders, tmp_path, capsys):
    taftcache.push(folders["tangent"], "me/digits")
    hub.repos["me/digits"].branches["main"]["program.pt2"] = b"of the earlier model"
    hub.repos["me/digits"].branches["main"]["notes.md"] = b"the owner's"
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["push", str(folders["head"]), "me/digits", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"folder", "name", "revision", "url", "commit", "files", "bytes"}
    there = set(hub.repos["me/digits"].branches["main"])
    assert there == {*report["files"], ".gitattributes", "notes.md"}
    network = timm.create_model("hf-hub:me/digits", pretrained=True, cache_dir=str(tmp_path / "timm")).eval()
    ours, x = open_model(folders["head"], device="cpu"), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(network(x), ours(x), rtol=1e-5, atol=1e-5)
    taftcache.push(folders["tangent"], "me/digits", revision="next")
    assert set(hub.repos["me/digits"].branches["main"]) == there
    assert "backbone/config.json" in hub.repos["me/digits"].branches["next"]
    moved = taftcache.from_pretrained("me/digits", revision="next", device="cpu")
    assert torch.equal(moved(x), open_model(folders["tangent"], device="cpu")(x))


def test_what_is_not_pushed(hub: Hub, folders, tmp_path):
    model = shutil.copytree(folders["tangent"], tmp_path / "model")
    whole = (model / "tangent.safetensors").read_bytes()
    (model / "tangent.safetensors").write_bytes(whole + b" ")
    with pytest.raises(IntegrityError, match="as it was saved"):
        taftcache.push(model, "me/digits")
    (model / "tangent.safetensors").write_bytes(whole)
    (model / "README.md").unlink()
    for other in (b"a secret of this machine", b"---\nkind: Secret\n", b"---\nlibrary_name: \xe9\n---\n"):
        (tmp_path / "secret").write_bytes(other)
        (model / "README.md").unlink(missing_ok=True)
        (model / "README.md").symlink_to(tmp_path / "secret")
        with pytest.raises(FormatError, match="not a model card"):
            taftcache.push(model, "me/digits")
    with pytest.raises(FormatError, match="no saved model"):
        taftcache.push(tmp_path, "me/digits")
    for name in ("digits", "me/a/b", "me/..", "../digits"):
        with pytest.raises(RecipeError, match="no such name"):
            taftcache.push(folders["head"], name)
    assert hub.requests == []
    taftcache.push(folders["head"], "me/digits")
    before = dict(hub.repos["me/digits"].branches["main"])
    with pytest.raises(RecipeError, match="public on the model hub already"):
        taftcache.push(folders["tangent"], "me/digits", private=True)
    assert hub.repos["me/digits"].branches["main"] == before


def test_a_hub_that_refuses_is_one_line(hub: Hub, folders, monkeypatch, capsys):
    taftcache.push(folders["head"], "me/digits", private=True)

    def told(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["push", str(folders["head"]), *arguments, "--json"])
        assert ended.value.code == 5
        said = capsys.readouterr()
        assert TOKEN not in said.out + said.err
        assert "Traceback" not in said.err
        return json.loads(said.out)["fault"]

    assert told("others/digits") == "the model hub does not let this user in"
    with pytest.raises(StoreUnreachable, match="no such revision"):
        taftcache.from_pretrained("me/digits", revision="none")
    with pytest.raises(StoreUnreachable, match="no such model"):
        taftcache.from_pretrained("me/nothing")
    monkeypatch.setattr(hub, "broken", True)
    assert told("me/digits") == "the model hub failed"
    monkeypatch.setattr(hub, "broken", False)
    monkeypatch.delenv("HF_TOKEN")
    assert told("me/digits") == "the model hub does not let this user in"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert told("me/digits") == "the model hub does not answer, or not as a hub does"


@pytest.mark.full
def test_another_process_finds_the_hub_by_its_environment(folders, tmp_path):
    """Without constants that a test has changed: HF_ENDPOINT and HF_TOKEN decide."""
    with serve() as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        code = f"""
import taftcache, torch
taftcache.push({str(folders["tangent"])!r}, "me/digits")
assert taftcache.from_pretrained("me/digits", device="cpu")(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
"""
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})


def test_onnx_without_its_libraries_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_LIBRARIES", ("onnx", "no_such_library"))
    with pytest.raises(RecipeError, match=r"no no_such_library\n.*taftcache\[onnx\]"):
        save_model(small(), tmp_path / "model", name="models/head", onnx=True)
    assert not (tmp_path / "model").exists()


@pytest.mark.full
def test_onnx_gives_the_model_s_logits(monkeypatch, tmp_path):
    """By onnxruntime, or by onnx itself; and a file that gives others is refused."""
    pytest.importorskip("onnxscript")
    model = small(blocks=1)
    files = save_model(model, tmp_path / "model", name="models/mean", onnx=True)
    assert "model.onnx" in files
    assert str(Path(torch.__file__).parent).encode() not in (tmp_path / "model" / "model.onnx").read_bytes()
    assert "Run by" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    found = []
    for library in ("onnxruntime", "onnx"):
        if library == "onnx":
            monkeypatch.setattr(programs, "find_spec", lambda name: None)
        by, run = programs._runner(tmp_path / "model" / "model.onnx")
        assert programs.difference(model, run) < 1e-5
        found.append(by)
    assert found[-1] == "onnx's reference evaluator"
    monkeypatch.setattr(programs, "_runner", lambda file: (by, lambda images: run(images) + 1))
    with pytest.raises(BackboneError, match="other logits"):
        programs._checked(model, tmp_path / "model" / "model.onnx")
