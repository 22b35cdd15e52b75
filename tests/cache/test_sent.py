"""Open stores that are copied or sent to another process: a reader is opened anew, a writer is not copied."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle

import numpy as np
import pytest

import taftcache
from taftcache.cache.place.bucket import Bucket
from taftcache.cache.place.lock import LOCK
from taftcache.cache.store import FeatureStore
from taftcache.errors import (
    StoreChanged,
    StoreError,
    StoreNotFound,
    StoreUnreachable,
    TaftcacheError,
    UnknownName,
    UnknownSample,
)

from .making import forget, names, written


def sent(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "s", names(9))


@dataclasses.dataclass
class Service:
    store: object


@pytest.mark.law("A store open for writing is not copied: its lock stays its own")
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, sent, lambda s: dataclasses.asdict(Service(s))])
def test_a_writer_is_not_copied(path, way) -> None:
    with FeatureStore(path, mode="a") as store:
        for part in (store, store._lock):
            with pytest.raises(StoreError, match=r"while it is open for writing\n.*send its path"):
                way(part)
        assert store.staging.is_locked(LOCK)
    assert way(store) is not store  # closed, it only reads


def test_a_lock_lets_go_of_nothing_that_is_no_longer_its_file(path, tmp_path) -> None:
    store = FeatureStore(path, mode="a")
    number = store._lock._descriptor
    with open(tmp_path / "mine", "w+b") as mine:
        mine.write(b"important")
        mine.flush()
        os.dup2(mine.fileno(), number)  # as if it had been closed, and given to that file
        store.close()
        assert os.pread(number, 9, 0) == b"important"
    os.close(number)


def test_a_fork_that_drops_the_lock_leaves_it_to_its_parent(path, monkeypatch) -> None:
    with FeatureStore(path, mode="a") as store:
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: 1)
            store._lock.__del__()
        assert store.staging.is_locked(LOCK)
        kept = os.dup(store._lock._descriptor)  # as a fork that lives on has it
    assert not store.staging.is_locked(LOCK)
    os.close(kept)


@pytest.mark.law("A copy of an open store, in this process or another, reads the same bytes or says that they changed")
@pytest.mark.parametrize("way", [copy.deepcopy, sent])
def test_a_reader_is_opened_anew(path, way, monkeypatch) -> None:
    monkeypatch.chdir(path.parent)
    store = FeatureStore(path.name)
    monkeypatch.chdir("/")
    other, shard = way(store), way(store.shard("000"))
    want = store.shard("000").tokens(slice(0, 9)).copy()
    store.root.close()  # what either copy has is its own
    assert other.root_digest == store.root_digest
    assert other.verify() == []
    assert np.array_equal(other.shard("000").tokens(slice(0, 9)), want)
    assert np.array_equal(shard.tokens(slice(0, 9)), want)


def test_a_reader_that_is_opened_anew_says_what_changed(path) -> None:
    store = FeatureStore(path)
    raw, shard = pickle.dumps(store), pickle.dumps(store.shard("000"))
    forget(path, names(9)[0])
    with pytest.raises(StoreChanged):
        pickle.loads(raw)
    with pytest.raises(StoreChanged):
        pickle.loads(shard).tokens([0])
    os.rename(path, path.parent / "elsewhere")
    for gone in (raw, shard):
        with pytest.raises(StoreNotFound):
            pickle.loads(gone)


def test_a_folder_that_was_closed_is_not_called_damage(path) -> None:
    store = FeatureStore(path)
    store.root.close()
    for read in (store.verify, lambda: store.shard("000").sample_ids, lambda: store.read_object("components/000")):
        with pytest.raises(StoreUnreachable, match="closed"):
            read()


def test_a_bucket_is_sent_by_its_address() -> None:
    pytest.importorskip("obstore")
    root = Bucket("pictures", "a/b")
    root.opened = "0" * 64
    again = sent(root)
    assert (again.path, again.opened) == (root.path, root.opened)


LISTED = {UnknownSample: {"ids": ["a", "b"]}, UnknownName: {"names": ["a", "b"]}}


def kinds(kind=TaftcacheError):
    return [kind, *(k for below in kind.__subclasses__() for k in kinds(below))]


@pytest.mark.law("An error says in another process all that it said in its own")
@pytest.mark.parametrize("got", [3, 0])
@pytest.mark.parametrize("kind", [getattr(taftcache, k.__name__) for k in kinds() if hasattr(taftcache, k.__name__)])
def test_errors_say_the_same_elsewhere(kind, got) -> None:
    error = kind("what went wrong", got=got, do="try that", **LISTED.get(kind, {}))
    written = eval(repr(error), {kind.__name__: kind})
    assert (type(written), written.__dict__) == (kind, error.__dict__)
    error.add_note("and more")
    for again in (sent(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__ | {"got": str(got)}
