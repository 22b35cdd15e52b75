"""Six images, a source of training data alone, and files of deep grey."""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image

from taftcache.backbone.sources.base import Source
from taftcache.backbone.sources.opening import open_source
from taftcache.backbone.spec import DataSpec

PIXELS = np.random.default_rng(2).integers(0, 256, (6, 9, 11, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def only(**options) -> Source:
    train, test = open_source(DataSpec(**options))
    assert test is None
    return train


def deep_grey(grey: np.ndarray) -> dict[str, bytes]:
    """Files of uint16 pixels: TIFF with 12 bits a pixel has those at the beginning of their bytes."""
    out, (height, width) = io.BytesIO(), grey.shape
    Image.fromarray(grey).save(out, "TIFF")
    tiff, big = out.getvalue(), grey.astype(">u2").tobytes()
    return {
        "16-bit TIFF": tiff,
        "16-bit TIFF, 0 is white": tiff.replace(struct.pack("<HHII", 262, 3, 1, 1), struct.pack("<HHII", 262, 3, 1, 0)),
        "12-bit TIFF": tiff.replace(struct.pack("<HHII", 258, 3, 1, 16), struct.pack("<HHII", 258, 3, 1, 12)),
        "16-bit PGM": b"P5 %d %d 65535\n" % (width, height) + big,
        "12-bit PGM": b"P5 %d %d 4095\n" % (width, height) + (grey >> 4).astype(">u2").tobytes(),
    }
