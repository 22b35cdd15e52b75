"""A store's rows as other tools' arrays: the same rows, read late, verified, and never those of another state."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from taftcache.cache.arrays import RowDataset
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, IntegrityError, RecipeError, StoreChanged, StoreError

from .test_transfer import make


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make(tmp_path_factory.mktemp("arrays") / "s")


def rows(store, names) -> tuple[np.ndarray, np.ndarray, list[str]]:
    shards = [store.shard(name) for name in names]
    tokens = np.concatenate([shard.tokens(slice(None)) for shard in shards])
    return tokens, np.concatenate([s.labels for s in shards]), [i for s in shards for i in s.sample_ids]


@pytest.mark.parametrize("names", [None, ["held-out"], ["001", "held-out"]])
def test_dask_arrays_are_the_rows(path, names):
    pytest.importorskip("dask.array")
    with FeatureStore(path) as store:
        tokens, labels, ids = rows(store, names or ["000", "001"])
        found = store.to_dask(names)
        assert repr(found).endswith(f"ids=[{len(ids)}])")
        sizes = [min(s.chunk_rows, s.rows - k) for s in map(store.shard, names or ["000", "001"])
                 for k in range(0, s.rows, s.chunk_rows)]  # fmt: skip
    assert found.tokens.chunks[0] == found.labels.chunks[0] == tuple(sizes)
    assert found.tokens.dtype == np.float32
    later = pickle.loads(pickle.dumps(found))
    assert np.array_equal(later.tokens.compute(scheduler="synchronous"), tokens)
    assert np.array_equal(later.tokens[3:5, 1].compute(scheduler="synchronous"), tokens[3:5, 1])
    assert np.array_equal(later.labels.compute(scheduler="synchronous"), labels)
    assert later.ids.tolist() == ids


def test_sums_of_dask_arrays_are_right_beyond_float16(path):
    """Dask adds up in the dtype of its blocks: of float16 a sum of many rows was infinite, and their mean zero."""
    pytest.importorskip("dask.array")
    with FeatureStore(path) as store:
        tokens, found = 1e4 * rows(store, ["000", "001"])[0].astype(np.float64), 10_000 * store.to_dask().tokens
    assert (tokens**2).sum((1, 2)).max() > 65504
    for of, right in ((found.mean((0, 1)), tokens.mean((0, 1))), ((found**2).sum((1, 2)), (tokens**2).sum((1, 2)))):
        assert of.compute(scheduler="synchronous") == pytest.approx(right, rel=1e-4, abs=1)


def test_a_dataset_is_the_rows_in_any_process(path):
    with FeatureStore(path) as store:
        tokens, labels, ids = rows(store, ["000", "001"])
        data = store.dataset()
        assert repr(data) == f"RowDataset({len(data)} rows, 2 shards, {len(store.classes)} classes)"
        assert len(store.dataset(["held-out"])) == store.held_out.rows
    assert data[1][2] == ids[1]  # shards in hand
    data = pickle.loads(pickle.dumps(data))
    assert (len(data), data.classes, data._open) == (len(ids), store.classes, {})
    for k, (row, label, name) in enumerate(data[k] for k in range(len(data))):
        assert np.array_equal(row, tokens[k])
        assert row.flags.writeable
        assert (label, name) == (labels[k], ids[k])
    assert data[-1][2] == ids[-1]
    assert [i for _, _, i in data] == ids
    assert isinstance(data, Iterable)  # so that list and a type checker take it
    for part in (slice(0, 2), slice(-2, None), slice(None, None, -3), slice(5, 5)):
        assert [name for _, _, name in data[part]] == ids[part]
    with pytest.raises(TypeError, match="float"):
        data[1.5]
    for beyond in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            data[beyond]


def test_torch_loads_batches_of_it(path):
    from torch.utils.data import DataLoader

    with FeatureStore(path) as store:
        tokens, labels, ids = rows(store, ["000", "001"])
        batches = list(DataLoader(store.dataset(), batch_size=4))
    assert np.array_equal(np.concatenate([x.numpy() for x, _, _ in batches]), tokens)
    assert {x.dtype for x, _, _ in batches} == {torch.float32}  # a layer refuses float16, which the store keeps
    assert np.array_equal(np.concatenate([y.numpy() for _, y, _ in batches]), labels)
    assert [i for _, _, names in batches for i in names] == ids


@pytest.mark.law("Arrays of a store, once handed out, never read the rows of another state of it.")
def test_rows_that_changed_or_are_damaged_are_never_read(tmp_path):
    pytest.importorskip("dask.array")
    path = make(tmp_path / "s")
    with FeatureStore(path, mode="a") as store:
        found, data, victim = store.to_dask(), store.dataset(), store.shard("000")
        file = path / victim.at / "tokens/c.0.0.0"
        good = file.read_bytes()
        file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        for read in (lambda: found.tokens[:1].compute(scheduler="synchronous"), lambda: data[0]):
            with pytest.raises(IntegrityError, match="chunk 0"):
                read()
        file.write_bytes(good)
        with store.transaction() as change:
            change.erase([victim.sample_ids[0]])
    data = RowDataset(data.parts, data.classes)
    for read in (lambda: found.tokens[:1].compute(scheduler="synchronous"), lambda: data[0]):
        with pytest.raises(StoreChanged, match="committed anew"):
            read()
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.drop_shard("000")
    with pytest.raises(StoreChanged, match="committed anew"):  # the shard itself is gone
        data[0]
    (path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(FormatError):
        data[0]


def test_no_shards_are_no_empty_store(path, tmp_path):
    with FeatureStore(path) as store:
        for give in (store.to_dask, store.to_xarray, store.dataset):
            for names in ([], "000"):
                with pytest.raises(RecipeError, match=r"leave it out.* 000, 001, held-out"):
                    give(names)
    with FeatureStore.create(tmp_path / "s", identity={}, classes=["a"], plan={"groups": 1}, recipe={}) as store:
        with pytest.raises(StoreError, match="no training rows\n  try: taftcache extract, or"):
            store.dataset()
        with store.writer("held-out", "held-out", tokens_shape=(1, 2), candidates=["i"]) as writer:
            writer.append(np.ones((1, 1, 2)), ["i"], [0])
            writer.commit()
        with pytest.raises(StoreError, match=r'\["held-out"\]'):
            store.dataset()
        assert len(store.dataset(["held-out"])) == 1


def test_what_is_missing_is_said(path, monkeypatch):
    with FeatureStore(path) as store:
        with pytest.raises(StoreError, match=r"no shard .*\n  try: one of 000"):
            store.to_dask(["002"])
        monkeypatch.setitem(sys.modules, "xarray", None)
        with pytest.raises(RecipeError, match="xarray, which is not installed"):
            store.to_xarray()
        monkeypatch.setitem(sys.modules, "dask.array", None)
        with pytest.raises(RecipeError, match="Dask, which is not installed"):
            store.to_dask()


def test_an_xarray_dataset_is_the_rows(path):
    pytest.importorskip("xarray")
    with FeatureStore(path) as store:
        tokens, labels, ids = rows(store, ["000", "001"])
        found = store.to_xarray()
        assert found.attrs["root_digest"] == store.root_digest
    assert found.sizes == {"sample": len(ids), "token": tokens.shape[1], "feature": tokens.shape[2]}
    assert np.array_equal(found.tokens.sel(sample=ids[5]).values, tokens[5])
    assert np.array_equal(found.label, labels)
    assert set(found.shard.values) == {"000", "001"}
