"""A model to be trained: any timm model with a linear classifier, with its feature and its logits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from taftcache.backbone.build import build
from taftcache.backbone.cut.locate import check_linear
from taftcache.backbone.device import float64_device
from taftcache.backbone.files import STUDENT
from taftcache.backbone.model import Backbone, load_backbone, not_built, wrap_model
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.errors import BackboneError

RANDOM = "random"


@dataclass(frozen=True)
class Student:
    """``model`` with a new head; ``backbone`` is the same model with its preprocessing. width: of the feature."""

    backbone: Backbone
    width: int

    @property
    def model(self) -> nn.Module:
        """The timm model, all of whose parameters train."""
        return self.backbone.model

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Feature [n,width], the head's input, and logits [n,K] of images [n,3,h,w]."""
        model: Any = self.model
        feature = model.forward_head(model.forward_features(images), pre_logits=True)
        return feature, model.get_classifier()(feature)


@torch.inference_mode(False)  # inference tensors cannot be trained
def build_student(
    model: str | None,
    weights: str,
    model_args: dict[str, Any],
    preprocess: PreprocessSpec,
    classes: int,
    seed: int,
    device: str = "cpu",
    blocks: int | None = None,
) -> Student:
    """A timm model with a new classifier for ``classes``; what is random comes from ``seed`` alone.

    Args:
        model, weights, model_args: as a ``BackboneSpec`` has them; weights may also be "random".
        preprocess: overrides of the model's own.
        classes: K. seed: of the head, and of random weights.
        device: where it is trained.
        blocks: of a transformer, how many of the first are kept; all by default.

    Raises:
        BackboneError: as ``load_backbone``; a model whose logits are not one linear map of one feature, or that does
            not have that many blocks.
    """
    with torch.random.fork_rng(devices=[]), _float32_by_default():
        torch.manual_seed(seed)
        if weights == RANDOM:
            try:
                made = build(model or "", model_args)
            except BackboneError:
                raise
            except Exception as error:  # timm and the model's constructor may raise anything
                raise not_built(str(model), model_args, error, section=STUDENT) from error
            backbone = wrap_model(made, str(model), preprocess, "cpu", model_args=model_args, weights=RANDOM)
        else:
            spec = BackboneSpec(model=model, weights=weights, model_args=model_args)
            backbone = load_backbone(spec, preprocess, section=STUDENT)
        if blocks is not None:
            backbone = _first_blocks(backbone, blocks)
        module: Any = backbone.model
        module.reset_classifier(classes)
        head = module.get_classifier()
        if not isinstance(head, torch.nn.Linear):
            raise BackboneError(
                f"the student {backbone.name} has no linear classifier",
                got=f"a {type(head).__name__}",
                do="take a model with a linear classifier",
            )
        torch.manual_seed(seed)
        head.reset_parameters()
    module.requires_grad_(True)
    shape = tuple(backbone.data_config["input_size"])
    name = next(name for name, part in module.named_modules() if part is head)
    check_linear(f"the student {backbone.name}", module, name, shape, do="take another model")
    student = Student(backbone, head.in_features)
    module.to(float64_device(device))  # priors are solved in float64
    return student


@contextmanager
def _float32_by_default() -> Iterator[None]:
    """Layers draw their numbers in torch's default dtype, which a program may have changed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _first_blocks(backbone: Backbone, count: int) -> Backbone:
    """The model with only its first ``count`` blocks; what comes before and after the blocks stays."""
    module: Any = backbone.model
    held, options = getattr(module, "blocks", None), inspect.signature(type(module)).parameters
    if not isinstance(held, nn.Sequential) or count > len(held):
        has = f"{len(held)} blocks" if isinstance(held, nn.Sequential) else "no sequence of blocks"
        raise BackboneError(
            f"the student {backbone.name} has fewer blocks than are to be kept",
            got=f"{has}, student.blocks = {count}",
            do="lower student.blocks, or take a vision transformer",
        )
    depth = {name: count for name in ("depth", "num_blocks") if name in options}
    if not depth:
        raise BackboneError(
            f"timm builds no {backbone.name} of fewer blocks, which could not be loaded again",
            got=f"student.blocks = {count}",
            do="leave student.blocks out, or take a vision transformer",
        )
    module.blocks = held[:count]
    config = {**backbone.config, "model_args": {**backbone.config["model_args"], **depth}}
    return replace(backbone, name=f"{backbone.name}, first {count} of {len(held)} blocks", config=config)
