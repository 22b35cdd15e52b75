"""What an audit finds: nothing in a store that forgot, and every kind of leak that is planted in one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import taftcache
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.manifest import Manifest
from taftcache.cache.format.parts import Skipped
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.commit import Committer
from taftcache.cli import main
from taftcache.consent import recorded_recipe
from taftcache.errors import FormatError, RecipeError, StaleStore
from taftcache.model.component import Component, put_component, read_base, read_component
from taftcache.stages.audit.traces import check_names
from taftcache.stages.forget.finding import Findings
from taftcache.stages.texts import texts_in
from taftcache.terminal.forgetting import show_audit
from tests.keys import make_key
from tests.stages.making import open_store, tree

EXACT = {"compose": {"mode": "exact"}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory, solved) -> tuple[Path, Path, str, str]:
    """A store before and after it forgot a class and a sample; the sample's id and its shard. Not to be written to."""
    root = tmp_path_factory.mktemp("audited")
    shutil.copytree(solved, root / "after")
    with open_store(root / "after") as store:
        sample = store.shard("000").sample_ids[2]
        taftcache.forget(store, classes=["7"])
        taftcache.forget(store, [sample])
    return solved, root / "after", sample, "000"


@pytest.fixture
def after(pair, tmp_path) -> Path:
    return shutil.copytree(pair[1], tmp_path / "store")


@pytest.mark.law("An audit finds every kind of leak that is planted, and none where there is none")
def test_a_store_that_forgot_passes(pair, after):
    report = taftcache.audit(pair[1])
    assert (report.passed, report.findings, report.notes) == (True, [], [])
    assert ["does not know all tombstones" in note for note in taftcache.audit(after).notes] == [True]
    assert (report.receipts, report.signed, report.replayed) == (2, 0, 0)
    assert sorted(report.certificates) == ["components/000", "components/001", "models/exact", "models/head"]
    assert tree(after) == tree(pair[1])


def test_what_other_machines_have_staged_of_a_bucket_is_said_to_be_out_of_reach(pair, monkeypatch):
    monkeypatch.setattr("taftcache.stages.audit.traces.is_bucket", lambda path: path == pair[1])
    (note,) = taftcache.audit(pair[1]).notes
    assert "on another machine, its rows lie there" in note
    assert f"taftcache gc {pair[1]}" in note


def test_a_store_whose_tail_this_release_does_not_read_is_audited_but_for_its_models(after):
    """A store of release 0.1 had no report at all."""
    with open_store(after) as store, store.transaction() as change:
        meta = dict(store.objects()["base/tail"].meta)
        change.put("base/tail", store.read_object("base/tail"), {k: v for k, v in meta.items() if k != "path"})
    report = taftcache.audit(after)
    assert [(finding.kind, finding.where) for finding in report.findings] == [("description", "base/tail")]
    assert (report.receipts, report.certificates) == (2, {})
    with open_store(after) as store, pytest.raises(FormatError, match="forgets with that release alone"):
        taftcache.forget(store, [store.shards[0].sample_ids[0]])


def objects_of(before: Path, name: str) -> tuple[bytes, dict]:
    with FeatureStore(before) as store:
        return store.read_object(name), dict(store.objects()[name].meta)


def keep_object(name: str, place: str | None = None) -> Callable:
    """The object as it was before, kept under its own or another name."""

    def plant(store: FeatureStore, before: Path, sample: str) -> None:
        data, meta = objects_of(before, name)
        with store.transaction() as change:
            change.put(place or name, data, meta)

    return plant


def keep_mean(store: FeatureStore, before: Path, sample: str) -> None:
    """A mean of old numbers that says it is of the present members."""
    base = read_base(store, recorded_recipe(store).tangent)
    mean = read_component(store, "models/mean", base)
    delta = mean.delta + 1e-6
    with store.transaction() as change:
        put_component(change, "models/mean", Component(mean.base_digest, mean.layout, delta, mean.meta))


def keep_class(store: FeatureStore, before: Path, sample: str) -> None:
    with store.transaction() as change:
        change.update(classes=[*store.classes, "7"])


def keep_row(store: FeatureStore, before: Path, sample: str) -> None:
    with FeatureStore(before) as old:
        shard, row = old.locate(sample)
        tokens = shard.tokens(slice(row, row + 1))
    with store.writer("002", "train", chunk_rows=8, tokens_shape=shard.tokens_shape, candidates=[sample]) as writer:
        writer._check = lambda *args: None
        writer.append(tokens, [sample], np.zeros(1, np.int32))
        writer.commit()


def keep_id_in_ledger(store: FeatureStore, before: Path, sample: str) -> None:
    with store.transaction() as change:
        change.record({"event": "note", "text": f"forgot {sample}, as asked"})


def keep_id_in_a_reason(store: FeatureStore, before: Path, sample: str) -> None:
    shard = store.shards[0]
    shape, rows = shard.tokens_shape, shard.tokens(slice(0, 1))
    with store.writer("002", "train", chunk_rows=8, tokens_shape=shape, candidates=["new", "odd"]) as writer:
        writer.append(rows, ["new"], [0], [Skipped("odd", f"no picture beside {sample}")])
        writer.commit()


def keep_id_in_recipe(store: FeatureStore, before: Path, sample: str) -> None:
    with store.transaction() as change:
        change.update(recipe={**store.manifest.recipe, "forget": {"samples": [sample]}})


def keep_id_in_component(store: FeatureStore, before: Path, sample: str) -> None:
    base = read_base(store, recorded_recipe(store).tangent)
    component = read_component(store, "components/000", base)
    noisy = Component(component.base_digest, component.layout, component.delta, {**component.meta, "last": sample})
    with store.transaction() as change:
        change.put("components/000", noisy.encode(), {**component.meta, "base_digest": component.base_digest})


def keep_temp_file(store: FeatureStore, before: Path, sample: str) -> None:
    (store.path / "staging" / "transaction").mkdir(parents=True, exist_ok=True)
    (store.path / "staging" / "transaction" / "7").write_bytes(b"rows")


def keep_report(store: FeatureStore, before: Path, sample: str) -> None:
    (store.path / "report.html").write_text("who was here")


def keep_statistics(store: FeatureStore, before: Path, sample: str) -> None:
    """Statistics of the shard as it was, under a manifest whose digests are all right."""
    named = store.manifest
    (ref,) = [s for s in named.shards if s.name == "000"]
    file = store.path / f"{ref.path}.json"
    fields = json.loads(file.read_bytes())
    fields["statistics"]["max_abs"] *= 2
    raw = canonical(fields)
    moved = type(ref).of(ref.name, ref.role, ref.rows, digest(raw))
    (store.path / ref.path).rename(store.path / moved.path)
    file.unlink()
    (store.path / f"{moved.path}.json").write_bytes(raw)
    new = named.replace(shards=[moved if s.name == "000" else s for s in named.shards])
    (store.path / "manifest.json").write_bytes(new.encode())


def forge_receipt(store: FeatureStore, before: Path, sample: str) -> None:
    (file,) = (store.path / "ledger").glob("000001-*")
    file.write_bytes(file.read_bytes().replace(b'"samples":', b'"SAMPLES":'))


def forge_certificate(store: FeatureStore, before: Path, sample: str) -> None:
    """A component that is further from its optimum than it says."""
    base = read_base(store, recorded_recipe(store).tangent)
    c = read_component(store, "components/001", base)
    with store.transaction() as change:
        put_component(change, "components/001", Component(c.base_digest, c.layout, 1.001 * c.delta, c.meta))


def keep_dual(store: FeatureStore, before: Path, sample: str) -> None:
    """Dual vectors that still have a row for the sample, in a model that is current otherwise."""
    base = read_base(store, recorded_recipe(store).tangent)
    exact = read_component(store, "models/exact", base)
    rows = sum(shard.rows for shard in store.shards)
    with store.transaction() as change:
        put_component(change, "models/exact", replace(exact, dual=torch.zeros(rows + 1, len(store.classes)).double()))


def mix_dual(store: FeatureStore, before: Path, sample: str) -> None:
    """Dual vectors that are not the model's, as many as there are rows."""
    base = read_base(store, recorded_recipe(store).tangent)
    exact = read_component(store, "models/exact", base)
    rows = sum(shard.rows for shard in store.shards)
    with store.transaction() as change:
        put_component(change, "models/exact", replace(exact, dual=torch.ones(rows, len(store.classes)).double()))


LEAKS: dict[str, tuple[Callable, str]] = {
    "stale mean": (keep_mean, "stale composition"),
    "old mean": (keep_object("models/mean"), "base point"),
    "kept class": (keep_class, "class"),
    "kept component": (keep_object("components/000"), "base point"),
    "component of no shard": (keep_object("components/000", "components/007"), "kept component"),
    "kept exact model": (keep_object("models/exact"), "base point"),
    "kept dual vectors": (keep_dual, "stale dual"),
    "dual vectors of others": (mix_dual, "stale dual"),
    "kept preconditioner": (keep_object("components/000", "state/preconditioner"), "stale object"),
    "kept row": (keep_row, "forgotten row"),
    "id in the ledger": (keep_id_in_ledger, "forgotten id"),
    "id in the recipe": (keep_id_in_recipe, "forgotten id"),
    "id in a reason": (keep_id_in_a_reason, "forgotten id"),
    "id in a component": (keep_id_in_component, "forgotten id"),
    "temporary file": (keep_temp_file, "unfinished work"),
    "report": (keep_report, "leftover file"),
    "statistics": (keep_statistics, "statistics"),
    "forged receipt": (forge_receipt, "ledger"),
    "forged certificate": (forge_certificate, "certificate"),
}


@pytest.mark.law("An audit finds every kind of leak that is planted, and none where there is none")
@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_found(pair, after, leak):
    plant, kind = LEAKS[leak]
    with open_store(after) as store:
        plant(store, pair[0], pair[2])
    report = taftcache.audit(after)
    assert (report.passed, kind in {finding.kind for finding in report.findings}) == (False, True)
    assert all(finding.do for finding in report.findings)


COMMON = ["1234", "1000", "000", "006", "mean", "closed form"]


@pytest.mark.law("An audit finds every kind of leak that is planted, and none where there is none")
def test_an_id_that_any_store_says_anyway_is_no_leak(tmp_path):
    """A store that had forgotten sample 1000 failed for ever: a solve may take 1000 passes. Nor is a shard's name or a
    word of taftcache's own a leak."""
    x = np.random.default_rng(0).normal(size=(60, 4))
    ids = [*COMMON, *(f"u/{k} a" for k in range(60 - len(COMMON)))]
    path = tmp_path / "store"
    taftcache.import_vectors(x, np.arange(60) % 2, path, ids=ids, overrides=["store.shards=7"])
    taftcache.train(path, overrides=["solver.max_passes=1234", "solver.proof_passes=1000"])
    taftcache.compose(path)
    taftcache.forget(path, [*COMMON, "u/7 a"])
    assert taftcache.audit(path).passed
    with open_store(path) as store:
        texts = [*map(store.meta, store.objects()), *store.ledger(), store.manifest.recipe]
        said = {text for value in texts for text in texts_in(value)}
        assert said.issuperset(COMMON)
        keep_id_in_component(store, path, "u/7 a")
    assert "forgotten id" in {finding.kind for finding in taftcache.audit(path).findings}


def test_the_verdict_comes_first_and_every_finding_says_what_to_try(pair, after, tmp_path, capsys):
    """A pass read "0 findings; 2 receipts in one chain", below a table of figures, and a finding named no way out."""
    show_audit(taftcache.audit(pair[0]))
    assert capsys.readouterr().out.startswith("PASSED: nothing was forgotten here so far; every file whole, 4 certif")
    exports = tmp_path / "exports"
    exports.mkdir()
    show_audit(taftcache.audit(after, also=[exports]))
    verdict, *rest = capsys.readouterr().out.splitlines()
    assert verdict == (
        f"PASSED: nothing of what was forgotten was found in the store and {exports}; every file whole, "
        "2 receipts in order, 4 certificates proven"
    )
    said = " ".join(rest)
    assert "2 receipts in one chain, 0 of 2 entries signed; " in said
    assert "for each class, shard or group forgotten as a whole, two for a component" in said
    assert said.index("note: ") < said.index("proven now") < said.index("tombstones, one")
    (exports / "ids.txt").write_text(f"{pair[2]}\n")
    shutil.copytree(pair[0], exports / "backup")
    report = taftcache.audit(after, also=[exports])
    show_audit(report)
    verdict, *rest = capsys.readouterr().out.splitlines()
    assert verdict == "FAILED: 2 findings"
    assert [line[:12] for line in (rest[1], rest[3])] == ["  try: look ", "  try: delet"]
    taftcache.destroy_key(after)
    show_audit(taftcache.audit(after))
    assert "the key is destroyed, so that no forgotten id could be looked for" in capsys.readouterr().out


def test_a_verdict_says_how_many_certificates_decide_nothing(pair, capsys):
    """It read "6 certificates proven" where three were 30 to 500 times what a row moves."""
    report = taftcache.audit(pair[0])
    with FeatureStore(pair[0]) as store:
        known = {name: store.meta(name)["stats"].get("row_moves") for name in report.certificates}
    assert {name: c.row_moves for name, c in report.certificates.items()} == known
    loose = {
        name: msgspec.structs.replace(c, row_moves=9 * c.distance_bound) for name, c in report.certificates.items()
    }
    show_audit(replace(report, certificates=loose))
    assert "4 certificates proven, 4 of them not decisive" in capsys.readouterr().out.splitlines()[0]


def test_what_a_finding_says_to_try_mends_it(after, pair):
    with open_store(after) as store:
        forge_certificate(store, pair[0], pair[2])
    findings = taftcache.audit(after).findings
    assert {f"{f.where}: {f.do.partition(': ')[2]}" for f in findings if f.kind == "certificate"} == {
        f"components/001: change.drop('components/001'); then taftcache train {after}"
    }
    with open_store(after) as store, store.transaction() as change:
        change.drop("components/001")
    taftcache.train(after)
    taftcache.compose(after)
    assert taftcache.audit(after).findings == []


@pytest.mark.parametrize("name", ["components/000", "models/mean", "models/exact"])
def test_a_model_around_another_base_point_is_mended_by_training(pair, after, name):
    """The advice was a line of Python, which drops what train drops by itself."""
    with open_store(after) as store:
        keep_object(name)(store, pair[0], pair[2])
    findings = taftcache.audit(after).findings
    assert {f.do for f in findings if f.kind == "base point"} == {f"taftcache train {after}"}
    taftcache.train(after)
    assert taftcache.audit(after).findings == []


def test_what_a_kill_leaves_is_told_from_what_should_be_gone(pair, after, capsys):
    """A nightly audit could not tell a killed job from a failure to erase."""
    with open_store(after) as store:
        keep_temp_file(store, pair[0], pair[2])
    report = taftcache.audit(after)
    show_audit(report)
    assert [(f.kind, f.where, f.do) for f in report.findings] == [
        ("unfinished work", "staging/transaction", f"taftcache gc {after}")
    ]
    alone = "FAILED: 1 finding, of unfinished work alone, which is no part of the store"
    assert capsys.readouterr().out.splitlines()[0] == alone
    (after / "components" / "leftover").write_bytes(b"rows")
    report = taftcache.audit(after)
    show_audit(report)
    assert sorted(f.kind for f in report.findings) == ["leftover file", "unfinished work"]
    assert capsys.readouterr().out.splitlines()[0] == "FAILED: 2 findings"


def test_files_that_macos_puts_into_a_store_are_no_findings(pair, after):
    shown, beside = b"\0\0\0\1Bud1\0", b"\0\5\x16\7"
    (after / ".DS_Store").write_bytes(shown)
    (after / "shards/._000").write_bytes(beside)
    (after / "lost+found").mkdir()
    report = taftcache.audit(after)
    assert report.findings == []
    said = f'"the picture of": ["{pair[2]}"], and so on'.encode()
    for name, data in (
        ("shards/._rows", b"rows"),  # under such a name anything may lie
        ("shards/._said", beside + said),
        ("components/.DS_Store", b"rows"),
        ("models/.DS_Store", shown + said),
    ):
        (after / name).write_bytes(data)
        (finding,) = taftcache.audit(after).findings
        assert (finding.kind, finding.where) == ("leftover file", name)
        assert ("with a forgotten id in it" in finding.problem) == (said in data)
        (after / name).unlink()
    assert [note for note in report.notes if "macOS" in note] == [
        f".DS_Store: a file of macOS, only searched for texts; to remove it: taftcache gc {after} --foreign",
        f"shards/._000: a file of macOS, only searched for texts; to remove it: taftcache gc {after}",
    ]


def test_a_leftover_goes_by_the_command_that_its_finding_names(pair, after):
    with open_store(after) as store:
        keep_temp_file(store, pair[0], pair[2])
        keep_report(store, pair[0], pair[2])
    found = taftcache.audit(after).findings
    assert {finding.kind for finding in found} == {"unfinished work", "leftover file"}
    commands = [finding.do.removeprefix("taftcache ") for finding in found]
    assert sorted(commands) == [f"gc {after}", f"gc {after} --foreign"]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        assert ended.value.code == 0
    assert taftcache.audit(after).findings == []


@pytest.fixture(scope="module")
def a_row_less(solved, tmp_path_factory) -> Path:
    """Not to be written to."""
    path = shutil.copytree(solved, tmp_path_factory.mktemp("less") / "store")
    with open_store(path) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[0]])
    return path


@pytest.mark.parametrize("name", ["components/000", "models/head", "models/exact", "models/mean"])
def test_an_object_of_the_rows_before_is_found(solved, a_row_less, tmp_path, name):
    """The base point is the same here, for no class has left: only the rows differ."""
    path = shutil.copytree(a_row_less, tmp_path / "store")
    with open_store(path) as store:
        keep_object(name)(store, solved, "")
    found = [finding for finding in taftcache.audit(path).findings if finding.where == name]
    assert {finding.kind for finding in found} <= {"stale component", "stale composition"}
    assert len({finding.kind for finding in found}) == 1, "one thing is said of it, once"


def test_signed_receipts(store, tmp_path):
    mine, other = (make_key(tmp_path / name) for name in ("mine.pem", "other.pem"))
    with open_store(store) as opened:
        first, second = opened.shard("000").sample_ids[:2]
        taftcache.forget(opened, [first], signing_key=tmp_path / "mine.pem")
    report = taftcache.audit(store, public_key=mine)
    assert (report.findings, report.signed) == ([], 1)
    assert [f.kind for f in taftcache.audit(store, public_key=other).findings] == ["signature"]
    with open_store(store) as opened:
        taftcache.forget(opened, [second])
    assert taftcache.audit(store).findings == []
    assert [f.problem for f in taftcache.audit(store, public_key=mine).findings] == ["the entry is not signed"]
    with open_store(store) as opened:
        entry = {k: v for k, v in opened.ledger()[0].items() if k not in ("seq", "previous")}
        with opened.transaction() as change:
            change.record(entry)  # the same signed words, in another place of the chain
    assert [f.kind for f in taftcache.audit(store).findings] == ["signature", "tombstones"]
    (tmp_path / "not.pem").write_text("no key")
    with open_store(store) as opened, pytest.raises(RecipeError, match="Ed25519") as refused:
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]], signing_key=tmp_path / "not.pem")
    assert "not.pem" not in refused.value.do  # what is there is not to be written over


@pytest.mark.law("An old copy that is put back is noticed before its first read")
def test_an_old_copy_put_back_is_noticed_and_forgets_again(store, tmp_path):
    backup = shutil.copytree(store, tmp_path / "backup")
    with open_store(store) as opened:
        sample = opened.shard("001").sample_ids[1]
        taftcache.forget(opened, [sample])
    forgot = tree(store, but=("manifest.json", "ledger/"))
    shutil.rmtree(store)
    shutil.copytree(backup, store)
    for mode in ("r", "a"):
        with pytest.raises(StaleStore, match="audit"):
            FeatureStore(store, mode=mode)
    assert [f.kind for f in taftcache.audit(store).findings] == ["returned rows"]
    report = taftcache.audit(store, replay=True)
    assert (report.findings, report.replayed) == ([], 1)
    assert tree(store, but=("manifest.json", "ledger/")) == forgot
    assert taftcache.audit(backup).findings == []  # elsewhere it is nobody's old copy


def test_without_the_key_nothing_can_be_asked(store):
    with open_store(store) as opened:
        sample = opened.shard("000").sample_ids[0]
        taftcache.forget(opened, [sample])
        assert opened.is_forgotten(sample)
        taftcache.destroy_key(opened)
        assert not opened.is_forgotten(sample)
        assert not (store / "tombstones.key").exists()
        beside = msgspec.json.decode(opened.tombstone_file.file.read_bytes())
        assert (beside["format"], beside["version"], beside["keys"]) == ("taftcache-forgotten", 2, [])
        assert [entry["event"] for entry in opened.ledger()] == ["forget", "destroy-key"]
    assert taftcache.audit(store).findings == []


def test_a_key_whose_destruction_was_killed_is_gone_all_the_same(store, monkeypatch):
    """The audit advises nothing that would bring it back."""

    def killed(*_):
        raise KeyboardInterrupt

    with open_store(store) as opened:
        taftcache.forget(opened, [opened.shard("000").sample_ids[0]])
        with monkeypatch.context() as patch:
            patch.setattr(Committer, "remember", killed)
            with pytest.raises(KeyboardInterrupt):
                taftcache.destroy_key(opened)
    with open_store(store) as opened:
        assert [entry["event"] for entry in opened.ledger()] == ["forget", "destroy-key"]
        assert not opened.tombstone_file.key
    assert taftcache.audit(store).findings == []


def test_the_manifest_says_what_the_receipt_promised(pair, after):
    with FeatureStore(after) as store:
        *_, last = store.ledger()
        key = ledger.read_key(store.root, store.manifest)
        assert last["content_after"] == ledger.tombstone(store.manifest.content_digest, key)
        assert isinstance(store.manifest, Manifest)
        assert pair[2] not in json.dumps(store.ledger())


@pytest.mark.law("An old copy that is put back is noticed before its first read")
def test_an_old_copy_that_lists_a_forgotten_skipped_sample_forgets_it_again(tmp_path):
    path, copy = tmp_path / "s", tmp_path / "copy"
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    taftcache.import_vectors(x, np.arange(20) % 2, path, overrides=["store.shards=2"])
    with open_store(path) as opened:
        shape = opened.shards[0].tokens_shape
        with opened.writer("002", "train", tokens_shape=shape, candidates=["a", "b", "ada.png"]) as writer:
            writer.append(x[:2, None], ["a", "b"], [0, 1], [Skipped("ada.png", "cannot identify ada.png")])
            writer.commit()
    shutil.copytree(path, copy)
    taftcache.forget(path, ["ada.png"])
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    with pytest.raises(StaleStore):
        FeatureStore(path)
    assert {f.kind for f in taftcache.audit(path).findings} == {"returned rows", "forgotten id"}
    replayed = taftcache.audit(path, replay=True)
    assert (replayed.findings, replayed.replayed) == ([], 1)
    with FeatureStore(path) as opened:
        assert list(opened.manifest.skipped) == []


def test_a_word_is_looked_for_once_however_many_receipts_have_it(tmp_path, monkeypatch):
    """An audit took a fraction of a second longer with every hundred receipts, nearly all of it for the same words."""
    ids = [f"sample {k}" for k in range(12)]
    taftcache.import_vectors(np.eye(12), np.arange(12) % 2, tmp_path / "store", ids=ids, overrides=["store.shards=1"])
    words, asker = list[str](), FeatureStore.asker
    with open_store(tmp_path / "store") as store:
        for sample in ids[:3]:
            taftcache.forget(store, [sample])
        ask = asker(store)
        monkeypatch.setattr(FeatureStore, "asker", lambda _: lambda i: words.append(i) or ask(i))
        check_names(store, Findings(store=store.path))
    assert words.count("not_covered") == words.count("retrain") == 1
