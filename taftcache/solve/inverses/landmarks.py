"""The inner products between all rows' gradients, from those with a few of the rows.

With m rows as landmarks M, κ ≈ FFᵀ for F = κ_NM κ_MM^(−½) [N,m] (Nyström): exact among the landmarks and along what
they span. The leading eigenvalues of κ, those above λ, are few however many rows there are.

Where one row of tokens reaches the logits, a gradient is a few outer products, and κ_NM needs no gradient to be formed.
Where all rows of tokens do, a gradient is a sum over the tokens. It is written out, a few rows at a time, and a sketch
of it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taftcache.objective.cotangent import random_signs
from taftcache.objective.problem import Problem
from taftcache.tangent.factors import Direct, Gradients, RankOne, add_gram, factor_norms, joined
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.rows import RowSubset
from taftcache.tangent.tail import State

LANDMARKS = 1024
# Numbers in a sketch. 2,975 rows of Caltech-101 take as many passes with 8,000 as with the gradients themselves.
SKETCHED = 1 << 14


def head_names(operator: TangentOperator) -> list[str]:
    """The head's weight and bias where they are trained; a bias alone is one of the body's."""
    weight, bias = operator.base.config.head_names
    return [name for name in (weight, bias) if name in operator.layout] if weight in operator.layout else []


class Sketch:
    """Gradients [n,P], without the head's part, as m numbers each with about the same inner products.

    The entries get random signs, and every m-th of them is added up: a count sketch whose buckets are taken in turn.
    An inner product is right on average over the signs, and off by about ‖g‖‖h‖√(2/m).
    """

    def __init__(self, operator: TangentOperator, numbers: int) -> None:
        signs = random_signs(torch.empty(operator.layout.size, dtype=operator.dtype), seed=0)
        for name in head_names(operator):
            signs[operator.layout.slices[name]] = 0
        self._operator, self._numbers, self._signs = operator, numbers, signs.to(operator.device)

    def __call__(self, state: State, r: Tensor) -> Tensor:
        """The sketch [n,m] of each row's Jᵀr, for r [n,K]."""
        m = self._numbers
        found = r.new_zeros(len(r), m)

        def add(rows: slice, where: slice, values: Tensor) -> None:
            for start in range(where.start - where.start % m, where.stop, m):
                low, high = max(start, where.start), min(start + m, where.stop)
                part = values[:, low - where.start : high - where.start]
                found[rows, low - start : high - start].addcmul_(part, self._signs[low:high])

        self._operator.collect_gradients(state, r, add)
        return found


class Landmarks:
    """F [N,m] of the gradients Jᵀξ without the head's part, a block of rows at a time.

    Args:
        problems: of one tail. The landmarks are spread evenly over the rows of the first; rows of the others, which are
            few, are landmarks too, up to half of all.
        probe: ξ [K], the same for every row.
        scale: what inner products are divided by.

    ``numbers`` is m, the landmarks or a few less; ``rows`` are those of the first problem that are landmarks.
    """

    def __init__(self, problems: Sequence[Problem], probe: Tensor, scale: float) -> None:
        first, *others = (problem.operator for problem in problems)
        self._operator, self._probe, self._scale = first, probe, scale
        self._sketch = None if first.tail.rank_one else Sketch(first, SKETCHED)
        of_others = [min(operator.rows, LANDMARKS // 2 // len(others)) for operator in others]
        of_first = LANDMARKS - sum(of_others)
        self.rows = torch.from_numpy(_places(first.rows, of_first))
        picked = [_spread(first, of_first), *map(_spread, others, of_others)]
        self._count = sum(operator.rows for operator in picked)
        self._known = joined([self._gradients(state) for operator in picked for state, _ in operator.blocks()])
        among = self._inner(self._known, self._count).double()
        squares, directions = torch.linalg.eigh(among)
        # F has the rounding of κ_NM, about that of one entry, divided by the root of the eigenvalue.
        seen = squares > 4 * torch.finfo(probe.dtype).eps * among.trace() / len(among) ** 0.5
        self._across = (directions[:, seen] / squares[seen].sqrt()).to(probe)
        self.numbers = self._across.shape[1]

    def __call__(self, state: State) -> tuple[Tensor, Tensor]:
        """F for a block's rows [n,m], and what it misses of each gradient's square [n]."""
        if not self.numbers:  # nothing is trained below the head, or none of it is felt
            return self._probe.new_zeros(len(state.logits), 0), self._probe.new_zeros(len(state.logits))
        gradients = self._gradients(state)
        seen = self._inner(gradients, len(state.logits)) @ self._across
        square = factor_norms(*gradients).square() / self._scale
        return seen, (square - seen.square().sum(1)).clamp_min_(0)

    def _inner(self, rows: Gradients, count: int) -> Tensor:
        """κ of some rows with the landmarks [count,m]."""
        total = self._probe.new_zeros(count, self._count)
        add_gram(total, [rows], [self._known], self._scale)
        return total

    def _gradients(self, state: State) -> Gradients:
        r = self._probe.expand(len(state.logits), -1).contiguous()
        if self._sketch is not None:
            rows = self._sketch(state, r)
            return [], [Direct(slice(0, rows.shape[1]), rows)]
        matrices, small = self._operator.factors(state, r)
        return [m for m in matrices if isinstance(m, RankOne) and not m.of_head], small


def _spread(operator: TangentOperator, most: int) -> TangentOperator:
    """An operator over ``most`` of the rows, spread evenly; if it has no more, itself with what it has prepared."""
    if operator.rows <= most:
        return operator
    return operator.over([RowSubset(operator.sources, _places(operator.rows, most))])


def _places(rows: int, most: int) -> NDArray[np.int64]:
    """``most`` of so many rows, spread evenly; all if they are fewer."""
    count = min(rows, most)
    return np.arange(count, dtype=np.int64) * rows // max(1, count)
