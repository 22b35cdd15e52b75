"""Where rows are said to be, by a store that stays open over many commits."""

from __future__ import annotations

import random

import pytest

from taftcache.cache.format import ledger
from taftcache.cache.read.contents import Contents
from taftcache.cache.store import FeatureStore
from tests.cache.making import create, fill, names

SHARDS = [f"{k:03d}" for k in range(4)]


def places(store: FeatureStore, ids: list[str]) -> dict[str, tuple[str, int] | None]:
    found = {i: store.locate(i) if store.holds(i) else None for i in ids}
    return {i: place and (place[0].name, place[1]) for i, place in found.items()}


@pytest.mark.law("A store that stays open finds each row where one that is opened anew finds it")
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_where_a_store_opened_anew_has_them(tmp_path, seed) -> None:
    chance, ids, there = random.Random(seed), names(24), dict[str, list[str]]()
    gone = list[str]()
    with create(tmp_path / "store") as store:
        for _ in range(12):
            if there and chance.random() < 0.4:
                name = chance.choice(sorted(there))
                with store.transaction() as change:
                    if len(there[name]) > 1:
                        gone.append(there[name].pop())
                        change.erase(gone[-1:])
                    else:
                        change.drop_shard(name)
                        del there[name]
            else:  # a new shard, or another in the place of one
                name = chance.choice(SHARDS)
                taken = {i for other, some in there.items() if other != name for i in some}
                free = [i for i in ids if i not in taken and i not in gone]
                if free:
                    there[name] = sorted(chance.sample(free, min(len(free), 1 + chance.randrange(5))), key=ids.index)
                    fill(store, name, there[name])
            expected = {i: (name, row) for name, some in there.items() for row, i in enumerate(some)}
            if chance.random() < 0.7:  # not after every commit
                assert places(store, ids) == {i: expected.get(i) for i in ids}
            with FeatureStore(tmp_path / "store") as anew:
                assert places(anew, ids) == {i: expected.get(i) for i in ids}


def test_a_shard_is_asked_for_its_ids_once_however_many_are_written(tmp_path, monkeypatch) -> None:
    asked, open_shard = list[str](), Contents.open
    monkeypatch.setattr(Contents, "open", lambda self, ref: (asked.append(ref.name), open_shard(self, ref))[1])
    ids = names(60)
    with create(tmp_path / "store") as store:
        for k in range(20):
            fill(store, f"{k:03d}", ids[3 * k : 3 * k + 3])
        assert store.holds(ids[-1])
    assert len(asked) == 20


def test_a_ledger_is_read_once_until_it_has_another_end(tmp_path, monkeypatch) -> None:
    read, read_entry = list[int](), ledger.read_entry
    monkeypatch.setattr(ledger, "read_entry", lambda *a: (read.append(a[1]), read_entry(*a))[1])
    with create(tmp_path / "store") as store:
        assert store.ledger() == []
        for k in range(3):
            with store.transaction() as change:
                change.record({"event": f"number {k}"})
        read.clear()
        entries = store.ledger()
        entries.pop()["event"] = "the caller's own"
        assert [entry["event"] for entry in store.ledger()] == ["number 0", "number 1", "number 2"]
        assert sorted(read) == [1, 2, 3]
        with store.transaction() as change:
            change.record({"event": "another"})
        assert store.ledger()[-1]["event"] == "another"
