"""Several blocks as closed-form layers on all tokens, ending in the class row or in pooling and a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from taftcache.tangent.class_row import block as class_row
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.class_row.factors import row_gradients
from taftcache.tangent.config import TailConfig
from taftcache.tangent.factors import Direct, Factor
from taftcache.tangent.layers.layer import (
    Layer,
    Named,
    PerRow,
    Saved,
    Sum,
    Taker,
    chain_adjoint,
    chain_tangent,
    chain_value,
)
from taftcache.tangent.layers.linear import Linear
from taftcache.tangent.layers.residual import ClassToken
from taftcache.tangent.parameters import Layout
from taftcache.tangent.tail import Tail
from taftcache.tangent.weights import Entry, tail_weights

# About how much is kept of the rows of one call. With fewer rows, matrices are too small for fast products; with more,
# memory is not reused but costs fresh pages. It decides the result's bytes, because sums run over such blocks.
BLOCK_BYTES = 128 << 20


class Bound(NamedTuple):
    """Tensors by timm's names, and those of the class row by the letters of its equations."""

    named: Named
    end: Entry  # TailWeights, where the class row ends the tail


class LayersState(NamedTuple):
    """What the layers keep of a block of rows."""

    kept: list[Saved]
    end: class_row.BlockState | None
    feature: Tensor  # [n,width]
    logits: Tensor  # [n,K]


class LayersTail(Tail):
    """Closed-form layers, then the class row of the last block or a readout and the head."""

    factored = True
    rank_one = False  # a matrix's gradient is a sum over tokens, so the rows' kernel has no cheap form

    def __init__(self, config: TailConfig) -> None:
        assert config.end is not None
        self.config = config
        self.end = config.end if isinstance(config.end, ClassRow) else None
        token = [ClassToken(name=config.token_name)] if config.class_token and config.layers else []
        weight, bias = config.head_names
        after = () if isinstance(config.end, ClassRow) else config.end.layers
        self.layers: list[Layer] = [*token, *config.layers, *after]
        self.head = Linear(weights=(weight,), biases=(bias,))

    def bind(self, named: Mapping[str, Tensor]) -> Bound:
        """``named``, and the class row's part of it by the letters of its equations."""
        return Bound(named, None if self.end is None else tail_weights(self.end, named))

    def value(self, w: Bound, rows: Tensor) -> LayersState:
        """The base model on ``rows`` [n,t,d], the raw input of the first block."""
        x, kept = chain_value(self.layers, w.named, rows.view(rows.shape[0], *self.config.shape))
        if self.end is not None:
            end = class_row.value(self.end, w.end, x)
            return LayersState(kept, end, end.feature, end.logits)
        logits, _ = self.head.value(w.named, x)
        return LayersState(kept, None, x, logits)

    def tangent(self, w: Bound, state: LayersState, delta: Bound) -> Tensor:
        dx = chain_tangent(self.layers, w.named, state.kept, None, delta.named)
        if state.end is not None:
            return class_row.tangent(w.end, state.end, delta.end, dx)
        change = self.head.tangent(w.named, state.feature, dx, delta.named)
        return torch.zeros_like(state.logits) if change is None else change

    def value_and_tangent(self, w: Bound, rows: Tensor, delta: Bound) -> tuple[Tensor, Tensor]:
        """f_w(x) and J Δw, both [n,K], layer by layer; only what the next layer needs is kept."""
        x, dx = rows.view(rows.shape[0], *self.config.shape), None
        for layer in self.layers:
            x, saved = layer.value(w.named, x)
            dx = layer.tangent(w.named, saved, dx, delta.named)
            del saved
        if self.end is not None:
            end = class_row.value(self.end, w.end, x)
            return end.logits, class_row.tangent(w.end, end, delta.end, dx)
        logits, saved = self.head.value(w.named, x)
        change = self.head.tangent(w.named, saved, dx, delta.named)
        return logits, torch.zeros_like(logits) if change is None else change

    def adjoint(self, w: Bound, state: LayersState, r: Tensor, out: Bound) -> None:
        taker = Sum(out.named)
        if state.end is not None:
            g = class_row.cotangents(w.end, state.end, r, out.end, tokens=self._reaches(taker))
            class_row.contract(w.end, state.end, g, out.end)
            if g.tokens is not None:
                chain_adjoint(self.layers, w.named, state.kept, g.tokens, taker, need_input=False)
            return
        self._back(w, state, r, taker)

    def factors(self, layout: Layout, w: Bound, state: LayersState, r: Tensor) -> tuple[list[Factor], list[Direct]]:
        """Each row's Jᵀ r: for each matrix that acts on all tokens, a sum of outer products over them."""
        taker = PerRow(layout)
        if state.end is None:
            self._back(w, state, r, taker)
            return taker.matrices, taker.direct
        assert self.end is not None
        trained = tail_weights(self.end, layout.views(torch.empty(layout.size, device="meta")))
        g = class_row.cotangents(w.end, state.end, r, trained, tokens=self._reaches(taker))
        matrices, direct = row_gradients(self.end, layout, w.end, state.end, g)
        if g.tokens is not None:
            chain_adjoint(self.layers, w.named, state.kept, g.tokens, taker, need_input=False)
        return [*matrices, *taker.matrices], direct + taker.direct

    @property
    def factor_width(self) -> int:
        tokens, width = self.config.shape[-2:]
        return 18 * tokens * width * len(self.config.blocks)

    @property
    def block_rows(self) -> int:
        """Rows that are worth computing at once."""
        return max(1, BLOCK_BYTES // (4 * self.factor_width))

    def select(self, state: LayersState, rows: Tensor) -> None:
        """None: all tokens of all blocks are too much to hold for many rows."""
        return None

    def tensors(self, state: LayersState) -> Iterator[Tensor]:
        return iter({id(tensor): tensor for tensor in _tensors(state)}.values())

    def _reaches(self, taker: Taker) -> bool:
        """Whether anything before the end is trained."""
        return any(name in taker for layer in self.layers for name in layer.names)

    def _back(self, w: Bound, state: LayersState, r: Tensor, taker: Taker) -> None:
        reaches = self._reaches(taker)
        g = self.head.adjoint(w.named, state.feature, r, taker, reaches)
        if g is not None:
            chain_adjoint(self.layers, w.named, state.kept, g, taker, need_input=False)


def _tensors(held: Any) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, list | tuple):
        for part in held:
            yield from _tensors(part)
