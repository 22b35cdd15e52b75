"""A model's code without its weights, for tails that are linearised by running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from taftcache.backbone.build import build
from taftcache.backbone.cut.remainder import Remainder
from taftcache.backbone.cut.trace import trace
from taftcache.backbone.spec import check_options
from taftcache.errors import BackboneError
from taftcache.tangent.config import TailConfig


def tail_module(identity: Mapping[str, Any], config: TailConfig, state: Mapping[str, Tensor]) -> nn.Module:
    """The tail that ``config`` describes, from rows to the head's input, built anew by timm.

    Every tensor that is trained or was loaded comes from ``state`` at each call; no file of weights is needed.

    Args:
        identity: the store's identity; "backbone" names the model, "preprocess" the images' size.
        config: what the tail is.
        state: the tail's tensors by timm's names, for their shapes.

    Raises:
        BackboneError: this timm has no such model, or builds another one. RecipeError: options that load files.
    """
    backbone = identity["backbone"]
    name, options = backbone["model"], backbone["model_args"]
    check_options(options)
    image_shape = tuple(identity["preprocess"]["input_size"])
    try:
        model = build(name, options)
    except BackboneError:
        raise
    except Exception as error:  # timm and the model's constructor raise whatever they like
        raise BackboneError(
            "timm cannot build the model that made the store",
            got=f"{name} with {options}: {type(error).__name__}: {error}",
            do="use the version of timm that the store names",
        ) from error
    model = model.float().eval().requires_grad_(False)
    traced = trace(model, name, image_shape)
    names = (*config.parameters, *config.buffers)
    own = model.state_dict()
    wrong = [n for n in names if n not in own or own[n].shape != state[n].shape]
    if config.start not in traced.called or wrong:
        raise BackboneError(
            "this timm builds another model than the one that made the store",
            got=f"{name} with {options} has no {config.start}"
            if config.start not in traced.called
            else f"{name} with {options} differs in {', '.join(wrong[:3])}",
            do="use the version of timm that the store names",
        )
    rest = Remainder(model, traced, config.start, image_shape)
    rest.fill(model, names)
    return rest
