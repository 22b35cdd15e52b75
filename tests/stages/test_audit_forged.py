"""What an audit finds in a store whose digests were all made anew after something in it was changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import taftcache
from taftcache.cache.format import ledger
from taftcache.cache.format.digest import canonical, digest
from taftcache.cache.format.manifest import LedgerRef
from taftcache.cache.store import FeatureStore
from taftcache.cli import app, main
from taftcache.errors import FormatError, RecipeError, StoreWriteError
from taftcache.model.component import read_component
from taftcache.names import PRIVATE
from taftcache.privacy.budget import EVENT
from taftcache.solve import minimise
from taftcache.solve.solution import Certificate
from taftcache.stages.forget.certificates import check_certificate
from taftcache.stages.forget.finding import Findings
from taftcache.stages.signature import Signer
from taftcache.stages.train.record import settings_of
from taftcache.stages.train.settings import Settings
from taftcache.terminal.forgetting import show_audit, show_receipts
from tests.keys import make_key
from tests.stages.forging import forge, forge_ledger, forge_meta
from tests.stages.making import open_store, recipe, settings


@pytest.fixture(scope="module")
def signed(finished, tmp_path_factory) -> tuple[Path, str]:
    """A store that forgot two samples, each with a signed receipt, and the public key. Not to be written to."""
    root = tmp_path_factory.mktemp("signed")
    path = shutil.copytree(finished, root / "store")
    key = make_key(root / "key.pem")
    for row in (1, 3):
        with open_store(path) as store:
            taftcache.forget(store, [store.shard("000").sample_ids[row]], signing_key=root / "key.pem")
    return path, key


@pytest.fixture
def copy(signed, tmp_path) -> Path:
    """A copy with the record beside it."""
    shutil.copy(f"{signed[0]}.forgotten", tmp_path / "store.forgotten")
    return shutil.copytree(signed[0], tmp_path / "store")


def kinds(path: Path, **options) -> list[str]:
    return [finding.kind for finding in taftcache.audit(path, **options).findings]


def strip(entries: list[dict]) -> list[dict]:
    return [{k: v for k, v in entry.items() if k not in ("signature", "public_key")} for entry in entries]


def as_before(entries: list[dict]) -> list[dict]:
    """Receipts as earlier releases wrote them, unsigned."""
    return [{k: v for k, v in entry.items() if k != ledger.AFTER} for entry in strip(entries)]


def without_any(path: Path) -> None:
    """Neither tombstones nor their key nor receipts."""
    forge_ledger(path, lambda entries: [], tombstones=[], tombstone_key="")
    (path / "tombstones.key").unlink()


def swap_tombstone(path: Path) -> None:
    with FeatureStore(path) as store:
        rest = list(store.manifest.tombstones)[1:]
    forge(path, tombstones=["0" * 64, *rest])


FORGED: dict[str, Callable[[Path], object]] = {
    "receipts deleted": lambda path: forge_ledger(path, lambda entries: []),
    "last receipt dropped": lambda path: forge_ledger(path, lambda entries: entries[:1]),
    "first receipt dropped, as before": lambda path: forge_ledger(path, lambda entries: as_before(entries)[1:]),
    "tombstones emptied": lambda path: forge(path, tombstones=[]),
    "tombstones emptied, as before": lambda path: forge_ledger(path, as_before, tombstones=[]),
    "another tombstone": swap_tombstone,
    "all removed": without_any,
}


@pytest.mark.parametrize(
    "value", [{"copies": "xxx"}, {"time": 5}, {"certificates": [1]}], ids=lambda value: next(iter(value))
)
def test_an_entry_that_no_request_writes_is_found(copy, value):
    forge_ledger(copy, lambda entries: [*entries[:-1], entries[-1] | value])
    with pytest.raises(FormatError, match="no request to forget writes"):
        taftcache.receipts(copy)
    assert "ledger" in kinds(copy)


@pytest.mark.law("An audit ties receipts, tombstones and the record beside the store to each other")
@pytest.mark.parametrize("how", FORGED)
def test_what_is_gone_from_one_place_is_known_in_another(copy, how):
    assert kinds(copy) == []
    FORGED[how](copy)
    assert "tombstones" in kinds(copy)


def test_a_receipt_in_another_text_is_found(signed, copy):
    """Of two equal keys the last one is read, and signed; whoever opens the file sees the first."""
    with FeatureStore(copy) as store:
        ref = store.manifest.ledger
    file = copy / ledger.entry_path(2, ref.head)
    edited = b'{"samples":999,"mode":"everything was erased",' + file.read_bytes()[1:]
    file.unlink()
    (copy / ledger.entry_path(2, digest(edited))).write_bytes(edited)
    forge(copy, ledger=LedgerRef(2, digest(edited)))
    report = taftcache.audit(copy, public_key=signed[1])
    assert ("ledger", "not canonical JSON") in {(f.kind, f.problem.rpartition("it is ")[2]) for f in report.findings}
    assert report.signed == 0


def test_receipts_of_earlier_releases_are_no_finding(copy):
    forge_ledger(copy, as_before)
    assert kinds(copy) == []
    with open_store(copy) as store:
        taftcache.destroy_key(store)
    forge_ledger(copy, as_before)
    assert kinds(copy) == []


def test_replay_takes_the_tombstones_beside_the_store_over(copy):
    without_any(copy)
    report = taftcache.audit(copy, replay=True)
    assert (report.findings, report.tombstones, report.receipts) == ([], 2, 0)


def test_a_replay_is_signed(signed, copy, tmp_path):
    backup = shutil.copytree(copy, tmp_path / "backup")
    with open_store(copy) as store:
        taftcache.forget(
            store, [store.shard("000").sample_ids[0]], shards=["001"], signing_key=signed[0].parent / "key.pem"
        )
    shutil.rmtree(copy)
    shutil.copytree(backup, copy)
    with pytest.raises(RecipeError, match="replay"):
        taftcache.audit(copy, signing_key=signed[0].parent / "key.pem")
    with pytest.raises(RecipeError, match="signing key"):
        taftcache.audit(copy, replay=True, signing_key=tmp_path / "nowhere.pem")
    report = taftcache.audit(copy, public_key=signed[1], replay=True, signing_key=signed[0].parent / "key.pem")
    assert (report.findings, report.receipts, report.signed) == ([], 3, 4)  # one took over the tombstone of the shard
    assert report.replayed > 1


@pytest.mark.law("With a public key, an audit takes nothing in a ledger that the key's holder did not sign")
def test_a_public_key_wants_signatures(signed, copy):
    key = signed[1]
    report = taftcache.audit(copy, public_key=f" {key.upper()}\n")
    assert (report.findings, report.signed) == ([], 2)
    with pytest.raises(RecipeError, match="64 hex digits"):
        taftcache.audit(copy, public_key="abc")
    forge_ledger(copy, strip)
    assert kinds(copy, public_key=key) == ["signature"] * 2
    forge_ledger(copy, lambda entries: [])
    assert "signature" in kinds(copy, public_key=key)


def test_a_second_key_is_named(signed, copy, tmp_path, capsys):
    """An entry that somebody else signed counted like the others."""
    mine, other = signed[1], make_key(tmp_path / "other.pem")
    report = taftcache.audit(copy)
    assert (report.signers, [note for note in report.notes if "keys" in note]) == ({mine: 2}, [])
    show_audit(report)
    assert f"2 of 2 entries signed by {mine[:8]};" in capsys.readouterr().out
    with open_store(copy) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[0]], signing_key=tmp_path / "other.pem")
    report = taftcache.audit(copy)
    assert (report.findings, report.signed, report.signers) == ([], 3, {mine: 2, other: 1})
    (note,) = [note for note in report.notes if "keys" in note]
    assert note.startswith(f"the ledger is signed with 2 different keys: {mine[:8]} (2 entries), {other[:8]} (1 entry)")
    show_audit(report)
    assert f"3 of 3 entries signed by {mine[:8]} and {other[:8]};" in " ".join(capsys.readouterr().out.split())
    show_receipts(taftcache.receipts(copy))
    said = capsys.readouterr().out
    assert [said.count(f"  signed by {key[:8]}; ledger/") for key in (mine, other)] == [2, 1]


@pytest.mark.law("With a public key, an audit takes nothing in a ledger that the key's holder did not sign")
def test_a_signature_is_of_one_store(signed, copy):
    """A signed ledger, with its tombstones and their key, could be put into any store."""
    with FeatureStore(copy) as store:
        identity = store.identity
    forge(copy, identity={**identity, "backbone": {**identity["backbone"], "weights_digest": "sha256:" + "0" * 64}})
    assert {receipt.signature for receipt in taftcache.receipts(copy).receipts} == {"wrong"}
    found = [f for f in taftcache.audit(copy, public_key=signed[1]).findings if f.kind == "signature"]
    assert [(f.where, f.problem) for f in found] == [
        (f"ledger/00000{seq}", "it was signed in another store") for seq in (1, 2)
    ]


def test_a_conversion_takes_signed_receipts_along(signed, copy, tmp_path):
    taftcache.convert(copy, tmp_path / "converted", dtype="float32")
    with FeatureStore(copy) as old, FeatureStore(tmp_path / "converted") as new:
        assert old.identity != new.identity
    assert "signature" not in kinds(tmp_path / "converted", public_key=signed[1])


def test_a_signature_of_an_earlier_build_is_valid_and_names_no_store(finished, tmp_path):
    path, key = shutil.copytree(finished, tmp_path / "store"), make_key(tmp_path / "key.pem")
    with open_store(path) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[1]])

    def as_signed_before(entries: list[dict]) -> list[dict]:
        said = {**entries[0], "public_key": key}
        text = canonical({**said, "seq": 1, "previous": ""})
        return [{**said, "signature": Signer(tmp_path / "key.pem").sign(text)}]

    forge_ledger(path, as_signed_before)
    report = taftcache.audit(path, public_key=key)
    assert (report.findings, report.signed) == ([], 1)
    nameless = "ledger/000001: the signature, of an earlier build, does not say of which store it is"
    assert any(note.startswith(nameless) for note in report.notes)
    with open_store(path) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[3]], signing_key=tmp_path / "key.pem")
    report = taftcache.audit(path, public_key=key)
    assert (report.findings, report.signed) == ([], 2)
    assert not any(note.startswith(nameless) for note in report.notes)


def test_what_was_cut_off_a_signed_ledger_shows_only_against_a_pinned_head(signed, copy, tmp_path):
    """The store and the file beside it, both put back: neither knows of the request since."""
    beside, file = tmp_path / "store.forgotten", tmp_path / "head.json"
    whole, remembered = shutil.copytree(copy, tmp_path / "whole"), beside.read_bytes()
    with open_store(copy) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[0]], signing_key=signed[0].parent / "key.pem")
    assert kinds(copy, public_key=signed[1], head=file) == []
    shutil.rmtree(copy)
    whole.rename(copy)
    beside.write_bytes(remembered)
    report = taftcache.audit(copy, public_key=signed[1])
    with FeatureStore(copy) as store:
        newest = f"the newest entry is ledger/000002 of {store.ledger()[1]['time']}: "
    assert (report.findings, [note.startswith(newest) for note in report.notes].count(True)) == ([], 1)
    report = taftcache.audit(copy, public_key=signed[1], head=file)
    assert [finding.kind for finding in report.findings] == ["head"]
    assert not any("the newest entry is" in note for note in report.notes)


def test_private_training_is_signed_and_must_be(finished, tmp_path):
    path, key = shutil.copytree(finished, tmp_path / "store"), make_key(tmp_path / "key.pem")
    with open_store(path) as store:
        taftcache.train_private(store, settings(store), shards=["000"])
    found = taftcache.audit(path, public_key=key)
    assert [f.problem for f in found.findings] == ["the entry is not signed"]
    with open_store(path) as store:
        taftcache.train_private(store, settings(store), shards=["001"], signing_key=tmp_path / "key.pem")
    report = taftcache.audit(path, public_key=key)
    assert (report.findings, report.signed) == ([], 1)
    assert any("ledger/000001" in note and "not signed" in note for note in report.notes)


PINNED = ["entries", "head", "store"]


@pytest.mark.law("A ledger that was emptied, shortened or written anew is found by the entry that was pinned")
def test_a_pinned_head(signed, copy, tmp_path):
    file = tmp_path / "head.json"
    assert kinds(copy, head=file) == []
    pinned = json.loads(file.read_text(encoding="utf-8"))
    assert pinned["entries"] == 2
    assert taftcache.audit(copy, head=file).newest.head == pinned["head"]
    whole = shutil.copytree(copy, tmp_path / "whole")
    for change in (strip, lambda entries: entries[:1], lambda entries: []):
        forge_ledger(copy, change)
        assert "head" in kinds(copy, head=file)
        assert json.loads(file.read_text(encoding="utf-8")) == pinned
    with open_store(whole) as store:
        taftcache.forget(store, [store.shard("001").sample_ids[0]])
    assert kinds(whole, head=file) == []
    assert json.loads(file.read_text(encoding="utf-8"))["entries"] == 3
    file.write_text("[]")
    with pytest.raises(FormatError, match="newest entry"):
        taftcache.audit(whole, head=file)
    other = {**pinned, "store": "0" * 64}
    file.write_text(json.dumps(other))
    (found,) = taftcache.audit(whole, head=file).findings
    assert (found.kind, "if an old copy was put back and replayed" in found.do) == ("head", True)


@pytest.mark.parametrize(
    "changed",
    [*({"entries": count} for count in (-1, True, 2.0, "2", None)), {"head": 1}, {"more": 1}, *PINNED],
    ids=str,
)
def test_a_pinned_head_of_another_form_is_refused(copy, tmp_path, changed):
    """A count of -1 was looked up from the ledger's end, and held of every ledger that ends so."""
    file = tmp_path / "head.json"
    assert kinds(copy, head=file) == []
    pin = json.loads(file.read_text(encoding="utf-8"))
    with FeatureStore(copy) as store:
        pin["head"] = store.ledger()[-1]["previous"]
    changed = pin | changed if isinstance(changed, dict) else {k: v for k, v in pin.items() if k != changed}
    file.write_text(json.dumps(changed))
    with pytest.raises(FormatError, match="newest entry as an audit writes it"):
        taftcache.audit(copy, head=file)
    assert json.loads(file.read_text(encoding="utf-8")) == changed


def test_a_pinned_head_that_cannot_be_moved_costs_no_report_and_is_no_fault_of_the_store(
    copy, tmp_path, monkeypatch, capsys
):
    """The whole audit was lost for it, where nothing had changed, too; later the verdict was that it failed."""
    file = tmp_path / "head.json"
    assert kinds(copy, head=file) == []

    def refuse(file, value):
        raise StoreWriteError(f"cannot write {file}", got="Read-only file system", do="name another file")

    monkeypatch.setattr("taftcache.stages.audit.pin.write_json", refuse)
    assert kinds(copy, head=file) == []
    report = taftcache.audit(copy, head=tmp_path / "new.json")
    fault = f"the newest entry is not saved: cannot write {tmp_path / 'new.json'}"
    assert report.passed
    assert report.unsaved == [fault, "  got: Read-only file system", "  try: name another file"]
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(copy), "--ledger-head", str(tmp_path / "new.json"), "--json"])
    assert ended.value.code == 5
    out, err = capsys.readouterr()
    assert json.loads(out)["passed"]
    assert err.splitlines() == [f"taftcache: {fault}", *report.unsaved[1:]]


def test_a_folder_in_the_place_of_a_pinned_head(copy, tmp_path):
    with pytest.raises(FormatError, match=r"cannot read .*: a folder is where a file must be\n.*name a file"):
        taftcache.audit(copy, head=tmp_path)
    assert kinds(copy) == []


def test_a_clock_that_ran_back_is_a_note(copy):
    forge_ledger(copy, lambda entries: [strip(entries)[0], {**strip(entries)[1], "time": "2001-01-01T00:00:00+00:00"}])
    report = taftcache.audit(copy)
    assert report.findings == []
    assert any("dated before ledger/000001" in note for note in report.notes)


@pytest.mark.parametrize(("days", "named"), [(2, True), (0.5, False)])
def test_a_clock_that_ran_ahead_is_a_note(copy, days, named):
    later = datetime.now(UTC) + timedelta(days=days)
    forge_ledger(copy, lambda entries: [strip(entries)[0], {**strip(entries)[1], "time": later.isoformat()}])
    report = taftcache.audit(copy)
    assert report.findings == []
    said = f"ledger/000002 is dated {later:%Y-%m-%d}, after today: a clock was or is wrong"
    assert (said in report.notes) == named


def certificate(**fields: float) -> Callable[[dict], dict]:
    return lambda meta: {**meta, "certificate": {**meta["certificate"], **fields}}


def lessened(meta: dict) -> dict:
    """A little less of the dual residual and what follows from it, between what bounds from both sides allow."""
    said = {field.name: meta["certificate"][field.name] for field in fields(Certificate)}
    return {**meta, "certificate": Certificate(**said | {"residual": 0.995 * said["residual"]}).as_dict()}


TINY = {"gradient": 1e-20, "rounding": 0.0, "distance_bound": 1e-17, "gap_bound": 1e-30, "energy_bound": 1e-18}
META_FORGED: dict[str, tuple[str, Callable[[dict], dict], dict[str, bool], str]] = {
    "bound of the head": ("models/head", certificate(distance_bound=1e-30), {}, "certificate"),
    "whole certificate": ("components/000", certificate(**TINY, residual=1e-20), {}, "certificate"),
    "tightened bound": ("components/000", certificate(tightened=1e-20, distance_bound=1e-17), {}, "certificate"),
    "scale": ("components/000", certificate(gradient_at_zero=1e30), {}, "certificate"),
    "norm": ("components/000", lambda meta: {**meta, "norm": 0.5 * meta["norm"]}, {}, "certificate"),
    "ridge": ("components/000", certificate(ridge=1e3), {}, "certificate"),
    "manifest alone": ("models/head", certificate(distance_bound=1e-30), {"file": False}, "description"),
    "file alone": ("models/mean", lambda meta: {**meta, "norm": 0.0}, {"manifest": False}, "description"),
    "shards in the file": ("components/000", lambda m: {**m, "shards": ["x"]}, {"manifest": False}, "description"),
    "shards in both": ("components/000", lambda m: {**m, "shards": ["x"]}, {}, "description"),
    "promise in the file": ("models/mean", lambda m: {**m, PRIVATE: {}}, {"manifest": False}, "privacy statement"),
}


@pytest.mark.law(
    "Every bound that an audit prints is proven from the rows, and a recorded one that is smaller is found"
)
@pytest.mark.parametrize("how", META_FORGED)
def test_what_a_component_says_is_held_against_rows_and_file(copy, how):
    name, change, places, kind = META_FORGED[how]
    true = taftcache.audit(copy).certificates.get(name)
    forge_meta(copy, name, change, **places)
    report = taftcache.audit(copy)
    assert kind in {finding.kind for finding in report.findings}
    if true is not None and "ridge" not in how:
        assert report.certificates[name].distance_bound == true.distance_bound


@pytest.mark.law(
    "Every bound that an audit prints is proven from the rows, and a recorded one that is smaller is found"
)
def test_a_bound_from_dual_vectors_that_are_not_kept(store, monkeypatch, capsys):
    """A solve with the same bytes has them again; on another machine only a bound below what can be true is found."""

    def problems(report) -> list[str]:
        return [f.problem for f in report.findings if (f.kind, f.where) == ("certificate", "components/000")]

    monkeypatch.setattr(minimise, "DIRECT", 0)  # as if the shards were large: they go through the space of the rows
    taftcache.run(recipe(store, solver={"tolerance": 1e-4}))
    report = taftcache.audit(store)
    assert (report.findings, report.notes) == ([], [])
    for name in ("components/000", "components/001"):
        figures = report.certificates[name]
        assert figures.distance_bound == pytest.approx(figures.distance_recorded, rel=1e-6)
    forge_meta(store, "components/000", lessened)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Settings, "dual_again", lambda *arguments: None)
        report = taftcache.audit(store)
        assert problems(report) == []
        assert report.certificates["components/000"].distance_bound > figures.distance_recorded
        assert "components/000" in report.looser
        show_audit(replace(report, findings=[]))
        assert f"proven, {len(report.looser)} of them more loosely than recorded" in capsys.readouterr().out
        assert any("by this version on this machine ends with other bytes" in note for note in report.notes)
    assert "is what is proven" in problems(taftcache.audit(store))[0]


@pytest.mark.parametrize("private", [True, False])
def test_a_private_flag_is_that_of_the_ledger(trained, tmp_path, private):
    path = shutil.copytree(trained, tmp_path / "store")
    if private:
        forge_ledger(path, lambda entries: [{**entry, "private": False} for entry in entries])
    else:
        forge_meta(path, "components/000", lambda meta: {**meta, PRIVATE: {**meta[PRIVATE], "private": False}})
    assert "privacy statement" in kinds(path)


def test_the_shards_of_a_private_component_are_those_of_the_ledger(private):
    forge_meta(private, "components/000", lambda meta: {**meta, "shards": ["001"]})
    assert "privacy statement" in kinds(private)


def test_what_is_said_of_tuning_is_that_of_the_ledger(trained, tmp_path):
    path = shutil.copytree(trained, tmp_path / "store")
    forge_ledger(path, lambda entries: [{**entry, "tuning": "NOT charged"} for entry in entries])
    assert "privacy statement" in kinds(path)


def test_the_last_entry_of_a_component_counts(private):
    """An entry of another training, with the flag that is claimed, does not help."""
    with FeatureStore(private) as store:
        (claimed, *_) = [e for e in store.ledger() if e["event"] == EVENT and e["component"] == "components/000"]
    forge_ledger(private, lambda entries: [*entries, {**entries[0], "private": False}])
    assert claimed["private"]
    assert "privacy statement" in kinds(private)


def test_the_command_says_what_it_found(copy, tmp_path):
    args = ["audit", str(copy), "--ledger-head", str(tmp_path / "head.json")]
    good = CliRunner().invoke(app, args)
    assert good.exit_code == 0
    assert "newest entry 2" in good.output
    forge_ledger(copy, lambda entries: [])
    bad = CliRunner().invoke(app, [*args, "--json"])
    assert bad.exit_code == 10
    assert {finding["kind"] for finding in json.loads(bad.output)["findings"]} == {"tombstones", "head"}


@pytest.mark.parametrize(("radius", "outside"), [(0.5, False), (0.25, True)])
def test_a_component_outside_of_its_ball_is_found(tmp_path, radius, outside):
    path = tmp_path / "store"
    taftcache.run(recipe(path, objective={"radius": 0.5}, data={"source": "digits", "limit": 30}))
    with open_store(path) as store:
        made, found = settings_of(store).at(radius=radius), Findings(store=path)
        component = read_component(store, "components/000", made.base)
        check_certificate("components/000", component, made, [store.shard("000")], found)
    assert any("outside of the ball of radius 0.25" in each.problem for each in found.findings) == outside


@pytest.mark.parametrize("kind", ["pipe", "zeros", "a terabyte"])
def test_what_is_no_pin_is_not_read_without_end(finished, tmp_path, kind):
    file = tmp_path / "head"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "zeros":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, 1 << 40)
    with pytest.raises(FormatError, match="is not a"):
        taftcache.audit(finished, head=file)
