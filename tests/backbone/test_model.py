"""Loading: float16 files exactly, digests that see every bit, and errors that name what does not fit."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path

import blake3
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from torch.utils._python_dispatch import TorchDispatchMode

from taftcache.backbone.cut.architecture import tail_module
from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.device import float64_device, resolve_device
from taftcache.backbone.files import BUNDLED, expand_path, file_digest, weights_file
from taftcache.backbone.model import in_precision, load_backbone, weights_digest, wrap_model
from taftcache.backbone.saved import save_backbone
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec, backbone_of
from taftcache.backbone.student import build_student
from taftcache.errors import ArgumentError, BackboneError, DataError, RecipeError, SolveError
from taftcache.recipe import parse_recipe, recipe_values
from taftcache.solve.settings import Arithmetic
from taftcache.tangent.device import full_float32
from tests.backbone.registry import SMALL, images, small_backbone
from tests.stages.hub import Repo, asked


@pytest.fixture
def saved(tmp_path):
    """A small model's float16 file, and its float32 state."""
    state = small_backbone(seed=3).model.state_dict()
    path = tmp_path / "small.safetensors"
    save_file({k: v.half().contiguous() for k, v in state.items()}, path)
    return path, state


def spec_of(path, **options):
    return BackboneSpec(model="vit_tiny_patch16_224", weights=str(path), model_args=SMALL | options)


def test_a_float16_file_becomes_float32_exactly(saved):
    path, state = saved
    backbone = load_backbone(spec_of(path))
    loaded = backbone.model.state_dict()
    assert loaded.keys() == state.keys()
    for name, tensor in loaded.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state[name].half().float())
    assert backbone.config["file_digest"] == blake3.blake3(path.read_bytes()).hexdigest()
    assert backbone.config["loading"] == {}
    assert not backbone.model.training
    assert not any(p.requires_grad for p in backbone.model.parameters())


class Drawn(TorchDispatchMode):
    """Counts random numbers that are drawn inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.partition(".")[0] in ("uniform_", "normal_"):
            self.numbers += args[0].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "convnext_atto", "resnet10t"])
def test_what_a_file_replaces_is_not_drawn_first(model, tmp_path):
    made = timm.create_model(model, num_classes=3)
    save_file({name: tensor.contiguous() for name, tensor in made.state_dict().items()}, tmp_path / "w.safetensors")
    with Drawn() as drawn:
        timm.create_model(model, num_classes=3)
    assert drawn.numbers > 1_000_000
    spec = BackboneSpec(model=model, weights=str(tmp_path / "w.safetensors"), model_args={"num_classes": 3})
    with Drawn() as drawn:
        loaded = load_backbone(spec).model.state_dict()
    assert drawn.numbers == 0
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in made.state_dict().items())


def test_loading_twice_gives_one_digest_and_json_config(saved):
    path, _ = saved
    first, second = load_backbone(spec_of(path)), load_backbone(spec_of(path))
    assert first.weights_digest == second.weights_digest == weights_digest(first.model.state_dict())
    assert json.loads(json.dumps(first.config)) == first.config == second.config


def test_the_digest_sees_names_shapes_types_and_every_bit():
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(1)}
    digests = {
        weights_digest(state),
        weights_digest({"a": state["a"].view(3, 2), "b": state["b"]}),
        weights_digest({"c": state["a"], "b": state["b"]}),
        weights_digest({"a": state["a"].double(), "b": state["b"]}),
        weights_digest({"a": state["a"], "b": -state["b"]}),
        weights_digest({"a": state["b"], "b": state["a"]}),
    }
    assert len(digests) == 6
    assert weights_digest(dict(reversed(state.items()))) == weights_digest(state)
    # A transposed view has the values, not the memory, of its copy.
    assert weights_digest({"a": state["a"].t()}) == weights_digest({"a": state["a"].t().contiguous()})


def test_a_head_of_another_class_count_is_zero_and_said(saved):
    path, state = saved
    backbone = load_backbone(spec_of(path, num_classes=4))
    assert not backbone.model.head.weight.any()
    assert not backbone.model.head.bias.any()
    assert "head.weight 7x48 for 4x48" in backbone.config["loading"]["head"]
    assert torch.equal(backbone.model.norm.weight, state["norm.weight"].half().float())
    again = load_backbone(spec_of(path, num_classes=4))
    assert again.weights_digest == backbone.weights_digest


def test_a_file_without_head_or_a_model_without_head(saved):
    path, state = saved
    assert load_backbone(spec_of(path, num_classes=0)).config["num_classes"] == 0
    save_file({k: v for k, v in state.items() if not k.startswith("head.")}, path)
    assert "head.bias absent for 7" in load_backbone(spec_of(path)).config["loading"]["head"]


@pytest.mark.parametrize("name", ["levit_128s", "iformer_t"])
def test_a_model_without_classes_takes_the_whole_file(name, tmp_path):
    """What goes with the head, a BatchNorm before its last layer, was called unexpected."""
    made = timm.create_model(name)
    path = tmp_path / "whole.safetensors"
    save_file({k: v.contiguous() for k, v in made.state_dict().items()}, path)
    backbone = load_backbone(BackboneSpec(model=name, weights=str(path), model_args={"num_classes": 0}))
    assert ".bn." in backbone.config["loading"]["head"]
    assert all(torch.equal(made.state_dict()[k], tensor) for k, tensor in backbone.model.state_dict().items())
    stored = load_file(path)
    save_file(stored | {"another.bn.weight": torch.zeros(2)}, path)
    with pytest.raises(BackboneError, match=r"1 unexpected: another\.bn\.weight"):
        load_backbone(BackboneSpec(model=name, weights=str(path), model_args={"num_classes": 0}))


def test_tensors_that_do_not_fit_are_named(saved):
    path, state = saved
    broken = {k: v.clone() for k, v in state.items() if k != "blocks.1.norm1.bias"}
    broken["blocks.9.norm1.bias"] = torch.zeros(48)
    broken["norm.weight"] = torch.zeros(50)
    broken["norm.bias"] = torch.zeros(48, dtype=torch.int32)
    save_file(broken, path)
    with pytest.raises(BackboneError) as raised:
        load_backbone(spec_of(path))
    text = str(raised.value)
    for part in (
        "1 missing: blocks.1.norm1.bias",
        "1 unexpected: blocks.9.norm1.bias",
        "norm.weight 50 for 48",
        "norm.bias torch.int32",
    ):
        assert part in text


def test_another_architecture_is_refused(saved):
    with pytest.raises(BackboneError, match="do not fit"):
        load_backbone(spec_of(saved[0], embed_dim=96))


def test_position_embeddings_of_another_grid_are_converted_and_said(saved):
    backbone = load_backbone(spec_of(saved[0], img_size=48))
    done = backbone.config["loading"]
    assert done.keys() == {"converted", "resized", "img_size"}
    assert done["resized"] == "pos_embed 1x17x48 to 1x37x48"
    assert load_backbone(spec_of(saved[0], img_size=done["img_size"])).config["loading"] == {}
    assert backbone.data_config["input_size"] == (3, 48, 48)
    assert Cut(backbone).tokens_shape == (37, 48)


def test_what_else_is_converted(saved):
    """Other names are nothing that was resized; of other patches, no size of images would make the file fit."""
    path, state = saved
    save_file({f"visual.trunk.{k}": v for k, v in state.items()}, path)  # as OpenCLIP names timm's tensors
    assert load_backbone(spec_of(path)).config["loading"].keys() == {"converted"}
    done = load_backbone(spec_of(path, img_size=48)).config["loading"]
    assert (done["resized"], "img_size" in done) == ("pos_embed to 1x37x48", False)
    save_file(state, path)
    done = load_backbone(spec_of(path, patch_size=4)).config["loading"]
    assert done["resized"] == "patch_embed.proj.weight 48x3x8x8 to 48x3x4x4, pos_embed 1x17x48 to 1x65x48"
    assert "img_size" not in done


@pytest.mark.parametrize("prefix", ["module.", "model.", "module.backbone."])
def test_names_that_begin_with_what_the_models_do_not(saved, prefix):
    """The advice was to name another model; what it is now, makes the file fit."""
    path, state = saved
    save_file({prefix + k: v for k, v in state.items()}, path)
    for options in ({}, {"num_classes": 0}, {"img_size": 48}):
        with pytest.raises(BackboneError, match=f"in small.safetensors begin with '{prefix}'") as caught:
            load_backbone(spec_of(path, **options))
        assert f"name[{len(prefix)}:]" in caught.value.do
    with pytest.raises(BackboneError, match="do not fit"):
        load_backbone(spec_of(path, embed_dim=96))


def test_a_folder_in_timms_layout(tmp_path):
    from timm.models import save_for_hf

    model = timm.create_model("vit_tiny_patch16_224", **SMALL)
    prepared = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5), "interpolation": "bilinear", "crop_pct": 1.0}
    model.pretrained_cfg = {**model.pretrained_cfg, **prepared}
    save_for_hf(model, tmp_path, model_args=SMALL, safe_serialization="both")
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle that must not be read")
    spec = BackboneSpec(weights=str(tmp_path))
    backbone = load_backbone(spec)
    with torch.no_grad():
        assert torch.equal(backbone.model(images(2)), model.eval()(images(2)))
    assert backbone.data_config == {"input_size": (3, 32, 32), "crop_mode": "center", **prepared}
    assert weights_file(spec) == tmp_path / "model.safetensors"
    assert load_backbone(BackboneSpec(weights=f"local-dir:{tmp_path}")).weights_digest == backbone.weights_digest
    assert backbone.name == "vit_tiny_patch16_224"
    with pytest.raises(BackboneError, match="deit_tiny"):
        load_backbone(BackboneSpec(model="deit_tiny_patch16_224", weights=str(tmp_path)))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BackboneError, match=r"without model\.safetensors"):
        load_backbone(spec)


def test_a_folder_that_asks_for_more_than_its_weights_hold_is_refused_as_it_grows(tmp_path, monkeypatch):
    """A million blocks took gigabytes and minutes before their weights were found missing."""
    from timm.models import save_for_hf

    save_for_hf(timm.create_model("vit_tiny_patch16_224", **SMALL), tmp_path, model_args=SMALL, safe_serialization=True)
    described = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    monkeypatch.setattr("taftcache.backbone.build.BEYOND", 0)
    monkeypatch.setattr("taftcache.backbone.build.TENSORS", 1000)
    for wrong, words in (
        ({"depth": 10**5, "embed_dim": 3}, "is too large for its weights"),
        ({"embed_dim": 480}, "is too large for its weights"),
        ({"depth": 10**9}, "10{9} among its arguments"),
        ({"depth": [2, 10**9]}, "10{9} among its arguments"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**described, "model_args": {**SMALL, **wrong}}))
        with pytest.raises(BackboneError, match=words):
            load_backbone(BackboneSpec(weights=str(tmp_path)))


def test_a_model_of_too_many_blocks_is_refused_without_a_file_too(monkeypatch):
    monkeypatch.setattr("taftcache.backbone.build.TENSORS", 1000)
    options = {**SMALL, "depth": 10**5, "embed_dim": 3}
    with pytest.raises(BackboneError, match="too large") as caught:
        build_student("vit_tiny_patch16_224", "random", options, PreprocessSpec(), 2, 0)
    assert "1001 parameters" in caught.value.got
    identity = {"backbone": {"model": "vit_tiny_patch16_224", "model_args": options}, "preprocess": {"input_size": [3]}}
    with pytest.raises(BackboneError, match="too large"):
        tail_module(identity, None, {})


def test_the_bundled_backbone():
    backbone = load_backbone(BackboneSpec())
    cut = Cut(backbone)
    stored = load_file(BUNDLED / "model.safetensors")
    assert all(torch.equal(stored[k].float(), v) for k, v in backbone.model.state_dict().items())
    assert cut.tokens_shape == (65, 96)
    assert backbone.config["weights"] == "bundled"
    assert backbone.config["file_digest"] == file_digest(weights_file(BackboneSpec()))


def test_weights_that_are_not_there_or_not_safe(tmp_path):
    def refusal(weights, **options):
        with pytest.raises(BackboneError) as raised:
            load_backbone(BackboneSpec(weights=str(weights), **options))
        return str(raised.value)

    assert "no weights at" in refusal(tmp_path / "none.safetensors")
    pickled = tmp_path / "model.pth"
    pickled.write_bytes(b"")
    assert re.search(r"run code.*weights_only=True.*checkpoint.*\['model'\]", refusal(pickled, model="vit"), re.DOTALL)
    garbage = tmp_path / "garbage.safetensors"
    garbage.write_bytes(b"\xff" * 100)
    assert "no model is named" in refusal(garbage)
    assert "cannot be read as safetensors" in refusal(garbage, model="vit_tiny_patch16_224", model_args=SMALL)
    assert "list_models" in refusal(garbage, model="no_such_model")
    assert "folder of weights" in refusal(tmp_path)


def test_the_bundled_model_is_meant_where_its_name_is_mistyped():
    """An estimator takes it, and timm's names, as one word."""
    with pytest.raises(BackboneError, match=r"no model 'bundeld'[^?]*did you mean bundled\?"):
        load_backbone(backbone_of("bundeld"))


def test_a_model_that_timm_does_not_have_is_answered_with_those_it_has():
    with pytest.raises(BackboneError, match="timm has no model 'deit_tinny_patch16_224'") as caught:
        load_backbone(BackboneSpec(model="deit_tinny_patch16_224", weights="pretrained"))
    assert "deit_tiny_patch16_224" in caught.value.do
    with pytest.raises(BackboneError, match="timm has no weights 'fb_in2k' of deit_tiny_patch16_224") as caught:
        load_backbone(BackboneSpec(model="deit_tiny_patch16_224.fb_in2k", weights="pretrained"))
    assert "fb_in1k" in caught.value.do


def test_a_model_that_a_program_registered(monkeypatch, tmp_path):
    """Without timm's builder it has no ``pretrained_cfg``, which ended in an AttributeError."""

    def own(pretrained: bool = False, **options: object) -> VisionTransformer:
        return VisionTransformer(**{name: value for name, value in options.items() if name in set(SMALL)})

    file = tmp_path / "own.safetensors"
    save_file(own(**SMALL).state_dict(), file)
    spec = BackboneSpec(model="own", weights=str(file), model_args=SMALL)
    with pytest.raises(BackboneError, match="no model 'own'") as caught:
        load_backbone(spec)
    assert "import the module that registers it" in caught.value.do
    monkeypatch.setitem(timm.models._registry._model_entrypoints, "own", own)
    backbone = load_backbone(spec, PreprocessSpec(input_size=(3, 32, 32)))
    assert torch.equal(backbone.model.state_dict()["head.weight"], load_file(file)["head.weight"])
    save_backbone(backbone, tmp_path)
    again = load_backbone(BackboneSpec(weights=f"local-dir:{tmp_path}"))
    assert (again.name, again.weights_digest) == ("own", backbone.weights_digest)
    assert again.data_config == backbone.data_config


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch, tmp_path, caplog):
    """Its client tried six times over half a minute, and printed every try."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    logging.getLogger("huggingface_hub").addHandler(caplog.handler)
    with pytest.raises(BackboneError, match="no pretrained weights of vit_tiny_patch16_224"):
        load_backbone(BackboneSpec(model="vit_tiny_patch16_224", weights="pretrained"))
    assert [r.message for r in caplog.records if "Retry" in r.message] == []
    assert not constants.HF_HUB_OFFLINE


@pytest.fixture
def pickled(tmp_path, monkeypatch):
    """A model folder in timm's layout whose weights are a pickle that no test may load; and its true state."""
    backbone = small_backbone(seed=3)
    save_backbone(backbone, tmp_path / "folder")
    (tmp_path / "folder" / "model.safetensors").rename(tmp_path / "state")
    for name in ("pytorch_model.bin", "other.bin"):
        torch.save(backbone.model.state_dict(), tmp_path / "folder" / name)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("a pickle was loaded"))
    return tmp_path / "folder", tmp_path / "state", backbone.weights_digest


@pytest.mark.law("No pickle of a stranger's model is loaded: of folders and of the hub only model.safetensors")
@pytest.mark.parametrize("prefix", ["local-dir:", "Local-Dir:"])
def test_no_pickle_of_a_folder_is_loaded(pickled, prefix):
    folder, state, digest = pickled
    spec = BackboneSpec(model=f"{prefix}{folder}", weights="pretrained")
    with pytest.raises(BackboneError, match=r"no model\.safetensors in the folder of the model"):
        load_backbone(spec)
    state.rename(folder / "model.safetensors")
    assert load_backbone(spec).weights_digest == digest


@pytest.mark.parametrize("named", [{}, {"hf_hub_filename": "other.bin", "custom_load": "hf"}])
def test_no_pickle_of_a_hub_is_loaded(pickled, tmp_path, named):
    folder, state, digest = pickled
    written = json.loads((folder / "config.json").read_bytes())
    written["pretrained_cfg"] |= named
    spec = BackboneSpec(model="hf-hub:a/b", weights="pretrained")
    with asked(tmp_path) as hub:
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        files["config.json"] = json.dumps(written).encode()
        hub.repos["a/b"] = Repo(False, {"main": files})
        with pytest.raises(
            BackboneError, match=r"no pretrained weights of hf-hub:a/b(.|\n)*must have model\.safetensors"
        ):
            load_backbone(spec)
        hub.repos["a/b"].branches["main"] = files | {"model.safetensors": state.read_bytes()}
        assert load_backbone(spec).weights_digest == digest


def test_without_the_hub_the_whole_command_is_named_that_takes_weights_from_a_file(monkeypatch, tmp_path):
    """A file alone does not say which model it is of: what is advised must not be refused in turn."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BackboneError) as caught:
        load_backbone(BackboneSpec(model="vit_tiny_patch16_224", weights="pretrained"))
    assert "taftcache init PLACE --model vit_tiny_patch16_224 --weights FILE.safetensors" in caught.value.do
    file = tmp_path / "my weights.safetensors"
    file.write_bytes(b"")
    with pytest.raises(BackboneError, match="no model is named for the weights") as caught:
        load_backbone(BackboneSpec(weights=str(file)))
    assert f"taftcache init PLACE --model deit_tiny_patch16_224 --weights '{file}'" in caught.value.do


def test_a_recipe_that_names_too_much_or_too_little():
    with pytest.raises(RecipeError, match="bundled"):
        BackboneSpec(model="deit_tiny_patch16_224")
    with pytest.raises(RecipeError, match="need the name of a model"):
        BackboneSpec(weights="pretrained")
    with pytest.raises(RecipeError, match="model's weights must not be empty"):
        BackboneSpec(weights="")


def test_paths_expand_and_name_a_missing_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.delenv("NOWHERE", raising=False)
    assert expand_path("${HERE}/a$b.npz") == tmp_path / "a$b.npz"
    assert expand_path("~/x").is_absolute()
    with pytest.raises(RecipeError, match="NOWHERE"):
        expand_path("${NOWHERE}/a")
    monkeypatch.setenv("NOWHERE", "")
    with pytest.raises(RecipeError, match="NOWHERE"):
        load_backbone(BackboneSpec(model="x", weights="${NOWHERE}/a.safetensors"))


@pytest.mark.law("A recipe learns no secret of its reader: no path takes one from the environment, no address anything")
@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "openai_apikey", "PGPASSWORD", "DB_PASS", "API_KEYS", "MY_TOKEN2"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "KEY", "KEY_PLACE", "MYSQL_PWD", "SSHPASS", "PGPASS", "LDAP_BINDPW"),
        *("SENTRY_DSN", "DATABASE_URL", "HTTPS_PROXY", "SLACK_WEBHOOK_URL", "JWT", "SESSION", "A_PEM", "GITHUB_PAT2"),
        *("APIKEYPROD", "TOKENVALUE", "PRIVATEKEYPEM", "MONKEYKEY", "SECRET_DIR", "DB_CREDS"),
    ],
)
def test_no_path_takes_a_secret_from_the_environment(monkeypatch, name):
    monkeypatch.setenv(name, "of-the-reader")
    for spec in ({"data": {"source": "folder", "train": f"/x/${{{name}}}"}}, {"store": {"path": f"a/${{{name}}}"}}):
        recipe = parse_recipe(spec)
        with pytest.raises(RecipeError, match=f"{name}, which by its name may hold a secret") as caught:
            open_source(recipe.data) if "data" in spec else recipe.store_path
        assert "of-the-reader" not in str(caught.value)


@pytest.mark.parametrize("form", ["/x/${PLACE}", "${PLACE}/x", "here/${PLACE}.h5", "local-dir:a/${PLACE}"])
def test_an_error_about_a_path_shows_no_variable(monkeypatch, tmp_path, form):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "of-the-reader")
    path = form.removeprefix("local-dir:")
    for source in ("folder", "table", "npz", "hdf5"):
        with pytest.raises(DataError, match=f"(?s){re.escape(path)}.*; or look at what PLACE names$") as caught:
            open_source(parse_recipe({"data": {"source": source, "train": path}}).data)
        assert "of-the-reader" not in repr(caught.value) + str(caught.value.args)
    with pytest.raises(BackboneError, match=re.escape(path)) as caught:
        load_backbone(BackboneSpec(model="deit_tiny_patch16_224", weights=form))
    assert "of-the-reader" not in repr(caught.value)
    (tmp_path / "of-the-reader").mkdir()
    with pytest.raises(BackboneError, match=r"folder of weights \$\{PLACE\}") as caught:
        load_backbone(BackboneSpec(model="deit_tiny_patch16_224", weights="${PLACE}"))
    assert "of-the-reader" not in repr(caught.value)
    assert "look at what" not in str(caught.value)
    monkeypatch.setenv("PLACE", "")
    with pytest.raises(RecipeError, match="PLACE, which is not set, or empty") as caught:
        open_source(parse_recipe({"data": {"source": "folder", "train": path}}).data)
    assert caught.value.got == path


@pytest.mark.parametrize(
    "name",
    [
        *("MONKEY_DATA", "KEYPOINTS", "TOKENIZER_DIR", "HOCKEY", "WHISKEYS", "TOKENIZED", "KEYFRAME", "KEY_POINTS"),
        *("PROXY_DIR", "SESSION_DATA", "DEIT_TOKENS_PATH", "PWD", "OLDPWD", "SECRETARY_DATA", "BYPASS"),
    ],
)
def test_a_name_that_only_has_such_letters_holds_no_secret(monkeypatch, name):
    monkeypatch.setenv(name, "data")
    assert expand_path(f"/x/${{{name}}}") == Path("/x/data")


@pytest.mark.parametrize("address", ["s3://bucket", "s3:/bucket", "S3://bucket", "gs://bucket"])
def test_no_bucket_is_sent_a_variable(monkeypatch, address):
    monkeypatch.setenv("DATABASE", "of-the-reader")
    with pytest.raises(RecipeError, match="address cannot use an environment variable, here DATABASE") as caught:
        _ = parse_recipe({"store": {"path": f"{address}/${{DATABASE}}"}}).store_path
    assert "of-the-reader" not in str(caught.value)


@pytest.mark.parametrize("name", ["TAFTCACHE_DATA", "HOME", "PWD", "SCRATCH", "PATH_TO_AUTHORS", "COMPASS"])
def test_other_variables_are_taken(monkeypatch, name):
    monkeypatch.setenv(name, "s3://mine")
    assert str(expand_path(f"${{{name}}}/x")) == "s3:/mine/x"


def test_preprocessing_overrides_and_their_limits():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL)
    changed = PreprocessSpec(mean=(0.1, 0.2, 0.3), crop_pct=0.8, interpolation="bilinear", crop_mode="squash")
    config = wrap_model(model, "small", changed).data_config
    assert (config["mean"], config["crop_pct"], config["interpolation"]) == ((0.1, 0.2, 0.3), 0.8, "bilinear")
    assert config["crop_mode"] == "squash"
    assert wrap_model(model, "small").data_config["input_size"] == (3, 32, 32)
    with pytest.raises(BackboneError, match="img_size"):
        wrap_model(model, "small", PreprocessSpec(input_size=(3, 64, 64)))
    for wrong in ({"input_size": (1, 32, 32)}, {"std": (0.1, 0.0, 0.1)}, {"crop_pct": 0.0}):
        with pytest.raises(RecipeError):
            PreprocessSpec(**wrong)


def test_a_model_that_keeps_no_size_is_given_images_of_the_size_it_was_built_for():
    for size in (64, [64, 64]):
        options = {"img_size": size, "num_classes": 0}
        config = wrap_model(timm.create_model("levit_128s", **options), "levit", model_args=options).data_config
        assert config["input_size"] == (3, 64, 64)
    options = {"num_classes": 0}
    alone = wrap_model(timm.create_model("levit_128s", **options), "levit", PreprocessSpec(input_size=(3, 64, 64)))
    with pytest.raises(BackboneError, match=r"input_size and, where the model has it, model_args\.img_size"):
        Cut(alone, 0)


def test_devices():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("tpu", "gpu0", ""):
        with pytest.raises(ArgumentError):
            resolve_device(name)
    for name in ("cuda:97", "xpu", "meta"):
        with pytest.raises(BackboneError):
            resolve_device(name)
    if not torch.cuda.is_available():
        with pytest.raises(BackboneError, match="torch sees cpu"):
            resolve_device("cuda")
    with pytest.raises(SolveError, match="torch does not see the device cuda:97 on this machine\n  got: GPUs"):
        Arithmetic(device="cuda:97")


@pytest.mark.usefixtures("mac")
def test_a_solve_on_a_mac_runs_on_its_cpu():
    for name in ("auto", "mps"):
        assert resolve_device(name).type == "mps"
        assert float64_device(name).type == "cpu"
    with pytest.raises(SolveError, match="float64"):
        Arithmetic(device=resolve_device("auto"))


def test_float32_stays_float32_and_settings_come_back():
    torch.set_float32_matmul_precision("medium")
    try:
        with full_float32(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    with torch.autocast("cpu", dtype=torch.bfloat16), full_float32(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_float32_stays_float32_while_another_thread_leaves():
    began, ended = threading.Event(), threading.Event()

    def other() -> None:
        with full_float32("cpu"):
            began.set()
            ended.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    began.wait(10)
    with full_float32("cpu"):
        ended.set()
        thread.join()
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32


def test_recipes_and_weight_files_need_neither_torch_nor_timm():
    code = (
        "import sys; from taftcache.backbone.spec import DataSpec; "
        "from taftcache.backbone.files import expand_path, weights_file; DataSpec(source='digits'); expand_path('x'); "
        "print([m for m in ('torch', 'timm', 'numpy', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.law("frozen layers compute in half precision only where the store's identity says so")
def test_precision_is_part_of_what_a_store_records():
    torch.manual_seed(0)
    full = wrap_model(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=4), "vit")
    assert in_precision(full, "float32") is full
    assert "precision" not in full.config
    images = torch.randn(2, 3, 32, 32)
    exact = Cut(full).prefix(images)
    for precision, error in (("float16", 2e-3), ("bfloat16", 2e-2)):
        half = in_precision(full, precision)
        assert half.config == full.config | {"precision": precision}
        cut = Cut(half)
        rows = cut.prefix(images)
        assert rows.dtype == torch.float32
        assert 1e-5 < (rows - exact).norm() / exact.norm() < error
        assert all(
            torch.equal(a, b) for a, b in zip(cut.tail_state().values(), Cut(full).tail_state().values(), strict=True)
        )
        assert all(p.dtype == torch.float32 for p in half.model.parameters())


def test_the_default_precision_leaves_no_trace_in_a_recipe():
    said = parse_recipe({"backbone": {"precision": "float16"}})
    assert recipe_values(said)["backbone"]["precision"] == "float16"
    assert "precision" not in recipe_values(parse_recipe({}))["backbone"]
    assert parse_recipe(recipe_values(said)) == said
