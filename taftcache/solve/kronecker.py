"""A Kronecker-factored preconditioner, made from the rows and the base point alone.

Each row's gradient of a matrix W is rank one, δ ⊗ x, so W's block of 1/N JᵀDJ is E[δδᵀ ⊗ xxᵀ],
approximated by E[δδᵀ] ⊗ E[xxᵀ] (Martens and Grosse 2015). δ comes from back-propagating random
signs √D ξ, whose covariance is D; the head's own factor is exact. Biases ride along as a constant
input. LayerNorm affines, LayerScale and the class token couple strongly and are few: they share
one dense block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.tangent.factors import TokenSum

SAMPLE_ROWS = 1024  # factors settle with far fewer rows than a shard may hold
PROBES = 2
LARGEST_FACTOR = 2048  # an eigendecomposition above this costs more than the passes it saves
LARGEST_DENSE = 8192


class _Pair(NamedTuple):
    """(G ⊗ A + λI)⁻¹ on one matrix in the eigenbases of G and A; None is the identity basis."""

    weight: slice
    bias: slice | None
    left: Tensor | None
    right: Tensor | None
    inverse: Tensor  # [out, in (+ 1)] 1/(g_i a_j + λ)

    def apply(self, vector: Tensor, out: Tensor) -> None:
        V = vector[self.weight].view(self.inverse.shape[0], -1)
        if self.bias is not None:
            V = torch.cat([V, vector[self.bias][:, None]], 1)
        V = V if self.left is None else self.left.T @ V
        V = (V if self.right is None else V @ self.right) * self.inverse
        V = V if self.left is None else self.left @ V
        V = V if self.right is None else V @ self.right.T
        if self.bias is not None:
            out[self.bias], V = V[:, -1], V[:, :-1]
        out[self.weight] = V.reshape(-1)


class KroneckerPreconditioner:
    """One Kronecker pair per matrix and a dense block for the small parameters.

    Deterministic: the probes come from a fixed seed and the rows from the front of the sources,
    so a shard's solve depends on nothing but that shard.
    """

    def __init__(self, problem: Problem) -> None:
        operator = problem.operator
        self._ridge = problem.ridge
        moments: dict[tuple[int, str], Tensor] = {}
        where: list[tuple[slice, slice | None]] = []
        small: list[slice] = []
        seen = 0
        generator = torch.Generator().manual_seed(0)

        def add(key: tuple[int, str], rows: Tensor, n: int, *, bias: bool = False, dense: bool = True) -> None:
            if bias:
                rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
            moment = rows.T @ rows if dense else (rows * rows).sum(0)
            moment = moment.double() * (n / len(rows))  # heads pooled into rows count as their mean
            moments[key] = moments[key] + moment if key in moments else moment

        for state, labels in operator.blocks():
            n, curvature = len(labels), problem.loss.curvature(state.logits, labels)
            seen += n
            for _ in range(PROBES):
                signs = torch.randint(0, 2, curvature.shape, generator=generator).to(curvature) * 2 - 1
                matrices, direct = operator.factors(state, curvature.sqrt() * signs)
                for k, m in enumerate(matrices):
                    if isinstance(m, TokenSum):
                        # "Expand" (Eschenhagen et al. 2023): tokens of a row count as independent, so G is their
                        # sum and A their mean.
                        tokens, out, into = m.out.shape[1], m.out.flatten(0, 1), m.into.flatten(0, 1)
                        add((k, "G"), out, n * tokens, dense=out.shape[1] <= LARGEST_FACTOR)
                        add((k, "A"), into, n, bias=m.bias is not None, dense=into.shape[1] <= LARGEST_FACTOR)
                        continue
                    out, into = m.out.flatten(1), m.into.flatten(0, 1)
                    # The head's δ are the signs themselves: their covariance is known to be diagonal.
                    add((k, "G"), out, n, dense=out.shape[1] <= LARGEST_FACTOR and not m.of_head)
                    add((k, "A"), into, n, bias=m.bias is not None, dense=into.shape[1] <= LARGEST_FACTOR)
                if direct:
                    rows = torch.cat([part.rows for part in direct], 1)
                    add((-1, "S"), rows, n, dense=rows.shape[1] <= LARGEST_DENSE)
                where, small = [(m.weight, m.bias) for m in matrices], [part.where for part in direct]
            if seen >= SAMPLE_ROWS:
                break
        count = seen * PROBES
        # Applied in the products' own precision: an inverse known to a few per cent gains nothing from more.
        self._dtype = operator.dtype
        self._pairs = [self._pair(*at, moments[k, "G"] / count, moments[k, "A"] / count) for k, at in enumerate(where)]
        self._small = small
        if small:
            dense = moments[-1, "S"] / count
            self._dense = (
                torch.linalg.cholesky(dense + _ridge_of(dense, self._ridge)) if dense.ndim == 2 else dense + self._ridge
            )

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v [P]."""
        wide, vector = vector.dtype, vector.to(self._dtype)
        out = vector / self._ridge  # what no factor covers (the key bias) has only the ridge
        for pair in self._pairs:
            pair.apply(vector, out)
        if self._small:
            inner = torch.cat([vector[where] for where in self._small]).to(self._dense)
            if self._dense.ndim == 2:
                inner = torch.cholesky_solve(inner[:, None], self._dense)[:, 0]
            else:
                inner = inner / self._dense
            for where, part in zip(self._small, inner.split([w.stop - w.start for w in self._small]), strict=True):
                out[where] = part
        return out.to(wide)

    def _pair(self, weight: slice, bias: slice | None, G: Tensor, A: Tensor) -> _Pair:
        (g, left), (a, right) = _eigen(G), _eigen(A)
        inverse = 1 / (g[:, None] * a[None, :] + self._ridge)
        return _Pair(weight, bias, _to(left, self._dtype), _to(right, self._dtype), inverse.to(self._dtype))


def _to(matrix: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if matrix is None else matrix.to(dtype)


def _ridge_of(matrix: Tensor, ridge: float) -> Tensor:
    return ridge * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def _eigen(factor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Eigenvalues and vectors of a factor [k,k]; one given by its diagonal [k] is its own."""
    if factor.ndim == 1:
        return factor, None
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp_min(0), vectors
