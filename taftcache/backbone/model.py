"""The frozen backbone: a timm model with its weights, their digests and its preprocessing."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import blake3
import timm
import torch
from timm.data.config import resolve_model_data_config
from torch import nn

from taftcache.backbone.build import build, check_sizes, is_of_hub
from taftcache.backbone.device import resolve_device
from taftcache.backbone.every_block import EveryBlock
from taftcache.backbone.files import as_written, file_digest, weights_file, weights_folder, weights_kind
from taftcache.backbone.fit import load_into
from taftcache.backbone.hub import asked_once
from taftcache.backbone.spec import EVERY_BLOCK, BackboneSpec, Features, PreprocessSpec
from taftcache.errors import BackboneError

_AS_TRAINED = PreprocessSpec()
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Backbone:
    """A frozen model in evaluation mode, its weights in float32.

    model: timm's, or an ``EveryBlock`` around it. name: the timm architecture. weights_digest: BLAKE3 over timm's state
    (see ``weights_digest``). data_config: timm's resolved preprocessing. config: what a store records, JSON only.
    precision: that of the frozen layers' arithmetic.
    """

    model: nn.Module
    name: str
    weights_digest: str
    data_config: dict[str, Any]
    config: dict[str, Any]
    precision: Precision = "float32"

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    @property
    def features(self) -> Features:
        """What its feature is made of."""
        return EVERY_BLOCK if isinstance(self.model, EveryBlock) else "last"

    @property
    def network(self) -> Any:
        """timm's own model, whatever its feature is made of."""
        return self.model.network if isinstance(self.model, EveryBlock) else self.model


@torch.inference_mode(False)  # no derivative can be taken with respect to inference tensors
def load_backbone(
    spec: BackboneSpec,
    preprocess: PreprocessSpec = _AS_TRAINED,
    device: str | torch.device = "cpu",
    section: str = "backbone",
) -> Backbone:
    """Build and load the model that ``spec`` names; errors name the keys of the recipe's ``section``.

    Raises BackboneError for an unknown model, weights that cannot be had or do not fit, a preprocessing that the model
    cannot take, and a default dtype of torch that would round the weights; RecipeError for a path with an unset
    variable.
    """
    if torch.finfo(torch.get_default_dtype()).bits < 32:
        raise BackboneError(
            "weights cannot be loaded while torch would round them to its default dtype",
            got=str(torch.get_default_dtype()),
            do="torch.set_default_dtype(torch.float32)",
        )
    with as_written(spec.weights):
        return _loaded(spec, preprocess, device, section)


def _loaded(spec: BackboneSpec, preprocess: PreprocessSpec, device: str | torch.device, section: str) -> Backbone:
    kind, path = weights_kind(spec, section), weights_file(spec)
    target = resolve_device(str(device))
    if kind in ("bundled", "folder"):
        name = f"local-dir:{weights_folder(spec)}"
    elif spec.model is None:
        raise BackboneError(
            f"no model is named for the weights {path}, which do not say it",
            got=str(path),
            do="name it as timm does, for example: "
            + _said(section, "model", f"init PLACE --model deit_tiny_patch16_224 --weights {shlex.quote(str(path))}"),
        )
    else:
        name = spec.model
    try:
        options = spec.model_args if kind not in ("bundled", "folder") else _folder_args(weights_folder(spec), spec)
        check_sizes(name, options)
        known = ":" in name or timm.models.is_model_pretrained(name)
        with asked_once() if kind == "pretrained" and known else nullcontext():
            model = build(name, spec.model_args, file=path, pretrained=kind == "pretrained")
    except BackboneError:
        raise
    except Exception as error:  # timm, the hub client and the model's constructor may raise anything
        raise not_built(name, spec.model_args, error, kind == "pretrained", section) from error
    architecture = str(model.pretrained_cfg.get("architecture") or spec.model)
    if kind == "folder" and spec.model is not None and spec.model.split(".")[0] != architecture:
        raise BackboneError(
            "the model and the folder of weights name different architectures",
            got=f"model = {spec.model!r}, the folder says {architecture!r}",
            do="leave model out, or correct it",
        )
    done = {} if path is None else load_into(model, path)
    digest = None if path is None else file_digest(path)
    label = spec.model or architecture
    made = wrap_model(
        model, label, preprocess, target, model_args=options, weights=kind, file_digest=digest, record=done
    )
    return with_features(in_precision(made, spec.precision), spec.features)


def named_by(file: Path) -> str | None:
    """The timm model that a file of weights is named after, with its tag if timm knows it; None if there is none.

    ``deit_tiny_patch16_224.fb_in1k.safetensors`` is what timm's own files are saved as.
    """
    architecture = file.stem.partition(".")[0]
    if timm.models.is_model_pretrained(file.stem):
        return file.stem
    return architecture if timm.is_model(architecture) else None


def in_precision(backbone: Backbone, precision: Precision) -> Backbone:
    """The same model, with frozen layers that compute in ``precision``; what a store records says so."""
    if precision == "float32":  # recorded as nothing, as before there was a choice
        return backbone
    return replace(backbone, precision=precision, config={**backbone.config, "precision": precision})


def with_features(backbone: Backbone, features: Features) -> Backbone:
    """The same model, with a feature made of ``features``; what a store records says so."""
    if features != EVERY_BLOCK:  # recorded as nothing, as before there was a choice
        return backbone
    model = EveryBlock(backbone.network).eval().requires_grad_(False)
    return replace(backbone, model=model, config={**backbone.config, "features": features})


def not_built(
    name: str, model_args: Mapping[str, Any], error: Exception, pretrained: bool = False, section: str = "backbone"
) -> BackboneError:
    """Why timm did not build the model ``name``: no such model or tag, weights not at hand, or arguments."""
    arguments = f" with {dict(model_args)}" if model_args else ""
    got = f"{name}{arguments}: {type(error).__name__}: {error}"
    architecture, _, tag = name.partition(".")
    if ":" not in name and not timm.is_model(architecture):
        names = [*timm.list_models(), *(["bundled"] if pretrained else [])]  # an estimator takes both as one word
        near = difflib.get_close_matches(architecture, names, n=4)
        return BackboneError(
            f"timm has no model {architecture!r}",
            got=got,
            do=(f"did you mean {', '.join(near)}?" if near else "look the name up with timm.list_models()")
            + "; of a model of your own: import the module that registers it",
        )
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")] if tag else []
    if tag and tag not in tags:
        return BackboneError(
            f"timm has no weights {tag!r} of {architecture}", got=got, do=f"one of {', '.join(tags) or 'none'}"
        )
    if pretrained:
        return BackboneError(
            f"no pretrained weights of {name} here: neither in the Hugging Face cache nor to be downloaded",
            got=got,
            do=("the repository must have model.safetensors, for other files can run code: " if is_of_hub(name) else "")
            + "connect to the network once, or take the weights from a file: "
            + _said(section, "weights", f"init PLACE --model {name} --weights FILE.safetensors"),
        )
    return BackboneError(f"timm cannot build the model {name}", got=got, do=f"correct {section}.model_args")


def _said(section: str, key: str, command: str) -> str:
    """Where a setting is made: in a recipe and, for a backbone, also by a command."""
    here = f"in a recipe {section}.{key}"
    return f"taftcache {command}; {here}" if section == "backbone" else here


def _folder_args(folder: Path, spec: BackboneSpec) -> dict[str, Any]:
    """What timm built the folder's model with, so that its architecture can be built again without the folder."""
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config, size = written.get("pretrained_cfg", {}), {}
    if config.get("fixed_input_size"):
        size = {"img_size": config["input_size"][1:]}
    pool = {"global_pool": written["global_pool"]} if written.get("global_pool") else {}
    return {**size, **pool, **written.get("model_args", {}), **spec.model_args}


def wrap_model(
    model: nn.Module,
    name: str,
    preprocess: PreprocessSpec = _AS_TRAINED,
    device: str | torch.device = "cpu",
    *,
    model_args: dict[str, Any] | None = None,
    weights: str = "given",
    file_digest: str | None = None,
    record: dict[str, Any] | None = None,
) -> Backbone:
    """Freeze a model that is already in memory; it is changed in place to float32 and evaluation mode.

    ``config`` keeps ``file_digest``, the BLAKE3 of the weights file, and ``record``, under "loading". Raises
    BackboneError if the preprocessing and the model disagree on the image size.
    """
    model = model.float().eval().requires_grad_(False)
    digest = weights_digest(model.state_dict())
    config = {
        "model": name,
        "model_args": dict(model_args or {}),
        "weights": weights,
        "weights_digest": digest,
        "file_digest": file_digest,
        "num_classes": int(getattr(model, "num_classes", 0)),
        "loading": dict(record or {}),
    }
    data_config = _data_config(model, preprocess, model_args or {})
    return Backbone(model.to(resolve_device(str(device))), name, digest, data_config, config)


def weights_digest(state: dict[str, torch.Tensor]) -> str:
    """BLAKE3 over the tensors in the order of their names: name, dtype, shape and little-endian bytes of each."""
    hasher = blake3.blake3()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        shape = "x".join(map(str, tensor.shape))
        hasher.update(f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{shape}\0".encode())
        array = tensor.numpy()
        hasher.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return hasher.hexdigest()


def _data_config(model: nn.Module, preprocess: PreprocessSpec, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """timm's configuration for the model, overridden, in JSON types except for tuples."""
    overrides = {k: getattr(preprocess, k) for k in preprocess.__struct_fields__ if getattr(preprocess, k) is not None}
    config = resolve_model_data_config(model, args=overrides)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    size, given = None if size is None else tuple(size), model_args.get("img_size")
    if preprocess.input_size is None:
        # model_args may have changed the size; the pretrained configuration still has the old one.
        told = size or ((given, given) if isinstance(given, int) else given)
        if told is not None:
            config["input_size"] = (3, *told)
    elif size not in (None, tuple(preprocess.input_size[1:])) and not getattr(model, "dynamic_img_size", False):
        raise BackboneError(
            f"the model takes only images of the size {list(size)}",
            got=f"preprocess.input_size {list(preprocess.input_size)}",
            do=f"set model_args = {{ img_size = {list(preprocess.input_size[1:])} }} as well",
        )
    return {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
