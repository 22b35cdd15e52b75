"""The tangent model: from an image to logits, base and Δw in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from taftcache.backbone.cut import Cut
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.rgb import to_rgb
from taftcache.cache import FeatureStore
from taftcache.component import Component, read_base, read_component
from taftcache.errors import IdentityError, UnreadableImage
from taftcache.recipe import parse_recipe
from taftcache.tangent.base import Base


@dataclass(frozen=True)
class Prediction:
    """The classes of one image, most probable by logit first."""

    image: str
    labels: list[str]
    logits: list[float]


class TangentModel(nn.Module):
    """f_w(x) + J(x) Δw: the frozen layers once, then value and tangent of the tail together.

    ``forward`` takes preprocessed images [n,3,h,w] and gives logits [n,K].
    """

    def __init__(
        self, cut: Cut, transform: Preprocess, base: Base, component: Component, classes: Sequence[str]
    ) -> None:
        super().__init__()
        self.cut, self.transform, self.classes = cut, transform, list(classes)
        self._base = base.unreduced().to(torch.float32, cut.device)
        self._weights = self._base.tail.bind(self._base.state)
        delta = component.delta.to(cut.device, torch.float32)
        self._delta = self._base.tail.bind(component.layout.views(delta))
        self._trained = component.layout.size

    @classmethod
    def load(cls, store: FeatureStore | Path | str, name: str = "models/mean", device: str = "auto") -> TangentModel:
        """The model ``name`` of a store ("models/mean", "components/000", …) on its backbone.

        Raises:
            StoreError: no such model. IdentityError: the backbone at hand has other weights than the store's.
        """
        if not isinstance(store, FeatureStore):
            with FeatureStore(store) as opened:
                return cls.load(opened, name, device)
        recipe = parse_recipe(store.manifest.recipe, str(store.path))
        backbone = load_backbone(recipe.backbone, recipe.preprocess, device)
        made_with = store.identity["backbone"]["weights_digest"]
        if backbone.weights_digest != made_with:
            raise IdentityError(
                "a store's models run on the weights that made its features",
                got=f"{backbone.name} with digest {backbone.weights_digest[:16]}, the store's is {made_with[:16]}",
                do="put the original weights back",
            )
        base = read_base(store, recipe.tangent)
        component = read_component(store, name, base)
        return cls(Cut(backbone, recipe.tangent.blocks), Preprocess(backbone), base, component, store.classes)

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Tensor:
        """Logits [n,K] of preprocessed images [n,3,h,w]."""
        tail = self._base.tail
        state = tail.value(self._weights, self.cut.prefix(images.to(self.cut.device)))
        return state.logits + tail.tangent(self._weights, state, self._delta)

    def predict(self, images: Sequence[Path | str], top: int = 3, batch: int = 32) -> list[Prediction]:
        """The ``top`` classes of each image file.

        Raises:
            UnreadableImage: a file that is missing or does not decode.
        """
        out = []
        for k in range(0, len(images), batch):
            names = images[k : k + batch]
            logits = self(torch.stack([self.transform(_open(name)) for name in names]))
            values, index = logits.topk(min(top, len(self.classes)))
            for name, row, places in zip(names, values.tolist(), index.tolist(), strict=True):
                out.append(Prediction(str(name), [self.classes[i] for i in places], row))
        return out

    def extra_repr(self) -> str:
        """Classes and size, for ``print``."""
        return f"classes={len(self.classes)}, trained={self._trained:,}"


def _open(path: Path | str) -> Any:
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error and more
        raise UnreadableImage("an image is a file that decodes", got=f"{path}: {error}") from error
