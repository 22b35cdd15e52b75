"""Have timm build a model under limits on its size, since a stranger's folder or store may give the arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from threading import get_ident
from typing import Any

import timm
import torch
from timm.models import PretrainedCfg
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook as on_parameter
from torch.overrides import TorchFunctionMode

from taftcache.backbone.files import WEIGHTS_NAME, local_folder
from taftcache.errors import BackboneError
from taftcache.tangent.device import on_the_cpu

LARGEST = 1 << 20  # of whole numbers in a model's arguments: timm lists that many blocks before it builds the first
TENSORS = 10_000  # most parameters of a model; timm's have at most 2,000
NUMBERS = 1 << 34  # most numbers in them; timm's have at most half as many
BEYOND = 1 << 28  # most numbers that a model has beyond its file: a head of many classes, a finer grid of positions

# For a repository of the hub, which a recipe or a store names: without this, timm loads a pickle where there is no such
# file, or whatever file the repository's own config.json names.
_SAFE = {"hf_hub_filename": WEIGHTS_NAME, "custom_load": False}
_FILLING = {"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_"}  # a truncated normal is drawn with these


def build(name: str, options: Mapping[str, Any], *, file: Path | None = None, pretrained: bool = False) -> Any:
    """``timm.create_model``, but a model that is too large is refused while it grows, not once memory is gone.

    torch's random numbers go on afterwards as if no model had been built.

    Args:
        name, options, pretrained: as for timm.
        file: the weights that the model will take; each number takes at least a byte there. Its parameters are then not
            drawn at random first, which would take ten times as long as reading them.

    Raises:
        BackboneError: more parameters than any model has, or more numbers than the file. Whatever timm raises.
    """
    check_sizes(name, options)
    most = NUMBERS if file is None else file.stat().st_size + BEYOND
    tensors, numbers, here = 0, 0, get_ident()

    def count(module: nn.Module, key: str, parameter: nn.Parameter) -> None:
        nonlocal tensors, numbers
        if get_ident() != here:  # torch calls this hook for models built in other threads, too
            return
        tensors, numbers = tensors + 1, numbers + parameter.numel()
        if tensors > TENSORS or numbers > most:
            raise BackboneError(
                f"the model {name} is too large" + ("" if file is None else " for its weights"),
                got=f"{tensors} parameters with {numbers} numbers, and more",
                do="correct model_args",
            )

    hook = on_parameter(count)
    try:
        with on_the_cpu(), torch.random.fork_rng(devices=[]), nullcontext() if file is None else _Unfilled():
            overlay = _SAFE if pretrained and is_of_hub(name) else None
            model: Any = timm.create_model(name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **options)
    finally:
        hook.remove()
    if not getattr(model, "pretrained_cfg", None):
        model.pretrained_cfg = _described(name)
    return model


def is_of_hub(name: str) -> bool:
    """Whether timm takes the model from a repository of the hub, not from its own list or a folder."""
    return ":" in name and not local_folder(name)


def _described(name: str) -> dict[str, Any]:
    """The description that timm's builder would have given a model that a program registered and made without it."""
    if folder := local_folder(name):
        written = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return {**written["pretrained_cfg"], "architecture": written["architecture"]}
    described: dict[str, Any] = PretrainedCfg(architecture=name).to_dict()
    return described


class _Unfilled(TorchFunctionMode):
    """Inside, parameters keep whatever their memory held."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        filling = getattr(func, "__module__", "") == "torch.nn.init" or getattr(func, "__name__", "") in _FILLING
        kwargs = kwargs or {}
        tensor = args[0] if args else kwargs.get("tensor")
        if filling and isinstance(tensor, nn.Parameter):
            return tensor
        return func(*args, **kwargs)


def check_sizes(name: str, options: Any) -> None:
    """BackboneError for a whole number, in lists and tables too, that is larger than in any model."""
    if isinstance(options, Mapping):
        options = list(options.values())
    if isinstance(options, list | tuple):
        for option in options:
            check_sizes(name, option)
    elif isinstance(options, int) and options > LARGEST:
        raise BackboneError(
            f"the model {name} is too large", got=f"{options} among its arguments", do="correct model_args"
        )
