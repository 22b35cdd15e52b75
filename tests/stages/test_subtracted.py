"""What a store says of shards that were subtracted, and of a model that lacks a shard, in the commands that follow."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import taftcache
from taftcache.cli import app
from taftcache.errors import StoreError
from taftcache.names import is_model
from taftcache.stages.look.inside.shards import inspect_shard
from tests.stages.making import deltas, open_store

D = 5
SMALL = ["store.shards=3", "data.held_out=0.2", "device=cpu"]


def vectors(n: int, seed: int) -> tuple[np.ndarray, list[int], list[str]]:
    """Rows [n, d] of three classes, with labels and ids."""
    rows = np.random.default_rng(seed).standard_normal((n, D)) + 3.0 * np.eye(D)[np.arange(n) % 3]
    return rows.astype(np.float32), [k % 3 for k in range(n)], [f"{seed}/{k}" for k in range(n)]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Three shards with a mean and an exact model. Not to be written to."""
    path = tmp_path_factory.mktemp("vectors") / "store"
    x, y, ids = vectors(90, 0)
    taftcache.import_vectors(x, y, path, ids=ids, overrides=SMALL)
    finish(path)
    return path


@pytest.fixture
def path(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "store")


def finish(path: Path) -> None:
    taftcache.train(path)
    taftcache.compose(path)


def first(path: Path, shard: str) -> str:
    with taftcache.FeatureStore(path) as store:
        return store.shard(shard).sample_ids[0]


def models(path: Path) -> set[str]:
    with taftcache.FeatureStore(path) as store:
        return {name for name in store.objects() if is_model(name)}


def said(path: Path, *names: str) -> str:
    """The note on these subtracted shards."""
    with taftcache.FeatureStore(path) as store:
        rows = sum(store.shard(name).rows for name in names)
    again = " ".join(f"--shard {name}" for name in names)
    return (
        f"subtracted, and so left out of models/mean: {', '.join(names)} (rows: {rows}); "
        f"to have them in it: taftcache train {path} {again}, then taftcache compose {path}"
    )


def test_what_was_subtracted_is_said_until_it_is_back(path):
    """A store said that all was current, and Nothing to do, with most of its rows in no model."""
    x, y, ids = vectors(90, 1)
    planned = taftcache.forget(path, [first(path, "000")], mode="subtract", dry_run=True).notes
    assert taftcache.forget(path, [first(path, "000")], mode="subtract").notes == planned == [said(path, "000")]
    taftcache.forget(path, [first(path, "001")], mode="subtract")
    note = said(path, "000", "001")
    for stage in ("train", "evaluate", "inspect", "audit"):
        assert note in getattr(taftcache, stage)(path).notes, stage
    assert inspect_shard(path, "000").notes == [said(path, "000")]
    assert inspect_shard(path, "002").notes == []
    assert CliRunner().invoke(app, ["train", str(path)]).stdout.count("left out of models/mean") == 1
    report = taftcache.forget(path, [first(path, "000")])
    assert (report.mode, report.shards, "components/000" in report.renewed) == ("retrain", ["000"], False)
    assert said(path, "000", "001") in report.notes
    planned = taftcache.append_vectors(x, y, path, ids=ids, dry_run=True)
    added = taftcache.append_vectors(x, y, path, ids=ids)
    assert {"000", "001"} <= added.added.keys()
    assert said(path, "000", "001") in added.notes
    assert added.notes == planned.notes
    with open_store(path) as store:
        taftcache.train(store, shards=["000", "001"])
        taftcache.compose(store)
    assert not [note for note in taftcache.inspect(path).notes if "left out" in note]


def test_rows_that_go_elsewhere_say_nothing_of_what_was_subtracted(path):
    taftcache.forget(path, [first(path, "000")], mode="subtract")
    x, y, ids = vectors(20, 1)
    assert taftcache.append_vectors(x, y, path, ids=ids, new_shard=True).notes == []


@pytest.mark.parametrize("mode", ["retrain", "subtract"])
def test_a_mean_that_waits_for_a_shard_is_renewed_over_what_it_was_made_of(path, mode):
    """It was destroyed, and with it the only model that predict took, though the row was in none of its members: made
    again over the same ones, it has the bytes that it had."""
    taftcache.forget(path, [first(path, "002")], mode="subtract")
    x, y, ids = vectors(20, 1)
    taftcache.append_vectors(x, y, path, ids=ids, new_shard=True)
    report = taftcache.forget(path, [first(path, "002")])
    assert (report.renewed, report.destroyed) == ([], [])
    assert taftcache.predict(path, x[:2]).model == "models/mean"
    report = taftcache.forget(path, [first(path, "001")], mode=mode)
    assert "models/mean" in report.renewed
    assert taftcache.predict(path, x[:2]).model == "models/mean"
    audit = taftcache.audit(path)
    assert audit.findings == []
    assert any(note.startswith("not trained yet on the rows that were added: models/mean") for note in audit.notes)
    finish(path)
    assert taftcache.audit(path).findings == []


def test_the_mean_is_the_same_whether_a_row_leaves_before_a_shard_comes_or_after(path, tmp_path):
    before, gone = shutil.copytree(path, tmp_path / "before"), first(path, "001")
    x, y, ids = vectors(20, 1)
    taftcache.forget(before, [gone])
    for store in (path, before):
        taftcache.append_vectors(x, y, store, ids=ids, new_shard=True)
    taftcache.forget(path, [gone])
    assert deltas(path)["models/mean"].equal(deltas(before)["models/mean"])


def test_what_takes_the_last_model_says_so_and_how_to_have_one(path):
    x, y, ids = vectors(20, 1)
    taftcache.append_vectors(x, y, path, ids=ids, new_shard=True)
    with open_store(path) as store:
        samples = [store.shard(name).sample_ids[0] for name in ("000", "001", "002")]
        left = f"no model would be left; next: taftcache train {path}"
        assert left in taftcache.forget(store, samples, mode="subtract", dry_run=True).notes
        report = taftcache.forget(store, samples, mode="subtract")
        assert left.replace("would be", "is") in report.notes
    finish(path)
    assert models(path) == {"components/003", "models/mean"}
    with open_store(path) as store, store.transaction() as change:
        change.drop("models/mean")
    with pytest.raises(StoreError, match="no model named models/mean") as caught:
        taftcache.predict(path, x[:1])
    assert caught.value.do == "taftcache train, which makes it, or one of components/003"
    with open_store(path) as store, store.transaction() as change:
        change.drop("components/003")
    with pytest.raises(StoreError, match=r"no model in .* yet") as caught:
        taftcache.predict(path, x[:1])
    assert caught.value.got is None, "nobody named a model"
