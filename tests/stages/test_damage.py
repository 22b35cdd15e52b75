"""Damage and other weights: found, named, and nothing else touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import taftcache
from taftcache.backbone.files import BUNDLED
from taftcache.cache.store import FeatureStore
from taftcache.errors import BackboneError, IdentityError, IntegrityError, StoreWriteError
from taftcache.model.predictor import TangentModel
from taftcache.stages.train.record import beside_notes
from tests.stages.making import open_store, recipe, tree


def chunk_of(path: Path, shard: str, index: int = 1) -> Path:
    with FeatureStore(path) as store:
        (ref,) = (ref for ref in store.manifest.shards if ref.name == shard)
    return path / ref.path / "tokens" / f"c.{index}.0.0"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("shard", ["000", "held-out"])
def test_verify_names_a_flipped_bit(store, shard):
    assert taftcache.verify(store).faults == []
    flip(chunk_of(store, shard))
    (fault,) = taftcache.verify(store).faults
    assert (fault.shard, fault.array, fault.chunk) == (shard, "tokens", 1)


@pytest.mark.parametrize("name", ["base/tail", "components/000", "models/mean"])
def test_damaged_objects(store, name):
    with FeatureStore(store) as opened:
        flip(store / opened.objects()[name].path)
    (fault,) = taftcache.verify(store).faults
    assert name in fault.file
    with FeatureStore(store) as opened, pytest.raises(IntegrityError, match=name) as caught:
        taftcache.evaluate(opened)
    cure = "mend it" if name == "base/tail" else "drop it, to make it again"
    assert caught.value.do == f"{cure} (taftcache verify STORE --repair), or restore the file from a copy"


@pytest.mark.parametrize("harm", [flip, lambda file: file.write_bytes(file.read_bytes()[:-5]), Path.unlink])
@pytest.mark.parametrize("use", ["train", "forget"])
def test_damaged_rows_end_a_stage_and_change_nothing(store, harm, use):
    with open_store(store) as opened, opened.transaction() as change:
        change.drop("components/000")
        sample = opened.shard("000").sample_ids[0]
    harm(chunk_of(store, "000"))
    before = tree(store)
    with open_store(store) as opened, pytest.raises(IntegrityError, match="shard 000, array tokens, chunk 1") as caught:
        taftcache.train(opened) if use == "train" else taftcache.forget(opened, [sample])
    assert "taftcache verify STORE --repair" in caught.value.do
    assert tree(store) == before


@pytest.fixture
def weights(tmp_path) -> Path:
    """A folder of weights in timm's layout: the bundled ones."""
    return shutil.copytree(BUNDLED, tmp_path / "weights")


def other_weights(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["blocks.0.attn.proj.bias"] = state["blocks.0.attn.proj.bias"] + 0.5
    save_file(state, folder / "model.safetensors")


def test_other_weights_in_the_same_place(weights, tmp_path):
    settings = {"backbone": {"weights": str(weights)}}
    path = tmp_path / "store"
    taftcache.run(recipe(path, **settings))
    before = tree(path)
    other_weights(weights)
    with pytest.raises(IdentityError, match="weights") as caught:
        taftcache.run(recipe(path, **settings))
    assert "digest" in caught.value.got
    with pytest.raises(IdentityError, match="digest") as caught:
        TangentModel.load(path, "models/mean", "cpu")
    assert f"opened was {weights / 'model.safetensors'}" in caught.value.got
    assert "--weights FILE" in caught.value.do
    assert tree(path) == before


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"backbone": {"model_args": {"qkv_bias": True}}}, "backbone.model_args"),
        ({"preprocess": {"interpolation": "nearest"}}, "preprocess.interpolation"),
        ({"store": {"shards": 3}}, "store.shards"),
        ({"store": {"seed": 1}}, "store.seed"),
        ({"store": {"dtype": "float32"}}, "store.dtype"),
        ({"data": {"source": "digits", "limit": 61}}, "data.limit"),
    ],
)
def test_other_settings(store, sections, named):
    before = tree(store)
    with pytest.raises(IdentityError, match=named) as caught:
        taftcache.run(recipe(store, **sections))
    assert "store.path" in caught.value.do
    assert tree(store) == before


@pytest.mark.parametrize("what", ["weights", "version"])
def test_half_extracted_store_is_not_filled_from_something_else(weights, tmp_path, monkeypatch, what):
    settings = {"backbone": {"weights": str(weights)}}
    path = tmp_path / "store"
    taftcache.extract(recipe(path, **settings))
    with open_store(path) as opened, opened.transaction() as change:
        change.drop_shard("001")
    if what == "weights":
        other_weights(weights)
    else:
        monkeypatch.setattr("taftcache.stages.extract.frozen.version", lambda library: "0.0.1")
    before = tree(path)
    with pytest.raises(IdentityError):
        taftcache.extract(recipe(path, **settings))
    assert tree(path) == before


@pytest.mark.parametrize("harm", ["missing", "not safetensors", "other shapes"])
def test_weights_that_cannot_be_used_make_no_store(weights, tmp_path, harm):
    file = weights / "model.safetensors"
    if harm == "missing":
        file.unlink()
    elif harm == "not safetensors":
        file.write_text("pickle")
    else:
        config = json.loads((weights / "config.json").read_text(encoding="utf-8"))
        config["model_args"]["embed_dim"] = 48
        (weights / "config.json").write_text(json.dumps(config))
    path = tmp_path / "store"
    with pytest.raises(BackboneError):
        taftcache.extract(recipe(path, backbone={"weights": str(weights)}))
    assert not path.exists()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("keeps", "file"),
    [
        (taftcache.train, "components/000-*"),
        (taftcache.train, "shards/000-*/tokens/c.*"),
        (taftcache.train, "shards/000-*/sample_id/c.0"),
        (taftcache.compose, "components/000-*"),
        (taftcache.compose, "models/mean-*"),
        (lambda path: taftcache.extract(recipe(path)), "shards/held-out-*/tokens/c.*"),
        (lambda path: taftcache.extract(recipe(path)), "base/*"),
    ],
)
def test_whatever_keeps_something_notices_that_it_is_gone(finished, tmp_path, keeps, file):
    path = tmp_path / "store"
    shutil.copytree(finished, path)
    before = FeatureStore(path).root_digest
    one = next(iter(path.glob(file)))
    one.write_bytes(one.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="declares"):
        keeps(path)
    one.unlink()
    with pytest.raises(IntegrityError, match="it is missing"):
        keeps(path)
    assert FeatureStore(path).root_digest == before


def test_a_note_on_the_tombstones_says_why_they_are_not_written(finished, tmp_path, monkeypatch):
    """What could not be written beside the store is told with the system's reason, and leaves no part."""
    path = tmp_path / "store"
    shutil.copytree(finished, path)

    def full(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with FeatureStore(path, mode="a") as store:
        store.tombstone_file.consider(b"k" * 32, ["1" * 64])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StoreWriteError):
                store.tombstone_file.save()
        (note,) = beside_notes(store)
        assert "no space left on the disk; free some space on that disk; the next command" in note
        assert [*tmp_path.iterdir()] == [path]
        store.tombstone_file.save()
        assert beside_notes(store) == []
