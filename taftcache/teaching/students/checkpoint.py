"""A training run on disk: one safetensors file with its JSON inside, replaced by a rename."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from taftcache.backbone.model import weights_digest
from taftcache.errors import FormatError
from taftcache.names import META
from taftcache.report.write import write_bytes


def write_tensors(file: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write atomically: after a crash the file is the old one or the new one.

    Raises:
        StoreWriteError: the disk is full or failed.
    """
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    header = {"digest": weights_digest(held), "meta": meta}
    # One metadata key, because several would be written in an order that varies between runs.
    write_bytes(file, save(held, {META: json.dumps(header, sort_keys=True)}))


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON.

    Raises:
        FormatError: not a file that ``write_tensors`` made, or no longer what it wrote.
    """
    try:
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][META])
        tensors, meta = load(data), header["meta"]
        if weights_digest(tensors) != header["digest"]:
            raise ValueError("its tensors are not those of its digest")
        return tensors, meta
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{file} is no checkpoint, or damaged", got=error, do="delete it") from error


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors."""
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value) for number, held in state.items() for name, value in held.items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimiser_tensors`` took."""
    held = optimiser.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = tensor
    held["state"] = state
    optimiser.load_state_dict(held)
