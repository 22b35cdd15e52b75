"""Rows of an extraction that was stopped: forgotten as committed ones are, and known to the audit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cache.write import commit
from taftcache.cache.write.writer import ShardWriter
from taftcache.errors import DataError, UnknownSample
from tests.stages.making import open_store, recipe

NEW = [f"new/{k}" for k in range(8)]


def stage(path: Path) -> None:
    """A chunk of a further shard that is not committed."""
    with open_store(path) as store:
        old = store.shard("000")
        with store.writer("002", "train", chunk_rows=8, tokens_shape=old.tokens_shape, candidates=NEW) as writer:
            writer.append(old.tokens(slice(0, 8)), NEW, np.zeros(8, np.int32))
    assert FeatureStore(path).staged_ids() == {"002": NEW}


def traces(path: Path, text: str) -> list[str]:
    return [str(file) for file in path.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


@pytest.mark.law("A sample of an unfinished extraction can be forgotten, and does not come back when it goes on")
def test_a_staged_sample_is_forgotten(store, monkeypatch):
    stage(store)
    assert ["8 samples" in note for note in taftcache.audit(store).notes] == [True]
    assert traces(store, "new/3")
    with open_store(store) as opened:
        with pytest.raises(UnknownSample):
            taftcache.forget(opened, ["new/9"])
        planned = taftcache.forget(opened, ["new/3"], dry_run=True)
        assert (planned.forgotten, planned.renewed, opened.staged_ids()) == (["new/3"], [], {"002": NEW})
        with monkeypatch.context() as killed:
            killed.setattr(commit, "sweep", lambda *args: [])  # as if it ended right after the commit
            report = taftcache.forget(opened, ["new/3", opened.shard("000").sample_ids[0]])
        assert set(report.renewed) == {"components/000", "models/head", "models/mean"}
    found = taftcache.audit(store).findings
    assert {finding.kind for finding in found} == {"staged row", "leftover file", "unfinished work"}
    with open_store(store) as opened:
        assert opened.staged_ids() == {}
        assert taftcache.forget(opened, ["new/3"]).already == ["new/3"]
        assert opened.ledger()[-1]["samples"] == 2
        shape = opened.shard("000").tokens_shape
        with (
            opened.writer("002", "train", chunk_rows=8, tokens_shape=shape, candidates=["new/3"]) as writer,
            pytest.raises(DataError, match="forgotten"),
        ):
            writer.append(np.zeros((1, *shape), np.float16), ["new/3"], np.zeros(1, np.int32))
        shutil.rmtree(store / "staging")
    assert traces(store, "new/3") == []
    assert taftcache.audit(store).findings == []


def test_before_anything_was_committed(tmp_path, monkeypatch):
    """The first shard's extraction is stopped before its commit; the sample stays out when it goes on."""
    made = recipe(tmp_path / "store", data={"source": "digits", "limit": 30})

    def stop(self: ShardWriter, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(ShardWriter, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            taftcache.extract(made)
    with open_store(made.store_path) as store:
        assert store.shards == []
        staged = [i for ids in store.staged_ids().values() for i in ids]
        assert taftcache.forget(store, staged[:1]).forgotten == staged[:1]
        assert store.staged_ids() == {}
    taftcache.extract(made)
    with FeatureStore(made.store_path) as store:
        assert staged[0] not in store.sample_ids()
        assert staged[1] in [*store.sample_ids(), *(store.held_out.sample_ids if store.held_out else [])]
    assert traces(made.store_path, staged[0]) == []
    assert taftcache.audit(made.store_path).findings == []


def stopped(tmp_path: Path, monkeypatch, after: int):
    """The recipe of an extraction that was stopped at the commit of the shard that follows the first ``after``."""
    made, commits, real = recipe(tmp_path / "store"), [], ShardWriter.commit

    def stop(self: ShardWriter, **options: object) -> None:
        if len(commits) == after:
            raise KeyboardInterrupt
        commits.append(self.name)
        real(self, **options)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(ShardWriter, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            taftcache.extract(made)
    return made


@pytest.mark.law("A sample of an unfinished extraction can be forgotten, and does not come back when it goes on")
@pytest.mark.parametrize("after", [0, 1], ids=["nothing committed", "one shard committed"])
def test_a_class_is_forgotten_of_an_unfinished_extraction(tmp_path, monkeypatch, after):
    made = stopped(tmp_path, monkeypatch, after)
    with open_store(made.store_path) as store:
        ((_, rows),) = store.staged_rows().items()
        of_class = [i for i, label in rows.items() if store.classes[label] == "3"]
        report = taftcache.forget(store, classes=["3"])
        assert set(of_class) <= set(report.forgotten)
        assert (report.classes, "3" in store.classes, store.staged_ids()) == (["3"], False, {})
    assert taftcache.audit(made.store_path).findings == []
    taftcache.extract(made)
    with FeatureStore(made.store_path) as store:
        assert len(store.manifest.shards) == 3
        assert "3" not in store.classes
        assert not set(of_class) & set(store.sample_ids())
    assert [traces(made.store_path, i) for i in of_class] == [[]] * len(of_class)
    assert taftcache.audit(made.store_path).findings == []


@pytest.mark.law("A sample of an unfinished extraction can be forgotten, and does not come back when it goes on")
def test_a_shard_is_forgotten_of_an_unfinished_extraction(tmp_path, monkeypatch):
    made = stopped(tmp_path, monkeypatch, 1)
    with open_store(made.store_path) as store:
        (ids,) = store.staged_ids().values()
        report = taftcache.forget(store, shards=["001"])
        assert (report.forgotten, report.renewed, store.staged_ids()) == (ids, [], {})
    taftcache.extract(made)
    with FeatureStore(made.store_path) as store:
        assert not set(ids) & set(store.sample_ids())
    assert [traces(made.store_path, i) for i in ids] == [[]] * len(ids)
    assert taftcache.audit(made.store_path).findings == []


def test_unfinished_work_of_another_list_of_classes_goes(store):
    """Its labels would be read by the new list."""
    stage(store)
    with open_store(store) as opened:
        gone = taftcache.forget(opened, classes=[opened.classes[-1]]).classes
        assert gone
        assert opened.staged_ids() == {}


def test_images_of_a_forgotten_class_are_not_appended(tmp_path, images):
    folder = shutil.copytree(images, tmp_path / "images")
    made = recipe(tmp_path / "store", data={"source": "folder", "train": str(folder)})
    taftcache.extract(made)
    with open_store(tmp_path / "store") as opened:
        taftcache.forget(opened, classes=["1"])
    for name in ("0", "1"):
        shutil.copy(next((folder / name).glob("*.png")), folder / name / "more.png")
    assert taftcache.append(made).images == 1
