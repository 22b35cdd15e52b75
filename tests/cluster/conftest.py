"""One cluster for all tests here that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taftcache.cluster import Cluster
from tests.stages.conftest import finished, images, photographed, quick, store  # noqa: F401


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Starts with one worker; tests that need more let it grow."""
    with Cluster.local(1, threads=1, timeout=30) as one:
        yield one
