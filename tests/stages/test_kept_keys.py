"""Where the key of a store's tombstones lies beside the store, before it is destroyed and after."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.cache.format import ledger
from taftcache.cache.kept_keys import KeptKey
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import read_keys
from taftcache.stages.forget import receipts
from taftcache.terminal.forgetting import forgotten_lines
from taftcache.terminal.inspection import show_inspect
from taftcache.view import payload
from taftcache.view.atlas import Atlas

WAS_LEFT = "left of a store that is not there any more: the key is destroyed there as well"


@pytest.fixture
def moved(tmp_path) -> Path:
    """A store that was moved without the file beside it, which has its key."""
    x = np.random.default_rng(0).normal(size=(24, 4))
    ids = [f"{'uv'[k % 2]}/{k}" for k in range(24)]
    taftcache.import_vectors(x, np.arange(24) % 2, tmp_path / "stores/head", ids=ids, overrides=["store.shards=2"])
    with FeatureStore(tmp_path / "stores/head") as store:
        gone = [i for i in store.sample_ids() if i.startswith("u")][:3]
    taftcache.forget(tmp_path / "stores/head", gone)
    return (tmp_path / "stores/head").rename(tmp_path / "stores/moved")


def guessed(file: Path) -> int:
    """How many ids whoever has a file of tombstones can tell to be forgotten, from a list of likely ones."""
    likely = [f"{c}/{k}" for c in "uv" for k in range(24)]
    return sum(ledger.tombstone(i, key) in held for key, held in read_keys(file).items() for i in likely)


@pytest.mark.law(
    "A key that is destroyed is gone from the folder around the store, or said to be still there, and where"
)
def test_a_file_left_by_a_move_loses_the_key_too(moved):
    left = moved.with_name("head.forgotten")
    assert guessed(left) == 3
    (note,) = taftcache.audit(moved).notes[-1:]
    assert note.startswith(f"{left}: the key of the store's tombstones lies in it, with no store beside it")
    report = taftcache.destroy_key(moved)
    first, *rest = forgotten_lines(report)
    assert first.startswith("the key and the list of tombstones are destroyed")
    assert "receipts keep their hashes" in first
    assert rest == [f"note: {left} had the key, too, {WAS_LEFT}"]
    assert [guessed(left), guessed(moved.with_name("moved.forgotten"))] == [0, 0]
    assert [note for note in taftcache.audit(moved, also=[moved.parent]).notes if "the key " in note] == []


@pytest.mark.law(
    "A key that is destroyed is gone from the folder around the store, or said to be still there, and where"
)
@pytest.mark.parametrize("says", ["its digest", "hashes of ids", "a digest of all tombstones"])
def test_an_audit_knows_a_destroyed_key_wherever_it_is_shown(moved, tmp_path, monkeypatch, says):
    """An entry of an earlier release does not name the key, and one of many ids has no hash of each."""
    if says == "a digest of all tombstones":
        monkeypatch.setattr(receipts, "MAX_IDS", 0)
    with FeatureStore(moved) as store:
        taftcache.forget(moved, [i for i in store.sample_ids() if i.startswith("v")][:3])
    kept = tmp_path / "backups/saved"
    kept.parent.mkdir()
    shutil.copy(moved.with_name("moved.forgotten"), kept)
    report = taftcache.audit(moved, also=[kept.parent])
    assert report.findings == []
    assert [note.split(" with ")[0] for note in report.notes if "saved" in note] == [
        f"{kept.parent}: 1 file (saved) of tombstones: the key of the store's tombstones lies in it,"
    ]
    with monkeypatch.context() as earlier:
        if says != "its digest":
            earlier.setattr(ledger, "DESTROYED_KEY", "said")
        taftcache.destroy_key(moved)
    report = taftcache.audit(moved, also=[kept.parent])
    assert [(f.kind, f.where) for f in report.findings] == [("by-product", str(kept))]
    assert report.findings[0].problem.startswith("it has the key that this store destroyed")
    assert taftcache.audit(moved, also=[kept.parent], harmless=["sav*"]).passed
    kept.rename(moved.with_name("more.forgotten"))
    (finding,) = taftcache.audit(moved).findings
    assert (finding.kind, finding.where) == ("tombstones", str(moved.with_name("more.forgotten")))
    assert "--destroy-key" in finding.do
    assert taftcache.destroy_key(moved).notes[1:] == [f"{finding.where} had the key, too, {WAS_LEFT}"]
    assert taftcache.audit(moved).findings == []


@pytest.mark.law(
    "A key that is destroyed is gone from the folder around the store, or said to be still there, and where"
)
def test_a_copy_keeps_its_key_and_is_named(moved):
    copy = taftcache.copy(moved, moved.with_name("copy")).store
    bare = shutil.copytree(moved, moved.with_name("bare"))  # has the key in its folder alone
    other = moved.with_name("other")
    ids = ["u/0", *(f"w/{k}" for k in range(11))]
    taftcache.import_vectors(np.eye(12), [0, 1] * 6, other, ids=ids, overrides=["store.shards=2"])
    taftcache.forget(other, ["u/0"])
    assert [note for note in taftcache.audit(moved).notes if "the key of" in note and "head" not in note] == []
    told = taftcache.destroy_key(moved).notes
    assert [note.split(" still has ")[0] for note in told[:2]] == [str(bare), str(copy)]
    assert f"taftcache forget {copy} --destroy-key" in told[1]
    assert guessed(moved.with_name("copy.forgotten")) == 3
    report = taftcache.audit(moved)
    named = [n.split(" has ")[0] for n in report.notes if "the key that" in n]
    assert named == [str(bare), str(copy)]
    # Either may have been moved away from it, and come back: then it notices what they have forgotten.
    left = moved.with_name("head.forgotten")
    assert ([finding.where for finding in report.findings], guessed(left)) == ([str(left)], 3)
    assert told[2].startswith(f"{left} still has the key")
    report = taftcache.audit(moved, also=[moved.parent])
    assert [finding.where for finding in report.findings] == [str(left)]
    (note,) = [n for n in report.notes if "the key that" in n]
    assert note.startswith(
        f"{moved.parent}: 3 files (copy.forgotten, bare, copy) with the key that this store destroyed"
    )
    assert not taftcache.audit(moved, also=[moved.parent], strict=True).passed
    for place in (copy, bare):
        taftcache.destroy_key(place)
    assert [note for note in taftcache.audit(moved, also=[moved.parent]).notes if "the key " in note] == []


@pytest.mark.law(
    "A key that is destroyed is gone from the folder around the store, or said to be still there, and where"
)
def test_a_file_that_says_more_than_the_store_is_named_and_kept(moved):
    """It may be that of a store which comes back."""
    copy = taftcache.copy(moved, moved.with_name("copy")).store
    with FeatureStore(copy) as store:
        taftcache.forget(copy, [store.sample_ids()[0]])
    shutil.rmtree(copy)
    damaged = moved.with_name("damaged.forgotten")
    damaged.write_text("{}")
    for name in ".forgotten", "..forgotten", "...forgotten":
        moved.with_name(name).write_text("of another program")
    moved.with_name("manifest.json").write_text("{}")
    (moved.parent / "site").mkdir()
    (moved.parent / "site/manifest.json").write_text('{"name": "of a web page"}')
    file = moved.with_name("copy.forgotten")
    told = taftcache.destroy_key(moved).notes
    assert told[0].startswith(f"{file} still has the key")
    assert told[1] == f"{damaged} cannot be read here, and may have the key, too"
    assert "head.forgotten had the key, too" in told[2]
    assert guessed(file) == 4
    assert len(told) == 3
    report = taftcache.audit(moved)
    (finding,) = report.findings
    assert (finding.where, finding.do) == (str(file), "delete it if no other store needs it")
    assert f"{damaged} cannot be read here, and may have the key of the store's tombstones" in report.notes


@pytest.mark.law(
    "A key that is destroyed is gone from the folder around the store, or said to be still there, and where"
)
def test_a_key_beside_a_link_goes(moved):
    moved.with_name("link").symlink_to(moved)
    moved.with_name("head.forgotten").rename(moved.with_name("link.forgotten"))
    assert "link.forgotten had the key" in " ".join(taftcache.destroy_key(moved).notes)
    assert not moved.with_name("link.forgotten").exists()


@pytest.mark.law(
    "A key that is destroyed is gone from the folder around the store, or said to be still there, and where"
)
def test_a_kill_after_the_commit_is_made_good_by_the_same_command(moved, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    left = moved.with_name("head.forgotten")
    with monkeypatch.context() as patch:
        patch.setattr(KeptKey, "destroy", killed)
        with pytest.raises(KeyboardInterrupt):
            taftcache.destroy_key(moved)
    assert guessed(left) == 3
    assert str(left) in [finding.where for finding in taftcache.audit(moved).findings]
    told = taftcache.destroy_key(moved)
    assert told.root_before == told.root_digest
    assert [note[:40] for note in told.notes] == [
        "there was no key to destroy: nothing was",
        f"{left} had the key"[:40],
    ]
    assert guessed(left) == 0


def test_what_was_forgotten_is_said_before_and_after(moved, capsys):
    """It was the number of tombstones: more than the ids where a shard left, and none without their key."""

    def said() -> str:
        with FeatureStore(moved) as store:
            show_inspect(taftcache.inspect(store))
            (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("forgotten")]
            assert payload.overview(Atlas(store))["forgotten"] == line.removeprefix("forgotten ")
        return line

    with FeatureStore(moved) as store:
        more = store.shards[0].rows
    assert said() == "forgotten 3 ids by 1 receipt; 3 tombstones"
    taftcache.forget(moved, shards=["000"])
    assert said() == f"forgotten {3 + more} ids by 2 receipts; {4 + more} tombstones"
    taftcache.destroy_key(moved)
    assert said() == f"forgotten {3 + more} ids by 2 receipts; the key of the tombstones is destroyed"
    with FeatureStore(moved) as store:
        assert taftcache.inspect(store).forgotten == 0
        taftcache.forget(moved, store.shards[0].sample_ids[:1])
    assert said().endswith("by 3 receipts; 1 tombstone; the key of earlier ones is destroyed")
    next((moved / "ledger").glob("*.json")).write_text("{}")
    with FeatureStore(moved) as store:
        said_damaged = payload.overview(Atlas(store))["forgotten"]
    assert said_damaged == "1 tombstone; the rest is not known, for the ledger is damaged"
