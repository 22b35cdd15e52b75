"""What a ledger keeps of states and models from before: nothing by which a guess at a forgotten row could be proven."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.paper.fits import Fits
from tests.stages.making import open_store, tree


def states(path: Path) -> set[str]:
    """The digests by which a store's present state is known, and those of its shards."""
    with FeatureStore(path) as store:
        return {store.root_digest, store.manifest.content_digest, *(ref.digest for ref in store.manifest.shards)}


@pytest.mark.law("No digest of a state from before a request is left, by which a guess at what was forgotten shows")
def test_no_digest_of_an_earlier_state_is_left(store):
    """Whoever has the rows that stay and a guess at the others could make the state again, and compare."""
    before = states(store)
    with open_store(store) as opened:
        for shard in ("000", "001"):  # what the first receipt says of the content after is of rows that leave later
            taftcache.forget(opened, [opened.shard(shard).sample_ids[0]])
            before |= states(store)
        taftcache.destroy_key(opened)
    left = b"".join(tree(store).values()) + store.with_name(store.name + ".forgotten").read_bytes()
    assert [each for each in before - states(store) if each.encode() in left] == []


@pytest.mark.law("No digest of a state from before a request is left, by which a guess at what was forgotten shows")
def test_what_rested_on_the_digests_is_checked_under_the_key(store, tmp_path):
    with open_store(store) as opened:
        Fits(tmp_path / "models").put({"store": opened.root_digest}, {"mean": torch.zeros(2)}, {})
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]])
    report = taftcache.audit(store, also=[tmp_path / "models"])
    assert [each.problem for each in report.findings] == ["made from the store as it was before ledger/000001"]
    assert report.notes == []
    with open_store(store) as opened, opened.transaction() as change:
        change.drop("models/mean")
    assert "the store has changed since its last receipt" in taftcache.audit(store).notes
    with open_store(store) as opened:
        taftcache.destroy_key(opened)
    report = taftcache.audit(store, also=[tmp_path / "models"])
    assert report.findings == []
    assert ["no receipt here names" in note for note in report.notes if "models" in note] == [True]


def test_receipts_of_earlier_releases_have_the_digests_themselves(store, tmp_path):
    with open_store(store) as opened:
        Fits(tmp_path / "models").put({"store": opened.root_digest}, {"mean": torch.zeros(2)}, {})
        said = {"root_before": opened.root_digest, "content_before": opened.manifest.content_digest}
        with opened.transaction() as change:
            change.drop("models/mean")
            said |= {"content_after": change.content_digest(), **change.commitment()}
            change.record({"event": "forget", "time": "2026-01-01T00:00:00+00:00", "mode": "retrain", **said})
        assert taftcache.receipts(opened).receipts[0].root_before == said["root_before"]
    report = taftcache.audit(store, also=[tmp_path / "models"])
    assert [each.problem for each in report.findings] == ["made from the store as it was before ledger/000001"]
    assert not [note for note in report.notes if "has changed" in note]
