"""The picture of a sample, when the images that a store was made from can still be reached."""

from __future__ import annotations

import io
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from threading import BoundedSemaphore, Lock
from typing import Any, NamedTuple

from PIL import Image

from taftcache.backbone.sources.base import Source
from taftcache.backbone.spec import DataSpec
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, followed
from taftcache.errors import StoreError, TaftcacheError, UntrustedStore
from taftcache.names import counted, scaling_of, typed
from taftcache.stages.estimators import is_of_estimator
from taftcache.view.late import importing

# Longest side of a picture that is sent; larger ones are scaled down.
LONGEST = 384
# A picture asked for with sides up to THUMBNAIL may lose a little; an image with sides up to SMALL loses nothing.
THUMBNAIL, SMALL = 192, 64
QUALITY = 85
KEPT_BYTES = 32 << 20  # of pictures that were sent before
AT_ONCE = 2  # images that are decoded at the same time: a large one takes hundreds of megabytes
NUMBERED = "pictures go by number of row: if rows have moved since the store was made, a picture is another sample's"


class Encoded(NamedTuple):
    """A picture's media type and bytes."""

    kind: str
    body: bytes


class Pictures:
    """Pictures by sample id, cropped as the backbone's preprocessing does; opened on first use. The last ones are kept.

    ``refused`` says why the images are not even looked for, "" if they are. Only what this user allowed is opened, or
    what ``consent`` names (see ``taftcache.consent``). Where ids are numbers of rows, ``note`` says so; there are no
    pictures once a class shows that rows may have moved.

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
                f" --images shows those of a folder or file of yours, taftcache trust {typed(store.path)} what it names"
            )
        if scaling_of(store.identity) is not None:
            self._spec, self.refused = None, "no pictures: the store was made of vectors"
        elif is_of_estimator(store):
            self._spec = None
            self.refused = "no pictures: the images were given to an estimator, and the store does not know their place"
        self._store, self._note = store, ""
        self._preprocess: dict[str, Any] = store.identity.get("preprocess", {})
        self._places: dict[str, tuple[Source, int]] | None = None
        self._why = self.refused
        self._alone = Lock()
        self._decoding = BoundedSemaphore(AT_ONCE)
        self._recent = _Recent(KEPT_BYTES)

    @property
    def why_not(self) -> str:
        """Why there are no pictures; "" when there are."""
        self._open()
        return self._why

    @property
    def note(self) -> str:
        """What to bear in mind when looking at them; "" for nothing."""
        self._open()
        return self._note

    @property
    def notes(self) -> list[str]:
        """`why_not` and `note`, as far as there is one."""
        return [said for said in (self.why_not, self.note) if said]

    def encoded(self, sample: str, longest: int = LONGEST) -> Encoded | None:
        """The picture as the model sees it, its sides at most ``longest`` pixels; None if it cannot be had."""
        if (kept := self._recent.get((sample, longest))) is not None:
            return kept
        place = self._open().get(sample)
        if place is None:
            return None
        try:
            with self._decoding:
                image = seen(place[0].read(place[1]), self._preprocess)
                image.thumbnail((longest, longest))
        except (TaftcacheError, OSError):
            return None
        found = _encoded(image, longest)
        self._recent.put((sample, longest), found)
        return found

    def _open(self) -> dict[str, tuple[Source, int]]:
        with self._alone:
            if self._places is None:
                self._places = {}
                if self._spec is None:
                    return self._places
                if self._spec.source == "timm":
                    self._why = "a timm dataset may be fetched from elsewhere, so it is opened by extraction alone"
                    return self._places
                with importing:
                    from taftcache.backbone.sources.opening import open_source

                try:
                    sources = [source for source in open_source(self._spec, self._store.knows) if source is not None]
                    self._why, self._note = self._doubts([source for source in sources if source.numbered])
                    for source in sources if not self._why else ():
                        self._places |= {item.id: (source, k) for k, item in enumerate(source.items)}
                except (TaftcacheError, OSError, ImportError) as error:
                    self._why = f"the images cannot be reached: {error}".splitlines()[0]
            return self._places

    @cached_property
    def _rows(self) -> dict[str, str]:
        """The class of each row in shards that can be read."""
        found, classes = dict[str, str](), self._store.classes
        for shard in self._store.every_shard:
            with suppress(StoreError):
                found |= {i: classes[k] for i, k in zip(shard.sample_ids, shard.labels, strict=True)}
        return found

    def _doubts(self, numbered: list[Source]) -> tuple[str, str]:
        """Why images with numbers of rows for ids cannot be shown, or what to bear in mind; each "" if there is none.

        Only classes are compared: to make rows again, as extraction does, takes the backbone.
        """
        given = {item.id: source.classes[item.label] for source in numbered for item in source.items}
        if others := [i for i, name in self._rows.items() if given.get(i, name) != name]:
            return (
                "no pictures: ids are numbers of rows, and the data has another class now for"
                f" {counted(len(others), 'row')} (first: {min(others)}): rows have moved or labels were corrected;"
                " taftcache extract says which"
            ), ""
        return "", NUMBERED if numbered else ""


class _Recent:
    """The pictures that were asked for last, up to a number of bytes; for several threads."""

    def __init__(self, most: int) -> None:
        self._left, self._alone = most, Lock()
        self._kept: OrderedDict[tuple[str, int], Encoded] = OrderedDict()

    def get(self, key: tuple[str, int]) -> Encoded | None:
        with self._alone:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[str, int], found: Encoded) -> None:
        with self._alone:
            if key not in self._kept:
                self._kept[key] = found
                self._left -= len(found.body)
            while self._left < 0:
                self._left += len(self._kept.popitem(last=False)[1].body)


def _encoded(image: Image.Image, longest: int) -> Encoded:
    """A thumbnail as JPEG, a fifth of the bytes; what is as small as a digit, or shown large, as PNG."""
    out = io.BytesIO()
    if max(image.size) > SMALL and longest <= THUMBNAIL:
        image.save(out, "JPEG", quality=QUALITY)
        return Encoded("image/jpeg", out.getvalue())
    image.save(out, "PNG")
    return Encoded("image/png", out.getvalue())


def seen(image: Image.Image, preprocess: dict[str, Any]) -> Image.Image:
    """The part of an image that the preprocessing keeps: the middle of it for timm's centre crop, else all."""
    if preprocess.get("crop_mode") != "center":
        return image
    _, high, wide = preprocess["input_size"]
    width, height = image.size
    scale = min(width / wide, height / high) * preprocess["crop_pct"]
    w, h = min(width, wide * scale), min(height, high * scale)
    left, top = round((width - w) / 2), round((height - h) / 2)
    return image.crop((left, top, left + max(1, round(w)), top + max(1, round(h))))


def patch_grid(tokens: int, preprocess: dict[str, Any]) -> tuple[int, int] | None:
    """(rows, columns) of the patches among ``tokens`` tokens, prefix tokens first; None where they fill no grid."""
    _, high, wide = preprocess.get("input_size", (3, 1, 1))
    for prefix in range(1, 9):  # a class token, registers
        for rows in range(1, tokens - prefix + 1):
            if (tokens - prefix) % rows == 0 and rows * wide == ((tokens - prefix) // rows) * high:
                return rows, (tokens - prefix) // rows
    return None
