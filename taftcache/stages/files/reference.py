"""A model from elsewhere that a store's models are set beside: an exported one, or another store's default one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taftcache.backbone.sources.base import Labelled, Source
from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent, check_consent, followed, recorded_recipe
from taftcache.errors import DataError, is_address, local_path
from taftcache.model.component import no_model
from taftcache.model.folder import is_model_folder, open_model
from taftcache.model.predictor import TangentModel
from taftcache.names import counted, first_few, model_of, scaling_of
from taftcache.stages.estimators import check_has_classes
from taftcache.stages.files.vectors.given import Vectors
from taftcache.stages.look.row_table import STEP_ROWS
from taftcache.stages.look.scoring import Scorer
from taftcache.stages.scaling import scaled
from taftcache.stages.train.outdated import outdated_notes
from taftcache.stages.train.record import settings_of

IMAGES = 32  # in memory at a time
_SAME = "name a store that was made from vectors of the same model"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A model from elsewhere.

    name: its place, as it was given. classes: in the order of its logits. logits: of some items of a source, by their
    places, ``step`` of them at a time. store: which it is the default model of. notes: what is to be said of it.
    """

    name: str
    classes: list[str]
    logits: Callable[[Any, Sequence[int]], NDArray[np.float32]]
    step: int
    store: FeatureStore | None = None
    notes: list[str] = field(default_factory=list)

    def hits(self, source: Labelled, places: Sequence[int], advance: Callable[[int], None]) -> NDArray[np.bool_]:
        """Which of the items at ``places`` [n] it is right on."""
        own = [source.classes[item.label] for item in source.items]
        found = list[bool]()
        for at in range(0, len(places), self.step):
            some = places[at : at + self.step]
            best = self.logits(source, some).argmax(1).tolist()
            found += [self.classes[k] == own[n] for k, n in zip(best, some, strict=True)]
            advance(len(some))
        return np.array(found, bool)


def open_reference(stack: ExitStack, store: FeatureStore, place: str, consent: Consent | None) -> Reference:
    """The model in the folder ``place``, or the default model of the store there, which stays open on the ``stack``.

    Raises:
        StoreError: nothing is there. DataError: other classes than the ``store`` has, or not made for its rows. Others:
            as for ``open_model`` and ``TangentModel.load``.
    """
    check_consent(consent)
    if not (local_path(place).exists() or is_address(place)):
        missing = no_model(store, place)
        missing.do = f"{missing.do}; or the folder of a model or of another store"
        raise missing
    if not is_model_folder(place):
        found = _of_store(place, store, stack.enter_context(FeatureStore(place)), consent)
    elif scaling_of(store.identity) is not None:
        raise _unlike(place, store, "images", _SAME)
    else:
        model = open_model(place, device=recorded_recipe(store).device)
        found = Reference(name=place, classes=model.classes, logits=partial(_of_images, model), step=IMAGES)
    if apart := {*found.classes} ^ {*store.classes}:
        raise DataError(
            f"{place} has not the classes of {store.path}",
            got=f"in one of the two alone: {first_few(sorted(apart))}",
            do="name a model of the same classes",
        )
    return found


def _unlike(place: str, store: FeatureStore, what: str, do: str) -> DataError:
    """The error for a model of ``what`` beside those of ``store``, which are not."""
    return DataError(f"a model of {what} cannot be compared with those of {store.path}", got=place, do=do)


def _of_store(name: str, store: FeatureStore, other: FeatureStore, consent: Consent | None) -> Reference:
    """The default model of the store ``other``, for rows like those of ``store``."""
    check_has_classes(other)
    if (model := model_of(other.objects())) not in other.objects():
        raise no_model(other, model)
    scaling, notes = scaling_of(other.identity), outdated_notes(other, settings_of(other).keys, model)
    if (scaling is None) != (scaling_of(store.identity) is None):
        raise _unlike(name, store, "images" if scaling is None else "vectors", "name another store")
    if scaling is None:
        loaded = _loaded(store, other, model, consent)
        logits: Callable[[Any, Sequence[int]], NDArray[np.float32]] = partial(_of_images, loaded)
    else:
        theirs, ours = (one.identity["cut"]["shape"][-1] for one in (other, store))
        if theirs != ours:
            got = f"{counted(theirs, 'number')}, {ours} in {store.path}"
            raise DataError(f"the vectors of {name} are not as wide as those of {store.path}", got=got, do=_SAME)
        logits = partial(_of_vectors, Scorer(other), model, scaling)
    step = IMAGES if scaling is None else STEP_ROWS
    return Reference(name=name, classes=other.classes, logits=logits, step=step, store=other, notes=notes)


def _loaded(store: FeatureStore, other: FeatureStore, model: str, consent: Consent | None) -> TangentModel:
    """A model of ``other``; weights that are named are those of ``store``, and of ``other`` if it has the same."""
    made_with = [one.identity.get("backbone", {}).get("weights_digest") for one in (store, other)]
    if made_with[0] != made_with[1]:
        consent = Consent(hub=consent is not None and consent.hub)
        followed(other, "weights", consent, "none")  # a refusal advises no option, for that would be of ``store``
    return TangentModel.read(other, model, recorded_recipe(store).device, consent)


def _of_images(model: TangentModel, source: Source, some: Sequence[int]) -> NDArray[np.float32]:
    return model.logits([source.read(k) for k in some], IMAGES)


def _of_vectors(scorer: Scorer, model: str, scaling: str, given: Vectors, some: Sequence[int]) -> NDArray[np.float32]:
    base, changes = scorer.logits(scaled(given.take(some), scaling, [given.ids[k] for k in some]), [model])
    return np.asarray(base + changes[0])
