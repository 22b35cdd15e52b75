"""What goes in comes out, in any tool that reads Zarr, in blocks that do not depend on the chunks."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest
import zarr

from taftcache.cache.format.parts import Skipped
from taftcache.cache.store import FeatureStore
from taftcache.errors import (
    DataError,
    FormatError,
    IdentityError,
    IntegrityError,
    RecipeError,
    StoreChanged,
    StoreError,
    StoreLocked,
    StoreNotFound,
    UnknownSample,
)

from .making import CLASSES, IDENTITY, NO_ROWS, SHAPE, create, fill, holds, label, names, row, tree


@pytest.fixture
def ids():
    return names(30)


@pytest.fixture
def store(tmp_path, ids):
    with create(tmp_path / "s") as made:
        fill(made, "000", ids[:14])
        fill(made, "001", ids[14:25])
        fill(made, "held-out", ids[25:], role="held-out")
        yield made


def test_rows_come_back(store, ids) -> None:
    with FeatureStore(store.path) as again:
        assert holds(again, ids)
        assert [s.name for s in again.shards] == ["000", "001"]
        assert again.held_out is not None
        assert again.held_out.sample_ids == ids[25:]
        assert again.sample_ids() == ids[:25]
        assert again.root_digest == store.root_digest
        assert again.verify() == []
        assert again.strays() == []
        assert again.has_shard("001")
        assert not again.has_shard("002")
        on_disk = tree(again.path, but=["manifest.json"])
        assert again.nbytes == sum(map(len, on_disk.values()))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_any_zarr_reads_a_shard(tmp_path, ids, dtype) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", ids, dtype=dtype)
        shard = store.shards[0]
        group = zarr.open_group(store.path / shard.at, mode="r")
        tokens = group["tokens"][:]
        assert tokens.dtype == dtype
        assert np.array_equal(tokens, np.stack([row(i) for i in ids]).astype(dtype))
        assert group["labels"][:].tolist() == [label(i) for i in ids]
        assert group["sample_id"][:].tolist() == ids
        assert sorted(group.array_keys()) == ["labels", "sample_id", "tokens"]
        checked = shard.group()
        assert np.array_equal(checked["tokens"][3:9], tokens[3:9])
        assert sorted(checked.array_keys()) == ["labels", "sample_id", "tokens"]
        assert "nothing" not in checked
        with pytest.raises(ValueError, match="read-only"):
            checked["labels"][:] = 0


def test_a_shard_written_by_zarr_has_the_same_chunks(tmp_path, store) -> None:
    """The files are Zarr's own, not merely readable by it."""
    shard = store.shards[0]
    group = zarr.create_group(tmp_path / "z", zarr_format=3)
    plain = {"compressors": None, "filters": None, "chunk_key_encoding": {"name": "default", "separator": "."}}
    for name, data, chunk in [("tokens", shard.tokens(slice(None)), (4, *SHAPE)), ("labels", shard.labels, (14,))]:
        group.create_array(name, data=data, chunks=chunk, **plain)
    made = group.create_array("sample_id", shape=(14,), chunks=(14,), dtype=str, **plain)
    made[:] = np.array(shard.sample_ids, dtype=object)
    chunks = [name for name in shard.manifest.objects if not name.endswith("zarr.json")]
    assert len(chunks) == 6
    for name in chunks:
        assert (tmp_path / "z" / name).read_bytes() == shard.read(name), name
    for name in ("tokens", "labels", "sample_id"):
        ours, theirs = shard.group()[name].metadata, group[name].metadata
        assert (ours.shape, ours.data_type, ours.codecs) == (theirs.shape, theirs.data_type, theirs.codecs)


@pytest.mark.parametrize("size", [1, 3, 4, 8, 30, 256])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (5, 13), (0, 0), (13, 14), (2, 99)])
def test_blocks_do_not_depend_on_chunks(tmp_path, ids, size, start, stop) -> None:
    want = np.stack([row(i) for i in ids]).astype(np.float16)[start:stop]
    shapes = []
    with create(tmp_path / "s") as store:
        for name, chunk in (("000", 4), ("001", 7), ("002", 64)):
            renamed = [f"{name}/{i}" for i in ids]
            with store.writer(name, "train", tokens_shape=SHAPE, chunk_rows=chunk, candidates=renamed) as writer:
                writer.append(np.stack([row(i) for i in ids]), renamed, [label(i) for i in ids])
                writer.commit()
            blocks = list(store.shard(name).blocks(size, start, stop))
            shapes.append([(b.start, b.tokens.shape, b.labels.tolist()) for b in blocks])
            assert all(b.start == start + k * size for k, b in enumerate(blocks))
            assert all(not b.tokens.flags.writeable and not b.labels.flags.writeable for b in blocks)
            got = np.concatenate([b.tokens for b in blocks]) if blocks else want[:0]
            assert np.array_equal(got, want)
        assert shapes[0] == shapes[1] == shapes[2]


def test_blocks_may_be_left_and_interleaved(store, ids) -> None:
    shard = FeatureStore(store.path).shards[0]
    one, two = shard.blocks(3), shard.blocks(5)
    next(one)
    for block in two:
        assert np.array_equal(block.tokens[0], row(ids[block.start]).astype(np.float16))
    assert next(one).start == 3
    one.close()


def test_a_block_within_one_chunk_is_a_view(store) -> None:
    shard = store.shards[0]
    assert shard.tokens(slice(4, 8)).base is not None
    assert next(shard.blocks(4)).tokens.base is not None
    blocks = shard.blocks(4)
    kept = next(blocks).tokens
    list(blocks)
    assert np.array_equal(kept, shard.tokens([0, 1, 2, 3]))


def test_few_file_descriptors_are_enough(store, monkeypatch) -> None:
    from taftcache.cache.read import shard as module

    want = store.shards[0].tokens(slice(None))
    few = module._Descriptors()
    few._left = 2
    monkeypatch.setattr(module, "_descriptors", few)
    shard = FeatureStore(store.path).shards[0]
    for _ in range(3):
        assert np.array_equal(np.concatenate([b.tokens for b in shard.blocks(4)]), want)
    assert len(shard._maps) == 2
    assert few._left == 0
    del shard
    gc.collect()
    assert few._left == 2


def test_two_threads_that_map_one_file_take_one_descriptor(store, monkeypatch) -> None:
    from taftcache.cache.read import shard as module

    class Maps(dict):
        def __setitem__(self, name: str, data: object) -> None:
            other = Thread(target=shard.tokens, args=(slice(0, 4),))
            others.append(other)
            if len(others) == 1:  # a second thread has the same file before the first has put it down
                other.start()
                other.join(0.5)
            super().__setitem__(name, data)

    counted, others = module._Descriptors(), []
    counted._left = 10
    monkeypatch.setattr(module, "_descriptors", counted)
    shard = FeatureStore(store.path).shards[0]
    shard._maps = Maps()
    shard.tokens(slice(0, 4))
    others[0].join()
    assert (len(shard._maps), counted._left) == (1, 9)


def test_rows_by_number(store, ids) -> None:
    shard = store.shards[0]
    every = shard.tokens(slice(None))
    for rows in (
        [3, 0, 13, 3],
        np.array([-1, 5]),
        np.array([], int),
        slice(None, None, 3),
        slice(9, 2),
        slice(12, 1, -2),
    ):
        assert np.array_equal(shard.tokens(rows), every[rows])
    for wrong in ([14], [-15], [0.5], np.ones(14, bool), [[1]]):
        with pytest.raises(IndexError):
            shard.tokens(wrong)
    assert len(list(shard.blocks())) == 1
    with pytest.raises(ValueError, match="block"):
        next(shard.blocks(0))


def test_statistics(store, ids) -> None:
    stored = np.stack([row(i) for i in ids[:14]]).astype(np.float16).astype(float)
    found = store.shards[0].statistics
    assert found["max_abs"] == np.abs(stored).max()
    assert found["mean_token_norm"] == pytest.approx(np.linalg.norm(stored, axis=-1).mean(), rel=1e-8)
    assert found["rows_per_class"] == {k: n for k in range(3) if (n := sum(label(i) == k for i in ids[:14]))}


@pytest.mark.parametrize("given", [np.float16, np.float32, np.float64])
def test_input_dtypes(tmp_path, given) -> None:
    with create(tmp_path / "s") as store, store.writer("000", "train", tokens_shape=SHAPE, candidates=["a"]) as writer:
        x = row("a").astype(given)
        writer.append(x[None], ["a"], np.array([1], np.uint8))
        writer.commit()
        assert np.array_equal(store.shards[0].tokens([0])[0], x.astype(np.float16))


@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        (np.nan, "float16", "'c': NaN"),
        (-np.inf, "float16", "'c': Inf"),
        (7e4, "float16", "overflows float16"),
        (-65520.0, "float16", "overflows float16"),
        (1e39, "float32", "overflows float32"),
        (np.nan, "float32", "'c': NaN"),
    ],
)
def test_what_is_not_finite_is_refused(tmp_path, value, dtype, says) -> None:
    with (
        create(tmp_path / "s") as store,
        store.writer("000", "train", tokens_shape=SHAPE, dtype=dtype, candidates="abcd") as writer,
    ):
        x = np.stack([row(i) for i in "abcd"])
        x[2, 1, 3] = value
        with pytest.raises(DataError, match=says):
            writer.append(x, list("abcd"), [0, 0, 0, 0])
        x[2, 1, 3] = 65504
        writer.append(x, list("abcd"), [0, 0, 0, 0])  # nothing of the refused rows was taken
        writer.commit()
        assert store.shards[0].sample_ids == list("abcd")
        assert store.shards[0].statistics["max_abs"] == 65504


def test_rows_that_cannot_be(store, ids) -> None:
    with store.writer("002", "train", tokens_shape=SHAPE, candidates=["new"]) as writer:
        one = row("new")[None]
        writer.append(one, ["new"], [0])
        for tokens, some, labels, says in [
            (one, ["new"], [0], "'new' is in shard 002"),
            (one, [ids[0]], [0], "another shard"),
            (one, ["b"], [3], "0 to 2"),
            (one, ["b"], [-1], "'b': -1"),
            (one, ["b"], [0.5], "class index"),
            (one, ["b", "c"], [0, 0], "one id each"),
            (one[:, :2], ["b"], [0], "one id each"),
            (one.astype(int), ["b"], [0], "floats"),
            (one, ["b\0"], [0], "control"),
        ]:
            with pytest.raises(DataError, match=says):
                writer.append(tokens, some, labels)
        with pytest.raises(DataError, match="'new'"):
            writer.append(NO_ROWS, [], [], [Skipped("new", "x")])
    with store.writer("003", "train", tokens_shape=SHAPE, candidates=["gone"]) as writer:
        writer.append(NO_ROWS, [], [], [("gone", "unreadable")])
        with pytest.raises(DataError, match="1 sample skipped"):
            writer.commit()


def test_writers_are_refused(store) -> None:
    given = {"name": "002", "role": "train", "tokens_shape": SHAPE, "candidates": ["a"]}
    for wrong, kind in [
        ({"name": "../x"}, RecipeError),
        ({"name": "A"}, RecipeError),
        ({"role": "test"}, RecipeError),
        ({"role": "held-out"}, StoreError),
        ({"dtype": "bfloat16"}, RecipeError),
        ({"tokens_shape": (0, 8)}, RecipeError),
        ({"chunk_rows": 0}, FormatError),
        ({"chunk_rows": 1 << 30}, FormatError),
        ({"candidates": ["a", "a"]}, DataError),
    ]:
        with pytest.raises(kind):
            store.writer(**(given | wrong))
    with store.writer(**given):
        with pytest.raises(StoreError, match="another writer already"):
            store.writer(**given)
        for change_rows in (
            lambda change: change.erase([store.sample_ids()[0]]),
            lambda change: change.drop_shard("000"),
            lambda change: change.relabel(store.classes),
        ):
            with pytest.raises(StoreError, match="while a shard is written"), store.transaction() as change:
                change_rows(change)
    with FeatureStore(store.path) as reading, pytest.raises(StoreError, match='mode="a"'):
        reading.transaction()


def test_unknown_things_are_named(store, tmp_path, ids) -> None:
    with pytest.raises(UnknownSample, match=ids[3]):
        store.locate(ids[3] + "x")
    with pytest.raises(StoreError, match="held-out"):
        store.shard("nope")
    with pytest.raises(StoreError, match="none"):
        store.read_object("components/000")
    with pytest.raises(StoreNotFound):
        FeatureStore(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for mode in ("r", "a"):
        with pytest.raises(StoreNotFound):
            FeatureStore(tmp_path / "empty", mode=mode)
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(StoreChanged, match=r'there is one by now[\s\S]*mode="a"'):
        create(store.path)
    with pytest.raises(RecipeError):
        create(tmp_path / "x", classes=["a", "a"])
    with pytest.raises(RecipeError, match=r"identity\.x"):
        create(tmp_path / "x", identity={"x": {1, 2}})
    assert not (tmp_path / "x").exists()


def test_identity_names_what_differs(store) -> None:
    store.check_identity(IDENTITY)
    with pytest.raises(IdentityError, match=r"cut.block: the store has 11, here it is 10; extra: .*nothing"):
        store.check_identity(IDENTITY | {"cut": {"block": 10}, "extra": 1})


def test_an_older_copy_is_noticed(store) -> None:
    known = store.root_digest
    for expect in (known, known[:16], known[:40]):  # most commands print sixteen digits
        FeatureStore(store.path, expect=expect).close()
    for expect in ("0" * 64, "0" * 16, known[1:]):
        with pytest.raises(IntegrityError, match="expected"):
            FeatureStore(store.path, expect=expect)
    for expect in (known[:15], "", f"{known}0", known.upper()):
        with pytest.raises(RecipeError, match="is no root digest"):
            FeatureStore(store.path, expect=expect)


def test_one_writer_at_a_time(store) -> None:
    with pytest.raises(StoreLocked, match=r"cannot write .*: this process has it open .*\n  try: close that Feature"):
        FeatureStore(store.path, mode="a")
    FeatureStore(store.path).close()
    code = f"from taftcache.cache.store import FeatureStore\nFeatureStore({str(store.path)!r}, mode='a')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "StoreLocked" in other.stderr
    assert f"process {os.getpid()} writes to it" in other.stderr
    store.close()
    FeatureStore(store.path, mode="a").close()


def test_a_disk_that_fails_lets_the_lock_go(store, monkeypatch) -> None:
    def full(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "ftruncate", full)
    store.close()
    FeatureStore(store.path, mode="a").close()


def test_a_store_that_nobody_has_any_more_is_not_locked(store) -> None:
    """As a notebook's, whose cell is run again."""
    place = store.path
    store.close()
    dropped = FeatureStore(place, mode="a")
    del dropped
    gc.collect()
    FeatureStore(place, mode="a").close()


def test_a_shard_is_replaced_with_its_skipped(tmp_path, ids) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", ids[:10], bad=ids[2:4])
        fill(store, "001", ids[10:20], bad=ids[12:13])
        assert [s.id for s in store.manifest.skipped] == sorted([*ids[2:4], ids[12]])
        fill(store, "000", ids[:10])
        assert [(s.id, s.reason, s.shard) for s in store.manifest.skipped] == [(ids[12], "unreadable", "001")]
        assert len(store.shards[0]) == 10
        assert store.strays() == []


def test_extracting_again_mends_damage(store, ids) -> None:
    before = store.root_digest
    victim = store.path / store.shards[0].at / "tokens" / "c.1.0.0"
    victim.write_bytes(bytes(victim.stat().st_size))
    assert len(store.verify()) == 1
    fill(store, "000", ids[:14])
    assert store.verify() == []
    assert store.root_digest == before


def test_import_is_light() -> None:
    code = "import sys, taftcache.cache; sys.exit(bool({'zarr', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_classes_are_those_given(store) -> None:
    assert store.classes == CLASSES
