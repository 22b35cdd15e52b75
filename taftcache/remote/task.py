"""What every task for a worker needs: settings that mean the same on another host, and what its sums depend on."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from taftcache.backbone.files import local_folder
from taftcache.cache.place.address import is_bucket
from taftcache.errors import ClusterError
from taftcache.recipe import Recipe, recipe_values
from taftcache.rounding import VARIABLE


def portable(recipe: Recipe) -> dict[str, Any]:
    """The recipe's plain values with paths that do not depend on the working directory; ``~`` and ``${VAR}`` stay."""
    values = recipe_values(recipe)
    values["store"]["path"] = anywhere(str(recipe.store_path))
    data, backbone, prior = values["data"], values["backbone"], values["prior"]
    for key in recipe.data.places:
        data[key] = data[key] and anywhere(data[key])
    if backbone["weights"] not in ("bundled", "pretrained"):
        backbone["weights"] = anywhere(local_folder(backbone["weights"]) or backbone["weights"])
    prior["teachers"] = [anywhere(path) for path in prior["teachers"]]
    return values


def anywhere(path: str) -> str:
    """A path that means the same in every working directory."""
    return path if is_bucket(path) or path.startswith(("~", "$")) else os.path.abspath(path)


def rounding_of(device: torch.device) -> str:
    """What decides how sums are rounded on a device: a GPU's name, or the CPU's kind, its vector instructions and what
    Intel's library was told."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    setting = os.environ.get(VARIABLE)
    kind = f"{platform.system()} on {platform.machine()}"  # a Mac's and an ARM server's instructions are both "DEFAULT"
    said = [device.type, kind, torch.backends.cpu.get_cpu_capability(), *([f"{VARIABLE}={setting}"] if setting else [])]
    return ", ".join(said)


def check_alike(one: str, other: str, what: str) -> None:
    """ClusterError if ``rounding_of`` says something else on ``one`` worker than on the ``other``."""
    if one != other:
        raise ClusterError(
            f"workers with different processors cannot {what}: they round differently",
            got=f"a worker with {one} beside {other}",
            do="start workers on one kind of machine, or set the recipe's device",
        )
