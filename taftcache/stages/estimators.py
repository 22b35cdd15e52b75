"""Stores of the images that estimators were fitted to: they hold rows and classes, and never what was fitted."""

from __future__ import annotations

from taftcache.cache.store import FeatureStore
from taftcache.errors import StoreError

MADE_FROM = {"file": "a list of images"}  # what the identity of such a store says it was made from
NO_CLASSES = ["no class", "none"]  # for a regressor: a store must have two classes, and does not keep values
HOLDS = "holds images for TangentRegressor; no values are kept in it"


def is_of_estimator(store: FeatureStore) -> bool:
    """Whether an estimator made the store for the images of its ``fit``."""
    return store.identity.get("imported") == MADE_FROM


def lacks_classes(store: FeatureStore) -> bool:
    """Whether a regressor made the store: it has rows of one class only, a classifier with these names has both."""
    if not is_of_estimator(store) or store.classes != NO_CLASSES:
        return False
    return all(set(shard.statistics["rows_per_class"]) <= {0} for shard in store.shards)


def regressor_note(store: FeatureStore) -> list[str]:
    """A note on what the store of a regressor is; none for other stores."""
    return [f"{_said(store)}, and its classes stand for none"] if lacks_classes(store) else []


def fitted_note(store: FeatureStore) -> list[str]:
    """A note, when samples leave the store of an estimator, on models outside it that were fitted to them."""
    if not is_of_estimator(store):
        return []
    return ["models that estimators fitted to these images are not in the store, and stay as they are: fit them again"]


def check_has_classes(store: FeatureStore) -> None:
    """StoreError for the store of a regressor, which no classifier can be trained on."""
    if lacks_classes(store):
        raise StoreError(
            _said(store),
            got=f"{' and '.join(map(repr, store.classes))} in place of classes",
            do=f"fit the estimator again, with store={str(store.path)!r}: its rows are taken from there",
        )


def _said(store: FeatureStore) -> str:
    return f"{store.path} {HOLDS}"
