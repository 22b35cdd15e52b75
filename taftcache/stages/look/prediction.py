"""From image files to classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taftcache.cache.store import FeatureStore
from taftcache.consent import Consent
from taftcache.model.folder import is_model_folder, open_model, read_description
from taftcache.model.predictor import Prediction, TangentModel
from taftcache.names import model_of


@dataclass(frozen=True, kw_only=True)
class PredictReport:
    """Predictions of one model; ``root_digest`` is that of the store it was read from, or was saved from."""

    store: Path
    root_digest: str
    model: str
    predictions: list[Prediction]


def predict(
    store: FeatureStore | Path,
    images: Sequence[Path | str],
    model: str | None = None,
    top: int = 3,
    device: str = "auto",
    consent: Consent | None = None,
) -> PredictReport:
    """Classify image files end to end: preprocessing, frozen layers, base and Δw.

    Args:
        store: an open store, a store's folder, or a folder that ``export_model`` wrote (which holds one model).
        images: image files.
        model: which of the store's models; the best that it has by default (``model_of``).
        top: classes for each image.
        device: where the model runs.
        consent: weights in place of those that the store names, or that the model hub may be asked for them.
    """
    if isinstance(store, FeatureStore):
        model = model or model_of(store.objects())
        predictions = TangentModel.load(store, model, device, consent).predict(images, top)
        return PredictReport(store=store.path, root_digest=store.root_digest, model=model, predictions=predictions)
    if not is_model_folder(store):
        with FeatureStore(store) as opened:
            return predict(opened, images, model, top, device, consent)
    described = read_description(store)
    predictions = open_model(store, device).predict(images, top)
    return PredictReport(store=store, root_digest=described.root_digest, model=described.model, predictions=predictions)
