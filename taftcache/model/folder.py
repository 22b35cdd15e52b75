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
from torch import Tensor

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.files import WEIGHTS_NAME, file_digest
from taftcache.backbone.model import Backbone, load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.saved import save_backbone
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.cache.format.digest import plain
from taftcache.errors import FormatError, IntegrityError, RecipeError, StoreWriteError
from taftcache.model.component import PRIVACY, Component, public_fields
from taftcache.model.predictor import TangentModel
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.selection import ROWS
from taftcache.tangent.spec import TangentSpec

DESCRIPTION = "taftcache.json"
WEIGHTS = "tangent.safetensors"
CARD = "README.md"
PROGRAM = "program.pt2"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """``taftcache.json``. ``files``: digests of its other files but the card; of earlier releases, none."""

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
    files: dict[str, str] = {}


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
    files = {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name != WEIGHTS}
    described = msgspec.structs.replace(described, files=files)
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
        plain(described.component, DESCRIPTION)
    except (OSError, msgspec.DecodeError, RecipeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"no saved model at {folder}", got=str(error).splitlines()[0]) from error
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

    Nothing in the folder is believed: digests are compared, and the tail must be the one that its backbone has.

    Raises:
        FormatError: not such a folder, or its parts do not fit together. IntegrityError: its files are not those that
            were saved, or have numbers that are not finite. BackboneError: weights that do not fit its config.json.
    """
    folder = Path(folder)
    described = read_description(folder)
    try:
        _check_files(folder, described)
        tensors = load_file(folder / WEIGHTS)
        backbone = load_backbone(BackboneSpec(weights=f"local-dir:{folder.absolute()}"), described.preprocess, device)
        if backbone.weights_digest != described.weights_digest:
            raise _changed(folder, WEIGHTS_NAME)
        return _assembled(described, tensors, backbone)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"no saved model at {folder}", got=str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # timm and torch raise whatever they like for parts that do not fit
        raise _unfit(f"{type(error).__name__}: {error}") from error


def _assembled(described: Description, tensors: Mapping[str, Tensor], backbone: Backbone) -> TangentModel:
    """The model of parts that were verified, as far as they belong together."""
    config = TailConfig.from_dict(described.tail)
    cut = Cut(backbone, config.start or 0)
    if not _is_tail_of(cut, config, len(described.classes)):
        raise _unfit(f"the description is of another tail than {backbone.name} has, or of another number of classes")
    own = {name.removeprefix("base/"): tensor for name, tensor in tensors.items() if name.startswith("base/")}
    state = cut.tail_state()
    token = [config.token_name] if config.token_name in own else []
    names = [*token, *config.parameters, *config.buffers, *config.head_names]
    there = {**state, **own}
    if missing := [name for name in names if name not in there]:
        raise _unfit(f"without {', '.join(missing[:3])}")
    shapes = {name: tensor.shape for name, tensor in state.items() if name not in config.head_names}
    weight, bias = config.head_names
    shapes |= {weight: torch.Size([config.classes, config.width]), bias: torch.Size([config.classes])}
    if wrong := [name for name in names if name in shapes and there[name].shape != shapes[name]]:
        raise _unfit(f"{wrong[0]} is {list(there[wrong[0]].shape)}, and must be {list(shapes[wrong[0]])}")
    base = Base(config, {name: there[name] for name in names}, described.tangent)
    if described.base_digest not in _digests(base):
        raise IntegrityError(
            "the base point of the saved model is not the one that it was trained around", got=described.base_digest
        )
    moved = {name.removeprefix("delta/"): t for name, t in tensors.items() if name.startswith("delta/")}
    layout = base.named(moved)
    if not moved or layout.shapes != {name: tuple(tensor.shape) for name, tensor in moved.items()}:
        raise _unfit("what was trained has other shapes than the parameters of the tail, or is not there")
    component = Component(described.base_digest, layout, layout.flatten(moved), described.component)
    numbers = {**dict(backbone.model.named_parameters()), **{n: base.state[n] for n in base.layout}, **moved}
    if bad := [name for name, tensor in numbers.items() if not torch.isfinite(tensor).all()]:
        raise IntegrityError("the saved model has numbers that are not finite", got=f"NaN or infinity in {bad[0]}")
    return TangentModel(cut, Preprocess(backbone), base, component, described.classes)


def _is_tail_of(cut: Cut, config: TailConfig, classes: int) -> bool:
    """Whether the backbone's own tail is as described, or the description leaves its derivative to its own code."""
    own = msgspec.structs.replace(cut.tail_config(), classes=classes, why="")
    general = msgspec.structs.replace(own, path="functional", layers=(), end=None)
    return msgspec.structs.replace(config, why="") in ((own, general) if cut.start else (own,))


def _digests(base: Base) -> set[str]:
    """The base point's digest, by what a store can have kept of its rows: a saved model takes in the tail's whole."""
    reduced = base.reduction_digest()
    configs = [(rows, "" if rows == "tokens" or base.config.path == "feature" else reduced) for rows in ROWS]
    return {
        replace(base, config=msgspec.structs.replace(base.config, rows=rows, reduced_by=by)).digest
        for rows, by in configs
    }


def _check_files(folder: Path, described: Description) -> None:
    """IntegrityError for a file that is not there, or not as it was saved."""
    if described.files.keys() - {WEIGHTS, WEIGHTS_NAME, "config.json", PROGRAM}:
        raise _unfit("its description names other files than a model has")
    for name, digest in {**described.files, WEIGHTS: described.digest}.items():
        if not (folder / name).is_file() or file_digest(folder / name) != digest:
            raise _changed(folder, name)


def _changed(folder: Path, name: str) -> IntegrityError:
    return IntegrityError(
        "a file of the saved model is not as it was saved", got=str(folder / name), do="copy it again"
    )


def _unfit(got: str) -> FormatError:
    return FormatError("the parts of the saved model do not fit together", got=got, do="export it again from its store")


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
