"""Some of the images of another source."""

from __future__ import annotations

import blake3
from PIL import Image

from taftcache.backbone.sources.base import Source


class Subset:
    """At most ``limit`` images of ``source``, in its order.

    They are those whose ids have the smallest digests. The first ones of a folder would all be of one
    class; and with digests, other images do not change which of two ranks first.
    """

    def __init__(self, source: Source, limit: int) -> None:
        ranked = sorted(range(len(source.items)), key=lambda k: blake3.blake3(source.items[k].id.encode()).digest())
        self.whole, self._kept = source, sorted(ranked[:limit])
        self.classes, self.numbered = source.classes, source.numbered
        self.items = [source.items[k] for k in self._kept]

    def read(self, index: int) -> Image.Image:
        return self.whole.read(self._kept[index])
