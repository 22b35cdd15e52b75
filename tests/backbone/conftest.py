"""Small things that several tests share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.threads import one_thread  # noqa: F401


@pytest.fixture
def data() -> Path:
    """The folder that TAFTCACHE_DATA names."""
    folder = os.environ.get("TAFTCACHE_DATA")
    if not folder:
        pytest.skip("needs TAFTCACHE_DATA, the folder with the benchmark data")
    return Path(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes, thirteen images of odd sizes and formats."""
    generator = np.random.default_rng(0)
    root = tmp_path / "images"
    for label, (name, n) in enumerate((("ant", 4), ("bee", 5), ("cat", 4))):
        (root / name).mkdir(parents=True)
        for k in range(n):
            size = (20 + 7 * k, 31 + label, 3)
            suffix = (".png", ".jpg", ".bmp", ".JPEG", ".webp")[k % 5]
            Image.fromarray(generator.integers(0, 256, size, dtype=np.uint8)).save(root / name / f"{k}{suffix}")
    return root
