"""Images that a program has in hand (paths, PIL images, arrays), cached in a store of one shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from PIL import Image

from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Item, description
from taftcache.backbone.sources.pictures import decoded, listed
from taftcache.backbone.sources.rgb import Picture
from taftcache.backbone.spec import BackboneSpec
from taftcache.cache.store import FeatureStore
from taftcache.consent import remember
from taftcache.errors import DataError, StoreError
from taftcache.recipe import Recipe, parse_recipe
from taftcache.stages.extract.extraction import ImageRows, create_store, load_frozen, made_from, put_tail
from taftcache.stages.extract.filling import fill
from taftcache.stages.extract.plan import plan_shards
from taftcache.stages.progress import Silent
from taftcache.tangent.spec import TangentSpec

SHARD = "000"


class ImageList:
    """A source of pictures with labels, indexes to ``classes``; ids are the paths, or digests of the pixels.

    A picture that comes again gets a number behind its id.
    """

    def __init__(self, pictures: Sequence[Picture], labels: Sequence[int], classes: Sequence[str]) -> None:
        self._pictures, self.classes = pictures_of(pictures), list(classes)
        seen: dict[str, int] = {}
        self.items: list[Item] = []
        for index, label in zip(range(len(self._pictures)), labels, strict=True):
            name = self._id(index)
            seen[name] = seen.get(name, 0) + 1
            self.items.append(Item(name if seen[name] == 1 else f"{name}#{seen[name]}", int(label)))

    def read(self, index: int) -> Image.Image:
        """The picture in RGB; UnreadableImage where it does not decode."""
        return decoded(self._pictures, index)

    def describe(self) -> dict[str, Any]:
        """See ``Source``."""
        return description("list", self)

    def _id(self, index: int) -> str:
        picture = self._pictures[index]
        if isinstance(picture, str | Path):
            return str(picture)
        pixels = np.asarray(self.read(index))
        return blake3(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:32]


def pictures_of(given: Iterable[Picture]) -> list[Picture]:
    """Pictures as a list; DataError where there are none, or one name in place of a list."""
    if not (found := listed(given)):
        raise DataError("there are no images", do="give one at least")
    return found


def cached_images(
    path: Path, source: ImageList, backbone: BackboneSpec, tangent: TangentSpec, device: str, *, lasting: bool
) -> tuple[FeatureStore, Reduction]:
    """The store at ``path`` with the rows of the pictures, open, and the frozen layers that made them.

    What is there already is not run again: an extraction that was killed goes on, a whole one is read. A ``lasting``
    store may open the weights that it names from now on.

    Raises:
        IdentityError: the store was made by another model. StoreError: it holds other pictures, or other labels.
        UnreadableImage: a picture that does not decode.
    """
    recipe = _recipe(path, backbone, tangent, device)
    model = load_frozen(recipe, source.classes)
    identity = made_from(recipe, *model) | {"imported": {"file": "a list of images"}}
    if lasting:
        remember(path, recipe)
    if FeatureStore.exists(path):
        store = FeatureStore(path, mode="a")
    else:
        store = create_store(recipe, identity, source.classes, 1)
    try:
        store.check_identity(identity)
        put_tail(store, model[0])
        if store.has_shard(SHARD):
            _check_same(store, source)
        else:
            shard = plan_shards(recipe, [item.id for item in source.items])[SHARD]
            fill(store, recipe, shard, ImageRows(recipe=recipe, model=model, source=source, test=None), Silent())
    except BaseException:
        store.close()
        raise
    return store, model[0]


def _recipe(path: Path, backbone: BackboneSpec, tangent: TangentSpec, device: str) -> Recipe:
    return parse_recipe(
        {
            "name": path.name,
            "device": device,
            "data": {"source": "digits", "held_out": 0.0},  # a recipe cannot name a list; the identity says what it was
            "backbone": msgspec.to_builtins(backbone),
            "tangent": msgspec.to_builtins(tangent),
            "store": {"path": str(path), "shards": 1},
        }
    )


def _check_same(store: FeatureStore, source: ImageList) -> None:
    shard = store.shard(SHARD)
    there = {i: store.classes[k] for i, k in zip(shard.sample_ids, shard.labels.tolist(), strict=True)}
    if there != {item.id: source.classes[item.label] for item in source.items}:
        raise StoreError(
            f"{store.path} holds other images or labels",
            got=f"{len(there)} there, {len(source.items)} given",
            do="name another store, or leave it out",
        )
