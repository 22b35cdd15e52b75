"""One tangent model as a folder: safetensors, JSON and a model card, to be loaded without its store.

config.json, model.safetensors   the frozen backbone, in timm's own layout
tangent.safetensors              base/<name>: tensors of the base point that differ from the backbone's,
                                 delta/<name>: Δw; timm's names, float32
taftcache.json                   what the tail is, classes, preprocessing, certificate or promise, digests
README.md                        the model card
program.pt2                      on request, the whole model as a torch.export program
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.files import file_digest
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.saved import save_backbone
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.errors import FormatError, IntegrityError, StoreWriteError
from taftcache.model.component import PRIVACY, Component, public_fields
from taftcache.model.predictor import TangentModel
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.parameters import Layout
from taftcache.tangent.spec import TangentSpec

DESCRIPTION = "taftcache.json"
WEIGHTS = "tangent.safetensors"
CARD = "README.md"
PROGRAM = "program.pt2"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """``taftcache.json``."""

    format: int
    model: str
    classes: list[str]
    backbone: str
    weights_digest: str
    preprocess: PreprocessSpec
    tangent: TangentSpec
    tail: dict[str, Any]
    base_digest: str
    digest: str
    component: dict[str, Any]
    root_digest: str
    versions: dict[str, str]


def is_model_folder(folder: Path | str) -> bool:
    """Whether ``folder`` holds a saved model rather than a store."""
    return (Path(folder) / DESCRIPTION).is_file()


def save_model(
    model: TangentModel,
    folder: Path | str,
    *,
    name: str,
    root_digest: str = "",
    program: bool = False,
) -> list[str]:
    """Write ``model`` into an empty or new folder; the names of its files.

    Args:
        model: base, Δw, classes and preprocessing.
        folder: where to.
        name: what the store called it ("models/mean").
        root_digest: of that store; left out of a private model, for it is a digest of the rows.
        program: also write the torch.export program.

    Raises:
        StoreWriteError: the folder holds something already. RecipeError: a program of a tail that cannot be traced.
    """
    exported = model.program() if program else None  # what can fail comes before anything is written
    folder = _new(folder)
    save_backbone(model.cut.backbone, folder)
    frozen = model.backbone.state_dict()
    tensors = {
        f"base/{n}": t.contiguous() for n, t in model.base.state.items() if n not in frozen or not _equal(t, frozen[n])
    }
    views = model.component.layout.views(model.component.delta.to(torch.float32))
    tensors |= {f"delta/{n}": t.contiguous() for n, t in views.items()}
    save_file(tensors, folder / WEIGHTS)
    preprocess = model.transform.description()
    described = Description(
        format=1,
        model=name,
        classes=model.classes,
        backbone=model.cut.backbone.name,
        weights_digest=model.cut.backbone.weights_digest,
        preprocess=msgspec.convert({k: preprocess[k] for k in PreprocessSpec.__struct_fields__}, PreprocessSpec),
        tangent=model.base.spec,
        tail=model.base.config.as_dict(),
        base_digest=model.component.base_digest,
        digest=file_digest(folder / WEIGHTS),
        component=public_fields(model.component.meta),
        root_digest="" if PRIVACY in model.component.meta else root_digest,
        versions={library: version(library) for library in ("taftcache", "torch", "timm")},
    )
    if exported is not None:
        torch.export.save(exported, folder / PROGRAM)
    (folder / CARD).write_text(_card(described, model, program), "utf-8")
    # Last: a folder without it is not a model.
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")
    return sorted(path.name for path in folder.iterdir())


def read_description(folder: Path | str) -> Description:
    """What ``save_model`` says of the model in ``folder``.

    Raises:
        FormatError: not such a folder, or one of a later format.
    """
    try:
        described = msgspec.json.decode((Path(folder) / DESCRIPTION).read_bytes(), type=Description)
    except (OSError, msgspec.DecodeError) as error:
        raise FormatError(f"no saved model at {folder}", got=str(error)) from error
    if described.format != 1:
        raise FormatError(
            f"the saved model has format {described.format}, but this release reads format 1",
            got=f"format {described.format}",
            do="use a newer release",
        )
    return described


def save_merged(model: TangentModel, folder: Path | str) -> list[str]:
    """Write ``model.merged()`` in timm's layout, for ``timm.create_model("local-dir:…", pretrained=True)``.

    Raises:
        CompositionError: more than the head has moved. StoreWriteError: the folder holds something already.
    """
    merged: Any = model.merged()
    merged.pretrained_cfg = {**merged.pretrained_cfg, "label_names": model.classes}
    folder = _new(folder)
    save_backbone(replace(model.cut.backbone, model=merged), folder)
    return sorted(path.name for path in folder.iterdir())


def open_model(folder: Path | str, device: str = "auto") -> TangentModel:
    """The model that ``save_model`` wrote; needs neither its store nor anything that trained it.

    Raises:
        FormatError: not such a folder. IntegrityError: its weights are not those that were saved.
    """
    folder = Path(folder)
    described = read_description(folder)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"no saved model at {folder}", got=str(error)) from error
    backbone = load_backbone(BackboneSpec(weights=str(folder)), described.preprocess, device)
    if backbone.weights_digest != described.weights_digest or file_digest(folder / WEIGHTS) != described.digest:
        raise IntegrityError(
            "the weights of the saved model are not those that were saved", got=str(folder), do="copy it again"
        )
    config = TailConfig.from_dict(described.tail)
    cut = Cut(backbone, config.start or 0)
    own = {name.removeprefix("base/"): tensor for name, tensor in tensors.items() if name.startswith("base/")}
    state = cut.tail_state()
    names = [*config.parameters, *config.buffers, *config.head_names]
    token = [config.token_name] if config.token_name in own else []
    there = {**state, **own}
    if missing := [name for name in names if name not in there]:
        raise FormatError("the saved model has not every tensor of its tail", got=missing[:3])
    base = Base(config, {name: there[name] for name in (*token, *names)}, described.tangent)
    moved = {name.removeprefix("delta/"): t for name, t in tensors.items() if name.startswith("delta/")}
    try:
        layout: Layout = base.named(moved)
    except KeyError as error:
        raise FormatError(
            "the saved model changes a parameter that is not of its tail", got=str(error.args[0])
        ) from error
    component = Component(described.base_digest, layout, layout.flatten(moved), described.component)
    return TangentModel(cut, Preprocess(backbone), base, component, described.classes)


def _new(folder: Path | str) -> Path:
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreWriteError(
            f"cannot save the model in {folder}: there is something already",
            got=str(folder),
            do="name a new or empty folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.cpu(), b.cpu().to(a.dtype))


def _card(described: Description, model: TangentModel, program: bool) -> str:
    """The model card: front matter that model hubs read, then what a reader must know."""
    config = model.base.config
    classes = ", ".join(described.classes[:20]) + (" …" if len(described.classes) > 20 else "")
    what = (
        "What was trained, Δw, comes of noisy sums over the rows."
        if PRIVACY in described.component
        else "What was trained, Δw, is the one minimiser of a convex problem."
    )
    reset = "re-initialised from a seed" if model.base.spec.reset_block else "at its pre-trained weights"
    lines = [
        "---",
        "library_name: timm",
        "tags: [image-classification, tangent-model, taftcache]",
        "---",
        f"# {described.model} on {described.backbone}",
        "",
        "A *tangent* model: the backbone's frozen layers, then the first-order expansion of its last part around a",
        f"base point, f(x) + J(x) Δw. {what}",
        "",
        f"- Backbone: `{described.backbone}`; the tail begins at `{config.start}`, last block {reset}.",
        f"- Trained: {model.component.layout.size:,} numbers in {len(model.component.layout.shapes)} tensors.",
        f"- Classes ({len(described.classes)}): {classes}",
        f"- {_made(described.component)}",
        *([f"- From a store with root digest `{described.root_digest[:16]}`."] if described.root_digest else []),
        "",
        "```python",
        "from taftcache import open_model",
        "",
        f'model = open_model("{Path(described.model).name}")  # this folder',
        'print(model.predict(["image.jpg"]))',
        "```",
        "",
        '`timm.create_model("local-dir:…", pretrained=True)` on this folder gives the backbone alone, without Δw.',
    ]
    if program:
        lines += [
            "",
            f'`{PROGRAM}` is the whole model as a program: `torch.export.load("{PROGRAM}").module()` takes',
            f"normalised images [n, {', '.join(map(str, model.transform.image_shape))}] and needs torch alone.",
        ]
    unsaid = ["What it does not say: accuracy on your data; whether samples were forgotten (the store's ledger does)"]
    if PRIVACY in described.component:
        lines += ["", "## Privacy", "", *_promise(described.component[PRIVACY])]
        unsaid[-1] += "."
    else:
        unsaid[-1] += ";"
        unsaid.append("anything about privacy. Whoever holds an earlier version can see what changed.")
    return "\n".join([*lines, "", *unsaid, ""])


def _made(meta: Mapping[str, Any]) -> str:
    """How Δw came about, in a sentence."""
    if PRIVACY in meta:
        parts = f" Composed of {len(meta['coefficients'])} components." if "coefficients" in meta else ""
        rows = f" Trained on about {meta['rows']} cached samples." if "rows" in meta else ""
        return f"Trained with differential privacy, see below.{rows}{parts}"
    if certificate := meta.get("certificate"):
        return (
            f"Trained on {meta['rows']} cached samples; gradient {certificate['relative_gradient']:.1e} of its start in"
            f" float64, so the distance to the one optimum is at most {certificate['distance_bound']:.1e}."
        )
    return f"Composed of {len(meta.get('members', {}))} components; each has its certificate in the store."


def _promise(said: Mapping[str, Any]) -> list[str]:
    """What a private model promises, and what is not covered, as lines of the model card."""
    if not said["private"]:
        return ["None: its noise came from a seed, so whoever knows that can take the noise off."]
    one = "one row more or less" if said["relation"] == "add-remove" else "another row in place of one"
    lines = [
        f"(ε, δ) = ({said['epsilon']:.4g}, {said['delta']:g}): with {one} in the data (`{said['relation']}`), the",
        f"probability of any outcome is at most e^{said['epsilon']:.4g} times as large, plus {said['delta']:g}.",
    ]
    if "tuning" in said:
        lines.append(f"How the settings were chosen: {said['tuning']}.")
    if "composition" in said:
        lines.append(f"Composition: {said['composition']}.")
    return [*lines, "", "Not covered:", "", *(f"- {text}" for text in said["not_covered"])]
