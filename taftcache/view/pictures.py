"""The picture of a sample, when the images that a store was made from can still be reached."""

from __future__ import annotations

import io
from threading import Lock
from typing import Any

from PIL import Image

from taftcache.backbone.sources.base import Source
from taftcache.backbone.spec import DataSpec
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, followed
from taftcache.errors import TaftcacheError, UntrustedStore
from taftcache.names import scaling_of

# Longest side of a picture that is sent; larger ones are scaled down.
LONGEST = 384


class Pictures:
    """PNG bytes by sample id, cut as the backbone's preprocessing cuts; opened on first use.

    ``refused`` says why the images are not even looked for; "" where they are. Only what this user allowed is opened,
    or what ``consent`` names (see ``taftcache.consent``).

    Raises:
        RecipeError: ``consent`` names other images than the store has.
    """

    def __init__(self, store: FeatureStore, consent: Consent | None = None) -> None:
        self._spec: DataSpec | None = None
        self.refused = ""
        try:
            self._spec = followed(store, "images", consent).data
        except UntrustedStore as error:
            self.refused = (
                f"no pictures: {error.fault} ({error.got});"
                f" --images shows those of a folder or file of yours, taftcache trust {store.path} what it names"
            )
        if scaling_of(store.identity) is not None:
            self._spec, self.refused = None, "no pictures: the store was made of vectors"
        self._preprocess: dict[str, Any] = store.identity.get("preprocess", {})
        self._places: dict[str, tuple[Source, int]] | None = None
        self._why = self.refused
        self._alone = Lock()

    @property
    def why_not(self) -> str:
        """Why there are no pictures; "" when there are."""
        self._open()
        return self._why

    def png(self, sample: str, longest: int = LONGEST) -> bytes | None:
        """The picture as the model sees it, in RGB; None where it cannot be had."""
        place = self._open().get(sample)
        if place is None:
            return None
        try:
            image = seen(place[0].read(place[1]), self._preprocess)
        except (TaftcacheError, OSError):
            return None
        image.thumbnail((longest, longest))
        out = io.BytesIO()
        image.save(out, "PNG")
        return out.getvalue()

    def _open(self) -> dict[str, tuple[Source, int]]:
        with self._alone:
            if self._places is None:
                self._places = {}
                if self._spec is None:
                    return self._places
                if self._spec.source == "timm":
                    self._why = "a timm dataset may be fetched from elsewhere, so it is opened by extraction alone"
                    return self._places
                from taftcache.backbone.sources.opening import open_source

                try:
                    for source in open_source(self._spec):
                        if source is not None:
                            self._places |= {item.id: (source, k) for k, item in enumerate(source.items)}
                except (TaftcacheError, OSError, ImportError) as error:
                    self._why = f"the images cannot be reached: {error}".splitlines()[0]
            return self._places


def seen(image: Image.Image, preprocess: dict[str, Any]) -> Image.Image:
    """The part of an image that the preprocessing keeps: the middle of it for timm's centre crop, else all."""
    if preprocess.get("crop_mode") != "center":
        return image
    _, high, wide = preprocess["input_size"]
    width, height = image.size
    scale = min(width / wide, height / high) * preprocess["crop_pct"]
    w, h = min(width, wide * scale), min(height, high * scale)
    left, top = (width - w) / 2, (height - h) / 2
    return image.crop((round(left), round(top), round(left + w), round(top + h)))


def patch_grid(tokens: int, preprocess: dict[str, Any]) -> tuple[int, int] | None:
    """(rows, columns) of the patches among ``tokens`` tokens, prefix tokens first; None where they fill no grid."""
    _, high, wide = preprocess.get("input_size", (3, 1, 1))
    for prefix in range(1, 9):  # a class token, registers
        for rows in range(1, tokens - prefix + 1):
            if (tokens - prefix) % rows == 0 and rows * wide == ((tokens - prefix) // rows) * high:
                return rows, (tokens - prefix) // rows
    return None
