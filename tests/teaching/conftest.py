"""Stores of digits' features that several tests share; a test that writes takes a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.teaching.making import extract_features
from tests.threads import one_thread  # noqa: F401


@pytest.fixture(scope="package")
def teachers(tmp_path_factory) -> dict[str, Path]:
    """Two stores of the same 120 digits that differ in shards, order and model. Not to be written to."""
    place = tmp_path_factory.mktemp("teachers")
    wide = extract_features(place / "wide", shards=1)
    other = extract_features(
        place / "other", shards=3, plan="balanced", model_args={"embed_dim": 24, "depth": 1}, limit=120
    )
    return {"wide": wide, "other": other}
