"""How much memory prepared rows may take between passes."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from taftcache.backbone.device import resolve_device
from taftcache.recipe import Recipe, parse_bytes

# Of what is free: the rows are kept in float32 and in float64, other processes run, and files that are mapped stay
# in memory only where there is some left.
PART = 4
LIMIT, USED = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))  # of a container


def memory_of(recipe: Recipe) -> int:
    """``solver.memory`` in bytes; "auto" is a quarter of what is free now where the recipe's device computes.

    Raises:
        BackboneError: the recipe's device is not here.
    """
    if recipe.solver.memory != "auto":
        return parse_bytes(recipe.solver.memory)
    return free_memory(resolve_device(recipe.device)) // PART


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device; of the host no more than its container, if it has one, leaves."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    free: int = psutil.virtual_memory().available
    try:
        return max(0, min(free, int(LIMIT.read_text("ascii")) - int(USED.read_text("ascii"))))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free
