"""Every later version reads the stores that earlier ones wrote, and writes the same bytes for the same rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from taftcache.cache.format.encoding import as_read, rows_dtype
from taftcache.cache.store import FeatureStore

from . import golden
from .making import CLASSES, IDENTITY, label, row, tree
from .test_erase import MEMORY, without_memory

STORES = Path(__file__).parents[2] / "stores" / "golden"
GOLDEN, EIGHT = sorted(STORES.glob("v*-by-*")), sorted(STORES.glob("int8-by-*"))


def test_there_is_one() -> None:
    assert GOLDEN
    assert EIGHT


@pytest.mark.law("Golden stores of earlier releases read")
@pytest.mark.parametrize("path", GOLDEN + EIGHT, ids=lambda p: p.name)
def test_golden_store_reads(path) -> None:
    dtypes = golden.EIGHT if path in EIGHT else golden.DTYPES
    with FeatureStore(path) as store:
        assert store.verify() == []
        assert store.strays() == []
        store.check_identity(IDENTITY)
        assert store.classes == CLASSES
        for name, ids in golden.ROWS.items():
            shard = store.shard(name)
            assert shard.sample_ids == ids
            assert shard.labels.tolist() == [label(i) for i in ids]
            given = np.stack([row(i) for i in ids]).astype(rows_dtype(dtypes[name]))
            want = as_read(given, dtypes[name])
            assert np.array_equal(shard.tokens(slice(None)), want)
            group = zarr.open_group(path / shard.at, mode="r")
            scales = group["scales"][:][..., None] if path in EIGHT else 1
            assert np.array_equal(group["tokens"][:] * scales, want)
        assert store.is_forgotten(golden.FORGOTTEN)
        assert [(s.id, s.shard) for s in store.manifest.skipped] == [(golden.SKIPPED, "001")]
        assert store.read_object("components/000") == b"not really safetensors"
        if not path.name.startswith("v1-"):
            assert store.meta("components/001") == {"steps": 2, "convergence": golden.CURVE}
        assert [e["action"] for e in store.ledger()] == ["erase", "train"]
        assert store.manifest.plan["plan"] == "balanced"


@pytest.mark.parametrize("path", GOLDEN + EIGHT, ids=lambda p: p.name)
def test_golden_store_can_be_changed(path, tmp_path) -> None:
    shutil.copytree(path, tmp_path / "s")
    with FeatureStore(tmp_path / "s", mode="a") as store, store.transaction() as change:
        change.erase([golden.IDS[0]])
    with FeatureStore(tmp_path / "s") as store:
        assert store.verify() == []
        assert store.is_forgotten(golden.FORGOTTEN)
        assert [s.id for s in store.manifest.skipped] == [golden.SKIPPED]
        assert store.manifest.version == 2


@pytest.mark.parametrize(("newest", "dtypes"), [(GOLDEN[-1], golden.DTYPES), (EIGHT[-1], golden.EIGHT)])
def test_the_same_rows_give_the_same_bytes_as_ever(tmp_path, newest, dtypes) -> None:
    golden.make(tmp_path / "s", dtypes)
    assert without_memory(tmp_path / "s") == without_memory(newest)
    assert tree(tmp_path / "s", but=MEMORY).keys() == tree(newest, but=MEMORY).keys()
