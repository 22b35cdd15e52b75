"""Forgotten = never seen, byte for byte; and its bytes are nowhere."""

from __future__ import annotations

import json

import numpy as np
import pytest

from taftcache.cache.format import ledger
from taftcache.cache.format.manifest import Manifest
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, RecipeError, StoreError, UnknownSample

from .making import create, fill, holds, names, row, tree

IDS = names(40)
GONE = [IDS[0], IDS[7], IDS[13], IDS[14], IDS[15], IDS[39]]
MEMORY = ("ledger/", "tombstones.key", "lists/tombstones")


def build(path, ids, **how) -> None:
    with create(path) as store:
        for name, part in (("000", IDS[:16]), ("001", IDS[16:30])):
            fill(store, name, [i for i in part if i in ids], **how)
        fill(store, "held-out", [i for i in IDS[30:] if i in ids], role="held-out", **how)


def without_memory(path) -> dict[str, bytes]:
    """The store's files, less what is there to remember erasures by."""
    files = tree(path, but=MEMORY)
    manifest = Manifest.decode(files["manifest.json"])
    files["manifest.json"] = manifest.replace(tombstones=[], tombstone_key="", ledger=None).encode()
    return files


def fragments(ids, dtype="float16") -> set[bytes]:
    """All 16-byte windows of the rows' bytes, and the ids."""
    raw = [row(i).astype(dtype).tobytes() for i in ids]
    return {r[k : k + 16] for r in raw for k in range(len(r) - 15)} | {i.encode() for i in ids}


def found(path, wanted: set[bytes]) -> list[str]:
    """Files in which one of the fragments occurs."""
    return [name for name, data in tree(path).items() if any(w in data for w in wanted)]


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
@pytest.mark.parametrize("chunk_rows", [1, 4, 16, 512])
def test_erased_is_never_seen(tmp_path, chunk_rows) -> None:
    build(tmp_path / "all", IDS, chunk_rows=chunk_rows)
    build(tmp_path / "never", [i for i in IDS if i not in GONE], chunk_rows=chunk_rows)
    with FeatureStore(tmp_path / "all", mode="a") as store:
        assert found(store.path, fragments(GONE))
        with store.transaction() as change:
            new = change.erase(GONE)
            change.record({"action": "erase", "count": len(GONE)})
        assert sorted(new) == ["000", "held-out"]
        assert all(store.is_forgotten(i) for i in GONE)
        assert not any(store.is_forgotten(i) for i in IDS if i not in GONE)
        assert holds(store, [i for i in IDS if i not in GONE])
        assert store.verify() == []
        assert store.strays() == []
    assert without_memory(tmp_path / "all") == tree(tmp_path / "never")
    assert found(tmp_path / "all", fragments(GONE)) == []


def test_erasing_one_by_one_is_erasing_at_once(tmp_path) -> None:
    for name in ("a", "b"):
        build(tmp_path / name, IDS)
    with FeatureStore(tmp_path / "a", mode="a") as store, store.transaction() as change:
        change.erase(GONE)
    with FeatureStore(tmp_path / "b", mode="a") as store:
        for i in GONE[:2]:
            with store.transaction() as change:
                change.erase([i])
        with store.transaction() as change:
            for i in GONE[2:]:
                change.erase([i])
    assert without_memory(tmp_path / "a") == without_memory(tmp_path / "b")


def test_what_was_forgotten_does_not_come_back(tmp_path) -> None:
    build(tmp_path / "s", IDS)
    with FeatureStore(tmp_path / "s", mode="a") as store:
        with store.transaction() as change:
            change.erase(GONE[:3])
        with pytest.raises(DataError, match=r"forgotten.*\n  try: leave it out, or make a store elsewhere"):
            fill(store, "000", IDS[:16])


def test_new_shards_can_be_read_before_the_commit(tmp_path) -> None:
    build(tmp_path / "s", IDS)
    before = tree(tmp_path / "s")
    with FeatureStore(tmp_path / "s", mode="a") as store:
        change = store.transaction()
        new = change.erase([IDS[0]])["000"]
        assert new.sample_ids == IDS[1:16]
        assert np.array_equal(new.tokens([0])[0], row(IDS[1]).astype(np.float16))
        assert len(store.shard("000")) == 16
        with FeatureStore(store.path) as other:
            assert other.sample_ids() == IDS[:30]
        change.put("components/000", b"trained on the new shard")
        change.commit()
        assert new.tokens([14]).shape == (1, 3, 8)
        assert store.shard("000") is new
        assert store.read_object("components/000") == b"trained on the new shard"
    assert before.keys() != tree(tmp_path / "s").keys()


def test_discarding_changes_nothing(tmp_path) -> None:
    build(tmp_path / "s", IDS)
    before = tree(tmp_path / "s")
    with FeatureStore(tmp_path / "s", mode="a") as store:
        change = store.transaction()
        change.erase(GONE)
        change.put("base/tail", b"x" * 100)
        change.record({"a": 1})
        with pytest.raises(UnknownSample), change:
            change.erase(["nobody"])
        assert tree(tmp_path / "s") == before
        with pytest.raises(StoreError, match="ended"):
            change.record({})
        unfinished = store.transaction()
        unfinished.erase(GONE)
        with pytest.raises(StoreError, match="while a transaction is open"):
            store.transaction()
    assert tree(tmp_path / "s") == before


def test_what_cannot_be_erased(tmp_path) -> None:
    build(tmp_path / "s", IDS)
    before = tree(tmp_path / "s")
    with FeatureStore(tmp_path / "s", mode="a") as store:
        with pytest.raises(UnknownSample, match="did you mean"), store.transaction() as change:
            change.erase([IDS[3], IDS[4] + "x"])
        with pytest.raises(DataError, match=r"drop_shard\('001'\)"), store.transaction() as change:
            change.erase(IDS[16:30])
        assert tree(tmp_path / "s") == before
        with store.transaction() as change:
            change.erase([IDS[2]])
        with pytest.raises(UnknownSample, match="which was forgotten"), store.transaction() as change:
            change.erase([IDS[2]])
        with store.transaction() as change:
            change.drop_shard("001")
        assert [s.name for s in store.shards] == ["000"]
        assert store.verify() == []
        assert found(store.path, fragments(IDS[16:30])) == []


def test_a_skipped_sample_is_forgotten_too(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS[:16], bad=[IDS[3]])
        with store.transaction() as change:
            assert change.erase([IDS[3]]) == {}
        assert store.manifest.skipped == []
        assert store.is_forgotten(IDS[3])
        assert found(store.path, {IDS[3].encode()}) == []


def test_a_shard_that_is_dropped_goes_with_what_was_erased_and_skipped_of_it(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS[:16], bad=[IDS[3]])
        fill(store, "001", IDS[16:30], bad=[IDS[17]])
        with store.transaction() as change:
            change.erase([IDS[16]])
            change.drop_shard("001")
        assert [ref.name for ref in store.manifest.shards] == ["000"]
        assert [s.id for s in store.manifest.skipped] == [IDS[3]]
        assert found(store.path, fragments(IDS[16:30])) == []


@pytest.mark.parametrize("end", ["commit", "discard"])
def test_a_transaction_that_has_ended_takes_no_more(tmp_path, end) -> None:
    build(tmp_path / "s", IDS)
    with FeatureStore(tmp_path / "s", mode="a") as store:
        change = store.transaction()
        change.put("components/000", b"first")
        getattr(change, end)()
        before = store.root_digest
        for late in (
            lambda: change.erase([IDS[0]]),
            lambda: change.drop_shard("000"),
            lambda: change.add_tombstones([IDS[0]]),
            lambda: change.relabel(store.classes),
            lambda: change.put("components/000", b"second"),
            lambda: change.drop("components/000"),
            lambda: change.record({"action": "late"}),
            lambda: change.update(recipe={}),
            change.adopt_tombstones,
            change.destroy_key,
            change.commit,
        ):
            with pytest.raises(StoreError, match="has ended"):
                late()
        assert store.root_digest == before


def test_unfinished_work_with_a_forgotten_sample_goes(tmp_path) -> None:
    """A shard half extracted anew holds copies of the rows: an erasure reaches them too."""
    build(tmp_path / "s", IDS)
    with FeatureStore(tmp_path / "s", mode="a") as store:
        fill(store, "000", IDS[:16], stop=2)
        fill(store, "001", IDS[16:30], stop=2)
        with store.transaction() as change:
            change.erase([IDS[1]])
        assert found(store.path, fragments([IDS[1]])) == []
        assert fill(store, "001", IDS[16:30], stop=0) == 8


def test_objects(tmp_path) -> None:
    build(tmp_path / "s", IDS)
    with FeatureStore(tmp_path / "s", mode="a") as store:
        with store.transaction() as change:
            change.put("components/000", b"first zero", {"steps": 1})
            change.put("components/mean", b"first mean")
            change.put("base/tail", b"tail", {"nested": {"x": [1, 2.5, None]}}, suffix=".bin")
        assert list(store.objects("components/")) == ["components/000", "components/mean"]
        assert store.objects()["base/tail"].meta == {"nested": {"x": [1, 2.5, None]}}
        assert store.objects()["base/tail"].path.endswith(".bin")
        with store.transaction() as change:
            change.put("components/000", b"another")
            change.drop("components/mean")
        assert store.read_object("components/000") == b"another"
        assert sorted(p.name[:4] for p in (store.path / "components").iterdir()) == ["000-"]
        assert found(store.path, {b"first zero", b"first mean"}) == []
        for name, suffix in [("shards/x", ".bin"), ("components/../x", ".bin"), ("base", ".bin"), ("base/x", "/x")]:
            with pytest.raises(RecipeError), store.transaction() as change:
                change.put(name, b"", suffix=suffix)
        with pytest.raises(StoreError, match="there is none"), store.transaction() as change:
            change.drop("base/none")
        with pytest.raises(RecipeError), store.transaction() as change:
            change.put("base/tail", b"", {"x": float("nan")})
        assert store.verify() == []


def test_ledger_is_a_chain(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        for k in range(3):
            with store.transaction() as change:
                change.record({"k": k, "x": 0.1})
                change.record({"k": k, "again": True})
        entries = store.ledger()
        assert [(e["seq"], e["k"]) for e in entries] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
        assert entries[0]["previous"] == ""
        assert len({e["previous"] for e in entries}) == 6
        with pytest.raises(RecipeError, match="previous"), store.transaction() as change:
            change.record({"previous": "x"})
        last = sorted((store.path / "ledger").iterdir())[-1]
        assert json.loads(last.read_bytes()) == entries[-1]


def test_what_a_crash_left_in_the_ledger_is_found_without_reading_it(tmp_path, monkeypatch) -> None:
    """Of a ledger of thousands, each commit read every entry: to sweep, and for what is beside the store."""
    reads, read = [], ledger.read_named
    monkeypatch.setattr(ledger, "read_named", lambda home, file, *a: reads.append(file) or read(home, file, *a))
    with create(tmp_path / "s") as store:
        for k in range(2):
            with store.transaction() as change:
                change.record({"k": k})
    reads.clear()
    with FeatureStore(tmp_path / "s", mode="a") as store:
        assert [file[:13] for file in reads] == ["ledger/000002", "ledger/000001"]  # for what is beside it, once
        reads.clear()
        with store.transaction() as change:
            change.record({"k": 2})
        assert [file[:13] for file in reads] == ["ledger/000003"]
    for number in (3, 4):
        (stray := tmp_path / "s" / "ledger" / f"{number:06d}-{'0' * 16}.json").write_bytes(b"{}")
        with FeatureStore(tmp_path / "s", mode="a") as store:
            assert (len(store.ledger()), stray.exists()) == (3, False)


def test_updates(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        with store.transaction() as change:
            change.update(recipe={"seed": 1}, classes=["x", "y"])
        assert store.manifest.recipe == {"seed": 1}
        with pytest.raises(RecipeError, match="tombstones"), store.transaction() as change:
            change.update(tombstones=[])
        with pytest.raises(RecipeError), store.transaction() as change:
            change.update(classes=[])
    with FeatureStore(tmp_path / "s") as store:
        assert store.classes == ["x", "y"]
