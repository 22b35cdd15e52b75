"""One small store for all pages, made once.

No ``conftest.py``: pytest loads those of ``tests/test*`` in the process that hands tests to workers too, and these
imports take it four seconds in which no worker has begun.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from taftcache import extract, load_recipe, run
from taftcache.backbone.sources.digits import DigitsSource
from tests.quick import spared
from tests.stages.hub import asked
from tests.stages.making import write_images
from tests.test_house.pages import ROOT
from tests.threads import in_one_thread

FEW = 120  # the first digits: the samples that pages name are among them, and every class is in every shard
SOURCE = "taftcache.backbone.sources.opening.DigitsSource"
# Of two recipes what is slow and what no page says: (file, text, what stands there instead).
SHORTER = (
    (
        "quickstart.toml",
        "[forget]",
        '[compare]\nridges = [0.1]\nrates = [1e-3]\nresets = [true]\ntokens = [false]\npresets = ["exact"]\n\n[forget]',
    ),
    ("teach/quick.toml", "epochs = 60", "epochs = 2"),
)


class FewDigits(DigitsSource):
    """The first ``FEW`` digits, under their own ids: what a page shows does not depend on how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.items = self.items[:FEW]


@pytest.fixture(scope="module", autouse=True)
def quick_pages() -> Iterator[None]:
    with spared(), in_one_thread():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder like the repository's root: the recipes, their stores, an image, and images of one's own."""
    from PIL import Image

    place = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "pipelines", place / "pipelines")
    for name, text, instead in SHORTER:
        file = place / "pipelines" / name
        assert text in file.read_text(encoding="utf-8")
        file.write_text(file.read_text(encoding="utf-8").replace(text, instead), encoding="utf-8")
    store = place / "stores/quickstart"
    teacher = load_recipe(place / "pipelines/teachers/digits-bundled.toml", ["device=cpu"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SOURCE, FewDigits)
        run(load_recipe(place / "pipelines/quickstart.toml", [f"store.path={store}", "device=cpu"]))
        extract(replace(teacher, store=replace(teacher.store, path=str(place / teacher.store_path))))
    Image.new("RGB", (8, 8), "white").save(place / "digit.png")
    (place / "exports").mkdir()
    images = write_images(place / "pictures").glob("*/*.png")
    lines = [f"pictures/{image.parent.name}/{image.name},{image.parent.name}" for image in sorted(images)]
    (place / "labels.csv").write_text("\n".join(["path,species", *lines]), encoding="utf-8")
    return place


@pytest.fixture
def workplace(made, tmp_path, monkeypatch) -> Iterator[Path]:
    """A copy to change, as the current folder; there recipes of the digits mean the first ``FEW``; and a model hub."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / "stores/golden", tmp_path / "stores/golden")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SOURCE, FewDigits)
    monkeypatch.setattr("taftcache.recipe_files.PLACES", (tmp_path / "pipelines",))
    with asked(tmp_path):
        yield tmp_path
