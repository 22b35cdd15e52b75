"""One tangent model as a folder: safetensors, JSON and a model card, to be loaded without its store.

backbone/config.json, model.safetensors   the frozen network, in timm's own layout
config.json                               names no architecture of timm's, so that timm refuses the folder
tangent.safetensors                       base/<name>: tensors of the base point that differ from the network's,
                                          delta/<name>: Δw in float64; timm's names
taftcache.json                            what the tail is, classes, preprocessing, certificate or promise, digests;
                                          the temperature of probabilities, unless the model is private
README.md                                 the model card
program.pt2, model.onnx                   on request, the whole model as a torch.export program or in ONNX

If only the head has moved, the network is not below ``backbone/`` but beside the rest, with the moved head: the folder
is then a timm checkpoint, too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import UNSET
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.files import WEIGHTS_NAME, file_digest
from taftcache.backbone.model import Backbone, load_backbone, weights_digest
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.saved import name_classes, save_backbone
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.consent import Consent, check_consent
from taftcache.errors import CompositionError, FormatError, IntegrityError, RecipeError, StoreWriteError, local_path
from taftcache.model.card import Origin, Part, Score, card
from taftcache.model.component import Component, public_fields
from taftcache.model.description import DESCRIPTION, FORMAT, SAVED, Description, read_description
from taftcache.model.members import RETURNED
from taftcache.model.outdated import OUTDATED
from taftcache.model.predictor import TangentModel
from taftcache.model.programs import AGREEMENT, ONNX, PROGRAM, check_onnx, difference, write_program
from taftcache.model.saved import (
    ABOUT,
    BACKBONE,
    CARD,
    CONFIG,
    ESTIMATOR,
    NETWORKS,
    TENSORS,
    WEIGHTS,
    files_in,
    under,
)
from taftcache.names import META, PRIVATE, ROWS_OF, first_few, is_from_macos
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TangentSpec

_ESTIMATORS = ("TangentClassifier", "TangentRegressor")
_MARKS = {DESCRIPTION, ESTIMATOR, ABOUT}  # one of them is in every folder that is written here
# Stands where timm looks for the name of an architecture: its error quotes it.
NOT_TIMM = "a tangent model, which timm cannot build; use taftcache.open_model or taftcache.from_pretrained"


def is_model_folder(folder: str | os.PathLike[str]) -> bool:
    """Whether ``folder`` holds a saved model, or a network in timm's layout, rather than a store; ArgumentError as
    ``local_path``."""
    place = local_path(folder)
    return any((place / name).is_file() for name in (DESCRIPTION, CONFIG, ESTIMATOR))


def may_replace(folder: Path) -> bool:
    """Whether something is in ``folder``, and it is a saved model or estimator, or a model in another form: the files
    that are written of one, and no others.

    Raises:
        StoreWriteError: something else is there.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not is_from_macos(path.name)}
    known = {*_MARKS, CARD, CONFIG, WEIGHTS, TENSORS, PROGRAM, ONNX, BACKBONE, *NETWORKS}
    if there and not (there <= known and any(_says_taftcache(folder / mark) for mark in there & _MARKS)):
        raise StoreWriteError(
            f"cannot replace {folder}: it is no saved model, or has other files, too",
            got=first_few(sorted(there - known) or sorted(there)),
            do="name another folder, or move these files elsewhere first",
        )
    return bool(there)


def _says_taftcache(file: Path) -> bool:
    """Whether a mark names the release that wrote it, as all do: others have files of such names, too."""
    with suppress(OSError):
        return file.is_file() and b'"taftcache"' in file.read_bytes()
    return False


def origin_of(folder: str | os.PathLike[str]) -> Origin:
    """The name of the model in ``folder``, and the root digest of its store; for a network, what config.json says and,
    for a student, what the file of its weights says.

    Raises:
        FormatError: as ``open_model``.
    """
    folder = local_path(folder)
    if (folder / DESCRIPTION).is_file():
        described = read_description(folder)
        return Origin(
            name=described.model,
            root_digest=described.root_digest,
            temperature=described.temperature or None,
            notes=[note for note in described.notes or [] if note in (OUTDATED, RETURNED)],  # a file may say anything
        )
    config = _config(folder)
    return Origin(name=str(config.get("architecture")), rows_of=_rows_of(folder / WEIGHTS_NAME))


def check_only(folder: str | os.PathLike[str], name: str | None, consent: Consent | None = None) -> Origin:
    """``origin_of`` a folder; RecipeError where another model, or weights, are asked for than those in it."""
    check_consent(consent)
    origin = origin_of(folder)
    beside = None if consent is None else consent.weights
    if beside is not None or name not in (None, origin.name, origin.name.rpartition("/")[2]):
        raise RecipeError(
            f"{folder} holds one model, with its weights, and no other can be named",
            got=f"the model {name!r}" if beside is None else f"the weights {beside}",
            do=f"leave it out, or name the store that {origin.name} came from",
        )
    return origin


def _rows_of(weights: Path) -> dict[str, list[str]]:
    """What a student was trained on; nothing for other networks."""
    try:
        with safe_open(weights, "pt") as file:
            return msgspec.convert(json.loads(file.metadata()[META])["meta"][ROWS_OF], dict[str, list[str]])
    except (OSError, SafetensorError, LookupError, RecursionError, TypeError, ValueError):
        return {}


def _config(folder: Path) -> dict[str, Any]:
    """A network's config.json, with the names of its classes as ``label_names``."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        return {**config, "label_names": [str(name) for name in config["pretrained_cfg"]["label_names"]]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        if (folder / ESTIMATOR).is_file():
            raise _estimator_alone(folder) from None
        raise FormatError(
            f"no model with names of its classes at {folder}",
            got=f"{CONFIG}: {type(error).__name__}: {error}",
            do="name a folder of export-model, or of a student",
        ) from None


def _estimator_alone(folder: Path) -> FormatError:
    """The error for an estimator that is no model of images with classes."""
    kind, load, of_features = "estimator", " or ".join(f"{name}.load" for name in _ESTIMATORS), False
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        said = json.loads((folder / ESTIMATOR).read_bytes())
        name, of_features = said["kind"], said["arguments"]["backbone"] is None
        kind, load = (name, f"{name}.load") if name in _ESTIMATORS else (kind, load)
    return FormatError(
        f"no model with classes at {folder}, but a saved {kind}, which commands and open_model cannot use",
        do=f"in Python {load}" + (", whose coef_ and intercept_ are all of it" if of_features else ""),
    )


def save_model(
    model: TangentModel,
    folder: str | os.PathLike[str],
    *,
    name: str,
    root_digest: str = "",
    dataset: str | None = None,
    score: Score | None = None,
    parts: Mapping[Part, int] | None = None,
    problems: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
    unlearned: Mapping[str, int] | None = None,
    program: bool = False,
    onnx: bool = False,
) -> list[str]:
    """Write ``model`` into an empty or new folder; return the names of its files.

    Args:
        model: base, Δw, classes and preprocessing; and its temperature, unless it is private.
        folder: where to write it.
        name: what the store called it ("models/mean").
        root_digest: that of the store; left out for a private model, because it is a digest of the rows.
        dataset: for the model card: a public dataset's name, never a path.
        score: for the model card: how well the model does on rows that it was not trained on.
        parts: for the model card: of a sum without a promise, its components by kind.
        problems: for the model card: loss and λ in words -> of how many components; left out for a private model.
        notes: what is known of the model, such as that it is outdated; left out for a private model.
        unlearned: for the model card: classes of which it had no training row -> their held-out rows; left out for a
            private model.
        program: also write the torch.export program.
        onnx: also write the model in ONNX, and run it on random images to compare.

    Raises:
        StoreWriteError: the folder is not empty. RecipeError: a program for a functional tail, or ONNX without its
            libraries. BackboneError: the model cannot be traced, or ONNX gives other logits than the model.
    """
    if onnx:
        check_onnx()
    exported = model.program() if program or onnx else None  # what can fail comes before anything is written
    folder = _new(folder)
    private = PRIVATE in model.component.meta  # both would tell of rows that no promise covers
    origin = Origin(
        name=name,
        root_digest="" if private else root_digest,
        dataset=dataset,
        score=score,
        parts=parts or {},
        temperature=None if private else model.temperature,
        problems={} if private else problems or {},
        notes=() if private else notes,
        unlearned={} if private else unlearned or {},
    )
    extras = {} if exported is None else write_program(origin, model, exported, folder, program=program, onnx=onnx)
    network = None
    with suppress(CompositionError):
        network = as_network(model)
    frozen = (network or model.cut.backbone).network.state_dict()
    _write_network(model, network, folder)
    tensors = {
        f"base/{n}": t.contiguous() for n, t in model.base.state.items() if n not in frozen or not _equal(t, frozen[n])
    }
    views = model.component.layout.views(model.component.delta)  # in float64: its certificate is of these numbers
    tensors |= {f"delta/{n}": t.contiguous() for n, t in views.items()}
    save_file(tensors, folder / WEIGHTS)
    described = _described(model, folder, origin, weights_digest(frozen))
    (folder / CARD).write_text(card(origin, model, extras, native=network is not None), "utf-8")
    shutil.copymode(folder / CARD, folder / WEIGHTS)  # safetensors lets only the owner read
    # Last: a folder without it is not a model.
    (folder / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")
    return files_in(folder)


def _described(model: TangentModel, folder: Path, origin: Origin, weights: str) -> Description:
    """What ``taftcache.json`` says; ``weights`` is the digest of the network in the folder."""
    return Description(
        format=FORMAT,
        model=origin.name,
        classes=model.classes,
        backbone=model.cut.backbone.name,
        weights_digest=weights,
        preprocess=model.transform.spec(),
        tangent=model.base.spec,
        tail=model.base.config.as_dict(),
        base_digest=model.component.base_digest,
        digest=file_digest(folder / WEIGHTS),
        component=public_fields(model.component.meta),
        root_digest=origin.root_digest,
        versions={library: version(library) for library in ("taftcache", "torch", "timm")},
        files={name: file_digest(folder / name) for name in files_in(folder) if name != WEIGHTS},
        features=features if (features := model.cut.backbone.features) != "last" else UNSET,
        temperature=origin.temperature or UNSET,
        notes=list(origin.notes) or UNSET,
    )


def _write_network(model: TangentModel, network: Backbone | None, folder: Path) -> None:
    """Write the model as a timm network if it is one; otherwise its frozen network, where timm does not look."""
    if network is not None:
        save_backbone(network, folder)
        return
    save_backbone(model.cut.backbone, folder / BACKBONE)
    config = {
        "library_name": "taftcache",
        "architecture": NOT_TIMM,
        "num_classes": len(model.classes),
        "label_names": model.classes,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def as_network(model: TangentModel) -> Backbone:
    """``model.merged()`` with its classes' names and its preprocessing where timm looks for them.

    Raises:
        CompositionError: more than the head has moved, or the network does not give the model's logits.
    """
    merged: Any = model.merged()
    if not (apart := difference(model, lambda images: merged(images.to(model.cut.device)))) <= AGREEMENT:
        raise CompositionError(
            "the merged model gives other logits than the model",
            got=f"{apart:.1e} of the largest apart",
            do="save the tangent model itself",
        )
    name_classes(merged, model.classes, model.transform.config)
    return replace(model.cut.backbone, model=merged)


def open_model(folder: str | os.PathLike[str], *, device: str = "auto") -> TangentModel:
    """The model that ``save_model`` wrote; needs neither its store nor anything that trained it.

    A network in timm's layout whose config.json names its classes is accepted, too, as a model with Δw = 0: a student
    of ``teach``, say.

    Nothing in the folder is trusted: digests are compared, and the tail must be the one that its backbone has.

    Raises:
        FormatError: it is not such a folder, or its parts do not fit together. IntegrityError: its files are not those
            that were saved, or have numbers that are not finite. BackboneError: its weights do not fit its config.json.
    """
    folder = local_path(folder)
    alone = is_model_folder(folder) and not (folder / DESCRIPTION).is_file()
    described = None if alone else read_description(folder)
    with SAVED.fitting(folder):
        if described is None:
            return _network(folder, device)
        check_files(folder, described)
        tensors = load_file(folder / WEIGHTS)
        backbone = saved_backbone(
            folder, described.files, described.preprocess, device, features=described.features or "last"
        )
        if backbone.weights_digest != described.weights_digest:
            raise SAVED.changed(folder / WEIGHTS_NAME)
        model = _assembled(described, tensors, backbone)
        model.temperature = described.temperature or None
        return model


def saved_backbone(
    folder: Path, files: Container[str], preprocess: PreprocessSpec, device: str, **said: Any
) -> Backbone:
    """The network that lies below ``backbone/`` if a description's ``files`` say so, and else beside the rest.

    ``said``: precision and features, as a ``BackboneSpec`` has them.
    """
    network = (folder / BACKBONE if f"{BACKBONE}/{WEIGHTS_NAME}" in files else folder).absolute()
    return load_backbone(BackboneSpec(weights=f"local-dir:{network}", **said), preprocess, device)


def _network(folder: Path, device: str) -> TangentModel:
    """A timm network as a model: the base point is its own head, and Δw = 0."""
    classes = _config(folder)["label_names"]
    cut = Cut(saved_backbone(folder, (), PreprocessSpec(), device), 0)
    config, state = cut.tail_config(), cut.tail_state()
    shapes = [tuple(state[name].shape) for name in config.head_names if name in state]
    if shapes != [(len(classes), config.width), (len(classes),)]:
        raise SAVED.unfit(f"{len(classes)} names of classes, and a head for {config.classes}")
    base = Base(config, {name: state[name] for name in config.head_names}, TangentSpec(blocks=0, train="head"))
    component = Component(base.digest, base.layout, torch.zeros(base.layout.size, dtype=torch.float64, device="cpu"))
    return TangentModel(cut, Preprocess(cut.backbone), base, component, classes)


def _assembled(described: Description, tensors: Mapping[str, Tensor], backbone: Backbone) -> TangentModel:
    """The model made of verified parts; FormatError if they do not belong together."""
    config = TailConfig.from_dict(described.tail)
    cut = Cut(backbone, config.start or 0)
    if not _is_tail_of(cut, config, len(described.classes)):
        raise SAVED.unfit(f"the description has another tail than {backbone.name}, or another number of classes")
    state = cut.tail_state()
    base = Base.of(config, {**state, **under("base", tensors)}, described.tangent)
    shapes = {name: tensor.shape for name, tensor in state.items()}
    weight, bias = config.head_names
    shapes |= {weight: torch.Size([config.classes, config.width]), bias: torch.Size([config.classes])}
    if wrong := [name for name, of in base.state.items() if name in shapes and of.shape != shapes[name]]:
        raise SAVED.unfit(f"{wrong[0]} is {list(base.state[wrong[0]].shape)}, and must be {list(shapes[wrong[0]])}")
    if not base.has_digest(described.base_digest):
        raise IntegrityError(
            "the base point of the saved model is not the one that it was trained around", got=described.base_digest
        )
    moved = under("delta", tensors)
    layout = base.named(moved)
    component = Component(described.base_digest, layout, SAVED.flat(moved, layout), described.component)
    numbers = {**dict(backbone.network.named_parameters()), **{n: base.state[n] for n in base.layout}, **moved}
    if bad := [name for name, tensor in numbers.items() if not torch.isfinite(tensor).all()]:
        raise IntegrityError("the saved model has numbers that are not finite", got=f"NaN or infinity in {bad[0]}")
    return TangentModel(cut, Preprocess(backbone), base, component, described.classes)


def _is_tail_of(cut: Cut, config: TailConfig, classes: int) -> bool:
    """Whether the backbone's own tail is the one described, or the same one with its derivative left to its code."""
    own = msgspec.structs.replace(cut.tail_config(), classes=classes, why="")
    general = msgspec.structs.replace(own, path="functional", layers=(), end=None)
    return msgspec.structs.replace(config, why="") in ((own, general) if cut.start else (own,))


def check_files(folder: Path, described: Description) -> list[str]:
    """IntegrityError for a file that is missing, or not as it was saved; returns the names of those that are there.

    The program and ONNX may be missing, because nothing here reads them.
    """
    files = {**described.files, WEIGHTS: described.digest}
    for spare in (PROGRAM, ONNX):
        if not (folder / spare).exists():
            files.pop(spare, None)
    SAVED.check(folder, files, {WEIGHTS, *NETWORKS, PROGRAM, ONNX})
    return list(files)


def _new(folder: str | os.PathLike[str]) -> Path:
    folder = local_path(folder)
    if folder.exists() and not (folder.is_dir() and all(is_from_macos(file.name) for file in folder.iterdir())):
        raise StoreWriteError(
            f"cannot save the model in {folder}: there is something already",
            got=str(folder),
            do="name a new or empty folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.cpu(), b.cpu().to(a.dtype))
