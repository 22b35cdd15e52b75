"""What the base point does not cover: a component of other features or classes, and sums of unlike components."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.errors import CompositionError, FormatError
from taftcache.model.component import Component
from taftcache.model.meta import TRAINED_ON
from taftcache.stages.train.trained_on import FEATURES, features_of, other_classes, other_features

DIGITS = [str(k) for k in range(10)]


@pytest.fixture(scope="module")
def whole(finished, tmp_path_factory) -> bytes:
    """A component's file, from a store of images."""
    file = tmp_path_factory.mktemp("exported") / "000.safetensors"
    taftcache.export_component(finished, "000", file)
    return file.read_bytes()


def changed(whole: bytes, to: Path, says: Any) -> Path:
    """The file with ``says`` in place of parts of what its component was trained on."""
    given = Component.decode(whole)
    said = {**given.meta[TRAINED_ON], **says} if isinstance(says, dict) else says
    if isinstance(says, dict) and "features" in says and says["features"] is not None:
        said["features"] = {**given.meta[TRAINED_ON]["features"], **says["features"]}
        said["features"] = {key: value for key, value in said["features"].items() if value is not None}
    meta = {**given.meta, TRAINED_ON: {k: v for k, v in said.items() if v is not None}}
    to.write_bytes(replace(given, meta=meta).encode())
    return to


@pytest.mark.law("A component of other features or classes is refused, in words that say what differs")
@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ({"features": {"preprocess.mean": [0, 0, 0]}}, r"features.*preprocess\.mean: the component has"),
        ({"features": {"cut.start": "blocks.0"}}, r"other tangent\.blocks than.*cut\.start: the component has"),
        ({"features": {"cut.start": "blocks.0", "preprocess.mean": [0, 0, 0]}}, "other features than"),
        ({"features": {"preprocess.interpolation": "nearest"}}, "interpolation: the component has 'nearest', here it"),
        ({"features": {"backbone.weights_digest": "1" * 64, "backbone.file_digest": "2" * 64}},
         "weights_digest: the component has '1111111111111111', here"),
        ({"features": {"backbone.model": "deit", "backbone.weights_digest": "1" * 64, "backbone.file_digest": None}},
         "weights_digest: the component has '1111111111111111', here"),
        ({"features": {"backbone.file_digest": "2" * 64, "backbone.weights_digest": None}}, "file_digest: the compon"),
        ({"features": {"backbone.features": "every block"}}, "features: the component has 'every block', here"),
        ({"features": {"backbone.model_args.num_heads": 1}}, "num_heads: the component has 1, here it is 3"),
        ({"classes": ["emu", *DIGITS[1:]]}, "other classes.*: class 0 is 'emu' there, '0' here$"),
        ({"classes": DIGITS[::-1]}, "class 0 is '9' there, '0' here, and 9 more differ, the same names in an"),
        ({"classes": DIGITS[:9], "class_rows": None}, r"9 classes there, 10 here \('9' only here\)"),
    ],
)  # fmt: skip
def test_a_component_of_other_features_or_classes_is_refused(finished, whole, tmp_path, says, refused):
    """They were imported without a word, and the sum was wrong: the base point has the tail alone, and K."""
    file = changed(whole, tmp_path / "given.safetensors", says)
    root = FeatureStore(finished).root_digest
    with pytest.raises(CompositionError, match=f"(?m){refused}"):
        taftcache.import_component(finished, file, "elsewhere")
    assert FeatureStore(finished).root_digest == root


@pytest.mark.parametrize(
    ("says", "noted"),
    [
        ({}, ""),
        # the same file of weights, whose positions another machine resampled to other bits
        ({"features": {"backbone.weights_digest": "1" * 64}}, ""),
        ({"features": {"backbone.model": "deit"}}, "may differ.*model: the component has 'deit', here it is 'vit_tiny"),
        ({"features": {"backbone.model": None}}, ""),
        ({"features": {"backbone.precision": "bfloat16"}}, "may differ.*precision: the component has 'bfloat16'"),
        ({"features": {"backbone.model_args.act": "relu"}}, "backbone.model_args.act: 'relu' there, not said here"),
        ({"classes": None, "features": None, "objective": None}, "does not say its classes, features, objective"),
        ({"objective": {"loss": "rsl", "alpha": 1.0, "kappa": 5.0}}, "kappa is 15 in 000, 001, 5 in elsewhere; "),
    ],
)  # fmt: skip
def test_what_is_harmless_or_cannot_be_compared_is_a_note(finished, whole, tmp_path, says, noted):
    store = shutil.copytree(finished, tmp_path / "store")
    notes = taftcache.import_component(store, changed(whole, tmp_path / "given.safetensors", says), "elsewhere").notes
    assert notes[-1].startswith("its numbers are those of components/000")
    assert len(notes) == 1 + bool(noted)
    assert not noted or re.search(noted, notes[0])
    again = taftcache.export_component(store, "elsewhere", tmp_path / "again.safetensors").file
    said = Component.decode(again.read_bytes()).meta[TRAINED_ON]
    left = {key for key, value in says.items() if value is None}
    assert said.keys() == {"classes", "features", "objective", "class_rows", "tangent"} - left, (
        "what nobody checked is not passed on"
    )


def test_what_makes_no_sense_is_refused(finished, whole, tmp_path):
    long = {"objective": {"loss": "rsl" * 20}}
    for says in ({"classes": 3}, {"class_rows": [1, 2]}, {"class_rows": [-1, 45, *[0] * 8]}, long):
        with pytest.raises(FormatError, match=r"^cannot import"):
            taftcache.import_component(finished, changed(whole, tmp_path / "given.safetensors", says), "elsewhere")


def test_a_file_says_what_its_component_was_trained_on(finished, whole):
    """And nothing more: no path, no digest of rows."""
    with FeatureStore(finished) as store:
        said, labels = Component.decode(whole).meta[TRAINED_ON], store.shard("000").labels
        assert said["classes"] == store.classes
        assert said["class_rows"] == np.bincount(labels, minlength=10).tolist()
        assert said["objective"] == {"loss": "rsl", "alpha": store_alpha(store), "kappa": 15.0}
        arguments = {key for key in said["features"] if key.startswith("backbone.model_args.")}
        assert "backbone.model_args.num_classes" not in arguments, "of the network's own head, which no feature passes"
        assert set(said["features"]) - arguments == set(FEATURES) - {"imported.scaling"}
        assert other_features(said["features"], features_of(store.identity)) == ([], [])
        assert str(finished) not in json.dumps(said)
    assert other_classes(["a", "b"], ["a", "b"]) == ""


def store_alpha(store: FeatureStore) -> float:
    asked = store.manifest.recipe["objective"]["alpha"]
    return 10**0.5 if asked == "auto" else asked


def test_sums_of_unlike_components_are_noted(tmp_path):
    """Logits of other scales, and a class of which some members have no rows; the sum of a site leaves with both."""
    rng, labels = np.random.default_rng(3), np.arange(60) % 3
    for name, kappa in (("a", 15.0), ("b", 5.0)):
        x = rng.standard_normal((60, 5))
        asked = ["store.shards=1", "objective.ridge=1e-2", f"objective.kappa={kappa}", "data.held_out=0.2"]
        taftcache.import_vectors(x, labels, tmp_path / name, overrides=asked)
        taftcache.train(tmp_path / name)
        taftcache.compose(tmp_path / name)
    file = taftcache.export_component(tmp_path / "b", "models/mean", tmp_path / "b.safetensors").file
    said = Component.decode(file.read_bytes()).meta
    assert sum(said[TRAINED_ON]["class_rows"]) == said["rows"]
    assert said[TRAINED_ON]["objective"]["kappa"] == 5
    scale, vectors = taftcache.import_component(tmp_path / "a", file).notes[::-1]
    assert vectors.startswith("no store knows the model that made its vectors")
    (again,) = taftcache.compose(tmp_path / "a").notes[-1:]
    assert scale == again
    assert "kappa is 15 in 000, 5 in b; the larger logits decide" in scale
    lacking = changed(file.read_bytes(), tmp_path / "c.safetensors", {"class_rows": [said["rows"], 0, 0]})
    taftcache.import_component(tmp_path / "a", lacking)
    (note,) = taftcache.compose(tmp_path / "a").notes[-1:]
    assert note.startswith("class 1, 2: no rows in c; the sum holds such a class down: the model of a member that has")
    assert taftcache.audit(tmp_path / "a").findings == []
