"""Stores that several tests share; a test that writes takes a copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import taftcache
from taftcache.privacy import accountant
from tests.stages.making import open_store, recipe, settings
from tests.threads import one_thread  # noqa: F401


@pytest.fixture(scope="package", autouse=True)
def coarse() -> Iterator[None]:
    """Privacy is accounted for in steps ten times as coarse, in a tenth of the time: ε is a little larger, and as sure.
    ``tests/privacy`` has the steps that users have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountant, "INTERVAL", 10 * accountant.INTERVAL)
        patch.setattr(accountant.distribution_epsilon, "__defaults__", (accountant.INTERVAL,))
        yield


@pytest.fixture(scope="session")
def solved(tmp_path_factory, finished) -> Path:
    """``finished`` with an exact model. Not to be written to."""
    path = shutil.copytree(finished, tmp_path_factory.mktemp("solved") / "store")
    taftcache.run(recipe(path, compose={"mode": "exact"}))
    return path


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
