"""How much memory prepared rows may take between passes, and models that are scored together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from taftcache.backbone.device import resolve_device
from taftcache.recipe import Recipe, parse_bytes

# One part in so many of the free memory may be taken: rows are kept in float32 and in float64, other processes run,
# and mapped files stay in memory only if some is left.
PART = 4
MODELS = 64 << 20  # bytes of models that are held in any case: a pass for each small one would cost more than it saves
GROUP, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # Linux's control groups, and where a process is
# Of both versions: a group's limit, what it uses, and the cached files in ``memory.stat``, which may be dropped.
VERSIONS = {
    "": ("memory.max", "memory.current", "inactive_file", "active_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
}


def memory_of(recipe: Recipe, beside: int = 0) -> int:
    """``solver.memory`` in bytes; "auto" is a quarter of what is free now on the recipe's device, less the bytes that
    something ``beside`` the rows will need.

    Raises:
        BackboneError: the recipe's device is not here.
    """
    if recipe.solver.memory != "auto":
        return parse_bytes(recipe.solver.memory)
    return max(0, free_memory(resolve_device(recipe.device)) - beside) // PART


def memory_of_models(recipe: Recipe) -> int:
    """Bytes that the models scored in one pass may take; the errors are those of ``memory_of``."""
    return max(MODELS, memory_of(recipe))


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device; on the host, no more than a container's limit leaves, or a job's (SLURM,
    systemd).

    What a container uses includes cached files that it has read, such as a store's. They are dropped when memory is
    needed, so they count as free, as in what Linux calls available.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    available: int = psutil.virtual_memory().available
    return min([available, *_left_by_groups()])


def _left_by_groups() -> Iterator[int]:
    """What each control group with a limit leaves of it: that of this process and all above, of both versions."""
    try:
        lines = MINE.read_text("utf-8", "surrogateescape").split("\n")
    except OSError:
        return
    for _, kinds, place in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        for kind in VERSIONS.keys() & set(kinds.split(",")):
            top = GROUP / kind
            at = top / place.lstrip("/")  # is not there in a container that sees its own group as the top
            for folder in (at, *at.parents[: len(at.parts) - len(top.parts)]):
                with suppress(OSError, ValueError):  # a group without a limit says "max"
                    yield _left(folder, *VERSIONS[kind])


def _left(group: Path, limit: str, used: str, *cached: str) -> int:
    most, now = (int((group / name).read_text("ascii")) for name in (limit, used))
    said = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
    return max(0, most - now + min(now, sum(int(said.get(name, 0)) for name in cached)))
