"""What a model costs: parameters, and the time of one image."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from torch import nn

ROUNDS = 9


def parameters(model: nn.Module) -> int:
    """Numbers in the model's parameters."""
    return sum(p.numel() for p in model.parameters())


def latency(model: nn.Module, size: tuple[int, int, int]) -> float:
    """Median seconds of one image [1,c,h,w] through the model, where the model is; the first two are thrown away."""
    device = next(model.parameters()).device
    image = torch.zeros(1, *size, device=device)
    training, times = model.training, []
    model.eval()
    with torch.inference_mode():
        for _ in range(ROUNDS + 2):
            begin = time.perf_counter()
            held: Any = model(image)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - begin)
            del held
    model.train(training)
    return median(times[2:])
