"""What no manifest names is listed, and goes; what one names never does."""

from __future__ import annotations

import pytest

import taftcache
from taftcache.cache.collect import collect
from taftcache.cache.format.manifest import PREVIOUS
from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreWriteError

from .making import create, fill, holds, names, tree

IDS, MORE = names(9), names(8, "more")


@pytest.fixture
def path(tmp_path):
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS)
    (tmp_path / "s" / PREVIOUS).unlink()
    return tmp_path / "s"


def litter(path) -> dict[str, int]:
    """A crash's leftovers, unfinished work, and someone else's files: path -> bytes."""
    with FeatureStore(path, mode="a") as store:
        fill(store, "001", MORE, batch=4, stop=1)
        at = store.shards[0].at
    mine = {"shards/999-0123456789abcdef.json": 10, "components/old": 20, "staging/transaction": 30}
    foreign = {"notes.txt": 40, f"{at}/tokens/c.77.0.0": 50}
    for file, size in (mine | foreign).items():
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_bytes(b"x" * size)
    work = sum(len(data) for name, data in tree(path).items() if name.startswith("staging/shard-001/"))
    return mine | foreign | {"staging/shard-001": work}


def split(found: dict[str, int], *stems: str) -> tuple[dict[str, int], dict[str, int]]:
    yes = {name: size for name, size in found.items() if any(stem in name for stem in stems)}
    return yes, {name: size for name, size in found.items() if name not in yes}


@pytest.mark.parametrize(
    ("work", "strange", "stay"),
    [
        (False, False, ("notes", "c.77", "shard-001")),
        (True, False, ("notes", "c.77")),
        (False, True, ("shard-001",)),
        (True, True, ()),
    ],
)
def test_what_nothing_names_goes(path, work, strange, stay) -> None:
    clean = tree(path)
    there = litter(path)
    before = tree(path)
    kept, gone = split(there, *stay)
    with FeatureStore(path) as store:
        listed = collect(store, unfinished=work, foreign=strange, dry=True)
    assert (listed.removed, listed.kept) == (gone, kept)
    said = taftcache.gc(path, unfinished=work, foreign=strange, dry_run=True)
    assert (said.removed, said.kept) == (gone, kept)
    assert tree(path) == before
    with FeatureStore(path, mode="a") as store:
        found = collect(store, unfinished=work, foreign=strange)
        assert (found.removed, found.kept) == (gone, kept)
        assert sorted(store.strays()) == sorted(name for name in kept if "shard-001" not in name)
        assert store.verify() == []
        assert holds(store, IDS)
    left = tree(path)
    assert {name: data for name, data in left.items() if name in clean} == clean
    assert {name for name in left if name not in clean} == {f for f in before if any(f.startswith(k) for k in kept)}


def test_nothing_to_collect(path) -> None:
    before = tree(path)
    with FeatureStore(path, mode="a") as store:
        found = collect(store, unfinished=True, foreign=True)
    assert (found.removed, found.kept) == ({}, {})
    assert tree(path) == before


def test_an_extraction_goes_on_after_a_collection(path) -> None:
    litter(path)
    with FeatureStore(path, mode="a") as store:
        collect(store)
        assert fill(store, "001", MORE) == 4
        assert holds(store, [*IDS, *MORE])


def test_a_store_that_may_only_be_read_is_not_collected(tmp_path, monkeypatch) -> None:
    def refuse(staging):
        raise StoreWriteError("cannot write to it", do="chmod")

    create(tmp_path / "store").close()
    monkeypatch.setattr("taftcache.cache.store.WriterLock", refuse)
    with pytest.raises(StoreWriteError, match="gc removes files, and so it writes to the store: chmod; --dry-run only"):
        taftcache.gc(tmp_path / "store")
    assert taftcache.gc(tmp_path / "store", dry_run=True).removed == {}
