"""Images that a program has in hand (paths, PIL images, arrays), cached in a store of one shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from warnings import warn

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from PIL import Image

from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.reduction import Reduction
from taftcache.backbone.sources.base import Item, Source, unreadable
from taftcache.backbone.sources.pictures import LEAVE_OUT, decoded, listed
from taftcache.backbone.sources.rgb import Picture
from taftcache.backbone.spec import BackboneSpec
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.consent import remember
from taftcache.errors import DataError, StoreError
from taftcache.names import BASE, resized_notes
from taftcache.recipe import Recipe, parse_recipe
from taftcache.stages.estimators import MADE_FROM, NO_CLASSES
from taftcache.stages.extract.classes import NewClasses, growth_of
from taftcache.stages.extract.extraction import ImageRows, create_store, put_tail
from taftcache.stages.extract.filling import fill
from taftcache.stages.extract.forgotten import StayOut
from taftcache.stages.extract.frozen import load_frozen, made_from
from taftcache.stages.extract.growth.carrying_out import carry_out
from taftcache.stages.extract.growth.planning import plan_append
from taftcache.stages.extract.plan import plan_shards
from taftcache.stages.progress import Silent
from taftcache.tangent.spec import TangentSpec

SHARD = "000"


class ImageList(Source):
    """A source of pictures with labels, which are indexes into ``classes``; a regressor has neither.

    The id of a file is its path with a digest of its bytes, so that a file with other bytes is another picture; that of
    any other picture is a digest of its pixels. A picture that comes again gets a number after its id.

    Raises:
        UnreadableImage: a file that does not exist, or an array that is no image.
    """

    numbered = False

    def __init__(
        self, pictures: Sequence[Picture], labels: Sequence[int] | None = None, classes: Sequence[str] = NO_CLASSES
    ) -> None:
        self._pictures, self.classes = pictures_of(pictures), list(classes)
        labels = [0] * len(self._pictures) if labels is None else labels
        seen: dict[str, int] = {}
        self.items: list[Item] = []
        for index, label in zip(range(len(self._pictures)), labels, strict=True):
            name = self._id(index)
            seen[name] = seen.get(name, 0) + 1
            self.items.append(Item(name if seen[name] == 1 else f"{name}#{seen[name]}", int(label)))

    def read(self, index: int) -> Image.Image:
        """The picture in RGB; UnreadableImage where it does not decode."""
        return decoded(self._pictures[index], index)

    def _id(self, index: int) -> str:
        picture = self._pictures[index]
        if isinstance(picture, str | Path):
            try:
                content = Path(picture).read_bytes()
            except OSError as error:
                raise unreadable(str(picture), error, LEAVE_OUT) from error
            return f"{Path(picture).absolute()}@{blake3(content).hexdigest()[:16]}"
        pixels = np.asarray(self.read(index))
        return blake3(str(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:32]


def pictures_of(given: Iterable[Picture]) -> list[Picture]:
    """Pictures as a list; DataError if there are none, or if it is a single name and not a list."""
    if not (found := listed(given)):
        raise DataError("there are no images", do="give at least one")
    return found


class CachedImages(NamedTuple):
    """The shard that holds some pictures, the row [n] of each in it, and the frozen layers that made them."""

    shard: Shard
    places: NDArray[np.int64]
    frozen: Reduction


def cached_images(
    path: Path, source: ImageList, backbone: BackboneSpec, tangent: TangentSpec, device: str, *, lasting: bool
) -> CachedImages:
    """The rows of the pictures in the store at ``path``, which is made if there is none.

    Rows that exist are not made again: a killed extraction goes on, further pictures are added to those that the store
    holds, and a store that holds them all is only read. From now on, a ``lasting`` store may open the weights that it
    names.

    Raises:
        IdentityError: the store was made by another model. StoreError: it has a picture under another label, or has
            forgotten one. StoreLocked: another process writes to it. DataError: it has models, and lacks a class.
            UnreadableImage: a picture that does not decode.
    """
    recipe = _recipe(path, backbone, tangent, device)
    there = FeatureStore(path) if FeatureStore.exists(path) else None
    model = load_frozen(recipe, source.classes if there is None else there.classes)
    identity = made_from(recipe, *model) | {"imported": MADE_FROM}
    for note in resized_notes(identity):
        warn(note, stacklevel=6)  # at the call of ``fit``
    if lasting:
        remember(path, recipe)
    if there is None or not _rows_in(there, source).keys() >= {item.id for item in source.items}:
        try:
            to = create_store(recipe, identity, source.classes, 1) if there is None else FeatureStore(path, mode="a")
        except StoreError:
            if there is not None or not FeatureStore.exists(path):
                raise
            # another process has made one while the model was loaded: begin again, with that
            return cached_images(path, source, backbone, tangent, device, lasting=lasting)
        with to:
            to.check_identity(identity)
            _add(to, recipe, model, source)
        there = FeatureStore(path)
    there.check_identity(identity)
    rows = _rows_in(there, source)
    return CachedImages(there.shard(SHARD), np.array([rows[item.id] for item in source.items]), model[0])


def _rows_in(store: FeatureStore, source: ImageList) -> dict[str, int]:
    """Id → row for all that the store holds; StoreError if one of the pictures has another label there."""
    if not store.has_shard(SHARD):
        return {}
    shard = store.shard(SHARD)
    rows = {i: k for k, i in enumerate(shard.sample_ids)}
    for item in source.items:
        if item.id in rows and (label := store.classes[shard.labels[rows[item.id]]]) != source.classes[item.label]:
            raise StoreError(
                f"{store.path} holds the image {item.id} under another label",
                got=f"{source.classes[item.label]!r}, there {label!r}",
                do="name another store, or leave it out",
            )
    return rows


def _add(store: FeatureStore, recipe: Recipe, model: tuple[Reduction, Preprocess], source: ImageList) -> None:
    """Add the pictures that the store does not hold yet."""
    ids = [item.id for item in source.items]
    if gone := [i for i in ids if store.is_forgotten(i)]:
        raise StoreError(
            f"{store.path} has forgotten some of the images",
            got=f"{len(gone)} of them, the first: {gone[0]}",
            do="leave them out, or name another store",
        )
    put_tail(store, model[0])
    images = ImageRows(recipe=recipe, model=model, source=source, test=None)
    if store.has_shard(SHARD):
        untrained = all(name.startswith(BASE) for name in store.objects())  # else models would be dropped
        take: NewClasses = "take" if untrained else "refuse"
        growth = growth_of(store, source, new_shard=False, relabel=False, new_classes=take)
        plan = plan_append(store, recipe, (ids, None), StayOut(set(), {}, {}, {}), growth)
        carry_out(store, recipe, plan, lambda: images, Silent())
    else:
        fill(store, recipe, plan_shards(recipe, ids)[SHARD], images, Silent())


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
