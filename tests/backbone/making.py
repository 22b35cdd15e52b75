"""Six images, and a source of training data alone."""

from __future__ import annotations

import numpy as np

from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import DataSpec

PIXELS = np.random.default_rng(2).integers(0, 256, (6, 9, 11, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def only(**options) -> Source:
    train, test = open_source(DataSpec(**options))
    assert test is None
    return train
