"""What is trained privately: the tangent model, or the network itself with moving weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.privacy.rows import FilledRows
from taftcache.tangent.base import Base
from taftcache.tangent.factors import Direct, Factor
from taftcache.tangent.operator import BLOCK_ROWS, TangentOperator
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import RowSource
from taftcache.tangent.tail import State

Factors = Callable[[Tensor], tuple[Sequence[Factor], Sequence[Direct]]]


class Batch(NamedTuple):
    """Rows of one block: their logits, and the way back to the parameters."""

    logits: Tensor  # [n,K]
    labels: Tensor  # [n]
    live: Tensor  # [n], False for the zeros that fill the last block
    factors: Factors  # each row's gradient for cotangents [n,K], factored


class Network(Protocol):
    """A model with parameters w + Δw over rows that can be read again."""

    layout: Layout
    rows: int

    def batches(self, delta: Tensor, chosen: NDArray[np.bool_] | None = None) -> Iterator[Batch]:
        """Logits and gradients at Δw [P] over all rows, or those ``chosen`` [N], in order."""
        ...


class TangentNetwork:
    """f_w(x) + J(x) Δw: gradients come from J at w, whatever Δw is."""

    def __init__(
        self,
        base: Base,
        sources: Sequence[RowSource],
        trained: Layout,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        memory: int = 0,
    ) -> None:
        self.layout, self.sources = trained, list(sources)
        whole = FilledRows(sources)
        self.rows = whole.rows
        self.operator = TangentOperator(base, [whole], trained=trained, dtype=dtype, device=device, memory=memory)

    def batches(self, delta: Tensor, chosen: NDArray[np.bool_] | None = None) -> Iterator[Batch]:
        """Logits and gradients at Δw [P]; prepared blocks stay in memory between passes over all rows."""
        operator = self.operator
        direction = operator.direction(delta)
        for state, labels, live in self.states(chosen):
            logits = state.logits + operator.tangent(state, direction)
            yield Batch(logits, labels, live, partial(operator.factors, state))

    def states(self, chosen: NDArray[np.bool_] | None = None) -> Iterator[tuple[State, Tensor, Tensor]]:
        """State, labels and which rows are real, block by block over all rows, or those ``chosen`` [N]."""
        left = self.rows if chosen is None else int(chosen.sum())
        for state, labels in self.operator.blocks() if chosen is None else self._prepared(chosen):
            yield state, labels, torch.arange(len(labels), device=labels.device) < left
            left -= len(labels)

    def _prepared(self, chosen: NDArray[np.bool_]) -> Iterator[tuple[State, Tensor]]:
        for block in FilledRows(self.sources, chosen).blocks(self.operator.block_rows):
            yield self.operator.prepare(block.tokens), _labels(block.labels, self.operator.device)


class OrdinaryNetwork:
    """f_{w+Δw}(x), fine-tuned as usual on the same cached rows: it is linearised anew at every step."""

    def __init__(
        self,
        base: Base,
        sources: Sequence[RowSource],
        trained: Layout,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layout, self.sources = trained, list(sources)
        self.rows = FilledRows(sources).rows
        self.base, self.dtype, self.device = base.to(dtype, device), dtype, device

    def batches(self, delta: Tensor, chosen: NDArray[np.bool_] | None = None) -> Iterator[Batch]:
        """Logits and gradients of the network at w + Δw."""
        tail = self.base.tail
        weights = tail.bind(self.base.moved(self.layout, delta))
        for block in FilledRows(self.sources, chosen).blocks(min(BLOCK_ROWS, tail.block_rows)):
            tokens = torch.from_numpy(np.array(block.tokens)).to(self.device).to(self.dtype)
            state = tail.value(weights, tokens)
            labels = _labels(block.labels, self.device)
            live = torch.arange(len(labels), device=labels.device) < block.live
            yield Batch(state.logits, labels, live, partial(tail.factors, self.layout, weights, state))


def right(network: Network, delta: Tensor) -> Tensor:
    """Whether each row's largest logit at Δw [P] is its label's: bool [n], on the CPU."""
    found = [(b.logits.argmax(1) == b.labels)[b.live].cpu() for b in network.batches(delta)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.bool)


def accuracy(network: Network, delta: Tensor) -> float:
    """The share of rows whose largest logit at Δw [P] is their label's."""
    return int(right(network, delta).sum()) / network.rows


def _labels(labels: NDArray[Any], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(device)
