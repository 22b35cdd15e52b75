"""Scikit-learn's digits as small pictures."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits


def pictures(count: int = 40) -> tuple[list[np.ndarray], np.ndarray]:
    """uint8 arrays [8,8,3], and their labels [count]."""
    images, labels = load_digits(return_X_y=True)
    pixels = (images[:count].reshape(-1, 8, 8) * 15).astype(np.uint8)
    return [np.repeat(image[:, :, None], 3, 2) for image in pixels], labels[:count]
