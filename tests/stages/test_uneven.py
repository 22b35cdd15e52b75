"""Classes of very different sizes, and one class alone: an accuracy that says little does not stand alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.names import UNTOUCHED
from taftcache.stages.look.evaluation import _uneven
from taftcache.stages.train.held_out import predicted_of
from taftcache.terminal.forgetting import forgotten_lines
from tests.stages.making import open_store, recipe, write_images

CLASSES = 'class_weights = "balanced"'
ONE = "every image gets it, so accuracy is 100 % whatever the model"
FEWER = "with 1 class fewer to choose from"


def rare(place: Path, digit: int, few: int = 12) -> Path:
    """140 images of a zero in the class "other", and a ``few`` of ``digit`` in "crab"."""
    digits = [sorted(folder.iterdir()) for folder in sorted(write_images(place / "digits", 140 + few, 2).iterdir())]
    for name, files in {"other": digits[0][:140], "crab": digits[digit][140:]}.items():
        (place / "images" / name).mkdir(parents=True)
        for file in files:
            file.rename(place / "images" / name / file.name)
    return place / "images"


@pytest.mark.parametrize(("digit", "found"), [(0, False), (1, True)])  # other zeros cannot be told from zeros
def test_a_rare_class_that_accuracy_hides_is_said(tmp_path, digit, found):
    data = {"source": "folder", "train": str(rare(tmp_path, digit, 20)), "held_out": 0.3}
    taftcache.run(recipe(tmp_path / "store", data=data))
    with open_store(tmp_path / "store") as store:
        report, ids = taftcache.evaluate(store), np.array(store.held_out.sample_ids)
        other = store.held_out.labels == store.classes.index("other")
        right = predicted_of(store, "models/mean", store.held_out) == store.held_out.labels
        (level,) = _uneven(store, store.held_out, {"models/mean": other, "components/000": ~other})
        assert ", no fewer than models/mean; balanced accuracy, the mean over classes: models/mean 50.00 %;" in level
        taftcache.forget(store, ids[~other].tolist())
        of_one = taftcache.evaluate(store)
        shard = store.shards[0]
        weighed = {"objective": {**store.manifest.recipe["objective"], "class_weights": "balanced"}}
        with store.transaction() as change:
            change.update(recipe={**store.manifest.recipe, **weighed})
        assert "next:" not in _uneven(store, shard, {"models/mean": np.zeros(shard.rows, bool)})[0]
    assert report.majority == other.mean() > 0.8
    assert report.balanced["models/mean"] == pytest.approx((right[other].mean() + right[~other].mean()) / 2)
    (note,) = report.notes
    assert note.startswith(f"always naming 'other' is right on {100 * report.majority:.2f} % of held-out rows")
    assert (right.mean() > other.mean()) == found
    assert (", no fewer than models/head, models/mean; " in note) is not found
    assert f"models/mean {100 * report.balanced['models/mean']:.2f} %" in note
    assert note.endswith(f"next: taftcache train {tmp_path / 'store'} --set objective.class_weights=balanced")
    assert of_one.majority == 1.0
    (untold,) = of_one.notes
    assert untold == "1 of 2 classes without a held-out row, of which accuracy and probabilities say nothing: crab"


def test_a_recipe_for_classes_of_very_different_sizes_points_to_their_weights(tmp_path):
    images = rare(tmp_path, 1)

    def drafted(**overrides):
        made = taftcache.init_recipe(images, tmp_path / "a.toml", force=True, overrides=overrides.get("given", ()))
        return made.recipe.read_text(encoding="utf-8")

    assert (
        f"[objective]\n# 140 images of 'other', 12 of 'crab': {CLASSES} gives each class the same weight.\n"
        in drafted()
    )
    assert CLASSES not in drafted(given=["objective.class_weights=none"])
    for file in sorted((images / "other").iterdir())[120:]:
        file.unlink()
    assert CLASSES not in drafted(), "ten times as many, and no more"
    for file in sorted((images / "crab").iterdir())[2:]:
        file.unlink()
    assert CLASSES not in drafted(), "of two images there is nothing to weigh"


def test_an_accuracy_of_one_class_is_no_success(tmp_path):
    data = {"source": "folder", "train": str(write_images(tmp_path / "images")), "held_out": 0.3}
    taftcache.run(recipe(tmp_path / "store", data=data))
    with open_store(tmp_path / "store") as store:
        assert not any("one class" in note or "always" in note for note in taftcache.evaluate(store).notes)
        wrong = np.zeros(store.held_out.rows, bool)
        assert "no fewer than models/mean" in _uneven(store, store.held_out, {"models/mean": wrong})[0]
        assert not _uneven(store, store.held_out, {UNTOUCHED: wrong, "components/000": wrong})
        first = taftcache.forget(store, classes=["2"])
        assert not any(ONE in note for note in first.notes)
        assert not any(FEWER in line for line in forgotten_lines(taftcache.forget(store, ["0/0000.png"])))
        taftcache.export_model(store, tmp_path / "two")
        planned = taftcache.forget(store, classes=["1"], dry_run=True)
        assert f"one class would be left: {ONE}" in planned.notes
        second = taftcache.forget(store, classes=["1"])
        assert f"one class is left: {ONE}" in second.notes
        assert not any(ONE in note for receipt in taftcache.receipts(store).receipts for note in receipt.notes)
        for report in (first, second):
            (line,) = (line for line in forgotten_lines(report) if line.startswith("held-out accuracy"))
            assert line.endswith(FEWER)
        report = taftcache.evaluate(store)
        assert report.notes == [f"there is one class: {ONE}"]
        assert (report.majority, {*report.balanced.values()}) == (1.0, {1.0})
        taftcache.export_model(store, tmp_path / "one")
    two, one = ((tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("two", "one"))
    assert "Top-1 accuracy" in two
    assert "model-index" in two
    assert not any(said in one for said in ("Top-1 accuracy", "model-index", "Probabilities"))
