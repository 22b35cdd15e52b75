"""What a ledger keeps of states and models from before: nothing by which a guess at a forgotten row could be proven."""

from __future__ import annotations

from math import log2
from pathlib import Path

import pytest
import torch

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.paper.fits import Fits
from taftcache.stages.certificates import RenewedCertificate
from taftcache.stages.forget.receipts import Proof
from taftcache.terminal.forgetting import show_receipts
from tests.stages.making import certificate, open_store, tree


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


@pytest.mark.law("A receipt keeps bounds that are true, and no figure by which what left could be picked out")
@pytest.mark.parametrize("mode", ["retrain", "resolve"])
def test_no_figure_of_a_model_is_left_to_all_digits(exact, mode):
    with open_store(exact) as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[0]], mode=mode)
        (entry,) = store.ledger()
        said = taftcache.receipts(store).receipts[0].certificates
    assert said.keys() == report.certificates.keys() > {"models/exact"}
    for name, figures in report.certificates.items():
        assert figures.distance_bound <= said[name].distance_bound < 2 * figures.distance_bound
        assert figures.moved_at_least / 2 < said[name].moved_at_least <= figures.moved_at_least < figures.moved
        assert (said[name].decisive, said[name].ridge) == (figures.decisive, figures.ridge)
        kept = {k: v for k, v in entry["certificates"][name].items() if k != "ridge" and isinstance(v, float)}
        assert kept
        assert all(log2(value).is_integer() for value in kept.values())
        assert "passes" not in entry["certificates"][name]
    assert taftcache.audit(exact).findings == []


def test_bounds_are_rounded_so_that_they_stay_true():
    for exact, up, down in (
        (0.25, 0.25, 0.25),
        (0.3, 0.5, 0.25),
        (3.0, 4.0, 2.0),
        (0.0, 0.0, 0.0),
        (5e-324, 5e-324, 5e-324),
    ):
        bounds = {"relative_gradient": exact, "distance_bound": exact, "moved_at_least": exact}
        said = Proof.of(certificate(RenewedCertificate, **bounds, row_moves=0.0))
        assert (said.relative_gradient, said.distance_bound, said.moved_at_least, said.row_moves) == (up, up, down, 0.0)


def test_a_receipt_of_an_earlier_release_is_read_with_its_figures(exact, capsys):
    with open_store(exact) as store:
        figures = {"relative_gradient": 1e-9, "distance_bound": 3e-5, "moved": 0.7, "moved_at_least": 0.6}
        figures |= {"decisive": True, "ridge": 1e-3, "ridge_before": 1e-4, "row_moves": 0.01, "passes": 9}
        with store.transaction() as change:
            change.record({"event": "forget", "certificates": {"models/exact": figures}, **change.commitment()})
        show_receipts(taftcache.receipts(store))
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "the removal moved it by 7.0e-01, with another λ: the rows that stay chose 1.0e-03, with these 1.0e-04" in told
    )
    assert taftcache.audit(exact).findings == []
