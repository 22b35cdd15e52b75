"""An imported component leaves: the store is then that into which it never came, with a receipt."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.errors import CompositionError, RecipeError, StaleStore, StoreError
from taftcache.model.members import recorded_members, untrained
from taftcache.model.outdated import outdated
from taftcache.names import EXACT, MEAN, WEIGHTED, is_component
from taftcache.recipe import parse_recipe
from taftcache.stages.train.record import settings_of
from taftcache.terminal.forgetting import show_audit
from taftcache.terminal.inspection import show_inspect
from taftcache.view import payload
from taftcache.view.atlas import Atlas
from taftcache.view.wording import receipt_lines
from tests.stages.making import commits, open_store, said_of_the_sum

ELSEWHERE = "components/elsewhere"


@pytest.fixture
def partner(tmp_path):
    """A store of vectors whose default model is the exact one, and a component made elsewhere."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((40, 5)), np.arange(40) % 3
    for name, ridge in (("store", 1e-3), ("other", 1e-1)):
        taftcache.import_vectors(x, y, tmp_path / name, overrides=["store.shards=2", f"objective.ridge={ridge}"])
        taftcache.train(tmp_path / name)
        taftcache.compose(tmp_path / name)
    taftcache.export_component(tmp_path / "other", "000", tmp_path / "first.safetensors")
    return tmp_path / "store", tmp_path / "first.safetensors"


@pytest.mark.law("An imported component leaves, and the store is that into which it never came")
@pytest.mark.parametrize("composed", [True, False], ids=["composed", "at once"])
def test_a_component_that_leaves_was_never_there(partner, composed, capsys):
    path, file = partner
    never = commits(path)
    assert {MEAN, EXACT} <= set(never["objects"])
    taftcache.import_component(path, file, "elsewhere")
    if composed:
        assert taftcache.compose(path).dropped == [EXACT]
    with open_store(path) as store, store.transaction() as change:
        change.put("models/other", b"made from whatever was there")
    root = taftcache.inspect(path).root_digest
    planned = taftcache.forget(path, components=["elsewhere"], dry_run=True)
    assert planned.root_digest == root
    report = taftcache.forget(path, components=["elsewhere"])
    assert report.destroyed == planned.destroyed == [ELSEWHERE, "models/other"]
    assert report.renewed == planned.renewed == ([MEAN, EXACT] if composed else [])
    assert {c.moved for c in report.certificates.values()} <= {None}
    assert commits(path) == never
    assert taftcache.audit(path).findings == []
    (receipt,) = taftcache.receipts(path).receipts
    assert "1 component forgotten by retrain; no row removed" in receipt_lines(receipt, False)[0]
    show_inspect(taftcache.inspect(path))
    said = capsys.readouterr().out
    assert "forgotten 1 component by 1 receipt; 2 tombstones" in said, "it was said of 0 ids"
    assert f"{receipt.time} forget, 1 component\n" in said
    assert (receipt.samples, receipt.destroyed, receipt.renewed) == (0, report.destroyed, report.renewed)
    assert not any("has changed" in note for note in taftcache.audit(path).notes)
    again = taftcache.forget(path, components=["elsewhere"])
    assert (again.already, again.destroyed) == (["component elsewhere"], [])
    assert len(taftcache.receipts(path).receipts) == 1
    (note,) = [note for note in taftcache.import_component(path, file, "another").notes if "forgotten here" in note]
    assert "by receipt 1, and" in note
    assert taftcache.forget(path, components=["another"]).destroyed == ["components/another"]
    (note,) = [note for note in taftcache.import_component(path, file, "elsewhere").notes if "forgotten here" in note]
    assert "by receipt 1, by receipt 2, and" in note
    with pytest.raises(SystemExit):
        main(["forget", str(path), "--component", "elsewhere"])
    said = capsys.readouterr().out
    assert f"destroyed: {ELSEWHERE}" in said
    assert "nothing to forget" not in said


def test_its_coefficient_goes_along_and_rows_may_leave_with_it(partner):
    path, file = partner
    taftcache.import_component(path, file, "elsewhere")
    with open_store(path) as store:
        weights = {"000": 0.5, "001": 0.25, "elsewhere": 0.25}
        section = store.manifest.recipe["compose"] | {"mode": "weighted", "weights": weights}
        taftcache.compose(store, parse_recipe({**store.manifest.recipe, "compose": section}))
        report = taftcache.forget(store, [store.shard("000").sample_ids[0]], components=[ELSEWHERE])
        assert {"components/000", MEAN, WEIGHTED} <= set(report.renewed)
        assert store.objects()[WEIGHTED].meta["coefficients"] == pytest.approx(
            {"components/000": 2 / 3, "components/001": 1 / 3}
        )
        assert report.certificates["components/000"].moved > 0
        assert store.manifest.recipe["compose"]["weights"] == pytest.approx({"000": 2 / 3, "001": 1 / 3})
    assert taftcache.audit(path).findings == []


def test_no_mean_keeps_a_component_that_leaves(partner):
    """Not even one that cannot be made again, since a member is gone."""
    path, file = partner
    taftcache.import_component(path, file, "elsewhere")
    taftcache.compose(path)
    with open_store(path) as store, store.transaction() as change:
        change.drop("components/001")
    planned = taftcache.forget(path, components=["elsewhere"], dry_run=True)
    assert MEAN in {*planned.destroyed, *planned.renewed}


def test_a_component_that_is_not_imported_is_refused(partner):
    path, file = partner
    root = taftcache.import_component(path, file, "elsewhere").root_digest
    with pytest.raises(RecipeError, match=r"shard 000 \(--shard\)"):
        taftcache.forget(path, components=["elsewhere", "000"])
    with pytest.raises(StoreError, match="no component 'partner'\n  got: imported: elsewhere"):
        taftcache.forget(path, components=["partner"])
    for mode in ("subtract", "resolve"):
        with pytest.raises(RecipeError, match="--mode retrain"):
            taftcache.forget(path, components=["elsewhere"], mode=mode)
    assert taftcache.inspect(path).root_digest == root


@pytest.mark.law("An old copy that is put back is noticed before its first read")
def test_an_old_copy_that_brings_a_component_back_is_noticed(partner, tmp_path, capsys):
    path, file = partner
    taftcache.import_component(path, file, "elsewhere")
    taftcache.compose(path)
    with open_store(path) as store:  # so that the old copy has tombstones, too
        taftcache.forget(store, [store.shard("000").sample_ids[0]])
    shutil.copytree(path, tmp_path / "old")
    taftcache.forget(path, components=["elsewhere"])
    there = commits(path)
    shutil.rmtree(path)
    (tmp_path / "old").rename(path)
    with pytest.raises(StaleStore, match="1 of its samples and components"):
        taftcache.inspect(path)
    assert {finding.kind for finding in taftcache.audit(path).findings} == {"returned rows"}
    replayed = taftcache.audit(path, replay=True)
    assert (replayed.findings, replayed.replayed) == ([], 1)
    show_audit(replayed)
    assert "forgotten again: 1 of its samples and components, brought back by an old copy" in capsys.readouterr().out
    assert commits(path) == there
    taftcache.import_component(path, file, "elsewhere")  # as before, it may come again
    assert ELSEWHERE in commits(path)["objects"]


def test_an_old_copy_without_any_tombstone_has_its_component_named(partner, tmp_path):
    """Only that the copy is old was found, for its own list of tombstones is empty: nobody learned what to forget."""
    path, file = partner
    taftcache.import_component(path, file, "charite")
    shutil.copytree(path, tmp_path / "old")
    taftcache.import_component(path, file, "berlin")
    taftcache.forget(path, components=["berlin"])
    shutil.rmtree(path)
    (tmp_path / "old").rename(path)
    (found,) = [f for f in taftcache.audit(path).findings if f.kind == "forgotten component"]
    assert (found.where, found.problem.endswith("forgotten here before")) == ("components/charite", True)
    taftcache.import_component(path, file, "charite")  # it may stay
    assert [f for f in taftcache.audit(path).findings if f.kind == "forgotten component"] == []


def test_an_audit_finds_what_was_forgotten_under_another_name_in_a_file_and_in_a_copy(partner, tmp_path):
    """It said that nothing of it was found, though it was there, and in the default model."""
    path, file = partner
    taftcache.import_component(path, file, "berlin")
    note = (
        "its numbers are those of components/berlin: a sum counts its rows twice, and what is forgotten there stays in "
    )
    assert f"{note}components/charite" in taftcache.import_component(path, file, "charite").notes
    twice = "the same component under 2 names, so that its rows count as often: components/berlin, components/charite"
    assert twice in taftcache.compose(path).notes
    (elsewhere := tmp_path / "elsewhere").mkdir()
    shutil.copytree(path, elsewhere / "backup")
    shutil.copy(file, elsewhere / "inbox.safetensors")
    assert taftcache.audit(path, also=[elsewhere]).findings == []
    for report in (taftcache.forget(path, components=["berlin"], dry_run=dry) for dry in (True, False)):
        (stays,) = [note for note in report.notes if "same numbers" in note]
        assert stays.endswith(f"components/charite; next: taftcache forget {path} --component charite")
    one = " by receipt 1"
    found = {f.where: (f.kind, f.problem) for f in taftcache.audit(path, also=[elsewhere]).findings}
    assert found == {
        name: (kind, f"{has} forgotten here{by}")
        for name, kind, has, by in (
            ("components/charite", "forgotten component", "its numbers are those of a component that was", one),
            (str(elsewhere / "inbox.safetensors"), "by-product", "it has the numbers of a component that was", one),
            (str(elsewhere / "backup"), "by-product", "a store with components that were", ": 2"),
        )
    }
    taftcache.forget(path, components=["charite"])
    assert taftcache.audit(path).findings == []
    assert {f.where for f in taftcache.audit(path, also=[elsewhere]).findings} == {*found} - {"components/charite"}


def test_two_names_of_a_component_are_looked_for_once_and_where_its_rows_count_twice(partner, monkeypatch):
    """Every composition read all components again, and of a name with a coefficient of 0 it was said, too."""
    path, file = partner
    for name in ("berlin", "charite"):
        taftcache.import_component(path, file, name)
    said = [note for note in taftcache.compose(path).notes if "under 2 names" in note]
    assert len(said) == 1
    read, reading = [], FeatureStore.read_object
    with monkeypatch.context() as patched:
        patched.setattr(FeatureStore, "read_object", lambda store, name: read.append(name) or reading(store, name))
        report = taftcache.compose(path)
    assert (report.changed, [name for name in read if is_component(name)]) == (False, [])
    explicit = {"000": 0.5, "001": 0.5, "berlin": 0.0, "charite": 0.0}
    for weights, notes in ((explicit, []), ("rows", said)):
        report = taftcache.compose(path, overrides={"compose.mode": "weighted", "compose.weights": weights})
        assert [note for note in report.notes if "under 2 names" in note] == notes


def test_a_component_that_was_imported_again_is_told_by_every_verdict(partner, tmp_path, capsys):
    """Its owner may have let it in. The verdict was that nothing forgotten is there, and nothing said that it is."""
    path, file = partner
    for name in ("berlin", "charite"):
        taftcache.import_component(path, file, name)
    taftcache.compose(path)
    taftcache.forget(path, components=["berlin"])
    taftcache.import_component(path, file, "charite")  # it may stay
    assert not taftcache.import_component(path, file, "charite").changed
    for changed in (True, False):
        report = taftcache.compose(path)
        (note,) = [note for note in report.notes if "forgotten here" in note]
        assert (report.changed, note.partition(", and")[0]) == (
            changed,
            "components/charite: this very component was forgotten here by receipt 1",
        )
    for model in ("mean", "charite"):
        exported = taftcache.export_component(path, model, tmp_path / f"{model}.safetensors")
        assert [note in exported.notes for note in [note]] == [True]
    assert taftcache.export_component(path, "000", tmp_path / "own.safetensors").notes == []
    (tmp_path / "inbox").mkdir()
    shutil.copy(file, tmp_path / "inbox")
    report = taftcache.audit(path, also=[tmp_path / "inbox"])
    assert (report.findings, report.imported_again) == ([], ["components/charite"])
    (note,) = [note for note in report.notes if "imported again since" in note]
    assert note.startswith(
        "components/charite: its numbers are those of a component that was forgotten here by receipt 1"
    )
    for command, said in (
        (
            ["audit", str(path)],
            "nothing of what was forgotten was found in the store, but for 1 component imported again",
        ),
        (["receipts", str(path)], again := "forgotten by receipt 1, and imported again since: components/charite"),
    ):
        with pytest.raises(SystemExit):
            main(command)
        assert said in capsys.readouterr().out
    with open_store(path) as store:
        assert payload.ledger(Atlas(store))["notes"][0] == again
    assert taftcache.receipts(path, ["arrays/0"]).imported_again == {}
    shutil.copytree(path, tmp_path / "damaged")
    (tmp_path / "damaged" / "tombstones.key").write_bytes(b"")
    assert taftcache.receipts(tmp_path / "damaged").imported_again == {}
    taftcache.import_component(path, file, "berlin")
    report = taftcache.forget(path, components=["berlin"], with_copies=True)
    assert report.destroyed == ["components/berlin", "components/charite"]
    assert taftcache.audit(path).imported_again == []


@pytest.fixture
def centre(partner, tmp_path):
    """A store of rows that nothing was trained on, with two imported components."""
    rng = np.random.default_rng(4)
    path = taftcache.import_vectors(
        rng.standard_normal((9, 5)), np.arange(9) % 3, tmp_path / "centre", overrides=["store.shards=1"]
    ).store
    two = taftcache.export_component(tmp_path / "other", "001", tmp_path / "second.safetensors").file
    for name, file in (("site-a", partner[1]), ("site-b", two)):
        taftcache.import_component(path, file, name)
    return path


def test_what_was_never_trained_holds_up_no_composition_of_what_was_imported(centre):
    """``compose`` asked for a training, whose component then was in the mean."""
    note = (
        "never trained, and so left out of compositions of what was imported: 000 (rows: 8); to have them in: "
        f"taftcache train {centre}"
    )
    for weights in ("rows", {"site-a": 0.25, "site-b": 0.75}):
        report = taftcache.compose(centre, overrides={"compose.mode": "weighted", "compose.weights": weights})
        assert report.members == ["components/site-a", "components/site-b"]
        assert report.notes == taftcache.inspect(centre).notes == [note]
        audited = taftcache.audit(centre)
        assert (audited.findings, audited.notes[0]) == ([], note)
    assert taftcache.compose(centre, overrides={"compose.mode": "exact"}).models == [MEAN, WEIGHTED, EXACT]
    with open_store(centre) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[0]], components=["site-b"])
        assert store.objects()[MEAN].meta["coefficients"] == {"components/site-a": 1}
    taftcache.train(centre)
    assert taftcache.compose(centre, overrides={"compose.mode": "mean"}).members == [
        "components/000",
        "components/site-a",
    ]
    assert taftcache.audit(centre).findings == []


def test_where_no_component_is_left_the_next_command_is_train(centre, capsys):
    """A composition was named, which was refused: nothing was ever trained there."""
    taftcache.forget(centre, components=["site-b"])
    taftcache.compose(centre, overrides={"compose.mode": "weighted", "compose.weights": {"site-a": 1.0}})
    for note, is_ in said_of_the_sum(centre, "site-a"):
        assert note == (
            f'{WEIGHTED} {is_} gone: no component {is_} left; compose.weights {is_} "rows" from now on; next: '
            f"taftcache train {centre}"
        )


def test_a_model_of_all_rows_outlives_the_components_that_it_started_from(centre):
    """It was destroyed with the last of them, and no model was left, though it was solved from rows of the store."""
    taftcache.compose(centre, overrides={"compose.mode": "exact"})
    for report in (taftcache.forget(centre, components=["site-a", "site-b"], dry_run=dry) for dry in (True, False)):
        assert report.renewed == [EXACT]
        assert report.destroyed == ["components/site-a", "components/site-b", MEAN]
    assert set(report.certificates) == {EXACT}
    with open_store(centre) as store:
        meta = store.objects()[EXACT].meta
        assert (meta["start"], "from_mean" in meta, recorded_members(EXACT, meta)) == ("zero", False, {})
        assert taftcache.audit(centre).findings == outdated(store, settings_of(store).keys) == []
        assert taftcache.forget(store, [store.shard("000").sample_ids[0]]).renewed == [EXACT]
    assert taftcache.audit(centre).findings == []


@pytest.mark.parametrize("trace", ["a sum", "a receipt", "another shard's component", "an interrupted solve"])
def test_what_was_trained_once_is_missing(partner, trace):
    """A mean without it would be one of everything that is there, to all who read it."""
    path, file = partner
    taftcache.import_component(path, file, "elsewhere")
    taftcache.compose(path)
    with open_store(path) as store, store.transaction() as change:
        kept = {"another shard's component": "components/001", "a sum": MEAN}.get(trace, "base/tail")
        if trace == "an interrupted solve":
            ref = store.objects()["components/000"]
            change.put("components/000", store.read_object("components/000"), {**ref.meta, "key": "interrupted"})
            kept = "components/000"
        for name in store.objects():
            if name not in ("base/tail", ELSEWHERE, kept):
                change.drop(name)
        if trace == "a receipt":
            change.record({"event": "forget", "destroyed": ["components/000"]})
    with pytest.raises(CompositionError, match="without a component"):
        taftcache.compose(path)
    with open_store(path) as store:
        assert untrained(store) == {}
