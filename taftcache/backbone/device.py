"""The device that a run asks for."""

from __future__ import annotations

import torch

from taftcache.errors import ArgumentError, BackboneError


def resolve_device(name: str) -> torch.device:
    """``"auto"`` (CUDA, else MPS, else CPU), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"`` as a torch device.

    ArgumentError for a name torch does not know, BackboneError for a device that is not there: no silent fallback to a
    device on which the run would take a hundred times as long.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"unknown device {name!r}", got=name, do="auto, cpu, cuda, cuda:N or mps") from error
    here = {"cpu": device.index in (None, 0), "cuda": cuda, "mps": mps}.get(device.type, False)
    if here and device.type == "cuda" and device.index is not None:
        here = device.index < torch.cuda.device_count()
    if not here:
        found = ["cpu"] + [f"cuda:{k}" for k in range(torch.cuda.device_count() if cuda else 0)] + ["mps"] * mps
        raise BackboneError(
            f"torch does not see the device {name} on this machine",
            got=f"{name}; torch sees {', '.join(found)}",
            do="choose one of those or 'auto'",
        )
    return device


def float64_device(name: str) -> torch.device:
    """``resolve_device`` for what needs float64: the CPU takes the place of MPS, which does not have it."""
    device = resolve_device(name)
    return torch.device("cpu") if device.type == "mps" else device
