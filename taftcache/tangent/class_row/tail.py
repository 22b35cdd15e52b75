"""The last block of a token-pooled ViT as a tail: the class-row tangent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taftcache.tangent.class_row.block import BlockState, adjoint, cotangents, reduce, tangent, value
from taftcache.tangent.class_row.config import ClassRow
from taftcache.tangent.class_row.factors import row_gradients
from taftcache.tangent.class_row.folding import folded
from taftcache.tangent.config import Rows, TailConfig
from taftcache.tangent.factors import Direct, RankOne
from taftcache.tangent.parameters import Layout
from taftcache.tangent.tail import Tail
from taftcache.tangent.weights import TailWeights, tail_weights

# The largest K·H over tokens: there ten products save what making a block ready takes; with fewer classes, fewer do.
FEW = 0.5
READY_BYTES = 4 << 30  # for all rows: those that memory does not hold would be made ready anew in every pass


class ClassRowTail(Tail):
    """One block, final norm and head, of which only the class row is ever formed; see ``class_row``."""

    rank_one = True
    factored = True
    converts = True
    block_rows = 256

    def __init__(self, config: TailConfig) -> None:
        assert isinstance(config.end, ClassRow)
        self.config, self.rows = config.end, config.rows
        self._tokens, self._classes = config.shape[0], config.classes

    def bind(self, named: Mapping[str, Tensor]) -> TailWeights:
        """``named`` by the letters of the equations."""
        return tail_weights(self.config, named)

    def value(self, w: TailWeights, rows: Tensor) -> BlockState:
        """The base model on ``rows``: the raw input of the block [n,t,d], or its reduced rows."""
        return value(self.config, w, rows, self.rows)

    def reduce(self, w: TailWeights, tokens: Tensor, rows: Rows) -> Tensor:
        """The input of a tail over ``rows``, made from the tokens [n,t,d]."""
        return reduce(self.config, w, tokens, rows)

    def ready(self, layout: Layout, rows: int) -> Callable[[TailWeights, BlockState], BlockState] | None:
        """A state without the tokens, if nothing reads them or something smaller can take their place."""
        p, config = self.config.prefix, self.config
        if self.rows != "tokens" or f"{p}.cls_token" in layout:
            return None
        if not any(name.startswith((f"{p}.norm1.", f"{p}.attn.qkv.")) for name in layout):
            return partial(folded, into="")
        few = self._classes * config.heads <= FEW * self._tokens
        instead = self._classes * config.heads if few else config.width
        held = 4 * config.width * (instead + config.heads + 17)
        if instead > self._tokens or rows * held > READY_BYTES:
            return None
        return partial(folded, into="logits" if few else "o")

    def tangent(self, w: TailWeights, state: BlockState, delta: TailWeights) -> Tensor:
        return tangent(w, state, delta)

    def adjoint(self, w: TailWeights, state: BlockState, r: Tensor, out: TailWeights) -> None:
        adjoint(w, state, r, out)

    def factors(
        self, layout: Layout, w: TailWeights, state: BlockState, r: Tensor
    ) -> tuple[list[RankOne], list[Direct]]:
        """Each row's Jᵀ r: one outer product for each matrix (and head), and the small parameters' own."""
        trained = self.bind(layout.views(torch.empty(layout.size, device="meta")))  # which entries there are
        return row_gradients(self.config, layout, w, state, cotangents(w, state, r, trained))

    @property
    def factor_width(self) -> int:
        return self.config.width * (3 * self.config.heads + 12)

    def tensors(self, state: BlockState) -> Iterator[Tensor]:
        return (tensor for tensor in state if tensor is not None)

    def select(self, state: BlockState, rows: Tensor) -> BlockState:
        picked: dict[str, Any] = {
            name: None if tensor is None else tensor.index_select(int(name == "q"), rows)  # q is [H,n,e]
            for name, tensor in state._asdict().items()
        }
        return BlockState(**picked)
