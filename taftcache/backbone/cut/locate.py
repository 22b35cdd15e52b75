"""Where a timm model can be cut: the module for a name or a depth, and the classifier behind the tail."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import torch
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn
from torch.func import functional_call

from taftcache.backbone.cut.trace import CallTrace, Shape, feature
from taftcache.backbone.model import Backbone
from taftcache.errors import BackboneError

WITHOUT_HEAD = "build the model with num_classes = 0 in model_args, which leaves the head away"
_TRIED = 8  # modules near a refused cut that are tried, each with a pass of two images, before those of `_pieces`
_LISTED = 12  # blocks that a refusal names
_MISTYPED = 0.75  # how alike a name is that must have been meant
_LINEAR = 1e-4  # relative, of logits in float32; a second head or a normalisation is off by tenths


def classifier_of(backbone: Backbone) -> str:
    """timm's name for the classifier."""
    model: Any = backbone.model
    if isinstance(model, VisionTransformerDistilled):
        return "head"
    if not callable(getattr(model, "get_classifier", None)):
        raise BackboneError(
            f"{backbone.name} does not name its classifier, as timm's models do",
            got=f"a {type(model).__name__} without get_classifier",
            do="choose one of timm's",
        )
    try:
        found = model.get_classifier()
    except AttributeError:  # some models look for it inside a head that was left out
        found = None
    name: str | None = next((name for name, module in model.named_modules() if module is found), None)
    if name is not None and isinstance(found, (nn.Linear, nn.Identity)):
        return name
    if model.num_classes == 0:  # nothing comes after the head's input, whatever still bears the classifier's name
        return "head"
    raise BackboneError(
        f"the head of {backbone.name} is not one Linear layer",
        got=f"a {type(found).__name__}",
        do=WITHOUT_HEAD,
    )


def check_linear(name: str, model: nn.Module, classifier: str, image_shape: tuple[int, ...], do: str) -> None:
    """BackboneError, with the advice ``do``, if the logits of ``model`` are not its classifier applied to ``feature``.

    Random numbers take the place of the classifier's own, which may be zeros and would hide a difference.
    """
    generator = torch.Generator().manual_seed(0)
    held = {f"{classifier}.{part}": tensor for part, tensor in model.get_submodule(classifier).named_parameters()}
    drawn = {key: torch.randn(tensor.shape, generator=generator).to(tensor) for key, tensor in held.items()}
    images = torch.randn(2, *image_shape, generator=generator).to(next(model.parameters()))
    weight, bias = (drawn.get(f"{classifier}.{part}") for part in ("weight", "bias"))
    with torch.no_grad():
        features = feature(model, images)
        logits = functional_call(model, drawn, (images,))
        assert weight is not None
        fits = features.shape[-1] == weight.shape[-1]
        found = nn.functional.linear(features, weight, bias) if fits else None
    if isinstance(logits, Tensor) and logits.ndim > 2:
        raise BackboneError(
            f"{name} does not pool: it gives one image several rows of logits",
            got=f"logits {list(logits.shape)} for two images",
            do="leave global_pool out of model_args",
        )
    if found is None or not isinstance(logits, Tensor) or found.shape != logits.shape:
        got = "logits of another shape"
    elif (off := (found - logits).norm() / logits.norm()) > _LINEAR:
        got = f"logits {off.item():.1e} off"
    else:
        return
    raise BackboneError(
        f"the logits of {name} are not one linear map of its feature",
        got=f"{got} from {classifier} on forward_head(pre_logits=True)",
        do=do,
    )


def locate(name: str, trace: CallTrace, blocks: int | str, model: nn.Module, fits: Callable[[str], bool]) -> str:
    """timm's name for the module that ``blocks`` cuts before, "" for the head. fits: tries a module, for the advice."""
    if blocks == 0:
        return ""
    if isinstance(blocks, int):
        if not 0 < blocks <= len(trace.blocks):
            raise BackboneError(
                f"tangent.blocks is {blocks}, more than the {len(trace.blocks)} blocks of {name}",
                got=f"blocks: {', '.join(trace.blocks[-4:]) or 'none that are known as such'}",
                do=f"a number from 0, for the head alone, to {len(trace.blocks)}"
                if trace.blocks
                else _advice(_pieces(trace, model), fits),
            )
        blocks = trace.blocks[-blocks]
    if blocks not in trace.called:
        exists = any(blocks == n for n, _ in model.named_modules())
        near = [n for n in trace.names if n.startswith(f"{blocks}.")][:3] if exists else []
        near = near or difflib.get_close_matches(blocks, trace.names, n=4, cutoff=_MISTYPED)
        alike = difflib.get_close_matches(blocks, trace.names, n=4, cutoff=0.3)
        near = near or [*dict.fromkeys([*trace.blocks[-_LISTED:], *alike])]
        raise BackboneError(
            f"{name} does not call {blocks!r} as a whole" if exists else f"{name} has no module {blocks!r}",
            do=f"one of {', '.join(near)}",
        )
    if reason := _refusal(trace, blocks):
        raise BackboneError(
            f"{name} cannot be cut before {blocks}: it {reason}", do=elsewhere(trace, model, blocks, fits)
        )
    return blocks


def elsewhere(trace: CallTrace, model: nn.Module, refused: str, fits: Callable[[str], bool]) -> str:
    """In words, where else to cut. Nearest first: modules that contain ``refused``, blocks before it, the rest."""
    before = trace.names[: trace.names.index(refused)][::-1]
    around = [name for name in before if refused.startswith(f"{name}.")]
    near = dict.fromkeys([*around, *(name for name in before if name in trace.blocks)])
    # To cut before a sequence is to cut before its first member.
    whole = [name for name in near if not isinstance(model.get_submodule(name), nn.Sequential)]
    found = [name for name in whole if not _refusal(trace, name)][:_TRIED]
    return _advice([*found, *(name for name in _pieces(trace, model) if name not in (refused, *found))], fits)


def _advice(names: list[str], fits: Callable[[str], bool]) -> str:
    """Advice to cut before the first of ``names`` where that is possible."""
    if found := next((name for name in names if fits(name)), None):
        return f"cut before {found}, or 0 for the head alone"
    none = f"; before none of the {len(names)} modules that were tried can it be cut" if names else ""
    return f"0, for the head alone{none}"


def _pieces(trace: CallTrace, model: nn.Module) -> list[str]:
    """The last large modules that can be cut before, last first, for a model whose blocks have no names of that kind.

    Modules that only hold others are opened: sequences, and those that are given the image or several tensors.
    """
    opened, found = {-1}, []
    for k, call in enumerate(trace.calls):
        module, given = model.get_submodule(call.name), call.given
        if call.parent not in opened:
            continue
        if isinstance(module, nn.Sequential) or not isinstance(given, Shape) or given == trace.image:
            opened.add(k)
        elif not _refusal(trace, call.name) and any(True for _ in module.parameters()):
            found.append(call.name)
    # A single layer, such as a last norm, is a poor tail: put it after modules with several layers.
    layers = {name: {n.rpartition(".")[0] for n, _ in model.get_submodule(name).named_parameters()} for name in found}
    return sorted(found[-4:][::-1], key=lambda name: len(layers[name]) < 2)


def _refusal(trace: CallTrace, name: str) -> str:
    """Why the model cannot be cut before the module ``name`` that it calls; "" if nothing is known against it."""
    calls = [call for call in trace.calls if call.name == name]
    given = calls[0].given
    if len(calls) > 1:
        return f"is called {len(calls)} times"
    if not isinstance(given, Shape) or not given.dtype.is_floating_point:
        return "is not given one tensor first"
    if given.counts != (0,) or given.lengths[0] != 1 or len(given.lengths) < 2:
        return f"is given {list(given.lengths)} for one image, in which images are not the first axis"
    return ""
