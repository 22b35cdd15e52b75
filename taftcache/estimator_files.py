"""A fitted estimator as a folder of safetensors and JSON, without pickle.

estimator.json           which estimator, its arguments, its classes, how the solve ended, digests of the other files
estimator.safetensors    delta/<name>: Δw in float64; base/<name>: the base point; scaler/<name>: scaling of features;
                         given/<name>: the state of the tail that rows were fitted to
the backbone of images   of a classifier with all that ``save_model`` writes, so that ``open_model`` and ``taftcache
                         predict`` take the folder too; of a regressor below ``backbone/``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from msgspec import UNSET, UnsetType
from safetensors.torch import load_file, save_file
from sklearn.base import is_classifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from taftcache.backbone.files import file_digest
from taftcache.backbone.spec import BackboneSpec, Features, PreprocessSpec
from taftcache.errors import ArgumentError, FormatError
from taftcache.model.component import Component
from taftcache.model.description import DESCRIPTION as MODEL
from taftcache.model.meta import CertificateRecord, ComponentMeta
from taftcache.model.saved import BACKBONE, CARD, ESTIMATOR, NETWORKS, TENSORS, WEIGHTS, Saved, files_in, under
from taftcache.solve.choosing import RidgeChoice, TriedRidge
from taftcache.solve.solution import Certificate, Solution, Status
from taftcache.solve_stats import SolveStats
from taftcache.stages.writing import whole
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TangentSpec

if TYPE_CHECKING:  # timm takes as long as all else, and features are saved and loaded without it
    from taftcache.backbone.cut.cut import Cut
    from taftcache.model.predictor import TangentModel

FORMAT = 1
_SAVED = Saved("estimator", "name a folder that save() wrote, or save it again")
_FILES = {TENSORS, MODEL, WEIGHTS, *NETWORKS}  # may be there besides the description and the card
# Dtypes of labels: numbers, texts and truth values, which JSON gives back as they were.
_LABELS = re.compile(r"[<>|=][iufbU][0-9]+|object")
_LARGEST_LABEL = 1 << 20  # bytes: a dtype alone can ask for as much memory as it likes
_SCALER = ("mean_", "scale_", "var_")
_OF_VALUES = ("y_mean_", "y_scale_")


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Attributes that ``fit`` leaves besides the arrays; a folder can set no others."""

    n_features_in_: int | None = None
    flat: bool | None = msgspec.field(default=None, name="_flat")
    feature_names_in_: list[str] | None = None
    y_mean_: list[float] | None = None
    y_scale_: list[float] | None = None


class _Described(msgspec.Struct, frozen=True, kw_only=True):
    """``estimator.json``. ``preprocess`` is that of a backbone."""

    format: int
    kind: str
    arguments: dict[str, Any]
    labels: tuple[str, list[int | float | str | bool]] | None
    state: _State
    scaled_rows: float | None
    tail: dict[str, Any]
    spec: TangentSpec
    status: str
    certificate: dict[str, Any]
    stats: SolveStats
    ridge: float
    choice: dict[str, Any] | None
    preprocess: PreprocessSpec | None
    precision: str
    files: dict[str, str]
    versions: dict[str, str]
    features: Features | UnsetType = UNSET


def save_estimator(estimator: Any, folder: Path, *, force: bool = False) -> None:
    """See ``TangentEstimator.save``; ``estimator`` is fitted."""
    arguments, given = _encoded(estimator.get_params(deep=False))
    labels = _labels(estimator.__dict__.get("classes_"))
    cut = estimator._cut() if estimator._spec is not None else None
    tensors = {f"given/{name}": tensor for name, tensor in given.items()}
    tensors |= {f"base/{name}": tensor for name, tensor in estimator.base_.state.items()}
    delta = estimator._layout.views(estimator.solution_.value.cpu())
    tensors |= {f"delta/{name}": view for name, view in delta.items()}
    if estimator.scaler_ is not None:
        tensors |= {f"scaler/{name}": torch.from_numpy(getattr(estimator.scaler_, name)) for name in _SCALER}
    again = False
    if force:
        from taftcache.model.folder import may_replace

        again = may_replace(folder)
    with whole(folder, folder=True, again=again) as partial:
        if cut is not None and labels is not None:
            from taftcache.model.folder import save_model

            save_model(_model(estimator, cut), partial, name=type(estimator).__name__)
        elif cut is not None:
            from taftcache.backbone.saved import save_backbone

            save_backbone(cut.backbone, partial / BACKBONE)
        partial.mkdir(exist_ok=True)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial / TENSORS)
        files = {name: file_digest(partial / name) for name in files_in(partial) if name != CARD}
        described = _described(estimator, arguments, labels, cut, files)
        (partial / ESTIMATOR).write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")
        if again:
            may_replace(folder)  # still


def load_estimator(kind: type[Any], folder: Path, device: str | None) -> Any:
    """See ``TangentEstimator.load``."""
    described = _read(folder, kind.__name__)
    with _SAVED.fitting(folder):
        _SAVED.check(folder, described.files, _FILES)
        tensors = load_file(folder / TENSORS)
        arguments = _decoded(described.arguments, under("given", tensors))
        made = kind(**(arguments | ({"device": device} if device else {})))
        made.__dict__.update(_fitted(described, tensors))
        _check_whole(made, described, tensors)
        made._unpack()
        if (preprocess := described.preprocess) is not None:
            from taftcache.backbone.cut.cut import Cut
            from taftcache.model.folder import saved_backbone

            said = {"precision": described.precision, "features": described.features or "last"}
            backbone = saved_backbone(folder, described.files, preprocess, made.device, **said)
            made._cut_of = made._cut_from, Cut(backbone, made.base_.config.start or 0)
    return made


def _model(estimator: Any, cut: Cut) -> TangentModel:
    """A classifier of images as a tangent model."""
    from taftcache.backbone.preprocess import Preprocess
    from taftcache.model.predictor import TangentModel

    solution, base = estimator.solution_, estimator.base_
    meta = ComponentMeta(
        kind="component",
        rows=solution.certificate.rows,
        converged=solution.converged,
        status=solution.status.value,
        stats=solution.stats,
        certificate=msgspec.convert(solution.certificate.as_dict(), CertificateRecord),
        norm=solution.value.norm().item(),
    )
    component = Component(base.digest, estimator._layout, solution.value.cpu(), meta.as_dict())
    classes = [str(name) for name in estimator.classes_]
    classes += ["(no class)"] * (base.config.classes - len(classes))
    return TangentModel(cut, Preprocess(cut.backbone), base, component, classes)


def _described(
    estimator: Any,
    arguments: dict[str, Any],
    labels: tuple[str, list[Any]] | None,
    cut: Cut | None,
    files: dict[str, str],
) -> _Described:
    fitted, preprocess = estimator.__dict__, None
    if cut is not None:
        from taftcache.backbone.preprocess import Preprocess

        preprocess = Preprocess(cut.backbone).spec()
    choice = fitted["ridge_choice_"]
    return _Described(
        format=FORMAT,
        kind=type(estimator).__name__,
        arguments=arguments,
        labels=labels,
        state=_State(
            n_features_in_=fitted.get("n_features_in_"),
            flat=fitted.get("_flat"),
            **{name: fitted[name].tolist() for name in ("feature_names_in_", *_OF_VALUES) if name in fitted},
        ),
        scaled_rows=None if estimator.scaler_ is None else float(estimator.scaler_.n_samples_seen_),
        tail=estimator.base_.config.as_dict(),
        spec=estimator.base_.spec,
        status=estimator.solution_.status.name,
        certificate=asdict(estimator.solution_.certificate),
        stats=estimator.solution_.stats,
        ridge=float(fitted["ridge_"]),
        choice=None if choice is None else asdict(choice),
        preprocess=preprocess,
        precision="float32" if cut is None else estimator._spec.precision,
        files=files,
        versions={library: version(library) for library in ("taftcache", "torch", "scikit-learn")},
        features=UNSET if cut is None or cut.backbone.features == "last" else cut.backbone.features,
    )


def _read(folder: Path, kind: str) -> _Described:
    """A folder's description; FormatError if it is of another kind of estimator."""
    described = _SAVED.described(folder / ESTIMATOR, _Described, FORMAT)
    if described.kind != kind:
        raise FormatError(f"{folder} has another estimator than a {kind}", got=described.kind, do="load it with that")
    if TENSORS not in described.files:
        raise _SAVED.unfit(f"its description does not name {TENSORS}")
    return described


def _check_whole(made: Any, described: _Described, tensors: Mapping[str, Tensor]) -> None:
    """FormatError for parts that ``fit`` never leaves together."""
    classes = made.__dict__.get("classes_")
    if (classes is None) == is_classifier(made) or (
        classes is not None and max(2, len(classes)) != made.base_.config.classes
    ):
        raise _SAVED.unfit("it has other classes than outputs")
    if classes is None and not made.y_mean_.shape == made.y_scale_.shape == (made.base_.config.classes,):
        raise _SAVED.unfit("it has other values than outputs")
    if (made._spec is None) != (described.preprocess is None):  # else another backbone would be looked for
        raise _SAVED.unfit("a backbone is named, or kept, without the other")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise _SAVED.unfit("a number is not finite")


def _fitted(described: _Described, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What ``fit`` leaves, by attribute, except what follows from the rest."""
    config = TailConfig.from_dict(described.tail)
    base = Base.of(config, under("base", tensors), described.spec)
    delta = _SAVED.flat(under("delta", tensors), base.trained(base.spec.train))
    certificate = Certificate(**described.certificate)
    solution = Solution(delta, Status[described.status], certificate, described.stats)
    fitted: dict[str, Any] = msgspec.to_builtins(described.state)
    if "feature_names_in_" in fitted:
        fitted["feature_names_in_"] = np.array(fitted["feature_names_in_"], dtype=object)
    if described.labels is not None:
        fitted["classes_"] = _array(*described.labels)
    else:
        fitted |= {name: np.array(fitted[name]) for name in _OF_VALUES}
    choice = None
    if (said := described.choice) is not None:
        choice = RidgeChoice(**said | {"curve": [TriedRidge(**point) for point in said["curve"]]})
    scaler = None
    if described.scaled_rows is not None:
        scaler = StandardScaler()
        measured = under("scaler", tensors)
        for name in _SCALER:
            setattr(scaler, name, measured[name].numpy())
        scaler.n_samples_seen_, scaler.n_features_in_ = described.scaled_rows, config.width
    return fitted | {
        "base_": base,
        "solution_": solution,
        "scaler_": scaler,
        "ridge_": described.ridge,
        "ridge_choice_": choice,
        "n_iter_": described.stats.passes,
    }


def _labels(classes: np.ndarray | None) -> tuple[str, list[Any]] | None:
    """Classes in JSON types with their dtype; ArgumentError if they would not come back as they were."""
    if classes is None:
        return None
    kind = "object" if classes.dtype == object else classes.dtype.str
    try:
        if _LABELS.fullmatch(kind):
            values = msgspec.json.decode(msgspec.json.encode(classes.tolist()))
            back = _array(kind, values)
            if back.dtype == classes.dtype and all(map(_same, back, classes)):
                return kind, values
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(
        "the classes cannot be saved",
        got=f"{classes[0]!r}, of {classes.dtype}"[:80],
        do="fit to numbers or texts",
    )


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _array(kind: str, values: list[Any]) -> np.ndarray:
    if not _LABELS.fullmatch(kind) or np.dtype(kind).itemsize > _LARGEST_LABEL:
        raise _SAVED.unfit(f"classes of {kind}")
    return np.array(values, dtype=kind)


def _encoded(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Arguments in JSON types, and the state of a cut's tail if that is one of them."""
    plain: dict[str, Any] = {}
    given: Mapping[str, Tensor] = {}
    for name, value in arguments.items():
        if isinstance(value, tuple) and name == "backbone":
            given, config = value
            plain[name] = {"tail": config.as_dict()}
        elif isinstance(value, Path):
            plain[name] = {"path": str(value)}
        elif isinstance(value, TangentSpec | BackboneSpec):
            plain[name] = {type(value).__name__: msgspec.to_builtins(value)}
        elif isinstance(value, Mapping):
            plain[name] = {"pairs": [[_scalar(name, of) for of in pair] for pair in value.items()]}
        else:
            plain[name] = _scalar(name, value)
    return plain, given


def _scalar(name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    finite = not isinstance(value, float) or isfinite(value)
    if not (value is None or isinstance(value, bool | int | float | str)) or not finite:
        raise ArgumentError(
            f"the argument {name} cannot be saved", got=repr(value)[:80], do="give it as a number, text or path"
        )
    return value


def _decoded(arguments: Mapping[str, Any], given: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments that `_encoded` was given."""
    readers: dict[str, Any] = {
        "tail": lambda value: (given, TailConfig.from_dict(value)),
        "path": Path,
        "TangentSpec": lambda value: msgspec.convert(value, TangentSpec),
        "BackboneSpec": lambda value: msgspec.convert(value, BackboneSpec),
        "pairs": dict,
    }
    found = {}
    for name, value in arguments.items():
        if isinstance(value, dict):
            ((kind, inner),) = value.items()
            value = readers[kind](inner)
        found[name] = value
    return found
