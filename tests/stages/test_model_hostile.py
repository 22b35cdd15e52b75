"""Folders that a stranger says are exported models: one error of taftcache's own each, and never a prediction."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import taftcache
from taftcache.backbone.files import file_digest
from taftcache.cache.store import FeatureStore
from taftcache.errors import BackboneError, FormatError, IntegrityError
from taftcache.model.folder import is_model_folder, open_model
from tests.stages.making import recipe

REFUSALS = (FormatError, IntegrityError, BackboneError)


@pytest.fixture(scope="module")
def saved(finished, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    with FeatureStore(finished) as store:
        taftcache.export_model(store, folder)
    return folder


@pytest.fixture
def model(saved, tmp_path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


def describe(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the description, with the digests of the files as they are now."""
    file = folder / "taftcache.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    described["digest"] = file_digest(folder / "tangent.safetensors")
    described["files"] = {
        name: file_digest(folder / name) for name in described.get("files", {}) if (folder / name).exists()
    }
    change(described)
    file.write_text(json.dumps(described))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the trained tensors, digests made anew."""
    tensors = load_file(folder / "tangent.safetensors")
    change(tensors)
    save_file(tensors, folder / "tangent.safetensors")
    describe(folder, lambda d: None)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"x": value}
    return value


def first(tensors: dict[str, torch.Tensor], prefix: str) -> str:
    return next(name for name in sorted(tensors) if name.startswith(prefix))


DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another base digest": lambda d: d.update(base_digest="0" * 64),
    "no base digest": lambda d: d.pop("base_digest"),
    "fewer classes": lambda d: d.update(classes=d["classes"][:3]),
    "fewer classes everywhere": lambda d: d.update(classes=d["classes"][:3], tail={**d["tail"], "classes": 3}),
    "feature instead of tail": lambda d: d["tail"].update(path="feature"),
    "layers instead of class row": lambda d: d["tail"].update(path="layers"),
    "no end": lambda d: d["tail"].update(end=None),
    "no start": lambda d: d["tail"].update(start=""),
    "another start": lambda d: d["tail"].update(start="nowhere.1"),
    "another head": lambda d: d["tail"].update(head="norm"),
    "another shape": lambda d: d["tail"].update(shape=[1, 1]),
    "no parameters": lambda d: d["tail"].update(parameters=[]),
    "deep stats": lambda d: d["component"].update(stats=nested(800)),
    "deep tail": lambda d: d["tail"].update(end=nested(800)),
    "another file": lambda d: d["files"].update({"../../etc/passwd": "0" * 64}),
    "no preprocessing": lambda d: d.pop("preprocess"),
    "another input size": lambda d: d["preprocess"].update(input_size=[3, 7, 7]),
    "other weights": lambda d: d.update(weights_digest="0" * 64),
    "no backbone among the files": lambda d: d["files"].pop("backbone/model.safetensors"),
    "no files": lambda d: d.pop("files"),
    "another format": lambda d: d.update(format=1),
    "a list": lambda d: d.update(component=[]),
    "a temperature below zero": lambda d: d.update(temperature=-1),
    "a temperature next to zero": lambda d: d.update(temperature=1e-300),
}
TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "NaN in what was trained": lambda t: t[first(t, "delta/")].view(-1)[0].fill_(float("nan")),
    "infinity in what was trained": lambda t: t[first(t, "delta/")].view(-1)[0].fill_(float("inf")),
    "another base": lambda t: t[first(t, "base/")].view(-1)[0].add_(1.0),
    "NaN in the base": lambda t: t[first(t, "base/")].view(-1)[0].fill_(float("nan")),
    "nothing trained": lambda t: [t.pop(name) for name in list(t) if name.startswith("delta/")],
    "another shape": lambda t: t.update({first(t, "delta/"): torch.zeros(2)}),
    "another name": lambda t: t.update({"delta/nowhere": torch.zeros(2)}),
    "no head": lambda t: [t.pop(name) for name in list(t) if name.startswith("base/head")],
}


@pytest.mark.law("A folder that is no whole exported model is refused with one error, and never predicts")
@pytest.mark.parametrize(
    ("spoil", "change"),
    [pytest.param(describe, change, id=what) for what, change in DESCRIPTIONS.items()]
    + [pytest.param(rewrite, change, id=f"tensors: {what}") for what, change in TENSORS.items()],
)
def test_what_does_not_fit_is_refused(model, spoil, change):
    spoil(model, change)
    with pytest.raises(REFUSALS):
        open_model(model, device="cpu")


@pytest.mark.parametrize(
    "name", ["config.json", "backbone/config.json", "backbone/model.safetensors", "tangent.safetensors"]
)
def test_every_file_is_verified(model, name):
    whole = (model / name).read_bytes()
    (model / name).write_bytes(whole + b" ")
    with pytest.raises(IntegrityError, match="as it was saved"):
        open_model(model, device="cpu")
    (model / name).unlink()
    with pytest.raises(IntegrityError, match="as it was saved"):
        open_model(model, device="cpu")


@pytest.mark.parametrize(
    "config",
    [
        "[",
        "[]",
        "{}",
        json.dumps({"architecture": "vit_tiny_patch16_224", "model_args": {"checkpoint_path": "/etc/passwd"}}),
        json.dumps({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"fixed_input_size": True}}),
    ],
)
def test_a_backbone_that_cannot_be_built(model, config):
    (model / "backbone" / "config.json").write_text(config)
    describe(model, lambda d: None)
    with pytest.raises(REFUSALS):
        open_model(model, device="cpu")


@pytest.mark.parametrize("cache", [pytest.param("residual", marks=pytest.mark.full), "attended", "feature"])
def test_whatever_a_store_kept_the_base_point_is_known(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("HOME", str(tmp_path))
    made = recipe(
        tmp_path / "store", store={"cache": cache, "shards": 1}, tangent={"train": "head"},
        data={"source": "digits", "limit": 20},
    )  # fmt: skip
    taftcache.run(made)
    with FeatureStore(tmp_path / "store") as store:
        taftcache.export_model(store, "~/model")
    assert (tmp_path / "model").is_dir()
    assert is_model_folder("~/model"), "so that predict takes it for no store"
    open_model("~/model", device="cpu")
