"""scikit-learn's interface: a classifier and a regressor that are solved to a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from taftcache.backbone.sources.arrays import check_values
from taftcache.backbone.spec import BackboneSpec
from taftcache.errors import ArgumentError, SolveError
from taftcache.estimator_base import Scaling, TangentEstimator, refused_is_unchanged
from taftcache.objective.named import named_loss, true_class_weight
from taftcache.objective.squared_error import SquaredError
from taftcache.objective.weights import RowWeights
from taftcache.tangent.config import TailConfig
from taftcache.tangent.spec import TangentSpec


class TangentClassifier(ClassifierMixin, TangentEstimator):
    """A classifier that is linear in its weights around a base point, solved to its one optimum.

    What ``X`` is depends on ``backbone``: None takes features [n,d] and trains a linear head; a name ("bundled", a timm
    model, a file of weights) or a ``BackboneSpec`` takes image files, PIL images or uint8 arrays [h,w,3], runs the
    frozen layers over them, and trains as ``tangent`` says; a pair (state, config) of a cut's tail takes the rows
    [n,t,d] that enter it. ``fit`` caches images in a store, which is removed afterwards unless ``store`` names it.

    After ``fit``: ``classes_``, ``solution_`` with its certificate, ``ridge_``, ``ridge_choice_`` if ridge = "auto",
    ``base_``, and ``coef_``: Δw [P], but for features the coefficients of ``decision_function`` for X as it was given,
    [K,d] or for two classes [1,d], with ``intercept_`` [K] or [1].

    Args:
        backbone: see above.
        tangent: what is trained, and from where. By default the last block, for images from a new start
            (``reset_block``), or a head from zero if the backbone's ``features`` are "every block"; none for features,
            on which a head is trained.
        scaling: for features, because one λ serves all columns: "column" subtracts from each its mean over the rows of
            ``fit`` and divides by its deviation, as StandardScaler does before a LogisticRegression; "none" leaves them
            as they are.
        loss: "rsl", "mse" or "cross_entropy"; "auto" is "cross_entropy" for features, "rsl" for all else.
        alpha, kappa: for "rsl"; alpha = "auto" is √K for K classes.
        ridge: λ beside the mean loss (biases are penalised too, from where they begin: for features under
            cross-entropy, at the logarithms of the classes' shares); "auto" chooses it from the rows, leaving some of
            them out for that. For N rows, LogisticRegression's C is 1/(λN) (2/(λN) for two classes), and Ridge's alpha
            is λNm/2 for m values.
        radius: R of a ball ‖Δw‖ ≤ R. class_weight: None, "balanced", or a mapping of classes to weights, of which only
            the ratios count.
        tolerance, max_passes: when a solve ends; see ``minimise``. memory: bytes for prepared rows.
        device: where products run. store: the folder of a store for the images of ``fit``: a later fit runs the frozen
            layers only over those that it does not hold yet, as in a search or a cross-validation.
    """

    classes_: np.ndarray  # of the labels' own type
    intercept_: NDArray[np.float64]

    def __init__(
        self,
        backbone: str | Path | BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None = None,
        *,
        tangent: TangentSpec | None = None,
        scaling: Scaling = "column",
        loss: Literal["auto", "rsl", "mse", "cross_entropy"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        kappa: float = 15.0,
        ridge: float | Literal["auto"] = "auto",
        radius: float | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        tolerance: float = 1e-6,
        max_passes: int = 1000,
        memory: int = 2 << 30,
        device: str = "cpu",
        store: str | Path | None = None,
    ) -> None:
        super().__init__(
            backbone, tangent=tangent, scaling=scaling, ridge=ridge, radius=radius, tolerance=tolerance,
            max_passes=max_passes, memory=memory, device=device, store=store,
        )  # fmt: skip
        self.loss = loss
        self.alpha = alpha
        self.kappa = kappa
        self.class_weight = class_weight

    @refused_is_unchanged
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Solve over X [n,…] with classes y [n] of any kind; a row of weight 2 counts as two rows, except when λ is
        chosen."""
        self._check_arguments()
        X, y = self._checked(X, y)
        try:
            check_classification_targets(y)
            self.classes_, labels = np.unique(y, return_inverse=True)
        except TypeError as error:
            kinds = sorted({type(label).__name__ for label in y})
            fault = "the classes are of types that have no order" if kinds[1:] else "classes cannot be of this type"
            raise ArgumentError(fault, got=", ".join(kinds), do="use numbers, texts or truth values alone") from error
        labels = labels.reshape(-1).astype(np.int64)
        K = max(2, len(self.classes_))  # a single class still needs another logit to compare with
        name = self.loss if self.loss != "auto" else "cross_entropy" if self.backbone is None else "rsl"
        try:
            loss = named_loss(name, true_class_weight(self.alpha, K), self.kappa)
        except SolveError as error:
            raise ArgumentError(error.fault, got=error.got, do=error.do) from None
        by_sample = None if sample_weight is None else _sample_weights(sample_weight, X)
        by_class = self._class_weights(y, labels, by_sample)
        self._measure(X, by_sample)
        with self._given(X, labels, by_sample) as given:
            by_sample = None if by_sample is None else by_sample[given.order]
            weights = None if by_class is None and by_sample is None else RowWeights(by_class, by_sample)
            begin = None
            if name == "cross_entropy" and self.backbone is None:  # there is no network's head that has learned this
                every = torch.from_numpy(labels)
                ones = torch.ones(len(labels), 1, dtype=torch.float64, device="cpu")
                counted = ones if weights is None else weights.at(every, 0, ones)
                begin = _log_shares(np.bincount(labels, counted[:, 0].numpy(), K))
            self._solve(given, K, loss, weights, begin)
        return self

    def _class_weights(self, y: np.ndarray, labels: np.ndarray, by_sample: Tensor | None) -> Tensor | None:
        """Weights [K] that leave the rows' mean weight at one."""
        given = self.class_weight
        if given is None:
            return None
        of_rows = None if by_sample is None else by_sample.numpy()
        if isinstance(given, str):
            if given != "balanced":
                raise ArgumentError("there are no class weights of that name", got=given, do='"balanced", or a mapping')
            counts = np.bincount(labels, of_rows)
            weights = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
        elif not isinstance(given, Mapping):
            raise ArgumentError(
                "class_weight is no mapping of classes to weights",
                got=repr(given)[:80],
                do='"balanced", or {class: 2.0}',
            )
        else:
            weights = compute_class_weight(given, classes=self.classes_, y=y)
            _check_weights("class_weight", weights)
            if not weights[labels].any():
                raise ArgumentError("class_weight leaves no row a weight", got=repr(given)[:80], do="one above 0")
            weights = weights / weights.max()  # so that their sum is finite
        mean = np.average(weights[labels], weights=of_rows)
        scaled = torch.ones(max(2, len(weights)), dtype=torch.float64, device="cpu")
        scaled[: len(weights)] = torch.from_numpy(weights / (mean if mean > 0 else 1))
        return scaled

    def _labelled(self, targets: np.ndarray) -> tuple[list[int], list[str]]:
        return targets.tolist(), [str(name) for name in self.classes_]

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits [n,K], or for two classes their difference [n]."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits[:, : len(self.classes_)]

    def predict(self, X: Any) -> np.ndarray:
        """The class of the largest logit."""
        logits = self._logits(X)
        labels: np.ndarray = self.classes_[logits[:, : len(self.classes_)].argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """softmax of the logits [n,K]: probabilities with "cross_entropy", only an order with the square losses."""
        return torch.softmax(torch.from_numpy(self._logits(X)[:, : len(self.classes_)]), 1).numpy()


class TangentRegressor(RegressorMixin, TangentEstimator):
    """A regressor that is linear in its weights around a base point: squared error + ridge, solved exactly.

    ``X`` is as for ``TangentClassifier``; y is [n], then m = 1, or [n,m]. What is fitted are standardised values y' =
    (y − mean) / deviation, each column's over the weighted rows of ``fit`` (deviation 1 if it is constant):

        F(Δw) = 1/N Σ_n 1/m Σ_i (z_i(x_n; Δw) − y'_ni)² + λ/2 ‖Δw‖²

    So a change of y's origin or units changes predictions by just that. For features, λ is also a ridge on y itself:
    scikit-learn's Ridge with alpha = λNm/2. ``radius``, ``solution_`` with its certificate, and the losses of
    ``ridge_choice_`` refer to y'.

    After ``fit``: ``y_mean_`` and ``y_scale_`` [m], ``solution_``, ``ridge_``, ``ridge_choice_`` if ridge = "auto",
    ``base_``, and ``coef_``: for features in the units of y and of X as they were given, [d], or [m,d] for y [n,m],
    with ``intercept_``, a number or [m], so that ``predict(X)`` is X coef_ᵀ + intercept_; otherwise Δw [P], for y'.

    Args:
        backbone, tangent, scaling, ridge, radius, tolerance, max_passes, memory, device, store: as for
            ``TangentClassifier``. Its loss, alpha, kappa and class_weight are for classes: a regressor has none of
            them.
    """

    intercept_: NDArray[np.float64] | np.float64
    y_mean_: NDArray[np.float64]
    y_scale_: NDArray[np.float64]

    @refused_is_unchanged
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Solve over X [n,…] with values y [n] or [n,m]; a row of weight 2 counts as two rows, except when λ is
        chosen."""
        self._check_arguments()
        X, y = self._checked(X, y, multi_output=True, y_numeric=True)
        self._flat = np.ndim(y) == 1
        values = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        by_sample = None if sample_weight is None else _sample_weights(sample_weight, X)
        self._measure(X, by_sample)
        # Standardised, so that the ridge penalises neither the origin nor the units of y, and so that outputs that
        # share weights count alike, in metres or in millimetres.
        self.y_mean_, self.y_scale_ = _moments(values, np.ones(len(y)) if by_sample is None else by_sample.numpy())
        values = (values - self.y_mean_) / self.y_scale_
        with self._given(X, values, by_sample) as given:
            weights = None if by_sample is None else RowWeights(by_sample=by_sample[given.order])
            self._solve(given, values.shape[1], SquaredError(), weights, None)
        return self

    def _unpack(self) -> None:
        super()._unpack()
        if self.backbone is None:
            self.coef_ = self.coef_ * self.y_scale_[:, None]
            self.intercept_ = self.intercept_ * self.y_scale_ + self.y_mean_
            if self._flat:
                self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Values [n] or [n,m]."""
        values: NDArray[np.float64] = self._logits(X) * self.y_scale_ + self.y_mean_
        return values[:, 0] if self._flat else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _moments(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [m] of values [n,m], 1 for a deviation of 0; weights [n] have the mean 1.

    The same to the last bit in any order of the rows, because rows are drawn by a hash of values, too.
    """
    shares = weights / len(weights)
    counted, means, deviations = shares > 0, [], []
    for column in values.T:
        about = fsum(shares * column)
        mean = about + fsum(shares * (column - about))  # for a constant column that constant, not an ulp off
        apart = np.abs(column - mean)
        most = apart.max(where=counted, initial=0.0) or 1.0  # squares of 1e200 and 1e-200 are inf and 0
        means.append(mean)
        deviations.append(most * fsum(shares[counted] * (apart[counted] / most) ** 2) ** 0.5 or 1.0)
    return np.array(means), np.array(deviations)


def _log_shares(counts: np.ndarray) -> np.ndarray:
    """log [K] of the classes' weights, less the mean; a class of weight 0 counts as the lightest one above 0."""
    some = counts[counts > 0]
    logs: np.ndarray = np.log(np.maximum(counts, some.min())) if len(some) else np.zeros(len(counts))
    logs -= logs.mean()
    return logs


def _sample_weights(given: Any, rows: Any) -> Tensor:
    """Weights with mean one: the loss is a weighted mean, so a row of weight 2 is that row twice."""
    check_values("sample_weight", given)
    checked = _check_sample_weight(given, rows, dtype=np.float64)
    _check_weights("sample_weight", checked)
    checked = checked / (checked.max() or 1.0)  # so that their sum is finite
    total = fsum(checked)  # the same to the last bit in any order: rows are drawn by a hash of weights, too
    return torch.from_numpy(checked * (len(checked) / total) if total > 0 else checked.copy())


def _check_weights(name: str, weights: np.ndarray) -> None:
    if wrong := weights[~(np.isfinite(weights) & (weights >= 0))].tolist():
        raise ArgumentError(f"{name} is negative or not finite", got=wrong[0], do="weights of 0 or more")
