"""One small store for all pages, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from taftcache import extract, load_recipe, run
from tests.test_house.pages import ROOT


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A folder like the repository's root: the recipe, its store and an image."""
    from PIL import Image

    place = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "pipelines", place / "pipelines")
    store = place / "stores/quickstart"
    run(load_recipe(place / "pipelines/quickstart.toml", [f"store.path={store}", "device=cpu"]))
    teacher = load_recipe(place / "pipelines/teachers/digits-bundled.toml", ["device=cpu"])
    extract(replace(teacher, store=replace(teacher.store, path=str(place / teacher.store_path))))
    Image.new("RGB", (8, 8), "white").save(place / "digit.png")
    return place


@pytest.fixture
def workplace(made, tmp_path, monkeypatch) -> Path:
    """A copy to change, as the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    shutil.copytree(ROOT / "stores/golden", tmp_path / "stores/golden")
    monkeypatch.chdir(tmp_path)
    return tmp_path
