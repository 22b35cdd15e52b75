"""Rows of other ids with the very bytes of a forgotten row: named, counted, and taken out where that is asked for"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.cache.store import FeatureStore
from taftcache.cli import main
from taftcache.stages.look import evaluation
from taftcache.terminal.forgetting import forgotten_lines, show_receipts
from tests.stages.making import commits, open_store

N, D = 40, 6
IDS = [f"v/{k:02d}" for k in range(N)]
LABELS = np.array(["ant", "bee"])[np.arange(N) % 2]
COPIES = ["test/00000001", "v/07", "v/30"]  # of v/04: one is held out, one has another label
STAYED = "ledger/000001: 3 rows of other ids held the very bytes of what it forgot, and stayed"
OVERRIDES = ["store.shards=2", "store.chunk_rows=8", "store.dtype=float32", "device=cpu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Forty vectors, two of them copies of v/04, and a copy that is held out. Not to be written to."""
    path = tmp_path_factory.mktemp("copies") / "store"
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    x[7] = x[30] = x[4]
    x[9] = np.nextafter(x[4], np.float32(9))  # not the same bytes
    test = (np.stack([x[0] + 1, x[4]]), LABELS[:2])
    taftcache.import_vectors(x, LABELS, path, ids=IDS, test=test, scaling="none", overrides=OVERRIDES)
    return path


@pytest.mark.law(
    "Rows with the very bytes of a forgotten one are named, counted, and forgotten where that is asked for"
)
def test_copies_are_named_counted_and_forgotten_with_it(made, tmp_path, capsys):
    path, by_id = (shutil.copytree(made, tmp_path / name) for name in ("store", "by_id"))
    with pytest.raises(SystemExit):
        main(["forget", str(path), "--sample", "v/04", "--with-copies", "--dry-run", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert sorted(told["forgotten"]) == [*COPIES[:1], "v/04", *COPIES[1:]]
    assert (sorted(told["copies_taken"]), told["copies"]) == (COPIES, [])
    with open_store(path) as store:
        planned = taftcache.forget(store, ["v/04"], dry_run=True)
        assert sorted(planned.copies) == COPIES
        assert "3 rows with the very same bytes would stay" in "\n".join(forgotten_lines(planned))
        report = taftcache.forget(store, ["v/04"])
        assert (report.forgotten, sorted(report.copies)) == (["v/04"], COPIES)
        for copies, says in ((COPIES, "3 rows with the very same bytes stay: "), (COPIES[:1], " bytes stays: ")):
            said = "\n".join(forgotten_lines(replace(report, copies=copies)))
            assert says in said
            assert "(taftcache forget STORE --sample ID)" in said
        entry = store.ledger()[-1]
        assert entry["copies"] == 3
        assert not any(name in str(entry) for name in COPIES), "their ids would remain in the ledger"
        assert [n for n in taftcache.audit(store).notes if "very bytes" in n] == [STAYED]
        rest = taftcache.forget(store, ["v/30"], with_copies=True)
        others = [i for i in COPIES if i != "v/30"]
        assert (sorted(rest.forgotten), sorted(rest.copies_taken), rest.copies) == (COPIES, others, [])
        assert "2 of them not named, but with the very same bytes as one that was: " in "\n".join(forgotten_lines(rest))
        assert (store.ledger()[-1]["copies"], store.ledger()[-1]["copies_taken"]) == (0, 2)
        assert not any(name in str(store.ledger()[-1]) for name in COPIES), "their ids would remain in the ledger"
    show_receipts(taftcache.receipts(path))
    said = capsys.readouterr().out
    assert "2 of the ids not named, but with the very same bytes as one that was" in said
    assert "3 rows of other ids held the very same bytes, and stayed then" in said
    audited = taftcache.audit(path)
    assert (audited.findings, [n for n in audited.notes if "very bytes" in n]) == (
        [],
        [f"{STAYED} then; a later request may have taken them"],
    )
    with open_store(by_id) as store:
        once = taftcache.forget(store, iter(["v/04"]), with_copies=True)  # read once, and looked up twice
    assert sorted(once.forgotten) == [*COPIES[:1], "v/04", *COPIES[1:]]
    by_id = shutil.copytree(made, tmp_path / "named")
    with open_store(by_id) as store:
        taftcache.forget(store, ["v/04", *COPIES])
    assert commits(by_id) == commits(path)


@pytest.mark.parametrize("with_copies", [False, True])
def test_a_dry_run_names_every_copy(tmp_path, with_copies):
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    x[1:20] = x[0]
    taftcache.import_vectors(x, LABELS, tmp_path / "store", ids=IDS, overrides=OVERRIDES)
    planned = taftcache.forget(tmp_path / "store", ["v/00"], dry_run=True, with_copies=with_copies)
    assert sorted(planned.copies_taken if with_copies else planned.copies) == IDS[1:20]
    (said,) = [line for line in forgotten_lines(planned) if "very same bytes" in line]
    assert [i for i in IDS[1:20] if i not in said] == []


def staged(made: Path, path: Path) -> Path:
    """A copy with a chunk of an unfinished shard, whose second row has the bytes of v/04."""
    with open_store(shutil.copytree(made, path)) as store:
        shard, row = store.locate("v/04")
        tokens = np.concatenate([shard.tokens(slice(row, row + 1)) + 1, shard.tokens(slice(row, row + 1))])
        shape, ids = tokens.shape[1:], ["new/0", "new/1"]
        with store.writer("002", "train", chunk_rows=2, dtype="float32", tokens_shape=shape, candidates=ids) as writer:
            writer.append(tokens, ids, [0, 1])
    return path


@pytest.mark.law(
    "Rows with the very bytes of a forgotten one are named, counted, and forgotten where that is asked for"
)
def test_copies_in_an_unfinished_extraction_are_found(made, tmp_path):
    path = staged(made, tmp_path / "store")
    assert sorted(taftcache.forget(path, ["v/04"], dry_run=True).copies) == ["new/1", *COPIES]
    assert sorted(taftcache.forget(path, ["new/1"], dry_run=True).copies) == [*COPIES[:1], "v/04", *COPIES[1:]]
    assert taftcache.forget(path, ["new/0"], dry_run=True).copies == []
    report = taftcache.forget(path, ["v/04"], with_copies=True)
    assert sorted(report.forgotten) == ["new/1", *COPIES[:1], "v/04", *COPIES[1:]]
    with FeatureStore(path) as store:
        assert (store.is_forgotten("new/1"), store.is_forgotten("new/0"), store.staged_ids()) == (True, False, {})
    assert taftcache.audit(path).findings == []


def test_a_damaged_chunk_of_an_unfinished_extraction_is_said_to_be_unsearched(made, tmp_path):
    path = staged(made, tmp_path / "store")
    (chunk,) = (path / "staging").glob("*/group/tokens/c*")
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    report = taftcache.forget(path, ["v/04"])
    assert sorted(report.copies) == COPIES
    assert report.notes == ["shard 002 is damaged: it was not searched for copies of the rows"]


def test_a_damaged_shard_is_said_to_be_unsearched(made, tmp_path):
    path = shutil.copytree(made, tmp_path / "store")
    with FeatureStore(path) as store:
        sample = store.shards[0].sample_ids[0]
        held = store.held_out
        assert held is not None
        chunk = next((path / held.at).glob("tokens/c*"))
    chunk.write_bytes(bytes(len(chunk.read_bytes())))
    with open_store(path) as store:
        report = taftcache.forget(store, [sample])
    assert report.notes == ["shard held-out is damaged: it was not searched for copies of the rows"]


def test_training_rows_among_the_held_out_ones_are_named(made, tmp_path, monkeypatch):
    path = shutil.copytree(made, tmp_path / "store")
    with open_store(path) as store:
        taftcache.train(store)
        report = taftcache.evaluate(store)
        monkeypatch.setattr(evaluation, "SEARCHED", 0)  # all of a large store is read where that is asked for
        assert taftcache.evaluate(store).notes == []
        *notes, no_model = taftcache.evaluate(store, probe=True).notes
        assert (notes, "no model is composed yet" in no_model) == (report.notes, True)
        assert [note.split(":")[0] for note in report.notes] == [
            "1 of 2 held-out rows hold the very bytes of a training row, so no accuracy here is of new rows alone"
        ]
        assert "test/00000001" in report.notes[0]
        assert ": 'a,b', c; next" in evaluation._leaked(store, ["a,b", "c"], store.held_out)[0]
        taftcache.forget(store, ["v/04", "v/07", "v/30"])
        assert taftcache.evaluate(store, probe=True).notes == [no_model]


def test_a_damaged_ledger_is_noted(made, tmp_path):
    path = shutil.copytree(made, tmp_path / "store")
    with open_store(path) as store:
        taftcache.forget(store, ["v/01"])
    (entry,) = (path / "ledger").glob("*.json")
    entry.write_bytes(entry.read_bytes().replace(b"retrain", b"Retrain"))
    with open_store(path) as store:
        report = taftcache.forget(store, ["v/02"])
    assert report.forgotten == ["v/02"]
    assert report.notes[0].startswith(f"the ledger is damaged: file ledger/{entry.name}: its bytes do not have")
    assert "until a copy of that file is put back, and of it alone" in report.notes[0], "verify has no cure"
