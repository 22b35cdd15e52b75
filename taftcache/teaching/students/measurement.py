"""What a model costs: parameters, and the time of one image."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

ROUNDS, WARMING = 30, 3


def parameters(model: nn.Module) -> int:
    """Numbers in the model's parameters."""
    return sum(p.numel() for p in model.parameters())


def latencies(models: Sequence[tuple[nn.Module, tuple[int, int, int]]]) -> list[float]:
    """Median seconds for one image [1,c,h,w] of each model's size, on that model's device; all in evaluation mode.

    The models take turns, so that other work on the machine slows all of them. The first rounds are discarded.
    """
    images = [torch.zeros(1, *size, device=next(model.parameters()).device) for model, size in models]
    times: list[list[float]] = [[] for _ in models]
    for model, _ in models:
        model.eval()
    with torch.inference_mode():
        for _ in range(WARMING + ROUNDS):
            for (model, _), image, taken in zip(models, images, times, strict=True):
                begin = time.perf_counter()
                held: Any = model(image)
                if image.device.type == "cuda":
                    torch.cuda.synchronize(image.device)
                taken.append(time.perf_counter() - begin)
                del held
    return [median(taken[WARMING:]) for taken in times]
