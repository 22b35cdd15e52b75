"""The paper's datasets from small stand-ins of the folders that their archives unpack to."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image
from scipy.io import savemat

from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.sources.published import DATASETS
from taftcache.backbone.spec import DataSpec
from taftcache.errors import DataError, RecipeError


def picture(file: Path, shade: int = 100) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 5), (shade, 20, 30)).save(file)
    return file.name


def text(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def caltech256(root: Path) -> None:
    for name in ("001.ak47", "002.american-flag", "257.clutter"):
        for k in range(62 if name != "257.clutter" else 1):
            picture(root / "256_ObjectCategories" / name / f"{name[:3]}_{k:04d}.jpg")


def mit67(root: Path) -> None:
    paths = [f"{c}/{c}_{k}.jpg" for c in ("bakery", "bar") for k in range(3)]
    for path in paths:
        picture(root / "Images" / path)
    text(root / "TrainImages.txt", *(p for p in paths if "_2" not in p))
    text(root / "TestImages.txt", *(p for p in paths if "_2" in p))


def pets(root: Path) -> None:
    inner = root / "oxford-iiit-pet"  # where torchvision puts it
    for name in ("Abyssinian", "great_pyrenees"):
        for k in (1, 2, 3):
            picture(inner / "images" / f"{name}_{k}.jpg")
    rows = [f"{name}_{{}} {k} 1 1" for k, name in ((1, "Abyssinian"), (2, "great_pyrenees"))]
    text(inner / "annotations" / "trainval.txt", *(row.format(n) for row in rows for n in (1, 2)))
    text(inner / "annotations" / "test.txt", "# a comment", *(row.format(3) for row in rows))


def dogs(root: Path) -> None:
    paths = [f"{c}/{c.partition('-')[0]}_{k}.jpg" for c in ("n1-Chihuahua", "n2-Beagle") for k in range(3)]
    for path in paths:
        picture(root / "Images" / path)
    for name, part in (("train", paths[:2] + paths[3:5]), ("test", [paths[2], paths[5]])):
        cells = np.array([[p] for p in part], dtype=object)
        savemat(root / f"{name}_list.mat", {"file_list": cells, "labels": np.array([[1]] * len(part))})


def cub200(root: Path) -> None:
    inner = root / "CUB_200_2011"
    paths = [f"{c}/{c[4:]}_{k}.jpg" for c in ("001.Albatross", "002.Crow") for k in range(3)]
    for path in paths:
        picture(inner / "images" / path)
    text(inner / "images.txt", *(f"{n} {p}" for n, p in enumerate(paths, 1)))
    text(inner / "train_test_split.txt", *(f"{n} {int(n % 3 != 0)}" for n in range(1, 7)))
    text(inner / "image_class_labels.txt", *(f"{n} {1 + (n > 3)}" for n in range(1, 7)))
    text(inner / "classes.txt", "1 001.Albatross", "2 002.Crow")


def aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft-2013b" / "data"
    for n in range(6):
        picture(data / "images" / f"{n:07d}.jpg")
    text(data / "variants.txt", "707-320", "Boeing 737-500")
    text(data / "images_variant_trainval.txt", *(f"{n:07d} {('707-320', 'Boeing 737-500')[n % 2]}" for n in range(4)))
    text(data / "images_variant_test.txt", "0000004 707-320", "0000005 Boeing 737-500")


def cars(root: Path) -> None:
    inner = root / "stanford_cars"
    kind = [("fname", object), ("class", object)]

    def annotate(file: Path, rows: list[tuple[str, int]]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        savemat(file, {"annotations": np.array(rows, dtype=kind)})

    for folder, count in (("cars_train", 4), ("cars_test", 2)):
        for n in range(count):
            picture(inner / folder / f"{n:05d}.jpg")
    annotate(inner / "devkit" / "cars_train_annos.mat", [(f"{n:05d}.jpg", 1 + n % 2) for n in range(4)])
    annotate(inner / "cars_test_annos_with_labels.mat", [("00000.jpg", 1), ("00001.jpg", 2)])
    savemat(inner / "devkit" / "cars_meta.mat", {"class_names": np.array(["Acura TL", "Audi A5"], dtype=object)})


MAKERS: dict[str, Callable[[Path], None]] = {
    "caltech256": caltech256, "mit67": mit67, "pets": pets, "dogs": dogs, "cub200": cub200, "aircraft": aircraft,
    "cars": cars,
}  # fmt: skip
CLASSES = {
    "caltech256": ["001.ak47", "002.american-flag"], "mit67": ["bakery", "bar"],
    "pets": ["Abyssinian", "great_pyrenees"], "dogs": ["n1-Chihuahua", "n2-Beagle"],
    "cub200": ["001.Albatross", "002.Crow"], "aircraft": ["707-320", "Boeing 737-500"], "cars": ["Acura TL", "Audi A5"],
}  # fmt: skip


def opened(name: str, root: Path):
    return open_source(DataSpec(source="published", train=name, root=str(root)))


@pytest.mark.law("The paper's datasets are read with their published splits")
@pytest.mark.parametrize("name", MAKERS)
def test_the_published_split_is_read(name, tmp_path):
    MAKERS[name](tmp_path)
    train, test = opened(name, tmp_path)
    assert train.classes == test.classes == CLASSES[name]
    sizes = (120, 4) if name == "caltech256" else (4, 2)
    assert (len(train.items), len(test.items)) == sizes
    assert not {i.id for i in train.items} & {i.id for i in test.items}
    for source in (train, test):
        counts = np.bincount([item.label for item in source.items])
        assert len(counts) == 2
        assert counts[0] == counts[1]
        assert source.read(0).size == (6, 5)
    for item in (*train.items, *test.items):  # the path tells the class, where it names one
        others = [c for k, c in enumerate(CLASSES[name]) if k != item.label]
        assert not any(c in item.id for c in others)


def test_the_paper_has_seven():
    assert set(MAKERS) == set(DATASETS)
    assert {n: d.classes for n, d in DATASETS.items()}["dogs"] == 120


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DataError, match=r"unpack the archive"):
        opened("pets", tmp_path)
    with pytest.raises(DataError, match=r"unknown published dataset(.|\n)*cub200"):
        opened("imagenet", tmp_path)
    with pytest.raises(RecipeError, match=r"needs data\.root"):
        DataSpec(source="published", train="pets")
    mit67(tmp_path)
    (tmp_path / "Images" / "bar" / "bar_0.jpg").unlink()
    with pytest.raises(DataError, match=r"bar_0\.jpg is missing"):
        opened("mit67", tmp_path)


def test_an_extraction_is_estimated_before_it_starts(tmp_path):
    import taftcache
    from taftcache.recipe import parse_recipe

    mit67(tmp_path / "mit67")
    recipe = parse_recipe(
        {
            "data": {"source": "published", "train": "mit67", "root": str(tmp_path / "mit67")},
            "store": {"path": str(tmp_path / "store"), "shards": 2},
            "device": "cpu",
        }
    )
    said = taftcache.estimate(recipe)
    assert sum(said.rows.values()) == 6
    assert said.classes == 2
    assert said.seconds > 0
    made = taftcache.extract(recipe)
    assert made.shards == said.rows
    from safetensors.torch import load

    from taftcache.cache.store import FeatureStore
    from taftcache.tangent.spec import TAIL

    with FeatureStore(recipe.store_path) as store:
        t, d = store.shards[0].tokens_shape
        whole = sum(-(-shard.rows // shard.chunk_rows) * shard.chunk_rows for shard in [*store.shards, store.held_out])
        weights = sum(tensor.nbytes for tensor in load(store.read_object(TAIL)).values())
    files = [f for f in recipe.store_path.rglob("*") if f.is_file()]
    rounding = os.statvfs(tmp_path).f_frsize * len(files)  # each takes whole blocks
    assert whole * t * d * 2 + weights <= said.bytes <= whole * t * d * 2 + weights + rounding
    chunks = sum(f.stat().st_size for f in recipe.store_path.rglob("tokens/c*"))
    assert chunks + weights == pytest.approx(whole * t * d * 2 + weights, rel=1e-3)


def test_the_recipes_of_the_paper_name_them():
    from taftcache.paper.comparison import TITLES
    from taftcache.recipe import load_recipe

    found = {file.stem: load_recipe(file) for file in (Path(__file__).parents[2] / "pipelines" / "published").iterdir()}
    assert set(found) == set(DATASETS)
    for name, recipe in found.items():
        assert recipe.data.train == name
        reports = {*recipe.compare.reports}
        assert reports | {"table3"} == {*TITLES}
        assert ("table3" in reports) == (name in ("cub200", "cars")), "whose images the paper's is of"


@pytest.mark.parametrize(
    ("name", "file", "lines"),
    [
        ("pets", "oxford-iiit-pet/annotations/test.txt", ["Abyssinian_3"]),
        ("pets", "oxford-iiit-pet/annotations/test.txt", ["Abyssinian_3 one 1 1"]),
        ("cub200", "CUB_200_2011/images.txt", ["1"]),
        ("cub200", "CUB_200_2011/image_class_labels.txt", ["1 1"]),
        ("aircraft", "fgvc-aircraft-2013b/data/images_variant_test.txt", ["0000004"]),
        ("cars", "stanford_cars/devkit/cars_train_annos.mat", {"annotations": np.array([[1, 2]])}),
    ],
)
def test_a_list_that_is_not_as_published_is_refused(name, file, lines, tmp_path):
    MAKERS[name](tmp_path)
    savemat(tmp_path / file, lines) if isinstance(lines, dict) else text(tmp_path / file, *lines)
    with pytest.raises(DataError, match=r"a published list of .* cannot be read"):
        opened(name, tmp_path)


def lists(elements: int, inside: bool) -> bytes:
    """A MATLAB file with so many zeros as its file_list, or in a cell of it."""
    out = io.BytesIO()
    zeros, cell = np.zeros(elements, np.uint8), np.empty(1, dtype=object)
    cell[0] = zeros
    savemat(out, {"file_list": cell if inside else zeros}, do_compression=True)
    return out.getvalue()


@pytest.mark.law("What would exhaust a reader is refused first: a MATLAB file is bounded by its size")
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "MatReadError"),
        (lists(9, False)[:-9], "could not read bytes"),
        (lists(9, False)[:140] + b"damaged" + lists(9, False)[147:], "error: Error -3"),
        (lists(1_000_000, False), "1000000 elements, but only"),
        (lists(65 << 20, True), "unpack to more than"),
    ],
    ids=["empty", "cut short", "damaged", "many elements", "much inside"],
)
def test_a_matlab_file_that_cannot_be_a_list_is_refused(content, named, tmp_path, monkeypatch):
    dogs(tmp_path)
    (tmp_path / "test_list.mat").write_bytes(content)
    if len(content) > 500:  # too large once unpacked
        read = scipy.io.loadmat
        monkeypatch.setattr(scipy.io, "loadmat", lambda f, **k: read(f, **k) if "train" in f else pytest.fail("read"))
    with pytest.raises(DataError, match=f"cannot read the variable file_list of .*test_list(.|\n)*{named}"):
        opened("dogs", tmp_path)
