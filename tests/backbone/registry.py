"""Small random ViTs, one for each thing that a tail may have, and the pieces extraction needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.forward.decoders import Decoders
from taftcache.backbone.forward.engine import DeviceEngine, Work
from taftcache.backbone.model import Backbone, wrap_model
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Item, unreadable

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 7}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_qkv_bias": {"qkv_bias": False},
    "layer_scale": {"init_values": 0.3},
    "registers": {"reg_tokens": 4},
    "registers_no_embed_class": {"reg_tokens": 2, "no_embed_class": True},
    "pre_norm": {"pre_norm": True},
    "dynamic": {"dynamic_img_size": True},
    "no_pos_embed": {"pos_embed": "none"},
    "tanh": {"act_layer": "gelu_tanh"},
    "dropout": {"drop_rate": 0.5, "proj_drop_rate": 0.5, "attn_drop_rate": 0.5, "drop_path_rate": 0.5},
    "one_block": {"depth": 1},
    "no_head": {"num_classes": 0},
    "wide_mlp": {"mlp_ratio": 2.5},
}


def small_backbone(seed: int = 0, **options: Any) -> Backbone:
    """A random ViT whose biases and LayerNorm affines are random too, from ``seed`` alone."""
    model = timm.create_model("vit_tiny_patch16_224", **(SMALL | options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn + 1 if "norm" in name and name.endswith("weight") else drawn)
    return wrap_model(model, "small")


def pieces(**options: Any) -> tuple[Cut, Preprocess]:
    backbone = small_backbone(**options)
    return Cut(backbone), Preprocess(backbone)


def images(n: int, size: int = 32, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


class NoiseSource:
    """``n`` random images; those whose index is in ``broken`` do not decode."""

    def __init__(self, n: int, broken: Sequence[int] = ()) -> None:
        self._pixels = np.random.default_rng(5).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
        self.broken = set(broken)
        self.classes = ["even", "odd"]
        self.items = [Item(f"noise/{k:03d}", k % 2) for k in range(n)]

    def read(self, index: int) -> Image.Image:
        if index in self.broken:
            raise unreadable(self.items[index].id, "broken on purpose")
        return Image.fromarray(self._pixels[index])


class MemorySink:
    """Keeps float16 rows like a store; ``crash_after`` appends it raises once."""

    def __init__(self, crash_after: int | None = None, error: BaseException | None = None) -> None:
        self.rows: dict[str, bytes] = {}
        self.labels: list[int] = []
        self.skipped: list[tuple[str, str]] = []
        self.calls: list[int] = []
        self.crash_after, self.error = crash_after, error or RuntimeError("the disk is on fire")

    @property
    def consumed(self) -> int:
        return len(self.rows) + len(self.skipped)

    def append(
        self,
        tokens: np.ndarray,
        ids: Sequence[str],
        labels: Sequence[int],
        skipped: Sequence[tuple[str, str]] = (),
    ) -> None:
        if self.crash_after is not None and len(self.calls) >= self.crash_after:
            self.crash_after = None  # the next append would succeed: it must not come
            time.sleep(0.05)
            raise self.error
        assert len(tokens) == len(ids) == len(labels)
        self.calls.append(len(ids))
        for row, id in zip(tokens, ids, strict=True):
            assert id not in self.rows
            self.rows[id] = row.astype(np.float16).tobytes()
        self.labels += labels
        self.skipped += skipped


class DeviceEngineAlone(DeviceEngine):
    """The engine for other devices, which works on a CPU too, with decoders that nobody else has."""

    def __init__(self, work: Work, workers: int | None, stop: bool) -> None:
        super().__init__(work, Decoders(work.decode, work.pixels_shape, work.batch, workers), stop)

    def close(self) -> None:
        self._decoders.close()
