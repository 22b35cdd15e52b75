"""What runs inside a model, in order: read from two passes over different numbers of images.

Only names, order and shapes are kept, so the passes run on torch's meta device, where nothing is computed; small
models run as they are, which takes a fifth of that time. That is enough to cut a model before any module that it calls:
calls that had ended by then need not run again, and what comes after is the tail.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from taftcache.backbone.every_block import EveryBlock
from taftcache.errors import BackboneError

# timm's names for residual blocks; if one such name lies inside another, the inner one is the block.
_BLOCK = re.compile(
    r"(?:layers|stages|network)\.\d+(?:(?:\.blocks)?\.\d+)?|(?:blocks|blocks_token_only|cls_attn_blocks)\.\d+(?:\.\d+)?"
    r"|(?:encoder|transformers\.\d+)\.blocks\.\d+|(?:body\.)?layer\d+\.\d+|stage\d+\.\d+|s\d+\.b\d+"
)
# Two sizes tell an axis that counts images from one that does not; neither is 1, which squeezing would hide.
_SIZES = (2, 3)
# Most parameters times pixels of an image for which a pass takes only a few hundredths of a second.
_SMALL = 10**10


@dataclass
class Call:
    """One call of the module ``name``; ``parent`` is the call that made it, -1 outside all.

    given: the shape of the first input, if that is a tensor. output: what it returned, tensors as shapes.
    ended: how many calls had begun when it returned.
    source: the call whose output is the first input, unchanged; -1 if there is none.
    """

    name: str
    parent: int
    given: Shape | None = None
    output: Any = None
    ended: int = -1
    source: int = -1


@dataclass(frozen=True)
class Shape:
    """A tensor's shape for a number of images; the axes in ``counts`` are that many times as long."""

    lengths: tuple[int, ...]
    dtype: torch.dtype
    counts: tuple[int, ...] = ()

    def of(self, n: int) -> tuple[int, ...]:
        """For n images."""
        return tuple(n * length if axis in self.counts else length for axis, length in enumerate(self.lengths))


@dataclass
class CallTrace:
    """The calls of one pass, in the order in which they began, and the shapes of the image and of the head's input."""

    calls: list[Call] = field(default_factory=list)
    feature: Shape | None = None
    image: Shape | None = None

    @cached_property
    def called(self) -> set[str]:
        """Every module that is called."""
        return {call.name for call in self.calls}

    @property
    def names(self) -> list[str]:
        """Every module that is called, in the order of first calls."""
        return list(dict.fromkeys(call.name for call in self.calls))

    @property
    def blocks(self) -> list[str]:
        """The residual blocks among them."""
        found = [name for name in self.names if _BLOCK.fullmatch(name)]
        return [name for name in found if not any(other.startswith(f"{name}.") for other in found)]


def feature(model: Any, images: Tensor) -> Tensor:
    """The classifier's input [n,width]; for a distilled DeiT [x_cls | x_dist]/2, because its two heads are averaged."""
    tokens = model.forward_features(images)
    if isinstance(model, VisionTransformerDistilled):
        return torch.cat([tokens[:, 0], tokens[:, 1]], 1) / 2
    pooled: Tensor = model.forward_head(tokens, pre_logits=True)
    return pooled


def trace(model: nn.Module, name: str, image_shape: tuple[int, ...]) -> CallTrace:
    """Run ``model`` on blank images and note what it calls.

    Raises:
        BackboneError: it has no features of timm's kind, cannot take such images, or calls other modules for another
            number of images.
    """
    small = sum(p.numel() for p in model.parameters()) * prod(image_shape[1:]) <= _SMALL
    try:
        blank = model if small else _without_numbers(model)
        first, second = (_run(blank, name, _images(blank, n, image_shape)) for n in _SIZES)
    except BackboneError:  # the model looks at values, or cannot be run at all: the real pass tells which
        first, second = (_run(model, name, _images(model, n, image_shape)) for n in _SIZES)
    if [(c.name, c.parent, c.ended) for c in first.calls] != [(c.name, c.parent, c.ended) for c in second.calls]:
        raise BackboneError(f"{name} calls other layers for another number of images")
    for a, b in zip(first.calls, second.calls, strict=True):
        a.given, a.output = _scaled(a.given, b.given), _scaled(a.output, b.output)
    first.feature, first.image = _scaled(first.feature, second.feature), _scaled(first.image, second.image)
    if first.feature is None or len(first.feature.lengths) != 2 or first.feature.counts != (0,):
        raise BackboneError(
            f"the classifier's input of {name} is not one vector for each image",
            got=None if first.feature is None else list(first.feature.lengths),
            do="build the model with pooling (global_pool)",
        )
    return first


def _images(model: nn.Module, n: int, image_shape: tuple[int, ...]) -> Tensor:
    """n blank images on the model's device and in its dtype."""
    return next(model.parameters()).new_zeros(n, *image_shape)


def _without_numbers(model: nn.Module) -> nn.Module:
    """A copy of ``model`` on the meta device, made without copying a number."""
    tensors: dict[int, Any] = {id(p): nn.Parameter(p.to("meta"), requires_grad=False) for p in model.parameters()}
    tensors |= {id(b): b.to("meta") for b in model.buffers()}
    return copy.deepcopy(model, tensors)


def _run(model: nn.Module, name: str, images: Tensor) -> CallTrace:
    with torch.no_grad(), listening(model) as made:
        try:
            made.image, made.feature = _shapes(images), _shapes(feature(model, images))
        except (AssertionError, RuntimeError, ValueError, NotImplementedError) as error:
            raise BackboneError(
                f"{name} does not take images of the size {tuple(images.shape[1:])}",
                got=str(error),
                do="set preprocess.input_size and, where the model has it, model_args.img_size to a size that it takes"
                "; images have three channels, in RGB",
            ) from error
        except Exception as error:  # a model's code may raise anything
            wide = isinstance(model, EveryBlock)
            run_by = "forward_intermediates" if wide else "forward_features and forward_head(pre_logits)"
            raise BackboneError(
                f"{name} cannot be run by timm's {run_by}",
                got=f"{type(error).__name__}: {error}",
                do='set backbone.features = "last"' if wide else "choose another model of timm's",
            ) from error
    return made


@contextmanager
def listening(model: nn.Module) -> Iterator[CallTrace]:
    """A ``CallTrace`` of what ``model`` calls while the context lasts, with shapes as they are."""
    made, stack = CallTrace(), [-1]
    outputs: dict[int, int] = {}  # id of an output tensor → the call
    held: list[Tensor] = []  # so that no id is given out twice

    def begin(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            call = Call(name, stack[-1])
            if args and isinstance(args[0], Tensor):
                call.given, call.source = _shapes(args[0]), outputs.get(id(args[0]), -1)
            stack.append(len(made.calls))
            made.calls.append(call)

        return hook

    def end(_: nn.Module, args: Any, output: Any) -> None:
        index = stack.pop()
        call = made.calls[index]
        call.output, call.ended = _shapes(output), len(made.calls)
        if isinstance(output, Tensor):
            outputs[id(output)] = index  # a container returns its last member's tensor: the outer call counts
            held.append(output)

    handles = []
    for name, module in model.named_modules():
        if name:
            handles += [module.register_forward_pre_hook(begin(name)), module.register_forward_hook(end)]
    try:
        yield made
    finally:
        for handle in handles:
            handle.remove()


def _shapes(value: Any) -> Any:
    """``value`` with a ``Shape`` in place of every tensor."""
    if isinstance(value, Tensor):
        return Shape(tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(_shapes(v) for v in value)
    if isinstance(value, dict):
        return {k: _shapes(v) for k, v in value.items()}
    return value


def _scaled(a: Any, b: Any) -> Any:
    """Two runs' shapes as one, for one image."""
    if isinstance(a, Shape):
        small, large = _SIZES
        counts = tuple(k for k, (x, y) in enumerate(zip(a.lengths, b.lengths, strict=True)) if x != y)
        if any(a.lengths[k] * large != b.lengths[k] * small for k in counts):
            raise BackboneError(
                "shapes within the model do not grow with the number of images", got=f"{a.lengths} and {b.lengths}"
            )
        return Shape(tuple(x // small if k in counts else x for k, x in enumerate(a.lengths)), a.dtype, counts)
    if isinstance(a, (tuple, list)):
        return type(a)(_scaled(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return {k: _scaled(x, b[k]) for k, x in a.items()}
    return a
