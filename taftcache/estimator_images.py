"""Images as an estimator's rows: all of it that needs timm, so that features need not wait for that import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.rgb import Picture
from taftcache.backbone.spec import BackboneSpec
from taftcache.stages.extract.growth.listing import pictures_of
from taftcache.tangent.device import full_float32

IMAGES_AT_ONCE = 32


def make_cut(spec: BackboneSpec, blocks: int | str, device: str) -> Cut:
    """The backbone, loaded and cut."""
    return Cut(load_backbone(spec, device=device), blocks)


def extracted(cut: Cut, X: Iterable[Picture]) -> Iterator[np.ndarray]:
    """Rows [b,t,d] of some images at a time."""
    images, transform = pictures_of(X), Preprocess(cut.backbone)
    for k in range(0, len(images), IMAGES_AT_ONCE):
        pixels = [transform(image, index) for index, image in enumerate(images[k : k + IMAGES_AT_ONCE], k)]
        with full_float32(cut.device):  # as when ``fit`` cached its images
            rows = cut.prefix(torch.stack(pixels).to(cut.device)).cpu().numpy()
        yield rows
