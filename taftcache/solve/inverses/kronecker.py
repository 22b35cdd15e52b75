"""A Kronecker-factored preconditioner, made from the rows and the base point alone.

Each row's gradient of a matrix W is rank one, δ ⊗ x, so W's block of 1/N JᵀDJ is E[δδᵀ ⊗ xxᵀ],
approximated by E[δδᵀ] ⊗ E[xxᵀ] (Martens and Grosse 2015), head by head where heads own rows of W. δ comes from
back-propagating random signs √D ξ, whose covariance is D; the classifier's own factor is exact. The product's
eigenvectors are kept, and its eigenvalues replaced by the second moments E[(gᵢ·δ)²(aⱼ·x)²] along them (George et al.
2018): a few rows with large δ and unusual x, such as attention has, put the product wrong by two orders of
magnitude. Biases ride along as a constant input. LayerNorm affines, LayerScale and the class token couple strongly
and are few: they share one dense block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from taftcache.errors import SolveError
from taftcache.objective.cotangent import random_signs
from taftcache.objective.problem import Problem
from taftcache.solve.inverses.cholesky import cholesky
from taftcache.tangent.factors import Direct, Factor, RankOne, TokenSum
from taftcache.tangent.operator import TangentOperator

SAMPLE_ROWS = 1024  # factors settle with far fewer rows than a shard may hold
PROBES = 2
LARGEST_FACTOR = 2048  # an eigendecomposition above this costs more than the passes it saves
LARGEST_DENSE = 8192
_known: WeakKeyDictionary[TangentOperator, tuple[Tensor, tuple[Tensor, Tensor | None]]] = WeakKeyDictionary()


class _Piece(NamedTuple):
    """One head's part of a matrix's factor, or all of it."""

    weight: slice
    bias: slice | None
    out: Tensor  # [m,o]
    into: Tensor  # [m,i], a constant 1 at its end where there is a bias
    of_head: bool
    moments: bool  # whether out ⊗ into is a row's whole gradient, so that second moments of the product are known


class _Pair(NamedTuple):
    """(M + λI)⁻¹ on one piece, M being diagonal in the eigenbases of G and A; None is the identity basis."""

    weight: slice
    bias: slice | None
    left: Tensor | None
    right: Tensor | None
    inverse: Tensor  # [out, in (+ 1)] 1/(m_ij + λ)

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
    """A Kronecker pair per matrix and head, its eigenvalues corrected, and a dense block for the small parameters.

    Deterministic: the probes come from a fixed seed and the rows from the front of the sources,
    so a shard's solve depends on nothing but that shard. Costs two half passes over the sampled rows.
    """

    def __init__(self, problem: Problem) -> None:
        self._ridge, self._small = problem.ridge, []
        # In the products' own precision: an inverse that is right to a few per cent gains nothing from more.
        self._dtype = problem.operator.dtype
        G: dict[int, Tensor] = {}
        A: dict[int, Tensor] = {}
        dense: Tensor | None = None
        count = 0
        for matrices, direct, n in _sample(problem):
            count += n
            for k, piece in enumerate(_pieces(matrices)):
                # The head's δ are the signs themselves, whose covariance is known to be diagonal.
                _add(G, k, piece.out, piece.out.shape[1] <= LARGEST_FACTOR and not piece.of_head)
                tokens = 1 if piece.moments else len(piece.out) // n
                _add(A, k, piece.into, piece.into.shape[1] <= LARGEST_FACTOR, 1 / tokens)
            if direct:
                rows = torch.cat([part.rows for part in direct], 1)
                # Rounded to float32, the moment of a fresh class token has eigenvalues far below −λ.
                wide = rows.double()
                moment = wide.T @ wide if rows.shape[1] <= LARGEST_DENSE else wide.square().sum(0)
                dense = moment if dense is None else dense + moment
                self._small = [part.where for part in direct]
        left = {k: _eigen(moment / count) for k, moment in G.items()}
        right = {k: _eigen_of_input(problem.operator, moment / count) for k, moment in A.items()}
        middle = {k: left[k][0][:, None] * right[k][0][None, :] for k in left}
        places = self._correct(problem, left, right, middle, count)
        self._pairs = [
            _Pair(*place, self._basis(left[k][1]), self._basis(right[k][1]), self._invert(middle[k]))
            for k, place in enumerate(places)
        ]
        if dense is not None:
            dense = dense / count
            eye = torch.eye(len(dense), dtype=dense.dtype, device=dense.device)
            self._dense = cholesky(dense + self._ridge * eye, self._ridge) if dense.ndim == 2 else dense + self._ridge

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
            for where, part in zip(
                self._small, torch.split(inner, [w.stop - w.start for w in self._small]), strict=True
            ):
                out[where] = part
        return out.to(wide)

    @staticmethod
    def _correct(
        problem: Problem,
        left: dict[int, tuple[Tensor, Tensor | None]],
        right: dict[int, tuple[Tensor, Tensor | None]],
        middle: dict[int, Tensor],
        count: int,
    ) -> list[tuple[slice, slice | None]]:
        """Replace the eigenvalues in ``middle`` by second moments; returns where each piece lies in the vector."""
        places: list[tuple[slice, slice | None]] = []
        sums: dict[int, Tensor] = {}
        for matrices, _, _ in _sample(problem):
            pieces = list(_pieces(matrices))
            places = [(piece.weight, piece.bias) for piece in pieces]
            for k, piece in enumerate(pieces):
                if piece.moments and not piece.of_head:  # the classifier's product is exact
                    out, into = _along(piece.out, left[k][1]), _along(piece.into, right[k][1])
                    moment = out.square_().T @ into.square_()
                    sums[k] = sums[k] + moment if k in sums else moment.double()
        middle |= {k: total / count for k, total in sums.items()}
        return places

    def _basis(self, vectors: Tensor | None) -> Tensor | None:
        return None if vectors is None else vectors.to(self._dtype)

    def _invert(self, eigenvalues: Tensor) -> Tensor:
        return (1 / (eigenvalues + self._ridge)).to(self._dtype)


def _sample(problem: Problem) -> Iterator[tuple[Sequence[Factor], list[Direct], int]]:
    """Factors of the first rows' gradients, block by block, for the same random signs at every call."""
    generator = torch.Generator().manual_seed(0)
    start = 0
    for state, labels in problem.operator.blocks():
        for _ in range(PROBES):
            signs = random_signs(state.logits, generator)
            probe = problem.root(state.logits, labels, start, signs)
            yield *problem.operator.factors(state, probe), len(labels)
        start += len(labels)
        if start >= SAMPLE_ROWS:
            return


def _pieces(matrices: Sequence[Factor]) -> Iterator[_Piece]:
    for m in matrices:
        if isinstance(m, TokenSum):
            # "Expand" (Eschenhagen et al. 2023): tokens of a row count as independent, so G is their sum and A
            # their mean.
            yield _Piece(m.weight, m.bias, m.out.flatten(0, 1), _with_one(m, m.into.flatten(0, 1)), False, False)
            continue
        assert isinstance(m, RankOne)
        o, i = m.out.shape[2], m.into.shape[2]
        for h in range(m.out.shape[1]):
            weight = _part(m.weight, h, o * i)
            bias = None if m.bias is None else _part(m.bias, h, o)
            yield _Piece(weight, bias, m.out[:, h], _with_one(m, m.into[:, h]), m.of_head, True)


def _with_one(m: Factor, into: Tensor) -> Tensor:
    return into if m.bias is None else torch.cat([into, into.new_ones(len(into), 1)], 1)


def _part(whole: slice, h: int, size: int) -> slice:
    return slice(whole.start + h * size, whole.start + (h + 1) * size)


def _add(moments: dict[int, Tensor], key: int, rows: Tensor, dense: bool, scale: float = 1) -> None:
    moment = (rows.T @ rows if dense else rows.square().sum(0)).double() * scale
    moments[key] = moments[key] + moment if key in moments else moment


def _along(rows: Tensor, basis: Tensor | None) -> Tensor:
    return rows.clone() if basis is None else rows @ basis.to(rows)


def _eigen_of_input(operator: TangentOperator, factor: Tensor) -> tuple[Tensor, Tensor | None]:
    """``_eigen``, remembered for the head alone: its input is the same at every λ and Δw, and this costs most of a
    step."""
    if not operator.head_alone:
        return _eigen(factor)
    known = _known.get(operator)
    if known is None or not torch.equal(known[0], factor):
        known = _known[operator] = factor, _eigen(factor)
    return known[1]


def _eigen(factor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Eigenvalues and vectors of a factor [k,k]; a diagonal [k] is its own eigenvalues, without vectors."""
    if factor.ndim == 1:
        return factor, None
    if not factor.isfinite().all():
        raise SolveError(
            "the rows' second moments are beyond what float32 holds",
            do="look for extreme numbers in the rows, or scale them",
        )
    values, vectors = torch.linalg.eigh(factor)
    return values.clamp_min(0), vectors
