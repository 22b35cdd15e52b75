"""What the kernel of the rows is made of: κ for all below the head, the head's input, and the classes' metric Ω.

κ comes from one random probe: it is the kernel of the rows' gradients Jᵀξ, with the same ξ [K] for every row, known
from their inner products with the gradients of a few rows (``landmarks``).
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
from taftcache.solve.inverses.landmarks import SKETCHED, Landmarks, Sketch, head_names
from taftcache.tangent.factors import RankOne
from taftcache.tangent.operator import TangentOperator

METRIC_ROWS = 8  # Ω varies little from row to row


class Kernels(NamedTuple):
    """For N rows, ``columns`` [N,m+h] are F [N,m], with FFᵀ ≈ κ for all below the head, and the head's input with its
    bias [N,h] (h = 0 if it is frozen). ``unseen`` [N] is κ's diagonal minus that of FFᵀ.

    ``landmarks`` [n] are the rows by which F knows the others, ``labels`` [N] those of the rows, and ``metric`` is Ω
    [K,K].
    """

    columns: Tensor
    m: int
    unseen: Tensor
    landmarks: Tensor
    labels: Tensor
    metric: Tensor

    @property
    def body(self) -> Tensor:
        """F."""
        return self.columns[:, : self.m]

    @property
    def head(self) -> Tensor:
        """The head's input."""
        return self.columns[:, self.m :]

    def across(self, rows: int, of_head: Tensor, of_body: Tensor) -> Tensor:
        """The head's kernel and κ between the first ``rows`` and the others, each [rows,N − rows] times its own
        [N − rows,K], added up. The others may be just as many, so neither kernel is written out."""
        head = self.head[:rows] @ (self.head[rows:].T @ of_head)
        return head + self.body[:rows] @ (self.body[rows:].T @ of_body)

    def first(self, rows: int) -> Kernels:
        """The same for the first ``rows`` alone."""
        return self._replace(columns=self.columns[:rows], unseen=self.unseen[:rows], labels=self.labels[:rows])

    def by_fewer(self, share: int) -> Kernels:
        """The same from every ``share``-th landmark alone; the rows must be all those of the first problem."""
        known, F = self.landmarks[::share], self.body
        # Among these, κ ≈ F_M F_Mᵀ, and F projected onto the span of F_M's rows is κ_NM κ_MM^(−½) up to a rotation.
        _, sizes, across = torch.linalg.svd(F[known].double(), full_matrices=False)
        squares = sizes.square()
        seen = squares > 4 * torch.finfo(F.dtype).eps * squares.sum() / max(1, len(known)) ** 0.5
        fewer = F @ across[seen].T.to(F)
        lost = torch.linalg.vector_norm(F, dim=1).square() - torch.linalg.vector_norm(fewer, dim=1).square()
        columns, unseen = torch.cat([fewer, self.head], 1), self.unseen + lost.clamp_min(0)
        return self._replace(columns=columns, m=fewer.shape[1], unseen=unseen, landmarks=known)


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
    """For all rows of the problems, one problem after the other, in one pass."""
    operator = problems[0].operator
    probe = random_signs(metric[0], seed=0).to(operator.dtype)
    known = Landmarks(problems, probe, (probe.double() @ metric @ probe.double()).item() or 1.0)
    names, m, count = head_names(operator), known.numbers, sum(problem.operator.rows for problem in problems)
    width = operator.base.config.width if names else 0
    columns = probe.new_ones(count, m + width + (len(names) == 2))  # a bias reads ones
    unseen, start, seen = columns.new_empty(count), 0, list[Tensor]()
    for state, labels in chain.from_iterable(problem.operator.blocks() for problem in problems):
        here = slice(start, start + len(labels))
        columns[here, :m], unseen[here] = known(state)
        columns[here, m : m + width] = state.feature[:, :width]
        start = here.stop
        seen.append(labels)
    return Kernels(columns, m, unseen, known.rows.to(columns.device), torch.cat(seen), metric)


def _first_rows(operator: TangentOperator, count: int) -> np.ndarray:
    """The first rows [count,t,d], however they are spread over sources."""
    parts: list[np.ndarray] = []
    for source in operator.sources:
        if source.rows and count > 0:
            tokens = np.asarray(next(iter(source.blocks(count))).tokens)
            parts.append(tokens)
            count -= len(tokens)
    return np.concatenate(parts)
