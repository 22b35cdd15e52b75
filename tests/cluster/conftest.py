"""One cluster for all tests here that do not break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from taftcache import stages
from taftcache.cluster import Cluster
from tests.cluster.making import many
from tests.stages.conftest import finished, images, photographed, quick, store  # noqa: F401


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Starts with one worker; tests that need more let it grow."""
    with Cluster.local(1, threads=1, timeout=30) as one:
        yield one


@pytest.fixture(scope="session")
def extracted(tmp_path_factory) -> Path:
    """The store of ``many`` after extraction by this process. Not to be written to."""
    path = tmp_path_factory.mktemp("extracted") / "store"
    stages.extract(many(path))
    return path
