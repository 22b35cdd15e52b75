"""Rows in 8 bits: what is written is near what was given, and is the same however often it is read and written."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import zarr

from taftcache.cache.copying import convert, copy
from taftcache.cache.format import layout
from taftcache.cache.format.encoding import Scaled, as_read, decode, encode, fits, rows_fault, scales_fault
from taftcache.cache.hdf5 import FeatureFile, export, restore
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.repair import repair
from taftcache.errors import DataError, FormatError, IntegrityError, RecipeError

from .forging import forge_shard
from .making import SHAPE, create, fill, label, row, tree
from .test_erase import GONE, IDS, build, without_memory
from .test_repair import Images, flip
from .test_transfer import make

DTYPE = "int8"
SOME = IDS[:11]


def numbers() -> np.ndarray:
    """Tokens [n, 7] of every size: as activations are, with a channel that outweighs the others, tiny, huge and 0."""
    chance = np.random.default_rng(0)
    x = chance.standard_normal((4000, 7)).astype(np.float32)
    x[:500, 3] *= 1000
    x[500:1500] *= np.float32(2.0) ** chance.integers(-149, 126, (1000, 1))
    x[1500:2000] = x[1500:2000].astype(np.float16)
    x[2000] = 0
    x[2001:2200] = np.rint(x[2001:2200] * 40) / 2  # halves, and many ties
    x[2200:2300] *= chance.integers(0, 2, (100, 7))
    x[2300] = 127 * 2.0**120
    return x[:, None]


@pytest.mark.law("Rows in 8 bits differ from those that were given by half a scale of their token at most")
def test_what_is_read_is_near_what_was_given() -> None:
    x = numbers()
    assert fits(x, DTYPE)
    q, scales = encode(x, DTYPE)
    read, s = Scaled(q, scales)[:], scales[..., None].astype(np.float64)
    assert np.array_equal(read.astype(np.float64), s * q), "every product is exact in float32"
    # the quotient is rounded to float32 first, which is 2⁻¹⁸ of a step at most; below 2⁻¹²⁷ there is only 0
    assert (np.abs(read - x.astype(np.float64)) <= np.where(s > 0, s * (0.5 + 2.0**-18), 2.0**-127)).all()
    most, largest = np.abs(q.astype(int)).max(-1), np.abs(x).max(-1)
    assert ((most == 127) | (largest < 127 * 2.0**-126)).all()
    assert (scales <= largest / 127 * (1 + 2.0**-15)).all(where=most == 127)
    assert scales[2000] == 0
    assert scales_fault(scales.tobytes()) is None
    assert rows_fault(Scaled(q, scales)) is None


@pytest.mark.law("Rows that are read and written anew keep their bytes")
def test_what_is_read_is_written_as_it_was() -> None:
    files = encode(numbers(), DTYPE)
    for again, file in zip(encode(Scaled(*files)[:], DTYPE), files, strict=True):
        assert again.tobytes() == file.tobytes()


def test_what_does_not_fit_is_refused(tmp_path) -> None:
    for bad, what in ((1.8e38, "overflows int8"), (np.inf, "Inf"), (np.nan, "NaN"), (1e300, "overflows int8")):
        rows = np.stack([row(i) for i in SOME])
        rows[3, 1, 2] = bad
        with (
            create(tmp_path / what.replace(" ", "") / str(bad)) as store,
            store.writer("000", "train", tokens_shape=SHAPE, dtype=DTYPE, candidates=SOME) as writer,
            pytest.raises(DataError, match=f"{SOME[3]}.*{what}"),
        ):
            writer.append(rows, SOME, [label(i) for i in SOME])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("eight") / "s"
    with create(path) as store:
        fill(store, "000", SOME, dtype=DTYPE)
    return path


@pytest.fixture
def path(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "s")
    return tmp_path / "s"


def test_every_reader_has_the_floats(whole) -> None:
    want = as_read(np.stack([row(i) for i in SOME]).astype(np.float32), DTYPE)
    with FeatureStore(whole) as store:
        shard = store.shards[0]
        assert (shard.dtype, shard.stored_as, shard.chunk_rows) == (np.float32, DTYPE, 4)
        for size in (1, 3, 4, 11):
            assert np.array_equal(np.concatenate([b.tokens for b in shard.blocks(size)]), want)
        assert not shard.tokens(slice(1, 3)).flags.writeable
        assert np.array_equal(shard.tokens([9, 0, 4]), want[[9, 0, 4]])
        assert np.array_equal(store.dataset()[5][0], want[5])
        assert shard.statistics["max_abs"] == np.abs(want).max()
        plain = zarr.open_group(whole / shard.at, mode="r")
        assert np.array_equal(plain["tokens"][:] * plain["scales"][:][..., None], want)
        assert np.array_equal(shard.group()["scales"][:], plain["scales"][:])
        assert store.nbytes == sum(map(len, tree(whole, but=["manifest.json"]).values()))
        assert store.verify() == store.strays() == []


@pytest.mark.full
def test_dask_has_the_floats(whole) -> None:
    pytest.importorskip("dask.array")
    with FeatureStore(whole) as store:
        found = store.to_dask().tokens
        assert found.dtype == np.float32
        assert np.array_equal(found.compute(scheduler="synchronous"), store.shards[0].tokens(slice(None)))


@pytest.mark.law("Batches, interruptions and the order of shards leave no trace in a store")
@pytest.mark.parametrize("batch", [1, 3, 26])
def test_batches_and_interruptions_leave_no_trace(tmp_path, whole, batch) -> None:
    create(tmp_path / "s").close()
    for stop in (1, 2, None):
        with FeatureStore(tmp_path / "s", mode="a") as store:
            if stop is not None or not store.has_shard("000"):
                fill(store, "000", SOME, dtype=DTYPE, batch=batch, stop=stop)
    assert tree(tmp_path / "s") == tree(whole)


def test_a_damaged_chunk_of_unfinished_work_is_made_again(tmp_path, whole) -> None:
    for name in ("tokens/c.1.0.0", "scales/c.1.0"):
        with create(tmp_path / name[:6]) as store:
            fill(store, "000", SOME, dtype=DTYPE, batch=4, stop=2)
        flip(tmp_path / name[:6] / "staging/shard-000/group" / name)
        with FeatureStore(tmp_path / name[:6], mode="a") as store:
            assert fill(store, "000", SOME, dtype=DTYPE) == 4
        assert tree(tmp_path / name[:6]) == tree(whole)


@pytest.mark.law("What was forgotten leaves the bytes of never seen, and neither its row nor its id in a file")
def test_erased_is_never_seen(tmp_path) -> None:
    build(tmp_path / "all", IDS, dtype=DTYPE)
    build(tmp_path / "never", [i for i in IDS if i not in GONE], dtype=DTYPE)
    with FeatureStore(tmp_path / "all", mode="a") as store, store.transaction() as change:
        change.erase(GONE)
    assert without_memory(tmp_path / "all") == tree(tmp_path / "never")


@pytest.mark.parametrize("name", ["tokens/c.1.0.0", "scales/c.1.0"])
def test_damage_is_found_and_mended(path, name) -> None:
    before = tree(path)
    with FeatureStore(path) as store:
        file = f"{store.shards[0].at}/{name}"
    for harm in (flip, lambda file: file.unlink(), lambda file: file.write_bytes(b"\0" * 48)):
        harm(path / file)
        with FeatureStore(path) as store:
            with pytest.raises(IntegrityError, match=f"array {name[:6]}"):
                store.shards[0].tokens([5])
            assert [(f.array, f.chunk) for f in store.verify()] == [(name[:6], 1)]
        with FeatureStore(path, mode="a") as store:
            assert list(repair(store.committer(), store.verify(), Eight()).mended) == [file]
        assert tree(path) == before


class Eight(Images):
    def members(self, shard):
        return SOME

    def layout(self, shard):
        return SHAPE, DTYPE, 4


@pytest.mark.parametrize("lost", ["manifest", "everything"])
def test_a_lost_shard_is_made_again(path, lost) -> None:
    before = tree(path)
    with FeatureStore(path) as store:
        at = path / store.shards[0].at
    at.with_name(f"{at.name}.json").unlink()
    if lost == "everything":
        shutil.rmtree(at)
    with FeatureStore(path, mode="a") as store:
        repair(store.committer(), store.verify(), Eight() if lost == "everything" else None)
    assert tree(path) == before


SCALES = {
    "infinite": np.inf,
    "none": np.nan,
    "negative": -1.0,
    "minus zero": -0.0,
    "too fine": 1 / 3,
    "too small": 2.0**-130,
    "too large": 2.0**121,
}


@pytest.mark.law("A stranger's store can be refused, and can do nothing else")
@pytest.mark.parametrize("what", SCALES)
def test_scales_that_no_writer_writes(path, what) -> None:
    with FeatureStore(path) as store:
        scales = np.frombuffer((path / store.shards[0].at / "scales/c.0.0").read_bytes(), "<f4").copy()
    scales[4] = SCALES[what]
    forge_shard(path, lambda m: None, {"scales/c.0.0": scales.tobytes()})
    with FeatureStore(path) as store:
        with pytest.raises(IntegrityError, match="a scale is none that is ever written"):
            next(store.shards[0].blocks(4))
        assert [f.array for f in store.verify()] == ["scales"]


@pytest.mark.parametrize("number", [-128, 126])
def test_numbers_that_do_not_fit_their_scales(path, number) -> None:
    with FeatureStore(path) as store:
        q = np.frombuffer((path / store.shards[0].at / "tokens/c.0.0.0").read_bytes(), "i1").copy()
    q[np.abs(q) == 127] = number
    forge_shard(path, lambda m: None, {"tokens/c.0.0.0": q.tobytes()})
    with FeatureStore(path) as store:
        (fault,) = store.verify()
        assert (fault.array, fault.problem) == ("tokens", "its numbers are not those of their scales")


def test_something_in_the_padding_of_the_scales(path) -> None:
    with FeatureStore(path) as store:
        raw = (path / store.shards[0].at / "scales/c.2.0").read_bytes()
    forge_shard(path, lambda m: None, {"scales/c.2.0": raw[:-4] + np.float32(1).tobytes()})
    with FeatureStore(path) as store:
        assert any("padding" in f.problem and f.array == "scales" for f in store.verify())


FORGED = {
    "no scales": lambda m: [m["objects"].pop(name) for name in list(m["objects"]) if name.startswith("scales")],
    "a scale short": lambda m: m["objects"]["scales/c.0.0"].update(size=44),
    "floats": lambda m: m.update(dtype="float32"),
    "unknown": lambda m: m.update(dtype="int4"),
    "of the version without": lambda m: m.update(version=1),
    "of no version": lambda m: m.update(version=3),
}


@pytest.mark.parametrize("what", FORGED)
def test_manifests_of_other_shapes(path, what) -> None:
    forge_shard(path, FORGED[what])
    with FeatureStore(path) as store, pytest.raises(FormatError):
        store.shards[0].manifest  # noqa: B018


def test_floats_are_not_of_the_new_version(tmp_path) -> None:
    with create(tmp_path / "s") as store:
        fill(store, "000", SOME)
        assert store.shards[0].manifest.version == 1
    forge_shard(tmp_path / "s", lambda m: m.update(version=2))
    with FeatureStore(tmp_path / "s") as store, pytest.raises(FormatError, match="does not have its dtype"):
        store.shards[0].manifest  # noqa: B018


def test_a_reader_from_before_says_which_version_it_lacks(whole, monkeypatch) -> None:
    monkeypatch.setattr(layout, "VERSIONS", {1: ("float16", "float32")})
    with FeatureStore(whole) as store, pytest.raises(FormatError, match=r"of version 2 .* only version 1 is read"):
        store.shards[0].tokens([0])


def test_an_unknown_dtype_is_refused(tmp_path) -> None:
    with create(tmp_path / "s") as store, pytest.raises(RecipeError, match=r"int4(.|\n)*float16, float32, int8"):
        store.writer("000", "train", tokens_shape=SHAPE, dtype="int4", candidates=SOME)


def test_copies_exports_and_conversions(tmp_path) -> None:
    path, eight = make(tmp_path / "s"), make(tmp_path / "eight", DTYPE)
    with FeatureStore(path) as store, FeatureStore(eight) as want:
        rows = {name: want.shard(name).digest for name in ("000", "001", "held-out")}
        made = dict(identity=want.identity, recipe={})
        with convert(store, tmp_path / "c", dtype=DTYPE, **made) as found:
            assert found.verify() == []
            for name in rows:
                given = store.shard(name).tokens(slice(None)).astype(np.float32)
                assert np.array_equal(found.shard(name).tokens(slice(None)), as_read(given, DTYPE))
        with (
            convert(want, tmp_path / "wide", dtype="float32", **made) as wide,
            convert(wide, tmp_path / "back", dtype=DTYPE, **made) as back,
        ):
            assert {name: back.shard(name).digest for name in rows} == rows
        export(want, tmp_path / "f.h5")
        with FeatureFile(tmp_path / "f.h5") as file, restore(file, tmp_path / "r") as back:
            assert {name: back.shard(name).digest for name in rows} == rows
        copy(want, tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(eight)


def test_a_chunk_of_floats_is_a_view() -> None:
    raw = np.arange(8, dtype=np.float16).tobytes()
    found = decode([raw], "float16", (2, 2))
    assert isinstance(found, np.ndarray)
    assert not found.flags.owndata
    assert encode(found, "float16")[0] is found
