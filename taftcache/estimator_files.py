"""A fitted estimator as a folder of safetensors and JSON, without pickle.

estimator.json           which estimator, its arguments, its classes, how the solve ended, digests of the other files
estimator.safetensors    delta/<name>: Δw in float64; base/<name>: the base point; scaler/<name>: of features;
                         given/<name>: the state of the tail that rows were fitted to
of images, the backbone  of a classifier with all that ``save_model`` writes, so that ``open_model`` and ``taftcache
                         predict`` take the folder too; of a regressor below ``backbone/``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sklearn.base import is_classifier
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.files import file_digest
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.saved import save_backbone
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.errors import ArgumentError, FormatError, IntegrityError
from taftcache.model.component import Component
from taftcache.model.folder import BACKBONE, CARD, ESTIMATOR, files_in, save_model
from taftcache.model.meta import CertificateRecord, ComponentMeta
from taftcache.model.predictor import TangentModel
from taftcache.solve.choosing import RidgeChoice, TriedRidge
from taftcache.solve.solution import Certificate, Solution, Status
from taftcache.stages.writing import whole
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.parameters import Layout
from taftcache.tangent.spec import TangentSpec

TENSORS = "estimator.safetensors"
FORMAT = 1
# Of labels: numbers, texts and truth values, which JSON gives back as they were.
_LABELS = re.compile(r"[<>|=][iufbU][0-9]+|object")
_LARGEST_LABEL = 1 << 20  # bytes: a dtype alone can ask for as much memory as it likes
_SCALER = ("mean_", "scale_", "var_")


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Attributes that ``fit`` leaves beside the arrays; no other one can be set by a folder."""

    n_features_in_: int | None = None
    flat: bool | None = msgspec.field(default=None, name="_flat")
    feature_names_in_: list[str] | None = None


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
    stats: dict[str, Any]
    ridge: float
    choice: dict[str, Any] | None
    preprocess: PreprocessSpec | None
    precision: str
    files: dict[str, str]
    versions: dict[str, str]


class Files:
    """What classifier and regressor share: ``save`` and ``load``."""

    base_: Base
    solution_: Solution
    scaler_: StandardScaler | None
    _layout: Layout

    def save(self, folder: Path | str) -> None:
        """Write the fitted estimator into a new or empty folder, of safetensors and JSON; ``load`` reads it.

        Of images the backbone comes along, and a classifier's folder is a model for ``open_model`` and ``taftcache
        predict`` too. Gradients and dual vectors of the solve, which speak of single rows, are not kept.

        Raises:
            NotFittedError: before ``fit``. ArgumentError: an argument or a class that is no number, text or name.
            StoreWriteError: there is something already, or it cannot be written.
        """
        check_is_fitted(self, "solution_")
        arguments, given = _encoded(self.get_params(deep=False))  # type: ignore[attr-defined]
        labels = _labels(self.__dict__.get("classes_"))
        cut = self._cut() if self._spec is not None else None  # type: ignore[attr-defined]
        tensors = {f"given/{name}": tensor for name, tensor in given.items()}
        tensors |= {f"base/{name}": tensor for name, tensor in self.base_.state.items()}
        tensors |= {f"delta/{name}": view for name, view in self._layout.views(self.solution_.value.cpu()).items()}
        if self.scaler_ is not None:
            tensors |= {f"scaler/{name}": torch.from_numpy(getattr(self.scaler_, name)) for name in _SCALER}
        with whole(Path(folder), folder=True) as partial:
            if cut is not None and labels is not None:
                save_model(self._model(cut), partial, name=type(self).__name__)
            elif cut is not None:
                save_backbone(cut.backbone, partial / BACKBONE)
            partial.mkdir(exist_ok=True)
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial / TENSORS)
            files = {name: file_digest(partial / name) for name in files_in(partial) if name != CARD}
            described = self._described(arguments, labels, cut, files)
            (partial / ESTIMATOR).write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")

    @classmethod
    def load(cls, folder: Path | str, *, device: str | None = None) -> Self:
        """The estimator that ``save`` wrote, whose answers are the same to the last bit.

        Args:
            folder: where it is; the images' backbone is read from there whenever it is asked.
            device: another than the saved one.

        Raises:
            FormatError: no such folder, of another estimator or of a later release. IntegrityError: a file is not as
                it was saved.
        """
        folder = Path(folder)
        described = _read(folder, cls.__name__)
        try:
            tensors = _Parts(load_file(folder / TENSORS))
            arguments = _decoded(described.arguments, tensors.under("given"))
            made = cls(**(arguments | ({"device": device} if device else {})))
            made.__dict__.update(_fitted(described, tensors))
            _check_whole(made, described, tensors)
            made._unpack()
            if described.preprocess is not None:
                network = folder / BACKBONE if (folder / BACKBONE).is_dir() else folder
                spec = BackboneSpec(weights=f"local-dir:{network.absolute()}", precision=described.precision)  # type: ignore[arg-type]
                backbone = load_backbone(spec, described.preprocess, made.device)  # type: ignore[attr-defined]
                made._cut_of = made._cut_from, Cut(backbone, made.base_.config.start or 0)  # type: ignore[attr-defined]
        except (OSError, SafetensorError) as error:
            raise FormatError(f"no saved estimator at {folder}", got=str(error), do="save it again") from error
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # torch and timm raise whatever they like for parts that do not fit
            raise _unfit(f"{type(error).__name__}: {error}") from error
        return made

    def _unpack(self) -> None:
        """``coef_``, and of features ``intercept_``, from the solution."""
        self._layout = self.base_.trained(self.base_.spec.train)
        value = self.solution_.value.cpu()
        if self.backbone is not None:  # type: ignore[attr-defined]
            self.coef_ = value.numpy()
            self.__dict__.pop("intercept_", None)  # of an earlier fit, to features
            return
        head = {name: view + self.base_.state[name].to(view) for name, view in self._layout.views(value).items()}
        self.coef_, self.intercept_ = head["head.weight"].numpy(), head["head.bias"].numpy()
        if self.scaler_ is not None:  # the same head, of X as it was given
            self.coef_ = self.coef_ / self.scaler_.scale_
            self.intercept_ = self.intercept_ - self.coef_ @ self.scaler_.mean_
        if getattr(self, "_flat", False):
            self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def _model(self, cut: Cut) -> TangentModel:
        """A classifier of images as the model that it is."""
        solution, base = self.solution_, self.base_
        meta = ComponentMeta(
            kind="component",
            rows=solution.certificate.rows,
            converged=solution.converged,
            status=solution.status.value,
            stats=solution.stats,
            certificate=msgspec.convert(solution.certificate.as_dict(), CertificateRecord),
            norm=solution.value.norm().item(),
        )
        component = Component(base.digest, self._layout, solution.value.cpu(), meta.as_dict())
        classes = [str(name) for name in self.classes_]  # type: ignore[attr-defined]
        classes += ["(no class)"] * (base.config.classes - len(classes))
        return TangentModel(cut, Preprocess(cut.backbone), base, component, classes)

    def _described(
        self, arguments: dict[str, Any], labels: tuple[str, list[Any]] | None, cut: Cut | None, files: dict[str, str]
    ) -> _Described:
        preprocess = None
        if cut is not None:
            config = Preprocess(cut.backbone).description()
            fields = {k: config[k] for k in PreprocessSpec.__struct_fields__}
            preprocess = msgspec.convert(fields, PreprocessSpec)
        fitted = self.__dict__
        names = fitted.get("feature_names_in_")
        choice = fitted["ridge_choice_"]
        return _Described(
            format=FORMAT,
            kind=type(self).__name__,
            arguments=arguments,
            labels=labels,
            state=_State(
                n_features_in_=fitted.get("n_features_in_"),
                flat=fitted.get("_flat"),
                feature_names_in_=None if names is None else names.tolist(),
            ),
            scaled_rows=None if self.scaler_ is None else float(self.scaler_.n_samples_seen_),
            tail=self.base_.config.as_dict(),
            spec=self.base_.spec,
            status=self.solution_.status.name,
            certificate=asdict(self.solution_.certificate),
            stats=self.solution_.stats,
            ridge=float(fitted["ridge_"]),
            choice=None if choice is None else choice.as_dict(),
            preprocess=preprocess,
            precision="float32" if cut is None else self._spec.precision,  # type: ignore[attr-defined]
            files=files,
            versions={library: version(library) for library in ("taftcache", "torch", "scikit-learn")},
        )


class _Parts(dict[str, Tensor]):
    """Tensors of a file by name."""

    def under(self, kind: str) -> dict[str, Tensor]:
        """Those called ``kind/<name>``, by that name."""
        return {name.removeprefix(f"{kind}/"): t for name, t in self.items() if name.startswith(f"{kind}/")}


def _read(folder: Path, kind: str) -> _Described:
    """What a folder says of itself, once its files are those that were saved."""
    try:
        described = msgspec.json.decode((folder / ESTIMATOR).read_bytes(), type=_Described)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"no saved estimator at {folder}", got=str(error).splitlines()[0], do="name a folder that save() wrote"
        ) from error
    if described.format != FORMAT:
        raise FormatError(
            f"the saved estimator has format {described.format}, which this release does not know",
            got=str(folder),
            do="use a newer release",
        )
    if described.kind != kind:
        raise FormatError(f"{folder} has another estimator than a {kind}", got=described.kind, do="load it with that")
    for name, known in described.files.items():
        if not _is_as_saved(folder, name, known):
            raise IntegrityError(
                "a file of the saved estimator is not as it was saved", got=str(folder / name)[:200], do="copy it again"
            )
    if TENSORS not in described.files:
        raise _unfit(f"its description does not name {TENSORS}")
    return described


def _is_as_saved(folder: Path, name: str, known: str) -> bool:
    place = folder / name
    try:
        return place.resolve().is_relative_to(folder.resolve()) and place.is_file() and file_digest(place) == known
    except (OSError, ValueError):  # a name that no file can have
        return False


def _check_whole(made: Any, described: _Described, tensors: _Parts) -> None:
    """FormatError for parts that ``fit`` never leaves together."""
    classes = made.__dict__.get("classes_")
    if (classes is None) == is_classifier(made) or (
        classes is not None and max(2, len(classes)) != made.base_.config.classes
    ):
        raise _unfit("it has other classes than outputs")
    if (made._spec is None) != (described.preprocess is None):  # else another backbone would be looked for
        raise _unfit("a backbone is named, or kept, without the other")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise _unfit("a number is not finite")


def _fitted(described: _Described, tensors: _Parts) -> dict[str, Any]:
    """What ``fit`` leaves, by attribute, but for what follows from it."""
    config, state = TailConfig.from_dict(described.tail), tensors.under("base")
    token = [config.token_name] if config.token_name in state else []
    names = [*token, *config.parameters, *config.buffers, *config.head_names]  # a file has them in another order
    base = Base(config, {name: state[name] for name in names}, described.spec)
    delta = tensors.under("delta")
    layout = base.trained(base.spec.train)
    if layout.shapes != {name: tuple(tensor.shape) for name, tensor in delta.items()}:
        raise _unfit("what was trained has other shapes than the parameters of the tail, or is not there")
    certificate = Certificate(**described.certificate)
    solution = Solution(layout.flatten(delta), Status[described.status], certificate, described.stats)
    fitted: dict[str, Any] = msgspec.to_builtins(described.state)
    if "feature_names_in_" in fitted:
        fitted["feature_names_in_"] = np.array(fitted["feature_names_in_"], dtype=object)
    if described.labels is not None:
        fitted["classes_"] = _array(*described.labels)
    choice = None
    if (said := described.choice) is not None:
        choice = RidgeChoice(**said | {"curve": [TriedRidge(**point) for point in said["curve"]]})
    scaler = None
    if described.scaled_rows is not None:
        scaler = StandardScaler()
        measured = tensors.under("scaler")
        for name in _SCALER:
            setattr(scaler, name, measured[name].numpy())
        scaler.n_samples_seen_, scaler.n_features_in_ = described.scaled_rows, config.width
    return fitted | {
        "base_": base,
        "solution_": solution,
        "scaler_": scaler,
        "ridge_": described.ridge,
        "ridge_choice_": choice,
        "n_iter_": described.stats["passes"],
    }


def _labels(classes: np.ndarray | None) -> tuple[str, list[Any]] | None:
    """Classes in JSON types with their dtype; ArgumentError where they would not come back as they were."""
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
        raise _unfit(f"classes of {kind}")
    return np.array(values, dtype=kind)


def _encoded(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Arguments in JSON types, and the state of a cut's tail where that is one of them."""
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
    """What `_encoded` made, as it was."""
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


def _unfit(got: str) -> FormatError:
    return FormatError("the parts of the saved estimator do not fit together", got=got, do="save it again")
