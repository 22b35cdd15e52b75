"""How much each row counts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from taftcache.errors import SolveError


@dataclass(frozen=True, eq=False)  # tensors have no one answer to ==
class RowWeights:
    """ω_n ≥ 0 for every row: by its class, by its place, or the product of both.

    Args:
        by_class: [K], or None for ones.
        by_sample: [N] in the order of the rows, or None for ones.
    """

    by_class: Tensor | None = None
    by_sample: Tensor | None = None

    def __post_init__(self) -> None:
        for values in (self.by_class, self.by_sample):
            if values is None:
                continue
            if not isinstance(values, Tensor):
                raise SolveError("weights must be a tensor", got=type(values).__name__, do="torch.as_tensor(…)")
            if not (torch.isfinite(values).all() and (values >= 0).all()):
                raise SolveError("weights must be finite and not negative", got=values.tolist()[:8])

    @property
    def largest(self) -> float:
        """No ω_n is above it."""
        return prod(1.0 if values is None else values.max().item() for values in (self.by_class, self.by_sample))

    def check(self, rows: int, classes: int) -> None:
        """Raise SolveError unless there is one weight for each class and row."""
        parts = (("class_weights", self.by_class, classes, "classes"), ("weights", self.by_sample, rows, "rows"))
        for name, values, size, what in parts:
            if values is not None and values.shape != (size,):
                raise SolveError(
                    f"{name} has {values.numel()} values, but there are {size} {what}",
                    got=f"shape {tuple(values.shape)}",
                )

    def at(self, labels: Tensor, start: int, like: Tensor) -> Tensor:
        """ω [n,1] of the rows ``start …`` with these labels, in the precision of ``like``."""
        return self.picked(labels, torch.arange(start, start + len(labels)), like)

    def picked(self, labels: Tensor, rows: Tensor, like: Tensor) -> Tensor:
        """ω [n,1] of the rows at these places with these labels."""
        weight = like.new_ones(len(labels))
        if self.by_class is not None:
            weight = weight * self.by_class.to(like)[labels]
        if self.by_sample is not None:
            weight = weight * self.by_sample[rows].to(like)
        return weight[:, None]


def balanced(labels: Tensor, classes: int) -> Tensor:
    """Weights [K] that make all classes that occur count alike: N / (classes that occur · rows of the class)."""
    counts = torch.bincount(labels, minlength=classes).double()
    return torch.where(counts > 0, len(labels) / (counts.clamp_min(1) * (counts > 0).sum()), 0.0)
