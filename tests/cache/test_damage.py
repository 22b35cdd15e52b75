"""Whatever happens to a file, no read hands out anything but what was written."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.errors import FormatError, IntegrityError, StoreError

from .making import create, fill, label, names, row, tree

IDS = names(14)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "s"
    with create(path) as store:
        fill(store, "000", [*IDS[:9], "goner"])
        fill(store, "held-out", IDS[9:], role="held-out")
        with store.transaction() as change:
            change.erase(["goner"])
            change.put("components/000", b"component" * 9, {"steps": 3})
            change.record({"action": "erase", "n": 1})
        with store.transaction() as change:
            change.record({"action": "note"})
    return path


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "s")
    return tmp_path / "s"


def everything(path) -> list[StoreError]:
    """Read all there is to read, in each of the ways there are; what was read is what was written, or an error."""
    errors: list[StoreError] = []

    def read(way: Callable[[], None]) -> None:
        try:
            way()
        except StoreError as error:
            errors.append(error)

    def tokens(shard: Shard) -> None:
        for start in range(0, len(shard), 3):
            rows = shard.tokens(slice(start, start + 3))
            assert np.array_equal(rows, [row(i).astype(np.float16) for i in shard.sample_ids[start : start + 3]])

    def blocks(shard: Shard) -> None:
        for block in shard.blocks(3):
            for k, i in enumerate(shard.sample_ids[block.start : block.start + len(block.labels)]):
                assert np.array_equal(block.tokens[k], row(i).astype(np.float16))
                assert block.labels[k] == label(i)

    def group(shard: Shard) -> None:
        assert np.array_equal(shard.group()["tokens"][:], [row(i).astype(np.float16) for i in shard.sample_ids])

    def objects() -> None:
        assert store.read_object("components/000") == b"component" * 9

    def ledger() -> None:
        assert [e["action"] for e in store.ledger()] == ["erase", "note"]

    def forgotten() -> None:
        assert store.is_forgotten("goner")
        assert not store.is_forgotten(IDS[0])

    with FeatureStore(path) as store:
        for shard in [*store.shards, store.held_out]:
            assert shard is not None
            for way in (tokens, blocks, group):
                read(partial(way, shard))
        for other in (objects, ledger, forgotten):
            read(other)
    return errors


def detected(path, file: str) -> None:
    """Both a read of everything and verify must notice; verify names the file, unless nothing can be opened at all."""
    try:
        caught = everything(path)
    except StoreError as error:
        caught = [error]
    assert caught
    try:
        with FeatureStore(path) as store:
            faults = store.verify()
    except StoreError:
        assert file == "manifest.json"
        return
    assert faults
    where = " ".join(map(str, faults))
    assert file.split("/")[0].removesuffix(".json") in where or "tombstones" in where, where
    if file.startswith("shards/"):
        shard = "000" if "/000-" in file else "held-out"
        assert f"shard {shard}" in where
        damaged = [str(error) for error in caught if isinstance(error, IntegrityError)]
        assert not damaged or any(f"shard {shard}" in one for one in damaged)
        if "/c." in file:
            array, chunk = file.split("/")[2], file.split("c.")[1].split(".")[0]
            said = f"array {array}, chunk {chunk}, file {file}: "
            assert said in where
            assert any(said in str(error) for error in caught) or not (path / file).is_file()


def test_the_whole_store_reads(whole) -> None:
    assert everything(whole) == []
    with FeatureStore(whole) as store:
        seen: list[tuple[int, int]] = []
        assert store.verify(lambda done, total: seen.append((done, total))) == []
        assert seen[-1][0] == seen[-1][1] == store.nbytes
        assert store.strays() == []


@pytest.mark.law("Every byte that is read was verified; a missing chunk never reads as zeros")
def test_flipped_bytes(copy) -> None:
    chance = random.Random(0)
    for file, raw in tree(copy).items():
        places = {0, len(raw) - 1, *(chance.randrange(len(raw)) for _ in range(4))}
        for at in sorted(places):
            bad = bytearray(raw)
            bad[at] ^= 1 << chance.randrange(8)
            (copy / file).write_bytes(bad)
            detected(copy, file)
        (copy / file).write_bytes(raw)
    assert everything(copy) == []


@pytest.mark.full
def test_every_bit_flipped(copy) -> None:
    """Each bit of each byte of each file: a read of everything fails, and verify names the file."""
    flips = 0
    for file, raw in tree(copy).items():
        for at in range(8 * len(raw)):
            bad = bytearray(raw)
            bad[at // 8] ^= 1 << at % 8
            (copy / file).write_bytes(bad)
            detected(copy, file)
            flips += 1
        (copy / file).write_bytes(raw)
    assert everything(copy) == []
    print(f"{flips} flips, all detected")


@pytest.mark.parametrize("how", ["gone", "short", "empty", "long", "folder"])
def test_files_gone_or_of_another_size(copy, how) -> None:
    for file, raw in tree(copy).items():
        (copy / file).unlink()
        if how == "folder":
            (copy / file).mkdir()
        elif how != "gone":
            (copy / file).write_bytes({"short": raw[:-1], "empty": b"", "long": raw + b"\0"}[how])
        detected(copy, file)
        shutil.rmtree(copy / file) if how == "folder" else (copy / file).unlink(missing_ok=True)
        (copy / file).write_bytes(raw)


def test_swapped_files(copy) -> None:
    files = tree(copy)
    chunks = [f for f in files if "/tokens/c." in f]
    assert len(chunks) == 5
    pairs = [(a, b) for a in chunks for b in chunks if a < b]
    labels = [f for f in files if f.endswith("labels/c.0")]
    shards = [f for f in files if f.startswith("shards/") and f.count("/") == 1]
    ledger = [f for f in files if f.startswith("ledger/")]
    for a, b in [*pairs, tuple(labels), tuple(shards), tuple(ledger)]:
        (copy / a).write_bytes(files[b])
        (copy / b).write_bytes(files[a])
        detected(copy, a)
        (copy / a).write_bytes(files[a])
        (copy / b).write_bytes(files[b])


def test_rolled_back_parts(copy) -> None:
    """Any one file, or the whole root manifest, of an earlier commit among the files of the present one."""
    before = tree(copy)
    with FeatureStore(copy, mode="a") as store:
        digest = store.root_digest
        with store.transaction() as change:
            change.erase([IDS[0]])
            change.put("components/000", b"retrained")
    after = tree(copy)
    (copy / "manifest.json").write_bytes(before["manifest.json"])
    with pytest.raises(IntegrityError, match="shards/000-"):  # its rows are asked whether they were forgotten here
        FeatureStore(copy)
    copy.with_name(f"{copy.name}.forgotten").unlink()
    detected(copy, "shards/000-")
    with FeatureStore(copy) as store:
        assert store.root_digest == digest
    with pytest.raises(IntegrityError, match="not the store that was expected"):
        FeatureStore(copy, expect="0" * 16)
    (copy / "manifest.json").write_bytes(after["manifest.json"])
    now = next(f for f in after if "/000-" in f and f.endswith("/tokens/c.0.0.0"))
    then = next(f for f in before if "/000-" in f and f.endswith("/tokens/c.0.0.0"))
    assert after[now] != before[then]
    (copy / now).write_bytes(before[then])
    with FeatureStore(copy) as store:
        for read in (lambda shard: shard.tokens([0]), lambda shard: list(shard.blocks(4)), Shard.group):
            with pytest.raises(IntegrityError, match=now):
                np.asarray(read(store.shard("000"))["tokens"])


def test_damage_after_opening_is_found_at_the_first_touch(copy) -> None:
    with FeatureStore(copy) as store:
        shard = store.shards[0]
        shard.tokens([0])
        victim = copy / shard.at / "tokens" / "c.2.0.0"
        raw = bytearray(victim.read_bytes())
        raw[0] ^= 1
        victim.write_bytes(raw)
        list(shard.blocks(4, 0, 8))
        with pytest.raises(IntegrityError, match="chunk 2"):
            list(shard.blocks(4))
        with pytest.raises(IntegrityError, match="chunk 2"):
            shard.tokens([8])


def test_a_shard_manifest_with_another_number_in_it(copy) -> None:
    """Well-formed, and plausible: only its digest tells."""
    with FeatureStore(copy) as store:
        file = store.shards[0].manifest_file
        largest = store.shards[0].statistics["max_abs"]
    raw = (copy / file).read_bytes()
    changed = raw.replace(f'"max_abs":{largest}'.encode(), b'"max_abs":0.125')
    assert changed != raw
    (copy / file).write_bytes(changed)
    with FeatureStore(copy) as store:
        with pytest.raises(IntegrityError, match=r"shard 000, file .*root manifest names"):
            store.shards[0].statistics  # noqa: B018
        (fault,) = store.verify()
        assert (fault.file, str(fault).count(file)) == (file, 1)


def test_a_root_manifest_with_another_word_in_it(copy) -> None:
    raw = (copy / "manifest.json").read_bytes()
    (copy / "manifest.json").write_bytes(raw.replace(b'"ant"', b'"art"'))
    with pytest.raises(IntegrityError, match="digest it carries"):
        FeatureStore(copy)


def test_a_chunk_that_nothing_names_is_an_error(copy) -> None:
    with FeatureStore(copy) as store:
        inner = store.shards[0].group().store
        with pytest.raises(IntegrityError, match="does not name it"):
            sync(inner.get("tokens/c.99.0.0", default_buffer_prototype()))
        assert sync(inner.get("nothing/zarr.json", default_buffer_prototype())) is None


@pytest.mark.law("Every byte that is read was verified; a missing chunk never reads as zeros")
def test_a_missing_chunk_never_reads_as_fill_value(copy) -> None:
    with FeatureStore(copy) as store:
        shard = store.shards[0]
        (copy / shard.at / "tokens" / "c.1.0.0").unlink()
        with pytest.raises(IntegrityError, match="array tokens, chunk 1"):
            shard.group()["tokens"][:]
        with pytest.raises(IntegrityError, match="array tokens, chunk 1"):
            shard.tokens(slice(4, 5))


def test_strays_are_no_faults(copy) -> None:
    with FeatureStore(copy) as store:
        place = store.shards[0].at
    for file in (
        "note.txt",
        f"{place}/tokens/c.9.0.0",
        "shards/old",
        "components/x",
        "staging/x",
        "manifest.json.partial",
    ):
        (copy / file).write_bytes(b"x")
    with FeatureStore(copy) as store:
        assert store.verify() == []
        assert store.strays() == sorted(
            ["note.txt", f"{place}/tokens/c.9.0.0", "shards/old", "components/x", "staging/x", "manifest.json.partial"]
        )
    FeatureStore(copy, mode="a").close()
    with FeatureStore(copy) as store:
        assert store.strays() == sorted(["note.txt", f"{place}/tokens/c.9.0.0"])


def test_a_newer_format_is_refused_by_name(copy) -> None:
    manifest = copy / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":2', b'"version":3'))
    with pytest.raises(FormatError, match="version 3"):
        FeatureStore(copy)
