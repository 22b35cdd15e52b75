"""Exported features come back as they were; features from elsewhere can be trained on."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

import taftcache
from taftcache.backbone.files import file_digest
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, IdentityError, StoreError
from tests.stages.making import recipe, tree


@pytest.fixture
def file(finished, tmp_path):
    report = taftcache.export(finished, tmp_path / "f.h5")
    assert (report.rows, report.format, report.bytes) == (60, "hdf5", (tmp_path / "f.h5").stat().st_size)
    return tmp_path / "f.h5"


def test_an_export_comes_back_and_trains_to_the_same_bytes(file, finished, tmp_path):
    report = taftcache.import_(file, recipe(tmp_path / "back"))
    assert (report.exported, report.trainable) == (True, True)
    with FeatureStore(tmp_path / "back", mode="a") as store:
        taftcache.train(store)
        taftcache.compose(store)
    there, back = tree(finished), tree(tmp_path / "back")
    names = [json.loads(each.pop("manifest.json")) for each in (there, back)]
    assert there == back
    assert names[1]["plan"] == {**names[0]["plan"], "from_export": True}
    assert {key for key in names[0] if names[0][key] != names[1][key]} == {"digest", "plan"}


def others(finished, file, **changes) -> None:
    """The rows of a store as another tool might have left them: one table, classes as texts, float32."""
    with FeatureStore(finished) as store, h5py.File(file, "w") as out:
        parts = [*store.shards, store.held_out]
        rows = {
            "feats": np.concatenate([p.tokens(slice(None)) for p in parts]).astype(np.float32),
            "y": np.array([store.classes[k] for p in parts for k in p.labels], dtype=h5py.string_dtype()),
            "names": np.array([i for p in parts for i in p.sample_ids], dtype=h5py.string_dtype()),
            "classes": np.array(store.classes, dtype=h5py.string_dtype()),
        } | changes
        for name, value in rows.items():
            out[name] = value


def columns():
    from taftcache.cache.columns import Columns

    return Columns("feats", "y", "names", "classes")


def test_features_from_elsewhere_train_as_the_stores_own(finished, tmp_path):
    """With the backbone's tail, the same rows and plan give the same shards and the same components' numbers."""
    others(finished, tmp_path / "o.h5")
    asked = recipe(tmp_path / "new")
    report = taftcache.import_(tmp_path / "o.h5", asked, columns=columns(), backbone=True)
    assert (report.exported, report.trainable) == (False, True)
    root = report.root_digest
    assert taftcache.import_(tmp_path / "o.h5", asked, columns=columns(), backbone=True).root_digest == root
    with FeatureStore(finished) as theirs, FeatureStore(tmp_path / "new", mode="a") as store:
        assert [s.digest for s in store.shards] == [s.digest for s in theirs.shards]
        assert store.manifest.plan == theirs.manifest.plan
        assert store.manifest.recipe.keys() == theirs.manifest.recipe.keys()
        assert taftcache.train(store).trained == ["components/000", "components/001", "models/head"]
        taftcache.compose(store)
        assert taftcache.evaluate(store).accuracy == taftcache.evaluate(theirs).accuracy
        taftcache.forget(store, [store.shards[0].sample_ids[0]])
        assert taftcache.inspect(store).rows > 0
    with pytest.raises(IdentityError, match="imported from"):
        taftcache.extract(asked)
    victim = next(f for f in tree(tmp_path / "new") if "/tokens/c.0" in f)
    (tmp_path / "new" / victim).write_bytes(b"x")
    assert len(taftcache.verify(tmp_path / "new", repair=True).faults) == 1


def test_rows_alone_are_a_store_that_is_not_trained(finished, tmp_path):
    others(finished, tmp_path / "o.h5")
    report = taftcache.import_(tmp_path / "o.h5", recipe(tmp_path / "new"), columns=columns())
    assert not report.trainable
    left = file_digest(tmp_path / "o.h5").encode()  # would be of rows that are forgotten later, too
    assert [name for name, data in tree(tmp_path / "new").items() if left in data] == []
    assert taftcache.verify(tmp_path / "new").faults == []
    with FeatureStore(tmp_path / "new", mode="a") as store:
        with pytest.raises(StoreError, match="base"):
            taftcache.train(store)
        sample = store.sample_ids()[0]
        assert taftcache.forget(store, [sample]).forgotten == [sample]
        assert taftcache.forget(store, classes=[store.classes[0]]).classes
    report = taftcache.audit(tmp_path / "new")
    assert (report.findings, report.receipts) == ([], 2)


def test_bad_rows_are_refused_by_name(finished, tmp_path):
    with FeatureStore(finished) as store:
        shape = (3, *store.shards[0].tokens_shape)
    three = {
        "y": np.array(["0", "1", "1"], dtype=h5py.string_dtype()),
        "names": np.array(["good", "bad", "fine"], dtype=h5py.string_dtype()),
    }
    for n, (value, says) in enumerate([(np.nan, "'bad': NaN"), (1e6, "'bad': .* overflows float16")]):
        rows = np.ones(shape)
        rows[1, 0, 0] = value
        others(finished, tmp_path / "o.h5", feats=rows, **three)
        with pytest.raises(DataError, match=says):
            taftcache.import_(
                tmp_path / "o.h5",
                recipe(tmp_path / f"new{n}", store={"shards": 1}, data={"source": "digits", "held_out": 0.0}),
                columns=columns(),
            )
    others(finished, tmp_path / "o.h5", feats=np.ones((3, 2, 5)), **three)
    with pytest.raises(DataError, match="would have cached"):
        taftcache.import_(
            tmp_path / "o.h5", recipe(tmp_path / "other", store={"shards": 1}), columns=columns(), backbone=True
        )
