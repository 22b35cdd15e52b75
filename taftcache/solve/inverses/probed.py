"""A preconditioner for tails without factored gradients: it needs only products with Jᵀ.

The head's block of 1/N JᵀDJ is exact, as in the Kronecker preconditioner. Every other tensor's diagonal is probed:
with random signs ξ, E[(Jᵀ√D ξ)²] is the diagonal of JᵀDJ. Few probes are noisy, so a matrix keeps only the means of its
rows and of its columns, and their outer product stands for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taftcache.objective.cotangent import random_signs
from taftcache.objective.problem import Problem

SAMPLE_ROWS = 1024
PROBES = 2


class ProbedPreconditioner:
    """The head's exact inverse and a probed diagonal for the rest; deterministic: its probes have a fixed seed."""

    def __init__(self, problem: Problem) -> None:
        operator = problem.operator
        self._layout = operator.layout
        self._weight, self._bias = operator.base.config.head_names
        squares = torch.zeros(self._layout.size, dtype=torch.float64, device=operator.device)
        curvatures: Tensor | float = 0.0
        moment: Tensor | float = 0.0
        seen = 0
        generator = torch.Generator().manual_seed(0)
        for state, labels in operator.blocks():
            inputs = torch.cat([state.feature, torch.ones_like(state.feature[:, :1])], 1).double()
            moment = moment + inputs.T @ inputs
            for _ in range(PROBES):
                signs = random_signs(state.logits, generator)
                probe = problem.root(state.logits, labels, seen, signs)
                curvatures = curvatures + probe.double().square().sum(0) / PROBES
                gradient = torch.zeros(self._layout.size, dtype=operator.dtype, device=operator.device)
                out = operator.tail.bind(self._layout.views(gradient))
                operator.adjoint(state, probe, out)
                squares += gradient.double() ** 2
            seen += len(labels)
            if seen >= SAMPLE_ROWS:
                break
        diagonal = squares / (seen * PROBES)
        for view in self._layout.views(diagonal).values():
            view.copy_(_smoothed(view))
        self._inverse = 1 / (diagonal + problem.ridge)
        self._head = {self._weight, self._bias} <= set(self._layout)
        if self._head:
            values, self._vectors = torch.linalg.eigh(moment / seen)
            self._scale = 1 / (curvatures[:, None] / seen * values.clamp_min(0) + problem.ridge)  # type: ignore[index]

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v [P]."""
        wide = vector.double()
        out = wide * self._inverse
        if self._head:
            given, put = self._layout.views(wide), self._layout.views(out)
            joined = torch.cat([given[self._weight], given[self._bias][:, None]], 1)
            solved = (joined @ self._vectors * self._scale) @ self._vectors.T
            put[self._weight].copy_(solved[:, :-1])
            put[self._bias].copy_(solved[:, -1])
        return out.to(vector)


def _smoothed(diagonal: Tensor) -> Tensor:
    """A tensor's diagonal from the means over its first axis and over all others; a vector's own mean."""
    if diagonal.ndim < 2:
        return diagonal.mean().expand_as(diagonal)
    flat = diagonal.flatten(1)
    whole = flat.mean()
    outer = flat.mean(1, keepdim=True) * flat.mean(0, keepdim=True) / whole.clamp_min(torch.finfo(flat.dtype).tiny)
    return outer.view_as(diagonal)
