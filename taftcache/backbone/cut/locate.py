"""Where a timm model can be cut: the module of a name or a depth, and the classifier behind the tail."""

from __future__ import annotations

import difflib
from typing import Any

from timm.models.deit import VisionTransformerDistilled
from torch import nn

from taftcache.backbone.cut.trace import CallTrace, Shape
from taftcache.backbone.model import Backbone
from taftcache.errors import BackboneError


def classifier_of(backbone: Backbone) -> str:
    """timm's name of the classifier."""
    model: Any = backbone.model
    if isinstance(model, VisionTransformerDistilled):
        return "head"
    try:
        found = model.get_classifier()
    except AttributeError as error:
        raise BackboneError(
            f"{backbone.name} does not name its classifier, as timm's models do",
            got=str(error),
            do="choose one of timm's",
        ) from error
    name: str | None = next((name for name, module in model.named_modules() if module is found), None)
    if name is None or not isinstance(found, (nn.Linear, nn.Identity)):
        raise BackboneError(
            f"the head of {backbone.name} is not one Linear layer",
            got=f"a {type(found).__name__}",
            do="build the model with num_classes = 0 in model_args, which leaves the head away",
        )
    return name


def locate(name: str, trace: CallTrace, blocks: int | str, model: nn.Module) -> str:
    """timm's name of the module before which ``blocks`` cuts; "" for the head."""
    if blocks == 0:
        return ""
    if isinstance(blocks, int):
        if not 0 < blocks <= len(trace.blocks):
            raise BackboneError(
                f"tangent.blocks is {blocks}, more than the {len(trace.blocks)} blocks of {name}",
                got=f"blocks: {', '.join(trace.blocks[-4:]) or 'none that are known as such'}",
                do=f"name a module instead, one of {', '.join(trace.names[:8])}, …",
            )
        blocks = trace.blocks[-blocks]
    calls = [call for call in trace.calls if call.name == blocks]
    if not calls:
        exists = any(blocks == n for n, _ in model.named_modules())
        near = [n for n in trace.names if n.startswith(f"{blocks}.")][:3] if exists else []
        near = near or difflib.get_close_matches(blocks, trace.names, n=4, cutoff=0.3) or trace.blocks[-4:]
        raise BackboneError(
            f"{name} does not call {blocks!r} as a whole" if exists else f"{name} has no module {blocks!r}",
            do=f"one of {', '.join(near)}",
        )
    given = calls[0].given
    if len(calls) > 1:
        reason = f"is called {len(calls)} times"
    elif not isinstance(given, Shape) or not given.dtype.is_floating_point:
        reason = "is not given one tensor first"
    elif given.counts != (0,) or given.lengths[0] != 1 or len(given.lengths) < 2:
        reason = f"is given {list(given.lengths)} for one image, in which images are not the first axis"
    else:
        return blocks
    raise BackboneError(
        f"{name} cannot be cut before {blocks}: it {reason}",
        do=f"one of {', '.join(trace.blocks[-4:]) or ', '.join(trace.names[:4])}",
    )
