"""Several feature stores of one dataset, joined by sample id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taftcache.cache.store import FeatureStore
from taftcache.errors import DataError, StoreError
from taftcache.names import first_few
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TAIL

HELD_IN_MEMORY = 1 << 30  # bytes of one teacher's rows; beyond them rows are read from the store as they are asked for


class Teacher:
    """One store's features in the order of the join: float32 [n, width], read when asked for.

    Args:
        name: in messages and tables.
        store: open for reading.
        ids: of the rows, in the order wanted; all of them in the store.
        weight: what its features are multiplied by.
    """

    def __init__(self, name: str, store: FeatureStore, ids: Sequence[str], weight: float = 1.0) -> None:
        self.name, self.weight = name, weight
        self._shards = store.every_shard
        places = {i: (k, row) for k, shard in enumerate(self._shards) for row, i in enumerate(shard.sample_ids)}
        self.width, self.count = self._shards[0].tokens_shape[1], len(ids)
        self._place = np.array([places[i] for i in ids], np.int64).reshape(-1, 2)
        self._held: np.ndarray | None = None
        if len(ids) * self.width * 4 <= HELD_IN_MEMORY:
            self._held = self._read(np.arange(len(ids)))

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Features float32 [len(index), width] of these rows of the join."""
        return self._read(index) if self._held is None else self._held[index]

    def _read(self, index: np.ndarray) -> np.ndarray:
        out = np.empty((len(index), self.width), np.float32)
        place = self._place[index]
        for number, shard in enumerate(self._shards):
            here = place[:, 0] == number
            if here.any():
                out[here] = shard.tokens(place[here, 1])[:, 0]
        return out


@dataclass(frozen=True)
class Joined:
    """The samples that all teachers and the source of images share, in the order of their ids.

    ids, labels: of every row; a label is an index into ``classes``.
    training, held_out: row numbers of the two roles, as the stores have them.
    """

    classes: list[str]
    ids: list[str]
    labels: np.ndarray
    training: np.ndarray
    held_out: np.ndarray
    teachers: list[Teacher]


def join(
    stores: Mapping[str, FeatureStore], images: Mapping[str, str], weights: Mapping[str, float] | None = None
) -> Joined:
    """Join teachers by sample id with the images that a student will see.

    Rows are matched by id alone: shards, plans and orders of the stores may all differ.

    Args:
        stores: open stores by teacher's name.
        images: class name of every image of the source, training and test, by id.
        weights: of teachers' features, 1 by default.

    Raises:
        StoreError: rows that are not features; an id that one of the stores lacks, or has forgotten while another
            still holds it; roles (training, held out) that differ.
        DataError: an id that is no image of the source, or of another class there.
    """
    if not stores:
        raise StoreError("no store of a teacher to join")
    for name, store in stores.items():
        check_features(name, store)
    held = {name: _roles(store) for name, store in stores.items()}
    every = {i for roles in held.values() for i in roles}
    for name, store in stores.items():
        _check_forgotten(name, store, {n: r for n, r in held.items() if n != name})
        unread = {skipped.id for skipped in store.manifest.skipped}
        if missing := sorted((every | _expected(stores, images)) - held[name].keys() - unread):
            raise StoreError(
                f"the teacher {name} has no row of {first_few(missing, 3)}",
                got=store.path,
                do="where the images are new: taftcache append RECIPE, the recipe of that store; else extract it from "
                "the same data, without a limit",
            )
        if foreign := sorted(held[name].keys() - images.keys()):
            raise DataError(
                f"the teacher {name} has rows of images that the student cannot see: {first_few(foreign, 3)}",
                got=store.path,
                do="let [data] say what the stores were extracted from, or forget the samples in the stores",
            )
    common = sorted(i for i in every if all(i in roles for roles in held.values()))
    first = next(iter(stores))
    classes = sorted({images[i] for i in common})
    order = _class_order(stores[first], classes)
    for name, store in stores.items():
        _check_agreement(name, store, held[name], images, held[first])
    roles = np.array([held[first][i][0] == "train" for i in common])
    rows = np.arange(len(common))
    labels = np.array([order.index(images[i]) for i in common], np.int64)
    given = weights or {}
    teachers = [Teacher(name, store, common, given.get(name, 1.0)) for name, store in stores.items()]
    return Joined(order, common, labels, rows[roles], rows[~roles], teachers)


def check_features(name: str, store: FeatureStore) -> None:
    """Raise StoreError unless the store holds only the head's input, from a model as it was trained."""
    if TAIL not in store.objects() or not store.manifest.shards:
        raise StoreError(
            f"the store of the teacher {name} is not complete", got=store.path, do="run taftcache extract on it"
        )
    config = TailConfig.from_dict(store.objects()[TAIL].meta)
    if config.rows != "feature" and config.path != "feature":
        raise StoreError(
            f"the store of the teacher {name} holds {config.rows} of each sample instead of its feature",
            got=store.path,
            do='extract with tangent.train = "head" and store.cache = "feature"',
        )
    tangent = store.manifest.recipe.get("tangent", {})
    if reset := [k for k in ("reset_block", "reset_norm") if tangent.get(k)] + [
        k for k in ("class_token",) if tangent.get(k) == "reset"
    ]:
        raise StoreError(
            f"the features of the teacher {name} are not those of the model as it was trained: {', '.join(reset)}",
            got=store.path,
            do="extract without these switches of [tangent]",
        )


def _roles(store: FeatureStore) -> dict[str, tuple[str, str]]:
    """id → (role, class name)."""
    return {
        i: (shard.role, store.classes[label])
        for shard in store.every_shard
        for i, label in zip(shard.sample_ids, shard.labels.tolist(), strict=True)
    }


def _expected(stores: Mapping[str, FeatureStore], images: Mapping[str, str]) -> set[str]:
    """The source's images, without those that a store has forgotten or could not read."""
    unread = {skipped.id for store in stores.values() for skipped in store.manifest.skipped}
    gone = {i for i in images for store in stores.values() if store.is_forgotten(i)}
    return images.keys() - unread - gone


def _check_forgotten(name: str, store: FeatureStore, others: Mapping[str, Mapping[str, object]]) -> None:
    for other, roles in others.items():
        if gone := sorted(i for i in roles if store.is_forgotten(i)):
            raise StoreError(
                f"the teacher {name} has forgotten {first_few(gone, 3)}, but {other} still holds it",
                got=store.path,
                do=f"taftcache forget the same samples in the store of {other}",
            )


def _check_agreement(
    name: str,
    store: FeatureStore,
    roles: Mapping[str, tuple[str, str]],
    images: Mapping[str, str],
    first: Mapping[str, tuple[str, str]],
) -> None:
    if wrong := sorted(i for i, (_, label) in roles.items() if images[i] != label):
        raise DataError(
            f"the teacher {name} has {first_few(wrong, 3)} of another class than the source",
            got=store.path,
            do="extract the store again from these labels",
        )
    if moved := sorted(i for i, (role, _) in roles.items() if i in first and first[i][0] != role):
        raise StoreError(
            f"the teacher {name} does not hold out the same samples as the first: {first_few(moved, 3)} differ",
            got=store.path,
            do="extract with the same data.held_out and store.seed",
        )


def _class_order(store: FeatureStore, classes: Sequence[str]) -> list[str]:
    """The store's own order of classes; a class without rows keeps its place."""
    return list(store.classes) if set(classes) <= set(store.classes) else sorted({*classes, *store.classes})
