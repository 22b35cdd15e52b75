"""Requests to forget beside private components: what is kept, destroyed and said, and that the audit passes."""

from __future__ import annotations

import shutil
from math import exp

import pytest

import taftcache
from taftcache.model.members import subtracted
from taftcache.names import PRIVATE, at_most, epsilon_text
from taftcache.privacy.budget import EVENT
from taftcache.stages.train.private.records import KEYS
from taftcache.terminal.forgetting import forgotten_lines
from tests.stages.making import open_store, settings


@pytest.mark.law("Forgetting beside private components keeps their promise, says it, and passes the audit")
def test_batches_and_repeats_keep_the_components(private):
    with open_store(private) as store:
        before = {name: store.objects()[name].digest for name in ("components/000", "components/001")}
        gone = [store.shard("000").sample_ids[0], *store.shard("001").sample_ids[:2], store.held_out.sample_ids[0]]
        taftcache.forget(store, gone)
        notes = dict(text.split(": ", 1) for text in store.ledger()[-1]["notes"])
        said = store.objects()["components/001"].meta[PRIVATE]
        epsilon, delta = said["epsilon"], said["delta"]
        assert notes.keys() == {"components/000", "components/001"}
        group = at_most(delta * (1 + exp(epsilon)), ".3g")
        assert f"at most epsilon {epsilon_text(2 * epsilon)} at delta {group} " in notes["components/001"]
        assert "had others in their place" in notes["components/001"]
        assert taftcache.forget(store, gone).forgotten == []
        taftcache.forget(store, [store.shard("000").sample_ids[0]])
        assert {name: store.objects()[name].digest for name in before} == before
        assert not taftcache.compose(store).changed
        assert PRIVATE in store.objects()["models/mean"].meta
    assert taftcache.audit(private).findings == []


def test_a_subtracted_shard_takes_its_component_along_and_its_budget_stays_spent(private):
    with open_store(private) as store:
        report = taftcache.forget(store, [store.shard("000").sample_ids[0]], mode="subtract")
        assert "components/000" in report.destroyed
        assert any(n.startswith("components/000: destroyed") for n in report.notes)
        assert subtracted(store) == ["000"]
        assert store.objects()["models/mean"].meta[PRIVATE]["composition"] == "parallel, over 1 disjoint shards"
        assert len([e for e in store.ledger() if e.get("event") == EVENT]) == 2
    assert taftcache.audit(private).findings == []


@pytest.mark.law("Forgetting beside private components keeps their promise, says it, and passes the audit")
def test_a_class_takes_private_components_along(private):
    with open_store(private) as store:
        report = taftcache.forget(store, classes=[store.classes[0]])
        assert {"components/000", "components/001"} <= set(report.destroyed)
        assert report.renewed == []
        closed, *spent, left = report.notes
        assert "1 class without a row left" in closed
        assert left == f"no model is left; next: taftcache train {private} --private"
        assert len(spent) == 2
        assert all("budget stays spent" in note for note in spent)
    assert taftcache.audit(private).findings == []


def test_a_class_without_rows_takes_private_and_imported_components_along(store, tmp_path):
    """They stayed, around another base point, with what their keys stand for."""
    path = store
    with open_store(path) as store:
        with store.transaction() as change:
            for shard in store.every_shard:
                rows = zip(shard.sample_ids, shard.labels, strict=True)
                change.correct(shard.name, {i: 1 for i, label in rows if label == 0})
        taftcache.train_private(store, settings(store))
        taftcache.export_component(store, "000", tmp_path / "000.safetensors")
        taftcache.import_component(store, tmp_path / "000.safetensors", "elsewhere")
        taftcache.compose(store)
        planned = taftcache.forget(store, classes=[store.classes[0]], dry_run=True)
        report = taftcache.forget(store, classes=[store.classes[0]])
        there = {"components/000", "components/001", "components/elsewhere", "models/mean"}
        assert {*planned.destroyed} == {*report.destroyed} == there
        assert report.forgotten == []
        assert KEYS not in store.objects()
    assert taftcache.audit(path).findings == []


def test_plain_components_beside_private_ones_are_solved_again(store):
    path = store
    with open_store(path) as store:
        taftcache.train_private(store, settings(store), shards=["000"])
        taftcache.train(store, shards=["001"])
        taftcache.compose(store)
        gone = [store.shard(name).sample_ids[0] for name in ("000", "001")]
        report = taftcache.forget(store, gone)
        assert set(report.renewed) == {"components/001", "models/mean"}
        assert PRIVATE not in store.objects()["models/mean"].meta
    assert taftcache.audit(path).findings == []


def test_an_old_copy_put_back_forgets_again(private, tmp_path):
    backup = shutil.copytree(private, tmp_path / "backup")
    with open_store(private) as store:
        sample = store.shard("000").sample_ids[0]
        taftcache.forget(store, [sample])
    shutil.rmtree(private)
    shutil.move(backup, private)
    assert "returned rows" in {finding.kind for finding in taftcache.audit(private).findings}
    report = taftcache.audit(private, replay=True)
    assert (report.replayed, report.findings) == (1, [])


@pytest.mark.parametrize("what", ["sample", "class"])
def test_a_dry_run_says_what_becomes_of_private_components(private, what):
    with open_store(private) as store:
        if what == "sample":
            with store.transaction() as change:
                change.drop("models/mean")
            named = {"samples": [store.shard("000").sample_ids[0]]}
        else:
            named = {"classes": [store.classes[0]]}
        planned = taftcache.forget(store, **named, dry_run=True)
        report = taftcache.forget(store, **named)
        assert [note.replace("would be left", "is left") for note in planned.notes] == report.notes
        assert any(note.startswith("components/000: ") for note in report.notes)
    said = "\n".join(forgotten_lines(report))
    assert report.renewed == []
    assert "renewed: nothing\n" in said, "components were made from the rows"
