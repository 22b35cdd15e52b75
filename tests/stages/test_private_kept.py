"""What keeps a promise of privacy once its component is gone, and what is said where it ends."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.errors import CompositionError, RecipeError, StoreWriteError
from taftcache.privacy.budget import PLAN
from taftcache.privacy.statement import OF_CHANGES, OF_THE_ID, OF_THE_OTHERS, not_covered
from taftcache.stages.train.private.preparing import prepare
from taftcache.stages.train.record import settings_of
from tests.stages.making import open_store, recipe, settings, write_images


@pytest.mark.law("Rows under a promise of privacy are trained with noise, or not in that store")
@pytest.mark.parametrize("lost", ["converted", "subtracted"])
def test_rows_are_not_trained_without_noise_once_their_component_is_gone(private, tmp_path, lost):
    """A model of all rows could be made, and exported with the store's digest."""
    path = private
    if lost == "converted":
        path = tmp_path / "converted"
        taftcache.convert(private, path, dtype="float32")
    with open_store(path) as store:
        if lost == "subtracted":
            taftcache.forget(store, [store.shard("000").sample_ids[0]], mode="subtract")
        assert "components/000" not in store.objects()
        before = store.root_digest
        with pytest.raises(RecipeError, match="components/000: trained privately"):
            taftcache.train(store, shards=["000"])
        with pytest.raises((RecipeError, CompositionError), match=r"without privacy|train .* --private"):
            taftcache.compose(store, overrides=["compose.mode=exact"])
        assert store.root_digest == before


def test_an_old_copy_is_under_the_promise_that_was_made_since(store, tmp_path):
    """Its plan has none, and its ledger neither; the file beside the store has both."""
    with open_store(store) as opened:  # a ledger, so that the charges are known for this store's own
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]])
    old = shutil.copytree(store, tmp_path / "old")
    with open_store(store) as opened:
        taftcache.train_private(opened, settings(opened))
    shutil.rmtree(store)
    shutil.copytree(old, store)
    with open_store(store) as opened:
        assert PLAN not in opened.manifest.plan
        with pytest.raises(RecipeError, match="trained privately"):
            taftcache.train(opened, overrides=["objective.ridge=0.5"])


def test_an_audit_of_a_private_store_says_that_its_ledger_is_damaged(private):
    entry = sorted((private / "ledger").glob("*.json"))[0]
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data)
    assert any(found.kind == "ledger" for found in taftcache.audit(private).findings)


def test_what_a_row_changes_of_the_others_is_said(tmp_path):
    """A file with one row less numbers the others otherwise, and they come to other shards."""
    rows = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    said = {}
    for name, ids in (("numbered", None), ("named", [f"p{k:03d}" for k in range(40)])):
        overrides = ["store.shards=2", "device=cpu"]
        taftcache.import_vectors(rows, np.arange(40) % 3, tmp_path / name, ids=ids, overrides=overrides)
        for relation in ("add-remove", "replace-one"):
            with FeatureStore(tmp_path / name) as store:
                work = prepare(store, settings_of(store, settings(store, relation=relation, delta=1e-3)), None, [1.0])
            said[name, relation] = any("the ids look like numbers of rows in a file" in note for note in work.notes)
    assert said == {key: key == ("numbered", "add-remove") for key in said}
    assert [lines[-2:] for lines in map(not_covered, ("add-remove", "replace-one"))] == [
        [OF_CHANGES, OF_THE_OTHERS],
        [OF_CHANGES, OF_THE_ID],
    ]


def test_a_limit_of_the_images_is_said(tmp_path):
    """One image less lets another one in."""
    files = write_images(tmp_path / "images", per_class=6)
    asked = recipe(tmp_path / "store", data={"source": "folder", "train": str(files), "limit": 12})
    taftcache.extract(asked)
    with open_store(tmp_path / "store") as store:
        for limit in (12, None):
            notes = prepare(store, settings_of(store, settings(store, relation="add-remove")), None, [1.0]).notes
            assert any("data.limit chose the images" in note for note in notes) == (limit is not None)
            recorded = store.manifest.recipe
            with store.transaction() as change:
                change.update(recipe=recorded | {"data": {**recorded["data"], "limit": None}})


def test_a_budget_that_cannot_be_kept_beside_the_store_is_said(store, monkeypatch):
    """An old copy that was put back could have spent it again, without a word."""

    def refuse(self):
        raise StoreWriteError("no room")

    with open_store(store) as opened:
        for shard, is_said in (("000", False), ("001", True)):
            if is_said:
                monkeypatch.setattr(TombstoneFile, "save", refuse)
            notes = taftcache.train_private(opened, settings(opened), shards=[shard]).notes
            assert any("an old copy of the store" in note for note in notes) == is_said
