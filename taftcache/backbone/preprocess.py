"""The model's own preprocessing, as timm does it, in two halves.

Resizing and cropping belong to the decoding threads and yield bytes; scaling by 255 and
normalising are elementwise and happen on the device for a whole batch. Together they give
the bits of ``timm.data.create_transform(is_training=False)`` on the CPU. Inside the threads
no torch kernel runs, so the threads do not each start a team of their own beside the model's.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from PIL import Image
from timm.data.transforms_factory import create_transform
from torch import Tensor

from taftcache.backbone.model import Backbone
from taftcache.backbone.sources.pictures import decoded
from taftcache.backbone.sources.rgb import Picture
from taftcache.backbone.spec import PreprocessSpec
from taftcache.errors import BackboneError
from taftcache.tangent.device import on_the_cpu

# A strip of one pixel by ten thousand, resized to 256 on its short side, would take gigabytes.
_MOST_PIXELS = 1 << 27


class Preprocess:
    """From an image to the model's input, without augmentation: a transform for torch's datasets.

    ``pixels`` then ``normalise`` is what extraction uses; calling the object does both for one image.

    Raises:
        BackboneError: the model's preprocessing settings (``pretrained_cfg`` in its config.json) make no sense.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.config = backbone.data_config
        self.image_shape: tuple[int, int, int] = tuple(self.config["input_size"])
        try:
            self._resize = create_transform(**self.config, is_training=False, normalize=False)
            mean, std = (
                torch.tensor(self.config[k], dtype=torch.float32, device="cpu").view(3, 1, 1) for k in ("mean", "std")
            )
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # timm and torch may raise any of these for senseless values
            raise BackboneError(
                f"the preprocessing of {backbone.name} cannot be built",
                got=f"{type(error).__name__}: {error}",
                do="correct pretrained_cfg in the model's config.json, or say it in the recipe: [preprocess]",
            ) from error
        # 255 as a tensor: CUDA replaces division by a Python number with a product, which rounds differently.
        self._constants = torch.tensor(255.0, dtype=torch.float32, device="cpu"), mean, std
        self._there: dict[torch.device, list[Tensor]] = {}

    def pixels(self, image: Image.Image) -> Tensor:
        """uint8 [3, h, w] of an RGB image, resized and cropped; ValueError for an absurd aspect ratio."""
        short, long = sorted(image.size)
        side = max(self.image_shape[1:]) / self.config["crop_pct"]
        if self.config["crop_mode"] == "center" and side * side * long / short > _MOST_PIXELS:
            raise ValueError(
                f"{image.size[0]} x {image.size[1]} pixels: too long and thin to resize to the model's input"
            )
        with on_the_cpu():
            resized: Tensor = self._resize(image)
        return resized

    def normalise(self, pixels: Tensor) -> Tensor:
        """float32 [n, 3, h, w] on the device of ``pixels`` (uint8, same shape): (x / 255 - mean) / std."""
        scale, mean, std = self._on(pixels.device)
        # Pixels come in PIL's order, the three colours side by side, and are reordered here, on the device.
        wide = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        return wide.div_(scale).sub_(mean).div_(std)

    def _on(self, device: torch.device) -> list[Tensor]:
        """255, mean and standard deviation on ``device``: copied once, because a copy waits for all queued work."""
        if device not in self._there:
            with torch.inference_mode(False):
                self._there[device] = [constant.to(device) for constant in self._constants]
        return self._there[device]

    def __call__(self, image: Picture, index: int | None = None) -> Tensor:
        """float32 [3, h, w] of an image file, a PIL image, or an array of uint8 [h, w], [h, w, 1] or [h, w, 3].

        Args:
            index: its place among several, for an error.

        Raises:
            UnreadableImage: a file that is missing, or what does not decode.
        """
        return self.normalise(self.pixels(decoded(image, index))[None])[0]

    def description(self) -> dict[str, Any]:
        """The preprocessing in JSON types, for a store's identity."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(self.config.items())}

    def spec(self) -> PreprocessSpec:
        """The settings that give any model this preprocessing."""
        described = self.description()
        return msgspec.convert({k: described[k] for k in PreprocessSpec.__struct_fields__}, PreprocessSpec)
