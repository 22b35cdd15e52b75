"""What a reader meets while another process writes, or where it may not read: damage is claimed where there is some."""

from __future__ import annotations

import errno
import json
import pkgutil
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache import FeatureStore
from taftcache.cache.place.folder import Folder
from taftcache.cache.write.writer import ShardWriter
from taftcache.cli import main
from taftcache.errors import IntegrityError, StoreChanged, StoreError, StoreLocked, StoreUnreachable
from tests.cli.test_waiting import another_writer
from tests.stages.making import open_store

READS = {
    "rows": lambda store: store.shard("000").tokens(slice(None)),
    "labels": lambda store: store.shard("000").labels,
    "a model": lambda store: store.read_object("models/mean"),
    "the ledger": lambda store: store.ledger(),
    "everything": lambda store: store.verify(),
    "accuracy": taftcache.evaluate,
}


@pytest.fixture
def store(solved, tmp_path) -> Path:
    return shutil.copytree(solved, tmp_path / "store")


def erase_first(path: Path) -> None:
    with open_store(path) as store:
        taftcache.forget(store, [store.shard("000").sample_ids[0]])


def put_something(path: Path) -> None:
    with open_store(path) as store, store.transaction() as change:
        change.put("state/other", b"of a program")


def spoil(file: Path) -> None:
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))


@pytest.mark.law("Damage is found, and nothing else is called damage")
@pytest.mark.parametrize("what", [what for what in READS if what != "the ledger"])
def test_a_reader_that_outlives_its_commit_is_told_so(store, what):
    with FeatureStore(store) as reader:
        erase_first(store)
        with pytest.raises(StoreChanged, match="committed anew"):
            READS[what](reader)
    with FeatureStore(store) as reader:
        READS[what](reader)


@pytest.mark.law("Damage is found, and nothing else is called damage")
def test_what_is_missing_without_a_commit_is_damage(store):
    with FeatureStore(store) as reader:
        (file,) = store.glob("models/mean-*")
        file.unlink()
        with pytest.raises(IntegrityError, match="missing"):
            reader.read_object("models/mean")
        assert [fault.problem for fault in reader.verify()] == ["it is missing"]


def test_the_store_that_committed_reads_on(store):
    with open_store(store) as writer:
        taftcache.forget(writer, [writer.shard("000").sample_ids[0]])
        (file,) = store.glob("models/mean-*")
        file.unlink()
        with pytest.raises(IntegrityError):
            writer.read_object("models/mean")


@pytest.mark.law("Damage is found, and nothing else is called damage")
@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("reason", [errno.EACCES, errno.EMFILE])
def test_what_may_not_be_read_is_no_damage(store, monkeypatch, what, reason):
    erase_first(store)

    def refused(self: Folder, name: str, *rest: object) -> object:
        if name == "manifest.json":
            return kept(self, name, *rest)
        raise OSError(reason, "refused", name)

    kept = Folder.read
    with FeatureStore(store) as reader:
        monkeypatch.setattr(Folder, "read", refused)
        monkeypatch.setattr(Folder, "view", refused)
        with pytest.raises(StoreUnreachable, match="cannot read"):
            READS[what](reader)


def test_whether_a_row_is_there_is_not_answered_from_an_earlier_commit(store):
    """A notebook's reader, opened before a call forgot the sample, went on to say that the store has it."""
    with FeatureStore(store) as reader:
        first = reader.shard("000").sample_ids[0]
        put_something(store)  # which changes no row
        assert reader.holds(first)
        erase_first(store)
        with pytest.raises(StoreChanged, match="open it again"):
            reader.holds(first)
    with FeatureStore(store, mode="a") as writer:
        second = writer.shard("000").sample_ids[0]
        taftcache.forget(writer, [second])
        assert not writer.holds(first)
        assert not writer.holds(second)
        with FeatureStore(store) as reader:
            tokens = writer.shard("000").tokens(slice(0, 1))
            with writer.writer("002", "train", tokens_shape=tokens.shape[1:], candidates=["new"]) as rows:
                rows.append(tokens, ["new"], np.zeros(1, np.int32))
                rows.commit()
            with pytest.raises(StoreChanged, match="open it again"):
                reader.holds("new")
        assert writer.holds("new")


def test_the_audit_beside_a_writer_leaves_its_unfinished_work_out(store):
    (store / "staging/transaction").mkdir(parents=True)
    (store / "staging/transaction/1.json").write_text("{}")
    assert [f.kind for f in taftcache.audit(store).findings] == ["unfinished work"]
    with another_writer(store):
        report = taftcache.audit(store)
    assert report.findings == []
    assert any("another process writes" in said for said in report.notes)


def test_the_audit_that_a_commit_overtook_finds_nothing(store, monkeypatch):
    from taftcache.stages.audit import auditing

    def overtaken(opened: FeatureStore, progress: object, to: object) -> None:
        if not done:
            done.append(True)
            erase_first(store)
        kept(opened, progress, to)

    done, kept = [], auditing.check_damage
    monkeypatch.setattr(auditing, "check_damage", overtaken)
    with pytest.raises(StoreChanged):
        taftcache.audit(store)
    assert taftcache.audit(store).findings == []


LEAVING = {
    "rows": ("taftcache.stages.files.exchange.write_hdf5", taftcache.export, "rows.h5"),
    "component": (
        "taftcache.model.component.Component.encode",
        lambda store, place: taftcache.export_component(store, "000", place),
        "000.safetensors",
    ),
    "model": ("taftcache.stages.files.models.save_model", taftcache.export_model, "model"),
    "report": (
        "taftcache.view.report.report_page",
        lambda store, place: taftcache.write_report(store, place, neighbours=False),
        "report.html",
    ),
    "copy": ("taftcache.cache.copying.verify", taftcache.copy, "copy"),
}


@pytest.mark.law("What is forgotten while it is exported does not leave")
@pytest.mark.parametrize("what", LEAVING)
def test_what_is_forgotten_while_it_leaves_stays(store, tmp_path, monkeypatch, what):
    """All has been read when another process forgets; only rows that come are no reason to begin again."""
    step, leave, name = LEAVING[what]
    place = tmp_path / "out" / name
    place.parent.mkdir()
    kept, commits = pkgutil.resolve_name(step), [erase_first]

    def overtaken(*arguments: object, **named: object) -> object:
        made = kept(*arguments, **named)
        if commits:
            commits.pop()(store)
        return made

    monkeypatch.setattr(step, overtaken)
    with pytest.raises(StoreChanged):
        leave(store, place)
    assert not (FeatureStore.exists(place) if what == "copy" else place.exists())
    commits.append(put_something)
    leave(store, place)
    assert (place.exists(), commits) == (True, [])


@pytest.mark.law("What is forgotten while it is exported does not leave")
def test_no_shard_is_converted_of_which_rows_are_forgotten_meanwhile(store, tmp_path, monkeypatch):
    """When all of them have been read."""

    def overtaken(writer: ShardWriter, *arguments: object) -> None:
        kept(writer, *arguments)
        if writer.consumed == rows and forgets:
            forgets.pop()(store)

    with FeatureStore(store) as there:
        rows = there.shard("000").rows
    kept, forgets, place = ShardWriter.append, [erase_first], tmp_path / "target"
    monkeypatch.setattr(ShardWriter, "append", overtaken)
    with pytest.raises(StoreChanged):
        taftcache.convert(store, place, chunk_rows=1024)
    with FeatureStore(place) as made:
        assert made.shards == []
    assert taftcache.convert(store, place, chunk_rows=1024).rows > 0


@pytest.mark.parametrize(("times", "code"), [(1, 0), (9, StoreChanged.exit_code)])
def test_a_command_begins_again_after_anothers_commit(store, monkeypatch, capsys, times, code):
    kept, left = taftcache.verify, [None] * times

    def overtaken(*arguments: object, **named: object) -> object:
        if left:
            left.pop()
            raise StoreChanged("the store was committed anew")
        return kept(*arguments, **named)

    monkeypatch.setattr(taftcache, "verify", overtaken)
    with pytest.raises(SystemExit) as end:
        main(["verify", str(store), "--json"])
    told = capsys.readouterr()
    assert end.value.code == code
    assert json.loads(told.out).get("exit_code", 0) == code
    assert told.err.count("once more") == min(times, 2)


def test_only_what_passes_by_itself_has_the_code_for_trying_again(store):
    assert StoreLocked.exit_code == StoreChanged.exit_code != IntegrityError.exit_code


@pytest.mark.parametrize("file", ["shards/000-*/tokens/c.0*", "shards/000-*/labels/c.0", "shards/000-*/sample_id/c.0"])
def test_the_audit_of_a_damaged_store_is_a_list(store, file):
    erase_first(store)
    spoil(next(iter(store.glob(file))))
    advice = {finding.kind: finding.do for finding in taftcache.audit(store).findings}
    assert f"taftcache verify {store} --repair" in advice["damage"]


def test_a_store_is_written_to_where_it_was_opened(store):
    """Whatever else a thread or a fork would do with it, the store and its other users stay as they are."""
    with open_store(store) as opened:
        ids = opened.shard("000").sample_ids[:4]
        with ThreadPoolExecutor(2) as pool:
            for error in pool.map(lambda one: _refused(taftcache.forget, opened, [one]), ids[:2]):
                assert "another thread" in error
        with ProcessPoolExecutor(
            1, mp_context=get_context("fork"), initializer=_opened.append, initargs=(opened,)
        ) as p:
            assert "another process" in p.submit(_refused_there, ids[2]).result()
        assert taftcache.forget(opened, ids[3:]).forgotten == ids[3:]
    assert taftcache.audit(store).findings == []


_opened: list[FeatureStore] = []


def _refused(verb: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(StoreError) as caught:
        verb(*arguments)
    return caught.value.fault


def _refused_there(one: str) -> str:
    return _refused(taftcache.forget, _opened[0], [one])
