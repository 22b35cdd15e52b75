"""scikit-learn's face: a classifier and a regressor that are solved to a certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from warnings import warn

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, _check_y, check_array, check_is_fitted, validate_data
from torch import Tensor, nn

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.device import resolve_device
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.pictures import decoded
from taftcache.backbone.sources.rgb import Picture
from taftcache.backbone.spec import BackboneSpec, backbone_of
from taftcache.errors import ArgumentError, DataError
from taftcache.estimator_files import Files
from taftcache.objective.loss import Loss
from taftcache.objective.named import named_loss, true_class_weight
from taftcache.objective.objective import Objective
from taftcache.objective.squared_error import SquaredError
from taftcache.objective.weights import RowWeights
from taftcache.solve.choosing import EVERY, choose_ridge, row_hashes
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.stages.extract.listing import SHARD, ImageList, cached_images, pictures_of
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows, RowSource
from taftcache.tangent.spec import TangentSpec

IMAGES_AT_ONCE = 32
FEW = 1000  # rows of features: of so few a fifth is too little to choose λ by, and all five are soon solved
FRESH = TangentSpec(reset_block=True)  # what ``init`` writes into a recipe, too


class _Given(NamedTuple):
    """Rows to solve over, the tail that they enter, where each row stands in X, and hashes [n] of the rows of X where
    what is solved over are others."""

    source: RowSource
    state: Mapping[str, Tensor]
    config: TailConfig
    module: nn.Module | None = None
    order: Sequence[int] | slice = slice(None)
    hashes: np.ndarray | None = None


class _Tangent(Files, BaseEstimator):
    """What classifier and regressor share: rows, base point, solve, and logits of new rows."""

    backbone: str | Path | BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None
    tangent: TangentSpec | None
    scaling: str
    ridge: float | str
    radius: float | None
    tolerance: float
    max_passes: int
    memory: int
    device: str

    @property
    def _spec(self) -> BackboneSpec | None:
        """The backbone where X is images; RecipeError where it is nothing that an estimator takes."""
        given = self.backbone
        return None if given is None or isinstance(given, tuple) else backbone_of(given)

    @property
    def _expansion(self) -> TangentSpec:
        return self.tangent or (TangentSpec() if self._spec is None else FRESH)

    def _rows(self, X: Any) -> np.ndarray:
        """Rows [n,t,d] as a tail takes them: validated features, cached rows, or images through the backbone."""
        if self.backbone is None:
            features: np.ndarray = X if self.scaler_ is None else self.scaler_.transform(X)
            return features[:, None, :]
        if self._spec is not None:
            images = pictures_of(X)
            return self._extracted(images, range(len(images)))
        rows: np.ndarray = check_array(X, allow_nd=True, ensure_2d=False, dtype=[np.float16, np.float32, np.float64])
        if rows.ndim != 3:
            raise DataError(f"cached rows must be [n,t,d], not of {rows.ndim} dimensions", got=list(rows.shape))
        return rows

    def _extracted(self, images: Sequence[Picture], within: range) -> np.ndarray:
        """Rows of the images at these indexes."""
        cut = self._cut()
        transform = Preprocess(cut.backbone)
        out = []
        for k in range(0, len(within), IMAGES_AT_ONCE):
            pixels = [transform(decoded(images, index)) for index in within[k : k + IMAGES_AT_ONCE]]
            out.append(cut.prefix(torch.stack(pixels).to(cut.device)).cpu().numpy())
        return np.concatenate(out)

    def _cut(self) -> Cut:
        spec = self._spec
        assert spec is not None
        known: tuple[Any, Cut] | None = self.__dict__.get("_cut_of")
        if known is None or known[0] != self._cut_from:
            loaded = load_backbone(spec, device=self.device)
            known = self._cut_from, Cut(loaded, self._expansion.blocks)
            self._cut_of = known
        return known[1]

    @property
    def _cut_from(self) -> tuple[BackboneSpec | None, int | str]:
        """What a cut depends on."""
        return self._spec, self._expansion.blocks

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in super().__getstate__().items() if name != "_cut_of"}
        if "base_" in state:
            state["base_"] = replace(state["base_"], module=None)  # timm's code is not pickled, but loaded again
        return state

    @contextmanager
    def _given(self, X: Any, targets: np.ndarray) -> Iterator[_Given]:
        """The rows of X in memory, and the tail that they enter; of features, none."""
        rows = ArrayRows(self._rows(X), targets)
        if self.backbone is None:
            # A scaled column's last bits follow from the order of all rows, and would draw others to validate λ.
            hashes = row_hashes(np.column_stack([X, targets])) if self.ridge == "auto" else None
            yield _Given(rows, {}, TailConfig.of_vectors(rows.tokens.shape[2], 1), hashes=hashes)
        elif self._spec is not None:
            cut = self._cut()
            yield _Given(rows, cut.tail_state(), cut.tail_config(), cut.module())
        else:
            assert isinstance(self.backbone, tuple)
            yield _Given(rows, *self.backbone)

    def _measure(self, X: np.ndarray, weights: Tensor | None) -> None:
        """Of features, each column's mean and deviation over the rows of ``fit``, which nothing outlives."""
        if self.scaling not in ("column", "none"):
            raise ArgumentError("no scaling of features is called that", got=str(self.scaling), do="column, or none")
        self.scaler_ = None
        if self.scaling == "column" and self.backbone is None:
            scaler = StandardScaler().set_output(transform="default")  # whatever a notebook has asked of all others
            self.scaler_ = scaler.fit(X, sample_weight=None if weights is None else weights.numpy())

    def _base(self, given: _Given, outputs: int) -> Base:
        if self.backbone is None:
            config = TailConfig.of_vectors(given.config.width, outputs)
            head = {"head.weight": torch.zeros(outputs, config.width), "head.bias": torch.zeros(outputs)}
            return Base(config, head, TangentSpec(blocks=0, train="head"))
        return make_base(given.state, given.config, outputs, self._expansion, given.module)

    def _check_arguments(self) -> None:
        """ArgumentError for one of another type than it can have."""
        wanted = {
            "ridge": (_is_number(self.ridge) or self.ridge == "auto", 'a number above 0, or "auto"'),
            "radius": (_is_number(self.radius) or self.radius is None, "a number above 0, or None"),
            "tolerance": (_is_number(self.tolerance), "a number above 0"),
            "max_passes": (isinstance(self.max_passes, int | np.integer), "a whole number"),
            "memory": (isinstance(self.memory, int | np.integer), "bytes: 2 << 30 are 2 GiB"),
            "tangent": (self.tangent is None or isinstance(self.tangent, TangentSpec), "a TangentSpec, or None"),
        }
        for name, (fits, do) in wanted.items():
            if not fits:
                raise ArgumentError(f"{name} is of no type that it can have", got=repr(getattr(self, name)), do=do)

    def _solve(self, given: _Given, outputs: int, loss: Loss, weights: RowWeights | None) -> None:
        self.base_ = self._base(given, outputs)
        train, sources = self.base_.spec.train, [given.source]
        objective = Objective(loss=loss, train=train, weights=weights, radius=self.radius)
        how = Arithmetic(memory=self.memory, device=str(resolve_device(self.device)))
        self.ridge_, self.ridge_choice_ = self.ridge, None
        if self.ridge == "auto":
            folds = EVERY if self.backbone is None and given.source.rows <= FEW else 1
            choice = choose_ridge(self.base_, sources, objective, arithmetic=how, hashes=given.hashes, folds=folds)
            self.ridge_, self.ridge_choice_ = choice.ridge, choice
        goal = Goal(tolerance=self.tolerance, max_passes=self.max_passes)
        objective = replace(objective, ridge=float(self.ridge_))
        self.solution_ = minimise(self.base_, sources, objective, goal=goal, arithmetic=how)
        self.n_iter_ = self.solution_.stats["passes"]
        if not self.solution_.converged:
            ended = self.solution_.status.name
            warn(f"not converged ({ended}): raise max_passes, tolerance or ridge", ConvergenceWarning, stacklevel=3)
        self._unpack()

    def _logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "solution_")
        if self.backbone is None:
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        if self._spec is None:
            return self._scored(self.base_, self._rows(X))
        base = replace(self.base_.unreduced(), module=self._cut().module())  # whatever was kept of a row in fit
        images = pictures_of(X)
        parts = [range(len(images))[k : k + IMAGES_AT_ONCE] for k in range(0, len(images), IMAGES_AT_ONCE)]
        return np.concatenate([self._scored(base, self._extracted(images, part)) for part in parts])

    def _scored(self, base: Base, rows: np.ndarray) -> np.ndarray:
        given, device = [ArrayRows(rows, np.zeros(len(rows), np.int64))], resolve_device(self.device)
        operator = TangentOperator(base, given, trained=self._layout, dtype=torch.float64, device=device)
        direction = operator.direction(self.solution_.value)
        blocks = (state.logits + operator.tangent(state, direction) for state, _ in operator.blocks())
        return torch.cat(list(blocks)).cpu().numpy()


class TangentClassifier(ClassifierMixin, _Tangent):
    """A classifier that is linear in its weights around a base point, solved to its one optimum.

    ``X`` is what ``backbone`` says: None takes features [n,d] and trains a linear head; a name ("bundled", a timm
    model, a file of weights) or a ``BackboneSpec`` takes image files, PIL images or uint8 arrays [h,w,3], runs the
    frozen layers over them, and trains as ``tangent`` says; a pair (state, config) of a cut's tail takes the rows
    [n,t,d] that enter it. ``fit`` caches images in a store, which is gone afterwards unless it has a name.

    After ``fit``: ``classes_``, ``solution_`` with its certificate, ``ridge_``, ``ridge_choice_`` where ridge =
    "auto", ``coef_`` (the head [K,d] for features, else Δw [P]) and ``base_``.

    Args:
        backbone: see above.
        tangent: what is trained, and from where. By default the last block, for images from a new start
            (``reset_block``); for features the head alone.
        scaling: of features, for one λ serves all columns: "column" takes from each its mean over the rows of ``fit``
            and divides by its deviation, as StandardScaler does before a LogisticRegression; "none" leaves them.
        loss: "rsl", "mse" or "cross_entropy"; "auto" is "cross_entropy" for features, "rsl" for all else.
        alpha, kappa: of "rsl"; alpha = "auto" is √K for K classes.
        ridge: λ beside the mean loss (biases included); "auto" chooses it from the rows, some of them left out for it.
        radius: of a ball ‖Δw‖ ≤ R. class_weight: None, "balanced", or a mapping of classes to weights.
        tolerance, max_passes: when a solve ends; see ``minimise``. memory: bytes for prepared rows.
        device: where products run. store: the folder of a store for the images of ``fit``, which a fit to the same
            ones reads again.
    """

    def __init__(
        self,
        backbone: str | Path | BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None = None,
        *,
        tangent: TangentSpec | None = None,
        scaling: str = "column",
        loss: str = "auto",
        alpha: float | str = "auto",
        kappa: float = 15.0,
        ridge: float | str = "auto",
        radius: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        tolerance: float = 1e-6,
        max_passes: int = 1000,
        memory: int = 2 << 30,
        device: str = "cpu",
        store: str | Path | None = None,
    ) -> None:
        self.backbone = backbone
        self.tangent = tangent
        self.scaling = scaling
        self.loss = loss
        self.alpha = alpha
        self.kappa = kappa
        self.ridge = ridge
        self.radius = radius
        self.tolerance = tolerance
        self.max_passes = max_passes
        self.memory = memory
        self.device = device
        self.class_weight = class_weight
        self.store = store

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TangentClassifier:
        """Solve over X [n,…] with classes y [n] of any kind; a row of weight 2 is as two rows but where λ is chosen."""
        self._check_arguments()
        if self.backbone is None:
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        else:
            y = _check_y(y, estimator=self)
            check_consistent_length(X, y)
        try:
            check_classification_targets(y)
            self.classes_, labels = np.unique(y, return_inverse=True)
        except TypeError as error:
            got = ", ".join(sorted({type(label).__name__ for label in y}))
            raise ArgumentError("the classes are of types that have no order", got=got, do="use one type") from error
        labels = labels.reshape(-1).astype(np.int64)
        K = max(2, len(self.classes_))  # one class alone still needs a logit to stand against
        name = self.loss if self.loss != "auto" else "cross_entropy" if self.backbone is None else "rsl"
        loss = named_loss(name, true_class_weight(self.alpha, K), self.kappa)
        by_class = self._class_weights(y, K)
        by_sample = None if sample_weight is None else _sample_weights(sample_weight, X)
        self._measure(X, by_sample)
        with self._given(X, labels) as given:
            by_sample = None if by_sample is None else by_sample[given.order]
            weights = None if by_class is None and by_sample is None else RowWeights(by_class, by_sample)
            self._solve(given, K, loss, weights)
        return self

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.store is not None and self._spec is None:
            raise ArgumentError(
                "a store keeps images, and X is none without a backbone",
                got=f"store {str(self.store)!r}",
                do="leave it out, or name a backbone",
            )

    def _class_weights(self, y: np.ndarray, K: int) -> Tensor | None:
        given = self.class_weight
        if given is None:
            return None
        if isinstance(given, str) and given != "balanced":
            raise ArgumentError("there are no class weights of that name", got=given, do='"balanced", or a mapping')
        weights = compute_class_weight(given, classes=self.classes_, y=y)
        _check_weights("class_weight", weights)
        return torch.tensor([*weights, *[1.0] * (K - len(weights))], dtype=torch.float64)

    @contextmanager
    def _given(self, X: Any, targets: np.ndarray) -> Iterator[_Given]:
        """Rows in memory, or of images in a store."""
        spec = self._spec
        if spec is None:
            with super()._given(X, targets) as given:
                yield given
            return
        listed = ImageList(X, targets.tolist(), [str(name) for name in self.classes_])
        with ExitStack() as stack:
            path = Path(self.store or Path(stack.enter_context(TemporaryDirectory()), "store"))
            store, frozen = cached_images(path, listed, spec, self._expansion, self.device, lasting=bool(self.store))
            stack.enter_context(store)
            self._cut_of = self._cut_from, frozen.cut
            shard, place = store.shard(SHARD), {item.id: k for k, item in enumerate(listed.items)}
            order = [place[i] for i in shard.sample_ids]
            yield _Given(shard, frozen.tail_state(), frozen.config, frozen.cut.module(), order)

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits [n,K], or the difference of the two [n] where there are two classes."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits[:, : len(self.classes_)]

    def predict(self, X: Any) -> np.ndarray:
        """The class of the largest logit."""
        logits = self._logits(X)
        labels: np.ndarray = self.classes_[logits[:, : len(self.classes_)].argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """softmax of the logits [n,K]: probabilities under "cross_entropy", under the square losses only an order."""
        return torch.softmax(torch.from_numpy(self._logits(X)[:, : len(self.classes_)]), 1).numpy()


class TangentRegressor(RegressorMixin, _Tangent):
    """A regressor that is linear in its weights around a base point: squared error + ridge, solved exactly.

    ``X`` and the arguments are those of ``TangentClassifier``; y is [n] or [n,m]. Its mean over the rows of ``fit`` is
    where the head's bias begins, so that y + c gives the predictions of y, and c more.
    """

    def __init__(
        self,
        backbone: str | Path | BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None = None,
        *,
        tangent: TangentSpec | None = None,
        scaling: str = "column",
        ridge: float | str = "auto",
        radius: float | None = None,
        tolerance: float = 1e-6,
        max_passes: int = 1000,
        memory: int = 2 << 30,
        device: str = "cpu",
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TangentRegressor:
        """Solve over X [n,…] with values y [n] or [n,m]; a row of weight 2 is as two rows but where λ is chosen."""
        self._check_arguments()
        if self.backbone is None:
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True)
        else:
            y = _check_y(y, multi_output=True, y_numeric=True, estimator=self)
            check_consistent_length(X, y)
        values = np.asarray(y, dtype=np.float64)
        by_sample = None if sample_weight is None else _sample_weights(sample_weight, X)
        self._measure(X, by_sample)
        self._flat = values.ndim == 1
        self._mean = np.average(values, axis=0, weights=None if by_sample is None else by_sample.numpy())
        with self._given(X, values) as given:
            outputs = 1 if self._flat else values.shape[1]
            weights = None if by_sample is None else RowWeights(by_sample=by_sample)
            self._solve(given, outputs, SquaredError(), weights)
        return self

    def _base(self, given: _Given, outputs: int) -> Base:
        """With the values' mean in the head's bias: what they are measured from is nothing that a ridge resists."""
        base = super()._base(given, outputs)
        bias = base.config.head_names[1]
        if bias not in base.state:
            return base
        mean = torch.from_numpy(np.atleast_1d(self._mean))  # in float64, as the values themselves
        return replace(base, state={**base.state, bias: base.state[bias].double() + mean})

    def predict(self, X: Any) -> np.ndarray:
        """Values [n] or [n,m]."""
        logits = self._logits(X)
        return logits[:, 0] if self._flat else logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _is_number(given: Any) -> bool:
    return isinstance(given, float | int | np.number) and not isinstance(given, bool)


def _sample_weights(given: Any, rows: Any) -> Tensor:
    """Weights with mean one: the loss is a weighted mean, so a row of weight 2 is that row twice."""
    checked = _check_sample_weight(given, rows, dtype=np.float64)
    _check_weights("sample_weight", checked)
    total = checked.sum()
    return torch.from_numpy(checked * (len(checked) / total) if total > 0 else checked.copy())


def _check_weights(name: str, weights: np.ndarray) -> None:
    if wrong := weights[~(np.isfinite(weights) & (weights >= 0))].tolist():
        raise ArgumentError(f"{name} is negative or not finite", got=wrong[0], do="weights of 0 or more")
