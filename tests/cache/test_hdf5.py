"""Rows to HDF5 and back; files that are not what they say are refused."""

from __future__ import annotations

import shutil
import zlib

import h5py
import numpy as np
import pytest

from taftcache.cache.hdf5 import FeatureFile, export, restore
from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, FormatError, IdentityError, IntegrityError, RecipeError, StaleStore, StoreError

from .making import CLASSES, row, tree
from .test_transfer import IDS, TEST, make


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "s")


@pytest.fixture
def file(path, tmp_path):
    with FeatureStore(path) as store:
        export(store, tmp_path / "f.h5")
    return tmp_path / "f.h5"


def shards(path) -> dict[str, bytes]:
    return {name: data for name, data in tree(path).items() if name.startswith("shards/")}


def test_other_tools_read_it(path, file) -> None:
    with h5py.File(file) as found:
        assert list(found["shards"]) == ["000", "001", "held-out"]
        for part in found["shards"].values():
            for tokens, name in zip(part["tokens"][:], part["sample_id"].asstr()[:], strict=True):
                assert np.array_equal(tokens, row(name).astype(np.float16))
        assert list(found["classes"].asstr()) == CLASSES
        names = {i for part in found["shards"].values() for i in part["sample_id"].asstr()[:]}
    assert names == {*IDS, *TEST} - {IDS[3]}, "neither the skipped one nor the forgotten"


def test_one_store_has_one_file_whenever_it_is_written(path, file, tmp_path) -> None:
    """No group says when it was made."""
    with h5py.File(file) as found:
        groups = [found]
        found.visititems(lambda _, node: groups.append(node))
        assert len(groups) > 10
        assert {h5py.h5o.get_info(node.id).ctime for node in groups} == {0}


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_there_and_back(tmp_path, dtype) -> None:
    path = make(tmp_path / "s", dtype)
    with FeatureStore(path) as store:
        assert export(store, tmp_path / "f.h5") == (tmp_path / "f.h5").stat().st_size
        with FeatureFile(tmp_path / "f.h5") as features:
            assert features.is_export
            seen: list[tuple[int, int]] = []
            with restore(features, tmp_path / "back", lambda *x: seen.append(x)) as back:
                assert back.verify() == []
                assert list(back.objects()) == ["base/tail"]
                assert back.objects() == store.objects("base/")
                for field in ("identity", "classes", "recipe", "skipped", "shards"):
                    assert getattr(back.manifest, field) == getattr(store.manifest, field)
                assert back.manifest.plan == {**store.manifest.plan, "from_export": True}
                root = back.root_digest
            with restore(features, tmp_path / "back") as again:
                assert again.root_digest == root
    assert seen[-1] == (23, 23)
    assert shards(tmp_path / "back") == shards(path)


def test_an_export_of_release_0_1_0_is_read(path, file, tmp_path) -> None:
    with h5py.File(file, "a") as found:
        found.attrs.modify("version", 1)
        for part in found["shards"].values():
            del part.attrs["stored_as"]
    with FeatureFile(file) as features, restore(features, tmp_path / "back") as back:
        assert back.verify() == []
    assert shards(tmp_path / "back") == shards(path)


def test_an_export_replaces_nothing_and_reads_no_damage(path, tmp_path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "link.h5").symlink_to(tmp_path / "other")
    with FeatureStore(path) as store:
        export(store, tmp_path / "f.h5")
        for name in ("f.h5", "link.h5"):
            with pytest.raises(FileExistsError):
                export(store, tmp_path / name)
        victim = path / store.shard("001").at / "tokens/c.1.0.0"
        victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])
    assert (tmp_path / "other").read_text() == "kept"
    with FeatureStore(path) as store, pytest.raises(IntegrityError, match="chunk 1"):
        export(store, tmp_path / "g.h5")


def test_rows_changed_in_an_export_are_noticed(file, tmp_path) -> None:
    with h5py.File(file, "a") as found:
        found["shards/001/tokens"][2, 1, 5] += np.float16(0.25)
    with FeatureFile(file) as features, pytest.raises(IntegrityError, match="shard 001"):
        restore(features, tmp_path / "back")
    with FeatureStore(tmp_path / "back") as back:
        assert [s.name for s in back.shards] == ["000"]
        assert back.verify() == []


EXPORTS = {
    "not as what its rows are stored": lambda f: f["shards/000"].attrs.__delitem__("stored_as"),
    "no classes": lambda f: f.__delitem__("classes"),
    "no identity": lambda f: f.__delitem__("identity"),
    "identity": lambda f: (f.__delitem__("identity"), f.create_dataset("identity", data=np.frombuffer(b"{", np.uint8))),
    "deep": lambda f: (
        f.__delitem__("identity"),
        f.create_dataset("identity", data=np.frombuffer(b'{"x":' + b"[" * 900 + b"]" * 900 + b"}", np.uint8)),
    ),
    "skipped": lambda f: (f.__delitem__("skipped"), f.create_dataset("skipped", data=np.frombuffer(b"[1]", np.uint8))),
    "no digest": lambda f: f["shards/000"].attrs.__delitem__("digest"),
    "labels short": lambda f: (
        f["shards/000"].__delitem__("labels"),
        f["shards/000"].create_dataset("labels", data=np.zeros(3, np.int32)),
    ),
    "ids missing": lambda f: f["shards/000"].__delitem__("sample_id"),
    "a shard is a file": lambda f: f["shards"].create_dataset("002", data=np.zeros(3)),
    "another file": lambda f: f["shards"].__setitem__("002", h5py.ExternalLink("/etc/passwd", "/")),
    "base": lambda f: f["files/base/tail"].write_direct(np.zeros(8, np.uint8)),
    "no base": lambda f: f.__delitem__("files"),
    "chunk rows": lambda f: f["shards/000"].attrs.modify("chunk_rows", 2**40),
    "name": lambda f: f["shards"].move("000", "NAME"),
}


@pytest.mark.parametrize("what", EXPORTS)
def test_exports_that_are_none(file, tmp_path, what) -> None:
    with h5py.File(file, "a") as found:
        EXPORTS[what](found)
    with pytest.raises((DataError, RecipeError, StoreError)), FeatureFile(file) as features:
        restore(features, tmp_path / "back").close()


def test_another_store_is_not_mixed_in(file, tmp_path) -> None:
    other = make(tmp_path / "other", "float32")
    with FeatureFile(file) as features, pytest.raises(IdentityError, match="dtype"):
        restore(features, other)


def foreign(path, n=6, **datasets) -> None:
    given = {
        "tokens": np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3),
        "labels": np.arange(n) % 3,
        "sample_id": np.array([f"id{k}" for k in range(n)], dtype=h5py.string_dtype()),
    }
    with h5py.File(path, "w") as out:
        for name, value in (given | datasets).items():
            if value is not None:
                out[name] = value


def test_someone_elses_features(tmp_path) -> None:
    file = tmp_path / "others.h5"
    foreign(file, names=np.array([b"\xff\xfe"] * 6, dtype=h5py.string_dtype()), groups=np.zeros((2, 2), "S1"))
    with FeatureFile(file) as features:
        assert not features.is_export
        assert features.column("sample_id").tolist() == [f"id{k}" for k in range(6)]
        assert features.column("labels").tolist() == [0, 1, 2, 0, 1, 2]
        rows = features.rows("tokens")
        assert (len(rows), rows.shape, rows.dtype) == (6, (6, 2, 3), np.float32)
        assert np.array_equal(rows[[4, 1]][:, 0, 0], [24.0, 6.0])
        assert np.array_equal(rows[2:4][:, 0, 0], [12.0, 18.0])
        assert "labels" in features
        assert "none" not in features
        for name, says in (("names", "not UTF-8"), ("groups", "not a list of texts"), ("none", "there is no none")):
            with pytest.raises(DataError, match=says):
                features.column(name)


def sparse(f) -> None:
    del f["tokens"]
    f.create_dataset("tokens", (10**9, 4, 4), "f4", chunks=(16, 4, 4))


def never_written(f) -> None:
    del f["tokens"]
    f.create_dataset("tokens", (6, 2, 3), "f4")


def external(f) -> None:
    del f["tokens"]
    f.create_dataset("tokens", (6, 2, 3), "f4", external=[("/etc/passwd", 0, 144)])


def virtual(f) -> None:
    del f["tokens"]
    layout = h5py.VirtualLayout((6, 2, 3), "f4")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (6, 2, 3))
    f.create_virtual_dataset("tokens", layout)


def plugin(f) -> None:
    del f["tokens"]
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((2, 2, 3))
    made.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, as a plug-in
    space = h5py.h5s.create_simple((6, 2, 3))
    made_set = h5py.h5d.create(f.id, b"tokens", h5py.h5t.IEEE_F32LE, space, made)
    h5py.Dataset(made_set)[:] = np.ones((6, 2, 3), "f4")


def bomb(f) -> None:
    """A few kilobytes on disk, two gigabytes in memory."""
    del f["tokens"]
    f.create_dataset("tokens", (2**15, 2, 2**13), "f4", chunks=(2**15, 2, 2**13), compression="gzip")


def packed(f, name, shape, chunk, raw, *filters) -> None:
    """A dataset of bytes whose one chunk is ``raw`` in the file."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk(chunk)
    for number in filters:
        made.set_filter(number, h5py.h5z.FLAG_MANDATORY, (9,))
    space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED,) * len(shape))
    h5py.h5d.create(f.id, name.encode(), h5py.h5t.STD_U8LE, space, made).write_direct_chunk((0,) * len(shape), raw)


def packed_twice(f) -> None:
    del f["tokens"]
    packed(f, "tokens", (6, 64), (6, 64), zlib.compress(zlib.compress(bytes(6 * 64))), 1, 1)


def by_column(f) -> None:
    del f["tokens"]
    tokens, raw = (
        f.create_dataset("tokens", (1 << 20, 65), "u1", chunks=(1 << 20, 1), compression="gzip"),
        bytes(1 << 20),
    )
    for column in range(65):
        tokens.id.write_direct_chunk((0, column), zlib.compress(raw))


def wide_rows(f) -> None:
    del f["tokens"]
    tokens = f.create_dataset("tokens", (64, 2 << 20), "u1", chunks=(1, 2 << 20), compression="gzip")
    for k in range(64):
        tokens.id.write_direct_chunk((k, 0), zlib.compress(bytes(2 << 20)))


def of_time(f) -> None:
    """Of a type that NumPy does not have."""
    del f["tokens"]
    h5py.h5d.create(f.id, b"tokens", h5py.h5t.UNIX_D32LE.copy(), h5py.h5s.create_simple((6, 2, 3)))


BAD = {
    "a type of HDF5's alone": (of_time, "No NumPy equivalent"),
    "too few chunks": (sparse, "reads as zeros"),
    "never written": (never_written, "never written"),
    "external storage": (external, "another file"),
    "virtual": (virtual, "another file"),
    "soft link": (lambda f: (f.move("tokens", "t"), f.__setitem__("tokens", h5py.SoftLink("/t"))), "a link"),
    "external link": (
        lambda f: (f.__delitem__("tokens"), f.__setitem__("tokens", h5py.ExternalLink("x.h5", "/t"))),
        "a link",
    ),
    "a plug-in": (plugin, "plug-in"),
    "a bomb": (bomb, "chunks of|of its"),
    "a filter twice": (packed_twice, "packed more than once"),
    "by column": (by_column, "in 1048576 packed rows, more than are read at once"),
    "wide rows": (wide_rows, "in 64 packed rows, more than are read at once"),
    "no tokens": (lambda f: f.__delitem__("tokens"), "there is no tokens"),
    "a group": (lambda f: (f.__delitem__("tokens"), f.create_group("tokens")), "no dataset"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_plain_array(tmp_path, what) -> None:
    change, says = BAD[what]
    foreign(tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5", "a") as found:
        change(found)
    with pytest.raises(DataError, match=says), FeatureFile(tmp_path / "f.h5") as features:
        features.rows("tokens")


def pointed_at_one(path, dataset: str) -> None:
    """Let each text of a dataset that is stored in one piece be the first: 16 bytes in the file, a copy in memory."""
    with h5py.File(path) as found:
        at, n = found[dataset].id.get_offset(), found[dataset].size
    data = bytearray(path.read_bytes())
    data[at : at + 16 * n] = data[at : at + 16] * n
    path.write_bytes(data)


def texts(f, shape=(400,)) -> None:
    del f["sample_id"]
    f.create_dataset("sample_id", shape, h5py.string_dtype())[(0,) * len(shape)] = "a" * (1 << 20)


MUCH = {
    "one text for all": (texts, "texts of more than"),
    "in rows": (lambda f: texts(f, shape=(2, 200)), "texts of more than|not a list"),
    "other objects": (
        lambda f: f.create_dataset("odd", (2,), h5py.vlen_dtype("u1")).__setitem__(0, np.ones(3, "u1")),
        "neither numbers nor",
    ),
    "a chunk beyond the dataset": (
        lambda f: packed(f, "odd", (12,), (1 << 28,), zlib.compress(bytes(1 << 20)), 1),
        "chunks of 268435456 bytes",
    ),
    "more in a chunk than it has": (
        lambda f: packed(f, "odd", (12,), (12,), zlib.compress(bytes(96 << 20)), 1),
        "unpacks to more than its 12 bytes",
    ),
}


@pytest.mark.parametrize("what", MUCH)
def test_what_takes_far_more_memory_than_the_file(tmp_path, what) -> None:
    change, says = MUCH[what]
    foreign(file := tmp_path / "f.h5")
    with h5py.File(file, "a") as found:
        try:
            change(found)
        except OSError as error:
            pytest.skip(f"HDF5 of this h5py cannot write it: {error}")
        name = "odd" if "odd" in found else "sample_id"
    if name == "sample_id":
        pointed_at_one(file, name)
    with FeatureFile(file) as features:
        with pytest.raises(DataError, match=says):
            features.column(name)
        with pytest.raises(DataError, match=says):
            list(features.arrays(lambda *_: True))


def test_an_attribute_of_many_texts_is_not_read(tmp_path, monkeypatch) -> None:
    foreign(tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5", "a") as found:
        found.attrs["format"] = np.array(["taftcache-features"] * 4, dtype=h5py.string_dtype())
    monkeypatch.setattr(h5py.AttributeManager, "__getitem__", None)
    with FeatureFile(tmp_path / "f.h5") as features:
        assert not features.is_export


@pytest.mark.parametrize("chunks", [(64, 2, 3), (5, 2, 3), (64, 1, 1)], ids=["whole", "rows", "column"])
@pytest.mark.parametrize("dtype", [">f4", "<f2", "i1"])
def test_a_packed_chunk_is_read_once_in_whatever_order_rows_are_asked_for(tmp_path, monkeypatch, chunks, dtype) -> None:
    rows = np.random.default_rng(0).normal(size=(64, 2, 3)).astype(dtype)
    foreign(tmp_path / "f.h5", 64, tokens=None)
    with h5py.File(tmp_path / "f.h5", "a") as found:
        found.create_dataset("tokens", data=rows, chunks=chunks, compression="gzip", shuffle=True, fletcher32=True)
    read = list[int]()
    plain = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, k: read.append(len(v := plain(self, k))) or v)
    with FeatureFile(tmp_path / "f.h5", tmp_path) as features:
        tokens = features.rows("tokens")
        for some in ([63, 0, 5], [1, 62], range(64)):
            assert np.array_equal(tokens[list(some)], rows[list(some)])
        assert np.array_equal(tokens[3:9], rows[3:9])
    assert sum(read) == 64
    assert [p.name for p in tmp_path.iterdir()] == ["f.h5"]


@pytest.mark.parametrize("said", [np.array([1, 2]), np.zeros(3, [("a", "i4")]), h5py.Empty("f4"), 7, "other"])
def test_a_format_of_others_is_none_of_ours(tmp_path, said) -> None:
    foreign(tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5", "a") as found:
        found.attrs["format"] = said
    with FeatureFile(tmp_path / "f.h5") as features:
        assert not features.is_export
        assert features.rows("tokens").shape[0] == 6


@pytest.mark.parametrize("version", [np.array([1, 2]), "1", 3])
def test_an_export_of_an_odd_version(file, version) -> None:
    with h5py.File(file, "a") as found:
        found.attrs["version"] = version
    with pytest.raises(FormatError, match="only versions 1 and 2"):
        FeatureFile(file)


def test_no_hdf5_at_all(tmp_path) -> None:
    (tmp_path / "f.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 500)
    for name in ("f.h5", "missing.h5", "."):
        with pytest.raises(DataError), FeatureFile(tmp_path / name):
            pass


@pytest.mark.parametrize("there", [True, False], ids=["the store", "a deleted one"])
def test_an_export_from_before_a_request_is_refused_before_anything_is_made(path, file, there) -> None:
    with FeatureStore(path, mode="a") as store, store.transaction() as change:
        change.erase([IDS[3]])
        change.record({"event": "forget"})
    if not there:
        shutil.rmtree(path)
    before = tree(path) if there else None
    with FeatureFile(file) as read, pytest.raises(StaleStore, match="1 sample of it forgotten"):
        restore(read, path)
    assert (tree(path) if there else path.exists() or None) == before
