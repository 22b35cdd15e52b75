"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, for trying things out without a download."""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image

from taftcache.backbone.sources.base import Item, Source


@cache
def _loaded() -> tuple[np.ndarray, list[int]]:
    """uint8 [n,8,8] and labels, read once in a process: scikit-learn parses a text file each time."""
    from sklearn.datasets import load_digits  # late: a second, which other sources need not wait for

    digits = load_digits()
    return np.round(digits.images * (255 / 16)).astype(np.uint8), digits.target.tolist()


class DigitsSource(Source):
    """Grey values 0 to 16 become RGB 0 to 255; ids are ``digits/0000`` to ``digits/1796``."""

    numbered = False  # nobody removes a row of them

    def __init__(self) -> None:
        self._pixels, labels = _loaded()
        self.classes = [str(k) for k in range(10)]
        self.items = [Item(f"digits/{k:04d}", label) for k, label in enumerate(labels)]

    def read(self, index: int) -> Image.Image:
        """RGB, 8 x 8."""
        return Image.fromarray(self._pixels[index]).convert("RGB")
