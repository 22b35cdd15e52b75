"""From image files to classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from taftcache.cache import FeatureStore
from taftcache.stages.composing import MEAN

if TYPE_CHECKING:
    from taftcache.model import Prediction


@dataclass(frozen=True)
class PredictReport:
    """Predictions of one of the store's models."""

    store: Path
    root_digest: str
    model: str
    predictions: list[Prediction]


def predict(
    store: FeatureStore, images: Sequence[Path | str], model: str = MEAN, top: int = 3, device: str = "auto"
) -> PredictReport:
    """Classify image files end to end: preprocessing, frozen layers, base and Δw."""
    from taftcache.model import TangentModel

    predictions = TangentModel.load(store, model, device).predict(images, top)
    return PredictReport(store.path, store.root_digest, model, predictions)
