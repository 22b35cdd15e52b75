"""A store in a bucket: a real S3 server, and one that answers badly."""

from __future__ import annotations

import traceback
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import taftcache
from taftcache.cache.collect import collect
from taftcache.cache.copying import carry_tombstones, copy
from taftcache.cache.place.address import open_home
from taftcache.cache.read.verify import verify
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.previous import go_back
from taftcache.errors import (
    IntegrityError,
    RecipeError,
    StaleStore,
    StoreChanged,
    StoreError,
    StoreLocked,
    StoreNotFound,
    StoreUnreachable,
    StoreWriteError,
)
from taftcache.stages.writing import writable

from .making import create, fill, holds, names, row, tree
from .s3 import make_bucket, no_fault, reached_at, server

pytest.importorskip("obstore")
pytest.importorskip("moto")
boto3 = pytest.importorskip("boto3")

IDS, MORE = names(9), names(8, "more")


@pytest.fixture(scope="module")
def proxy():
    with server() as made:
        yield made


@pytest.fixture
def address(proxy, monkeypatch, tmp_path, request):
    """A fresh bucket's ``s3://bucket/prefix``, and the environment in which it is reached."""
    bucket = f"b{abs(hash(request.node.name)) % 10**9}"
    proxy.fresh()
    make_bucket(bucket, proxy.server_port)
    for name, value in reached_at(proxy.server_port, tmp_path / "desk").items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/some/stores/mine"


def objects(address: str) -> dict[str, bytes]:
    """Every object of the store in the bucket."""
    root, desk = open_home(address)
    desk.close()
    return {name: root.read(name, 1 << 30) for name in root.walk()}


def make(path) -> None:
    """A shard, a held-out one, an erasure, an object: the same calls for a folder and for a bucket."""
    with create(path) as store:
        fill(store, "000", [*IDS, "goner"])
        fill(store, "held-out", MORE, role="held-out", dtype="float32")
        with store.transaction() as change:
            change.erase(["goner"])
            change.put("components/000", b"component")
            change.put("state/empty", b"")
            change.record({"action": "erase"})


def small(path) -> None:
    """What has as few objects as a store can: a shard of one chunk, and a component."""
    with create(path) as store:
        fill(store, "000", IDS, chunk_rows=len(IDS))
        with store.transaction() as change:
            change.put("components/000", b"component")


def read(address) -> None:
    with FeatureStore(address) as store:
        assert holds(store, IDS)
        assert holds(store, MORE, "float32")
        assert store.is_forgotten("goner")
        assert store.read_object("components/000") == b"component"
        assert store.read_object("state/empty") == b""
        for shard in (*store.shards, store.held_out):
            assert np.array_equal(np.concatenate([b.tokens for b in shard.blocks(5)]), shard.tokens(slice(None)))
        assert store.shards[0].group()["tokens"][:].shape == (9, 3, 8)
        assert store.verify() == []
        assert store.strays() == []


@pytest.mark.law("A store in a bucket is the one in a folder; of two writers one wins")
def test_a_store_in_a_bucket_is_one_in_a_folder(address, tmp_path) -> None:
    make(tmp_path / "s")
    make(address)
    read(address)
    far = objects(address)
    memory = ("tombstones.key", "manifest.json", "lists/tombstones")  # a random key
    assert {f: d for f, d in far.items() if not f.startswith(memory)} == tree(tmp_path / "s", but=memory)
    assert tree(tmp_path / "desk", but=()) == {} or all(f.endswith("/lock") for f in tree(tmp_path / "desk"))
    with FeatureStore(address) as store:
        assert str(store.path) == address
        with FeatureStore(store.path) as same:
            assert same.root_digest == store.root_digest


@pytest.mark.law("A store in a bucket is the one in a folder; of two writers one wins")
def test_an_update_relies_on_nothing_that_another_opening_removes(address, proxy, tmp_path, monkeypatch) -> None:
    """What an update that was cut off left behind is a leftover of the past once another writer has committed."""
    brief(monkeypatch)
    small(tmp_path / "s")
    with FeatureStore(tmp_path / "s", mode="a") as store:
        copy(store, address)
        with store.transaction() as change:
            change.erase(IDS[:1])
            change.put("components/001", b"new")
        proxy.fault = lambda method, path, before: "503" if method == "PUT" and path.endswith("manifest.json") else None
        with pytest.raises(StoreWriteError):
            copy(store, address, update=True)
        proxy.fault = no_fault
        proxy.later()
        with FeatureStore(address, mode="a") as other, other.transaction() as change:
            change.put("components/002", b"another's")

        def verified(*arguments, **named):
            faults = verify(*arguments, **named)
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("TAFTCACHE_STAGING", str(tmp_path / "another machine"))
                FeatureStore(address, mode="a").close()
            return faults

        monkeypatch.setattr("taftcache.cache.copying.verify", verified)
        copy(store, address, update=True)
    with FeatureStore(address) as store:
        assert store.verify() == []
        assert store.read_object("components/001") == b"new"


@pytest.mark.law("A store in a bucket is the one in a folder; of two writers one wins")
@pytest.mark.parametrize("cut", ["before the manifest is put", "before what it replaced is removed"])
def test_a_copy_that_was_cut_off_leaves_no_forgotten_row(address, proxy, tmp_path, monkeypatch, cut) -> None:
    brief(monkeypatch)
    small(tmp_path / "s")
    erased = row(IDS[0]).astype(np.float16).tobytes()[:16]
    way, says = "manifest.json", "cannot write"
    with FeatureStore(tmp_path / "s", mode="a") as store:
        if cut == "before what it replaced is removed":
            copy(store, address)
            way, says = "?delete", "copied, but what the copy replaced is still there: cannot write"
            with store.transaction() as change:
                change.erase(IDS[:1])
        proxy.later()
        proxy.fault = lambda method, path, before: "503" if method in ("PUT", "POST") and path.endswith(way) else None
        with pytest.raises(StoreWriteError, match=says):
            copy(store, address, update=True)
        proxy.fault = no_fault
        assert any(erased in data for data in objects(address).values())
        if not store.is_forgotten(IDS[0]):
            with store.transaction() as change:
                change.erase(IDS[:1])
        proxy.later()
        copy(store, address, update=True)
        assert not any(erased in data for data in objects(address).values())
    with FeatureStore(address) as store:
        assert store.strays() == []


def test_erased_rows_are_in_no_object_and_not_on_the_desk(address, tmp_path) -> None:
    with create(address) as store:
        fill(store, "000", IDS)
        with store.transaction() as change:
            change.erase(IDS[:2])
    for name, data in (objects(address) | tree(tmp_path / "desk")).items():
        for i in IDS[:2]:
            assert row(i).astype(np.float16).tobytes()[:16] not in data, name
            assert i.encode() not in data, name


def test_there_and_back(address, tmp_path) -> None:
    make(tmp_path / "s")
    for source, target in ((tmp_path / "s", address), (address, tmp_path / "back")):
        with FeatureStore(source) as store:
            done = copy(store, target)
            assert (done.files, done.there) == (len(tree(tmp_path / "s")) - 1, 0)
    read(address)
    assert tree(tmp_path / "back") == tree(tmp_path / "s") == objects(address)


@pytest.mark.law("A store in a bucket is the one in a folder; of two writers one wins")
def test_what_a_commit_could_not_remove_goes_at_the_next_opening(address, proxy, monkeypatch) -> None:
    """The erasure counts, its call fails and says so, and the same call again ends it, as in a folder."""
    brief(monkeypatch)
    with create(address) as store:
        fill(store, "000", IDS)
    proxy.later()
    store = FeatureStore(address, mode="a")
    proxy.fault = lambda method, path, before: "503" if path.endswith("?delete") else None
    with (
        pytest.raises(StoreWriteError, match="committed, but what the commit replaced is still there"),
        store.transaction() as change,
    ):
        change.erase(IDS[:1])
    store.close()
    erased = row(IDS[0]).astype(np.float16).tobytes()[:16]
    assert any(erased in data for data in objects(address).values())
    with pytest.raises(StoreWriteError):
        FeatureStore(address, mode="a")
    proxy.fault = no_fault
    root, desk = open_home(address)
    desk.close()
    root.put("shards/999-0000000000000000/tokens/c.0.0.0", b"another writer's upload since that commit")
    with FeatureStore(address) as store:
        assert "shards/999-0000000000000000" not in collect(store, dry=True).removed
        assert any(path.startswith("shards/000") for path in collect(store, dry=True).removed)
    with FeatureStore(address, mode="a") as store:
        assert store.is_forgotten(IDS[0])
        assert store.strays() == ["shards/999-0000000000000000"]
    assert not any(erased in data for data in objects(address).values())


@pytest.mark.law("A store in a bucket is the one in a folder; of two writers one wins")
def test_the_slower_of_two_first_erasures_leaves_the_key_of_the_other(address, tmp_path, monkeypatch) -> None:
    with create(address) as store:
        fill(store, "000", IDS)
    first = FeatureStore(address, mode="a")
    before = first.transaction()
    before.erase(IDS[:1])
    before.tombstones(IDS[:1])  # its key is made
    monkeypatch.setenv("TAFTCACHE_STAGING", str(tmp_path / "another machine"))
    with FeatureStore(address, mode="a") as second, second.transaction() as change:
        change.erase(IDS[1:2])
    with pytest.raises(StoreLocked, match="another writer"):
        before.commit()
    with FeatureStore(address) as store:
        assert store.verify() == []
        assert [store.is_forgotten(i) for i in IDS[:2]] == [False, True]
    with first.transaction() as change:
        change.erase(IDS[:1])
    first.close()
    with FeatureStore(address) as store:
        assert store.verify() == []
        assert [store.is_forgotten(i) for i in IDS[:2]] == [True, True]


def test_an_erasure_leaves_nothing_of_the_attempt_before_it(address, proxy, monkeypatch) -> None:
    brief(monkeypatch)
    with create(address) as store:
        fill(store, "000", IDS)

    def erase() -> None:
        with FeatureStore(address, mode="a") as store, store.transaction() as change:
            change.erase(IDS[:1])
            change.record({"event": "test", "attempt": len(proxy.seen)})

    proxy.fault = lambda method, path, before: "503" if method == "PUT" and path.endswith("manifest.json") else None
    with pytest.raises(StoreWriteError):
        erase()
    proxy.fault = no_fault
    with FeatureStore(address) as store:
        assert "tombstones.key" in store.strays()
    proxy.later()
    erase()
    with FeatureStore(address) as store:
        assert store.is_forgotten(IDS[0])
        assert store.strays() == []


def test_the_key_of_the_tombstones_is_destroyed_in_a_bucket_too(address) -> None:
    with create(address) as store:
        fill(store, "000", IDS)
        with store.transaction() as change:
            change.erase(IDS[:1])
        with store.transaction() as change:
            change.destroy_key()
        assert "tombstones.key" not in objects(address)
        with store.transaction() as change:
            change.erase(IDS[1:2])
        assert store.verify() == []


@pytest.mark.parametrize("lacking", ["a folder", "a file's place", "a home"])
def test_without_a_folder_for_work_in_progress_that_folder_is_named_not_the_bucket(
    address, tmp_path, monkeypatch, lacking
) -> None:
    """The store was said not to be there, or a file to be in its place; a user without a home got a traceback."""
    small(address)
    small(tmp_path / "s")
    (tmp_path / "file").write_bytes(b"")
    place = {"a folder": "/proc/nowhere", "a file's place": str(tmp_path / "file")}.get(lacking, "")
    monkeypatch.setenv("TAFTCACHE_STAGING", place)
    if lacking == "a home":
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr("pwd.getpwuid", lambda user: {}[user])
    ways = [FeatureStore, FeatureStore.exists, go_back, create]
    with FeatureStore(tmp_path / "s") as store:
        for way in (*ways, lambda target: copy(store, target)):
            with pytest.raises(StoreWriteError, match="older for work in progress") as caught:
                way(address)
            assert place in caught.value.fault
            assert address not in caught.value.fault
            assert "TAFTCACHE_STAGING" in caught.value.do


def test_a_message_has_both_slashes_of_a_path(address, tmp_path) -> None:
    """A Path drops one, and what was printed could not be pasted into a browser or another tool."""
    small(tmp_path / "s")
    small(address)
    with FeatureStore(tmp_path / "s", mode="a") as store, store.transaction() as change:
        change.erase(IDS[:1])
    with FeatureStore(tmp_path / "s") as store, FeatureStore(address) as old:
        refused = [
            lambda: copy(store, Path(f"{address}/below")),
            lambda: copy(store, Path(f"{address}.forgotten")),
            lambda: carry_tombstones(store, Path(address)),
        ]
        for way in refused:
            with pytest.raises(StoreError) as caught:
                way()
            assert address in caught.value.fault
        copy(store, address + "2")
        with pytest.raises(StaleStore, match=f"forgotten at {address}2: it is an older state"):
            copy(old, Path(address + "2"), update=True)


def test_resumes_on_the_desk(address) -> None:
    with create(address) as store:
        fill(store, "000", IDS, batch=4, stop=2)
        assert list(objects(address)) == ["manifest.json"], "nothing unfinished in the bucket"
    with FeatureStore(address, mode="a") as store:
        assert fill(store, "000", IDS, batch=4) == 8
        assert holds(store, IDS)


@pytest.mark.law("A store in a bucket is the one in a folder; of two writers one wins")
def test_of_two_writers_one_wins(address, tmp_path, monkeypatch) -> None:
    small(address)
    first = FeatureStore(address, mode="a")
    with pytest.raises(StoreLocked):
        FeatureStore(address, mode="a")  # on the same machine the desk's lock tells at once
    monkeypatch.setenv("TAFTCACHE_STAGING", str(tmp_path / "another machine"))
    second = FeatureStore(address, mode="a")
    with second.transaction() as change:
        change.put("components/001", b"second")
    with pytest.raises(StoreLocked, match="another writer"), first.transaction() as change:
        change.put("components/001", b"first")
    with FeatureStore(address) as store:
        assert store.read_object("components/001") == b"second"
        assert store.verify() == []
    with first.transaction() as change:  # which has seen the other's commit by now
        change.put("components/001", b"first, after the second")
    first.close()
    second.close()
    with FeatureStore(address) as store:
        assert store.read_object("components/001") == b"first, after the second"
    with pytest.raises(StoreChanged, match="there is one by now"):
        create(address)


@pytest.mark.law(
    "Of two writers in a bucket, the slower one leaves nothing that the other forgot and removes nothing of its"
)
@pytest.mark.parametrize("killed", [False, True])
def test_a_commit_that_was_forestalled_leaves_nothing_forgotten(address, tmp_path, monkeypatch, killed) -> None:
    """The faster one forgets a row and a skipped sample while the slower one uploads shards with both."""
    with create(address) as store:
        fill(store, "000", IDS, bad=IDS[6:8])
        fill(store, "001", MORE)
    slow = FeatureStore(address, mode="a")
    upload = slow.root.put

    def forestalled(*arguments, **named) -> None:
        monkeypatch.setattr(slow.root, "put", upload)
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TAFTCACHE_STAGING", str(tmp_path / "another machine"))
            with FeatureStore(address, mode="a") as fast, fast.transaction() as change:
                change.erase([IDS[0], IDS[6]])
        upload(*arguments, **named)

    monkeypatch.setattr(slow.root, "put", forestalled)
    if killed:
        monkeypatch.setattr(slow.committer(), "_recover", lambda *arguments: None)
    with pytest.raises(StoreLocked, match="another writer"), slow.transaction() as change:
        change.erase([IDS[1], MORE[1], IDS[7]])
    slow.close()
    forgotten = [row(IDS[0]).astype(np.float16).tobytes()[:16], IDS[0].encode(), IDS[6].encode()]
    if killed:
        assert all(any(needle in data for data in objects(address).values()) for needle in forgotten)
        with FeatureStore(address) as store:
            first = [path for path in store.strays() if path.startswith(("shards/000", "lists/skipped"))]
            assert set(first) <= set(collect(store, dry=True).removed)
        with FeatureStore(address, mode="a") as store:  # of any writer; the faster one's same request again, say
            assert store.is_forgotten(IDS[0])
    for name, data in (objects(address) | tree(tmp_path / "desk")).items():
        assert not any(needle in data for needle in forgotten), name
    with FeatureStore(address) as store:
        left = {path[:10] for path in store.strays()}
        assert left == {"shards/001", "lists/tomb"}, "others may be about to name them"
        assert store.verify() == []


@pytest.mark.law(
    "Of two writers in a bucket, the slower one leaves nothing that the other forgot and removes nothing of its"
)
def test_what_two_writers_upload_alike_stays_for_the_one_that_commits(address, tmp_path, monkeypatch) -> None:
    """Both take the same row from shard 001. One has uploaded it when the other, which comes too late, gives up."""
    with create(address) as store:
        fill(store, "000", IDS)
        fill(store, "001", MORE)
        with store.transaction() as change:
            change.erase(IDS[:1])
    slow = FeatureStore(address, mode="a")
    late = slow.transaction()
    late.erase(MORE[:1])
    monkeypatch.setenv("TAFTCACHE_STAGING", str(tmp_path / "another machine"))
    with FeatureStore(address, mode="a") as fast, fast.transaction() as change:
        change.erase(IDS[1:2])
    with FeatureStore(address, mode="a") as third:
        swap = third.root.swap

        def between(name, data) -> None:
            with monkeypatch.context() as unseen:
                unseen.setattr("taftcache.cache.write.commit.is_changed", lambda root: False)  # as if it began before
                with pytest.raises(StoreLocked):
                    late.commit()
            swap(name, data)

        monkeypatch.setattr(third.root, "swap", between)
        with third.transaction() as change:
            change.erase(MORE[:1])
    slow.close()
    with FeatureStore(address) as store:
        assert store.verify() == []
        assert store.is_forgotten(MORE[0])


@pytest.mark.law(
    "Of two writers in a bucket, the slower one leaves nothing that the other forgot and removes nothing of its"
)
def test_a_commit_that_comes_too_late_uploads_nothing(address, tmp_path, monkeypatch, proxy) -> None:
    small(address)
    slow = FeatureStore(address, mode="a")
    late = slow.transaction()
    late.erase(IDS[1:2])
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TAFTCACHE_STAGING", str(tmp_path / "another machine"))
        with FeatureStore(address, mode="a") as fast, fast.transaction() as change:
            change.erase(IDS[:1])
    proxy.seen = []
    with pytest.raises(StoreLocked, match="another writer"):
        late.commit()
    assert [path for method, path in proxy.seen if method == "PUT"] == []
    with slow.transaction() as change:
        change.erase(IDS[1:2])
    slow.close()
    with FeatureStore(address) as store:
        assert [store.is_forgotten(i) for i in IDS[:3]] == [True, True, False]
        assert store.verify() == []


def test_gc_spares_what_is_young(address) -> None:
    small(address)
    root, desk = open_home(address)
    desk.close()
    root.put("shards/999-0000000000000000/tokens/c.0.0.0", b"a commit on its way, or a crash's leftover")
    with FeatureStore(address, mode="a") as store:
        assert root.exists("shards/999-0000000000000000"), "opening for writing removes nothing of another writer"
        found = collect(store)
        assert (list(found.removed), list(found.kept)) == ([], ["shards/999-0000000000000000"])
        assert list(collect(store, older=-5).removed) == ["shards/999-0000000000000000"]
        assert store.strays() == []


@pytest.mark.parametrize(
    "kinds", ["503 drop lost", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("503", "drop", "lost"))]
)
def test_every_fourth_request_goes_wrong(address, proxy, kinds) -> None:
    """In one way, or in three in turn."""
    ways = kinds.split()
    proxy.fault = lambda method, path, before: ways[before // 4 % len(ways)] if before % 4 == 3 else None
    make(address)
    read(address)
    assert len(proxy.hurt) > 40


@pytest.mark.parametrize("what", ["lost", "503", "drop"])
def test_the_answer_to_the_swap_is_lost(address, proxy, what) -> None:
    """The put went through, nobody said so: the next look tells, and the writer does not take it for another's."""
    small(address)
    answers = iter([what])

    def fault(method, path, before):
        return next(answers, None) if method == "PUT" and path.endswith("manifest.json") else None

    with FeatureStore(address, mode="a") as store:
        proxy.fault = fault
        with store.transaction() as change:
            change.put("components/001", b"new")
    assert proxy.hurt == [what]
    with FeatureStore(address) as store:
        assert store.read_object("components/001") == b"new"


def brief(monkeypatch) -> None:
    from datetime import timedelta

    from taftcache.cache.place import bucket

    monkeypatch.setattr(bucket, "RETRIES", {"max_retries": 1, "retry_timeout": timedelta(seconds=2)})


def test_a_service_that_is_gone(address, proxy, monkeypatch) -> None:
    small(address)
    brief(monkeypatch)
    with FeatureStore(address, mode="a") as store:
        before = objects(address)
        proxy.fault = lambda method, path, before: "503" if method == "PUT" else None
        with (
            pytest.raises(StoreWriteError, match="the object store does not answer"),
            store.transaction() as change,
        ):
            change.put("components/001", b"new")
        with pytest.raises(StoreWriteError):
            fill(store, "001", names(5, "new"))
        proxy.fault = lambda method, path, before: "503"
        with pytest.raises(StoreUnreachable, match="AWS_"):
            store.verify()  # an outage is no damage
        with pytest.raises(StoreUnreachable):
            FeatureStore(address)
        proxy.fault = no_fault
        assert {name: data for name, data in objects(address).items() if name in before} == before
        assert store.verify() == []
        assert fill(store, "001", names(5, "new")) == 4
        assert store.verify() == []


def test_an_answer_that_hangs_is_asked_for_again_and_a_slow_write_is_waited_for(address, proxy, monkeypatch) -> None:
    """A read waited for five minutes in silence, and then was not asked for again."""
    from datetime import timedelta

    from taftcache.cache.place import bucket

    make(address)
    patient = bucket.READS
    monkeypatch.setattr(bucket, "READS", {"read_timeout": timedelta(seconds=0.5)})
    hung = set()

    def once(method: str, path: str, before: int) -> str | None:
        new = method == "GET" and path not in hung
        hung.add(path)
        return "hang" if new and path.endswith("manifest.json") else None

    proxy.fault = once
    read(address)
    assert proxy.hurt == ["hang"]
    with FeatureStore(address, mode="a") as store:
        proxy.fault = lambda method, path, before: "slow" if method == "PUT" else None
        with store.transaction() as change:
            change.put("components/001", b"slow")
    brief(monkeypatch)
    proxy.fault = lambda method, path, before: "hang"
    with pytest.raises(StoreUnreachable, match="the object store does not answer"):
        FeatureStore(address)
    monkeypatch.setattr(bucket, "READS", patient)  # the server may pause for longer than half a second
    proxy.fault = no_fault
    with FeatureStore(address) as store:
        assert store.read_object("components/001") == b"slow"


def test_a_large_object_leaves_no_part_of_itself(address, proxy, monkeypatch) -> None:
    """Parts of an upload that was killed could be read, and neither ``audit`` nor ``gc`` saw them."""
    small(address)
    brief(monkeypatch)
    large = bytes(12 << 20)
    cut = {"partNumber=2", "components/001"}
    proxy.seen = []
    with FeatureStore(address, mode="a") as store:
        proxy.fault = lambda method, path, before: "503" if method != "GET" and any(c in path for c in cut) else None
        with pytest.raises(StoreWriteError), store.transaction() as change:
            change.put("components/001", large)
        assert proxy.hurt
        cut.remove("components/001")
        with store.transaction() as change:
            change.put("components/001", large)
        assert store.read_object("components/001") == large
    assert [path for _, path in proxy.seen if "upload" in path] == []
    bucket = address.split("/")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.server_port}/{bucket}?uploads", timeout=30) as answer:
        assert b"<Upload>" not in answer.read()


def test_damage_in_a_bucket_is_found(address) -> None:
    make(address)
    root, desk = open_home(address)
    desk.close()
    whole = objects(address)
    kinds = ("manifest.json", ".json", "tokens/c.1.0.0", "sample_id/c.0", "tombstones.key")
    for name in [next(name for name in whole if name.endswith(kind)) for kind in kinds]:
        data = whole[name]
        root.put(name, bytes([data[0] ^ 1]) + data[1:])
        with pytest.raises(StoreError):
            read_strictly(address)
        root.remove(name)
        with pytest.raises(StoreError):
            read_strictly(address)
        root.put(name, data)
    read_strictly(address)


def read_strictly(address) -> None:
    with FeatureStore(address) as store:
        if faults := store.verify():
            raise faults[0].error()


def test_an_object_that_changes_between_two_passes_is_noticed(address) -> None:
    """A view of a bucket comes anew at each pass: so does its digest."""
    make(address)
    root, desk = open_home(address)
    desk.close()
    with FeatureStore(address) as store:
        shard = store.shards[0]
        list(shard.blocks(4))
        name = f"{shard.at}/tokens/c.1.0.0"
        data = root.read(name, 1 << 20)
        root.put(name, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IntegrityError, match="chunk 1"):
            list(shard.blocks(4))


def test_no_bucket_no_store_no_address(address) -> None:
    with pytest.raises(StoreNotFound):
        FeatureStore(address)
    assert not FeatureStore.exists(address)
    odd = ("s3://bk/../h", "s3://bk/h/..", "s3://bk/h/./x", "s3://bk/a//b", "s3://bk/a\x01", "s3://bk/\udcff")
    for wrong in ("s3://", "s3:///x", "s3://Upper/x", "S3://bk/x", "gs://bk/x", "https:/bk/x", *odd):
        with pytest.raises(RecipeError, match="s3://bucket/prefix"):
            FeatureStore(wrong)


NOWHERE = "s3://no-such-bucket-at-all/x"
WAYS = {
    "read": lambda place: FeatureStore(place),
    "open for writing": lambda place: FeatureStore(place, mode="a"),
    "ask": FeatureStore.exists,
    "make": create,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_bucket_that_is_not_there_is_named(address, way) -> None:
    with pytest.raises(StoreNotFound, match="no bucket named no-such-bucket-at-all"):
        WAYS[way](NOWHERE)


def test_nothing_is_put_in_a_bucket_that_is_not_there(address, tmp_path) -> None:
    small(tmp_path / "s")
    with FeatureStore(tmp_path / "s") as store:
        with pytest.raises(StoreNotFound, match="no bucket named no-such-bucket-at-all"):
            copy(store, NOWHERE)
        root, desk = open_home(NOWHERE)
        desk.close()
        for put in (root.put, root.swap):
            with pytest.raises(StoreWriteError, match="no bucket named no-such-bucket-at-all"):
                put("manifest.json", b"x")


@pytest.mark.parametrize("lost", [["AWS_SECRET_ACCESS_KEY"], ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]])
def test_credentials_that_are_not_set_are_asked_for(address, monkeypatch, lost) -> None:
    """Without a key the library asks this machine for a role, which is nothing that the user has heard of."""
    brief(monkeypatch)
    for name in lost:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreUnreachable, match=r"no credentials are set for the bucket b\d+\n(.*\n)+.*AWS_ACCESS"):
        FeatureStore(address)


def test_credentials_that_expired_are_said_to_have(address, proxy, monkeypatch) -> None:
    """Those for a few hours may end within an upload."""
    brief(monkeypatch)
    proxy.fault = lambda method, path, before: "expired" if method == "PUT" else None
    with pytest.raises(StoreWriteError, match=r"have expired(.|\n)*got: .*: The provided token has expired\.\n.*renew"):
        make(address)
    proxy.fault = lambda method, path, before: "expired"
    with pytest.raises(StoreUnreachable, match=r"expired"):
        FeatureStore(address)


def test_what_the_credentials_do_not_allow_is_no_outage(address, proxy, monkeypatch) -> None:
    """A list that is refused, and an answer that all went well with a refusal for each object."""
    brief(monkeypatch)
    make(address)
    with FeatureStore(address, mode="a") as store:
        proxy.fault = lambda method, path, before: "denied" if path.endswith("?delete") else None
        with pytest.raises(StoreWriteError, match=r"refused the credentials(.|\n)*they must allow .* delete"):
            store.root.remove("components")
        proxy.fault = lambda method, path, before: "denied" if "list-type" in path else None
        with pytest.raises(StoreUnreachable, match=r"refused the credentials(.|\n)*they must allow .* list"):
            store.strays()
        proxy.fault = lambda method, path, before: "region"
        with pytest.raises(StoreUnreachable, match=r"the bucket b\d+ is in another region(.|\n)*AWS_REGION"):
            FeatureStore(address)


def test_an_error_has_no_password_and_not_the_whole_answer(address, proxy, monkeypatch) -> None:
    brief(monkeypatch)
    proxy.fault = lambda method, path, before: "signature"
    for call in (lambda: FeatureStore(address), lambda: create(address)):
        with pytest.raises(StoreError) as failed:
            call()
        assert "AKIASECRET" not in "".join(traceback.format_exception(failed.value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://bob:PASSW0RD@127.0.0.1:1")
    with pytest.raises(StoreUnreachable, match=r"//127\.0\.0\.1:1") as failed:
        FeatureStore(address)
    assert "PASSW0RD" not in "".join(traceback.format_exception(failed.value))


def test_a_service_that_ignores_conditions_gets_no_store(address, proxy, tmp_path) -> None:
    """It would let the slower of two writers undo an erasure that was acknowledged."""
    small(tmp_path / "s")
    proxy.fault = lambda method, path, before: "blind"
    with pytest.raises(StoreWriteError, match="ignores the conditions of a write"):
        create(address)
    assert objects(address) == {}
    with FeatureStore(tmp_path / "s") as store, pytest.raises(StoreWriteError, match="ignores the conditions"):
        copy(store, address)
    assert not FeatureStore.exists(address)


def test_each_service_has_a_desk_of_its_own(address, monkeypatch) -> None:
    """Two that were named by another variable than AWS_ENDPOINT_URL had one desk, and one lock, for both."""

    def desk(**named: str) -> str:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in named.items():
            monkeypatch.setenv(name, value)
        with open_home("s3://bk/x") as (_, staging):
            return staging.path.name

    one, other = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert desk(AWS_ENDPOINT=one) != desk(AWS_ENDPOINT=other)
    assert desk(AWS_ENDPOINT_URL_S3=one) != desk(AWS_ENDPOINT_URL_S3=other)
    assert desk(AWS_ENDPOINT_URL=one) == "619cf7092a6a5511", "where earlier releases have unfinished work"
    assert desk() == "083a17e7ee2b3cc0"


@pytest.mark.parametrize("place", ["s3://bk/x.head", "s3:/bk/x.head"])
def test_only_stores_are_written_to_a_bucket(place, tmp_path, monkeypatch) -> None:
    """A folder of that name was made here, and the command said that all went well."""
    monkeypatch.chdir(tmp_path)
    small("s")
    for write in (lambda: taftcache.audit("s", head=place), lambda: writable(Path(place), folder=True)):
        with pytest.raises(StoreWriteError, match=r"cannot write s3://bk/x\.head: only a store"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_an_audit_reads_what_macos_put_into_a_bucket(address, proxy) -> None:
    small(address)
    with FeatureStore(address, mode="a") as store, store.transaction() as change:
        change.erase(IDS[:1])
    s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{proxy.server_port}")
    for said, found in ((b"", []), (f'"the picture of": ["{IDS[0]}"], and so on'.encode(), [".DS_Store"])):
        key = "some/stores/mine/.DS_Store"
        s3.put_object(Bucket=address.split("/")[2], Key=key, Body=b"\0\0\0\1Bud1\0" + said)
        report = taftcache.audit(address)
        assert [f.where for f in report.findings if f.kind == "leftover file"] == found
        assert [note.partition(":")[0] for note in report.notes if "macOS" in note] == ([] if found else [".DS_Store"])


def test_an_audit_says_that_a_bucket_keeps_old_versions(address, proxy) -> None:
    small(address)
    assert not any("old versions" in note for note in taftcache.audit(address).notes)
    s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{proxy.server_port}")
    s3.put_bucket_versioning(Bucket=address.split("/")[2], VersioningConfiguration={"Status": "Enabled"})
    with FeatureStore(address, mode="a") as store, store.transaction() as change:
        change.erase(IDS[:1])
    assert any("old versions" in note for note in taftcache.audit(address).notes)
