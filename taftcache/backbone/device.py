"""The device that a run asks for, and float32 arithmetic that stays float32 on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from taftcache.errors import BackboneError


def resolve_device(name: str) -> torch.device:
    """``"auto"`` (CUDA, else MPS, else CPU), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"`` as a torch device.

    BackboneError for a name torch does not know or a device that is not there: no silent fall back
    to a device on which the run would take a hundred times as long.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BackboneError(f"unknown device {name!r}", got=name, do="auto, cpu, cuda, cuda:N or mps") from error
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


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Products in float32 proper: no TF32, no bfloat16 shortcuts and no autocast, restored afterwards.

    cuDNN convolutions use TF32 by default, and a program may have lowered the precision of matrix
    products; either would put rounding of 1e-3 into features that are stored for good.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            torch.autocast(device.type, enabled=False),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
