"""Images that have moved since a store was made from them, all of them elsewhere or within a table; and weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.files import expand_path
from taftcache.backbone.sources.base import Source, any_numbered
from taftcache.backbone.sources.columns import splits_in
from taftcache.cache.format import encoding
from taftcache.cache.opening import Place
from taftcache.cache.read.shard import Shard
from taftcache.cache.store import FeatureStore
from taftcache.cache.write.tombstones import TombstoneFile
from taftcache.consent import KINDS, SECTION, names, recorded_recipe, refusal, remember
from taftcache.errors import IdentityError, UnreadableImage
from taftcache.names import counted, typed
from taftcache.recipe import Recipe, recipe_values
from taftcache.stages.completeness import is_complete
from taftcache.stages.extract.classes import classes_of, other_classes
from taftcache.stages.extract.forgotten import BY_NUMBER, in_nfc
from taftcache.stages.extract.identity import are_weights_elsewhere
from taftcache.stages.extract.reextraction import Reextraction
from taftcache.stages.progress import Progress

LIES_AT = ("train", "test", "root")  # of [data]: where the images lie
SPLITS = ("train_split", "test_split")  # of [data]: which part of that
AGAIN = 8  # rows that are made again, or one of each shard if there are more shards
ALIKE = 0.01  # a part of the row's norm: another processor's rounding is far below it, another image's row far above


def is_moved(store: FeatureStore, recipe: Recipe) -> bool:
    """Whether the recipe names another place for the images than the store's record does."""
    recorded = recorded_recipe(store).data
    return any(getattr(recorded, key) != getattr(recipe.data, key) for key in LIES_AT)


def follow(store: FeatureStore, recipe: Recipe, progress: Progress) -> str:
    """Check that the images are those of the store, and record where they lie now; returns a note on that.

    Every row must have an image of its class there, and a few rows of each shard are made again. If the images cannot
    be opened any more at the place that the store names, up to half of them may be gone.

    Raises:
        IdentityError: they are other images.
    """
    made = _remade(store, recipe, progress)
    made.check_identity()
    shards = store.every_shard
    every = [i for shard in shards for i in shard.sample_ids]
    labels = made.labels(every)
    gone = [i for i in every if i not in labels]
    if gone and (2 * len(gone) > len(every) or _may_be_where_recorded(store)):
        raise _gone(store, recipe, gone, len(every))
    each, again = -(-AGAIN // len(shards)), 0
    for shard in shards:
        there = [k for k, i in enumerate(shard.sample_ids) if i in labels]
        for i, label in ((shard.sample_ids[k], shard.labels[k]) for k in there):
            if (found := labels[i]) != label:
                was, now = store.classes[label], store.classes[found]
                corrected = "if labels were corrected, taftcache append --relabel with this recipe first"
                raise _others(store, recipe, f"{i!r} is of the class {now!r}, in the store of {was!r}", corrected)
        rows = (
            np.array(there)[np.unique(np.linspace(0, len(there) - 1, each).astype(int))] if there else np.array([], int)
        )
        if other := _different(made, shard, rows):
            raise _others(store, recipe, f"{other[0]!r} gives another row than the store's")
        again += len(rows)
    recorded, data = store.manifest.recipe, recipe_values(recipe)["data"]
    with store.transaction() as change:
        change.update(recipe=recorded | {"data": recorded["data"] | {key: data[key] for key in LIES_AT}})
    said = f"the images lie at {recipe.data.train} now: {counted(again, 'row')} made again from there are the store's"
    return said + (f", and {counted(len(gone), 'row')} of {len(every)} have no image there" if gone else "")


def follow_weights(store: FeatureStore, recipe: Recipe) -> list[str]:
    """Record where the recipe's weights lie, which were compared with the store's; a note on that if they moved."""
    if not are_weights_elsewhere(store, recipe):
        return []
    recorded, place = store.manifest.recipe, recipe.backbone.weights
    may = refusal(store, "weights", recipe) is None
    with store.transaction() as change:
        change.update(recipe=recorded | {"backbone": recorded["backbone"] | {"weights": place}})
    if may:
        remember(store.place, recipe, ["weights"])
    return [f"the weights lie at {place} now: they are the store's"]


def _others(store: FeatureStore, recipe: Recipe, got: str, otherwise: str = "put the old place back") -> IdentityError:
    return IdentityError(
        f"the images at {recipe.data.train} are not those that the store was made from",
        got=got,
        do=f"{otherwise}; or make another store of these images, without those that were forgotten here: "
        f"--set store.path=NEW --forgotten-of {typed(store.path)}",
    )


def _gone(store: FeatureStore, recipe: Recipe, gone: Sequence[str], rows: int) -> IdentityError:
    """The error for a place without the images of too many rows, or without some that may be where they were."""
    lack = "put the missing images there, or name the old place; images that were removed on purpose are no error there"
    if 2 * len(gone) > rows:
        lack = "name a place that has at least half of them"
    error = _others(store, recipe, f"first: {gone[0]!r} is not there, or of none of the store's classes", lack)
    error.fault = f"{len(gone)} of the {rows} images that the store was made from are not at {recipe.data.train}"
    return error


def _may_be_where_recorded(store: FeatureStore) -> bool:
    """Whether this user may open the images at the place that the store names, and something is there."""
    recorded = recorded_recipe(store)
    places = names(recorded, "images").values()
    return refusal(store, "images", recorded) is None and all(expand_path(place).exists() for place in places)


def moved_rows(
    store: FeatureStore,
    recipe: Recipe,
    sources: tuple[Source, Source | None],
    others: Mapping[str, object],
    progress: Progress,
) -> IdentityError | None:
    """Make a few rows of a store again from ``sources``, the recipe's: of ``others``, whose class is another there, and
    if ids are numbers, of each source's. The error if an image is not that of the row which has its id, or else None.

    Raises:
        IdentityError: other weights, preprocessing or libraries than the store's. Else as for `Reextraction`.
    """
    made, numbered, other = _remade(store, recipe, progress), any_numbered(*sources), list[str]()
    known = store.every_id if numbered else set[str]()
    parts = [others, *(known.intersection(classes_of(source)) for source in sources if source is not None)]
    each = AGAIN // max(1, sum(map(bool, parts)))
    tried = set[str]().union(*(_few(part, each) for part in parts))
    for shard in store.every_shard:
        for k in (k for k, i in enumerate(shard.sample_ids) if i in tried):
            try:
                other += _different(made, shard, np.array([k]))
            except UnreadableImage:  # whatever lies there decoded once; the file of a path is only gone
                other += [shard.sample_ids[k]] if numbered else []
    if not other:
        return None
    made.check_identity()  # or it is not the images that differ
    got = f"{len(other)} of {counted(len(tried), 'row')} made again differ from the store's (first: {min(other)})"
    if not numbered:
        return IdentityError(
            f"images at {recipe.data.train} have changed under their ids, and not only their labels",
            got=got,
            do="forget these ids, give the new images ids of their own, and append them",
        )
    return IdentityError(
        f"rows of {recipe.data.train} have moved: ids are numbers of rows, and name other images now",
        got=got,
        do="put the rows back where they were, with a blank image in place of one that had to go; or make a new store "
        "of images that have ids: data.id_key",
    )


def check_kind(store: FeatureStore, recipe: Recipe, *sources: Source | None) -> None:
    """IdentityError if a file that the store was made from now gives ids of another kind, such as paths in place of
    numbers: every image would be a new one, and one that was forgotten would come back."""
    rows, recorded = in_nfc(store.every_id), recorded_recipe(store).data
    splits = SPLITS if any(source.info.of_split for source in sources if source is not None) else ()
    others = any(getattr(recorded, key) != getattr(recipe.data, key) for key in (*LIES_AT, *splits))
    if others or not rows:
        return
    gone = {sample.id for sample in store.manifest.skipped}
    given = [in_nfc(i for i in classes_of(s) if i not in gone and not store.is_forgotten(i)) for s in sources]
    if not is_complete(store):  # a part may have no row yet
        given = [set[str]().union(*given)]
    number = re.compile(rf"(train/|test/)?({'|'.join(map(re.escape, in_nfc(_numbered_after(recipe))))})/\d{{4,}}")
    numbered = any_numbered(*sources) or any(map(number.fullmatch, rows))
    for own in given:
        if own and rows.isdisjoint(own) and (numbered or not rows.isdisjoint(i.partition("/")[2] for i in own)):
            raise IdentityError(
                f"none of the ids of {recipe.data.train} is in {store.path}: its images have ids of another kind now",
                got=f"{min(own)!r}, in the store {min(rows)!r}",
                do="give them the ids that they had (paths or ids that occur twice or are missing are not used: "
                "data.id_key), or make a new store: --set store.path=…",
            )


def _numbered_after(recipe: Recipe) -> list[str]:
    """What numbers of rows may stand after in ids: the names of files and, in a folder of several, of splits."""
    data = recipe.data
    places = [expand_path(place) for place in (data.train, data.test) if place]
    splits = [data.train_split, data.test_split] if any(map(splits_in, places)) else []
    parts = [f"{place.stem}/{split}" for place in places for split in (data.train_split, data.test_split)]
    return [*(place.stem for place in places), *splits, *(parts if data.source in ("npz", "hdf5") else [])]


def notes_on_numbers(
    recipe: Recipe,
    sources: tuple[Source, Source | None],
    beside: TombstoneFile,
    forgotten_of: Place | None,
    progress: Progress,
) -> list[str]:
    """Notes on what a new store keeps out by numbers of rows: what ``beside`` remembers, which is taken over from the
    store ``forgotten_of`` if that is named. Rows of that store are made again, to see that they did not move.

    Raises:
        IdentityError: rows have moved, or nothing shows that they did not. Else as for `moved_rows`.
    """
    if not (beside.key and any_numbered(*sources)):
        return []
    if forgotten_of is None:
        return [BY_NUMBER]
    with FeatureStore(forgotten_of) as store:
        given, there = classes_of(*sources), store.every_id
        numbered = [source for source in sources if any_numbered(source)]
        none = "imported" in store.identity or any(there.isdisjoint(classes_of(source)) for source in numbered)
        theirs = msgspec.structs.replace(recorded_recipe(store), data=recipe.data, device=recipe.device)
        moved = None if none else moved_rows(store, theirs, sources, other_classes(store, given), progress)
        if none or moved is not None:
            raise IdentityError(
                f"what {store.path} has forgotten cannot be found in {recipe.data.train}: ids are numbers of rows there"
                + ("" if moved is None else ", and rows have moved"),
                got="no row that could be made again" if moved is None else moved.got,
                do="put the rows back where they were; or leave --forgotten-of out, and the images that were forgotten",
            )
        return [f"{BY_NUMBER}; a few rows of {store.path}, made again, are where they were"]


def _remade(store: FeatureStore, recipe: Recipe, progress: Progress) -> Reextraction:
    """From what the recipe names, which is its user's own."""
    own = [f"{SECTION[kind]}.{key}" for kind in KINDS for key in names(recipe, kind)]
    return Reextraction(store, recipe, progress, own)


def _few(ids: Collection[str], most: int) -> set[str]:
    """At most so many of these, evenly spread; also the last, which has another number if any row before it goes.
    Numbers of more digits come later."""
    some = sorted(ids, key=lambda i: (len(i), i))
    return {some[k] for k in np.linspace(0, len(some) - 1, min(most, len(some))).astype(int)}


def _different(made: Reextraction, shard: Shard, rows: NDArray[np.int64]) -> list[str]:
    """Ids of those of a shard's rows that come out differently now."""
    ids = [shard.sample_ids[k] for k in rows]
    there = shard.tokens(rows).astype(np.float64)
    apart = np.linalg.norm(encoding.as_read(made.rows(shard.name, ids), shard.stored_as) - there, axis=(1, 2))
    other = apart > ALIKE * np.linalg.norm(there, axis=(1, 2))
    return [i for i, differs in zip(ids, other, strict=True) if differs]
