"""A model outside its store: the same logits, by us, by timm and by torch alone."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import timm
import torch
from safetensors.torch import save_model

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import CompositionError, FormatError, IntegrityError, StoreError, StoreWriteError
from taftcache.model.folder import open_model
from taftcache.model.predictor import TangentModel
from tests.stages.making import recipe

SWITCHES = {
    "reset": {"reset_block": True},
    "token": {"class_token": "reset"},
    "some": {"train": ["*.mlp.*", "head.*"]},
}


@pytest.fixture(scope="module", params=[pytest.param("reset", marks=pytest.mark.full), "token", "some"])
def store(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "store"
    taftcache.run(recipe(path, tangent=SWITCHES[request.param]))
    return path


one_of_them = pytest.mark.parametrize(
    "store",
    [name if name == "token" else pytest.param(name, marks=pytest.mark.full) for name in SWITCHES],
    indirect=True,
)


def pictures(model: TangentModel, n: int = 3) -> torch.Tensor:
    return torch.randn(n, *model.transform.image_shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.law("A saved model gives the store's own logits, and needs neither store nor solver")
def test_a_saved_model_gives_the_same_logits(store, tmp_path):
    with FeatureStore(store) as opened:
        report = taftcache.export_model(opened, tmp_path / "model")
        assert report.root_digest == opened.root_digest
    files = [file for file in (tmp_path / "model").rglob("*") if file.is_file()]
    assert len({file.stat().st_mode for file in files}) == 1  # as the user's umask has it
    here, there = TangentModel.load(store, device="cpu"), open_model(tmp_path / "model", device="cpu")
    x = pictures(here)
    assert torch.equal(here(x), there(x))
    assert torch.equal(here.component.delta, there.component.delta)  # of which certificates speak, to the last bit
    assert there.classes == here.classes
    assert there.component.meta["identity_error"] == here.component.meta["identity_error"]
    assert report.files == [
        "README.md", "backbone/config.json", "backbone/model.safetensors", "config.json", "taftcache.json",
        "tangent.safetensors",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def exported(store, tmp_path_factory):
    """The store's model as a folder. Not to be written to."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    with FeatureStore(store) as opened:
        taftcache.export_model(opened, folder)
    return folder


def timms(folder, **options) -> Any:
    """What timm makes of a folder."""
    return timm.create_model(f"local-dir:{folder}", pretrained=True, **options).eval()


@pytest.mark.law("timm refuses a tangent model's folder; of one that it loads the logits agree")
def test_timm_refuses_a_tangent_model(store, exported):
    for options in ({}, {"num_classes": 10}):
        with pytest.raises(RuntimeError, match=r"a tangent model.*use taftcache\.open_model"):
            timms(exported, **options)
    ours = TangentModel.load(store, device="cpu")
    x = pictures(ours)
    with torch.no_grad():
        assert torch.equal(timms(exported / "backbone")(x), ours.backbone(x))


@pytest.mark.law("A saved model gives the store's own logits, and needs neither store nor solver")
@one_of_them
def test_loading_needs_neither_store_nor_solver(store, tmp_path):
    with FeatureStore(store) as opened:
        taftcache.export_model(opened, tmp_path / "model")
    loaded = {name: module for name, module in sys.modules.items() if not name.startswith(("taftcache", "zarr"))}
    with mock.patch.dict(sys.modules, loaded, clear=True):  # as in a new process that has torch and timm
        opened = importlib.import_module("taftcache").open_model(tmp_path / "model", device="cpu")
        opened(torch.zeros(1, 3, 32, 32))
        unneeded = ("taftcache.solve.", "taftcache.objective.", "taftcache.stages.", "zarr.")
        assert type(opened) is not TangentModel
        assert [name for name in sys.modules if f"{name}.".startswith(unneeded)] == []


@pytest.mark.full
@one_of_them
def test_the_program_needs_torch_alone(store, tmp_path):
    with FeatureStore(store) as opened:
        taftcache.export_model(opened, tmp_path / "model", program=True)
    model = TangentModel.load(store, device="cpu")
    program = torch.export.load(tmp_path / "model" / "program.pt2").module()
    assert str(Path(torch.__file__).parent).encode() not in (tmp_path / "model" / "program.pt2").read_bytes()
    for n in (1, 2, 7):
        x = pictures(model, n)
        assert torch.allclose(program(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_moved_head_merges_into_an_ordinary_model(store, tmp_path):
    head = TangentModel.load(store, "models/head", "cpu")
    if "class_token" in str(head.base.spec) and head.base.spec.class_token == "reset":
        with pytest.raises(CompositionError, match="cls_token"):
            head.merged()
        return
    with FeatureStore(store) as opened:
        taftcache.export_model(opened, tmp_path / "model", "models/head")
    agree(timms(tmp_path / "model"), head)
    agree(head.merged(), head)
    with pytest.raises(CompositionError, match="other tensors moved"):
        TangentModel.load(store, device="cpu").merged()


def test_a_moved_head_merges_where_the_tail_has_tables_that_timm_makes(tmp_path):
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 3}
    torch.manual_seed(0)
    save_model(timm.create_model("eva02_tiny_patch14_224", **small), tmp_path / "eva.safetensors")
    backbone = {"weights": str(tmp_path / "eva.safetensors"), "model": "eva02_tiny_patch14_224", "model_args": small}
    made = recipe(
        tmp_path / "store", backbone=backbone, tangent={"train": "head"}, store={"cache": "tokens"},
        preprocess={"input_size": [3, 32, 32]},
    )  # fmt: skip
    taftcache.run(made)
    model = TangentModel.load(tmp_path / "store", device="cpu")
    assert model.base.config.buffers == ("rope",)
    taftcache.export_model(tmp_path / "store", tmp_path / "model")
    agree(timms(tmp_path / "model"), model)


@torch.no_grad()
def agree(network: torch.nn.Module, model: TangentModel) -> None:
    x = pictures(model)
    assert torch.allclose(network(x), model(x), rtol=1e-5, atol=1e-5)


def test_files_of_macos_are_in_no_way_of_a_saved_model(store, tmp_path):
    """They are none of its files either: macOS changes them when it likes."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/.DS_Store").write_bytes(b"how the folder is shown")
    files = taftcache.save_model(TangentModel.load(store, device="cpu"), tmp_path / "model", name="models/mean")
    assert (len(files), ".DS_Store" in files) == (6, False)
    (tmp_path / "model/.DS_Store").write_bytes(b"otherwise")
    assert open_model(tmp_path / "model", device="cpu").classes
    with pytest.raises(StoreWriteError, match="there is something already"):
        taftcache.save_model(TangentModel.load(store, device="cpu"), tmp_path / "model", name="models/mean")


def test_nothing_is_overwritten_and_damage_is_found(store, tmp_path):
    folder = tmp_path / "model"
    with FeatureStore(store) as opened:
        taftcache.export_model(opened, folder)
        with pytest.raises(StoreWriteError, match="new or empty"):
            taftcache.export_model(opened, folder)
        with pytest.raises(StoreError, match="no model named"):
            taftcache.export_model(opened, tmp_path / "other", "models/none")
    assert not (tmp_path / "other").exists()
    for name in ("tangent.safetensors", "backbone/model.safetensors", "config.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(IntegrityError):
            open_model(folder, device="cpu")
        (folder / name).write_bytes(whole)
    described = json.loads((folder / "taftcache.json").read_text(encoding="utf-8"))
    (folder / "taftcache.json").write_text(json.dumps({**described, "format": 9}))
    with pytest.raises(FormatError, match="format 9"):
        open_model(folder, device="cpu")
    (folder / "taftcache.json").unlink()
    with pytest.raises(FormatError):
        open_model(folder, device="cpu")


def test_predict_takes_a_store_or_a_folder(photographed, images, tmp_path):
    file = next(iter(sorted(images.glob("1/*.png"))))
    with FeatureStore(photographed) as opened:
        taftcache.export_model(opened, tmp_path / "model")
    from_store, from_folder = (taftcache.predict(p, [file], device="cpu") for p in (photographed, tmp_path / "model"))
    plain = [
        replace(p, alike=None, probabilities=None) for p in from_store.predictions
    ]  # a folder has no held-out rows
    assert plain == [replace(p, probabilities=None) for p in from_folder.predictions]
    assert from_store.model == from_folder.model
    assert from_store.root_digest == from_folder.root_digest
