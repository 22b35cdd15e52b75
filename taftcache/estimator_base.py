"""What a classifier and a regressor share: rows for whatever X is, the base point, the solve, logits of new rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, ParamSpec, Self, TypeVar
from warnings import warn

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_y, check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from taftcache.backbone.device import float64_device
from taftcache.backbone.sources.arrays import check_values, widened
from taftcache.backbone.sources.pictures import listed
from taftcache.backbone.spec import EVERY_BLOCK, BackboneSpec, Features, backbone_of
from taftcache.errors import ArgumentError, DataError, local_path
from taftcache.objective.loss import Loss
from taftcache.objective.objective import Objective
from taftcache.objective.weights import RowWeights
from taftcache.solve.choosing import EVERY, RidgeChoice, choose_ridge, row_hashes
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.solve.solution import Solution
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import ArrayRows, RowSource, RowSubset
from taftcache.tangent.selection import row_shape
from taftcache.tangent.spec import TangentSpec

if TYPE_CHECKING:  # it needs timm, which features do without
    from taftcache.backbone.cut.cut import Cut

Scaling = Literal["column", "none"]
P = ParamSpec("P")
E = TypeVar("E", bound="TangentEstimator")

FEW = 1000  # rows of features: a fifth of so few is too little to choose λ by, and all five are soon solved
# For classes, the same of rows outside the largest class: a fifth of 2,000 rows has 12 of a class with 3 %.
FEW_OTHERS = FEW // 2
# By what the head reads, as ``init`` writes it into a recipe.
TANGENTS: dict[Features, TangentSpec] = {
    "last": TangentSpec(reset_block=True),
    EVERY_BLOCK: TangentSpec(blocks=0, train="head", init="zero"),
}


class GivenRows(NamedTuple):
    """Rows to solve over, the tail that they enter, where each row stands in X, and hashes [n] of the rows of X if the
    rows to solve over are made from these."""

    source: RowSource
    state: Mapping[str, Tensor]
    config: TailConfig
    module: nn.Module | None = None
    order: np.ndarray | slice = slice(None)
    hashes: np.ndarray | None = None


def refused_is_unchanged(fit: Callable[Concatenate[E, P], E]) -> Callable[Concatenate[E, P], E]:
    """Make a ``fit`` that fails, or is interrupted, leave what an earlier one made."""

    @wraps(fit)
    def guarded(self: E, /, *args: P.args, **named: P.kwargs) -> E:
        before = dict(self.__dict__)
        try:
            return fit(self, *args, **named)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    return guarded


class TangentEstimator(BaseEstimator):
    """What classifier and regressor share: rows, base point, solve, and logits of new rows."""

    base_: Base
    solution_: Solution
    ridge_: float
    ridge_choice_: RidgeChoice | None
    scaler_: StandardScaler | None
    coef_: NDArray[np.float64]
    intercept_: Any  # narrower in each kind
    n_iter_: int
    n_features_in_: int
    _layout: Layout

    def __init__(
        self,
        backbone: str | Path | BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None = None,
        *,
        tangent: TangentSpec | None = None,
        scaling: Scaling = "column",
        ridge: float | Literal["auto"] = "auto",
        radius: float | None = None,
        tolerance: float = 1e-6,
        max_passes: int = 1000,
        memory: int = 2 << 30,
        device: str = "cpu",
        store: str | Path | None = None,
    ) -> None:
        self.backbone = backbone
        self.tangent = tangent
        self.scaling = scaling
        self.ridge = ridge
        self.radius = radius
        self.tolerance = tolerance
        self.max_passes = max_passes
        self.memory = memory
        self.device = device
        self.store = store

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the fitted estimator into a new or empty folder, of safetensors and JSON; ``load`` reads it.

        For images the backbone comes along, and a classifier's folder is a model for ``open_model`` and ``taftcache
        predict`` too. Gradients and dual vectors of the solve are not kept, because they tell about single rows.
        ``force`` replaces a saved model that is there, whole or not at all; a folder with other files is left alone.

        Raises:
            NotFittedError: before ``fit``. ArgumentError: an argument or a class that is no number, text or name.
            StoreWriteError: something is in the folder already, or it cannot be written.
        """
        from taftcache.estimator_files import save_estimator

        check_is_fitted(self, "solution_")
        save_estimator(self, local_path(folder), force=force)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: str | None = None) -> Self:
        """The estimator that ``save`` wrote, whose answers are the same to the last bit.

        Args:
            folder: where it is; for images, the backbone is read from there whenever it is needed.
            device: another than the saved one.

        Raises:
            FormatError: no such folder, of another estimator or of a later release. IntegrityError: a file is not as
                it was saved.
        """
        from taftcache.estimator_files import load_estimator

        loaded: Self = load_estimator(cls, local_path(folder), device)
        return loaded

    @property
    def _spec(self) -> BackboneSpec | None:
        """The backbone if X is images, else None; RecipeError if it is nothing that an estimator takes."""
        given = self.backbone
        return None if given is None or isinstance(given, tuple) else backbone_of(given)

    @property
    def _expansion(self) -> TangentSpec:
        spec = self._spec
        return self.tangent or (TangentSpec() if spec is None else TANGENTS[spec.features])

    def _checked(self, X: Any, y: Any, **of_y: Any) -> tuple[Any, np.ndarray]:
        """X and y as scikit-learn checks them; for images and cached rows, only y and the lengths are checked."""
        for what, given in (("X", X), ("y", y)):
            check_values(what, given)
        X = widened(X)
        if self.backbone is None:
            checked: tuple[Any, np.ndarray] = validate_data(self, X, y, dtype=[np.float64, np.float32], **of_y)
            return checked
        for of_features in ("n_features_in_", "feature_names_in_"):  # left by an earlier fit
            self.__dict__.pop(of_features, None)
        if self._spec is not None:
            X = listed(X)
        y = _check_y(y, estimator=self, **of_y)
        check_consistent_length(X, y)
        return X, y

    def _rows(self, X: Any) -> np.ndarray:
        """Rows [n,t,d] as a tail takes them: validated features, or cached rows."""
        if self.backbone is None:
            features: np.ndarray = X if self.scaler_ is None else self.scaler_.transform(X)
            return features[:, None, :]
        rows: np.ndarray = check_array(X, allow_nd=True, ensure_2d=False, dtype=[np.float16, np.float32, np.float64])
        if rows.ndim != 3:
            raise DataError(f"cached rows must be [n,t,d], not of {rows.ndim} dimensions", got=list(rows.shape))
        assert isinstance(self.backbone, tuple)
        t, d = row_shape(self.backbone[1], self.backbone[1].rows)
        if rows.shape[2] != d or (t == 1 and rows.shape[1] != 1):
            raise DataError(f"cached rows do not fit the tail, which takes [n,{t},{d}]", got=list(rows.shape))
        return rows

    def _cut(self) -> Cut:
        spec = self._spec
        assert spec is not None
        known: tuple[Any, Cut] | None = self.__dict__.get("_cut_of")
        if known is None or known[0] != self._cut_from:
            from taftcache.estimator_images import make_cut

            known = self._cut_from, make_cut(spec, self._expansion.blocks, self.device)
            self._cut_of = known
        return known[1]

    @property
    def _cut_from(self) -> tuple[BackboneSpec | None, int | str]:
        """What a cut depends on."""
        return self._spec, self._expansion.blocks

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in super().__getstate__().items() if name != "_cut_of"}
        if "base_" in state:
            state["base_"] = replace(state["base_"], module=None)  # timm's code is loaded again, not pickled
        return state

    @contextmanager
    def _given(self, X: Any, targets: np.ndarray, weights: Tensor | None) -> Iterator[GivenRows]:
        """The rows of X (those of images in a store), and the tail that they enter (for features, none)."""
        if (spec := self._spec) is not None:
            from taftcache.stages.extract.growth.listing import ImageList, cached_images

            with ExitStack() as stack:
                path = Path(self.store or Path(stack.enter_context(TemporaryDirectory()), "store"))
                images = ImageList(X, *self._labelled(targets))
                lasting = bool(self.store)
                cached = cached_images(path, images, spec, self._expansion, self.device, lasting=lasting)
                frozen = cached.frozen
                self._cut_of = self._cut_from, frozen.cut
                order = np.argsort(cached.places)
                subset = RowSubset([cached.shard], cached.places[order], targets[order])
                yield GivenRows(subset, frozen.tail_state(), frozen.config, frozen.cut.module(), order)
            return
        rows = ArrayRows(self._rows(X), targets)
        if self.backbone is None:
            # Hashes of X as given: a scaled column's last bits depend on the order of all rows, and would draw other
            # rows to validate λ.
            told = [X, targets] if weights is None else [X, targets, weights.numpy()]
            hashes = row_hashes(np.column_stack(told)) if self.ridge == "auto" else None
            yield GivenRows(rows, {}, TailConfig.of_vectors(rows.tokens.shape[2], 1), hashes=hashes)
        else:
            assert isinstance(self.backbone, tuple)
            yield GivenRows(rows, *self.backbone)

    def _labelled(self, targets: np.ndarray) -> tuple[list[int], list[str]] | tuple[()]:
        """What a store keeps of the targets: the class of each row, and the classes' names; nothing for values."""
        return ()

    def _measure(self, X: np.ndarray, weights: Tensor | None) -> None:
        """For features, each column's mean and deviation over the rows of ``fit``, in place of an earlier fit's."""
        if self.scaling not in ("column", "none"):
            raise ArgumentError("no scaling of features is called that", got=str(self.scaling), do="column, or none")
        self.scaler_ = None
        if self.scaling == "column" and self.backbone is None:
            scaler = StandardScaler().set_output(transform="default")  # whatever a notebook has set for all others
            with np.errstate(invalid="ignore"):  # from a constant column
                self.scaler_ = scaler.fit(X, sample_weight=None if weights is None else weights.numpy())

    def _base(self, given: GivenRows, outputs: int, begin: np.ndarray | None) -> Base:
        """The base point, with ``begin`` [K] in the head's bias: the value that the ridge pulls it to."""
        if self.backbone is None:
            config = TailConfig.of_vectors(given.config.width, outputs)
            weight = torch.zeros(outputs, config.width, dtype=torch.float32, device="cpu")
            head = {"head.weight": weight, "head.bias": torch.zeros(outputs, dtype=torch.float32, device="cpu")}
            base = Base(config, head, TangentSpec(blocks=0, train="head"))
        else:
            base = make_base(given.state, given.config, outputs, self._expansion, given.module)
        bias = base.config.head_names[1]
        if begin is None or bias not in base.state:
            return base
        return replace(base, state={**base.state, bias: base.state[bias].double() + torch.from_numpy(begin)})

    def _check_arguments(self) -> None:
        """ArgumentError for an argument that has none of its possible values."""
        in_ball = _above_zero(self.radius)
        wanted = {
            "ridge": (
                self.ridge == "auto"
                or _above_zero(self.ridge)
                or (in_ball and _is_number(self.ridge) and self.ridge == 0),
                'a number above 0, "auto", or 0 beside a radius',
            ),
            "radius": (self.radius is None or in_ball, "a number above 0 and below ‖Δw‖ without it, or None"),
            "tolerance": (_above_zero(self.tolerance) and self.tolerance < 1, "a number between 0 and 1"),
            "max_passes": (
                _is_whole(self.max_passes) and 1 <= self.max_passes < 2**63,
                "a whole number from 1 to 2**63 - 1",
            ),
            "memory": (_is_whole(self.memory) and self.memory >= 0, "a number of bytes: 2 << 30 are 2 GiB"),
            "backbone": (
                _is_no_half(self.backbone),
                "a pair (state, config), as a cut's tail_state and tail_config give",
            ),
            "tangent": (self.tangent is None or isinstance(self.tangent, TangentSpec), "a TangentSpec, or None"),
        }
        for name, (fits, do) in wanted.items():
            if not fits:
                value = repr(getattr(self, name))
                raise ArgumentError(f"{name} cannot be {value:.80}", got=value, do=do)
        if self.tangent is not None and self.backbone is None:
            raise ArgumentError(
                "tangent says what of a network is trained, and of features only a head is",
                got=repr(self.tangent)[:80],
                do="leave it out, or name a backbone",
            )

        if self.store is not None and self._spec is None:
            raise ArgumentError(
                "a store keeps images, and X is none without a backbone",
                got=f"store {str(self.store)!r}",
                do="leave it out, or name a backbone",
            )

    def _solve(
        self, given: GivenRows, outputs: int, loss: Loss, weights: RowWeights | None, begin: np.ndarray | None
    ) -> None:
        self.base_ = self._base(given, outputs, begin)
        train, sources = self.base_.spec.train, [given.source]
        objective = Objective(loss=loss, train=train, weights=weights, radius=self.radius)
        how = Arithmetic(memory=int(self.memory), device=str(float64_device(self.device)))
        ridge, choice = self.ridge, None
        if ridge == "auto":
            folds = EVERY if self.backbone is None and _few(given.source) else 1
            choice = choose_ridge(self.base_, sources, objective, arithmetic=how, hashes=given.hashes, folds=folds)
            ridge = choice.ridge
            if choice.end:
                one_class = len(self.__dict__.get("classes_", ())) == 1
                _warn_of_end(choice, units=self.scaling == "none" and self.backbone is None, one_class=one_class)
        goal = Goal(tolerance=self.tolerance, max_passes=int(self.max_passes))
        self.ridge_, self.ridge_choice_ = float(ridge), choice
        objective = replace(objective, ridge=self.ridge_)
        self.solution_ = minimise(self.base_, sources, objective, goal=goal, arithmetic=how)
        self.n_iter_ = self.solution_.stats.passes
        if not self.solution_.converged:
            ended = self.solution_.status.name
            warn(f"not converged ({ended}): raise max_passes, tolerance or ridge", ConvergenceWarning, stacklevel=4)
        self._unpack()

    def _unpack(self) -> None:
        """``coef_``, and for features ``intercept_``, from the solution."""
        self._layout = self.base_.trained(self.base_.spec.train)
        value = self.solution_.value.cpu()
        if self.backbone is not None:
            self.coef_ = value.numpy()
            self.__dict__.pop("intercept_", None)  # left by an earlier fit to features
            return
        head = {name: view + self.base_.state[name].to(view) for name, view in self._layout.views(value).items()}
        self.coef_, self.intercept_ = head["head.weight"].numpy(), head["head.bias"].numpy()
        if self.scaler_ is not None:  # the same head, for X as it was given
            self.coef_ = self.coef_ / self.scaler_.scale_
            self.intercept_ = self.intercept_ - self.coef_ @ self.scaler_.mean_
        classes = self.__dict__.get("classes_")
        if classes is not None and len(classes) == 2:  # for the difference of the logits, as in ``decision_function``
            self.coef_, self.intercept_ = np.diff(self.coef_, axis=0), np.diff(self.intercept_)
        elif classes is not None:
            self.coef_, self.intercept_ = self.coef_[: len(classes)], self.intercept_[: len(classes)]

    def _logits(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self, "solution_")
        check_values("X", X)
        X = widened(X)
        if self.backbone is None:
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        if self._spec is None:
            return self._scored(self.base_, self._rows(X))
        from taftcache.estimator_images import extracted

        base = replace(self.base_.unreduced(), module=self._cut().module())  # for whole rows, whatever fit kept
        return np.concatenate([self._scored(base, rows) for rows in extracted(self._cut(), X)])

    def _scored(self, base: Base, rows: np.ndarray) -> NDArray[np.float64]:
        given, device = [ArrayRows(rows, np.zeros(len(rows), np.int64))], float64_device(self.device)
        operator = TangentOperator(base, given, trained=self._layout, dtype=torch.float64, device=device)
        direction = operator.direction(self.solution_.value)
        blocks = (state.logits + operator.tangent(state, direction) for state, _ in operator.blocks())
        return torch.cat(list(blocks)).cpu().numpy()


def _warn_of_end(choice: RidgeChoice, *, units: bool, one_class: bool) -> None:
    """Warn that the best λ is the last that was tried at one end, and say what follows."""
    do = {
        "least": "X decides all of y, or give a lesser ridge",
        "largest": "X says next to nothing of y, or give a larger ridge",
    }
    why = 'it hangs on the columns\' units: scaling="column" does without' if units else do[choice.end or "least"]
    why = "y has one class, and every prediction is that" if one_class else why
    warn(f"the best ridge is the {choice.end} that was tried, {choice.ridge:.0e}; {why}", stacklevel=5)


def _few(source: RowSource) -> bool:
    """Whether a fifth of the rows says too little about λ."""
    assert isinstance(source, ArrayRows)
    labels, classes = source.labels, source.labels.dtype.kind == "i"
    return len(labels) <= FEW or (classes and len(labels) - int(np.bincount(labels).max()) <= FEW_OTHERS)


def _is_no_half(backbone: Any) -> bool:
    """Whether a backbone is no pair for rows that enter a tail, or a whole one: the tail's state and its config."""
    if not isinstance(backbone, tuple):
        return True
    return len(backbone) == 2 and isinstance(backbone[0], Mapping) and isinstance(backbone[1], TailConfig)


def _is_number(given: Any) -> bool:
    return isinstance(given, float | int | np.number) and not isinstance(given, bool)


def _above_zero(given: Any) -> bool:
    return _is_number(given) and bool(0 < given < np.inf)


def _is_whole(given: Any) -> bool:
    return _is_number(given) and float(given).is_integer()
