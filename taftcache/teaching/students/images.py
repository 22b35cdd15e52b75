"""The student's images, in batches by row number of the join; decoded once if memory allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from taftcache.backbone.pool import end_threads
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.base import Source
from taftcache.errors import DataError

Augment = Literal["none", "flip", "shift"]
GROUP = 64


class Images:
    """uint8 pixels of the rows of a join, by the student's own preprocessing.

    Args:
        places: each row's source and its index there.
        transform: resize and crop.
        memory: bytes that decoded images may take; if all of them fit, each is decoded once.
    """

    def __init__(self, places: Sequence[tuple[Source, int]], transform: Preprocess, memory: int) -> None:
        self._places, self._transform = list(places), transform
        size = int(np.prod(transform.image_shape))
        fits = size * len(self._places) <= memory
        self._held = torch.empty(len(self._places), *transform.image_shape, dtype=torch.uint8) if fits else None
        self._there = np.zeros(len(self._places), bool)

    def decode(self, done: Callable[[int], None]) -> str:
        """Decode every image once, and keep it if all may be kept; returns a digest of their pixels. ``done`` is called
        with the number of images in each group."""
        hasher = blake3()
        for at in range(0, len(self._places), GROUP):
            index = np.arange(at, min(at + GROUP, len(self._places)))
            hasher.update(self.pixels(index).numpy().data)
            done(len(index))
        return hasher.hexdigest()

    def pixels(self, index: np.ndarray) -> Tensor:
        """uint8 [n,3,h,w]."""
        if self._held is None:
            return self._read(index)
        if not self._there[index].all():
            missing = np.unique(index[~self._there[index]])
            self._held[torch.from_numpy(missing)] = self._read(missing)
            self._there[missing] = True
        return self._held[torch.from_numpy(np.asarray(index))]

    def batch(self, index: np.ndarray, device: torch.device, augment: Augment, generator: torch.Generator) -> Tensor:
        """float32 [n,3,h,w], normalised, with augmentation drawn from ``generator``."""
        pixels = augmented(self.pixels(index), augment, generator)
        return self._transform.normalise(pixels.to(device))

    def _read(self, index: np.ndarray) -> Tensor:
        def one(row: int) -> Tensor:
            source, at = self._places[row]
            try:
                return self._transform.pixels(source.read(at))
            except ValueError as error:
                raise DataError(
                    f"the image {source.items[at].id} cannot be resized to the student's input", got=error
                ) from error

        pool = ThreadPoolExecutor(2, thread_name_prefix="taftcache-decode")
        try:
            return torch.stack(list(pool.map(one, index.tolist())))
        finally:
            end_threads(pool)


def augmented(pixels: Tensor, augment: Augment, generator: torch.Generator) -> Tensor:
    """``flip``: mirrored or not; ``shift``: also moved by up to an eighth of the side, edges repeated."""
    if augment == "none":
        return pixels
    n, _, h, w = pixels.shape
    mirrored = torch.rand(n, generator=generator, dtype=torch.float32) < 0.5
    pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    if augment == "flip":
        return pixels
    dy = torch.randint(-(h // 8), h // 8 + 1, (n, 1), generator=generator)
    dx = torch.randint(-(w // 8), w // 8 + 1, (n, 1), generator=generator)
    y = (torch.arange(h)[None] + dy).clamp(0, h - 1)
    x = (torch.arange(w)[None] + dx).clamp(0, w - 1)
    rows = torch.arange(n)[:, None, None]
    return pixels.permute(0, 2, 3, 1)[rows, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2).contiguous()
