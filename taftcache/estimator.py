"""scikit-learn's face: a classifier and a regressor that are solved to a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_is_fitted, validate_data
from torch import Tensor

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.rgb import open_rgb, to_rgb
from taftcache.backbone.spec import BackboneSpec
from taftcache.errors import DataError
from taftcache.objective.named import named_loss, true_class_weight
from taftcache.objective.objective import Objective
from taftcache.objective.weights import RowWeights, balanced
from taftcache.solve.choosing import choose_ridge
from taftcache.solve.minimise import minimise
from taftcache.solve.settings import Arithmetic, Goal
from taftcache.tangent.base import Base, make_base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec

IMAGES_AT_ONCE = 32


class _Tangent(BaseEstimator):
    """What classifier and regressor share: rows, base point, solve, and logits of new rows."""

    def __init__(
        self,
        backbone: BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None = None,
        *,
        tangent: TangentSpec | None = None,
        loss: str = "rsl",
        alpha: float | str = "auto",
        kappa: float = 15.0,
        ridge: float | str = 1e-4,
        radius: float | None = None,
        tolerance: float = 1e-6,
        max_passes: int = 1000,
        memory: int = 2 << 30,
        device: str = "cpu",
    ) -> None:
        self.backbone = backbone
        self.tangent = tangent
        self.loss = loss
        self.alpha = alpha
        self.kappa = kappa
        self.ridge = ridge
        self.radius = radius
        self.tolerance = tolerance
        self.max_passes = max_passes
        self.memory = memory
        self.device = device

    def _rows(self, X: Any) -> np.ndarray:
        """Rows [n,t,d] as a tail takes them: validated features, cached rows, or images through the backbone."""
        if self.backbone is None:
            features: np.ndarray = X[:, None, :]
            return features
        if isinstance(self.backbone, BackboneSpec):
            return self._extracted(X)
        rows: np.ndarray = check_array(X, allow_nd=True, ensure_2d=False, dtype=[np.float16, np.float32, np.float64])
        if rows.ndim != 3:
            raise DataError(f"cached rows must be [n,t,d], not of {rows.ndim} dimensions", got=list(rows.shape))
        return rows

    def _extracted(self, images: Sequence[Path | str | np.ndarray]) -> np.ndarray:
        cut = self._cut()
        transform = Preprocess(cut.backbone)
        out = []
        for k in range(0, len(images), IMAGES_AT_ONCE):
            pixels = [transform(_picture(image)) for image in images[k : k + IMAGES_AT_ONCE]]
            out.append(cut.prefix(torch.stack(pixels).to(cut.device)).cpu().numpy())
        return np.concatenate(out)

    def _cut(self) -> Cut:
        assert isinstance(self.backbone, BackboneSpec)
        known: tuple[BackboneSpec, Cut] | None = self.__dict__.get("_cut_of")
        if known is None or known[0] != self.backbone:
            loaded = load_backbone(self.backbone, device=self.device)
            known = self.backbone, Cut(loaded, (self.tangent or TangentSpec()).blocks)
            self._cut_of = known
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_cut_of"}

    def _base(self, rows: np.ndarray, outputs: int) -> Base:
        spec = self.tangent or TangentSpec()
        if isinstance(self.backbone, BackboneSpec):
            cut = self._cut()
            return make_base(cut.tail_state(), cut.tail_config(), outputs, spec)
        if self.backbone is not None:
            state, config = self.backbone
            return make_base(state, config, outputs, spec)
        d = rows.shape[2]
        config = TailConfig.of_vectors(d, outputs)
        head = {"head.weight": torch.zeros(outputs, d), "head.bias": torch.zeros(outputs)}
        return Base(config, head, TangentSpec(blocks=0, train="head"))

    def _solve(self, rows: np.ndarray, targets: np.ndarray, outputs: int, weights: RowWeights | None) -> None:
        self.base_ = self._base(rows, outputs)
        train = self.base_.spec.train
        sources = [ArrayRows(rows, targets)]
        loss = named_loss(self.loss, true_class_weight(self.alpha, outputs), self.kappa)
        objective = Objective(loss=loss, train=train, weights=weights, radius=self.radius)
        arithmetic = Arithmetic(memory=self.memory, device=self.device)
        self.ridge_ = self.ridge
        self.ridge_choice_ = None
        if self.ridge == "auto":
            self.ridge_choice_ = choose_ridge(self.base_, sources, objective, arithmetic=arithmetic)
            self.ridge_ = self.ridge_choice_.ridge
        self.solution_ = minimise(
            self.base_,
            sources,
            replace(objective, ridge=float(self.ridge_)),
            goal=Goal(tolerance=self.tolerance, max_passes=self.max_passes),
            arithmetic=arithmetic,
        )
        self.n_iter_ = self.solution_.stats["passes"]
        self._layout = self.base_.trained(train)
        value = self.solution_.value.cpu()
        if self.backbone is None:
            views = self._layout.views(value)
            self.coef_, self.intercept_ = views["head.weight"].numpy(), views["head.bias"].numpy()
        else:
            self.coef_ = value.numpy()

    def _logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "solution_")
        if self.backbone is None:
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        rows = self._rows(X)
        operator = TangentOperator(
            self.base_,
            [ArrayRows(rows, np.zeros(len(rows), np.int64))],
            trained=self._layout,
            dtype=torch.float64,
            device=self.device,
        )
        direction = operator.direction(self.solution_.value)
        blocks = (state.logits + operator.tangent(state, direction) for state, _ in operator.blocks())
        return torch.cat(list(blocks)).cpu().numpy()


class TangentClassifier(ClassifierMixin, _Tangent):
    """A classifier that is linear in its weights around a base point, solved to its one optimum.

    ``X`` is what ``backbone`` says: None takes features [n,d] and trains a linear head; a ``BackboneSpec`` takes image
    files or uint8 arrays [h,w,3], runs the frozen layers at every ``fit`` and ``predict``, and trains as ``tangent``
    says; a pair (state, config) of a cut's tail takes the rows [n,t,d] that enter it.

    After ``fit``: ``classes_``, ``solution_`` with its certificate, ``ridge_``, ``ridge_choice_`` where ridge =
    "auto", ``coef_`` (the head [K,d] for features, else Δw [P]) and ``base_``.

    Args:
        backbone: see above.
        tangent: the expansion point and what is trained; ``TangentSpec()`` by default, the head alone for features.
        loss: "rsl", "mse" or "cross_entropy". alpha, kappa: of "rsl"; alpha = "auto" is √K for K classes.
        ridge: λ beside the mean loss (biases included), or "auto". radius: of a ball ‖Δw‖ ≤ R.
        class_weight: None, "balanced", or a mapping of classes to weights.
        tolerance, max_passes: when a solve ends; see ``minimise``.
        memory: bytes for prepared rows. device: where products run.
    """

    def __init__(
        self,
        backbone: BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None = None,
        *,
        tangent: TangentSpec | None = None,
        loss: str = "rsl",
        alpha: float | str = "auto",
        kappa: float = 15.0,
        ridge: float | str = 1e-4,
        radius: float | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        tolerance: float = 1e-6,
        max_passes: int = 1000,
        memory: int = 2 << 30,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            backbone,
            tangent=tangent,
            loss=loss,
            alpha=alpha,
            kappa=kappa,
            ridge=ridge,
            radius=radius,
            tolerance=tolerance,
            max_passes=max_passes,
            memory=memory,
            device=device,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TangentClassifier:
        """Solve over X [n,…] with classes y [n] of any kind; a weight of 2 counts like the row twice."""
        if self.backbone is None:
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        rows = self._rows(X)
        labels = labels.reshape(-1).astype(np.int64)
        K = max(2, len(self.classes_))  # one class alone still needs a logit to stand against
        by_class = None
        if self.class_weight == "balanced":
            by_class = balanced(torch.from_numpy(labels), K)
        elif self.class_weight is not None:
            given: Any = self.class_weight
            by_class = torch.tensor([float(given.get(c, 1.0)) for c in self.classes_.tolist()], dtype=torch.float64)
            by_class = torch.cat([by_class, by_class.new_ones(K - len(by_class))])
        by_sample = None
        if sample_weight is not None:
            by_sample = _sample_weights(sample_weight, rows)
        weights = None if by_class is None and by_sample is None else RowWeights(by_class, by_sample)
        self._solve(rows, labels, K, weights)
        return self

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

    ``X`` and the arguments are those of ``TangentClassifier``; y is [n] or [n,m].
    """

    def __init__(
        self,
        backbone: BackboneSpec | tuple[Mapping[str, Tensor], TailConfig] | None = None,
        *,
        tangent: TangentSpec | None = None,
        ridge: float | str = 1e-4,
        radius: float | None = None,
        tolerance: float = 1e-6,
        max_passes: int = 1000,
        memory: int = 2 << 30,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            backbone,
            tangent=tangent,
            loss="squared_error",
            ridge=ridge,
            radius=radius,
            tolerance=tolerance,
            max_passes=max_passes,
            memory=memory,
            device=device,
        )

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TangentRegressor:
        """Solve over X [n,…] with values y [n] or [n,m]; a weight of 2 counts like the row twice."""
        if self.backbone is None:
            X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True)
        values = np.asarray(y, dtype=np.float64)
        rows = self._rows(X)
        weights = None
        if sample_weight is not None:
            weights = RowWeights(by_sample=_sample_weights(sample_weight, rows))
        self._flat = values.ndim == 1
        self._solve(rows, values, 1 if self._flat else values.shape[1], weights)
        if self._flat and self.backbone is None:
            self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Values [n] or [n,m]."""
        logits = self._logits(X)
        return logits[:, 0] if self._flat else logits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _sample_weights(given: Any, rows: np.ndarray) -> Tensor:
    """Weights with mean one: the loss is a weighted mean, so a row of weight 2 is that row twice."""
    checked = _check_sample_weight(given, rows, dtype=np.float64)
    total = checked.sum()
    return torch.from_numpy(checked * (len(checked) / total) if total > 0 else checked.copy())


def _picture(image: Path | str | np.ndarray) -> Image.Image:
    if isinstance(image, (str, Path)):
        return open_rgb(image)
    return to_rgb(Image.fromarray(np.asarray(image)))
