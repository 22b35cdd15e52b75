"""A Kronecker-factored preconditioner, made from the rows and the base point alone.

Each row's gradient of a matrix W is rank one, δ ⊗ x, so W's block of 1/N JᵀDJ is E[δδᵀ ⊗ xxᵀ],
approximated by E[δδᵀ] ⊗ E[xxᵀ] (Martens and Grosse 2015). δ comes from back-propagating random
signs √D ξ, whose covariance is D; the head's own factor is exact. Biases ride along as a constant
input. LayerNorm affines, LayerScale and the class token couple strongly and are few: they share
one dense block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from taftcache.objective.problem import Problem
from taftcache.tangent.class_row import Cotangents, State, cotangents
from taftcache.tangent.weights import TailWeights

SAMPLE_ROWS = 1024  # factors settle with far fewer rows than a shard may hold
PROBES = 2
LARGEST_FACTOR = 2048  # an eigendecomposition above this costs more than the passes it saves
LARGEST_DENSE = 8192

Factor = Callable[[TailWeights, State, Cotangents], Tensor]


class _Matrix(NamedTuple):
    """Where a matrix and its bias lie in the vector, and the rows [n, ·] of its two factors."""

    weight: slice
    bias: slice | None
    out: Factor
    into: Factor
    diagonal: bool = False  # E[δδᵀ] is known to be diagonal: the head's, whose δ are the signs themselves


class _Pair(NamedTuple):
    """(G ⊗ A + λI)⁻¹ on one matrix in the eigenbases of G and A; None is the identity basis."""

    matrix: _Matrix
    left: Tensor | None
    right: Tensor | None
    inverse: Tensor  # [out, in (+ 1)] 1/(g_i a_j + λ)

    def apply(self, vector: Tensor, out: Tensor) -> None:
        weight, bias = self.matrix.weight, self.matrix.bias
        V = vector[weight].view(self.inverse.shape[0], -1)
        if bias is not None:
            V = torch.cat([V, vector[bias][:, None]], 1)
        V = V if self.left is None else self.left.T @ V
        V = (V if self.right is None else V @ self.right) * self.inverse
        V = V if self.left is None else self.left @ V
        V = V if self.right is None else V @ self.right.T
        if bias is not None:
            out[bias], V = V[:, -1], V[:, :-1]
        out[weight] = V.reshape(-1)


class KroneckerPreconditioner:
    """One Kronecker pair per matrix and a dense block for the small parameters.

    Deterministic: the probes come from a fixed seed and the rows from the front of the sources,
    so a shard's solve depends on nothing but that shard.
    """

    def __init__(self, problem: Problem) -> None:
        operator = problem.operator
        self._ridge = problem.ridge
        matrices, small = _parts(problem)
        G: list[Tensor | None] = [None] * len(matrices)
        A: list[Tensor | None] = [None] * len(matrices)
        dense: Tensor | None = None
        seen = 0
        generator = torch.Generator().manual_seed(0)
        w, trained = operator.weights, operator.direction(torch.zeros(operator.layout.size))
        for state, labels in operator.blocks():
            seen += len(labels)
            curvature = problem.loss.curvature(state.logits, labels)
            for probe in range(PROBES):
                signs = torch.randint(0, 2, curvature.shape, generator=generator).to(curvature) * 2 - 1
                g = cotangents(w, state, curvature.sqrt() * signs, trained)
                for k, matrix in enumerate(matrices):
                    out, into = matrix.out(w, state, g), matrix.into(w, state, g)
                    G[k] = _add_moment(G[k], out, len(labels), dense=not matrix.diagonal)
                    A[k] = _add_moment(A[k], into, len(labels), bias=matrix.bias is not None)
                if small:
                    rows = torch.cat([part(state, g) for _, part in small], 1)
                    dense = _add_moment(dense, rows, len(labels), dense=rows.shape[1] <= LARGEST_DENSE)
            if seen >= SAMPLE_ROWS:
                break
        count = seen * PROBES
        self._pairs = [self._factorise(m, G[k] / count, A[k] / count) for k, m in enumerate(matrices)]  # type: ignore[operator]
        self._small = [where for where, _ in small]
        self._dense: Tensor | None = None
        if dense is not None:
            dense = dense / count + self._ridge * (torch.eye(len(dense)).to(dense) if dense.ndim == 2 else 1)
            self._dense = torch.linalg.cholesky(dense) if dense.ndim == 2 else dense

    def apply(self, vector: Tensor) -> Tensor:
        """M⁻¹ v [P]."""
        out = vector / self._ridge  # what no factor covers (the key bias) has only the ridge
        for pair in self._pairs:
            pair.apply(vector, out)
        if self._dense is not None:
            inner = torch.cat([vector[where] for where in self._small])
            if self._dense.ndim == 2:
                inner = torch.cholesky_solve(inner[:, None], self._dense)[:, 0]
            else:
                inner = inner / self._dense
            for where, part in zip(self._small, inner.split([w.stop - w.start for w in self._small]), strict=True):
                out[where] = part
        return out

    def _factorise(self, matrix: _Matrix, G: Tensor, A: Tensor) -> _Pair:
        (g, left), (a, right) = _eigen(G), _eigen(A)
        return _Pair(matrix, left, right, 1 / (g[:, None] * a[None, :] + self._ridge))


def _add_moment(total: Tensor | None, rows: Tensor, n: int, *, bias: bool = False, dense: bool = True) -> Tensor:
    """total + n·mean(row rowᵀ) in float64 [k,k], or the diagonal [k]; pooled heads count as one row's mean."""
    if bias:
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    moment = rows.T @ rows if dense and rows.shape[1] <= LARGEST_FACTOR else (rows * rows).sum(0)
    moment = moment.double() * (n / len(rows))
    return moment if total is None else total + moment


def _eigen(factor: Tensor) -> tuple[Tensor, Tensor | None]:
    if factor.ndim == 1:
        return factor, None
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp_min(0), vectors


def _heads(per_head: Tensor) -> Tensor:
    """[H,n,e] to [n,H·e]."""
    return per_head.transpose(0, 1).reshape(per_head.shape[1], -1)


def _pooled(rows: Tensor) -> Tensor:
    """[n,H,d] or [H,n,d] to rows [H·n,d]."""
    return rows.reshape(-1, rows.shape[-1])


def _parts(problem: Problem):
    """The matrices and small parameters among the trained, and where they lie."""
    layout, p = problem.operator.layout, problem.operator.base.config.prefix
    d = problem.operator.base.config.width
    where = layout.slices
    matrices: list[_Matrix] = []

    def add(name: str, out: Factor, into: Factor, diagonal: bool = False) -> None:
        if f"{name}.weight" in layout:
            matrices.append(_Matrix(where[f"{name}.weight"], where.get(f"{name}.bias"), out, into, diagonal))

    def rows_of(name: str, third: int, size: int) -> slice | None:
        start = where[name].start if name in layout else None
        return None if start is None else slice(start + third * size, start + (third + 1) * size)

    add("head", lambda w, s, g: g.logits, lambda w, s, g: s.feature, diagonal=True)
    add(f"{p}.mlp.fc2", lambda w, s, g: g.branch2, lambda w, s, g: s.g)
    add(f"{p}.mlp.fc1", lambda w, s, g: g.z, lambda w, s, g: torch.addcmul(w.beta2, s.u2, w.gamma2))
    add(f"{p}.attn.proj", lambda w, s, g: g.branch1, lambda w, s, g: s.o)
    qkv, bias = f"{p}.attn.qkv.weight", f"{p}.attn.qkv.bias"
    if qkv in layout:
        q, k, v = (rows_of(qkv, third, d * d) for third in range(3))
        matrices.append(_Matrix(q, rows_of(bias, 0, d), lambda w, s, g: _heads(g.q), lambda w, s, g: s.xhat))
        matrices.append(_Matrix(k, None, lambda w, s, g: _heads(s.q), lambda w, s, g: _pooled(g.k)))
        matrices.append(
            _Matrix(
                v,
                rows_of(bias, 2, d),
                lambda w, s, g: _heads(g.o),
                lambda w, s, g: _pooled(torch.addcmul(w.beta1, s.ubar, w.gamma1)),
            )
        )
    rules = {
        f"{p}.cls_token": lambda s, g: g.x0,
        f"{p}.norm1.weight": lambda s, g: (g.xbar * s.ubar + g.c * s.a).sum(1) + g.xhat * s.u[:, 0],
        f"{p}.norm1.bias": lambda s, g: g.xbar.sum(1) + g.xhat,
        f"{p}.ls1.gamma": lambda s, g: g.h * s.branch1,
        f"{p}.norm2.weight": lambda s, g: g.x2 * s.u2,
        f"{p}.norm2.bias": lambda s, g: g.x2,
        f"{p}.ls2.gamma": lambda s, g: g.y * s.branch2,
        "norm.weight": lambda s, g: g.feature * s.uf,
        "norm.bias": lambda s, g: g.feature,
    }
    return matrices, [(where[name], rule) for name, rule in rules.items() if name in layout]
