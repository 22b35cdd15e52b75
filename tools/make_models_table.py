"""Write docs/models.md: how models of each family are cut and linearised, and how exact that is.

python tools/make_models_table.py            write the page
python tools/make_models_table.py ViT Swin   print the rows of these families

Each family is checked on a small model of its kind with random weights, in float64, against torch.func on
the whole model: no cut, no rows, timm's own forward and classifier. The sizes are those of the model as named.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.cut.locate import locate
from taftcache.backbone.cut.remainder import forget_cached
from taftcache.backbone.cut.trace import CallTrace, trace
from taftcache.backbone.files import BUNDLED
from taftcache.backbone.model import Backbone, wrap_model
from taftcache.backbone.spec import PreprocessSpec
from taftcache.tangent.base import Base, make_base

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
CLASSES = 5


@dataclass(frozen=True)
class Family:
    """A timm model, what makes a small one of it, and where it is cut."""

    name: str
    model: str
    blocks: int | str = 1
    small: dict[str, Any] = field(default_factory=dict)
    size: int = 32


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
_SWIN = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (1, 1, 2), "num_heads": (1, 2, 4)}
_TINY = {"embed_dims": (8, 16, 16, 32), "depths": (1, 1, 1, 2), "num_heads": (1, 2, 2, 4), "window_sizes": (7, 7, 7, 7)}
_CONV = {"depths": (1, 1, 1, 2), "dims": (8, 12, 16, 24)}
_CLASS_ATTENTION = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}

FAMILIES = (
    Family("ViT, DeiT", "vit_base_patch16_224", 1, _VIT),
    Family("ViT, DeiT", "vit_base_patch16_224", 2, _VIT),
    Family("ViT, DeiT", "vit_base_patch16_224", 0, _VIT),
    Family("DeiT distilled", "deit_base_distilled_patch16_224", 1, _VIT),
    Family("DeiT III", "deit3_small_patch16_224", 2, _VIT),
    Family("DINOv2", "vit_small_patch14_reg4_dinov2", 1, _VIT),
    Family("DINOv2", "vit_small_patch14_reg4_dinov2", 2, _VIT),
    Family("DINOv3", "vit_small_patch16_dinov3", 1, _VIT),
    Family("EVA-02", "eva02_tiny_patch14_224", 2, _VIT),
    Family("ViT with mixed RoPE", "vit_small_patch16_rope_mixed_224", 1, _VIT),
    Family("SigLIP", "vit_base_patch16_siglip_224", 1, _VIT),
    Family("BEiT", "beit_base_patch16_224", 1, _VIT),
    Family("BEiT, shared bias", "beit_base_patch16_224", 1, _VIT | {"use_shared_rel_pos_bias": True}),
    Family("ViT, average pooling", "vit_base_patch16_rpn_224", 1, _VIT),
    Family("ViT, relative positions", "vit_relpos_small_patch16_224", 1, _VIT),
    Family("CaiT", "cait_xxs24_224", 2, _CLASS_ATTENTION),
    Family("CaiT", "cait_xxs24_224", 3, _CLASS_ATTENTION),
    Family("XCiT", "xcit_nano_12_p16_224", 1, _CLASS_ATTENTION),
    Family("XCiT", "xcit_nano_12_p16_224", 3, _CLASS_ATTENTION),
    Family("Swin", "swin_tiny_patch4_window7_224", 1, _SWIN, 64),
    Family("Swin", "swin_tiny_patch4_window7_224", "layers.2", _SWIN, 64),
    Family("Swin V2", "swinv2_tiny_window8_256", 1, _SWIN, 64),
    Family("TinyViT", "tiny_vit_5m_224", 1, _TINY, 64),
    Family("ConvNeXt", "convnext_tiny", 1, _CONV, 64),
    Family("ConvNeXt V2", "convnextv2_tiny", "stages.3", _CONV, 64),
    Family("ResNet", "resnet50", 1, {"layers": (1, 1, 1, 2), "channels": (8, 8, 12, 16)}, 64),
    Family("ResNet", "resnet50", "layer4", {"layers": (1, 1, 1, 2), "channels": (8, 8, 12, 16)}, 64),
    Family("RegNet", "regnetx_002", 1, {}, 64),
    Family("EfficientNet", "efficientnet_b0", 1, {}, 64),
    Family("MobileNet V3", "mobilenetv3_small_050", 2, {}, 64),
    Family("MLP-Mixer", "mixer_s16_224", 1, {"img_size": 32}),
    Family("MaxViT", "maxvit_pico_rw_256", 1, {}, 256),
)


@dataclass(frozen=True)
class Checked:
    """Relative errors of f, J and Jᵀ against the whole model, and of ⟨r, Jv⟩ against ⟨Jᵀr, v⟩."""

    value: float
    tangent: float
    adjoint: float
    identity: float


def small_backbone(family: Family) -> Backbone:
    """A small model of the family; all its tensors random, so that no term of a derivative vanishes."""
    torch.manual_seed(0)
    model: Any = timm.create_model(family.model, pretrained=False, num_classes=CLASSES, **family.small)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(drawn / max(1, parameter[0].numel()) ** 0.5)
            else:
                parameter.add_(0.1 * drawn)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    size = PreprocessSpec(input_size=(3, family.size, family.size))
    return wrap_model(model, family.model, size, model_args={"num_classes": CLASSES, **family.small})


def check(cut: Cut, images: Tensor) -> Checked:
    """The tail's f, J and Jᵀ in float64 against the whole model's; turns the cut's model into float64."""
    base = make_base(cut.tail_state(), cut.tail_config(), CLASSES, module=cut.module()).to(torch.float64)
    _widen(cut.backbone.model, base)
    images = images.double()
    generator = torch.Generator().manual_seed(2)
    v = torch.randn(base.layout.size, dtype=torch.float64, generator=generator)
    r = torch.randn(len(images), CLASSES, dtype=torch.float64, generator=generator)
    trained = {name: base.state[name] for name in base.layout}
    whole = whole_model(cut, base)
    with sdpa_kernel(SDPBackend.MATH):
        value, tangent = jvp(lambda p: whole(p, images), (trained,), (base.layout.views(v),))[:2]
        adjoint = base.layout.flatten(vjp(lambda p: whole(p, images), trained)[1](r)[0])
    tail = base.tail
    w = tail.bind(base.state)
    state = tail.value(w, cut.prefix(images))
    found, pulled = tail.tangent(w, state, tail.bind(base.layout.views(v))), torch.zeros_like(v)
    tail.adjoint(w, state, r, tail.bind(base.layout.views(pulled)))
    left, right = (r * found).sum(), pulled @ v
    return Checked(
        _off(state.logits, value),
        _off(found, tangent),
        _off(pulled, adjoint),
        (abs(left - right) / (r.norm() * found.norm())).item(),
    )


def _widen(model: Any, base: Base) -> None:
    """To float64. A table of rotary embeddings that the state keeps in float32 stays the one that it is."""
    if base.config.path == "layers" and any(name.startswith("rope") for name in base.config.buffers):
        single = copy.deepcopy(model.rope)
        model.rope.get_embed = lambda *args, **named: single.get_embed(*args, **named).double()
    model.double()


def whole_model(cut: Cut, base: Base) -> Any:
    """Logits of timm's whole model, as a function of the tail's named parameters and images."""
    model: Any = copy.deepcopy(cut.backbone.model)
    weight, bias = base.config.head_names

    def forward(named: dict[str, Tensor], images: Tensor) -> Tensor:
        forget_cached(model)
        named = dict(named)
        if named[weight].shape[1] == 2 * model.num_features and "distilled" in cut.backbone.name:
            # Two heads, averaged: half of each one's input, so each has its half of our matrix.
            named[weight], named["head_dist.weight"] = named[weight].chunk(2, 1)
            named["head_dist.bias"] = named[bias]
        logits: Tensor = functional_call(model, named, (images,))
        return logits

    return forward


def rows(families: tuple[Family, ...] = FAMILIES) -> Iterator[str]:
    """Lines of the table."""
    yield "| family | model | cut | path | a row | bytes | J | Jᵀ |"
    yield "|---|---|---|---|---|---|---|---|"
    for family in families:
        cut = Cut(small_backbone(family), family.blocks)
        config = cut.tail_config()
        errors = check(cut, torch.randn(2, 3, family.size, family.size, generator=torch.Generator().manual_seed(3)))
        shape, size = full_size(family)
        why = f": {config.why}" if config.why else ""
        asked = f'"{family.blocks}"' if isinstance(family.blocks, str) else family.blocks
        yield (
            f"| {family.name} | `{family.model}` | {asked} | {config.path}{why} | {shape} | {size:,} | "
            f"{errors.tangent:.0e} | {errors.adjoint:.0e} |"
        )


def full_size(family: Family) -> tuple[str, int]:
    """Shape of a cached row of the model as named, and its bytes in float16."""
    model, traced = _as_named(family.model)
    start = locate(family.model, traced, family.blocks, model, lambda _: True)
    given = next((call.given for call in traced.calls if call.name == start), traced.feature)
    assert given is not None
    return " × ".join(map(str, given.lengths[1:])), 2 * prod(given.lengths[1:])


@cache
def _as_named(name: str) -> tuple[Any, CallTrace]:
    model: Any = timm.create_model(name, pretrained=False).eval()
    return model, trace(model, name, wrap_model(model, name).data_config["input_size"])


def page() -> str:
    """docs/models.md."""
    return "\n".join([HEAD, *rows(), "", bundled()])


def bundled() -> str:
    """The section about the model in the package, from its own files."""
    numbers = sum(weight.numel() for weight in load_file(BUNDLED / "model.safetensors").values())
    config = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
    args, cfg = config["model_args"], config["pretrained_cfg"]
    return BUNDLED_SECTION.format(numbers=numbers, **args, description=cfg["description"])


BUNDLED_SECTION = """## The bundled ViT

`backbone.weights = "bundled"` is the ViT that comes with the package, for the demo, for tests, and for small images \
without a network: {depth} blocks of width {embed_dim}, {img_size} × {img_size} pixels in patches of \
{patch_size} × {patch_size}, {numbers:,} parameters in float16. `tools/train_bundled_backbone.py` trained it from \
nothing on CIFAR-10's 50,000 training images, and notes in its `config.json`: "{description}". So its accuracy on \
CIFAR-10 says nothing about other data, and forgetting one of those images does not take it out of the backbone.
"""


HEAD = """# Models

Made by `tools/make_models_table.py`.

You can cut a model by depth (`tangent.blocks = k`: its last k blocks are the tail, 0 leaves the head alone) or before \
any module that it calls (`tangent.blocks = "stages.3"`). `extract` and `inspect` say which of these paths computes J, \
the derivative of the logits with respect to the tail's weights:

- **feature**: the rows are the head's input, and the head is linear.
- **class row**: one block from which only the class token reaches the head; J is coded by hand.
- **layers**: blocks of known layers; J is coded by hand.
- **functional**: `torch.func` on timm's own code of the tail. It is slower. Training then needs timm, but no file of \
weights.

Parameters on which the rows depend are not trained: one that both halves read, such as a position bias that all \
blocks share, stays as it is. So do the statistics of BatchNorm, and the frequencies of rotary embeddings where J is \
coded by hand. A module is refused as a cut if something of the sample goes around it (the inside of a residual \
branch), if it is called twice, or if it gets windows instead of images. The error then names another cut that was \
tried and passes, or says that none nearby does.

A model whose head is not one linear layer on its feature (LeViT, RepViT, EfficientFormer, SAM's ViT, VOLO with its \
second head and others) needs `model_args = { num_classes = 0 }`. This leaves that head out: the new head reads what \
the old one would have read, and the model's own file of weights still fits. Some models can be cut only before their \
head (`tangent.blocks = 0`): CrossViT, for one, has two streams. Images are RGB, so every model takes three channels.

In the table, "a row" is what is cached of one sample by the model as named, and "bytes" is its size in float16. J and \
Jᵀ are relative errors in float64 against `torch.func` on the whole uncut model, for a small random model of the \
family.
"""


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def main(arguments: list[str]) -> int:
    """Write the page, or print some rows."""
    warnings.filterwarnings("ignore", message=".torch.jit.script")
    if arguments:
        print("\n".join(rows(tuple(f for f in FAMILIES if any(a in f.name for a in arguments)))))
    else:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
