"""Each row's gradient in factored form: a few outer products per matrix, and a few vectors.

The gradient of a matrix (or of one head's part of it) is ``out ⊗ into`` where one row of tokens reaches the
logits, and a sum of such products over the tokens where all do. Second moments, kernels and norms of per-row
gradients follow from the factors without any gradient being formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class RankOne(NamedTuple):
    """A matrix's per-row gradient, out_h ⊗ into_h in the rows that head h owns (one head: the whole matrix)."""

    weight: slice  # of the vector [P]; [H·o, i] row-major
    bias: slice | None  # its gradient is out itself
    out: Tensor  # [n,H,o]
    into: Tensor  # [n,H,i]
    of_head: bool = False  # the classifier's own: out is the cotangent that came in
    follows: Literal["out", "into"] = "out"  # the factor that depends on the cotangents; the other is the state's alone


class TokenSum(NamedTuple):
    """A matrix's per-row gradient, Σ_t out_t ⊗ into_t over the row's tokens; [o, i] row-major."""

    weight: slice  # of the vector [P]
    bias: slice | None  # its gradient is Σ_t out_t
    out: Tensor  # [n,t,o]
    into: Tensor  # [n,t,i]


class Direct(NamedTuple):
    """A small parameter's per-row gradient itself."""

    where: slice
    rows: Tensor  # [n,p]


Factor = RankOne | TokenSum

Gradients = tuple[Sequence[RankOne], Sequence[Direct]]
"""A block's gradients of the matrices and of the small parameters, where one row of tokens reaches the logits."""

AddGradients = Callable[[slice, slice, Tensor], object]
"""Takes a piece of the rows' gradients: which rows, where in the vector [P], and the numbers [n,p]."""

PIECE_NUMBERS = 1 << 22  # in the gradients of one matrix that are written out at once, about


def add_gram(total: Tensor, rows: Sequence[Gradients], others: Sequence[Gradients] = (), scale: float = 1.0) -> None:
    """Add GG'ᵀ/scale to ``total`` [n,n'], for gradients G of blocks of rows and G' of others, by default the same."""
    inner, outer = torch.empty_like(total), torch.empty_like(total)  # fresh memory pages would cost as much as the sums
    matrices, small = _by_parameter(rows)
    matrices_of_others, small_of_others = _by_parameter(others) if others else (matrices, small)
    for same, other in zip(matrices, matrices_of_others, strict=True):
        out, into = _sides(same)
        out_of_other, into_of_other = (out, into) if other is same else _sides(other)
        for h in range(out.shape[1]):
            torch.mm(into[:, h], into_of_other[:, h].T, out=inner)
            if same[0].bias is not None:
                inner.add_(1)
            total.addcmul_(inner, torch.mm(out[:, h], out_of_other[:, h].T, out=outer), value=1 / scale)
    for part, part_of_other in zip(small, small_of_others, strict=True):
        total.addmm_(_joined([d.rows for d in part]), _joined([d.rows for d in part_of_other]).T, alpha=1 / scale)


def joined(blocks: Sequence[Gradients]) -> Gradients:
    """The gradients of several blocks as those of one."""
    matrices, small = _by_parameter(blocks)
    whole = [same[0]._replace(out=out, into=into) for same in matrices for out, into in [_sides(same)]]
    return whole, [same[0]._replace(rows=_joined([d.rows for d in same])) for same in small]


def _by_parameter(blocks: Sequence[Gradients]) -> tuple[list[tuple[RankOne, ...]], list[tuple[Direct, ...]]]:
    """For each matrix and each small parameter, its gradients in all blocks."""
    return list(zip(*(m for m, _ in blocks), strict=True)), list(zip(*(small for _, small in blocks), strict=True))


def _sides(parts: Sequence[RankOne]) -> tuple[Tensor, Tensor]:
    return _joined([m.out for m in parts]), _joined([m.into for m in parts])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def add_gradients(matrices: Iterable[Factor], direct: Iterable[Direct], add: AddGradients) -> None:
    """Hand each row's gradient to ``add``, a few rows of a matrix at a time."""
    for m in matrices:
        product = "nho,nhi->nhoi" if isinstance(m, RankOne) else "nto,nti->noi"
        each = max(1, PIECE_NUMBERS // (m.weight.stop - m.weight.start))
        for start in range(0, len(m.out), each):
            rows = slice(start, min(start + each, len(m.out)))
            add(rows, m.weight, torch.einsum(product, m.out[rows], m.into[rows]).flatten(1))
        if m.bias is not None:
            add(slice(0, len(m.out)), m.bias, m.out.flatten(1) if isinstance(m, RankOne) else m.out.sum(1))
    for part in direct:
        add(slice(0, len(part.rows)), part.where, part.rows)


def factor_norms(matrices: Iterable[Factor], direct: Iterable[Direct]) -> Tensor:
    """‖Jᵀ r‖ of each row [n], from its factors and, where that is cheaper, without forming its gradient.

    ‖out ⊗ into‖² = ‖out‖² ‖into‖², and a sum of outer products has the norm Σ_ts (out_t·out_s)(into_t·into_s),
    which is the smaller computation while t² (o + i) < t·o·i.
    """
    squares = [part.rows.square().sum(1) for part in direct]
    for m in matrices:
        if isinstance(m, RankOne):
            into = m.into.square().sum(-1) + (m.bias is not None)
            squares.append((m.out.square().sum(-1) * into).sum(-1))
            continue
        t, o, i = m.out.shape[1], m.out.shape[2], m.into.shape[2]
        if t * (o + i) < o * i:
            grams = torch.bmm(m.out, m.out.mT) * torch.bmm(m.into, m.into.mT)
            squares.append(grams.sum((1, 2)))
        else:  # one row at a time, because n of them are as large as n weights
            squares.append(torch.stack([(g.T @ x).square().sum() for g, x in zip(m.out, m.into, strict=True)]))
        if m.bias is not None:
            squares.append(m.out.sum(1).square().sum(1))
    return torch.stack(squares).sum(0).sqrt()
