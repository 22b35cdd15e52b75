"""Stores that several tests share; a test that writes takes a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import taftcache
from tests.quick import one_thread, quick  # noqa: F401
from tests.stages.making import open_store, recipe, settings


@pytest.fixture(scope="session")
def solved(tmp_path_factory, finished) -> Path:
    """``finished`` with an exact model. Not to be written to."""
    path = shutil.copytree(finished, tmp_path_factory.mktemp("solved") / "store")
    taftcache.run(recipe(path, compose={"mode": "exact"}))
    return path


@pytest.fixture
def exact(solved, tmp_path) -> Path:
    """A copy of ``solved``."""
    return shutil.copytree(solved, tmp_path / "store")


@pytest.fixture(scope="session")
def trained(tmp_path_factory, finished) -> Path:
    """Two private shards and their mean, the budget spent. Not to be written to."""
    path = shutil.copytree(finished, tmp_path_factory.mktemp("private") / "store")
    with open_store(path) as store:
        taftcache.train_private(store, settings(store))
        taftcache.compose(store)
    return path


@pytest.fixture
def private(trained, tmp_path) -> Path:
    """A copy of ``trained``."""
    return shutil.copytree(trained, tmp_path / "private")
