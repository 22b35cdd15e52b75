"""npz and HDF5 as sources: layouts of pixels, ids and labels, and files that were made to do harm."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from taftcache.backbone.sources.arrays import ArraySource, AskedArrays, label_indexes, numbers, split_of
from taftcache.backbone.sources.base import Item
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import DataSpec
from taftcache.errors import DataError, RecipeError, UnreadableImage
from tests.backbone.making import LABELS, PIXELS, only


def encoded(pixels=PIXELS, form="PNG"):
    """The layout of image files in one blob."""
    files = []
    for image in pixels:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, form)
        files.append(buffer.getvalue())
    offset = np.cumsum([0, *map(len, files)])
    return {"blob": np.frombuffer(b"".join(files), np.uint8), "offset": offset, "label": LABELS}


def write(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for key, value in arrays.items():
                file[key] = [v.encode() for v in value.tolist()] if value.dtype.kind == "U" else value
    return path


@pytest.fixture(params=["npz", "hdf5"])
def kind(request):
    return request.param


@pytest.fixture
def opened(kind, tmp_path):
    def build(arrays, name="set", **options):
        return only(source=kind, train=str(write(tmp_path / f"{name}.{kind}", arrays)), **options)

    return build


LAYOUTS = {
    "channels last": PIXELS,
    "channels first": np.moveaxis(PIXELS, -1, 1),
    "grey": PIXELS[..., 0],
    "one channel": PIXELS[..., :1],
    "one channel first": PIXELS[..., 0][:, None],
}


@pytest.mark.parametrize("pixels", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_pixel_layouts(opened, pixels):
    source = opened({"images": pixels, "labels": LABELS})
    expected = PIXELS if pixels.size == PIXELS.size else np.repeat(PIXELS[..., :1], 3, -1)
    assert all(np.array_equal(np.asarray(source.read(k)), expected[k]) for k in range(6))
    assert source.items[5] == Item("set/0005", 2)
    assert source.classes == ["0", "1", "2"]


def test_image_files_in_a_blob(opened):
    source = opened(encoded() | {"classes": np.array(["x", "y", "z"])})
    assert all(np.array_equal(np.asarray(source.read(k)), PIXELS[k]) for k in range(6))
    assert source.classes == ["x", "y", "z"]


def test_ids_classes_and_keys_of_ones_own(opened, kind):
    arrays = {"x": PIXELS, "y": np.array(list("bcabca")), "id": np.array([f"k{7 - k}" for k in range(6)])}
    source = opened(arrays, image_key="x", label_key="y")
    assert source.classes == ["a", "b", "c"]
    assert source.items[:2] == [Item("k7", 1), Item("k6", 2)]
    named = opened(arrays | {"classes": np.array(["c", "b", "a", "d"])}, "named", image_key="x", label_key="y")
    assert [i.label for i in named.items] == [1, 0, 2, 1, 0, 2]
    by_key = opened(arrays | {"nr": np.arange(7, 13)}, "nr", image_key="x", label_key="y", id_key="nr")
    assert [i.id for i in by_key.items] == [str(k) for k in range(7, 13)]
    numbers = opened({name: arrays[name] for name in "xy"}, "bare", image_key="x", label_key="y")
    assert (source.numbered, by_key.numbered, numbers.numbered) == (False, False, True)
    with pytest.raises(DataError, match="no array named 'nr'") as caught:
        opened(arrays, "none", image_key="x", label_key="y", id_key="nr")
    assert "id_key" in caught.value.do


def test_labels_that_are_codes_become_class_names(opened):
    source = opened({"images": PIXELS, "labels": np.array([1999, 2005, 1999, 2005, -1, 2005])})
    assert source.classes == ["-1", "1999", "2005"]
    assert [i.label for i in source.items] == [1, 2, 1, 2, 0, 2]


def test_fractions_are_in_order_among_whole_numbers():
    given = np.array(["10", "1.5", "2.0", "-3.25", "x", "2"], object)
    assert label_indexes(Path("f"), given[:-2], None)[0] == ["-3.25", "1.5", "2", "10"]
    assert label_indexes(Path("f"), given, None)[0] == ["-3.25", "1.5", "2", "2.0", "10", "x"]


def test_as_many_codes_as_images_are_found_in_one_pass():
    """A search of the list for each of them would take a quarter of an hour."""
    codes = np.arange(200_000)[::-1] * 7
    names, indexes = label_indexes(Path("f"), codes, None)
    assert (names[1], indexes[:2], indexes[-1]) == ("7", [199_999, 199_998], 0)


SPELT = {
    "before": "{split}_{key}",
    "after": "{key}_{split}",
    "groups": "{split}/{key}",
}


def in_splits(spelt, images="images", labels="labels", splits=("train", "test")):
    """The images 0 to 3 in the first split, 2 to 5 in the others."""
    arrays = {}
    for split, rows in zip(splits, [slice(0, 4), slice(2, 6), slice(2, 6)], strict=False):
        arrays[spelt.format(split=split, key=images)] = PIXELS[rows]
        arrays[spelt.format(split=split, key=labels)] = LABELS[rows].reshape(-1, 1)
    return arrays


@pytest.mark.parametrize("spelt", SPELT.values(), ids=SPELT.keys())
def test_splits_in_one_file_of_arrays(kind, tmp_path, spelt):
    """As MedMNIST's files, and Keras's of MNIST."""
    if kind == "npz" and "/" in spelt:
        return
    file = str(write(tmp_path / f"set.{kind}", in_splits(spelt, "x", "y", ("train", "test", "val"))))
    named = {"source": kind, "train": file, "image_key": "x", "label_key": "y"}
    train, test = open_source(DataSpec(**named, test=file, test_split="test"))
    assert [item.id for item in train.items] == [f"set/train/{k:04d}" for k in range(4)]
    assert [item.id for item in test.items] == [f"set/test/{k:04d}" for k in range(4)]
    assert np.array_equal(np.asarray(test.read(0)), PIXELS[2])
    assert (train.info.splits, train.numbered) == (["test", "train", "val"], True)
    alone, none = open_source(DataSpec(**named, train_split="val"))
    assert (alone.items[0].id, none) == ("set/val/0000", None)
    with pytest.raises(DataError, match="no array 'x' of the split 'dev'") as caught:
        open_source(DataSpec(**named, test=file, test_split="dev"))
    assert "data.test_split" in caught.value.do
    with pytest.raises(RecipeError, match="a test on what was trained on says nothing"):
        open_source(DataSpec(**named, test=file, test_split="train"))
    with pytest.raises(DataError, match="no array named 'images'"):
        open_source(DataSpec(source=kind, train=file))


def test_arrays_of_no_split_are_those_of_the_file(opened, kind, tmp_path):
    """Also of a file that has splits beside them, as before; names of classes and of ids may be of both."""
    plain = {"images": PIXELS, "labels": LABELS, "classes": np.array(["x", "y", "z"])}
    arrays = in_splits("{split}_{key}") | plain
    whole = opened(arrays)
    assert (len(whole.items), whole.items[0].id, whole.info.splits) == (6, "set/0000", ["", "test", "train"])
    file = str(tmp_path / f"set.{kind}")
    train, test = open_source(DataSpec(source=kind, train=file, test=file, test_split="test"))
    assert (len(train.items), train.classes, test.classes) == (4, ["x", "y", "z"], ["x", "y", "z"])
    ids = {"train_id": np.arange(4), "test_id": np.arange(4, 8)}
    file = str(write(tmp_path / f"ids.{kind}", in_splits("{split}_{key}") | ids))
    train, test = open_source(DataSpec(source=kind, train=file, test=file, test_split="test"))
    assert [item.id for item in (*train.items, *test.items)] == [str(k) for k in range(8)]


@pytest.mark.parametrize("spelt", SPELT.values(), ids=SPELT.keys())
def test_ids_of_no_split_are_said_to_be_of_one_each(kind, tmp_path, spelt):
    if kind == "npz" and "/" in spelt:
        return

    def opened(name, ids):
        file = str(write(tmp_path / f"{name}.{kind}", in_splits(spelt, "x") | ids))
        return open_source(DataSpec(source=kind, train=file, test=file, test_split="test", image_key="x"))

    with pytest.raises(DataError, match="has 4 images, but 8 ids") as caught:
        opened("one", {"id": np.arange(8)})
    name = spelt.format(split="train", key="x")
    assert f"an array of its own, named as {name!r} is, with 'id' for 'x'" in caught.value.do
    ours, theirs = (spelt.format(split=split, key="id") for split in ("train", "test"))
    train, test = opened("each", {ours: np.arange(4), theirs: np.arange(4, 8)})
    assert [item.id for item in (*train.items, *test.items)] == [str(k) for k in range(8)]
    with pytest.raises(DataError) as caught:
        opened("wrong", {ours: np.arange(8)})
    assert caught.value.do == "write an id for each image, or none"


def test_numbers_of_rows_keep_the_digits_that_a_store_knows():
    grown = numbers("a", 10_050, {"a/0003"}.__contains__)
    assert (grown[3], grown[9_999], grown[10_000]) == ("a/0003", "a/9999", "a/10000")
    assert numbers("a", 9_000, {"a/00003"}.__contains__)[3] == "a/00003"
    for knows in (None, {"a/10003", "b/0003"}.__contains__, {"a/00003", "a/0003"}.__contains__):
        assert numbers("a", 10_050, knows)[3] == "a/00003"
    assert numbers("a", 100_050, {"a/00003", "a/100003"}.__contains__)[3] == "a/00003"


NO_TEXT = np.frombuffer(np.array([0xD800, 0x62, 0x63] * 2, "<u4").tobytes(), "<U1")  # half of a surrogate pair
BEYOND = np.frombuffer(np.array([0x110001, 0x62, 0x63] * 2, "<u4").tobytes(), "<U1")


@pytest.mark.parametrize("labels", [NO_TEXT, BEYOND], ids=["surrogate", "beyond"])
def test_labels_that_are_no_unicode(tmp_path, labels):
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=labels)
    with pytest.raises(DataError, match="labels must be UTF-8"):
        only(source="npz", train=str(tmp_path / "a.npz"))


def test_an_image_of_hdf5_is_bounded_before_it_is_read(tmp_path):
    """Compressed, a few megabytes of file may say that an image has gigabytes."""
    with h5py.File(tmp_path / "pixels.hdf5", "w") as file:
        file.create_dataset("images", (2, 3, 1, 2**29), "u1", chunks=(1, 1, 1, 2**29))
        file["labels"] = [0, 1]
    with h5py.File(tmp_path / "files.hdf5", "w") as file:
        file.create_dataset("blob", (2**32,), "u1", chunks=(2**30,))
        file["offset"], file["label"] = [0, 2**31, 2**32], [0, 1]
    for name, says in (("pixels", "pixels, too many for one image"), ("files", f"more than {2**30} bytes")):
        asked = AskedArrays(tmp_path / name, "images", "labels")
        with h5py.File(tmp_path / f"{name}.hdf5") as file, pytest.raises(DataError, match=says):
            ArraySource(asked, dict(file), split_of(asked, file))


BAD = {
    "float pixels": ({"images": PIXELS / 255}, "uint8"),
    "two channels": ({"images": PIXELS[..., :2]}, "with 1 or 3 channels"),
    "no images": ({"images": PIXELS[:0], "labels": LABELS[:0]}, "no images at"),
    "labels short": ({"labels": LABELS[:5]}, "6 images, but 5 labels"),
    "label floats": ({"labels": LABELS / 2}, "(?s)labels must be text.*values are fitted by TangentRegressor"),
    "values": ({"labels": np.array([b"0.5", b"1.5", b"2", b"2.5", b"0.5", b"2"])}, "values, not classes"),
    "label outside": ({"classes": np.array(["a", "b"])}, "has the label 2, but .* has 2 classes"),
    "ids short": ({"id": np.array(["a"])}, "6 images, but 1 id"),
    "ids twice": ({"id": np.array(list("abcdea"))}, "'a' more than once"),
    "id empty": ({"ids": np.array(["a", "b", "c", "d", "e", ""])}, "printable"),
    "classes twice": ({"classes": np.array(list("aab"))}, "'a' more than once"),
    "unknown class": (
        {"labels": np.array(list("abcabc")), "classes": np.array(["a", "b"])},
        "not among its classes.*\n.*c",
    ),
    "offset beyond": (encoded() | {"offset": encoded()["offset"] + 1}, "offsets do not ascend"),
    "offset back": (encoded() | {"offset": encoded()["offset"][::-1]}, "offsets do not ascend"),
    "offset floats": (encoded() | {"offset": encoded()["offset"] * 1.0}, "offsets do not ascend"),
}


@pytest.mark.parametrize(("change", "named"), BAD.values(), ids=BAD.keys())
def test_arrays_that_do_not_fit_together(opened, monkeypatch, change, named):
    monkeypatch.setattr("taftcache.backbone.sources.base.FEW", 6)
    base = {} if "blob" in change else {"images": PIXELS, "labels": LABELS}
    with pytest.raises(DataError, match=named):
        opened(base | change)


def test_a_missing_array_is_named_with_those_that_are_there(opened):
    with pytest.raises(DataError, match=r"no array named 'images'(.|\n)*holds.*pics\n.*--set data\.image_key="):
        opened({"pics": PIXELS, "labels": LABELS})


def test_a_damaged_image_in_a_blob_is_named(opened):
    arrays = encoded()
    arrays["blob"] = arrays["blob"].copy()
    arrays["blob"][arrays["offset"][3] : arrays["offset"][4]] = 7
    source = opened(arrays)
    with pytest.raises(UnreadableImage, match="set/0003"):
        source.read(3)
    assert np.array_equal(np.asarray(source.read(4)), PIXELS[4])


def test_files_that_are_none(kind, tmp_path):
    with pytest.raises(DataError, match=r"^cannot read .*: there is no such file\n  try: correct data.train"):
        only(source=kind, train=str(tmp_path / "none"))
    with pytest.raises(DataError, match=r'^cannot read .*: it is a folder\n  try: set data.source = "folder"'):
        only(source=kind, train=str(tmp_path))
    (tmp_path / "junk").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match="cannot be read as"):
        only(source=kind, train=str(tmp_path / "junk"))


def test_pickled_objects_are_not_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=np.array([{}, 1, 2, 0, 1, 2], dtype=object))
    with pytest.raises(DataError, match="without Python objects"):
        only(source="npz", train=str(tmp_path / "a.npz"))
    np.save(tmp_path / "b.npy", PIXELS)
    with pytest.raises(DataError, match="single array"):
        only(source="npz", train=str(tmp_path / "b.npy"))


def test_an_hdf5_file_cannot_point_at_another(tmp_path):
    write(tmp_path / "other.hdf5", {"images": PIXELS, "labels": LABELS})
    with h5py.File(tmp_path / "link.hdf5", "w") as file:
        file["images"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "images")
        file["labels"] = LABELS
    with h5py.File(tmp_path / "raw.hdf5", "w") as file:
        (tmp_path / "secret").write_bytes(bytes(PIXELS.size))
        file.create_dataset("images", PIXELS.shape, "u1", external=[(str(tmp_path / "secret"), 0, PIXELS.size)])
        file["labels"] = LABELS
    with h5py.File(tmp_path / "links.hdf5", "w") as file:
        file["elsewhere/images"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "images")
        file["images"], file["labels"] = h5py.SoftLink("/elsewhere/images"), LABELS
    for name in ("link", "links", "raw"):
        with pytest.raises(DataError, match="another file"):
            only(source="hdf5", train=str(tmp_path / f"{name}.hdf5"))


@pytest.mark.parametrize("chunks", [None, (1, 8, 8, 3)], ids=["contiguous", "chunked"])
def test_hdf5_images_that_were_never_written_are_no_black_pictures(tmp_path, chunks):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("images", (6, 8, 8, 3), "u1", chunks=chunks)
        file["labels"] = LABELS
        if chunks:
            file["images"][:3] = 1
    with pytest.raises(DataError, match="reads as zeros"):
        only(source="hdf5", train=str(tmp_path / "a.hdf5"))


def test_hdf5_links_in_a_circle_and_labels_without_end(tmp_path):
    with h5py.File(tmp_path / "circle.hdf5", "w") as file:
        file["images"], file["labels"] = h5py.SoftLink("/labels"), h5py.SoftLink("/images")
    with pytest.raises(DataError, match="cannot be read"):
        only(source="hdf5", train=str(tmp_path / "circle.hdf5"))
    with h5py.File(tmp_path / "many.hdf5", "w") as file:
        file["images"] = PIXELS
        file.create_dataset("labels", (2**40,), "i8", chunks=(2**20,))
    with pytest.raises(DataError, match=r"labels has only 0 of its|one label per image"):
        only(source="hdf5", train=str(tmp_path / "many.hdf5"))


def damaged(file, change) -> None:
    """An npz whose bytes ``change`` edits in place."""
    np.savez_compressed(file, images=PIXELS, labels=LABELS)
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)


def _deflate(data: bytearray) -> None:
    at = 30 + data[26] + data[28]  # behind the first local header
    data[at] = 0xFF  # a block of a kind that there is not


def _flag(data: bytearray) -> None:
    for mark, field in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for at in _places(data, mark):
            data[at + field] |= 1


def _method(data: bytearray) -> None:
    for mark, field in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        for at in _places(data, mark):
            data[at + field] = 99


def _places(data: bytearray, mark: bytes) -> list[int]:
    return [at for at in range(len(data)) if data[at : at + 4] == mark]


@pytest.mark.parametrize("change", [_deflate, _flag, _method], ids=["deflate", "encrypted", "compression"])
def test_a_damaged_npz_is_refused(tmp_path, change):
    damaged(tmp_path / "a.npz", change)
    with pytest.raises(DataError, match="read as npz"):
        only(source="npz", train=str(tmp_path / "a.npz"))


def crafted(file, header: bytes, zeros: int = 0) -> None:
    """An npz whose images have this header, whatever follows it."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("images.npy", "w") as member:
            member.write(header)
            for _ in range(zeros >> 20):
                member.write(bytes(1 << 20))
        with archive.open("labels.npy", "w") as member:
            np.save(member, LABELS)


def header(text: str) -> bytes:
    """The start of a NumPy array."""
    raw = text.encode("latin1")
    return b"\x93NUMPY\x02\x00" + len(raw).to_bytes(4, "little") + raw


HEADERS = {
    "too many rows": "{'descr':'|u1','fortran_order':False,'shape':(1000000000000,9,9)}",
    "long texts": "{'descr':'|S1000','fortran_order':False,'shape':(1000000000,)}",
    "vast number": f"{{'descr':'|u1','fortran_order':False,'shape':(0,9,{10**30})}}",
    "negative": "{'descr':'|u1','fortran_order':False,'shape':(-6,9,9)}",
    "no dtype": "{'descr':'|V99999999999','fortran_order':False,'shape':(6,)}",
    "nested": "{'descr':'|u1','fortran_order':False,'shape':" + "-" * 9000 + "1}",
    "brackets": "{'descr':" + "(" * 9000,
}


@pytest.mark.parametrize("what", HEADERS)
def test_an_npz_is_asked_for_no_more_than_it_has(tmp_path, what):
    crafted(tmp_path / "a.npz", header(HEADERS[what]))
    with pytest.raises(DataError, match="read as npz"):
        only(source="npz", train=str(tmp_path / "a.npz"))


def test_an_npz_that_unpacks_without_end_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    size = 65 << 20
    crafted(
        tmp_path / "a.npz", header(f"{{'descr':'|u1','fortran_order':False,'shape':({size >> 20},1024,1024)}}"), size
    )
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *args: pytest.fail("it is unpacked"))
    with pytest.raises(DataError, match="exhaust memory"):
        only(source="npz", train=str(tmp_path / "a.npz"))


def test_a_member_that_is_no_array_is_refused(tmp_path):
    crafted(tmp_path / "a.npz", b"not an array")
    with pytest.raises(DataError, match="read as npz"):
        only(source="npz", train=str(tmp_path / "a.npz"))


@pytest.mark.parametrize("size", [(1 << 15, 1 << 15), (1 << 14, (1 << 14) + 1)])
def test_pictures_that_nobody_can_decode(tmp_path, size):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        rows = file.create_dataset("images", (6, *size), "u1", chunks=(3, *size) if size[0] == 1 << 15 else (1, 64, 64))
        file["labels"] = LABELS
        rows.id.write_direct_chunk((0, 0, 0), b"x")
    with pytest.raises(DataError, match=r"chunks of|reads as zeros"):
        only(source="hdf5", train=str(tmp_path / "a.hdf5"))


def test_hdf5_filters_that_are_plug_ins(tmp_path):
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((6, 9, 11, 3))
    made.set_filter(40_000, h5py.h5z.FLAG_OPTIONAL, ())
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        space = h5py.h5s.create_simple(PIXELS.shape)
        h5py.h5d.create(file.id, b"images", h5py.h5t.NATIVE_UINT8, space, made).write_direct_chunk((0, 0, 0, 0), b"x")
        file["labels"] = LABELS
    with pytest.raises(DataError, match="plug-in"):
        only(source="hdf5", train=str(tmp_path / "a.hdf5"))


def test_hdf5_labels_that_unpack_without_end(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["images"], file["labels"] = PIXELS, LABELS
        file.create_dataset("classes", (65 << 17,), "S8", chunks=(1 << 17,), compression="gzip")[:] = b""
    with pytest.raises(DataError, match="exhaust memory"):
        only(source="hdf5", train=str(tmp_path / "a.hdf5"))


def test_hdf5_labels_that_are_one_text(tmp_path):
    """16 bytes in the file for each, and a copy in memory."""
    with h5py.File(file := tmp_path / "a.hdf5", "w") as arrays:
        arrays["images"] = np.zeros((400, 2, 2), np.uint8)
        arrays["labels"] = np.array(["a" * (1 << 20), *"b" * 399], dtype=h5py.string_dtype())
        at = arrays["labels"].id.get_offset()
    data = bytearray(file.read_bytes())
    data[at : at + 16 * 400] = data[at : at + 16] * 400
    file.write_bytes(data)
    with pytest.raises(DataError, match="labels has texts of more than"):
        only(source="hdf5", train=str(file))


def test_hdf5_classes_that_are_one_text(tmp_path):
    with h5py.File(file := tmp_path / "a.hdf5", "w") as arrays:
        arrays["images"], arrays["labels"], arrays["classes"] = PIXELS, np.zeros(len(PIXELS), int), "cat"
    assert only(source="hdf5", train=str(file)).classes == ["cat"]


def test_hdf5_images_that_would_each_unpack_a_large_chunk(tmp_path):
    shape = (65, 1024, 1024)
    with h5py.File(tmp_path / "a.hdf5", "w") as arrays:
        arrays["other"] = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
        images = arrays.create_dataset("images", shape, "u1", chunks=shape, compression="gzip")
        images.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(65 << 20)))
        arrays["labels"] = np.arange(65) % 2
    with pytest.raises(DataError, match="too large to be unpacked for each part"):
        only(source="hdf5", train=str(tmp_path / "a.hdf5"))


def test_hdf5_images_of_other_splits_do_not_count_as_expansion(tmp_path):
    """They are not read. Blank ones take little of the file."""
    file = str(tmp_path / "a.hdf5")
    blank = np.zeros((2_200, 128, 128), np.uint8)
    with h5py.File(file, "w") as arrays:
        for split in ("train", "test"):
            arrays.create_dataset(f"{split}_images", data=blank, chunks=(100, 128, 128), compression="gzip")
            arrays[f"{split}_labels"] = np.arange(2_200) % 2
    train, test = open_source(DataSpec(source="hdf5", train=file, test=file, test_split="test"))
    assert (len(train.items), len(test.items)) == (2_200, 2_200)


def test_keys_inside_hdf5_groups(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["part/x"], file["part/y"] = PIXELS, LABELS
    source = only(source="hdf5", train=str(tmp_path / "a.hdf5"), image_key="part/x", label_key="/part/y")
    assert np.array_equal(np.asarray(source.read(3)), PIXELS[3])


def test_two_files_of_one_name_keep_their_ids_apart(kind, tmp_path):
    paths = []
    for role in ("a", "b"):
        (tmp_path / role).mkdir()
        paths.append(str(write(tmp_path / role / f"set.{kind}", {"images": PIXELS, "labels": LABELS})))
    train, test = open_source(DataSpec(source=kind, train=paths[0], test=paths[1]))
    assert (train.items[0].id, test.items[0].id) == ("train/set/0000", "test/set/0000")


def test_an_id_in_training_and_test_is_refused(kind, tmp_path):
    arrays = {"images": PIXELS, "labels": LABELS, "id": np.array(list("abcdef"))}
    train, test = (str(write(tmp_path / f"{n}.{kind}", arrays)) for n in ("train", "test"))
    with pytest.raises(DataError, match="in both: a, b, c, d, e and 1 more"):
        open_source(DataSpec(source=kind, train=train, test=test))
