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
        with store.writer("002", "train", chunk_rows=8, tokens_shape=old.tokens_shape) as writer:
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
    assert {finding.kind for finding in found} == {"staged row", "leftover file"}
    with open_store(store) as opened:
        assert opened.staged_ids() == {}
        assert taftcache.forget(opened, ["new/3"]).already == ["new/3"]
        assert opened.ledger()[-1]["samples"] == 2
        shape = opened.shard("000").tokens_shape
        with (
            opened.writer("002", "train", chunk_rows=8, tokens_shape=shape) as writer,
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
