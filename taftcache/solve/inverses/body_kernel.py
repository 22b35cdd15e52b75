"""What the kernel of the rows is made of: κ of all below the head, the head's input, and the classes' metric Ω.

κ comes from one random probe: it is the kernel of the rows' gradients Jᵀξ, with the same ξ [K] for every row. Where one
row of tokens reaches the logits, these are a few outer products each, and their inner products need no gradient to be
formed. Where all rows of tokens do, a gradient is a sum over the tokens. It is written out, a few rows at a time, and
a sketch of it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from taftcache.objective.cotangent import random_signs, unit
from taftcache.objective.problem import Problem
from taftcache.tangent.factors import Direct, RankOne, add_gram
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.tail import State

METRIC_ROWS = 8  # Ω varies little from row to row
# Numbers of a sketch. 2,975 rows of Caltech-101 take as many passes with 8,000 as with the gradients themselves.
SKETCHED = 1 << 14
LARGEST_ROWS = 4096  # an eigendecomposition of κ above this costs more than the passes it saves
LARGEST_RANK = 4096  # of κ where rows are more
LEAST_RANK = 1024
LARGEST_BASIS = 512 << 20  # bytes of all rows' sketches where κ has a rank; there are three such matrices at once


def rank_of_many(rows: int) -> int | None:
    """The rank of κ of so many rows where all of their tokens reach the logits; None where they are too many."""
    rank = min(LARGEST_RANK, LARGEST_BASIS // (4 * rows))
    return rank if rank >= LEAST_RANK else None


class Kernels(NamedTuple):
    """Of N rows, the head's input with its bias [N,h] (h = 0 where it is frozen), and κ of all else: ``body`` is κ
    [N,N] itself or, where it is ``factored``, F [N,m] with κ = FFᵀ."""

    head: Tensor
    body: Tensor
    factored: bool

    def between(self, rows: int) -> tuple[Tensor, Tensor]:
        """The head's part and κ [rows,N − rows] of the first ``rows`` with the others."""
        head, body = self.head, self.body
        crossing = body[:rows] @ body[rows:].T if self.factored else body[:rows, rows:]
        return head[:rows] @ head[rows:].T, crossing

    def first(self, rows: int) -> Kernels:
        """Those of the first ``rows``."""
        body = self.body[:rows] if self.factored else self.body[:rows, :rows]
        return Kernels(self.head[:rows], body, self.factored)


class Sketch:
    """Gradients [n,P] as m numbers each, whose inner products are about theirs, without the head's part.

    The entries get random signs, and every m-th of them is added up: a count sketch whose buckets are taken in turn.
    An inner product is right on average over the signs, within about ‖g‖‖h‖√(2/m).
    """

    def __init__(self, operator: TangentOperator, numbers: int) -> None:
        signs = random_signs(torch.empty(operator.layout.size, dtype=operator.dtype), seed=0)
        for name in _head_names(operator):
            signs[operator.layout.slices[name]] = 0
        self._operator, self._numbers, self._signs = operator, numbers, signs.to(operator.device)

    def __call__(self, state: State, r: Tensor) -> Tensor:
        """Of Jᵀ r of each row, [n,m] for r [n,K]."""
        m = self._numbers
        found = r.new_zeros(len(r), m)

        def add(rows: slice, where: slice, values: Tensor) -> None:
            for start in range(where.start - where.start % m, where.stop, m):
                low, high = max(start, where.start), min(start + m, where.stop)
                part = values[:, low - where.start : high - where.start]
                found[rows, low - start : high - start].addcmul_(part, self._signs[low:high])

        self._operator.collect_gradients(state, r, add)
        return found


def class_metric(problem: Problem) -> Tensor:
    """Ω [K,K]: the mean of J(x)J(x)ᵀ without the head's part, over the first rows."""
    operator = problem.operator
    K = operator.classes
    state = operator.prepare(_first_rows(operator, METRIC_ROWS))
    units = [unit(state.logits, k) for k in range(K)]
    if not operator.tail.rank_one:
        sketch = Sketch(operator, SKETCHED)
        rows = torch.stack([sketch(state, e) for e in units], 1)
        return (rows @ rows.mT).sum(0).double() / len(rows)
    per_class = [operator.factors(state, e) for e in units]
    total = torch.zeros(K, K, dtype=operator.dtype, device=operator.device)
    for same in zip(*(matrices for matrices, _ in per_class), strict=True):
        factors = [m for m in same if isinstance(m, RankOne)]
        if factors[0].of_head:
            continue
        out, into = (torch.stack([getattr(m, side) for m in factors], 2) for side in ("out", "into"))  # [n,H,K,·]
        inner = into @ into.mT
        total += ((out @ out.mT) * (inner if factors[0].bias is None else inner + 1)).sum((0, 1))
    for small in zip(*(direct for _, direct in per_class), strict=True):
        rows = torch.stack([part.rows for part in small], 1)
        total += (rows @ rows.mT).sum(0)
    return total.double() / len(state.logits)


def kernels(problems: Sequence[Problem], metric: Tensor) -> Kernels:
    """Of all rows of the problems, one problem's after the other's."""
    operator = problems[0].operator
    probe = random_signs(metric[0], seed=0).to(operator.dtype)
    scale = (probe.double() @ metric @ probe.double()).item() or 1.0
    rank = rank_of_many(operator.rows) if operator.rows > LARGEST_ROWS else None
    sketch = None if operator.tail.rank_one else Sketch(operator, rank or SKETCHED)
    inputs, sketches = [], []
    factors: list[tuple[list[RankOne], list[Direct]]] = []
    for state, labels in chain.from_iterable(problem.operator.blocks() for problem in problems):
        r = probe.expand(len(labels), -1).contiguous()
        inputs.append(state.feature)
        if sketch is not None:
            sketches.append(sketch(state, r))
        else:
            matrices, small = operator.factors(state, r)
            factors.append(([m for m in matrices if isinstance(m, RankOne) and not m.of_head], small))
    head, names = torch.cat(inputs), _head_names(operator)
    if not names:
        head = head[:, :0]
    elif len(names) == 2:
        head = torch.cat([head, head.new_ones(len(head), 1)], 1)
    if sketch is not None:
        rows = torch.cat(sketches).mul_(scale**-0.5)
        return Kernels(head, rows, factored=True) if rank else Kernels(head, rows @ rows.T, factored=False)
    total = probe.new_zeros(len(head), len(head))
    add_gram(total, factors, scale)
    return Kernels(head, total, factored=False)


def _head_names(operator: TangentOperator) -> list[str]:
    """The head's weight and bias where they are trained; a bias alone is one of the body's."""
    weight, bias = operator.base.config.head_names
    return [name for name in (weight, bias) if name in operator.layout] if weight in operator.layout else []


def _first_rows(operator: TangentOperator, count: int) -> np.ndarray:
    """The first rows [count,t,d], however they are spread over sources."""
    parts: list[np.ndarray] = []
    for source in operator.sources:
        if source.rows and count > 0:
            tokens = np.asarray(next(iter(source.blocks(count))).tokens)
            parts.append(tokens)
            count -= len(tokens)
    return np.concatenate(parts)
