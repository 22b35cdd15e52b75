"""J as a linear operator over the rows of a cache, streamed block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.device import full_float32, lowered, transfer
from taftcache.tangent.factors import AddGradients, Direct, Factor
from taftcache.tangent.feature import FeatureState, FeatureTail
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import Block, RowSource, blocks_of
from taftcache.tangent.selection import row_shape
from taftcache.tangent.tail import State, Tail, collect_gradients

# Rows that share one product, at most: a tail that keeps much of each row takes fewer (``Tail.block_rows``). This
# decides the result's bytes, so it is a constant and not a tuning knob: sums run over blocks of this size in row order,
# however many rows are read at a time and by however many workers.
BLOCK_ROWS = 256
ON_GPU = 4  # times as many there: products of 256 rows of ViT-L/16 leave half of an H100 idle
# On a CPU, WHEN_READY times as many rows if they are made ready in float32, up to BLOCK_BYTES: a narrow network's
# matrices are small. With 1,024 rows a product over CIFAR-10 at width 96 took 0.7 of the time; with 443, one over
# Caltech-101 at width 192 took 0.8.
WHEN_READY, BLOCK_BYTES = 4, 64 << 20
# The most bytes of tokens in a float64 block of more than LEAST_ROWS rows. On a CPU, larger tensors get fresh pages
# from the system every time, and clearing them took a quarter of a float64 pass.
WIDE_BYTES, LEAST_ROWS = 30 << 20, 64

CotangentRule = Callable[[Tensor, Tensor | None, Tensor], Tensor]
"""(base logits [b,K], their tangent [b,K] or None, labels [b]) to the vector [b,K] that Jᵀ is applied to."""


class RowSum(NamedTuple):
    """``onto`` + Σ over blocks of Jᵀ cotangent(f₀, J v, labels) [P], v = ``vector`` [P] or None for zero.

    A gradient, a Hessian product and Jᵀ itself are this with different cotangents. ``onto`` is added to in place;
    without it, a vector of zeros is.
    """

    vector: Tensor | None
    cotangent: CotangentRule
    onto: Tensor | None = None


class TangentOperator:
    """J [N·K, P] at a base point, over the rows of ``sources`` in order.

    Rows, products and sums are in ``dtype``: float32 for a solver's inner iterations, float64 for the gradients that
    start, refine and certify a solve. It takes memory for one block of rows and a few vectors, plus up to ``memory``
    bytes for prepared blocks between passes.

    Args:
        base: the expansion point.
        sources: row sources, read in the order given.
        trained: names of the parameters that Δw ranges over; all of the tail by default.
        dtype: precision of the products.
        device: where they run.
        memory: bytes that may hold prepared blocks; 0 streams every pass.
        repeated: whether there will be many passes, so that it pays to make blocks ready (``Tail.ready``).

    ``block_rows`` is the size of a block, ``head_alone`` whether Δw ranges only over the head.
    """

    def __init__(
        self,
        base: Base,
        sources: Sequence[RowSource],
        *,
        trained: Layout | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        memory: int = 0,
        repeated: bool = False,
    ) -> None:
        self.base, self.sources, self.dtype, self.device = base.to(dtype, device), list(sources), dtype, device
        self.layout = trained or base.layout
        self._whole = self.base.tail
        # The head alone reads only its input, a small part of a tail's state, so more rows stay between passes.
        self.head_alone = self.layout == base.head_layout
        self.tail: Tail = FeatureTail(base.config) if self.head_alone else self._whole
        self._all_weights = self._whole.bind(self.base.state)
        self.weights = self.tail.bind(self.base.state) if self.head_alone else self._all_weights
        self.rows = sum(source.rows for source in self.sources)
        self.ready = self.tail.ready(self.layout, self.rows) if repeated else None
        self.passes = 0
        self._on_gpu = torch.device(device).type == "cuda"
        self.block_rows = min(BLOCK_ROWS, self._whole.block_rows)
        if self._on_gpu:
            self.block_rows *= ON_GPU
        elif dtype == torch.float64:
            self.block_rows = float64_rows(base.config, self.block_rows)
        elif self.ready is not None:
            most = BLOCK_BYTES // (4 * prod(base.config.shape))
            self.block_rows = max(self.block_rows, min(WHEN_READY * self.block_rows, most))
        self._transfer = transfer(device)
        self._memory = memory
        self._kept: list[tuple[State, Tensor]] = []

    @property
    def classes(self) -> int:
        """K."""
        return self.base.config.classes

    def over(self, sources: Sequence[RowSource], *, memory: int = 0, repeated: bool = False) -> TangentOperator:
        """J for the same base and parameters over other rows."""
        return TangentOperator(
            self.base,
            sources,
            trained=self.layout,
            dtype=self.dtype,
            device=self.device,
            memory=memory,
            repeated=repeated,
        )

    def blocks(self) -> Iterator[tuple[State, Tensor]]:
        """Prepared blocks and their labels, in order; one call is one pass over the rows, and one runs at a time."""
        self.passes += 1
        yield from self._kept
        for block in self._read(skip=len(self._kept)):
            state = self.prepare(block.tokens)
            if self.ready is not None:
                with self._products():
                    state = self.ready(self.weights, state)
            held = state, self._transfer.put(targets(block, self.classes))
            size = sum(tensor.numel() * tensor.element_size() for tensor in self.tail.tensors(held[0]))
            self._memory -= size
            if self._memory >= 0:  # what is kept is always a prefix: once one block does not fit, none will
                self._kept.append(held)
            yield held
            self._transfer.used()

    def prepare(self, tokens: np.ndarray) -> State:
        """The base model's state on rows [b,t,d] of any float dtype; SolveError for rows of another width."""
        tokens, width = np.asarray(tokens), row_shape(self.base.config, self.base.config.rows)[1]
        if tokens.ndim != 3 or tokens.shape[2] != width:
            raise SolveError(
                f"the rows do not fit the tail, which takes [n,t,{width}]", got=f"a block {list(tokens.shape)}"
            )
        rows = self._transfer.put(tokens)
        with self._products():
            state = self._whole.value(self._all_weights, rows if self._whole.converts else rows.to(self.dtype))
        return FeatureState(state.feature, state.logits) if self.head_alone else state

    def direction(self, vector: Tensor, layout: Layout | None = None) -> Any:
        """``vector`` [P], over the operator's layout or another, in the tail's form and the operator's precision."""
        return self.tail.bind((layout or self.layout).views(vector.to(self.device, self.dtype)))

    def tangent(self, state: State, delta: Any) -> Tensor:
        """J Δw [b,K] on one prepared block, for a ``direction``."""
        with self._products():
            return self.tail.tangent(self.weights, state, delta)

    def factors(self, state: State, r: Tensor) -> tuple[Sequence[Factor], list[Direct]]:
        """The gradients Jᵀ r of a block's single rows, in factored form, for r [b,K]."""
        with self._products():
            return self.tail.factors(self.layout, self.weights, state, r)

    def gradients(self, state: State, r: Tensor) -> Tensor:
        """The same gradients written out [b,P]: for few rows and parameters."""
        onto = r.new_zeros(len(r), self.layout.size)
        self.collect_gradients(state, r, lambda rows, where, values: onto[rows, where].add_(values))
        return onto

    def collect_gradients(self, state: State, r: Tensor, add: AddGradients) -> None:
        """Hand the same gradients to ``add``, a piece at a time."""
        with self._products():
            collect_gradients(self.tail, self.layout, self.weights, state, r, add)

    def adjoint(self, state: State, r: Tensor, out: Any) -> None:
        """Add Jᵀ r to ``out``, which is in the tail's own form, in place, for r [b,K] on one prepared block."""
        with self._products():
            self.tail.adjoint(self.weights, state, r, out)

    def _products(self) -> AbstractContextManager[None]:
        # The guard takes noticeable time for small blocks, so on a CPU it is used only if there is something to guard.
        return full_float32(self.device) if self._on_gpu or lowered() else nullcontext()

    def matvec(self, vector: Tensor) -> Iterator[Tensor]:
        """J v block by block, each [b,K]."""
        delta = self.direction(vector)
        for state, _ in self.blocks():
            yield self.tangent(state, delta)

    def accumulate(self, vector: Tensor | None, cotangent: CotangentRule) -> Tensor:
        """One ``RowSum`` [P] in the operator's precision, in one pass."""
        return self.sums(RowSum(vector, cotangent))[0]

    def sums(self, *asked: RowSum) -> list[Tensor]:
        """Several sums in one pass, which prepares each block once; each has the bits that it would have alone.

        The rows of several sources are summed source by source, and those sums added up in order, so the total has the
        same bits wherever they are computed.
        """
        found = [self._zeros() if each.onto is None else each.onto for each in asked]
        deltas = [None if each.vector is None else self.direction(each.vector) for each in asked]
        alone = sum(source.rows > 0 for source in self.sources) < 2
        totals = found if alone else [self._zeros() for _ in asked]
        outs = [self.tail.bind(self.layout.views(total)) for total in totals]
        ends = accumulate(source.rows for source in self.sources)
        row, end = 0, next(ends, 0)
        for state, labels in self.blocks():
            for each, delta, out in zip(asked, deltas, outs, strict=True):
                change = None if delta is None else self.tangent(state, delta)
                self.adjoint(state, each.cotangent(state.logits, change, labels), out)
            row += len(labels)
            if row >= end and not alone:
                for onto, total in zip(found, totals, strict=True):
                    onto.add_(total)
                    total.zero_()
                end = next((further for further in ends if further > row), 0)
        return found

    def _zeros(self) -> Tensor:
        return torch.zeros(self.layout.size, dtype=self.dtype, device=self.device)

    def _read(self, skip: int) -> Iterator[Block]:
        """Blocks of all sources in order, without the first ``skip``."""
        for source in self.sources:
            size = self.block_rows
            count = -(-source.rows // size)
            if skip < count:
                yield from blocks_of(source, size, skip * size)
            skip = max(0, skip - count)


def float64_rows(config: TailConfig, most: int = BLOCK_ROWS) -> int:
    """Rows of a float64 block on a CPU: fewer than ``most`` if they are wide."""
    return min(most, max(LEAST_ROWS, WIDE_BYTES // (8 * prod(config.shape))))


def first_target(sources: Sequence[RowSource], classes: int) -> Tensor:
    """The target of the first row of all, [1] or [1,K]; see ``targets``."""
    block = next(blocks_of(next(source for source in sources if source.rows), 1))
    return torch.from_numpy(targets(block, classes)[:1])


def targets(block: Block, classes: int) -> np.ndarray:
    """A copy of a block's labels: classes [b] as int64, values of a regression [b] or [b,K] as float64.

    SolveError for anything else, and for classes that are not 0 to K − 1.
    """
    given = np.asarray(block.labels)
    values = given.dtype.kind == "f"
    if len(given) != len(block.tokens) or not (values or (given.dtype.kind in "biu" and given.ndim == 1)):
        raise SolveError(
            "the labels are not one class for each row",
            got=f"labels {given.dtype} {list(given.shape)}, tokens {list(np.shape(block.tokens))}",
            do="integers [n]; or floats [n] or [n,K], the values of a regression",
        )
    if not values and len(given) and not 0 <= given.min() <= given.max() < classes:
        raise SolveError(
            f"a label is not a class of the model: its classes are 0 to {classes - 1}",
            got=f"labels from {given.min()} to {given.max()}",
            do="number the classes from 0 on; give the values of a regression as floats",
        )
    return np.array(given, dtype=np.float64 if values else np.int64)
