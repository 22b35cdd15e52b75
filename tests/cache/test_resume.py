"""However a shard was written (batches, kills, resumed runs), its bytes are the same."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taftcache.cache.format.digest import SHORT, canonical, digest
from taftcache.cache.format.parts import Skipped
from taftcache.cache.place.folder import Folder
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, StoreUnreachable

from .making import SHAPE, create, fill, holds, label, names, row, tree

IDS = names(26)


def reference(path, **how):
    with create(path) as store:
        fill(store, "000", IDS, batch=len(IDS), **how)
    return tree(path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return reference(tmp_path_factory.mktemp("plain") / "s")


@pytest.fixture(scope="module")
def with_skips(tmp_path_factory):
    return reference(tmp_path_factory.mktemp("skips") / "s", bad=IDS[::5])


@pytest.mark.law("Batches, interruptions and the order of shards leave no trace in a store")
@pytest.mark.parametrize("batch", [1, 3, 4, 7, 26])
def test_batch_size_leaves_no_trace(tmp_path, plain, with_skips, batch) -> None:
    for name, bad, want in (("a", (), plain), ("b", IDS[::5], with_skips)):
        with create(tmp_path / name) as store:
            fill(store, "000", IDS, batch=batch, bad=bad)
        assert tree(tmp_path / name) == want


@pytest.mark.law("Batches, interruptions and the order of shards leave no trace in a store")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), max_size=6),
    skips=st.booleans(),
)
def test_interrupted_runs_leave_no_trace(tmp_path_factory, plain, with_skips, runs, skips) -> None:
    path = tmp_path_factory.mktemp("runs") / "s"
    create(path).close()
    bad = IDS[::5] if skips else ()
    acknowledged = 0
    for batch, stop in runs:
        with FeatureStore(path, mode="a") as store:
            resumed = fill(store, "000", IDS, batch=batch, stop=stop, bad=bad)
            assert resumed >= acknowledged  # at most one chunk is computed again
            rows = sum(i not in bad for i in IDS[: min(resumed + batch * stop, len(IDS))])
            acknowledged = resumed if rows < 4 else IDS.index([i for i in IDS if i not in bad][rows // 4 * 4 - 1]) + 1
            if store.has_shard("000"):
                break
    with FeatureStore(path, mode="a") as store:
        if not store.has_shard("000"):
            fill(store, "000", IDS, bad=bad)
    assert tree(path) == (with_skips if skips else plain)


def test_other_candidates_begin_anew(tmp_path, plain) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS[1:], stop=3)
        assert fill(store, "000", IDS, stop=2) == 0
        assert fill(store, "000", IDS, chunk_rows=8, stop=2) == 0
        assert fill(store, "000", IDS, stop=2) == 0
        assert fill(store, "000", IDS) == 8
    assert tree(tmp_path / "s") == plain


def test_another_identity_begins_anew(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS, stop=3)
        with store.transaction() as change:
            change.update(identity={"weights": "others"})
        assert store.identity == {"weights": "others"}
        assert fill(store, "000", IDS, stop=0) == 0


def test_unfinished_work_is_no_stray_and_is_kept(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS, stop=3)
        assert store.strays() == []
        fill(store, "001", names(5, "other"))  # its commit leaves the other's work alone
        with store.transaction() as change:
            change.record({"action": "note"})
        assert not store.has_shard("000")
    with FeatureStore(tmp_path / "s", mode="a") as store:
        assert fill(store, "000", IDS) == 12
        assert holds(store, IDS)
        assert not (store.path / "staging" / "shard-000").exists()


@pytest.mark.parametrize("cut", [1, 5, 40, 200])
def test_a_torn_journal_line_is_cut_off(tmp_path, plain, cut) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS, stop=4)
        journal = store.path / "staging" / "shard-000" / "journal"
        journal.write_bytes(journal.read_bytes()[:-cut])
        assert fill(store, "000", IDS, stop=1) in (12, 16)
        fill(store, "000", IDS)
    assert tree(tmp_path / "s") == plain


def test_a_changed_journal_line_is_not_believed(tmp_path, plain) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS, stop=4)
        journal = store.path / "staging" / "shard-000" / "journal"
        lines = journal.read_bytes().split(b"\n")
        lines[3] = lines[3].replace(b'"img/', b'"gmi/', 1)
        journal.write_bytes(b"\n".join(lines))
        assert fill(store, "000", IDS, stop=0) == 8
        fill(store, "000", IDS)
    assert tree(tmp_path / "s") == plain


def test_a_journal_of_release_0_1_0_is_gone_on_with(tmp_path, plain) -> None:
    """Its header says one thing more."""
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS, stop=4)
        journal = store.path / "staging" / "shard-000" / "journal"
        first, lines = journal.read_bytes().split(b"\n", 1)
        text = canonical({**json.loads(first.partition(b" ")[2]), "relearn": False})
        journal.write_bytes(digest(text)[:SHORT].encode() + b" " + text + b"\n" + lines)
    with FeatureStore(tmp_path / "s", mode="a") as store:
        assert fill(store, "000", IDS) == 20
    assert tree(tmp_path / "s") == plain


def test_a_staged_chunk_that_is_not_whole_is_written_again(tmp_path, plain) -> None:
    with create(tmp_path / "s") as store:
        for damage, resumed in (("short", 4), ("gone", 4), ("flipped", 20)):
            fill(store, "000", IDS, stop=4, batch=5)
            tokens = store.path / "staging" / "shard-000" / "group" / "tokens"
            victim = tokens / ("c.5.0.0" if damage == "flipped" else "c.1.0.0")
            if damage == "gone":
                victim.unlink()
            else:
                raw = victim.read_bytes()
                victim.write_bytes(raw[:-1] if damage == "short" else raw[:-1] + b"\x55")
            assert fill(store, "000", IDS, stop=0) == resumed
        fill(store, "000", IDS)
    assert tree(tmp_path / "s") == plain


def test_what_else_lies_in_the_staged_group_goes(tmp_path, plain) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS, stop=2)
        group = store.path / "staging" / "shard-000" / "group"
        for file in ("tokens/c.77.0.0", "labels/c.0", "note"):
            (group / file).write_bytes(b"x")
        fill(store, "000", IDS)
        assert store.strays() == []
    assert tree(tmp_path / "s") == plain


def test_order_and_completeness(tmp_path) -> None:
    with (
        create(tmp_path / "s") as store,
        store.writer("000", "train", tokens_shape=SHAPE, candidates=IDS[:4]) as writer,
    ):

        def add(ids, skipped=()):
            writer.append(np.stack([row(i) for i in ids]), ids, [label(i) for i in ids], [(i, "bad") for i in skipped])

        for ids, skipped in [(IDS[1:2], ()), ([IDS[1], IDS[0]], ()), (IDS[:1], IDS[2:3]), (IDS[:5], ())]:
            with pytest.raises(DataError, match="order of the candidates"):
                add(ids, skipped)
        add([IDS[0], IDS[2]], [IDS[1]])
        with pytest.raises(DataError, match="3 of 4"):
            writer.commit()
        add([IDS[3]])
        writer.commit()
        assert store.manifest.skipped == [Skipped(IDS[1], "bad", "000")]
        assert store.shards[0].sample_ids == [IDS[0], IDS[2], IDS[3]]


@pytest.mark.law("Batches, interruptions and the order of shards leave no trace in a store")
def test_the_order_of_commits_leaves_no_trace(tmp_path) -> None:
    for name, order in (("a", "0123"), ("b", "3120")):
        with create(tmp_path / name) as store:
            for k in order:
                fill(store, f"00{k}", names(6, f"part{k}"), bad=names(6, f"part{k}")[:1])
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_staged_samples_are_named(tmp_path) -> None:
    """Rows that an interrupted extraction has on the disk are in no manifest, and can be asked for all the same."""
    with create(tmp_path / "s") as store:
        fill(store, "000", names(6))
        assert store.staged_ids() == {}
        more, others = names(20, "more"), names(9, "others")
        fill(store, "001", more, batch=5, stop=3, bad=[more[2]])
        fill(store, "held-out", others, role="held-out", stop=1)
    with FeatureStore(tmp_path / "s") as store:
        found = store.staged_ids()
    assert sorted(found) == ["001", "held-out"]
    durable = [i for i in found["001"] if i != more[2]]
    assert durable == [i for i in more if i != more[2]][:12], "three chunks of four rows"
    assert more[2] in found["001"], "a skipped sample's id is on the disk too"
    assert found["held-out"] == others[:4]
    with FeatureStore(tmp_path / "s", mode="a") as store:
        fill(store, "001", more)
        assert sorted(store.staged_ids()) == ["held-out"]


@pytest.mark.law("What was acknowledged stays where the system does not read it now")
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_journal_that_is_not_read_now_is_no_leftover(tmp_path, plain, monkeypatch, code) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS, stop=4)
    before, real = tree(tmp_path / "s"), Folder.read

    def read(folder, name, limit):
        if name.endswith("/journal"):
            raise OSError(code, os.strerror(code))
        return real(folder, name, limit)

    monkeypatch.setattr(Folder, "read", read)
    with pytest.raises(StoreUnreachable):
        FeatureStore(tmp_path / "s", mode="a")
    monkeypatch.undo()
    assert tree(tmp_path / "s") == before
    with FeatureStore(tmp_path / "s", mode="a") as store:
        assert fill(store, "000", IDS, stop=0) == 20
        monkeypatch.setattr(Folder, "read", read)
        with pytest.raises(StoreUnreachable):
            fill(store, "000", IDS)
        monkeypatch.undo()
        fill(store, "000", IDS)
    assert tree(tmp_path / "s") == plain
