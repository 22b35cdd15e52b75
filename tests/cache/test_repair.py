"""Damage is mended with the same bytes or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from taftcache.cache.store import FeatureStore
from taftcache.cache.write.repair import repair
from taftcache.errors import DataError, StoreError

from .making import SHAPE, create, fill, label, names, row, tree

IDS = names(14)
PARTS = {"000": IDS[:9], "held-out": IDS[9:]}


class Images:
    """What the store was made from; counts the rows that are asked for."""

    def __init__(self, wrong: Sequence[str] = (), gone: Sequence[str] = ()) -> None:
        self.asked: list[str] = []
        self._wrong, self._gone = wrong, gone

    def members(self, shard):
        return PARTS[shard]

    def labels(self, ids):
        return {i: label(i) for i in ids}

    def rows(self, shard, ids):
        self.asked += ids
        if lost := [i for i in ids if i in self._gone]:
            raise DataError("the image is missing", got=lost[0])
        return np.stack([row("other" if i in self._wrong else i) for i in ids])

    def layout(self, shard):
        return SHAPE, "float16", 4

    def object(self, name):
        return b"the tail" if name == "base/tail" else None


@pytest.fixture
def path(tmp_path):
    with create(tmp_path / "s") as store:
        fill(store, "000", [*PARTS["000"], "goner"])
        fill(store, "held-out", PARTS["held-out"], role="held-out")
        with store.transaction() as change:
            change.erase(["goner"])
            change.put("components/000", b"component")
            change.put("base/tail", b"the tail")
            change.record({"action": "erase"})
    return tmp_path / "s"


def flip(file) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 4
    file.write_bytes(raw)


def folder(file) -> None:
    file.unlink()
    file.mkdir()
    (file / "x").write_bytes(b"x")


HARM = {
    "flipped": flip,
    "gone": lambda file: file.unlink(),
    "short": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "a folder": folder,
    "a link": lambda file: (file.unlink(), file.symlink_to("/etc/hostname")),
}


def mend(path, maker=None):
    with FeatureStore(path, mode="a") as store:
        outcome = repair(store.committer(), store.verify(), maker)
        return outcome, store.verify()


@pytest.mark.law("A repair gives back the same bytes, or nothing")
@pytest.mark.parametrize("harm", HARM)
def test_any_file_of_a_shard_comes_back_to_its_bytes(path, harm) -> None:
    whole = tree(path)
    for file in [f for f in whole if f.startswith("shards/") or f.startswith("base/")]:
        HARM[harm](path / file)
        assert tree(path) != whole if harm != "a link" else (path / file).is_symlink()
        images = Images()
        outcome, faults = mend(path, images)
        assert (list(outcome.mended), outcome.left, faults) == ([file], {}, [])
        assert tree(path) == whole
        assert not (path / file).is_symlink()
        chunk = int(file.split("c.")[1].split(".")[0]) if "/tokens/c." in file else None
        part = PARTS["000" if "/000-" in file else "held-out"]
        assert images.asked == ([] if chunk is None else part[4 * chunk : 4 * chunk + 4]), "only that chunk's rows"


def test_everything_of_a_shard_is_lost(path) -> None:
    whole = tree(path)
    with FeatureStore(path) as store:
        at = store.shards[0].at
    shutil.rmtree(path / at)
    (path / f"{at}.json").unlink()
    images = Images()
    _, faults = mend(path, images)
    assert faults == []
    assert images.asked == PARTS["000"]
    assert tree(path) == whole


def test_the_group_is_lost_and_its_manifest_is_not(path) -> None:
    whole = tree(path)
    with FeatureStore(path) as store:
        shutil.rmtree(path / store.shards[0].at)
    assert mend(path, Images())[1] == []
    assert tree(path) == whole


@pytest.mark.law("A repair gives back the same bytes, or nothing")
def test_what_comes_out_otherwise_is_refused(path) -> None:
    with FeatureStore(path) as store:
        chunks = [path / store.shards[0].at / f"tokens/c.{k}.0.0" for k in (0, 1)]
    for chunk in chunks:
        flip(chunk)
    before = tree(path)
    outcome, faults = mend(path, Images(wrong=[IDS[5]]))
    assert [f.chunk for f in faults] == [1]
    assert [file for file in outcome.mended if "c.0.0.0" in file] == list(outcome.mended)
    assert "nothing was written" in outcome.left[chunks[1].relative_to(path).as_posix()]
    after = tree(path)
    assert [file for file in before if before[file] != after[file]] == list(outcome.mended)


def test_an_image_that_is_gone_leaves_its_chunk_and_mends_the_others(path) -> None:
    with FeatureStore(path) as store:
        for k in range(3):
            flip(path / store.shards[0].at / f"tokens/c.{k}.0.0")
    outcome, faults = mend(path, Images(gone=[IDS[4]]))
    assert [f.chunk for f in faults] == [1]
    assert IDS[4] in next(iter(outcome.left.values()))


def test_without_the_images_metadata_still_comes_back(path) -> None:
    whole = tree(path)
    with FeatureStore(path) as store:
        shard = store.shards[0]
        lost = [f"{shard.at}/tokens/zarr.json", shard.manifest_file, f"{shard.at}/labels/c.0"]
    for file in lost[:2]:
        (path / file).unlink()
        assert mend(path)[1] == []
        assert tree(path) == whole
    (path / lost[2]).unlink()
    outcome, faults = mend(path)
    assert [f.file for f in faults] == list(outcome.left) == [lost[2]]


def test_a_lost_component_is_dropped_and_the_ledger_is_not_invented(path) -> None:
    with FeatureStore(path) as store:
        component = store.objects()["components/000"].path
    ledger = next(file for file in tree(path) if file.startswith("ledger/"))
    flip(path / component)
    flip(path / ledger)
    outcome, faults = mend(path, Images())
    assert outcome.dropped == ["components/000"]
    assert [f.file for f in faults] == list(outcome.left) == [ledger]
    assert str(faults[0]).count(ledger) == 1, "it was said of the file ledger, which is none"
    with FeatureStore(path) as store:
        assert list(store.objects()) == ["base/tail"]
    assert (path / ledger).exists()


def test_repair_asks_for_a_store_open_for_writing(path) -> None:
    with FeatureStore(path) as store, pytest.raises(StoreError, match="not opened for writing"):
        repair(store.committer(), [], None)


def test_readers_of_a_mended_chunk_keep_what_they_mapped(path) -> None:
    with FeatureStore(path) as reader:
        rows = reader.shards[0].tokens(slice(0, 4))
        before = rows.copy()
        with FeatureStore(path) as other:
            chunk = path / other.shards[0].at / "tokens/c.0.0.0"
        chunk.unlink()  # the reader's map keeps the old file
        assert mend(path, Images())[1] == []
        assert np.array_equal(rows, before)
