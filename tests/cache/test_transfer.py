"""Copies are the same bytes; conversions are what an extraction in the other form would have written."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from taftcache.cache.copying import convert, copy
from taftcache.cache.place.folder import Folder
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, IdentityError, IntegrityError, StoreError, StoreWriteError

from .making import CLASSES, IDENTITY, SHAPE, create, fill, holds, names, row, tree
from .test_faults import failing

IDS, TEST = names(19), names(5, "test")


def make(path, dtype="float16", chunk_rows=4):
    """Two shards (one sample skipped, one forgotten), a held-out one, a base, a component and a ledger."""
    with create(path, identity=IDENTITY | {"dtype": dtype}) as store:
        fill(store, "000", [*IDS[:11], "goner"], dtype=dtype, chunk_rows=chunk_rows, bad=[IDS[3]])
        fill(store, "001", IDS[11:], dtype=dtype, chunk_rows=chunk_rows)
        fill(store, "held-out", TEST, role="held-out", dtype=dtype, chunk_rows=chunk_rows)
        with store.transaction() as change:
            change.erase(["goner"])
            change.put("base/tail", b"the tail", {"heads": 3})
            change.put("components/000", b"component")
            change.record({"action": "erase"})
        with store.transaction() as change:
            change.record({"action": "note"})
    return path


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "s")


def committed(path) -> dict[str, bytes]:
    return tree(path, but=("staging/",))


@pytest.mark.law("A copy is the same bytes, and never names a store with less in it")
def test_a_copy_is_the_same_bytes(path, tmp_path) -> None:
    with FeatureStore(path) as store:
        seen: list[tuple[int, int]] = []
        done = copy(store, tmp_path / "a" / "copy", progress=lambda *x: seen.append(x))
        assert done.files == len(tree(path)) - 1
        assert seen[-1][0] == seen[-1][1] == done.bytes
        again = copy(store, tmp_path / "a" / "copy")
        assert (again.files, again.bytes, again.there) == (0, 0, done.files)
    assert committed(tmp_path / "a" / "copy") == tree(path)
    with FeatureStore(tmp_path / "a" / "copy", mode="a") as store:
        assert store.strays() == []


def test_nothing_unnamed_is_copied(path, tmp_path) -> None:
    with FeatureStore(path, mode="a") as store:
        fill(store, "002", names(9, "more"), stop=1)
        (path / "shards" / "stray").write_bytes(b"x")
        (path / "note").write_bytes(b"x")
        copy(store, tmp_path / "copy")
    assert not any("shards/002" in f or "stray" in f or "note" in f for f in committed(tmp_path / "copy"))


def test_damage_is_not_copied(path, tmp_path) -> None:
    for n, file in enumerate(f for f in tree(path) if f != "manifest.json"):
        raw = (path / file).read_bytes()
        (path / file).write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
        with FeatureStore(path) as store, pytest.raises(StoreError):
            copy(store, tmp_path / f"copy{n}")
        assert not FeatureStore.exists(tmp_path / f"copy{n}")
        (path / file).write_bytes(raw)
        if n % 5 == 0:
            with FeatureStore(path) as store:
                copy(store, tmp_path / f"copy{n}")
            assert committed(tmp_path / f"copy{n}") == tree(path)


def test_damage_at_the_target_is_mended_by_copying_again(path, tmp_path) -> None:
    with FeatureStore(path) as store:
        copy(store, tmp_path / "copy")
        victim = next(f for f in tree(path) if "/tokens/c.1" in f)
        (tmp_path / "copy" / victim).write_bytes(b"damage")
        assert copy(store, tmp_path / "copy").files == 1
    assert committed(tmp_path / "copy") == tree(path)


@pytest.mark.law("A copy is the same bytes, and never names a store with less in it")
def test_damage_on_the_way_leaves_no_store(path, tmp_path, monkeypatch) -> None:
    """The disk takes other bytes than it was given: the copy is read again before it is named."""
    from taftcache.cache.place import folder as files

    real = files.write_all

    def bad(fd, data):
        real(fd, b"\0" * len(memoryview(data).cast("B")) if len(memoryview(data).cast("B")) == 192 else data)

    monkeypatch.setattr(files, "write_all", bad)
    with FeatureStore(path) as store, pytest.raises(IntegrityError):
        copy(store, tmp_path / "copy")
    assert not FeatureStore.exists(tmp_path / "copy")


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.full)])
def test_a_copy_that_is_cut_off_goes_on(path, tmp_path, step) -> None:
    for at in range(1, 400, step):
        with FeatureStore(path) as store:
            try:
                with failing(errno.ENOSPC, at, True) as seen:
                    copy(store, tmp_path / "copy")
            except (StoreWriteError, StoreError):
                if FeatureStore.exists(tmp_path / "copy"):  # what failed came after the swap
                    assert committed(tmp_path / "copy") == tree(path)
            else:
                # once the copy is there, the file of tombstones beside it may fail: an audit says so
                assert len(seen) < at or FeatureStore.exists(tmp_path / "copy")
                break
    assert committed(tmp_path / "copy") == tree(path)
    with FeatureStore(tmp_path / "copy", mode="a") as store:
        assert store.strays() == []
        assert store.tombstone_file.holds("goner"), "the next opening for writing completes it"


def test_what_lies_there_is_not_overwritten(path, tmp_path) -> None:
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "photo.jpg").write_bytes(b"x")
    other = make(tmp_path / "other", "float32")
    with FeatureStore(path) as store:
        with pytest.raises(StoreError, match=r"photo\.jpg"):
            copy(store, tmp_path / "house")
        for update in (False, True):
            with pytest.raises(StoreError, match="another store"):
                copy(store, other, update=update)


def test_update_moves_a_copy_on(path, tmp_path) -> None:
    with FeatureStore(path, mode="a") as store:
        copy(store, tmp_path / "copy")
        with store.transaction() as change:
            change.erase([IDS[0]])
        with pytest.raises(StoreError, match="--update"):
            copy(store, tmp_path / "copy")
        done = copy(store, tmp_path / "copy", update=True)
        assert 0 < done.files < 12, "the other shards are there"
    assert committed(tmp_path / "copy") == committed(path)
    fragment = row(IDS[0]).astype(np.float16).tobytes()[:16]
    assert not any(fragment in data for data in tree(tmp_path / "copy").values())


@pytest.mark.parametrize("chunk_rows", [1, 3, 16, "auto"])
def test_other_chunks_are_those_of_an_extraction(path, tmp_path, chunk_rows) -> None:
    fresh = make(tmp_path / "fresh", chunk_rows=chunk_rows)
    with FeatureStore(path) as store:
        new = convert(store, tmp_path / "new", identity=store.identity, recipe={}, chunk_rows=chunk_rows)
    with new:
        assert new.verify() == []
        assert new.strays() == []
        assert list(new.objects()) == ["base/tail"]
        assert new.objects()["base/tail"].meta == {"heads": 3}
        assert new.is_forgotten("goner")
        assert [e["action"] for e in new.ledger()] == ["erase", "note"]
        assert new.manifest.skipped == FeatureStore(path).manifest.skipped
    rows = {f: d for f, d in tree(tmp_path / "new").items() if f.startswith("shards/")}
    assert rows == {f: d for f, d in tree(fresh).items() if f.startswith("shards/")}


def test_float32_to_float16_is_an_extraction_in_float16(tmp_path) -> None:
    wide, fresh = make(tmp_path / "wide", "float32"), make(tmp_path / "fresh")
    with FeatureStore(wide) as store:
        convert(store, tmp_path / "new", identity=IDENTITY | {"dtype": "float16"}, recipe={}, dtype="float16").close()
    rows = {f: d for f, d in tree(tmp_path / "new").items() if f.startswith("shards/")}
    assert rows == {f: d for f, d in tree(fresh).items() if f.startswith("shards/")}


def test_float16_to_float32_keeps_every_number(path, tmp_path) -> None:
    with FeatureStore(path) as store:
        with convert(store, tmp_path / "new", identity={"x": 1}, recipe={}, dtype="float32") as new:
            for shard in store.shards:
                assert np.array_equal(new.shard(shard.name).tokens(slice(None)), shard.tokens(slice(None)))
        with convert(new, tmp_path / "back", identity=store.identity, recipe={}, dtype="float16") as back:
            assert holds(back, [i for i in IDS if i != IDS[3]])
            assert [s.digest for s in back.shards] == [s.digest for s in store.shards]


def test_overflow_is_refused_by_name(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        with store.writer("000", "train", tokens_shape=SHAPE, dtype="float32", candidates=["small", "large"]) as writer:
            writer.append(np.full((2, *SHAPE), 1e5) * [[[1e-5]], [[1.0]]], ["small", "large"], [0, 1])
            writer.commit()
        with pytest.raises(DataError, match=r"'large'.*overflows float16"):
            convert(store, tmp_path / "new", identity={}, recipe={}, dtype="float16")


def test_a_conversion_that_is_cut_off_goes_on(path, tmp_path, monkeypatch) -> None:
    from taftcache.cache.write import writer

    with FeatureStore(path) as store:
        convert(store, tmp_path / "whole", identity=IDENTITY, recipe={}, chunk_rows=2).close()
        real = writer.ShardWriter.append
        for after in (1, 3, 1, 2, 99):
            left = [after]

            def append(self, *given, left=left):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                real(self, *given)

            monkeypatch.setattr(writer.ShardWriter, "append", append)
            try:
                convert(store, tmp_path / "new", identity=IDENTITY, recipe={}, chunk_rows=2).close()
            except KeyboardInterrupt:
                with FeatureStore(tmp_path / "new") as part:
                    assert part.verify() == []
    assert after == 99
    assert tree(tmp_path / "new") == tree(tmp_path / "whole")


def test_converting_into_another_store_is_refused(path, tmp_path) -> None:
    other = make(tmp_path / "other", "float32")
    with FeatureStore(path) as store:
        with pytest.raises(IdentityError, match="dtype"):
            convert(store, other, identity=store.identity, recipe={})
        with pytest.raises(StoreError, match="of another one"):
            convert(store, make(tmp_path / "third"), identity=store.identity, recipe={}, chunk_rows=2)
    assert CLASSES


def test_a_target_that_cannot_be_read_is_said_so(path, tmp_path, monkeypatch) -> None:
    with FeatureStore(path) as store:
        copy(store, tmp_path / "copy")
        before, own = tree(tmp_path / "copy"), Folder.open

        def deny(folder, name):
            if folder.path == tmp_path / "copy" and name.startswith("shards"):
                raise PermissionError(errno.EACCES, "Permission denied", name)
            return own(folder, name)

        monkeypatch.setattr(Folder, "open", deny)
        with pytest.raises(StoreWriteError, match="copy: permission denied"):
            copy(store, tmp_path / "copy", update=True)
    assert tree(tmp_path / "copy") == before


@pytest.mark.parametrize("place", [f"new/{'x' * 300}", "new/.."], ids=["too long", "not empty"])
def test_a_place_that_is_refused_is_left_without_a_folder(path, tmp_path, place) -> None:
    with FeatureStore(path) as store, pytest.raises(StoreError):
        copy(store, tmp_path / place)
    with pytest.raises(StoreError):
        create(tmp_path / place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s", "s.forgotten"]
