"""Requests to forget beside private components: what is kept, destroyed and said, and that the audit passes."""

from __future__ import annotations

import shutil
from math import exp

import pytest

import taftcache
from taftcache.model.members import subtracted
from taftcache.names import PRIVATE, epsilon_text
from taftcache.privacy.budget import EVENT
from taftcache.stages.forget.chain import FORGOTTEN, left_since
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
        assert notes.keys() == {"components/000", "components/001"}
        assert f"{group(2, said)}, epsilon of one: " in notes["components/001"]
        assert "had others in their place" in notes["components/001"]
        assert taftcache.forget(store, gone).forgotten == []
        taftcache.forget(store, [store.shard("000").sample_ids[0]])
        assert {name: store.objects()[name].digest for name in before} == before
        assert not taftcache.compose(store).changed
        assert PRIVATE in store.objects()["models/mean"].meta
    assert taftcache.audit(private).findings == []


def group(samples: int, said: dict) -> str:
    """ε and δ of so many samples together, by the statement of a component."""
    epsilon, delta = said["epsilon"], said["delta"]
    delta *= sum(exp(i * epsilon) for i in range(samples))
    return f"by at most epsilon {epsilon_text(samples * epsilon)} at delta {epsilon_text(delta)} (samples: {samples}"


def noted(notes: list[str], name: str = "components/000") -> str:
    (said,) = [note for note in notes if note.startswith(f"{name}: ")]
    return said


@pytest.mark.law("Forgetting beside private components keeps their promise, says it, and passes the audit")
def test_requests_one_after_the_other_add_up(store):
    """Three people who asked one after the other held receipts of epsilon 6 and 3, and none of 9."""
    path, ledger = store, store / "ledger"
    with open_store(path) as store:
        spent = settings(store, epsilon=3.0, budget=9.0)
        taftcache.train_private(store, spent)
        of_shard = store.shard("000").sample_ids
        said, first = store.objects()["components/000"].meta[PRIVATE], taftcache.forget(store, of_shard[:2])
        assert f"{group(2, said)}, epsilon of one: 3); no other sample of its shard has left" in noted(first.notes)
        taftcache.destroy_key(store)
        planned = taftcache.forget(store, of_shard[2:3], dry_run=True)
        second = taftcache.forget(store, of_shard[2:3])
        assert noted(planned.notes) == noted(second.notes) == noted(taftcache.receipts(store).receipts[-1].notes)
        three = group(3, said)
        assert three.startswith("by at most epsilon 9 at delta 0.0042")
        alone = f"{group(1, said)}, epsilon of one: 3)"
        assert f"{alone}; with those of earlier requests since it was trained, {three})." in noted(second.notes)
        audited = taftcache.audit(store)
        assert audited.findings == []
        assert "kept, and 3 samples of its shard left since it was trained: " in noted(audited.notes)
        assert three in noted(audited.notes)
        assert not any(note.startswith("components/001: ") for note in audited.notes)
        taftcache.train_private(store, spent, shards=["000"])  # without them
        assert not any(note.startswith("components/000: ") for note in taftcache.audit(store).notes)
        assert "no other sample of its shard has left" in noted(taftcache.forget(store, of_shard[3:4]).notes)
        gone = store.shard("000").sample_ids[0]
    entry = min(ledger.glob("*.json"))
    entry.write_bytes(entry.read_bytes()[:-1])
    with open_store(path) as store:
        assert "; not counted here: samples of earlier requests. " in noted(taftcache.forget(store, [gone]).notes)


@pytest.mark.parametrize(
    ("shards", "left"), [([{"000": 2}, {"001": 1}, {"000": 1, "001": 5}], 3), ([], 0), ([{"000": {"rows": 9}}], None)]
)
def test_what_left_is_counted_from_the_last_training_on(shards, left):
    """Receipts of 0.1.0 have no numbers there."""
    trained = {"event": EVENT, "component": "components/000", "shards": ["000"]}
    before = [trained, {"event": FORGOTTEN, "shards": {"000": 7}}, trained, {**trained, "component": "components/001"}]
    every = [*before, *({"event": FORGOTTEN, "shards": each} for each in shards), {"event": "destroy-key"}]
    entries = [{**entry, "seq": seq} for seq, entry in enumerate(every, 1)]
    assert left_since(entries, "components/000") == left
    assert left_since(entries, "components/002") is None


def test_a_bound_that_bounds_nothing_says_so(private):
    with open_store(private) as store:
        said = noted(taftcache.forget(store, store.shard("000").sample_ids[:4]).notes)
    assert "at delta 1, which bounds nothing (samples: 4, " in said


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
