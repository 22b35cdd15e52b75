"""Sources: stable ids, one order, and an error for everything that would otherwise pass for data."""

from __future__ import annotations

import errno
import io
import os
import shutil
import struct

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, ExifTags, Image, UnidentifiedImageError

from taftcache.backbone.sources import rgb
from taftcache.backbone.sources.base import Item
from taftcache.backbone.sources.folder import images_below
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.sources.pictures import decoded
from taftcache.backbone.sources.rgb import decode_rgb, open_rgb, to_rgb
from taftcache.backbone.spec import DataSpec
from taftcache.backbone.still_there import still_there
from taftcache.errors import DataError, RecipeError, UnreadableImage
from tests.backbone.making import PIXELS, deep_grey, only

# digits


def test_digits():
    source = only(source="digits")
    assert len(source.items) == 1797
    assert source.items[42] == Item("digits/0042", 1)
    image = source.read(0)
    assert (image.mode, image.size) == ("RGB", (8, 8))
    assert np.asarray(image).max() == round(15 * 255 / 16)
    assert source.items == only(source="digits").items


# folders


def test_a_folder(folder):
    source = only(source="folder", train=str(folder))
    assert source.classes == ["ant", "bee", "cat"]
    assert [i.id for i in source.items[:5]] == ["ant/0.png", "ant/1.jpg", "ant/2.bmp", "ant/3.JPEG", "bee/0.png"]
    assert [i.label for i in source.items] == [0] * 4 + [1] * 5 + [2] * 4
    for k, item in enumerate(source.items):
        with Image.open(folder / item.id) as image:
            assert np.array_equal(np.asarray(source.read(k)), np.asarray(image.convert("RGB")))


def test_a_folders_order_does_not_depend_on_the_file_system(folder, monkeypatch):
    before = only(source="folder", train=str(folder)).items
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: iter(sorted(scandir(path), key=lambda e: e.name, reverse=True)))
    assert only(source="folder", train=str(folder)).items == before


def test_what_is_no_image_is_left_out_and_depth_is_kept(folder):
    (folder / "ant" / "notes.txt").write_text("x")
    (folder / "ant" / "._0.png").write_text("a resource fork")
    (folder / ".cache").mkdir()
    (folder / "readme.md").write_text("x")
    (folder / "ant" / "more" / "still").mkdir(parents=True)
    (folder / "ant" / "1.jpg").rename(folder / "ant" / "more" / "still" / "1.jpg")
    source = only(source="folder", train=str(folder))
    assert len(source.items) == 13
    assert Item("ant/more/still/1.jpg", 0) in source.items


def test_two_folders_have_their_role_in_the_ids(folder, tmp_path):
    other = tmp_path / "other"
    for name in ("ant", "bee", "cat"):
        (other / name).mkdir(parents=True)
        Image.fromarray(PIXELS[0]).save(other / name / "0.png")
    train, test = open_source(DataSpec(source="folder", train=str(folder), test=str(other)))
    assert train.items[0].id == "train/ant/0.png"
    assert test.items[0].id == "test/ant/0.png"
    assert np.array_equal(np.asarray(test.read(0)), PIXELS[0])
    for name, left in (("cat", ["ant", "bee"]), ("ant", ["bee"])):
        shutil.move(other / name, tmp_path / name)
        assert open_source(DataSpec(source="folder", train=str(folder), test=str(other)))[1].classes == left


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda root: root.rename(root.with_name("gone")), "no folder of images at"),
        (lambda root: (root.rename(root.with_name("gone")), root.mkdir()), "has no folders of classes"),
        (lambda root: (root / "bee" / "loop").symlink_to(root), "must not lead back"),
        (lambda root: (root / "bee" / "loop").symlink_to(root / "bee"), "must not lead back"),
        (lambda root: (root / "ant" / "0.png").rename(root / "ant" / "a\nb.png"), "printable"),
        (lambda root: os.rename(root / "ant" / "0.png", root / "ant" / os.fsdecode(b"\xff.png")), "printable"),
    ],
    ids=["missing", "empty", "circle above", "circle", "line break", "not UTF-8"],
)
def test_a_folder_that_is_no_set_of_classes(folder, change, named):
    change(folder)
    with pytest.raises(DataError, match=named):
        only(source="folder", train=str(folder))


@pytest.mark.parametrize("name", ["a\nb.png", os.fsdecode(b"\xff.png")], ids=["line break", "not UTF-8"])
def test_images_of_names_that_are_not_printable_are_skipped(folder, name):
    whole = only(source="folder", train=str(folder)).items
    os.rename(folder / "ant" / "0.png", folder / "ant" / name)
    with pytest.raises(DataError, match=r'; or set data\.unreadable = "skip"'):
        only(source="folder", train=str(folder))
    source = only(source="folder", train=str(folder), unreadable="skip")
    assert source.items == [item for item in whole if item.id != "ant/0.png"]
    assert source.info.aside == [f"ant/{name}"]


@pytest.mark.parametrize("limit", [None, 5])
def test_an_empty_folder_is_a_class_without_images(folder, limit):
    (folder / "dog").mkdir()
    (folder / "dog" / "notes.txt").write_text("x")
    source = only(source="folder", train=str(folder), limit=limit)
    assert (source.classes[-1], source.info.empty) == ("dog", ["dog"])
    assert {item.label for item in source.items} <= {0, 1, 2}


@pytest.mark.parametrize("beside", [[], ["docs"]])
def test_splits_taken_for_classes(folder, tmp_path, beside):
    (tmp_path / "both").mkdir()
    for name in ("train", "test"):
        (tmp_path / "both" / name).symlink_to(folder)
    for name in beside:
        (tmp_path / "both" / name).mkdir()
    with pytest.raises(DataError, match="look like splits"):
        only(source="folder", train=str(tmp_path / "both"))


def test_links_to_files_and_folders_are_followed(folder, tmp_path):
    (folder / "bee").rename(tmp_path / "bees")
    (folder / "bee").symlink_to(tmp_path / "bees")
    (folder / "ant" / "linked.png").symlink_to(folder / "cat" / "0.png")
    source = only(source="folder", train=str(folder))
    assert len(source.items) == 14
    assert Item("ant/linked.png", 0) in source.items


@pytest.mark.parametrize("link", ["dog", "ant/more", "ant/n.01"])
@pytest.mark.parametrize("to", ["gone", "ant/0.png/x", None])
def test_a_link_that_leads_nowhere_is_no_empty_folder(folder, link, to):
    """A mount that was not there took a class, or a part of one, without a word."""
    (folder / link).symlink_to(folder / (to or link))
    for images in (lambda: only(source="folder", train=str(folder)), lambda: images_below(folder)):
        with pytest.raises(DataError, match=rf"what the link {folder / link} leads to cannot be reached\n  got: /"):
            images()
    (folder / link).rename(folder / "ant" / "x.png")  # reading refuses it, or skips it
    assert Item("ant/x.png", 0) in only(source="folder", train=str(folder)).items


def test_the_link_is_named_that_leads_back(folder):
    """Not a real folder behind it, which holds the images."""
    (folder / "bee" / "up").symlink_to("..")
    for images in (lambda: only(source="folder", train=str(folder)), lambda: images_below(folder / "bee")):
        with pytest.raises(DataError, match=f"the link {folder / 'bee' / 'up'} must not lead back"):
            images()


@pytest.mark.parametrize("damage", [b"", b"not an image", None], ids=["empty", "text", "cut short"])
def test_an_image_that_does_not_decode_is_named(folder, damage):
    path = folder / "bee" / "1.jpg"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage is None else damage)
    source = only(source="folder", train=str(folder))
    index = [i.id for i in source.items].index("bee/1.jpg")
    with pytest.raises(UnreadableImage, match=r"bee/1\.jpg"):
        source.read(index)


def test_an_image_that_is_out_of_reach_is_none_that_is_left_out(folder, monkeypatch):
    """A mount that drops out for a moment took its images out of a store for good."""
    source = only(source="folder", train=str(folder))
    index = [i.id for i in source.items].index("bee/1.jpg")
    (folder / "bee" / "1.jpg").rename(folder / "elsewhere.jpg")
    with pytest.raises(
        DataError, match=r"the image bee/1\.jpg cannot be reached any more(.|\n)*mount is there"
    ) as caught:
        source.read(index)
    assert not isinstance(caught.value, UnreadableImage)
    (folder / "bee" / "1.jpg").symlink_to(folder / "nowhere.jpg")
    with pytest.raises(UnreadableImage, match=r"the image bee/1\.jpg is missing(.|\n)*put the file back"):
        source.read(index)

    def stale(*args, **options):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("taftcache.backbone.sources.rgb.os.stat", stale)
    with pytest.raises(DataError, match="Stale file handle") as caught:
        source.read(0)
    assert not isinstance(caught.value, UnreadableImage)


def test_an_image_that_may_not_be_read_is_not_said_to_be_damaged(folder, monkeypatch):
    source = only(source="folder", train=str(folder))

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("PIL.Image.open", refuse)
    with pytest.raises(UnreadableImage, match=r"no permission to read the image ant/0\.png(.|\n)*let this user read"):
        source.read(0)


def test_an_image_that_memory_has_no_room_for_is_named(folder, monkeypatch):
    source = only(source="folder", train=str(folder))

    def full(*args, **options):
        raise MemoryError

    monkeypatch.setattr("PIL.Image.open", full)
    for read in (lambda: source.read(0), lambda: decoded(folder / "ant" / "0.png")):
        with pytest.raises(MemoryError, match=r"the image .*ant/0\.png"):
            read()


def test_an_image_that_became_a_pipe_is_not_waited_for(folder):
    source = only(source="folder", train=str(folder))
    (folder / "ant" / "0.png").unlink()
    os.mkfifo(folder / "ant" / "0.png")
    with pytest.raises(UnreadableImage, match="a pipe, socket"):
        source.read(0)


def test_folders_without_end_are_refused(folder):
    inner = folder / "ant"
    for _ in range(600):  # of one letter: a path has 4,096 bytes
        inner /= "x"
    inner.mkdir(parents=True)
    with pytest.raises(DataError, match="nested too deeply"):
        only(source="folder", train=str(folder))


def test_a_pipe_among_images_is_refused_and_not_waited_for(folder):
    os.mkfifo(folder / "ant" / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png is a pipe"):
        only(source="folder", train=str(folder))


# timm's datasets


def test_a_timm_dataset(folder):
    source = only(source="timm", train="torch/image_folder", root=str(folder))
    same = only(source="folder", train=str(folder))
    assert source.items == same.items
    assert source.classes == same.classes
    assert np.array_equal(np.asarray(source.read(6)), np.asarray(same.read(6)))


def test_timms_own_folder_reader(folder):
    source = only(source="timm", train="folder", root=str(folder))
    same = only(source="folder", train=str(folder))
    assert {i.id for i in source.items} <= {i.id for i in same.items}  # timm reads png and jpeg only
    assert len(source.items) == 9
    assert source.classes == same.classes


def test_a_timm_dataset_without_names_of_classes_has_those_that_occur(monkeypatch, tmp_path):
    class Bare(list):
        targets = (8, 3, 8)

    monkeypatch.setattr("taftcache.backbone.sources.timm_dataset.create_dataset", lambda *a, **k: Bare("abc"))
    source = only(source="timm", train="torch/svhn", root=str(tmp_path))
    assert (source.classes, [item.label for item in source.items]) == (["3", "8"], [1, 0, 1])


def test_a_timm_dataset_needs_its_folder():
    """It was a TypeError of os.stat."""
    with pytest.raises(DataError, match=r"^data\.root is missing"):
        only(source="timm", train="folder")


def test_an_image_of_timms_folder_that_does_not_decode_is_named(folder):
    """timm logs that it skips the image, and gives the next one in its place."""
    (folder / "ant" / "0.png").write_bytes(b"no image")
    source = only(source="timm", train="folder", root=str(folder))
    with pytest.raises(UnreadableImage, match=r"ant/0\.png"):
        source.read(0)


@pytest.mark.law("A recipe names no data that runs a program: streams and addresses are refused before timm sees them")
@pytest.mark.parametrize(
    ("train", "root", "named"),
    [
        ("wds/x", "pipe:touch ran; echo {} #", "kind 'wds/'"),
        ("WDS/x", ".", "kind 'WDS/'"),
        ("tfds/mnist", ".", "kind 'tfds/'"),
        ("hfids/somebody/something", ".", "kind 'hfids/'"),
        ("hfds/somebody/something", "s3://bucket/cache", "not a folder on this machine"),
        ("folder", __file__, "not a folder on this machine"),  # beside a large .tar, timm reads a pickle
        ("folder", "pipe:touch ran", "not a folder on this machine"),
    ],
)
def test_what_timm_would_run_or_stream_is_refused(monkeypatch, train, root, named):
    monkeypatch.setattr("taftcache.backbone.sources.timm_dataset.create_dataset", lambda *a, **k: pytest.fail("asked"))
    with pytest.raises(DataError, match=named):
        only(source="timm", train=train, root=root)


def test_a_timm_dataset_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cifar10"):
        only(source="timm", train="torch/cifar10", root=str(tmp_path))


# pictures that a program passes in


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (np.ma.masked_less(PIXELS[0], 9), "the image at index 2 cannot be read\n  got: .*masked pixels"),
        (torch.zeros(3, 40, 30, dtype=torch.uint8), "got: Tensor: channels must come last, and there are 30 of them"),
        ("", "the image at index 2 is missing"),
    ],
    ids=["masked", "channels first", "no name"],
)
def test_what_is_wrong_with_a_picture_is_said(picture, said):
    with pytest.raises(UnreadableImage, match=said):
        decoded(picture, 2)
    assert decoded(np.ma.masked_array(PIXELS[0]), 2).size == (11, 9)


# limits, modes, recipes


def test_a_limit_takes_from_all_classes_and_is_stable(folder):
    whole, part = only(source="digits"), only(source="digits", limit=100)
    assert len(part.items) == 100
    assert len({i.label for i in part.items}) == 10
    index = {item: k for k, item in enumerate(whole.items)}
    places = [index[item] for item in part.items]
    assert places == sorted(places)
    assert np.array_equal(np.asarray(part.read(7)), np.asarray(whole.read(places[7])))
    assert set(only(source="digits", limit=60).items) < set(part.items)
    assert only(source="digits", limit=5000).items == whole.items


def test_modes_become_rgb():
    grey16 = Image.fromarray(np.array([[0, 256, 65535]], dtype=np.uint16))
    assert np.asarray(to_rgb(grey16))[0, :, 0].tolist() == [0, 1, 255]
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.info["transparency"] = b"\x00\xff"
    assert to_rgb(palette).getpixel((0, 0)) == (10, 20, 30)
    assert to_rgb(Image.new("LA", (1, 1), (77, 0))).getpixel((0, 0)) == (77, 77, 77)
    assert to_rgb(Image.new("1", (1, 1), 1)).getpixel((0, 0)) == (255, 255, 255)
    for mode in ("I", "F"):
        with pytest.raises(ValueError, match="no agreed range"):
            to_rgb(Image.new(mode, (1, 1)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    {
        "16-bit TIFF": (0x01, 0xCD, 0xFE),
        "16-bit TIFF, 0 is white": (0xFE, 0x32, 0x01),
        "12-bit TIFF": (0x23, 0x1A, 0xCD),
        "16-bit PGM": (0x01, 0xCD, 0xFE),
        "12-bit PGM": (0x01, 0xCD, 0xFE),
    }.items(),
)
def test_deep_grey_is_scaled_as_its_file_says(kind, expected):
    """Of TIFF, 12 bits became black and 16 from white a negative; PGM was refused as having no range."""
    image = decode_rgb(deep_grey(np.array([[0x0123, 0xCDAB, 0xFEDC]], np.uint16))[kind])
    assert np.asarray(image)[0].tolist() == [[value] * 3 for value in expected]


@pytest.mark.parametrize("at_once", [0, 1 << 10])
@pytest.mark.parametrize(("format", "turns"), [("TIFF", 3), ("PNG", 0), ("JPEG", 0)])
def test_pillow_turns_tiff_alone(tmp_path, monkeypatch, format, turns, at_once):
    """As the guide and the model card say of EXIF. Large grey TIFF, opened by name, was scrambled."""
    monkeypatch.setattr(rgb, "_AT_ONCE", at_once)
    exif, white = Image.Exif(), np.array([[True, False, False], [False, False, False]])
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(np.uint8(white * 255)).save(tmp_path / "a", format, exif=exif)
    image = np.asarray(open_rgb(tmp_path / "a"))
    assert np.array_equal(image[..., 0] > 127, np.rot90(white, turns))


def test_12_bit_tiff_in_which_0_is_white_is_refused():
    """As the guide says: Pillow does not read it."""
    tiff = deep_grey(np.zeros((1, 2), np.uint16))["12-bit TIFF"]
    with pytest.raises(UnidentifiedImageError, match="in no format that is read"):
        decode_rgb(tiff.replace(struct.pack("<HHII", 262, 3, 1, 1), struct.pack("<HHII", 262, 3, 1, 0)))


def in_iptc(program: bytes) -> bytes:
    """An IPTC record of eight by eight grey pixels whose picture is a file of its own, which Pillow would open."""

    def field(record: int, number: int, data: bytes) -> bytes:
        return bytes([0x1C, record, number]) + struct.pack(">H", len(data)) + data

    size, jpeg = struct.pack(">H", 8), b"\x05"
    head = field(3, 60, b"\x01\x00") + field(3, 20, size) + field(3, 30, size) + field(3, 120, jpeg)
    return head + field(8, 10, program) + field(8, 11, b"")


@pytest.mark.law("Nothing runs because an image says so: PostScript is refused, whatever its file is called or holds")
@pytest.mark.parametrize("wrapped", [bytes, in_iptc])
@pytest.mark.parametrize("size", [0, 16 << 20])
@pytest.mark.parametrize("source", ["folder", "torch/image_folder", "timm"])
def test_postscript_is_not_run(folder, tmp_path, monkeypatch, wrapped, size, source):
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (folder / "ant" / "0.png").write_bytes(wrapped(program) + bytes(size))
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: (tmp_path / "ran").touch())
    spec = {"train": str(folder)} if source == "folder" else {"source": "timm", "train": source, "root": str(folder)}
    with pytest.raises(UnreadableImage, match="in no format that is read: BMP"):
        only(**{"source": "folder"} | spec).read(0)
    assert not (tmp_path / "ran").exists()


def test_postscript_that_a_program_opened_is_not_run():
    with pytest.raises(ValueError, match="PostScript"):
        to_rgb(Image.open(io.BytesIO(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n")))


@pytest.mark.parametrize(
    "format", ["AVIF", "DDS", "GIF", "ICO", "JPEG2000", "MPO", "PCX", "SGI", "TGA", "TIFF", "WEBP"]
)
def test_what_pillow_decodes_by_itself_is_read(tmp_path, format):
    if format not in Image.registered_extensions().values():
        pytest.skip("this Pillow lacks it")
    Image.new("RGB", (16, 16), (200, 100, 0)).save(tmp_path / "a.png", format)
    assert open_rgb(tmp_path / "a.png").size == (16, 16)


@pytest.mark.parametrize(
    "options",
    [
        {"source": "digits", "train": "x"},
        {"source": "folder"},
        {"source": "npz", "train": ""},
        {"source": "digits", "held_out": 1.0},
        {"source": "digits", "limit": 0},
    ],
)
def test_recipes_that_cannot_be(options):
    with pytest.raises(RecipeError):
        DataSpec(**options)


@pytest.mark.parametrize(
    ("source", "train", "test", "more"),
    [
        ("folder", "pics", "pics", {}),
        ("folder", "pics", "other/../pics/", {}),
        ("npz", "a.npz", "./a.npz", {}),
        ("hdf5", "a.h5", "a.h5", {"test_split": "train"}),
        ("table", "a.csv", "./a.csv", {}),
        ("table", "folder", "folder", {"test_split": "train"}),
        ("timm", "folder", "folder", {"train_split": "all", "test_split": "all"}),
    ],
)
def test_a_test_on_the_images_that_are_trained_on_is_refused(tmp_path, monkeypatch, source, train, test, more):
    """Nothing told the two apart, and every image was held out and trained on. Splits do, but for a folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"data\.test must not name what"):
        open_source(DataSpec(source=source, train=train, test=test, **more))


@pytest.mark.data
def test_the_benchmark_data(data):
    train, test = open_source(
        DataSpec(source="folder", train=str(data / "caltech101/train"), test=str(data / "caltech101/test"))
    )
    assert (len(train.items), len(test.items), len(train.classes)) == (2975, 1395, 101)
    assert train.read(0).mode == "RGB"
    cifar, _ = open_source(DataSpec(source="npz", train=str(data / "cifar10_test_jpeg.npz")))
    assert len(cifar.items) == 2000
    assert cifar.read(1999).size == (32, 32)


def test_what_a_source_still_has_is_told_by_its_list(tmp_path):
    for name in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "beside.png")
    two = DataSpec(source="folder", train=str(tmp_path / "train"), test=str(tmp_path / "test"))
    ids = ["test/a/1.png", "train/b/1.png", "train/b/2.png", "train/../beside.png", "a/1.png"]
    assert sorted(still_there(two, ids).ids) == ids[:2]
    one = DataSpec(source="folder", train=str(tmp_path / "test" / ".." / "train"))
    assert still_there(one, [*ids, "../beside.png", str(tmp_path / "beside.png")]).ids == ["a/1.png"]
    (tmp_path / "train" / "a" / "1.png").unlink()
    (tmp_path / "train" / "a").rmdir()
    assert still_there(one, ["a/1.png", "b/1.png"]).ids == ["b/1.png"], "open_source would refuse a single class"
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.array([0, 1, 0]))
    rows = DataSpec(source="npz", train=str(tmp_path / "x.npz"), limit=1)
    ids = [item.id for item in open_source(DataSpec(source="npz", train=str(tmp_path / "x.npz")))[0].items]
    assert still_there(rows, [*ids, "x/9999"]) == (ids, True)
    assert still_there(DataSpec(source="timm", train="hfds/somebody/something"), ids).ids == []
