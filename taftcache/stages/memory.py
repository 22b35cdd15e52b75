"""How much memory prepared rows may take between passes, and models that are scored together."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from taftcache.backbone.device import resolve_device
from taftcache.recipe import Recipe, parse_bytes

# One part in so many of the free memory may be taken: rows are kept in float32 and in float64, other processes run,
# and mapped files stay in memory only if some is left.
PART = 4
MODELS = 64 << 20  # bytes of models that are held in any case: a pass for each small one would cost more than it saves
GROUP = Path("/sys/fs/cgroup")  # where a container has memory.max, memory.current and memory.stat


def memory_of(recipe: Recipe) -> int:
    """``solver.memory`` in bytes; "auto" is a quarter of what is free now on the recipe's device.

    Raises:
        BackboneError: the recipe's device is not here.
    """
    if recipe.solver.memory != "auto":
        return parse_bytes(recipe.solver.memory)
    return free_memory(resolve_device(recipe.device)) // PART


def memory_of_models(recipe: Recipe) -> int:
    """Bytes that the models scored in one pass may take; the errors are those of ``memory_of``."""
    return max(MODELS, memory_of(recipe))


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device; on the host, no more than its container, if there is one, leaves.

    What a container uses includes cached files that it has read. Those that are inactive are dropped when memory is
    needed, so they count as free, as in `docker stats`.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    free: int = psutil.virtual_memory().available
    try:
        limit, used = (int((GROUP / name).read_text("ascii")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text("ascii").splitlines())
        return max(0, min(free, limit - used + min(used, int(stat.get("inactive_file", 0)))))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free
