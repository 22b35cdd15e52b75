"""A head's problem over fewer rows than columns, written in an orthonormal basis of their own.

With X = RQᵀ, Q [d,N] orthonormal, a step W [K,d] has a part W̃Qᵀ that the rows see, and a rest that only the ridge sees.
Newton's equations fall apart in the same way: those for W̃ are a head's on the rows R [N,N], and the rest of a step is
−1/λ times that of the gradient. So a step takes vectors and matrices of the size of N, not of d.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.solve.head.size import GROUP_BYTES
from taftcache.solve.inverses.kronecker import LARGEST_FACTOR
from taftcache.tangent.base import Base
from taftcache.tangent.config import TailConfig
from taftcache.tangent.operator import TangentOperator
from taftcache.tangent.parameters import Layout
from taftcache.tangent.rows import ArrayRows
from taftcache.tangent.spec import TangentSpec

_known: WeakKeyDictionary[TangentOperator, OwnBasis] = WeakKeyDictionary()


class OwnBasis(NamedTuple):
    """Q = ``vectors`` [d,N] in float64, J over R, and the ``layout`` of J over X, with ``names`` of weight and bias."""

    vectors: Tensor
    operator: TangentOperator
    layout: Layout
    names: tuple[str, str]

    def inside(self, gradient: Tensor) -> Tensor:
        """A gradient [P] as the rows see it: over R."""
        weight, bias = (self.layout.views(gradient)[name] for name in self.names)
        return torch.cat([(weight @ self.vectors).reshape(-1), bias])

    def step(self, own: Tensor, gradient: Tensor, ridge: float) -> Tensor:
        """The step [P] that is ``own`` over R, and Newton's for the part of the gradient that the rows do not see."""
        weight, bias = self.operator.layout.views(own).values()
        slope = self.layout.views(gradient)[self.names[0]]
        rest = (slope @ self.vectors) @ self.vectors.T - slope
        return self.layout.flatten(dict(zip(self.names, (weight @ self.vectors.T + rest / ridge, bias), strict=True)))


def own_basis(problem: Problem, like: TangentOperator) -> OwnBasis | None:
    """The basis of a head's rows if they are fewer than its columns, with products in ``like``'s precision.

    problem: in float64, of finite rows. Its rows are read once; the basis is remembered for as long as ``like`` exists.
    """
    operator = problem.operator
    rows, width = operator.rows, operator.base.config.width
    fits = rows < width and rows <= LARGEST_FACTOR and 8 * rows * width <= GROUP_BYTES
    if not (operator.head_alone and fits):
        return None
    if like not in _known:
        states, labels = zip(*operator.blocks(), strict=True)
        Q, R = torch.linalg.qr(torch.cat([state.feature for state in states]).T)
        names = operator.base.config.head_names
        weight, bias = (operator.base.state[name] for name in names)
        config = TailConfig.of_vectors(len(R), operator.classes)
        state = dict(zip(config.head_names, (weight @ Q, bias), strict=True))
        base = Base(config, state, TangentSpec(blocks=0, train="head"))
        own = ArrayRows(R.T[:, None].numpy(force=True), torch.cat(labels).numpy(force=True))
        J = TangentOperator(base, [own], dtype=like.dtype, device=like.device, memory=2 * R.nbytes, repeated=True)
        _known[like] = OwnBasis(Q, J, operator.layout, names)
    return _known[like]
