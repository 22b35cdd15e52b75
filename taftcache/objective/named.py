"""Losses for classes, and weights, by the names that recipes and estimators use."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from numbers import Real

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.cross_entropy import CrossEntropy
from taftcache.objective.loss import Loss
from taftcache.objective.rsl import RSL
from taftcache.objective.weights import RowWeights, balanced

NAMES = ("rsl", "mse", "cross_entropy")


def true_class_weight(alpha: float | str, classes: int) -> float:
    """α, or √K for "auto": the more classes there are, the less of the loss is about the true one at α = 1.

    Measured against a linear probe in docs/benchmarks.md. SolveError for anything else.
    """
    if isinstance(alpha, str) and alpha == "auto":
        return sqrt(classes)
    if isinstance(alpha, bool) or not isinstance(alpha, Real):
        raise SolveError("alpha is not a number", got=repr(alpha), do='a number above 0, or "auto"')
    return float(alpha)


def named_loss(name: str, alpha: float = 1.0, kappa: float = 15.0) -> Loss:
    """The loss called ``name``; α and κ are those of the rescaled square loss, and "mse" is that loss at α = κ = 1.

    Raises:
        SolveError: no such loss, or α or κ that is not above 0.
    """
    losses: dict[str, Loss] = {
        "rsl": RSL(alpha=alpha, kappa=kappa),
        "mse": RSL(alpha=1.0, kappa=1.0),
        "cross_entropy": CrossEntropy(),
    }
    if name not in NAMES:
        raise SolveError(f"no loss is called {name!r}", got=name, do=f"one of {', '.join(NAMES)}")
    return losses[name]


def class_weights(wanted: str | Sequence[float], labels: Tensor, classes: int) -> RowWeights | None:
    """Weights for "none", "balanced" (over these labels) or one number for each class."""
    if wanted == "none":
        return None
    if wanted == "balanced":
        return RowWeights(by_class=balanced(labels, classes))
    if isinstance(wanted, str):
        raise SolveError('class weights must be "none", "balanced" or a list of numbers', got=wanted)
    return RowWeights(by_class=torch.tensor(list(wanted), dtype=torch.float64, device="cpu"))
