"""A model that was made from other settings or members than a store has now is named wherever it is used."""

from __future__ import annotations

import shutil

import pytest

import taftcache
from taftcache.errors import CompositionError
from taftcache.terminal.pipeline import show_predict
from tests.stages.making import open_store, recipe, settings, write_images


@pytest.mark.law("What a training leaves behind of other settings is named where it is used")
def test_one_shard_under_other_settings_leaves_the_rest_outdated(exact, tmp_path, capsys):
    """``predict`` answered from the exact model of the settings before, and only ``audit`` said so."""
    image = next(iter(sorted(write_images(tmp_path / "images").rglob("*.png"))))
    with open_store(exact) as store:
        assert taftcache.predict(store, [image]).notes == []
        assert taftcache.evaluate(store).notes == []
        asked = recipe(exact, objective={"ridge": 0.5})
        report = taftcache.train(store, asked, shards=["000"])
        assert report.trained == ["components/000", "models/head"]
        (note,) = [note for note in report.notes if "not made from the rows and settings" in note]
        assert "components/001" in note
        assert "models/exact, models/mean; next: taftcache train" in note
        assert note in taftcache.evaluate(store).notes
        told = taftcache.predict(store, [image])
        assert told.model == "models/exact"
        assert told.notes == [
            "not made from the rows and settings that the store has now: models/exact; next: taftcache train"
        ]
        exported = taftcache.export_model(store, tmp_path / "model")
        assert (exported.model, exported.notes) == (told.model, told.notes)
        show_predict(told)
        assert "next: taftcache train" in " ".join(capsys.readouterr().out.split())
        assert taftcache.predict(store, [image], model="models/head").notes == []
        (note,) = taftcache.compose(store).notes
        assert note.startswith("composed as they are, though not made from the rows and settings")
        assert note.endswith(": components/001; next: taftcache train")
        assert not any("not made from" in note for note in taftcache.train(store).notes)
        assert "models/mean; next: taftcache compose" in taftcache.predict(store, [image]).notes[0]
        assert taftcache.compose(store).notes == []
        assert taftcache.evaluate(store).notes == []


@pytest.mark.parametrize("new_shard", [False, True])
def test_further_rows_leave_every_sum_outdated(images, tmp_path, new_shard):
    """The hint named ``compose``, which averaged components of the rows from before, or refused for want of one."""
    source = shutil.copytree(images, tmp_path / "images")
    asked = recipe(tmp_path / "store", data={"source": "folder", "train": str(source)})
    taftcache.run(asked)
    for k in range(6):
        shutil.copy(sorted((source / "0").iterdir())[0], source / "1" / f"new{k}.png")
    added = taftcache.append(asked, new_shard=new_shard).added
    with open_store(tmp_path / "store") as store:
        (note,) = taftcache.predict(store, [source / "1" / "new0.png"], model="models/mean").notes
        assert note.endswith(": models/mean; next: taftcache train")
        if new_shard:
            with pytest.raises(CompositionError, match="1 shard without a component"):
                taftcache.compose(store)
        else:
            stale = ", ".join(f"components/{name}" for name in added if name != "held-out")
            assert [n.endswith(f": {stale}; next: taftcache train") for n in taftcache.compose(store).notes] == [True]
        taftcache.train(store)
        assert taftcache.compose(store).notes == []
        assert not any("not made from" in note for note in taftcache.evaluate(store).notes)


def test_a_private_component_trained_anew_leaves_its_mean_outdated(finished, tmp_path):
    with open_store(shutil.copytree(finished, tmp_path / "store")) as store:
        taftcache.train_private(store, settings(store, epsilon=2.0, budget=8.0))
        taftcache.compose(store)
        again = taftcache.train_private(store, settings(store, epsilon=3.0, budget=8.0), shards=["000"])
        assert again.trained
        assert any("models/mean; next: taftcache compose" in note for note in again.notes)
        taftcache.compose(store)
        assert not any("not made from" in note for note in taftcache.evaluate(store).notes)


def test_nothing_is_said_of_a_store_as_training_left_it(exact, private):
    for path in (exact, private):
        with open_store(path) as store:
            assert not any("not made from" in note for note in taftcache.evaluate(store).notes)
