"""The head alone as a tail: rows are the head's input, and J is the feature itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.tangent.config import TailConfig
from taftcache.tangent.factors import Direct, RankOne
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rules import linear_adjoint, linear_tangent
from taftcache.tangent.tail import Tail
from taftcache.tangent.weights import Entry


class FeatureState(NamedTuple):
    """The head's input [n,d] and the logits [n,K]."""

    feature: Tensor
    logits: Tensor


class Head(NamedTuple):
    """The classifier's weight [K,d] and bias [K]; None where frozen."""

    weight: Entry
    bias: Entry


class FeatureTail(Tail):
    """A linear head on cached features [n,1,d]."""

    rank_one = True
    factored = True
    block_rows = 256

    def __init__(self, config: TailConfig) -> None:
        self.names, self._width = config.head_names, config.width + config.classes

    @property
    def factor_width(self) -> int:
        """The numbers in the head's input and in r."""
        return self._width

    def bind(self, named: Mapping[str, Tensor]) -> Head:
        """The head's two tensors among all of ``named``."""
        return Head(*(named.get(name) for name in self.names))

    def value(self, w: Head, rows: Tensor) -> FeatureState:
        """The base model's head on features [n,1,d]."""
        feature = rows.flatten(1)
        return FeatureState(feature, torch.addmm(w.bias, feature, w.weight.T))

    def tangent(self, w: Head, state: FeatureState, delta: Head) -> Tensor:
        change = linear_tangent(w.weight, state.feature, None, delta.weight, delta.bias)
        return torch.zeros_like(state.logits) if change is None else change

    def adjoint(self, w: Head, state: FeatureState, r: Tensor, out: Head) -> None:
        linear_adjoint(r, state.feature, out.weight, out.bias)

    def factors(self, layout: Layout, w: Head, state: FeatureState, r: Tensor) -> tuple[list[RankOne], list[Direct]]:
        """Each row's Jᵀ r: one outer product."""
        weight, bias = self.names
        if weight not in layout:
            return [], [Direct(layout.slices[bias], r)] if bias in layout else []
        return [
            RankOne(layout.slices[weight], layout.slices.get(bias), r[:, None], state.feature[:, None], of_head=True)
        ], []
