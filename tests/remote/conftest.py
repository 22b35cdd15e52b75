"""One cluster for all tests here that do not break it."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import taftcache
from taftcache.remote.cluster import Cluster
from tests.quick import one_thread, quick  # noqa: F401
from tests.remote.making import asking, forking, many, turn
from tests.stages.making import open_store


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Starts with one worker; tests that need more let it grow. Its processes are forked, which takes no seconds, and
    end with the folder's tests, for they are never quite idle."""
    with forking(), Cluster.local(1, threads=1, timeout=60) as one:
        yield one


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Dask's clients and clusters lie in circles: what they do when they are collected, no other file's tests see."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def extracted(tmp_path_factory) -> Path:
    """The store of ``many`` after extraction by this process. Not to be written to."""
    path = tmp_path_factory.mktemp("extracted") / "store"
    taftcache.extract(many(path))
    return path


@pytest.fixture(scope="session")
def exact(finished, tmp_path_factory):
    """Copies of ``finished`` after the exact composition in this process, one for each way of solving; on demand."""
    made = {}

    def ask(way: str, patch: pytest.MonkeyPatch):
        turn(way, patch)
        if way not in made:
            made[way] = shutil.copytree(finished, tmp_path_factory.mktemp("exact") / "store")
            with open_store(made[way]) as opened:
                taftcache.compose(opened, asking(opened, way))
        return made[way]

    return ask
