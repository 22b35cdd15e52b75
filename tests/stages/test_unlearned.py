"""A class of which held-out rows alone are left: it cannot be learned, and whoever reads an accuracy is told."""

from __future__ import annotations

import numpy as np

import taftcache
from taftcache.stages.files.vectors.importing import recipe_of_vectors
from tests.stages.making import open_store, recipe, write_images

UNLEARNED = "which cannot be learned"


def test_classes_of_other_sites_are_named_where_the_store_is_made(tmp_path):
    """A site without images of two classes learned of one, from the least in the range of rows per class."""
    rng, file = np.random.default_rng(0), tmp_path / "site.npz"
    names = [f"digit{k}" for k in range(4)]
    np.savez(file, images=rng.integers(0, 256, (30, 8, 8, 3), np.uint8), labels=np.arange(30) % 2, classes=names)
    asked = recipe(tmp_path / "store", data={"source": "npz", "train": str(file), "held_out": 0.2})
    note = f"no row of 2 of 4 classes, {UNLEARNED} here: digit2, digit3"
    assert taftcache.extract(asked).notes.count(note) == 1
    assert taftcache.inspect(tmp_path / "store").notes.count(note) == 1
    assert not any(UNLEARNED in each for each in taftcache.extract(asked).notes)
    x, y = rng.standard_normal((30, 4)), np.arange(30) % 2
    np.savez(tmp_path / "vectors.npz", x=x, y=y, classes=names)
    report = taftcache.import_(tmp_path / "vectors.npz", recipe_of_vectors(tmp_path / "vectors"))
    assert report.notes.count(note) == 1


def test_a_class_that_loses_its_training_rows_alone_is_said_to_be_unlearned(tmp_path):
    images = write_images(tmp_path / "images", per_class=10)
    (images / "2").rename(images / "wasp")
    data = {"source": "folder", "train": str(images), "held_out": 0.3}
    taftcache.run(recipe(tmp_path / "store", data=data))
    with open_store(tmp_path / "store") as store:
        held = [s.sample for s in taftcache.list_samples(store, label="wasp", shard="held-out")]
        trained = [s.sample for s in taftcache.list_samples(store, label="wasp") if s.sample not in held]
        assert held
        assert trained
        assert not any(UNLEARNED in note for note in taftcache.inspect(store).notes)
        taftcache.export_model(store, tmp_path / "before")
        # neither with one training row left nor without any row
        for wish in ({"samples": trained[1:]}, {"classes": ["wasp"]}, {"samples": [*held, *trained]}):
            assert not any(UNLEARNED in note for note in taftcache.forget(store, dry_run=True, **wish).notes)
        said = f"of 1 class, {UNLEARNED}: wasp; {len(held)} held-out rows keep it in the list of classes"
        assert any(f"would be left {said}" in note for note in taftcache.forget(store, trained, dry_run=True).notes)
        report = taftcache.forget(store, trained)
        (note,) = (note for note in report.notes if UNLEARNED in note)
        assert note.startswith(f"no training row is left {said}")
        assert "count in accuracies, and in what probabilities are worth and their temperature;" in note
        assert note.endswith(f"taftcache forget {tmp_path / 'store'} --class wasp")
        assert not any("wasp" in note or UNLEARNED in note for note in taftcache.receipts(store).receipts[0].notes)
        assert f"1 of 3 classes held out without a training row, {UNLEARNED}: wasp" in taftcache.inspect(store).notes
        taftcache.export_model(store, tmp_path / "after")
        taftcache.forget(store, classes=["wasp"])
        taftcache.export_model(store, tmp_path / "without")
    cards = {at: (tmp_path / at / "README.md").read_text(encoding="utf-8") for at in ("before", "after", "without")}
    assert f"- 1 class of these without a training row, {UNLEARNED}: `wasp`\n" in cards["after"]
    assert f"  The accuracy counts {len(held)} held-out rows of such a class.\n" in cards["after"]
    assert not any(UNLEARNED in cards[at] or "such a class" in cards[at] for at in ("before", "without"))
    assert taftcache.audit(tmp_path / "store").findings == []
