"""verify --repair on a real store: chunks come back from their images, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import taftcache
from taftcache.cache.store import FeatureStore
from tests.stages.making import tree, write_images


def chunks(path: Path) -> list[str]:
    return [file for file in tree(path) if "/tokens/c." in file]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_chunks_are_extracted_again_alone(store):
    whole = tree(store)
    victims = chunks(store)[::3]
    for file in victims:
        flip(store / file)
    report = taftcache.verify(store, repair=True)
    assert (report.faults, report.dropped, report.strays) == ([], [], [])
    assert sorted(report.mended) == sorted(victims)
    assert tree(store) == whole
    assert taftcache.verify(store, repair=True).mended == {}


def test_a_lost_shard_a_lost_tail_and_lost_ids(store):
    whole = tree(store)
    with FeatureStore(store) as opened:
        shard, other = opened.shards
        tail = opened.objects()["base/tail"].path
    shutil.rmtree(store / shard.at)
    (store / shard.manifest_file).unlink()
    (store / tail).unlink()
    (store / other.at / "sample_id" / "c.0").unlink()
    flip(store / other.at / "tokens" / "c.0.0.0")
    first = taftcache.verify(store, repair=True)
    assert first.faults == []
    assert tree(store) == whole


def test_a_lost_component_is_trained_again_to_its_bytes(store):
    whole = tree(store)
    with FeatureStore(store) as opened:
        for name in ("components/001", "models/mean"):
            flip(store / opened.objects()[name].path)
    report = taftcache.verify(store, repair=True)
    assert report.dropped == ["components/001", "models/mean"]
    with FeatureStore(store, mode="a") as opened:
        taftcache.train(opened)
        taftcache.compose(opened)
    assert tree(store) == whole


def test_other_pixels_are_refused_and_moved_data_is_found(tmp_path, photographed, images):
    path = shutil.copytree(photographed, tmp_path / "store")
    moved = write_images(tmp_path / "elsewhere")
    whole = tree(path)
    with FeatureStore(path) as opened:
        shard = opened.shards[0]
        victims = [f"{shard.at}/tokens/c.{k}.0.0" for k in (0, 1)]
        touched = shard.sample_ids[8]  # a row of the second chunk
    for file in victims:
        flip(path / file)
    picture = moved / touched
    pixels = np.asarray(Image.open(picture)).copy()
    pixels[3, 3] ^= 255
    Image.fromarray(pixels).save(picture)
    report = taftcache.verify(path, repair=True, overrides=[f"data.train={moved}"])
    assert list(report.mended) == victims[:1]
    assert [fault.file for fault in report.faults] == victims[1:]
    assert "nothing was written" in report.reasons[victims[1]]
    picture.unlink()
    report = taftcache.verify(path, repair=True, overrides=[f"data.train={moved}"])
    assert touched in report.reasons[victims[1]]
    assert taftcache.verify(path, repair=True, overrides=[f"data.train={images}"]).faults == []
    assert tree(path) == whole


@pytest.fixture
def later(tmp_path, photographed, images) -> tuple[Path, Path]:
    """A copy of the store, and of its images: since then some came, and a class."""
    path, folder = shutil.copytree(photographed, tmp_path / "store"), shutil.copytree(images, tmp_path / "images")
    for name in ("0", "1", "9"):
        (folder / name).mkdir(exist_ok=True)
        for k in range(3):
            Image.new("RGB", (8, 8), (80 * k, 9, 9)).save(folder / name / f"new{k}.png")
    return path, folder


@pytest.mark.law("A repair gives back the same bytes, or nothing")
def test_labels_come_back_whatever_came_to_the_images_since(later):
    path, folder = later
    whole = tree(path)
    with FeatureStore(path) as store:
        lost = [f"{store.shard(ref.name).at}/labels/c.0" for ref in store.manifest.shards]
        gone = [store.shard("000").sample_ids[3], store.held_out.sample_ids[0]]
    for file in lost:
        flip(path / file)
    for sample in gone:
        (folder / sample).unlink()
    report = taftcache.verify(path, repair=True, overrides=[f"data.train={folder}"])
    assert (report.faults, sorted(report.mended), tree(path)) == ([], sorted(lost), whole)


def test_labels_of_several_classes_that_left_the_images_are_not_guessed(later):
    path, folder = later
    with FeatureStore(path) as store:
        shard = store.shard("000")
        for label in (0, 1):
            (folder / shard.sample_ids[shard.labels.tolist().index(label)]).unlink()
    flip(path / shard.at / "labels" / "c.0")
    before = tree(path)
    report = taftcache.verify(path, repair=True, overrides=[f"data.train={folder}"])
    assert "shard 000 lost labels of 2 rows, whose images left" in report.reasons[report.faults[0].file]
    assert tree(path) == before


@pytest.mark.law("A repair gives back the same bytes, or nothing")
def test_lost_ids_wait_for_the_images_of_the_store_alone(later):
    path, folder = later
    whole = tree(path)
    with FeatureStore(path) as store:
        shard = store.shard("000")
    lost = path / shard.at / "sample_id" / "c.0"
    flip(lost)
    moved = [f"data.train={folder}"]
    report = taftcache.verify(path, repair=True, overrides=moved)
    assert "images that the store does not have were added" in report.reasons[report.faults[0].file]
    (path / shard.manifest_file).unlink()
    report = taftcache.verify(path, repair=True, overrides=moved)
    assert "images that the store does not have were added" in report.reasons[report.faults[0].file]
    for file in folder.glob("[01]/new*"):
        file.unlink()
    assert taftcache.verify(path, repair=True, overrides=moved).faults == []
    assert tree(path) == whole


@pytest.mark.law("A repair gives back the same bytes, or nothing")
def test_a_shard_whose_manifest_is_lost_comes_back_by_the_ids_that_it_states(later):
    path, folder = later
    whole = tree(path)
    with FeatureStore(path) as store:
        shard = store.shard("000")
    (path / shard.manifest_file).unlink()
    flip(path / shard.at / "labels" / "c.0")
    assert taftcache.verify(path, repair=True, overrides=[f"data.train={folder}"]).faults == []
    assert tree(path) == whole


@pytest.mark.parametrize("override", ["data.train=/nowhere/at/all", "backbone.weights=/nowhere/at/all.safetensors"])
def test_without_source_or_backbone_the_store_is_left_as_it_is(tmp_path, photographed, images, override):
    path = shutil.copytree(photographed, tmp_path / "store")
    flip(path / chunks(path)[0])
    before = tree(path)
    report = taftcache.verify(path, repair=True, overrides=[f"data.train={images}", override])
    assert len(report.faults) == 1
    assert "/nowhere/at/all" in report.reasons[report.faults[0].file]
    assert tree(path) == before
