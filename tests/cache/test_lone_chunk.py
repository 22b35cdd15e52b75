"""A shard of fewer rows than a chunk takes: one chunk of just them, whatever happened to the shard before."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr

from taftcache.cache.format.layout import resolve_chunk_rows
from taftcache.cache.hdf5 import FeatureFile, export, restore
from taftcache.cache.store import FeatureStore

from .making import SHAPE, create, fill, holds, label, names, row, tree
from .test_repair import PARTS, Images, mend

IDS = names(9)
ROW = 2 * SHAPE[0] * SHAPE[1]


def padded(store, ids, name="000", role="train") -> None:
    """As earlier releases wrote it: a whole chunk with zeros after the rows."""
    with store.writer(name, role, chunk_rows=8, tokens_shape=SHAPE, candidates=ids, pad=True) as writer:
        writer.append(np.stack([row(i) for i in ids]), ids, [label(i) for i in ids])
        writer.commit()


@pytest.mark.parametrize(("shape", "rows"), [((1, 8), 512), ((197, 192), 64), ((197, 768), 16), ((577, 1024), 16)])
def test_chunks_aim_at_eight_mebibytes(shape, rows):
    assert resolve_chunk_rows("auto", shape, "float16") == rows


@pytest.mark.parametrize(("rows", "chunks"), [(1, [1]), (5, [5]), (8, [8]), (9, [8, 8])])
def test_a_lone_chunk_is_as_large_as_its_rows(tmp_path, rows, chunks):
    with create(tmp_path / "s") as store:
        fill(store, "000", IDS[:rows], chunk_rows=8)
        shard = store.shards[0]
        sizes = [shard.manifest.objects[f"tokens/c.{k}.0.0"].size // ROW for k in range(len(chunks))]
        assert (shard.chunk_rows, sizes) == (chunks[0], chunks)
        assert holds(store, IDS[:rows])
        assert store.verify() == []
        found = zarr.open_group(store.path / shard.at, mode="r")["tokens"][:]
    assert np.array_equal(found, np.stack([row(i) for i in IDS[:rows]]).astype(np.float16))


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
@pytest.mark.parametrize("before", [9, 8, 5])
@pytest.mark.parametrize("write", [lambda store, ids: fill(store, "000", ids, chunk_rows=8), padded])
def test_no_size_tells_what_a_shard_lost(tmp_path, before, write):
    made = []
    with create(tmp_path / "had") as store:
        write(store, IDS[:before])
        with store.transaction() as change:
            change.erase([IDS[0]])
    with create(tmp_path / "never") as store:
        fill(store, "000", IDS[1:before], chunk_rows=8)
    for name in ("had", "never"):
        made.append({file: data for file, data in tree(tmp_path / name).items() if file.startswith("shards/")})
    assert made[0] == made[1]


def test_a_whole_chunk_of_an_earlier_release_comes_back(tmp_path):
    with create(tmp_path / "s") as store:
        padded(store, IDS[:5])
        assert store.shards[0].chunk_rows == 8
        digest = store.shards[0].digest
        export(store, tmp_path / "f.h5")
    with FeatureFile(tmp_path / "f.h5") as file, restore(file, tmp_path / "back") as back:
        assert back.shards[0].digest == digest


def test_a_whole_chunk_of_an_earlier_release_is_mended(tmp_path):
    few = PARTS["held-out"][:3]
    with create(tmp_path / "s") as store:
        padded(store, few, "held-out", "held-out")
        fill(store, "000", PARTS["000"])
        at = store.shard("held-out").at
    whole = tree(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / at)
    (tmp_path / "s" / f"{at}.json").unlink()
    images = Images()
    images.members = lambda shard: few
    images.layout = lambda shard: (SHAPE, "float16", 8)
    assert mend(tmp_path / "s", images)[1] == []
    assert tree(tmp_path / "s") == whole
    with FeatureStore(tmp_path / "s") as store:
        assert store.shard("held-out").chunk_rows == 8
