"""Put a file's tensors into a model, or say exactly which do not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from taftcache.errors import BackboneError

_SHOWN = 6
_POSITIONS = "pos_embed"
_RESAMPLED = ("patch_embed.proj.weight", _POSITIONS)  # what timm's conversion gives another number of patches or pixels


def load_into(model: nn.Module, path: Path) -> dict[str, Any]:
    """Copy the tensors of the safetensors file ``path`` into ``model``, cast to the model's dtype.

    Float16 and bfloat16 become float32 exactly. Where names or shapes differ, timm's own conversion
    is tried (position embeddings of another grid, other spellings). A head that is absent or has another number
    of classes is no error, because the head is re-initialised before training anyway: it is
    filled with zeros, so that the model's digest does not depend on a random draw. A model without
    classes leaves out all that the file holds of the head, such as a normalisation before its last layer.

    Returns what was done beyond copying, for the record: {} or "converted", "resized" and "head" with a sentence, and
    "img_size", the model's argument with which nothing is resized.
    Raises BackboneError naming missing, unexpected and mis-shaped tensors.
    """
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BackboneError(f"the weights {path} cannot be read as safetensors", got=str(error)) from error
    given, head = stored, _head_names(model, stored)
    stored, done, problems = _fitting(model, given, head)
    if problems:
        raise _unfit(model, path, given, problems)
    own = model.state_dict()
    misfit = [k for k in head if (k in own) != (k in stored) or (k in own and own[k].shape != stored[k].shape)]
    if misfit:
        shapes = [f"{k} {_shape(stored, k)} for {_shape(own, k)}" for k in misfit]
        done["head"] = f"zeros, the file's head does not fit: {_first(shapes)}"
    with torch.no_grad():
        for name, tensor in own.items():
            if misfit and name in head:
                tensor.zero_()
            else:
                tensor.copy_(stored[name])
    return done


def _fitting(
    model: nn.Module, stored: dict[str, Tensor], head: list[str]
) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """The tensors as the model has them, what was done to get there, and what does not fit."""
    problems = _differences(model, stored, head)
    if problems and isinstance(model, VisionTransformer):
        converted = _convert(stored, model)
        if converted is not None and not _differences(model, converted, head):
            done = {"converted": "names or position embeddings converted by timm"}
            return converted, done | _resized(stored, converted, model), []
    return stored, {}, problems


def _unfit(model: nn.Module, path: Path, stored: dict[str, Tensor], problems: list[str]) -> BackboneError:
    """Why the tensors do not fit; if they would without what their names begin with, that."""
    first = next(iter(stored), "")
    for end in (dot.end() for dot in re.finditer(r"\.", first)):
        prefix, inner = first[:end], {name[end:]: tensor for name, tensor in stored.items()}
        if not all(name.startswith(prefix) for name in stored):
            break
        if not _fitting(model, inner, _head_names(model, inner))[2]:
            return BackboneError(
                f"the names of the weights in {path.name} begin with {prefix!r}, and those of the model do not",
                got=first,
                do="save them without it, with load_file and save_file of safetensors.torch: "
                f"save_file({{name[{end}:]: tensor for name, tensor in load_file({path.name!r}).items()}}, "
                "'NEW.safetensors')",
            )
    return BackboneError(
        f"the weights in {path.name} do not fit the model {type(model).__name__}",
        got="; ".join(problems),
        do="name the model the weights were saved from, with the same model_args; a store needs those that it was made "
        "with",
    )


def _head_names(model: Any, stored: Mapping[str, Tensor]) -> list[str]:
    """Names of the classifier's tensors; if the model has no classifier now, of all that belonged to it in the file."""
    classifier = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or "head"
    prefixes = [classifier] if isinstance(classifier, str) else list(classifier)
    names = [f"{prefix}.{part}" for prefix in prefixes for part in ("weight", "bias")]
    if getattr(model, "num_classes", None) == 0:
        own, holders = model.state_dict(), {prefix.partition(".")[0] for prefix in prefixes}
        names += [k for k in stored if k.partition(".")[0] in holders and k not in own and k not in names]
    return names


def _differences(model: nn.Module, stored: Mapping[str, Tensor], head: list[str]) -> list[str]:
    """Sentences on what does not fit, the head aside; empty if all fits."""
    own = {k: v for k, v in model.state_dict().items() if k not in head}
    missing = sorted(own.keys() - stored.keys())
    unexpected = sorted(stored.keys() - own.keys() - set(head))
    shared = sorted(own.keys() & stored.keys())
    misshaped = [f"{k} {_shape(stored, k)} for {_shape(own, k)}" for k in shared if own[k].shape != stored[k].shape]
    typed = [f"{k} {stored[k].dtype}" for k in shared if own[k].is_floating_point() != stored[k].is_floating_point()]
    found = {"missing": missing, "unexpected": unexpected, "mis-shaped": misshaped, "of a wrong type": typed}
    return [f"{len(names)} {what}: {_first(names)}" for what, names in found.items() if names]


def _first(said: list[str]) -> str:
    return f"{', '.join(said[:_SHOWN])}{' ...' * (len(said) > _SHOWN)}"


def _convert(stored: dict[str, Tensor], model: VisionTransformer) -> dict[str, Tensor] | None:
    """timm's conversion of ``stored``, or None if timm cannot make sense of the file."""
    try:
        return checkpoint_filter_fn({k: v.float() if v.is_floating_point() else v for k, v in stored.items()}, model)
    except (RuntimeError, KeyError, ValueError, AssertionError, IndexError, AttributeError):
        return None


def _resized(stored: Mapping[str, Tensor], converted: Mapping[str, Tensor], model: VisionTransformer) -> dict[str, Any]:
    """Which tensors timm interpolated, for the record; {} if none, for a file's names may be all that it converted."""
    there = {tensor.numel() for tensor in stored.values()}  # a tensor may have another name in the file
    names = [
        name
        for name in _RESAMPLED
        if name in converted and converted[name].numel() not in ({stored[name].numel()} if name in stored else there)
    ]
    if not names:
        return {}
    was = {name: f" {_shape(stored, name)}" if name in stored else "" for name in names}
    done: dict[str, Any] = {"resized": ", ".join(f"{k}{was[k]} to {_shape(converted, k)}" for k in names)}
    if names == [_POSITIONS] and _POSITIONS in stored:
        embed, prefix = model.patch_embed, 0 if model.no_embed_class else model.num_prefix_tokens
        patches = stored[_POSITIONS].shape[1] - prefix
        sides = {size // count for size, count in zip(embed.img_size, embed.grid_size, strict=True)}
        if len(sides) == 1 and isqrt(patches) ** 2 == patches:
            done["img_size"] = isqrt(patches) * sides.pop()
    return done


def _shape(tensors: Mapping[str, Tensor], name: str) -> str:
    return "x".join(map(str, tensors[name].shape)) if name in tensors else "absent"
